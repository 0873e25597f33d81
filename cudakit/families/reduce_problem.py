"""The problem of a reduction: the elements of the input that each result combines, and the checks of the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import MAX_GRID_X, alignment, checks

_TWICE = "{what}: the output may store two elements at one address: pass an output whose elements do not overlap"
_SHARED = "{what}: the input and the output overlap or are interleaved: pass a separate output"
_OPERATORS = {"sum": "SumOf", "max": "MaxOf", "argmax": "ArgMaxOf"}


@dataclass(frozen=True)
class ReduceProblem:
    """`kept` reductions of `length` elements each. Element i of reduction k is at k * kept_stride + i * along_stride
    elements from the first, and has the index k * kept_index + i * along_index. whole: all elements are reduced to one
    result."""

    what: str
    kept: int
    length: int
    kept_stride: int
    along_stride: int
    kept_index: int
    along_index: int
    y_stride: int
    whole: bool
    alignment: int
    sms: int

    def __str__(self) -> str:
        strides = f"strides {self.kept_stride} and {self.along_stride}"
        return f"{self.what} of {self.kept} times {self.length} elements, {strides}{', all one' if self.whole else ''}"

    @property
    def operator(self) -> str:
        return _OPERATORS[self.what]

    @property
    def operator_and_result(self) -> str:
        return f"{self.operator}, {'long long' if self.what == 'argmax' else 'float'}"

    @property
    def walk(self) -> tuple[int, int, int, int]:
        return (self.kept_stride, self.along_stride, self.kept_index, self.along_index)

    @property
    def vectors(self) -> bool:
        """Whether four adjacent reductions share one aligned float4 at every step."""
        return (
            self.kept_stride == 1
            and self.kept % 4 == 0
            and (self.length <= 1 or self.along_stride % 4 == 0)
            and self.alignment == 16
        )


def _axis(what: str, rank: int, axis: int | None) -> int | None:
    """Return 0, 1 or None (all) for an array of `rank` axes."""
    if rank not in (1, 2):
        raise ValueError(f"{what} takes 1-D and 2-D arrays, got one of {rank} axes: reshape it first")
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise ValueError(f"{what} of an array of {rank} axes takes axis None or {-rank} to {rank - 1}, got {axis!r}")
    return None if rank == 1 else int(axis) % rank


def problem(what: str, inputs: Sequence[Any], output: Any, axis: int | None) -> ReduceProblem:
    """Return the problem of reduction `what` of the input over `axis`. Raise ValueError for unsupported arrays."""
    (x,) = inputs
    along = _axis(what, len(x.shape), axis)
    expected = result_shape(what, x.shape, axis)
    dtype = result_dtype(what)
    if x.dtype != np.float32 or output.dtype != dtype:
        raise ValueError(f"{what} takes float32 and returns {dtype}, got {x.dtype} in and {output.dtype} out")
    if tuple(output.shape) != expected:
        raise ValueError(f"{what} of shape {tuple(x.shape)} over axis {axis} has shape {expected}, not {output.shape}")
    checks.expect_output(what, output, separate=(("the input", x),), twice=_TWICE, shared=_SHARED)
    strides = tuple(x.strides_elements)
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    y_stride = output.strides_elements[0] if expected else 0
    rows, cols = (1, x.shape[0]) if len(x.shape) == 1 else x.shape
    down, across = (0, strides[0]) if len(x.shape) == 1 else strides
    whole = False
    if along == 0:
        walk = (cols, rows, across, down, 0, 1)
    elif along == 1:
        walk = (rows, cols, down, across, 0, 1)
    elif rows <= 1 or cols == 1 or down == cols * across:
        walk = (1, rows * cols, 0, down if cols == 1 and rows > 1 else across, 0, 1)
    elif abs(across) <= abs(down):
        walk, whole = (rows, cols, down, across, cols, 1), True
    else:
        walk, whole = (cols, rows, across, down, 1, cols), True
    if max(walk[0], 1) > MAX_GRID_X:
        raise ValueError(f"{what} takes at most {MAX_GRID_X} results, got {walk[0]}")
    if whole and 0 in (walk[0], walk[1]):
        walk, whole = (1, 0, 0, 1, 0, 1), False
    return ReduceProblem(what, *walk, y_stride, whole, alignment(x), sms)


def result_shape(what: str, shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    """Return the result's shape. Raise ValueError for the maximum of no elements."""
    along = _axis(what, len(shape), axis)
    kept = () if along is None else (shape[1 - along],)
    reduced = int(np.prod(shape)) if along is None else shape[along]
    if what != "sum" and reduced == 0:
        raise ValueError(f"{what} of no elements is undefined: shape {tuple(shape)} is empty over axis {axis}")
    return kept


def result_dtype(what: str) -> np.dtype[Any]:
    """Return the result's dtype."""
    return np.dtype(np.int64 if what == "argmax" else np.float32)
