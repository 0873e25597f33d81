"""Which bytes of some allocations a launch reads and writes, for what runs beside it on another stream."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.sites import Site

READ, WRITE = 1, 2
# the same by accesses that are volatile, relaxed, acquire, release or atomic
_STRONG = 2
# bytes of the largest allocation that is looked at: a footprint takes five for each
LARGEST = 1 << 28
Marks = npt.NDArray[np.uint8]


class Footprints:
    """The bytes that one launch touches: an array of marks for each allocation looked at, one a byte of its store, and
    the access that was there last."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self.marks: dict[Allocation, Marks] = {a: np.zeros(len(a.store), np.uint8) for a in allocations}
        self._last = {a: np.zeros(len(a.store), np.int32) for a in self.marks}
        # 0 stands for no access
        self._sites: list[Site | None] = [None]
        self._numbers: dict[Site, int] = {}

    def note(self, access: MemoryAccess, piece: Piece, does: int) -> None:
        """An access is about to read or write (``does``) the elements of a piece."""
        marks = self.marks.get(piece.home)
        if marks is None:
            return
        marks.reshape(-1, access.size)[piece.index] |= np.uint8(does << _STRONG * access.strong)
        number = self._numbers.get(access.site)
        if number is None:
            number = self._numbers[access.site] = len(self._sites)
            self._sites.append(access.site)
        self._last[piece.home].reshape(-1, access.size)[piece.index] = number

    def site(self, allocation: Allocation, byte: int) -> Site | None:
        """The last access to a byte of an allocation's store, None where none was noted."""
        return self._sites[int(self._last[allocation][byte])]


def wrote(marks: Marks) -> bool:
    """Whether a footprint has anything but reads."""
    return bool((marks & (WRITE | WRITE << _STRONG)).any())


def conflict(one: Marks, other: Marks, changed: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
    """The bytes that both touch, at least one of them writing, and not both strongly. Where both do nothing but write,
    it is one only if ``changed``: storing what is there already harms nobody."""
    weak = READ | WRITE
    strong_both = (one & weak == 0) & (other & weak == 0)
    writes = WRITE | WRITE << _STRONG
    reads = READ | READ << _STRONG
    found: npt.NDArray[np.bool_] = (one != 0) & (other != 0) & ((one | other) & writes != 0) & ~strong_both
    if changed is not None:
        found &= changed | ((one | other) & reads != 0)
    return found
