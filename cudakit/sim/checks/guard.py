"""The checks of memory accesses while a kernel runs: "race" and "init" of a launch's checks.

Loads, stores and atomics call the guard of a batch before they change memory, piece by piece. The scheduler calls the
guard for barriers; fences and bar.warp.sync call it themselves. Without these checks a batch has no guard.

A load of an element is an uninitialised read if none of the element's bytes were written. A partly written element is
not reported. Neither is an element that is only copied along with initialised ones: compilers copy structures with
their padding. A value loaded from uninitialised memory is reported once it is used (lockstep/undefined.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from cudakit.sim.checks.async_proxy import AsyncProxy
from cudakit.sim.checks.batch_checks import other_of
from cudakit.sim.checks.cached_loads import CachedLoads
from cudakit.sim.checks.cluster_barriers import ClusterBarriers
from cudakit.sim.checks.events import Events
from cudakit.sim.checks.footprints import READ, WRITE, Footprints
from cudakit.sim.checks.global_memory import GlobalChecks, places_of
from cudakit.sim.checks.global_transfers import GlobalTransfers
from cudakit.sim.checks.local_memory import LocalChecks
from cudakit.sim.checks.map_changes import MapChecks
from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.predecessors import PredecessorWaits
from cudakit.sim.checks.reach import Reach
from cudakit.sim.checks.releases import BlockFences
from cudakit.sim.checks.shadow import LANES
from cudakit.sim.checks.shared_memory import SharedChecks
from cudakit.sim.checks.stored_values import BatchValues
from cudakit.sim.checks.watches import Watch
from cudakit.sim.lockstep.access import BLOCK, CLUSTER, DEVICE, MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.mbarriers import BYTES, Mbarrier
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.transfers import Transfer, some_units
from cudakit.sim.ptx.ir import Instruction

CHECKS = frozenset({"race", "init"})
# the bits of a place in global memory; the cluster is above them
_CLUSTER_SHIFT = 46


class LaunchGuard:
    """The state that the batches of one launch share: event numbers and the checks of global memory."""

    def __init__(
        self, run: KernelRun, reach: Reach, prints: Footprints | None = None, watches: Sequence[Watch] = ()
    ) -> None:
        self.reach = reach
        self.prints = prints
        self.watches = watches
        self.events = Events()
        self.cached = CachedLoads.of(run, self.events, reach)
        self.memory = GlobalChecks(run, self.events, reach.global_granule, reach.written(run))


class Guard:
    """The checks of one batch."""

    def __init__(self, launch: LaunchGuard, batch: Batch) -> None:
        self.batch = batch
        self.events, self.memory, self.prints = launch.events, launch.memory, launch.prints
        self.watches, self.cached = launch.watches, launch.cached
        self.readers = [watch for watch in launch.watches if watch.reads]
        run, reach = batch.run, launch.reach
        self.race, self.init = "race" in run.checks, "init" in run.checks
        self.order = BatchOrder(batch)
        early = None if launch.prints is None else launch.prints.early
        self.predecessors = None if early is None else PredecessorWaits(self.order, self.memory.chains)
        self.fences = BlockFences(self.order)
        # fences whose scope is at least the cluster
        self.cluster_fences = BlockFences(self.order) if run.cluster_size > 1 else None
        self.shared: SharedChecks | None = None
        if batch.shared is not None:
            self.shared = SharedChecks(
                batch, batch.shared, self.events, self.order, self.memory.chains, reach.shared_granule, reach.reserved
            )
        # the asynchronous copies and products, and mbarriers
        self.proxy = AsyncProxy(self)
        self.clusters = ClusterBarriers(self, self.proxy.mbarriers)
        self.transfers = GlobalTransfers(self)
        self.maps = MapChecks(self)
        if self.shared is not None:
            self.shared.proxy = self.proxy
        self.values = BatchValues(batch)
        self.checks_local = self.init and reach.local
        # a debugger shows which bytes were written, also if reads of them are not checked
        watched = self.checks_local or (self.init and bool(run.probes))
        self.local = LocalChecks(batch.local) if batch.local is not None and watched else None

    # ---- accesses: called with the pieces of an access before memory changes ----

    def read(self, f: Fragment, access: MemoryAccess, pieces: list[Piece]) -> None:
        for watch in self.readers:
            watch.read(f, access, pieces)
        event = self.events.access(access.site, f.lanes)
        for piece in pieces:
            home = piece.home
            if home is None:
                continue
            if home is self.batch.shared:
                if self.shared is not None:
                    if access.strong:
                        self._strong(access, piece, event, True, False)
                    self.shared.read(f, access, piece, event)
                if self.values.stores:
                    self.values.load(f, access, piece)
            elif home is self.batch.local:
                if self.local is not None and self.checks_local:
                    self.local.read(f, access, piece)
                if self.values.stores:
                    self.values.load(f, access, piece)
            else:
                if access.strong:
                    self._strong(access, piece, event, True, False)
                self._print(access, piece, event, READ)
                if self.transfers.any:
                    self.transfers.check(f, access, piece, reads=True, writes=False)
                if self.cached is not None:
                    self.cached.read(f, access, piece)
                self.memory.read(f, access, piece, event, self.order)

    def write(self, f: Fragment, access: MemoryAccess, pieces: list[Piece], values: Array) -> None:
        """Check a store of ``values`` in memory's dtype: one value per lane or one for all; for a vector, one row per
        lane."""
        event = self.events.access(access.site, f.lanes)
        for piece in pieces:
            home = piece.home
            if home is None:
                continue
            part = values
            if piece.choice is not None and values.ndim >= (1 if access.count == 1 else 2):
                part = values[piece.choice]
            if home is self.batch.local:
                if self.local is not None:
                    self.local.write(access, piece)
                if self.values.stores or f.storing is not None:
                    self.values.store(f, access, piece)
                continue
            if home is not self.batch.shared:
                if f.storing is not None:
                    self.values.fail_stored(f, access, piece)
                self._print(access, piece, event, WRITE)
                if self.transfers.any:
                    self.transfers.check(f, access, piece, reads=False, writes=True)
                if self.cached is not None:
                    self.cached.write(access, piece, event)
                self.memory.write(f, access, piece, event, part, self.order)
            elif self.shared is not None:
                self.shared.write(f, access, piece, event, part)
                if self.values.stores or f.storing is not None:
                    self.values.store(f, access, piece)
            if access.strong:
                self._strong(access, piece, event, False, True)
        f.storing = None
        if self.watches:
            self._note(f, access, pieces)

    def update(self, f: Fragment, access: MemoryAccess, pieces: list[Piece], *, reads: bool) -> None:
        """Check an atomic; ``reads``: the old value is used (False for an exchange)."""
        event = self.events.access(access.site, f.lanes)
        for piece in pieces:
            home = piece.home
            if home is None or home is self.batch.local:
                continue
            self._print(access, piece, event, READ | WRITE)
            self._strong(access, piece, event, True, True)
            if home is not self.batch.shared:
                if self.transfers.any:
                    self.transfers.check(f, access, piece, reads=True, writes=True)
                if self.cached is not None:
                    self.cached.write(access, piece, event)
                if reads:
                    self.memory.check_defined(f, access, piece)
                self.memory.write(f, access, piece, event, None, self.order)
            elif self.shared is not None:
                if reads:
                    self.shared.check_defined(f, access, piece)
                if reads and self.values.stores:
                    self.values.load(f, access, piece)
                self.shared.write(f, access, piece, event, None)
                if self.values.stores:
                    self.values.store(f, access, piece)
        if self.watches:
            self._note(f, access, pieces)

    def _note(self, f: Fragment, access: MemoryAccess, pieces: list[Piece]) -> None:
        """Notify the watches of a write that passed the checks. Those of transfers are noted by ``transfer_lands``,
        because the checks see other units."""
        if not self.transfers.landing:
            for watch in self.watches:
                watch.note(f, access, pieces)

    def _print(self, access: MemoryAccess, piece: Piece, event: int, does: int) -> None:
        """Note an access to global memory in the launch's footprint."""
        if self.prints is None:
            return
        self.prints.note(access, piece, does)
        early = self.prints.early
        if early is not None and self.predecessors is not None:
            before = self.predecessors.before(piece.lanes.lanes, event)
            if before.any():
                early.note(access, some_units(piece, before), does)

    def predecessor_wait(self, lanes: LaneSet) -> None:
        """Note a griddepcontrol.wait."""
        if self.predecessors is not None:
            self.predecessors.wait(lanes.lanes, self.events.tick())

    def _strong(self, access: MemoryAccess, piece: Piece, event: int, reads: bool, writes: bool) -> None:
        """Note the release or acquire of a strong access."""
        if not self.race:
            return
        lanes = piece.lanes
        ways = {"reads": reads, "writes": writes, "release": writes and access.releases, "acquires": access.acquires}
        near = self.order.awake(access.releases)
        wide, shared, blocks = self.memory.chains, piece.home is self.batch.shared, self.cluster_fences
        far = self.memory.grid and access.scope == DEVICE and not shared and wide.awake(self.fences, access.releases)
        clustered = blocks is not None and access.scope >= CLUSTER and wide.awake(blocks, access.releases)
        if not (near or far or clustered):
            return
        if shared:
            # negative, so that it differs from any global address
            places = -1 - positions(piece.index, lanes.count) * access.size
        else:
            places = places_of(access, piece)
        if near:
            self.order.strong(event, lanes, places, **ways)
        if far:
            wide.strong(self.fences, event, lanes.lanes, places, **ways)
        if blocks is not None and clustered:
            if shared:
                places = places - self.batch.first_block * piece.home.stride
            else:
                # within a cluster, a smaller scope is enough
                cluster = (lanes.block + self.batch.first_block) // self.batch.run.cluster_size
                places = places + ((cluster.astype(np.int64) + 1) << _CLUSTER_SHIFT)
            wide.strong(blocks, event, lanes.lanes, places, **ways)

    def expect_defined(self, f: Fragment, position: int, offset: int, size: int, use: Instruction) -> None:
        """Report undefined values, loaded from memory, that printf reads from a lane's local memory."""
        self.values.expect_defined(f, position, offset, size, use)

    # ---- cp.async ----

    def issue(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Note that a cp.async begins to write a piece of shared memory."""
        if self.shared is not None:
            self.shared.issue(f, access, piece, self.events.access(access.site))
        if self.values.stores:
            self.values.store(f, access, piece)
        for watch in self.readers:
            watch.copy_shared(f, access, piece)

    def land(self, ids: Array, index: Array, access: MemoryAccess) -> None:
        """Note that the lanes ``ids`` of the batch have waited for copies to ``index`` of shared memory."""
        if self.shared is not None:
            self.shared.land(ids, index, access, self.events.access(access.site))

    # ---- asynchronous copies and products, mbarriers ----

    def proxy_fence(self, f: Fragment, *, in_shared: bool, in_global: bool) -> None:
        """Note a fence.proxy.async by the lanes of a fragment, for stores to these state spaces."""
        self.proxy.fence(f, self.events.tick(), in_shared, in_global)

    def mbarrier_fence(self, f: Fragment) -> None:
        """Note a fence.mbarrier_init. It also counts as a release for the cluster."""
        self.proxy.show_mbarriers(f)
        self.fence(f, CLUSTER, releases=True, acquires=False)

    def mbarrier_init(self, f: Fragment, barrier: Mbarrier) -> None:
        """Note the initialisation of an mbarrier."""
        self.proxy.object_written(f, barrier, barrier.site, barrier.lane)
        barrier.event = self.events.access(barrier.site)
        self.proxy.objects[barrier.position // BYTES] = True
        self.proxy.unfenced.append(barrier)

    def mbarrier_invalid(self, f: Fragment, site: Site, barrier: Mbarrier, lane: int) -> None:
        """Note the end of an mbarrier."""
        self.proxy.objects[barrier.position // BYTES] = False
        self.proxy.object_written(f, barrier, site, lane)

    def mbarrier_used(self, f: Fragment, site: Site, barrier: Mbarrier, lanes: LaneSet) -> None:
        """Check that lanes may use an mbarrier."""
        if self.race:
            self.proxy.check_visible(f, site, barrier, lanes)

    def mbarrier_arrive(self, f: Fragment, site: Site, barrier: Mbarrier, lanes: LaneSet) -> None:
        """Note arrivals at an mbarrier."""
        if self.race:
            event = self.events.access(site)
            self.proxy.object_read(barrier, site, lanes, event)
            self.proxy.mbarriers.arrive(barrier, lanes, event, relaxed="relaxed" in site.instruction.modifiers)
            far = lanes.lanes[lanes.block != barrier.block]
            if len(far) and self.shared is not None:
                self.shared.note_far(barrier.block, int(far[0]), event)

    def mbarrier_complete(self, barrier: Mbarrier) -> None:
        """Note the end of a phase."""
        if self.race:
            self.proxy.mbarriers.complete(barrier)

    def mbarrier_wait(self, site: Site, barrier: Mbarrier, lanes: LaneSet) -> None:
        """Note that lanes have waited for the last phase of an mbarrier."""
        if self.race:
            event = self.events.access(site)
            self.proxy.object_read(barrier, site, lanes, event)
            self.proxy.mbarriers.wait(barrier, lanes, event, relaxed="relaxed" in site.instruction.modifiers)

    def mbarrier_known(self, barrier: Mbarrier, lane: int, *, last: bool) -> bool:
        """Whether the end of an mbarrier's last phase happens before now for a lane. True if races are not checked."""
        return not self.race or self.proxy.mbarriers.known(barrier, lane, last=last)

    def writer_of(self, position: int) -> tuple[Any, ...]:
        """Return the last store to a byte of the batch's shared memory, for a report."""
        if self.shared is None or self.batch.shared is None:
            return ()
        word = self.shared.writes.first[position >> self.shared.shift]
        event = int(LANES.event(word))
        return other_of(self, event, int(LANES.owner(word))) if event else ()

    def map_fence(self, f: Fragment, places: Array | None) -> None:
        """Note a fence.proxy.tensormap: a release, or an acquire of the maps at these addresses."""
        self.maps.fence(f, places, self.events.tick())

    def map_read(self, f: Fragment, position: int, site: Site, allocation: Allocation, address: int) -> None:
        """Check that a lane may use the tensor map at an address."""
        if self.race:
            self.maps.read(f, position, site, allocation, address)

    def transfer_issued(self, transfer: Transfer) -> None:
        """Check an asynchronous copy that starts."""
        self.proxy.start(transfer)
        if self.race:
            self.transfers.start(transfer)

    def transfer_taken(self, transfer: Transfer) -> None:
        """Note that an asynchronous copy has read its source."""
        self.proxy.taken(transfer)

    def transfer_lands(self, transfer: Transfer) -> None:
        """Check an asynchronous copy that writes its destination."""
        self.transfers.lands(transfer)
        self.transfers.landing = True
        self.proxy.lands(transfer)
        self.transfers.landing = False
        for watch in self.watches:
            watch.land(transfer)

    def transfers_complete(self, due: Callable[[list[Transfer]], list[Transfer]]) -> None:
        """Note that lanes have waited for the bulk stores which ``due`` selects."""
        if self.transfers.stores:
            self.transfers.complete(due)

    # ---- the async proxy ----

    def begin_async_read(self, f: Fragment, site: Site, places: Array, lanes: Array) -> Any:
        """Note that the async proxy begins to read chunks of 16 bytes of shared memory; returns a token."""
        return self.proxy.hold(f, site, places, lanes)

    def end_async_read(self, token: Any, lanes: Array | None = None) -> None:
        """Note that the reads of a token have ended: all of them, or those of some lanes."""
        self.proxy.release(token, lanes)

    # ---- synchronisation ----

    def fence(self, f: Fragment, scope: int, *, releases: bool, acquires: bool) -> None:
        """Note a fence; ``scope``: BLOCK, CLUSTER or DEVICE."""
        if not self.race:
            return
        event = self.events.tick()
        self.order.fence(f.lanes, event, releases=releases, acquires=acquires)
        self.proxy.mbarriers.fence(f.lanes, event, releases=releases, acquires=acquires)
        if scope == BLOCK or not self.memory.grid:
            return
        blocks = np.flatnonzero(f.lanes.block_counts)
        for fences in (self.fences if scope == DEVICE else None, self.cluster_fences):
            if fences is not None:
                if acquires:
                    self.memory.chains.fence(fences, event, f.lanes.lanes)
                if releases:
                    fences.fence(f.lanes.lanes, blocks, event)

    def warp_sync(self, lanes: LaneSet) -> None:
        """Note a bar.warp.sync by these lanes."""
        self.order.synchronised(lanes, self.events.last())
        geometry = self.batch.geometry
        if geometry.warps_per_block == 1:
            # it is a barrier of the blocks that have one warp, all lanes of which take part
            whole = lanes.block_counts == geometry.threads
            if whole.any():
                self.barrier(None if whole.all() else whole)

    def warp_vote(self, lanes: LaneSet) -> None:
        """Note a shuffle, vote, match or redux by these lanes."""
        self.order.voted[lanes.lanes] = self.events.last()

    def barrier(self, blocks: Array | None) -> None:
        """Note that all threads of these blocks of the batch (a mask; None: all blocks) have met at a barrier."""
        event = self.events.last()
        self.order.passed(blocks, event)
        self.fences.barrier(blocks)
        first = self.order.first_block
        self.memory.chains.passed(range(first, first + self.batch.geometry.blocks), blocks, event)
        if self.cluster_fences is not None:
            self.cluster_fences.barrier(blocks)
        if self.shared is not None:
            self.shared.passed(blocks is None)

    def cluster_arrive(self, lanes: LaneSet, relaxed: bool) -> None:
        """Note that lanes arrive at the barrier of their cluster."""
        self.clusters.arrive(lanes, relaxed)

    def cluster_barrier(self, clusters: Array) -> None:
        """Note that all threads of the clusters in a mask have arrived at their barrier."""
        self.clusters.met(clusters)

    def arrive(self, lanes: LaneSet, number: int) -> None:
        """Note the arrival of lanes at a barrier, which may be for part of a block."""
        if self.race:
            self.order.arrived(lanes, number, self.events.tick())

    def depart(self, lanes: LaneSet, number: int) -> None:
        """Note that lanes which waited at the barrier continue."""
        if self.race:
            # a barrier also orders the lanes of one warp, unless some of them wait at another one
            whole = (lanes.warp_counts == self.batch.live_warps).take(lanes.warp)
            self.order.departed(lanes, lanes.subset(whole)[1] if whole.any() else None, number, self.events.tick())

    def leave(self, f: Fragment) -> None:
        """Note that the lanes of a fragment have exited."""
        if self.transfers.stores:
            self.transfers.leave(f.lanes)
        if self.shared is not None and self.race:
            self.shared.leave(f)

    def enter(self, lanes: LaneSet, base: int, size: int) -> None:
        """Note a call by these lanes: the callee's local memory is uninitialised."""
        if size and self.local is not None:
            self.local.enter(lanes, base, size)

    def end(self) -> None:
        """The batch has ended: break the circles of references, so that its tables are freed now."""
        if self.shared is not None:
            self.shared.proxy = None
        self.shared = None
        del self.proxy, self.clusters, self.transfers, self.maps


def wanted(checks: Iterable[str]) -> bool:
    """Whether these checks include a check of memory accesses."""
    return not CHECKS.isdisjoint(checks)
