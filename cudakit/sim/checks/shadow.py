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
from cudakit.sim.lockstep.pieces import gather

STRONG = 1
# marks the destination of a cp.async that has not been waited for
IN_FLIGHT = 1 << 62


class WordLayout:
    """The layout of a word: the strong bit lowest, then ``bits`` bits of the owner, then the event. The lowest
    ``inner`` bits of the owner, if there are any, are the thread within its block."""

    def __init__(self, bits: int, inner: int = 0) -> None:
        self.shift = bits + 1
        self.inner = inner
        self.anyone = ((1 << bits) - 1) << 1
        self.within = ((1 << inner) - 1) << 1
        self.who = self.anyone & ~self.within

    def event(self, words: Array) -> Array:
        return (words & (IN_FLIGHT - 1)) >> self.shift

    def owner(self, words: Array) -> Array:
        return (words & self.who) >> (1 + self.inner)

    def thread(self, words: Array) -> Array:
        """The owner's thread within its block; ``UNKNOWN`` if the layout has no threads."""
        return (words & self.within) >> 1 if self.inner else np.full_like(words, UNKNOWN)


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

    def taken(self, index: Array, count: int, low: int) -> bool:
        """Whether each of these granules has two words of at least ``low``."""
        others = self.others(index, count)
        return others is not None and int(others.min()) >= low and int(self.words(index, count).min()) >= low

    def note(self, index: Array, count: int, words: Array, low: int) -> Array | None:
        """Enter one access per lane. An old word below ``low`` is dropped, not kept as the second one.

        Returns the positions of the lanes whose word another lane of the same access has overwritten, or None."""
        view = self.first if count == 1 else self.first.reshape(-1, count)
        if count > 1:
            words = np.broadcast_to(words[:, None], (len(words), count))
        old = view.take(index, axis=0)
        if old.size and int(old.max()) >= low:
            self._keep(index, count, old, words, old >= low)
        view[index] = words
        if rises(index):
            return None
        got = view.take(index, axis=0)
        lost = (got ^ words) & self.layout.anyone != 0
        if not lost.any():
            return None
        # the kept word is that of the lowest overwritten lane
        self._keep(index[::-1], count, words[::-1], got[::-1], lost[::-1])
        return np.flatnonzero(lost if count == 1 else lost.any(axis=1))

    def _keep(self, index: Array, count: int, old: Array, new: Array, which: Array) -> None:
        """Keep the old words that ``which`` selects and whose owner differs from that of the new word."""
        apart = (old ^ new) & self.layout.anyone
        kept = which & (apart != 0)
        if not kept.any():
            return
        cells = index if count == 1 else index[:, None] * count + np.arange(count)
        if not self.layout.inner:
            self.second = _kept(self.second, self.first, cells[kept], old[kept])
            return
        far = kept & (apart & self.layout.who != 0)
        if far.any():
            self.second = _kept(self.second, self.first, cells[far], old[far])
        near = kept & ~far
        if near.any():
            self.peer = _kept(self.peer, self.first, cells[near], old[near])


def _kept(table: Array | None, like: Array, cells: Array, words: Array) -> Array:
    """Enter words in a table, which is made if it is None."""
    if table is None:
        table = np.zeros_like(like)
    table[cells] = words
    return table


def rises(index: Array) -> bool:
    """Whether positions increase strictly from lane to lane, so that no two are equal."""
    return bool((index[1:] > index[:-1]).all())
