"""Finds the last store to some bytes of global memory: the line that wrote a wrong result."""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.global_memory import places_of
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.report import KernelReport


class StoreWatch:
    """Watches stores and atomics to ``size`` bytes at ``address``. ``store`` is the last one, as a report of the kind
    "store", or None."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.store: KernelReport | None = None

    def note(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Note a store to the elements of a piece."""
        home, end = piece.home, self.address + self.size
        if not isinstance(home, Allocation) or not (home.address < end and self.address < home.address + home.size):
            return
        places = places_of(access, piece)
        hits = np.flatnonzero((places < end) & (places + access.size > self.address))
        if not hits.size:
            return
        position = int(hits[-1])  # if several lanes store to one address, the last one wins
        if piece.choice is not None:
            position = int(np.arange(f.lanes.count)[piece.choice][position])
        block, thread = f.lane_place(position)
        instruction = access.site.instruction
        self.store = KernelReport(
            "store",
            access.named,
            kernel=f.batch.run.config.kernel,
            block=block,
            thread=thread,
            places=f.batch.run.place(instruction),
            address=self.address,
            size=access.size,
            space="global",
            access=access.site.kind,
            instruction=instruction.text.strip(),
        )
