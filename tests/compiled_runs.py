"""Launches that run in the interpreter and in machine code (``sim/compiled``), which must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine import engine


def run(monkeypatch: pytest.MonkeyPatch, device: SimDevice, how: str, name: str, grid: Any, block: Any, *args: Any,
        **more: Any) -> tuple[list[bytes], Any]:  # fmt: skip
    """Launch on copies of the arrays: the arrays afterwards, and the counts."""
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
    args = tuple(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)
    counters = device.launch(name, grid, block, *args, **{"checks": ALL_CHECKS, **more})
    return [arg.tobytes() for arg in args if isinstance(arg, np.ndarray)], counters


def both(monkeypatch: pytest.MonkeyPatch, device: SimDevice, name: str, grid: Any, block: Any, *args: Any,
         **more: Any) -> None:  # fmt: skip
    """Machine code runs the launch, with the interpreter's results and counts."""
    expected, counted = run(monkeypatch, device, "interpreter", name, grid, block, *args, **more)
    one = engine.engine_of(device.kernel(name))
    before, one.left = one.compiled_launches, 0
    found, counts = run(monkeypatch, device, "compiled", name, grid, block, *args, **more)
    assert one.compiled_launches == before + 1, one.refusal or "machine code left the launch to the interpreter"
    assert found == expected
    assert counts.as_dict() == counted.as_dict()
    assert counts.per_line == counted.per_line


def left(monkeypatch: pytest.MonkeyPatch, device: SimDevice, name: str, grid: Any, block: Any, *args: Any,
         **more: Any) -> None:  # fmt: skip
    """Machine code leaves the launch to the interpreter, and memory is as before."""
    expected = run(monkeypatch, device, "interpreter", name, grid, block, *args, **more)
    one = engine.engine_of(device.kernel(name))
    one.left = 0
    found = run(monkeypatch, device, "compiled", name, grid, block, *args, **more)
    assert one.left == 1, one.refusal or "machine code ran the launch"
    assert found == expected


def reported(monkeypatch: pytest.MonkeyPatch, source: str, name: str, grid: Any, block: Any, *args: Any,
             **more: Any) -> str:  # fmt: skip
    """The interpreter's report of a launch, which machine code must leave to it."""
    reports = []
    for how in ("interpreter", "compiled"):
        # addresses are in the reports
        device = SimDevice(source)
        with pytest.raises(KernelFault) as caught:
            run(monkeypatch, device, how, name, grid, block, *args, **more)
        reports.append(str(caught.value))
        if how == "compiled":
            one = engine.engine_of(device.kernel(name))
            assert one.left == 1, one.refusal or "machine code ran the launch"
    assert reports[0] == reports[1]
    return reports[0]
