"""Broadcasting and merging of axes, shared by the element-wise families.

Strides are in elements throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RANK = 4
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """The order in which several arrays of one shape are traversed: RANK axes, sorted by the output's strides with the
    smallest last; `strides` holds one tuple per array."""

    extents: tuple[int, ...]
    strides: tuple[Strides, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.extents)

    @property
    def number(self) -> str:
        """The C++ type of an element index."""
        return number(self.size)

    @property
    def flat(self) -> bool:
        """Whether all arrays are contiguous in the same order."""
        outer = all(extent == 1 for extent in self.extents[:-1])
        return outer and (self.extents[-1] == 1 or all(strides[-1] == 1 for strides in self.strides))


def number(size: int) -> str:
    """Return the C++ type of an index of `size` elements. A kernel's index exceeds `size` by less than 2^31."""
    return "unsigned int" if size <= 2**31 else "unsigned long long"


def walk(what: str, shape: Sequence[int], strides: Sequence[Strides]) -> Walk:
    """Return the walk over arrays of one shape; the output's strides come last. Raise ValueError if more than RANK axes
    remain.

    Axes of extent 1 are dropped, the others are sorted in the order of the output's memory, and neighbouring axes are
    merged if every array can step through them as one. Contiguous arrays of any rank, and arrays that are all
    transposed in the same way, end up with one axis.
    """
    if 0 in shape:
        return Walk((0,) * RANK, ((0,) * RANK,) * len(strides))
    axes = [
        (extent, steps) for extent, steps in zip(shape, zip(*strides, strict=True), strict=True) if extent != 1
    ]  # fmt: skip
    axes.sort(key=lambda axis: abs(axis[1][-1]), reverse=True)
    merged: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in axes:
        if merged and all(outer == extent * inner for outer, inner in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * extent, steps)
        else:
            merged.append((extent, steps))
    if len(merged) > RANK:
        raise ValueError(
            f"{what} takes arrays whose axes can be merged into at most {RANK}, but shape {tuple(shape)} with these "
            f"strides leaves {len(merged)}: copy() the arrays first, or work on slices of them"
        )
    none: tuple[int, tuple[int, ...]] = (1, (0,) * len(strides))
    padded = [none] * (RANK - len(merged)) + merged
    return Walk(tuple(axis[0] for axis in padded), tuple(zip(*(axis[1] for axis in padded), strict=True)))


def broadcast(array: Any, shape: Sequence[int]) -> Strides:
    """Return the strides of `array` broadcast to `shape`: 0 along every axis it repeats on."""
    missing = len(shape) - len(array.shape)
    own = zip(array.shape, array.strides_elements, strict=True)
    return (0,) * missing + tuple(0 if extent == 1 else stride for extent, stride in own)


def phase(array: Any) -> int:
    """Return the elements between the last 16-byte boundary and the first element."""
    return int(array.pointer % 16 // array.itemsize)
