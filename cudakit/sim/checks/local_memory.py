"""The checks of local memory: a load is an uninitialised read if none of the bytes of its scalar or whole vector were
written."""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.stored_values import unwritten_load
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment, Store
from cudakit.sim.lockstep.lanes import LaneSet
from cudakit.sim.lockstep.pieces import Piece, gather


class LocalChecks:
    """The bytes of a batch's local memory that were written."""

    def __init__(self, memory: Store) -> None:
        self.stride = memory.stride
        self.written = np.zeros(len(memory.bytes), np.uint8)

    def read(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        found = gather(self.written.view(access.dtype), piece.index, access.count)
        if found.all():
            return
        wrong = found == 0
        if access.count > 1:
            wrong = wrong.all(axis=-1)
        if not wrong.any():
            return
        if access.count > 1:
            wrong = np.repeat(wrong[..., None], access.count, axis=-1)
        unwritten_load(f, access, piece, wrong, access.count)

    def write(self, access: MemoryAccess, piece: Piece) -> None:
        self.written.view(access.dtype).reshape(-1, access.count)[piece.index] = np.iinfo(access.dtype).max

    def enter(self, lanes: LaneSet, base: int, size: int) -> None:
        """Note a call by these lanes: the callee's memory is uninitialised."""
        self.written.reshape(-1, self.stride)[lanes.lanes, base : base + size] = 0
