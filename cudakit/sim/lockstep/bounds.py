"""The bounds of the only array in an allocation that kernels may access; the other bytes are guards."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cudakit.sim.lockstep.lanes import Array


class ArrayBounds:
    """The bytes of one array, from address ``start`` up to ``end``. Bytes between them that belong to no element are
    gaps, which kernels may not access either."""

    __slots__ = ("_gaps", "end", "start")

    def __init__(self, first: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        """``first`` is the address of the element of index 0, ``strides`` are in bytes."""
        ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
        empty = 0 in shape
        self.start = first if empty else first + sum(end for end in ends if end < 0)
        self.end = first if empty else first + sum(end for end in ends if end > 0) + itemsize
        # the number of gap bytes before each byte; None: there are no gaps
        self._gaps: Array | None = None
        if empty or _dense(shape, strides, itemsize):
            return
        gap = np.ones(self.end - self.start, np.bool_)
        as_strided(gap[first - self.start :], (*shape, itemsize), (*strides, 1))[...] = False
        if gap.any():
            self._gaps = np.concatenate(([0], np.cumsum(gap, dtype=np.int64)))

    @property
    def size(self) -> int:
        """Bytes from the first to the last element, gaps included."""
        return self.end - self.start

    @property
    def has_gaps(self) -> bool:
        """Whether bytes between the first and the last element belong to no element."""
        return self._gaps is not None

    def holds(self, address: int, size: int) -> bool:
        """Whether all ``size`` bytes at ``address`` belong to the array."""
        first = address - self.start
        if first < 0 or first + size > self.size:
            return False
        return self._gaps is None or bool(self._gaps[first + size] == self._gaps[first])

    def outside(self, addresses: Array, size: int) -> Array:
        """A mask of the accesses of ``size`` bytes at ``addresses`` that include a byte outside the array."""
        first = addresses.astype(np.int64) - self.start
        wrong: Array = (first < 0) | (first > self.size - size)
        if self._gaps is not None:
            within = np.flatnonzero(~wrong)
            first = first[within]
            wrong[within] = self._gaps[first + size] != self._gaps[first]
        return wrong


def _dense(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether the elements are next to each other, in any order of the axes."""
    step = itemsize
    for stride, extent in sorted((abs(stride), extent) for extent, stride in zip(shape, strides, strict=True)):
        if extent > 1:
            if stride != step:
                return False
            step *= extent
    return True
