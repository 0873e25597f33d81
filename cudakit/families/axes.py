"""What element-wise families share: broadcasting, and axes that are walked alike merged into one.

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
    """How several arrays of one shape are walked together: RANK axes, the one whose steps in the output are smallest
    last; `strides` holds a tuple for each array."""

    extents: tuple[int, ...]
    strides: tuple[Strides, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.extents)

    @property
    def number(self) -> str:
        """The C++ type that counts the elements."""
        return number(self.size)

    @property
    def flat(self) -> bool:
        """Whether all arrays are one run of neighbouring elements in the same order."""
        outer = all(extent == 1 for extent in self.extents[:-1])
        return outer and (self.extents[-1] == 1 or all(strides[-1] == 1 for strides in self.strides))


def number(size: int) -> str:
    """The C++ type that counts `size` elements; kernels step past the last one by less than 2^31."""
    return "unsigned int" if size <= 2**31 else "unsigned long long"


def walk(what: str, shape: Sequence[int], strides: Sequence[Strides]) -> Walk:
    """The walk over arrays of one shape, the output's strides last. ValueError if more than RANK axes remain.

    Axes of one element go, the others are put in the order of the output's memory, and neighbours that every array
    steps through as through one axis become one: contiguous arrays of any rank, and arrays that are all transposed
    alike, end as a single axis.
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
            f"{what} takes arrays whose axes can be merged into {RANK}, and shape {tuple(shape)} with these strides "
            f"leaves {len(merged)}: copy() the arrays first, or work on slices of them"
        )
    none: tuple[int, tuple[int, ...]] = (1, (0,) * len(strides))
    padded = [none] * (RANK - len(merged)) + merged
    return Walk(tuple(axis[0] for axis in padded), tuple(zip(*(axis[1] for axis in padded), strict=True)))


def broadcast(array: Any, shape: Sequence[int]) -> Strides:
    """The strides of `array` seen as one of `shape`, which it broadcasts to: 0 along every axis that it repeats on."""
    missing = len(shape) - len(array.shape)
    own = zip(array.shape, array.strides_elements, strict=True)
    return (0,) * missing + tuple(0 if extent == 1 else stride for extent, stride in own)


def phase(array: Any) -> int:
    """Elements from the last 16-byte boundary to the first element."""
    return int(array.pointer % 16 // array.itemsize)
