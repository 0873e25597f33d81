"""Loads through the read-only cache (ld.global.nc, __ldg) of memory that the same launch has stored to.

PTX requires that the memory is not written while the kernel runs: the cache may hold the bytes from before the store.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.events import Events
from cudakit.sim.checks.failures import Conflict, WrongLanes, fail
from cudakit.sim.checks.global_memory import places_of
from cudakit.sim.checks.reach import Reach
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, gather
from cudakit.sim.lockstep.run import KernelRun


class CachedLoads:
    """The check of one launch. ``loaded`` are the allocations that it may load from through the cache; None: any."""

    def __init__(self, events: Events, granule: int, loaded: set[Allocation] | None) -> None:
        self.events = events
        self.shift = granule.bit_length() - 1
        self.loaded = loaded
        # for each granule of an allocation, the event of the last store in this launch
        self.tables: dict[Allocation, Array] = {}

    @classmethod
    def of(cls, run: KernelRun, events: Events, reach: Reach) -> CachedLoads | None:
        """The check of a launch; None if no memory can be both stored to and loaded through the cache."""
        if "race" not in run.checks:
            return None
        stored, loaded = reach.written(run), reach.cached(run)
        for one, other in ((stored, loaded), (loaded, stored)):
            if one is not None and (not one or (other is not None and one.isdisjoint(other))):
                return None
        return cls(events, reach.global_granule, loaded)

    def write(self, access: MemoryAccess, piece: Piece, event: int) -> None:
        """Note a store or an atomic."""
        allocation: Allocation = piece.home
        table = self.tables.get(allocation)
        if table is None:
            if self.loaded is not None and allocation not in self.loaded:
                return
            table = self.tables[allocation] = np.zeros(len(allocation.store) >> self.shift, np.int64)
        count = access.size >> self.shift
        view = table if count == 1 else table.reshape(-1, count)
        view[piece.index] = event

    def read(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Report a load through the cache of bytes that were stored to."""
        table = self.tables.get(piece.home)
        if table is None or "nc" not in access.site.instruction.modifiers:
            return
        count = access.size >> self.shift
        events = gather(table, piece.index, count)
        if not events.any():
            return
        last = np.broadcast_to(events.max(axis=-1) if count > 1 else events, (piece.lanes.count,))
        culprits = WrongLanes.where(f, access, piece, last != 0)
        allocation: Allocation = piece.home
        address = int(places_of(access, piece)[culprits.first])
        fail(
            culprits,
            "read-only load of stored memory",
            f"{access.named} through the read-only cache at {address:#x}, {address - allocation.address} bytes into "
            f"the {allocation.kind} allocation of {allocation.size} bytes, which this launch has stored to",
            Conflict(self.events.site(int(last[culprits.first])), None),
            address=address,
            allocation=allocation,
            notes=["use a plain load: no __ldg(), and no const __restrict__ for memory that the kernel writes"],
        )
