"""Shadow tables: the last write to, and the last read of, each granule of a memory.

A word describes an access: its event (a number that increases with each access of the launch), its owner (a lane or a
block), and whether it was strong (volatile, relaxed, acquire, release or atomic). 0 means no access. A table keeps the
last access to each granule and one earlier access by another owner. This finds every race if all owners are ordered by
the same barriers. If three or more owners access a granule and are ordered in pairs, a race may be missed; there are
no false positives.
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
    """The layout of a word: the strong bit lowest, then ``bits`` bits of the owner, then the event."""

    def __init__(self, bits: int) -> None:
        self.shift = bits + 1
        self.who = ((1 << bits) - 1) << 1

    def event(self, words: Array) -> Array:
        return (words & (IN_FLIGHT - 1)) >> self.shift

    def owner(self, words: Array) -> Array:
        return (words & self.who) >> 1


# the owners: lanes of a batch, or blocks of a grid
LANES = WordLayout(24)
BLOCKS = WordLayout(31)


class Table:
    """The words of a memory of ``granules`` granules."""

    def __init__(self, granules: int, layout: WordLayout) -> None:
        self.layout = layout
        self.first = np.zeros(granules, np.int64)
        self.second: Array | None = None

    def words(self, index: Any, count: int) -> Array:
        """The last accesses, (lanes,) or (lanes, count) for pieces of ``count`` granules."""
        return gather(self.first, index, count)

    def others(self, index: Any, count: int) -> Array | None:
        """The earlier accesses by other owners, in the shape of ``words``; None if there are none."""
        return None if self.second is None else gather(self.second, index, count)

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
        who = self.layout.who
        old = view.take(index, axis=0)
        if old.size and int(old.max()) >= low:
            kept = (old >= low) & ((old ^ words) & who != 0)
            if kept.any():
                self._keep(index, count, kept, old)
        view[index] = words
        if rises(index):
            return None
        got = view.take(index, axis=0)
        lost = (got ^ words) & who != 0
        if not lost.any():
            return None
        # the second word is that of the lowest overwritten lane
        self._keep(index[::-1], count, lost[::-1], words[::-1])
        return np.flatnonzero(lost if count == 1 else lost.any(axis=1))

    def _keep(self, index: Array, count: int, which: Array, words: Array) -> None:
        if self.second is None:
            self.second = np.zeros_like(self.first)
        cells = index if count == 1 else index[:, None] * count + np.arange(count)
        self.second[cells[which]] = words[which]


def rises(index: Array) -> bool:
    """Whether positions increase strictly from lane to lane, so that no two are equal."""
    return bool((index[1:] > index[:-1]).all())
