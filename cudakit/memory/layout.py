"""Shapes and strides: numpy's basic indexing, and the split of a strided copy into linear and 2-D copies.

Only arithmetic on tuples. Strides are in bytes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


def as_shape(shape: Any) -> Shape:
    """Return a shape as a tuple of ints; ValueError for an extent that is negative or does not fit 64 bits."""
    try:
        extents: Shape = (operator.index(shape),)
    except TypeError:
        extents = tuple(operator.index(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"extents must not be negative, got shape {extents}")
    if any(extent >= 2**63 for extent in extents):
        raise ValueError(f"extents must be below 2**63, got shape {extents}")
    return extents


def contiguous(shape: Shape, itemsize: int) -> Shape:
    """The strides of a C-ordered array without gaps."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Return whether the elements are in C order without gaps; True for an empty array."""
    step = itemsize
    for axis in range(len(shape) - 1, -1, -1):
        extent = shape[axis]
        if strides[axis] != step and extent != 1:
            return 0 in shape
        step *= extent
    return True


def span(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return (low, high): the range of bytes used, relative to the first element; high is one past the last."""
    if 0 in shape:
        return 0, 0
    low = high = 0
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high + itemsize


def overlaps_itself(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Return whether two elements may share a byte. Also True for some interleaved layouts without overlap."""
    if 0 in shape:
        return False
    reach = itemsize
    for stride, extent in sorted((abs(stride), extent) for extent, stride in zip(shape, strides, strict=True)):
        if extent > 1:
            if stride < reach:
                return True
            reach = stride * (extent - 1) + reach
    return False


def index(shape: Shape, strides: Shape, key: Any) -> tuple[int, Shape, Shape]:
    """Return (byte offset, shape, strides) of `array[key]`: ints, slices, None and one Ellipsis, as in numpy.

    Raises IndexError for an int out of range or too many indices, TypeError for any other index.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    ellipses = [place for place, entry in enumerate(keys) if entry is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can have only one Ellipsis")
    taken = sum(entry is not None and entry is not Ellipsis for entry in keys)
    if taken > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, got {taken}")
    rest = [slice(None)] * (len(shape) - taken)
    if ellipses:
        keys[ellipses[0] : ellipses[0] + 1] = rest
    else:
        keys += rest
    offset = 0
    axis = 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for entry in keys:
        if entry is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        extent, stride = shape[axis], strides[axis]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(extent)
            count = len(range(start, stop, step))
            # The offset stays 0 for an empty slice, so that the pointer stays within the array.
            offset += start * stride if count else 0
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            offset += _position(entry, extent, axis) * stride
        axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def _position(entry: Any, extent: int, axis: int) -> int:
    try:
        position = operator.index(entry)
    except TypeError:
        position = None
    if position is None or isinstance(entry, bool):
        raise TypeError(
            f"{entry!r} cannot index a device array; use ints, slices, None and Ellipsis, which make views, "
            "or numpy on a copy"
        )
    if not -extent <= position < extent:
        raise IndexError(f"index {position} is out of bounds for axis {axis}, which has {extent} elements")
    return position + extent if position < 0 else position


def reshaped(shape: Shape, wanted: Any) -> Shape:
    """Return `wanted` with its one -1 computed; ValueError if the number of elements differs."""
    try:
        new = [operator.index(wanted)]
    except TypeError:
        new = [operator.index(extent) for extent in wanted]
    size = math.prod(shape)
    unknown = [place for place, extent in enumerate(new) if extent == -1]
    if len(unknown) == 1:
        known = math.prod(extent for extent in new if extent != -1)
        if known and size % known == 0:
            new[unknown[0]] = size // known
    if any(extent < 0 for extent in new) or math.prod(new) != size:
        raise ValueError(f"an array of shape {shape} cannot be reshaped to {wanted}: the numbers of elements differ")
    return as_shape(new)


@dataclass(frozen=True)
class CopyPlan:
    """A strided copy as `count` equal 2-D copies, each of `rows` rows of `width` bytes, one pitch apart on each side.

    outer: the loops around them, as (extent, destination stride, source stride). The offsets are those of the first 2-D
    copy.
    """

    width: int
    rows: int
    destination_pitch: int
    source_pitch: int
    destination_offset: int
    source_offset: int
    outer: tuple[tuple[int, int, int], ...]

    @property
    def count(self) -> int:
        """The number of 2-D copies."""
        return math.prod(extent for extent, _, _ in self.outer)

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Yield the (destination, source) byte offset of each 2-D copy."""
        for places in itertools.product(*(range(extent) for extent, _, _ in self.outer)):
            destination, source = self.destination_offset, self.source_offset
            for place, (_, to, from_) in zip(places, self.outer, strict=True):
                destination += place * to
                source += place * from_
            yield destination, source


def plan(
    shape: Shape,
    itemsize: int,
    destination: Shape,
    source: Shape,
    *,
    max_pitch: int = 2**31 - 1,
    absorb: bool = True,
) -> CopyPlan | None:
    """Return a plan of the copy between two layouts of one shape; None if there is nothing to copy.

    Adjacent dimensions with the same layout on both sides are merged, so that a contiguous copy is one row. absorb:
    merge the innermost dimensions into the width; without it a row is one element wide.
    """
    if 0 in shape or itemsize == 0:
        return None
    dims = []
    to_offset = from_offset = 0
    for extent, to, from_ in zip(shape, destination, source, strict=True):
        if extent == 1:
            continue
        # Strides that are negative on both sides are made positive by starting at the other end.
        if to < 0 and from_ <= 0:
            to_offset += (extent - 1) * to
            from_offset += (extent - 1) * from_
            to, from_ = -to, -from_
        dims.append((extent, to, from_))
    dims.sort(key=lambda dim: (abs(dim[1]), abs(dim[2])), reverse=True)
    merged: list[tuple[int, int, int]] = []
    for extent, to, from_ in dims:
        if merged and merged[-1][1] == extent * to and merged[-1][2] == extent * from_:
            merged[-1] = (merged[-1][0] * extent, to, from_)
        else:
            merged.append((extent, to, from_))
    width = itemsize
    while absorb and merged and merged[-1][1] == width and merged[-1][2] == width:
        width *= merged.pop()[0]
    rows, to_pitch, from_pitch = 1, width, width
    fitting = [
        place for place, (_, to, from_) in enumerate(merged) if width <= to <= max_pitch and width <= from_ <= max_pitch
    ]
    if fitting:
        rows, to_pitch, from_pitch = merged.pop(max(fitting, key=lambda place: merged[place][0]))
    return CopyPlan(width, rows, to_pitch, from_pitch, to_offset, from_offset, tuple(merged))
