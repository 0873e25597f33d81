"""Tensor maps in global memory that the kernel itself changes: their proxy is not that of ordinary stores, so a copy
sees a change only after fence.proxy.tensormap, a release by the thread that stores and an acquire before the copy."""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks, other_of
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import GLOBAL, Piece
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.tensor_maps import SIZE

_WORDS = SIZE // 8


class MapChecks:
    """The fences for tensor maps in one batch."""

    def __init__(self, guard: BatchChecks) -> None:
        self.guard = guard
        # per lane: its last release; per address: the acquires, as (event, lane)
        self.released: dict[int, int] = {}
        self.acquired: dict[int, list[tuple[int, int]]] = {}

    def fence(self, f: Fragment, places: Array | None, event: int) -> None:
        lanes = f.lanes.lanes.tolist()
        if places is None:
            self.released.update(dict.fromkeys(lanes, event))
            return
        for lane, place in zip(lanes, places.tolist(), strict=True):
            self.acquired.setdefault(place, []).append((event, lane))

    def read(self, f: Fragment, position: int, site: Site, allocation: Allocation, address: int) -> None:
        """Check the use of the map at an address by the lane at a position."""
        guard, batch = self.guard, f.batch
        choice, lane = f.lanes.at(position)
        access = MemoryAccess(site, GLOBAL, 0, 8, _WORDS)
        view = allocation.view(access.dtype)
        index = np.array([(address - allocation.base) // SIZE])
        if (address - allocation.base) % SIZE:
            # a map need only be 64-byte aligned
            access, index = MemoryAccess(site, GLOBAL, 0, 8, 8), np.array([(address - allocation.base) // 64])
        piece = Piece(view.reshape(-1, access.count), index, choice, lane, allocation)
        found = guard.memory.writers(access, piece)
        if found is None:
            return
        order = guard.order
        mine = int(lane.lanes[0])
        for event, block, thread in zip(*(one.tolist() for one in found), strict=True):
            inner = block - order.first_block
            writer = inner * order.threads + thread if thread >= 0 and 0 <= inner < batch.geometry.blocks else None
            released = writer is None or self.released.get(writer, 0) > event
            acquired = any(
                when > event and (who == mine or self._ordered(mine, who, when))
                for when, who in self.acquired.get(address, ())
            )
            if released and acquired:
                continue
            missing = (
                "fence.proxy.tensormap::generic.release" if not released else "fence.proxy.tensormap::generic.acquire"
            )
            f.fail(
                site.instruction,
                "tensor map changed without a fence",
                f"{site.kind} uses the tensor map at {address:#x}, which this kernel has changed; {missing} is missing",
                position,
                others=other_of(guard, event, writer) if writer is not None else (),
                notes=[
                    "the thread that changes the map needs fence.proxy.tensormap::generic.release.gpu, the thread that "
                    "copies fence.proxy.tensormap::generic.acquire.gpu [map], 128"
                ],
                access=site.kind,
                allocation=allocation,
            )

    def _ordered(self, mine: int, other: int, event: int) -> bool:
        shared = self.guard.shared
        if shared is None:
            return False
        return bool(shared.ordered(np.array([mine]), np.array([other]), np.array([event]))[0])
