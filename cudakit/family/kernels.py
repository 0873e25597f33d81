"""Kernels of a family's launches: compiling them, their arguments, and the dtypes of arrays by their signatures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.compile import compiler
from cudakit.device import Device
from cudakit.errors import LaunchError, Refused
from cudakit.family import defaults
from cudakit.family.declaration import SCRATCH, Launch, Slot, TensorMapSlot, Variant, several
from cudakit.family.problem import Problem
from cudakit.launch.arguments import pointer_dtypes
from cudakit.launch.cxx import VOID, Type
from cudakit.launch.declarations import plain_types
from cudakit.launch.kernel import Kernel
from cudakit.memory import array as memory
from cudakit.shapes import Shape


def kernel_of(device: Device, one: Variant[Any], launch: Launch) -> Kernel:
    """Return the compiled kernel of a variant's launch. It is cached on the device until its file is edited."""
    key = source, entry, _ = one.entry_of(launch)
    stamp = _stamp(source)
    known: tuple[Any, Kernel] | None = device.kept.get(key)
    if known is None or known[0] != stamp:
        known = device.kept[key] = stamp, device.module_of(request_of(device, one, launch))[entry]
    return known[1]


def _stamp(source: str) -> tuple[int, int] | None:
    """Return the modification time and size of a user's file; None for cudakit's own files, which do not change within
    a process."""
    if not os.path.isabs(source):
        return None
    state = os.stat(source)
    return state.st_mtime_ns, state.st_size


def request_of(device: Device, one: Variant[Any], launch: Launch) -> compiler.Request:
    """Return the compile request of a launch's kernel for a device."""
    source, entry, defines = one.entry_of(launch)
    return compiler.request_of(source, arch=device.arch, names=(entry,) if "<" in entry else (), defines=dict(defines))


def arguments_of(family: Any, launch: Launch, kernel: Kernel, problem: Any) -> tuple[Any, ...]:
    """Return the arguments of a launch, with Slots for arrays and TensorMapSlots for their maps: its own, or the
    family's, or by parameter name."""
    given = launch.args
    if given is None and family.arguments is not None:
        given = tuple(family.arguments(problem))
    if given is not None:
        if SCRATCH not in given or len(given) != len(kernel.parameters):
            return given
        return tuple(_scratch(one, parameter) for one, parameter in zip(given, kernel.parameters, strict=True))
    return tuple(_by_name(family.name, kernel, problem, number) for number in range(len(kernel.parameters)))


def placed(
    family: str, kernel: Kernel, values: Sequence[Any], arrays: Sequence[Any], inputs: int, outputs: int
) -> list[Any]:
    """Return the arguments with each placeholder replaced by its array or tensor map. arrays: (*inputs, *outputs,
    scratch), of these numbers. Raises LaunchError for a map that breaks a rule."""
    actual = []
    for index, value in enumerate(values):
        if isinstance(value, TensorMapSlot):
            try:
                value = value.among(arrays, inputs, outputs)
            except (TypeError, ValueError) as error:
                raise LaunchError(f"{no_map(family, kernel, index)}: {error}") from error
        elif isinstance(value, Slot):
            value = value.among(arrays, inputs, outputs)
        actual.append(value)
    return actual


def no_map(family: str, kernel: Kernel, index: int) -> str:
    """Return the first part of the error for the argument at `index`, a tensor map that breaks a rule."""
    known = kernel.parameters[index : index + 1]
    label = known[0].label if known else f"argument {index}"
    return f"{family}: {kernel.signature}: the tensor map for {label} cannot be made"


def _scratch(value: Any, parameter: Any) -> Any:
    """Return an argument; a plain SCRATCH is converted to elements of the parameter's type."""
    target = parameter.type.target
    if value != SCRATCH or parameter.kind != "pointer" or target is None:
        return value
    dtypes = pointer_dtypes(target)
    return value if dtypes is None or dtypes[0] == "void" else value.at(dtype=dtypes[0])


def _by_name(family: str, kernel: Kernel, problem: Any, number: int) -> Any:
    """Return the argument of a parameter: the problem's attribute of that name; or an output, for a pointer to
    non-const."""
    parameter = kernel.parameters[number]
    if isinstance(problem, Problem):
        if parameter.name in problem.names:
            return getattr(problem, parameter.name)
        if parameter.name == "scratch":
            return _scratch(SCRATCH, parameter)
        outputs = [array for array in problem.arrays if array.role is not None and array.role < 0]
        written = [
            other
            for other in kernel.parameters
            if other.kind == "pointer" and not _reads(other) and other.name not in (*problem.names, "scratch")
        ]
        if parameter in written and written.index(parameter) < len(outputs):
            return outputs[written.index(parameter)]
    raise LaunchError(
        f"{kernel.signature}: {parameter.label} has no argument: no array, extent or option of family {family} has its "
        f"name{_known(problem)}. Pass args= to its Launch, or rename one of them"
    )


def _known(problem: Any) -> str:
    return f" (it has {', '.join(problem.names)})" if isinstance(problem, Problem) else ""


def _reads(parameter: Any) -> bool:
    """Return whether a parameter is a pointer to const."""
    return bool(parameter.type.target is not None and parameter.type.target.const)


@dataclass(frozen=True)
class _Stand:
    """A placeholder input whose dtype may be guessed."""

    shape: Shape
    dtype: np.dtype[Any]
    guessed: bool


def dtypes_of(family: Any, known: Sequence[str]) -> dict[str, str]:
    """Return the dtypes of arrays by name that the signatures of a variant's kernels show. The variant is the first
    that supports the family's first shape.

    known: the dtypes of the inputs, "" for an unknown one. An array is matched with the parameter at its position in
    the launch's arguments, or with the parameter of its name; a single output may have any name.
    """
    if not family.variants:
        raise Refused(f"family {family.name} has no variants: add one with @FAMILY.variant(...)")
    shape = family.read_shape(family.shapes["sim"][0])
    dims = defaults.bound(family.name, family.specs, shape)
    likely = [
        _Stand(spec.shape(shape, dims), memory.as_dtype(dtype or "float32"), not dtype)
        for spec, dtype in zip(family.specs.values(), known, strict=True)
    ]
    results = _results(family, likely)
    refusals = []
    with Device("sim") as device:
        stands = [device.empty(like.shape, like.dtype) for like in likely]
        out = [stands[family.over]] if family.in_place else [device.empty(one.shape, np.float32) for one in results]
        problem = family.problem_of(stands, out[0] if len(out) == 1 else tuple(out))
        for one in family.variants:
            refusal = one.refusal(problem, device.arch)
            if refusal is None:
                return _shown(family, device, one, problem, results)
            refusals.append(f"{one.name}: {refusal}")
    raise Refused(
        f"family {family.name}: undeclared dtypes are read from a kernel, but no variant supports {problem}: declare "
        f"those of inputs= and outputs= ({'; '.join(refusals)})"
    )


def _shown(family: Any, device: Device, one: Variant[Any], problem: Any, results: Sequence[Any]) -> dict[str, str]:
    """Return the dtypes that the signatures of a variant's kernels show, by array name."""
    names = family.output_names(len(results))
    is_complex = {name: result.dtype.kind == "c" for name, result in zip(names, results, strict=False)}
    found: dict[str, str] = {}
    for launch in family.launches(one, problem):
        kernel = kernel_of(device, one, launch)
        types = _types(kernel, request_of(device, one, launch).source)
        for value, kind in zip(arguments_of(family, launch, kernel, problem), types, strict=False):
            target = kind.target if kind.kind == "pointer" else None
            dtypes = (pointer_dtypes(target) if target is not None else None) or ("void",)
            name = getattr(value, "name", "") if isinstance(value, Slot) else ""
            if name and dtypes[0] != "void":
                wanted = [dtype for dtype in dtypes if dtype.startswith("complex") == is_complex.get(name, False)]
                found.setdefault(name, (wanted or dtypes)[0])
    return found


def _types(kernel: Kernel, source: str) -> list[Type]:
    """Return the types of a kernel's parameters. Those of an `extern "C"` kernel are read from its source, because its
    name does not contain them."""
    known = [parameter.type for parameter in kernel.parameters]
    if not any(kind.kind == "bits" or kind.target is VOID for kind in known):
        return known
    written = plain_types(source, kernel.name, len(known))
    return [
        text if text is not None and text.size == kind.size else kind for kind, text in zip(known, written, strict=True)
    ]


def _results(family: Any, likes: Sequence[_Stand]) -> list[Any]:
    """Return the reference's results for arrays of zeros, whose dtypes may be guessed."""
    failures: list[Refused] = []
    for kind in (np.float64, np.int64):
        zeros = [family.passed(np.zeros(like.shape, kind if like.guessed else like.dtype)) for like in likes]
        try:
            return list(several(family.results(zeros)))
        except Refused as error:
            failures.append(error)
        if not any(like.guessed for like in likes):
            break
    raise failures[0]
