"""Asynchronous copies in flight: bulk copies, tensor copies, st.async and cp.async.mbarrier.arrive.

A transfer reads its source and writes its destination at moments that only the rules limit. By default both are as late
as allowed: once a thread waits for the mbarrier or the bulk group that the transfer completes on and cannot go on
otherwise, or when its block exits. So data that was not waited for is not there, and a source that is overwritten too
early shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, Geometry, LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.sites import Site

# combines the old and the new elements of a destination
Combine = Callable[[Array, Array], Array]


def unit_lanes(geometry: Geometry, lanes: Array) -> LaneSet:
    """A set in which each access of some lanes counts as a lane; lanes may occur more than once."""
    made = LaneSet(geometry, lanes, len(lanes))
    # 32 accesses are not those of the 32 lanes of a warp
    made.__dict__["complete"] = False
    return made


def same_lane(geometry: Geometry, lane: int, count: int) -> LaneSet:
    """A set in which one lane makes ``count`` accesses: the units of a transfer count as lanes."""
    return unit_lanes(geometry, np.full(count, lane))


def some_units(piece: Piece, mask: Array) -> Piece:
    """The accesses of a piece in a mask, each of which counts as a lane."""
    index = positions(piece.index, piece.lanes.count)[mask]
    return piece._replace(index=index, lanes=unit_lanes(piece.lanes.geometry, piece.lanes.lanes[mask]))


class Units:
    """The units of memory that a transfer reads or writes: the rows ``index`` (int64, or a slice) of the memory of
    ``home``, each of ``access.size`` bytes."""

    __slots__ = ("access", "home", "index", "view")

    def __init__(self, home: Any, index: Array, access: MemoryAccess) -> None:
        view = home.view(access.dtype)
        self.view: Array = view if access.count == 1 else view.reshape(-1, access.count)
        self.home, self.index, self.access = home, index, access

    def piece(self, lanes: LaneSet) -> Piece:
        return Piece(self.view, self.index, None, lanes, self.home)

    def load(self) -> Array:
        found: Array = self.view.take(self.index, axis=0)
        return found


class Transfer:
    """One copy by one lane. ``source`` is None if it has no bytes in memory: ``data`` are its values then. ``inside``
    selects the units of ``data`` that the source of a load has (None: all). ``arrange`` turns the units of the source
    into those of the destination. ``combine`` reduces into the destination. It completes on ``barrier`` with ``bytes``,
    or in the lane's bulk group number ``group``."""

    __slots__ = (
        "arrange",
        "barrier",
        "bytes",
        "combine",
        "data",
        "destination",
        "event",
        "f",
        "group",
        "inside",
        "knows",
        "lane",
        "lanes",
        "phase",
        "site",
        "source",
        "taken",
        "token",
    )

    def __init__(self, f: Fragment, site: Site, lane: int, count: int) -> None:
        self.site, self.lane = site, lane
        self.lanes = same_lane(f.batch.geometry, lane, count)
        # what reports and checks need of the lane, also after it has gone on
        self.f = f.alone(lane)
        self.source: Units | None = None
        self.destination: Units | None = None
        self.data: Array | None = None
        self.inside: Array | None = None
        self.arrange: Callable[[Array], Array] | None = None
        self.combine: Combine | None = None
        self.barrier: Mbarrier | None = None
        # the barrier's phase at the issue, in which the bytes count
        self.phase = 0
        self.bytes = 0
        self.group = -1
        self.taken = False
        # the checks' handle of its read in flight, the event of its issue, and what its warp knew then
        self.token: Any = None
        self.event = 0
        self.knows: Any = None

    # ---- progress ----

    def issue(self) -> None:
        """Check the transfer, and note that it is in flight."""
        batch = self.f.batch
        guard = batch.guard
        if self.barrier is not None:
            self.phase = self.barrier.phase
        if guard is not None:
            guard.transfer_issued(self)
        batch.asynchrony.add(self)

    def take(self) -> None:
        """Read the source."""
        if self.taken:
            return
        self.data, self.taken = self.values(), True
        if self.group >= 0:
            self.f.batch.asynchrony.groups.taken.append(self)

    def land(self) -> None:
        """Write the destination and complete."""
        self.take()
        batch = self.f.batch
        if self.barrier is not None and self.barrier.phase != self.phase:
            self._late(self.barrier)
        target = self.destination
        if self.group < 0 and batch.guard is not None:
            batch.guard.transfer_taken(self)
        if target is not None and self.data is not None:
            if batch.guard is not None:
                batch.guard.transfer_lands(self)
            values = self.data
            if self.combine is not None:
                values = self.combine(target.view[target.index], values)
            target.view[target.index] = values
        batch.progress += 1
        if self.barrier is not None:
            batch.asynchrony.mbarriers.landed(self.barrier, self.bytes, self.lane)

    def _late(self, barrier: Mbarrier) -> NoReturn:
        """Report that the phase in which the transfer started completed without its bytes."""
        batch = self.f.batch
        site, lane = barrier.expecting or (self.site, self.lane)
        batch_f = self.f if barrier.expecting is None else self.f.alone(lane)
        batch_f.fail(
            site.instruction,
            "mbarrier bytes differ",
            f"{site.kind}: phase {self.phase} of {barrier.named()} was complete before {self.bytes} bytes of a "
            f"{self.site.kind} that started in it had arrived: it expected fewer bytes than its copies have",
            others=(batch.other(self.site, self.lane),),
            notes=["expect exactly the bytes of the copies, of whole boxes also if they overhang the tensor"],
        )

    def values(self) -> Array | None:
        """The values that it writes, as read from its source, or as it would read them now. None if there are none."""
        if self.taken or self.source is None:
            return self.data
        found = self.source.load()
        if self.data is not None:
            # the other units are filled
            filled = self.data.copy()
            filled[self.inside] = found
            found = filled
        return found if self.arrange is None else self.arrange(found)

    # ---- places ----

    @property
    def writes_shared(self) -> bool:
        return self.destination is not None and self.destination.home is self.f.batch.shared

    @property
    def reads_shared(self) -> bool:
        return self.source is not None and self.source.home is self.f.batch.shared

    def destination_block(self) -> int:
        """The block of the batch whose shared memory the transfer writes; -1 if it writes elsewhere."""
        target, batch = self.destination, self.f.batch
        if target is None or batch.shared is None or target.home is not batch.shared or not len(target.index):
            return -1
        return int(target.index[0]) * target.access.size // batch.shared.stride

    def source_block(self) -> int:
        """The block of the batch whose shared memory the transfer reads; -1 if it reads elsewhere."""
        source, batch = self.source, self.f.batch
        if source is None or batch.shared is None or source.home is not batch.shared or not len(source.index):
            return -1
        return int(source.index[0]) * source.access.size // batch.shared.stride


class LateArrival(Transfer):
    """cp.async.mbarrier.arrive: an arrival at ``barrier`` once the lane's earlier cp.async copies are complete."""

    __slots__ = ("until",)

    def __init__(self, f: Fragment, site: Site, lane: int, barrier: Mbarrier, until: int) -> None:
        super().__init__(f, site, lane, 1)
        self.barrier, self.until = barrier, until

    def land(self) -> None:
        batch, barrier = self.f.batch, self.barrier
        if batch.copies is not None:
            batch.copies.finish(self.f, self.until)
        if barrier is None:
            return
        one = np.array([barrier.position])
        counts = np.ones(1, np.int64)
        batch.asynchrony.mbarriers.arrive(
            self.f, self.site, self.f.lanes, one, counts, None, drop=False, completes=True
        )


class BulkGroups:
    """The bulk groups of a batch's lanes: copies from shared memory complete in groups that their own thread commits
    and waits for."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        # how many groups each lane has committed
        self.committed = np.zeros(batch.geometry.lanes, np.int64)
        # transfers that have read their source, but whose lane has not waited for them: for the checks, they still read
        self.taken: list[Transfer] = []

    def commit(self, f: Fragment) -> None:
        self.committed[f.lanes.lanes] += 1

    def wait(self, f: Fragment, pending: int, *, reads: bool) -> None:
        """Finish the transfers of these lanes, except those of their newest ``pending`` groups; ``reads``: only the
        reads of their sources need to be finished."""
        batch = self.batch
        mine = np.zeros(batch.geometry.lanes, np.bool_)
        mine[f.lanes.lanes] = True

        def due(transfers: list[Transfer]) -> list[Transfer]:
            most = self.committed - pending
            return [one for one in transfers if 0 <= one.group < most[one.lane] and mine[one.lane]]

        for transfer in due(batch.asynchrony.transfers):
            if reads:
                transfer.take()
            else:
                batch.asynchrony.land(transfer)
        if not reads and batch.guard is not None:
            batch.guard.transfers_complete(due)
        for transfer in due(self.taken):
            self.taken.remove(transfer)
            if batch.guard is not None:
                batch.guard.transfer_taken(transfer)
