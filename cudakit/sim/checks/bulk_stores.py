"""Bulk stores and reductions in global memory that their threads have not waited for: nothing may access what they
write, except that reductions and atomics go together. A wait for their sources (.read) is not enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.transfers import Transfer, Units


class _Flying(NamedTuple):
    """A store in flight, and the bytes of its allocation that it is within."""

    transfer: Transfer
    units: Units
    low: int
    high: int


class BulkStores:
    """The bulk stores of one batch in flight."""

    def __init__(self, checks: BatchChecks) -> None:
        self.checks = checks
        self.flying: dict[Allocation, list[_Flying]] = {}
        # whether the accesses are those of a transfer that writes its destination now
        self.landing = False

    def start(self, transfer: Transfer) -> None:
        target = transfer.destination
        if transfer.group < 0 or target is None or not isinstance(target.home, Allocation) or not len(target.index):
            return
        size = target.access.size
        low, high = int(target.index.min()) * size, int(target.index.max()) * size + size
        self.flying.setdefault(target.home, []).append(_Flying(transfer, target, low, high))

    def complete(self, due: Callable[[list[Transfer]], list[Transfer]]) -> None:
        """Note that the stores which ``due`` selects have been waited for."""
        over = set(map(id, due([one.transfer for flying in self.flying.values() for one in flying])))
        self._keep(lambda transfer: id(transfer) not in over)

    def leave(self, lanes: LaneSet) -> None:
        """Forget the stores of the blocks that have exited with these lanes."""
        batch = self.checks.batch
        gone = (lanes.block_counts > 0) & (batch.live_blocks == 0)
        if gone.any():
            self._keep(lambda transfer: not gone[transfer.lane // batch.geometry.threads])

    def _keep(self, which: Callable[[Transfer], bool]) -> None:
        kept = ((home, [one for one in flying if which(one.transfer)]) for home, flying in self.flying.items())
        self.flying = {home: flying for home, flying in kept if flying}

    def check(self, f: Fragment, access: MemoryAccess, piece: Piece, *, atomic: bool) -> None:
        """Report an access to memory that a store in flight writes."""
        flying = self.flying.get(piece.home)
        if self.landing or not flying:
            return
        starts = positions(piece.index, piece.lanes.count) * access.size
        if not len(starts):
            return
        low, high = int(starts.min()), int(starts.max()) + access.size
        for one in flying:
            if one.low >= high or one.high <= low or (atomic and one.transfer.combine is not None):
                continue
            hit = _overlap(starts, access.size, one.units)
            if len(hit):
                self._report(f, access, piece, one.transfer, int(hit[0]), int(starts[hit[0]]))

    def _report(
        self, f: Fragment, access: MemoryAccess, piece: Piece, transfer: Transfer, position: int, byte: int
    ) -> None:
        batch, home = self.checks.batch, piece.home
        lane = int(piece.lanes.lanes[position])
        whose = "the same thread" if lane == transfer.lane else "another thread"
        address = home.base + byte
        f.alone(lane).fail(
            access.site.instruction,
            "access before bulk wait",
            f"{access.named} at {address:#x}, {address - home.address} bytes into the {home.kind} allocation of "
            f"{home.size} bytes, which a {transfer.site.kind} of {whose} may not have written yet",
            space="global",
            access=access.site.kind,
            address=address,
            allocation=home,
            others=(batch.other(transfer.site, transfer.lane),),
            notes=[
                "wait for it (cp.async.bulk.wait_group, without .read) in the thread that started it, and let other "
                "threads wait for that thread"
            ],
        )


def _overlap(starts: Array, size: int, units: Units) -> Array:
    """The positions of the accesses of ``size`` bytes, from these bytes on, that share a byte with some units."""
    cell = min(size, units.access.size)
    parts = units.index[:, None] * (units.access.size // cell) + np.arange(units.access.size // cell)
    cells = starts[:, None] // cell + np.arange(size // cell)
    return np.flatnonzero(np.isin(cells, parts).any(axis=1))
