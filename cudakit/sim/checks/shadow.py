"""Shadow tables: the last write to, and the last read of, each granule of a memory.

A word describes an access: its event (a number that increases with each access of the launch), its owner (a lane, or a
block and the thread in it), and whether it was strong (volatile, relaxed, acquire, release or atomic). 0 means no
access. A table keeps the last access to each granule, one earlier access by another owner, and one by another thread of
the same block. This finds every race if all owners are ordered by the same barriers. If three or more owners access a
granule and are ordered in pairs, a race may be missed; there are no false positives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import gather, positions

STRONG = 1
# marks the destination of a cp.async that has not been waited for
IN_FLIGHT = 1 << 62


def number(value: int) -> Array:
    """A number as an array without dimensions, with which numpy computes faster than with an int if the lanes are
    few."""
    return np.array(value, np.int64)


class WordLayout:
    """The layout of a word: the strong bit lowest, then ``bits`` bits of the owner, then the event. The lowest
    ``inner`` bits of the owner, if there are any, are the thread within its block."""

    def __init__(self, bits: int, inner: int = 0) -> None:
        self.shift = bits + 1
        self.inner = inner
        anyone, within = ((1 << bits) - 1) << 1, ((1 << inner) - 1) << 1
        self.anyone, self.within, self.who = number(anyone), number(within), number(anyone & ~within)

    def event(self, words: Array) -> Array:
        return (words & (IN_FLIGHT - 1)) >> self.shift

    def owner(self, words: Array) -> Array:
        return (words & self.who) >> (1 + self.inner)

    def thread(self, words: Array) -> Array:
        """The owner's thread within its block; ``UNKNOWN`` if the layout has no threads."""
        return (words & self.within) >> 1 if self.inner else np.full_like(words, UNKNOWN)


_NO_BITS = number(0)
# the owners in shared memory: lanes of a batch
LANES = WordLayout(24)
# the bits of a block and its thread in global memory
_GRID_BITS = 31
# a thread that is not known
UNKNOWN = -1


def grid_layout(blocks: int, threads: int) -> WordLayout:
    """The owners in global memory: blocks of a grid, and the threads in them if they fit."""
    inner = (threads - 1).bit_length()
    return WordLayout(_GRID_BITS, inner if (blocks - 1).bit_length() + inner <= _GRID_BITS else 0)


class Table:
    """The words of a memory of ``granules`` granules."""

    def __init__(self, granules: int, layout: WordLayout) -> None:
        self.layout = layout
        self.first = np.zeros(granules, np.int64)
        self.second: Array | None = None
        self.peer: Array | None = None

    def words(self, index: Any, count: int) -> Array:
        """The last accesses, (lanes,) or (lanes, count) for pieces of ``count`` granules."""
        return gather(self.first, index, count)

    def others(self, index: Any, count: int) -> Array | None:
        """The earlier accesses by other owners, in the shape of ``words``; None if there are none."""
        return None if self.second is None else gather(self.second, index, count)

    def peers(self, index: Any, count: int) -> Array | None:
        """The earlier accesses by other threads of the same block, in the shape of ``words``; None if there are
        none."""
        return None if self.peer is None else gather(self.peer, index, count)

    def taken(self, index: Array, count: int, low: Array) -> bool:
        """Whether each of these granules has two words of at least ``low``."""
        others = self.others(index, count)
        return others is not None and bool(others.min() >= low and self.words(index, count).min() >= low)

    def note(self, index: Any, count: int, words: Array, low: Array, old: Array | None = None) -> Array | None:
        """Enter one access per lane, at an array of positions or a slice. An old word below ``low`` is dropped, not
        kept as the second one; ``old`` are the old words, if the caller has read them.

        Returns the positions of the lanes whose word another lane of the same access has overwritten, or None."""
        if old is None:
            old = gather(self.first, index, count)
        late = old >= low
        if np.count_nonzero(late):
            apart = (old ^ (words if count == 1 else words[:, None])) & self.layout.anyone
            if np.count_nonzero(apart) and np.count_nonzero(late := late & (apart != _NO_BITS)):
                rows = positions(index, len(old))
                cells = rows if count == 1 else rows[:, None] * count + np.arange(count)
                self._keep(cells[late], 1, old[late], apart[late])
        return self.enter(index, count, words)

    def enter(self, index: Any, count: int, words: Array) -> Array | None:
        """``note`` an access to granules without an old word to keep."""
        view = self.first if count == 1 else self.first.reshape(-1, count)
        view[index] = words if count == 1 else words[:, None]
        if isinstance(index, slice) or rises(index):
            return None
        # two lanes of an access have all granules in common, or none
        got = self.first.take(index if count == 1 else index * count)
        apart = (got ^ words) & self.layout.anyone
        lost: Array = apart.nonzero()[0]
        if not len(lost):
            return None
        # the kept word is that of the lowest overwritten lane
        lowest = lost[::-1]
        self._keep(index[lowest], count, words[lowest], apart[lowest])
        return lost

    def _keep(self, rows: Array, count: int, words: Array, apart: Array) -> None:
        """Keep words of ``count`` granules each as earlier accesses. ``apart``: the bits in which the owner of the last
        access differs."""
        if not self.layout.inner:
            self.second = self._kept(self.second, rows, count, words)
            return
        far = apart & self.layout.who != 0
        if np.count_nonzero(far):
            self.second = self._kept(self.second, rows[far], count, words[far])
        if np.count_nonzero(far) < len(far):
            self.peer = self._kept(self.peer, rows[~far], count, words[~far])

    def _kept(self, table: Array | None, rows: Array, count: int, words: Array) -> Array:
        """Enter words in a table, which is made if it is None."""
        if table is None:
            table = np.zeros_like(self.first)
        if count == 1:
            table[rows] = words
        else:
            table.reshape(-1, count)[rows] = words[:, None]
        return table


def rises(index: Array) -> bool:
    """Whether positions increase strictly from lane to lane, so that no two are equal."""
    return bool(np.count_nonzero(index[1:] > index[:-1]) == len(index) - 1)
