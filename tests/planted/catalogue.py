"""A planted case, the registry of all cases, and the function that runs one on a device."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cudakit

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Empty:
    """An argument: uninitialised device memory."""

    shape: Any
    dtype: Any = np.float32


@dataclass(frozen=True)
class Pitched:
    """An argument: rows of `pitch` elements; the first cols of each are set to `values` (rows, cols)."""

    values: np.ndarray
    pitch: int


@dataclass(frozen=True)
class Launch:
    """One launch. args: numpy arrays (copied to the device), Empty, Pitched, None for a null pointer, or scalars.
    `want`: argument number to its contents after the correct kernel. unordered: arguments whose elements may be in any
    order. constants: name to the contents of `__constant__` memory.
    """

    grid: Any
    block: Any
    args: tuple[Any, ...]
    want: dict[int, Any]
    shared: int = 0
    cooperative: bool = False
    cluster: int | None = None
    unordered: tuple[int, ...] = ()
    constants: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One bug with its correct twin: the wrong half and the right half. kind: the class of report expected for the
    wrong half. idea: a title. file: the source, in which lines are marked `BUG` (at fault) and `OTHER` (the access
    that it conflicts with). A case of device code has `launch`, a function of the half; one of host code has `host`, a
    function of the device and the half.
    """

    name: str
    kind: str
    idea: str
    file: Path
    launch: Callable[[bool], Launch] | None = None
    host: Callable[[cudakit.Device, bool], None] | None = None

    def marked(self, mark: str) -> set[int]:
        """The lines whose comment has the mark. Host cases share a file, so only lines of their own function count."""
        lines = self.file.read_text().splitlines()
        first, last = 1, len(lines)
        if self.host is not None and self.file.suffix == ".py":
            code = self.host.__code__
            first = code.co_firstlineno
            last = max(line for _, _, line in code.co_lines() if line is not None)
        found = re.compile(rf"(//|#) .*\b{mark}\b")
        return {number for number, text in enumerate(lines, 1) if first <= number <= last and found.search(text)}


@dataclass(frozen=True)
class Reported:
    """The simulated device's report on one half; kind is "" if there was none. lines: of the place at fault, inlined
    calls included; others: of the conflicting access. text: the whole report."""

    kind: str = ""
    lines: tuple[tuple[str, int], ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    text: str = ""


CASES: dict[str, Case] = {}


def kernel(kind: str) -> Callable[[Callable[[bool], Launch]], Callable[[bool], Launch]]:
    """Register a case of device code: the function returns the launch of its half (wrong or not). Its name is that of
    the `.cu` file, its docstring the idea."""

    def register(function: Callable[[bool], Launch]) -> Callable[[bool], Launch]:
        name = function.__name__
        _add(Case(name, kind, _idea(function), FOLDER / f"{name}.cu", launch=function))
        return function

    return register


def host(kind: str, file: str = "") -> Callable[..., Callable[[cudakit.Device, bool], None]]:
    """Register a case of host code: the function runs one half. The marked lines are in `file`, by default the
    function's own file."""

    def register(function: Callable[[cudakit.Device, bool], None]) -> Callable[[cudakit.Device, bool], None]:
        path = FOLDER / file if file else Path(function.__code__.co_filename)
        _add(Case(function.__name__, kind, _idea(function), path, host=function))
        return function

    return register


def _idea(function: Any) -> str:
    return " ".join(function.__doc__.split())


def _add(case: Case) -> None:
    if case.name in CASES:
        raise ValueError(f"two planted cases are called {case.name}")
    CASES[case.name] = case


def run_case(case: Case, device: cudakit.Device, wrong: bool, *, fmad: bool = True) -> dict[int, np.ndarray]:
    """Run one half on a device and wait for it. Returns the right half's results by argument number (sorted if their
    order is free). Raises the device's error, and AssertionError if the right half's result is wrong."""
    if case.host is not None:
        case.host(device, wrong)
        device.synchronize()
        return {}
    if case.launch is None:
        raise ValueError(f"{case.name} has nothing to run")
    launch = case.launch(wrong)
    args = run_launch(device, case.file, "wrong" if wrong else "right", launch, fmad=fmad)
    results: dict[int, np.ndarray] = {}
    if not wrong:
        for number, want in launch.want.items():
            got = args[number].numpy()
            if number in launch.unordered:
                got, want = np.sort(got), np.sort(want)
            results[number] = got
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{case.name}: argument {number}")
    return results


def run_launch(device: cudakit.Device, file: Path, name: str, launch: Launch, *, fmad: bool = True) -> tuple[Any, ...]:
    """Run a kernel of a file with a launch's arguments, and wait for it. Returns the arguments, arrays on the device
    among them."""
    module = device.compile(file, fmad=fmad)
    for constant, values in launch.constants.items():
        module.constant(constant).copy_from(values)
    args = tuple(_argument(device, value) for value in launch.args)
    module[name].launch(
        device.default_stream,
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        args=args,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
    )
    device.synchronize()
    return args


def _argument(device: cudakit.Device, value: Any) -> Any:
    if isinstance(value, Empty):
        return device.empty(value.shape, value.dtype)
    if isinstance(value, Pitched):
        rows, cols = value.values.shape
        array = device.empty((rows, value.pitch), value.values.dtype)
        array[:, :cols].copy_from(value.values)
        return array
    return device.array(value) if isinstance(value, np.ndarray) else value


def seen_by_sim(case: Case, wrong: bool, **options: Any) -> Reported:
    """Run one half on a new simulated device (made with `options`), close the device, and return its report."""
    device = cudakit.Device("sim", fresh=True, **options)
    report = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with device:
                run_case(case, device, wrong)
        except cudakit.CudaError as error:
            report = getattr(error, "report", None)
            if report is None:
                raise
    # Leaks and errors that no call raised are warnings, issued as the device is closed.
    report = report or next((r for w in warned if (r := getattr(w.message, "report", None)) is not None), None)
    if report is None:
        return Reported()
    return Reported(
        report.kind,
        tuple((place.file, place.line) for place in report.places),
        tuple((place.file, place.line) for other in report.others for place in other.places),
        str(report),
    )
