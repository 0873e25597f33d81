"""The bytes of some allocations that a launch reads and writes, for the check against work that it is not ordered
with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.sites import Site

READ, WRITE = 1, 2
# the shift of the same marks for strong accesses: volatile, relaxed, acquire, release or atomic
_STRONG = 2
# the largest allocation that is checked, in bytes: a footprint is five times as large
LARGEST = 1 << 28
Marks = npt.NDArray[np.uint8]


class Footprints:
    """The bytes that one launch accesses: for each checked allocation an array of marks, one per byte of its store, and
    the last access to each byte. ``early`` are those before griddepcontrol.wait, if they are wanted."""

    def __init__(self, allocations: Iterable[Allocation], early: Footprints | None = None) -> None:
        self.early = early
        self.marks: dict[Allocation, Marks] = {a: np.zeros(len(a.store), np.uint8) for a in allocations}
        self._last = {a: np.zeros(len(a.store), np.int32) for a in self.marks}
        # number 0 means no access
        self._sites: list[Site | None] = [None]
        self._numbers: dict[Site, int] = {}

    def note(self, access: MemoryAccess, piece: Piece, does: int) -> None:
        """Note an access to the elements of a piece; ``does``: whether it reads, writes or both."""
        marks = self.marks.get(piece.home)
        if marks is None:
            return
        # a load that a compare-and-swap confirms counts as strong
        strong = access.strong or access.site.confirmed
        marks.reshape(-1, access.size)[piece.index] |= np.uint8(does << _STRONG * strong)
        number = self._numbers.get(access.site)
        if number is None:
            number = self._numbers[access.site] = len(self._sites)
            self._sites.append(access.site)
        self._last[piece.home].reshape(-1, access.size)[piece.index] = number

    def site(self, allocation: Allocation, byte: int) -> Site | None:
        """The last access to a byte of an allocation's store; None if there was none."""
        return self._sites[int(self._last[allocation][byte])]


def wrote(marks: Marks) -> bool:
    """Whether a footprint contains writes."""
    return bool((marks & (WRITE | WRITE << _STRONG)).any())


def conflict(one: Marks, other: Marks, changed: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
    """A mask of the bytes that both footprints access, if at least one access writes and at least one is not strong. A
    byte that both only write conflicts only if it is ``changed``: storing an unchanged value is not a conflict."""
    weak = READ | WRITE
    strong_both = (one & weak == 0) & (other & weak == 0)
    writes = WRITE | WRITE << _STRONG
    reads = READ | READ << _STRONG
    found: npt.NDArray[np.bool_] = (one != 0) & (other != 0) & ((one | other) & writes != 0) & ~strong_both
    if changed is not None:
        found &= changed | ((one | other) & reads != 0)
    return found
