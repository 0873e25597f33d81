"""Undefined register values (lockstep/undefined.py) that were stored to shared memory: a load returns their codes.

Storing such a value is not a mistake: items past the end of an array often pass through shared memory unused.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Store
from cudakit.sim.lockstep.lanes import Array, choose
from cudakit.sim.lockstep.pieces import Piece, positions


class SharedValues:
    """The codes of the words of a batch's shared memory. Elements of fewer than 4 bytes count as defined."""

    def __init__(self, store: Store) -> None:
        self.codes = np.zeros(len(store.bytes) >> 2, np.uint16)

    def write(self, access: MemoryAccess, piece: Piece, codes: Array | None) -> None:
        """Note a store; ``codes`` of its elements: (lanes, count), or None if all are defined."""
        index = positions(piece.index, piece.lanes.count) * access.size >> 2
        words = max(access.size >> 2, 1)
        if codes is None or access.size < 4 * access.count or codes.shape[1] != access.count:
            values = np.zeros((len(index), words), np.uint16)
        else:
            part = codes if piece.choice is None else choose(codes, piece.choice)
            values = np.repeat(part, words // access.count, axis=1)
        self.codes[index[:, None] + np.arange(words)] = values

    def read(self, access: MemoryAccess, piece: Piece) -> Array | None:
        """The codes of the elements that a load returns, (lanes of the piece, count); None if all are defined."""
        if access.size < 4 * access.count:
            return None
        index = positions(piece.index, piece.lanes.count) * access.size >> 2
        found = self.codes[index[:, None] + np.arange(access.size >> 2)]
        if not found.any():
            return None
        values: Array = found.reshape(len(index), access.count, -1).max(axis=2)
        return values
