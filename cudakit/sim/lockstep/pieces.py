"""Pieces of memory: the elements of a store that the lanes of an access read or write."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.lanes import Array, Choice, LaneSet
from cudakit.sim.lockstep.traffic import request_wavefronts

GLOBAL, SHARED, LOCAL, CONST, PARAM, GENERIC = "global", "shared", "local", "const", "param", "generic"
# shared memory of any block of the cluster
CLUSTER = "shared::cluster"
ELEMENTS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


class Piece(NamedTuple):
    """Elements of ``view`` (rows of it if the access is a vector). ``index`` is an int if all lanes access the same
    element, a slice if the elements are consecutive, otherwise positions. ``choice`` are the lanes; None: all.
    ``home`` is the owner of the bytes: an allocation, or the batch's shared or local store; None for parameters."""

    view: Array
    index: Any
    choice: Choice | None
    lanes: LaneSet
    home: Any = None


class SharedAddresses:
    """Cached facts about a register of shared addresses: an unrolled loop makes many accesses through one register, at
    different constant offsets. Registers are never written in place, so the facts stay valid."""

    __slots__ = ("_wavefronts", "address", "high", "index", "lanes", "low", "rest", "size")

    def __init__(self, address: Array, lanes: LaneSet, size: int, bases: Array | int) -> None:
        self.address, self.lanes, self.size = address, lanes, size
        offsets = address.astype(np.int64)
        self.low, self.high = int(offsets.min()), int(offsets.max())
        # the remainder of every address divided by the size of the access; -1 if they differ
        self.rest = self.low & (size - 1)
        if size > 1 and ((offsets - self.rest) & (size - 1)).any():
            self.rest = -1
        # the element index for the constant offset -rest; other offsets add to it
        self.index: Array = ((offsets - self.rest) >> (size.bit_length() - 1)) + bases
        self._wavefronts: dict[tuple[int, bool], tuple[int, int, int]] = {}

    def wavefronts(self, move: int, width: int, paired: bool) -> tuple[int, int, int]:
        """The wavefronts of a request of ``width`` bytes per lane at these addresses ``+ move``."""
        key = (width, paired)
        found = self._wavefronts.get(key)
        if found is None or width < 4:
            found = request_wavefronts(self.lanes, self.address.astype(np.int64) + move, width, paired)
            self._wavefronts[key] = found
        return found


def gather(table: Array, index: Any, count: int) -> Array:
    """The elements of a table, viewed as rows of ``count``, at a piece's ``index``."""
    view = table if count == 1 else table.reshape(-1, count)
    found: Array = view.take(index, axis=0) if isinstance(index, np.ndarray) else view[index]
    return found


def positions(index: Any, count: int) -> Array:
    """A piece's index as one position for each of ``count`` lanes."""
    found: Array = np.arange(index.start, index.stop) if isinstance(index, slice) else indices(index, count)
    return found


def indices(index: Any, count: int) -> Any:
    """``positions``, or the slice if it is one."""
    return np.full(count, index) if isinstance(index, int) else index


def within(piece: Piece, choice: Choice, count: int) -> Piece:
    """Convert a piece of a subset of ``count`` lanes (``choice``) to a piece of all of them."""
    positions = np.arange(count)[choice]
    inner = positions if piece.choice is None else positions[piece.choice]
    return piece._replace(choice=inner)
