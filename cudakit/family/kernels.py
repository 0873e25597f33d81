"""Kernels of a family's launches: the compiled kernel, its arguments, and the dtypes of arrays by its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.compile import compiler
from cudakit.device import Device
from cudakit.errors import LaunchError, Refused
from cudakit.family import defaults
from cudakit.family.declaration import Launch, Slot, Variant, several
from cudakit.family.problem import Problem
from cudakit.launch.arguments import pointer_dtypes
from cudakit.launch.kernel import Kernel
from cudakit.memory import array as memory
from cudakit.shapes import Shape


def kernel_of(device: Device, one: Variant[Any], launch: Launch) -> Kernel:
    """The compiled kernel of a variant's launch, kept on the device after the first call."""
    key = _, entry, _ = one.entry_of(launch)
    kernel: Kernel | None = device.kept.get(key)
    if kernel is None:
        kernel = device.kept[key] = device.module_of(request_of(device, one, launch))[entry]
    return kernel


def request_of(device: Device, one: Variant[Any], launch: Launch) -> compiler.Request:
    """The compile of a launch's kernel for a device."""
    source, entry, defines = one.entry_of(launch)
    return compiler.request_of(source, arch=device.arch, names=(entry,) if "<" in entry else (), defines=dict(defines))


def arguments_of(family: Any, launch: Launch, kernel: Kernel, problem: Any) -> tuple[Any, ...]:
    """The arguments of a launch, with Slots in the place of arrays: its own, or the family's, or by name."""
    if launch.args is not None:
        return launch.args
    if family.arguments is not None:
        return tuple(family.arguments(problem))
    return tuple(_by_name(family.name, kernel, problem, number) for number in range(len(kernel.parameters)))


def _by_name(family: str, kernel: Kernel, problem: Any, number: int) -> Any:
    """The argument of a parameter: what the problem has by its name, or for a pointer to write to, an output."""
    parameter = kernel.parameters[number]
    if isinstance(problem, Problem):
        if parameter.name and hasattr(problem, parameter.name):
            return getattr(problem, parameter.name)
        outputs = [array for array in problem.arrays if array.role is not None and array.role < 0]
        written = [
            other
            for other in kernel.parameters
            if other.kind == "pointer" and not _reads(other) and not hasattr(problem, other.name or "?")
        ]
        if parameter in written and written.index(parameter) < len(outputs):
            return outputs[written.index(parameter)]
    raise LaunchError(
        f"{kernel.signature}: {parameter.label} has no argument: no array, extent or option of {family} has its name. "
        "Give args= to its Launch, or rename one of them"
    )


def _reads(parameter: Any) -> bool:
    """Whether a pointer parameter is one to constants."""
    return bool(parameter.type.target is not None and parameter.type.target.const)


@dataclass(frozen=True)
class _Stand:
    """An input whose dtype may be guessed."""

    shape: Shape
    dtype: np.dtype[Any]
    guessed: bool


def dtypes_of(family: Any, dtype: str) -> dict[str, str]:
    """The dtypes of arrays by name, as far as the signature of the first variant's kernel shows them. dtype: of inputs
    that declare none.

    An input is the parameter that its launch puts it at, or that has its name; likewise outputs, of which the only one
    may have any name.
    """
    if not family.variants:
        raise Refused(f"family {family.name} has no variants: add one with @{family.name.upper()}.variant(...)")
    one = family.variants[0]
    shape = family.shapes["sim"][0]
    dims = defaults.bound(family.name, family.specs, shape)
    likely = [
        _Stand(spec.shape(shape, dims), memory.as_dtype(spec.dtype or dtype), not spec.dtype)
        for spec in family.specs.values()
    ]
    with Device("sim") as device:
        stands = [device.empty(like.shape, like.dtype) for like in likely]
        out = [device.empty(shape, np.float32) for shape in _reference_shapes(family, likely)]
        if family.in_place:
            out = [stands[family.over]]
        problem = family.problem_of(stands, out[0] if len(out) == 1 else tuple(out))
        launch = one.launches(problem)[0]
        kernel = kernel_of(device, one, launch)
        values = arguments_of(family, launch, kernel, problem)
        found: dict[str, str] = {}
        for value, parameter in zip(values, kernel.parameters, strict=True):
            target = parameter.type.target
            dtypes = pointer_dtypes(target) if parameter.kind == "pointer" and target is not None else None
            name = getattr(value, "name", None) if isinstance(value, Slot) else None
            if name and dtypes and dtypes[0] != "void":
                found[name] = dtypes[0]
    return found


def _reference_shapes(family: Any, likes: Sequence[_Stand]) -> list[Shape]:
    """The shapes of the reference's results for arrays whose dtypes are not known yet."""
    failure: Exception | None = None
    for kind in (np.float64, np.int64):
        zeros = [np.zeros(like.shape, kind if like.guessed else like.dtype) for like in likes]
        try:
            with defaults.quiet():
                results = several(family.reference(*zeros, **family.option_defaults))
        except (TypeError, ValueError, IndexError) as error:
            failure = failure or error
            continue
        return [tuple(np.shape(result)) for result in results]
    raise Refused(f"family {family.name}: the reference fails on zeros: {failure}") from failure
