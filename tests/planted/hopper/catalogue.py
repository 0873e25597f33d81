"""A planted Hopper bug, the registry of all of them, and the functions that run one on a device.

A case of its own has a `.cu` file here, with kernels `wrong` and `right`, in which lines are marked `BUG` and `OTHER`.
A `Changed` case is one of the kernels of kernels/hopper with one line replaced; its twin is that kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import cudakit

from ..catalogue import Case, Empty, Launch
from .kinds import KINDS

FOLDER = Path(__file__).parent
KERNELS = FOLDER.parents[2] / "kernels" / "hopper"
# On a GPU, waits for barriers end after a second, so that wrong kernels end.
BOUNDED = "HOPPER_BOUNDED"


@dataclass(frozen=True)
class Map:
    """An argument: a tensor map of a new array, `values` or Empty. box: in the order of the array's axes."""

    values: Any
    box: tuple[int, ...]
    swizzle: str = "none"


@dataclass(frozen=True)
class Words:
    """An argument: the words of tensor maps in device memory, (maps, 16)."""

    maps: tuple[Map, ...]


@dataclass(frozen=True)
class Changed(Case):
    """A kernel of kernels/hopper on data of `shape`, with the line `old` replaced by `new`. named: pieces of the lines
    of which the report names one."""

    old: str = ""
    new: str = ""
    named: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    def source(self, wrong: bool) -> str:
        """The source of one half. Raises ValueError if `old` is not exactly one line."""
        lines = self.file.read_text().splitlines()
        if not wrong:
            return "\n".join(lines) + "\n"
        at = [number for number, line in enumerate(lines) if line.strip() == self.old]
        if len(at) != 1:
            raise ValueError(f"{self.name}: {self.old!r} must be one line of {self.file.name}, found {len(at)}")
        line = lines[at[0]]
        lines[at[0]] = line[: len(line) - len(line.lstrip())] + self.new
        return "\n".join(lines) + "\n"

    def marked(self, mark: str) -> set[int]:
        """The lines of the changed source that contain a piece of `named`; none except for the mark `BUG`."""
        if mark != "BUG":
            return set()
        lines = self.source(True).splitlines()
        return {n for n, line in enumerate(lines, 1) if any(piece in line for piece in self.named)}


class Expired(AssertionError):
    """On a GPU a wait for a barrier ended by its time limit, before the phase was complete."""


CASES: dict[str, Case] = {}


def planted(kind: str) -> Callable[[Callable[[bool], Launch]], Callable[[bool], Launch]]:
    """Register a case with its own `.cu` file: the function returns the launch of its half (wrong or not). Its name is
    that of the file, its docstring the idea."""

    def register(function: Callable[[bool], Launch]) -> Callable[[bool], Launch]:
        name = function.__name__
        file = FOLDER / f"{name}.cu"
        host = functools.partial(_run, name, file, function)
        _add(Case(name, KINDS[kind], _idea(function), file, host=host))
        return function

    return register


def changed(
    kind: str,
    kernel: str,
    name: str,
    idea: str,
    old: str,
    new: str,
    named: tuple[str, ...],
    shape: tuple[int, ...],
    run: Callable[[cudakit.Device, Any], None],
) -> None:
    """Register a `Changed` case. run(device, compiler): launches the kernel on data of `shape`, waits, and checks the
    result. `compiler` compiles this half, as the functions of examples/hopper.py expect of a device."""
    file = next(KERNELS.glob(f"*_{kernel}.cu"))

    def host(device: cudakit.Device, wrong: bool) -> None:
        modules: list[Any] = []
        try:
            run(device, _compiling(device, case.source(wrong), file, modules))
        except AssertionError:
            if not wrong:
                raise
        expect_no_expiry(device, modules)

    case = Changed(f"{kernel}_{name}", KINDS[kind], idea, file, host=host, old=old, new=new, named=named, shape=shape)
    _add(case)


def expect_no_expiry(device: cudakit.Device, modules: list[Any]) -> None:
    """Raise Expired if a wait in one of the modules ended by its time limit."""
    if device.kind == "gpu" and any(module.variable("hopper_expired").numpy() for module in modules):
        raise Expired("a wait for a barrier ended after a second: the kernel would hang")


def _compiling(device: cudakit.Device, source: str, file: Path, modules: list[Any]) -> Any:
    """The device, as the functions of examples/hopper.py use it, with `source` instead of the kernel's file."""

    def compile(path: str, names: Any) -> Any:
        modules.append(device.compile(source=source, name=str(file), names=names, defines=_defines(device)))
        return modules[-1]

    return SimpleNamespace(compile=compile, attribute=device.attribute)


def _run(name: str, file: Path, function: Callable[[bool], Launch], device: cudakit.Device, wrong: bool) -> None:
    launch = function(wrong)
    module = device.compile(file, defines=_defines(device))
    arrays, args = zip(*(_argument(device, value) for value in launch.args), strict=True)
    module["wrong" if wrong else "right"].launch(
        device.default_stream, grid=launch.grid, block=launch.block, shared=launch.shared, args=args,
        cluster=launch.cluster,
    )  # fmt: skip
    device.synchronize()
    expect_no_expiry(device, [module])
    if not wrong:
        for number, want in launch.want.items():
            got = arrays[number].numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{name}: argument {number}")


def _argument(device: cudakit.Device, value: Any) -> tuple[Any, Any]:
    """The arrays of an argument, which must outlive the launch, and the argument."""
    if isinstance(value, Map):
        array, _ = _argument(device, value.values)
        return array, cudakit.TensorMap(array, box=value.box, swizzle=value.swizzle)
    if isinstance(value, Words):
        arrays, maps = zip(*(_argument(device, one) for one in value.maps), strict=True)
        return arrays, device.array(np.stack([one.opaque for one in maps]))
    if isinstance(value, Empty):
        array = device.empty(value.shape, value.dtype)
    elif isinstance(value, np.ndarray):
        array = device.array(value)
    else:
        return None, value
    return array, array


def _defines(device: cudakit.Device) -> dict[str, None]:
    return {BOUNDED: None} if device.kind == "gpu" else {}


def _idea(function: Any) -> str:
    return " ".join(function.__doc__.split())


def _add(case: Case) -> None:
    if case.name in CASES:
        raise ValueError(f"two planted cases are called {case.name}")
    CASES[case.name] = case
