"""Shadow tables: which access last wrote, and which last read, each granule of a memory.

A word names an access: the event (a number that rises with each access of the launch), who did it, and whether it was
strong (volatile, relaxed, acquire, release or atomic). 0 is never. A table keeps the last access to each granule and,
beside it, one by somebody else. That is enough to find a conflict where everybody is ordered by the same barriers;
where three or more access a granule and warps are ordered in pairs, one of them may be missed, and none is invented.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import gather

STRONG = 1
# the destination of a cp.async that nobody has waited for
IN_FLIGHT = 1 << 62


class WordLayout:
    """Where the parts of a word stand: ``bits`` of whoever did it above the strong bit, and the event above those."""

    def __init__(self, bits: int) -> None:
        self.shift = bits + 1
        self.who = ((1 << bits) - 1) << 1

    def event(self, words: Array) -> Array:
        return (words & (IN_FLIGHT - 1)) >> self.shift

    def owner(self, words: Array) -> Array:
        return (words & self.who) >> 1


# lanes of a batch; blocks of a grid
LANES = WordLayout(24)
BLOCKS = WordLayout(31)


class Table:
    """Words of a memory of ``granules`` granules."""

    def __init__(self, granules: int, layout: WordLayout) -> None:
        self.layout = layout
        self.first = np.zeros(granules, np.int64)
        self.second: Array | None = None

    def words(self, index: Any, count: int) -> Array:
        """The last accesses, (lanes,) or (lanes, count) for pieces of ``count`` granules."""
        return gather(self.first, index, count)

    def others(self, index: Any, count: int) -> Array | None:
        """The accesses by somebody else, as ``words``."""
        return None if self.second is None else gather(self.second, index, count)

    def taken(self, index: Array, count: int, low: int) -> bool:
        """Whether all these places hold two words from ``low`` on."""
        others = self.others(index, count)
        return others is not None and int(others.min()) >= low and int(self.words(index, count).min()) >= low

    def note(self, index: Array, count: int, words: Array, low: int) -> Array | None:
        """Enter one access of each lane at its place. Words below ``low`` are forgotten, not kept beside the new ones.

        Gives the lanes' positions that found another's word of this very access in their place, or None."""
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
        # the lowest of them stands beside the highest
        self._keep(index[::-1], count, lost[::-1], words[::-1])
        return np.flatnonzero(lost if count == 1 else lost.any(axis=1))

    def _keep(self, index: Array, count: int, which: Array, words: Array) -> None:
        if self.second is None:
            self.second = np.zeros_like(self.first)
        cells = index if count == 1 else index[:, None] * count + np.arange(count)
        self.second[cells[which]] = words[which]


def rises(index: Array) -> bool:
    """Whether positions rise from lane to lane, so that no two are equal."""
    return bool((index[1:] > index[:-1]).all())
