"""Collective calls as data: their checks, the comparison of the ranks' calls, and their results in numpy.

`nccl` makes the calls; `nccl_library` runs them with NCCL, `host_nccl` and `host_processes` on simulated devices.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, CudakitError, DeviceMismatch
from cudakit.libs import calls
from cudakit.libs.host import Array
from cudakit.memory.array import DeviceArray, as_dtype

#: ncclDataType_t by dtype.
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
#: ncclRedOp_t by name.
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
PAIRWISE = ("send", "recv")


class Form(NamedTuple):
    """The part of a call that must be the same on all its ranks. elements: per rank. root: the source of a
    broadcast."""

    kind: str
    dtype: str
    elements: int
    op: str = ""
    root: int = -1

    def __str__(self) -> str:
        more = f", op {self.op!r}" if self.op else f", root {self.root}" if self.root >= 0 else ""
        return f"{self.kind} of {self.elements} {self.dtype} per rank{more}"


@dataclass(frozen=True)
class Call:
    """One rank's call. source: the array that is read, or None. target: the array that is written, or None. peer: the
    other rank of send and recv. communicator: the Communicator, which `nccl` defines."""

    communicator: Any
    form: Form
    stream: Stream
    source: DeviceArray | None
    target: DeviceArray | None
    peer: int = -1

    @property
    def context(self) -> Context:
        return self.stream.context

    @property
    def arrays(self) -> list[DeviceArray]:
        return [array for array in (self.source, self.target) if array is not None]

    @property
    def writes(self) -> bool:
        """Whether this rank's target is written, which it is not on the root of a broadcast."""
        return self.target is not None and self.form.root != self.communicator.rank


def expect_operand(kind: str, name: str, array: Any, context: Context) -> None:
    """Raise TypeError, ValueError, Closed or DeviceMismatch if a collective cannot use an array."""
    if not isinstance(array, DeviceArray):
        raise TypeError(
            f"{kind}: {name} is a {type(array).__module__}.{type(array).__name__}, not a cudakit device array: make "
            "one with device.array(x) or device.wrap(x)"
        )
    if not array.allocation.open:
        raise Closed(f"{kind}: {name}, {array.summary}, was closed and its memory freed; use it before close()")
    if array.context is not context and not array.context.same_device(context):
        raise DeviceMismatch(
            f"{kind}: {name}, {array.summary}, is not on the communicator's device, {context.spec}"
            f"{context.told_apart(array.context)}: pass an array of that device"
        )
    if array.dtype.name not in TYPES:
        raise TypeError(f"{kind}: {name} is {array.dtype}; supported are {', '.join(TYPES)}: convert it")
    if not array.is_contiguous:
        raise ValueError(
            f"{kind}: {name} has shape {array.shape} and strides {array.strides}, and must be contiguous: copy() it"
        )


def expect_pair(kind: str, source: DeviceArray, target: DeviceArray, sizes: tuple[int, int], rank: int) -> None:
    """Raise TypeError or ValueError if `target` cannot take the result of a call with `source`.

    sizes: the parts, of equal size, that the source and the target have. They may overlap only as NCCL's in-place
    calls do: they begin at the same address, or the smaller one is this rank's part of the larger one.
    """
    if source.dtype != target.dtype:
        raise TypeError(f"{kind}: x is {source.dtype} and out is {target.dtype}: pass arrays of one dtype")
    of_source, of_target = sizes
    if source.size * of_target != target.size * of_source:
        needed = source.size * of_target
        raise ValueError(
            f"{kind}: x has {source.size} elements and out {target.size}; out must have {needed // of_source}"
            + (f", which needs x to be a multiple of {of_source}" if needed % of_source else "")
        )
    target.expect_writable()
    begin, end = source.pointer, source.pointer + source.nbytes
    if begin < target.pointer + target.nbytes and target.pointer < end:
        part = min(source.nbytes, target.nbytes)
        offset = rank * part if of_source != of_target else 0
        in_place = begin == target.pointer + offset if of_target >= of_source else target.pointer == begin + offset
        if not in_place:
            raise ValueError(
                f"{kind}: x and out overlap, but not in place (this rank's part of the larger array is the smaller "
                "one): pass a separate array as out"
            )


def mismatch(number: int, forms: Mapping[int, Form]) -> str:
    """Return the sentence about ranks whose calls differ, or "" if they agree. forms: the call by rank."""
    if len({(form._replace(kind="") if form.kind in PAIRWISE else form) for form in forms.values()}) == 1:
        return ""
    said = "; ".join(f"rank {rank}: {form}" for rank, form in sorted(forms.items()))
    return (
        f"the ranks' calls differ ({'pair' if set(PAIRWISE) >= {f.kind for f in forms.values()} else 'call'} number "
        f"{number} of the communicator): {said}. All ranks must make the same calls in the same order, with equal sizes"
    )


def broken(why: str) -> CudakitError:
    return CudakitError(f"{why}. Close the communicators and make new ones")


# Results in numpy -----------------------------------------------------------------------------------------------------


def results(form: Form, rank: int, parts: Mapping[int, Array]) -> Array | None:
    """Return the flat result of one rank, or None if the rank gets no data. parts: the flat sources by rank."""
    if form.kind == "all_reduce":
        return _reduced(form, parts)
    if form.kind == "reduce_scatter":
        return _reduced(form, parts)[rank * form.elements : (rank + 1) * form.elements]
    if form.kind == "all_gather":
        return np.concatenate([part for _, part in sorted(parts.items())])
    if form.kind == "broadcast":
        return parts[form.root] if rank != form.root else None
    return None if form.kind == "send" else next(iter(parts.values()))  # recv has one source


def _reduced(form: Form, parts: Mapping[int, Array]) -> Array:
    """Return the reduction in the order of the ranks, rounded after each step to the dtype, as NCCL does. Its max and
    min ignore NaN."""
    function: Any = {"prod": np.multiply, "max": np.fmax, "min": np.fmin}.get(form.op, np.add)
    dtype = as_dtype(form.dtype)
    with np.errstate(all="ignore"):
        total: Array = functools.reduce(
            lambda one, other: function(one, other).astype(dtype, copy=False),
            [part for _, part in sorted(parts.items())],
        )
        if form.op == "avg":
            total = total // len(parts) if dtype.kind in "iu" else (total / len(parts)).astype(dtype, copy=False)
    return total


def keep(call: Call) -> None:
    """Order later frees of a call's arrays after its stream's work, and let a graph that captures it keep them."""
    for array in call.arrays:
        array.allocation.uses.add(call.stream)
    if call.context.captures:
        calls.keep_for_graph(call.context, int(call.stream), call.communicator, *call.arrays)
