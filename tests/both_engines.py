"""A pytest plugin: each launch that can be compiled runs in machine code and in the interpreter, and both must agree.

    PYTHONPATH=tests pytest -p both_engines -n 0 tests/sim tests/ops

The tests see the interpreter's results. The run fails if results, counts or initialised bytes differ, or if the
interpreter reports what machine code did not notice; at the end are the numbers of launches, and why kernels were not
compiled. Kernels with races that a test does not check for may differ. It requires llvmlite.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

from cudakit.sim.compiled.launch import run_compiled
from cudakit.sim.driver import launches
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.machine import engine
from cudakit.sim.machine import launch as machine
from cudakit.sim.machine.loading import LoadedFunction

os.environ["CUDAKIT_SIM_ENGINE"] = "compiled"
# more bytes are not copied: the launch then runs in the interpreter alone
MOST = 1 << 28

ended: Counter[str] = Counter()
refused: dict[str, str] = {}
differ: list[str] = []
# the run of the interpreter, that of machine code, and the memory after it
last: list[tuple[KernelRun, KernelRun, list[Any]]] = []
interpret = machine.launch


def memory(allocations: list[Allocation]) -> list[Any]:
    return [(one, one.store.copy(), one.undefined_at(0, one.size)) for one in allocations]


def run(self: engine.Engine, function: LoadedFunction, run: KernelRun, *, now: bool) -> bool:
    """In place of ``Engine.run``: run in machine code, put memory back, and let the interpreter run."""
    last.clear()
    kernel = self.ready(function, now=True)
    if kernel is None:
        refused[run.config.kernel] = self.refusal
        return False
    written = function.reach.written(run)
    allocations = list(run.space.allocations() if written is None else written)
    if sum(len(one.store) for one in allocations) > MOST:
        return False
    before = engine.Restart(self, function, allocations)
    twin = KernelRun(run.config, run.services, function.module.sites, run.environment)
    done = run_compiled(kernel, twin, written)
    ended["compiled" if done else "left to the interpreter"] += 1
    if done:
        last.append((run, twin, memory(allocations)))
        before.put_back()
    return False


def launch(function: Any, *args: Any, **more: Any) -> Any:
    """In place of the machine's ``launch``."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    last.clear()
    try:
        counters = interpret(function, *args, **more)
    except BaseException as error:
        if last:
            differ.append(f"{test}: {function.name}: machine code did not notice: {str(error)[:300]}")
        raise
    for ours, theirs, after in last:
        # without counters nothing reads the counts of blocks, and a long loop may have others
        if ours.counting and (ours.block_counts != theirs.block_counts or tallies(ours) != tallies(theirs)):
            differ.append(f"{test}: {function.name}: the counts differ")
        for one, store, undefined in after:
            if not np.array_equal(one.store, store):
                differ.append(f"{test}: {function.name}: results differ in {one.origin}")
            now = one.undefined_at(0, one.size)
            if (now is None) != (undefined is None) or (now is not None and not np.array_equal(now, undefined)):
                differ.append(f"{test}: {function.name}: initialised bytes differ in {one.origin}")
    return counters


def tallies(run: KernelRun) -> list[Any]:
    return [one and tuple(getattr(one, name) for name in one.__slots__) for one in run.tallies]


def pytest_configure(config: pytest.Config) -> None:
    patched = pytest.MonkeyPatch()
    config.add_cleanup(patched.undo)
    patched.setattr(engine.Engine, "run", run)
    patched.setattr(engine.Engine, "restarts", lambda self, function, run: None)
    patched.setattr(machine, "launch", launch)
    patched.setattr(launches, "launch_kernel", launch)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if differ and not exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("both engines")
    terminalreporter.line(f"launches: {dict(ended)}; {len(differ)} differences")
    for line in differ[:20]:
        terminalreporter.line(line)
    for reason, kernels in Counter(refused.values()).most_common(20):
        terminalreporter.line(f"{kernels} kernels not compiled: {reason}")
