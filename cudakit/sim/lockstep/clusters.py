"""Thread block clusters: blocks that run together, access each other's shared memory, and meet at barrier.cluster.

The blocks of a cluster are consecutive in their batch. The bits of a shared address from ``RANK_SHIFT`` up are the
block's rank in the cluster. The address of a shared variable contains the rank of the block that takes it, so it stays
valid in other blocks; mapa replaces the rank. A generic address is the shared address plus the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment, divide
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_START, SHARED_WINDOW
from cudakit.sim.lockstep.program import ClusterCall
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Instruction

RANK_SHIFT = 24
RANK_MASK = 0xFF
_OFFSET_MASK = (1 << RANK_SHIFT) - 1


def ranks(batch: Batch, lanes: LaneSet) -> Array:
    """The rank of each lane's block in its cluster, int64."""
    size = batch.run.cluster_size
    key = ("cluster rank", size)
    found: Array | None = lanes.cache.get(key)
    if found is None:
        found = lanes.cache[key] = lanes.block % size
    return found


def own_base(f: Fragment) -> Any:
    """The rank bits of a shared variable's address: a uint64, or one per lane."""
    if f.batch.run.cluster_size == 1:
        return np.uint64(0)
    return ranks(f.batch, f.lanes).astype(np.uint64) << np.uint64(RANK_SHIFT)


# ---- addresses ----


def home_of(batch: Batch, blocks: Any, addresses: Any) -> tuple[Any, Any]:
    """The block of the batch and the address within it that shared addresses with ranks name, taken in these blocks."""
    size = batch.run.cluster_size
    if size == 1:
        return blocks, addresses
    return blocks - blocks % size + (addresses >> RANK_SHIFT & RANK_MASK), addresses & _OFFSET_MASK


def shared_address(name: str) -> Callable[[Fragment], Any]:
    """Return a function that computes the address of a shared variable for a fragment."""

    def get(f: Fragment) -> Any:
        run = f.batch.run
        address = np.uint64(run.config.shared_symbols[name])
        return address if run.cluster_size == 1 else address + own_base(f)

    return get


def in_own_shared(f: Fragment, value: Array) -> Array:
    """Whether generic addresses are in the shared memory of the lane's own block."""
    low = np.uint64(SHARED_WINDOW) + own_base(f)
    high = low + np.uint64(1 << RANK_SHIFT) if f.batch.run.cluster_size > 1 else np.uint64(LOCAL_WINDOW)
    inside: Array = (value >= low) & (value < high)
    return inside


def offsets_in_cluster(
    f: Fragment, lanes: LaneSet, start: Array, site: Site, size: int, anywhere: bool
) -> tuple[Array, Array]:
    """Split the shared addresses of lanes in a cluster. Returns the offset in a block's shared memory, and the block
    within the batch, both (lanes,) of int64. ``start`` are the addresses without the window, one per lane or one for
    all lanes, of accesses to ``size`` bytes. ``anywhere``: any block of the cluster may be accessed, not only the
    lane's own.

    A rank outside the cluster and a block that has exited are reported as faults.
    """
    batch = f.batch
    blocks = batch.run.cluster_size
    start = np.broadcast_to(start, (lanes.count,))
    rank, own = start >> RANK_SHIFT, ranks(batch, lanes)
    offsets = (start & _OFFSET_MASK) - SHARED_START
    wrong = np.flatnonzero((rank < 0) | (rank >= blocks))
    if len(wrong):
        where = f"the shared memory of rank {int(rank[wrong[0]])}; the cluster has ranks 0 to {blocks - 1}"
        _fail(f, site, size, "out of bounds", where, start, wrong)
    if not anywhere:
        wrong = np.flatnonzero(rank != own)
        if len(wrong):
            where = (
                f"the shared memory of rank {int(rank[wrong[0]])} of the cluster from rank {int(own[wrong[0]])}; a "
                ".shared::cta access can only reach its own block's shared memory"
            )
            _fail(f, site, size, "out of bounds", where, start, wrong)
    block = lanes.block - own + rank
    gone = np.flatnonzero((rank != own) & (batch.live_blocks.take(block) == 0))
    if len(gone):
        where = (
            f"the shared memory of block {batch.block_index(int(block[gone[0]]))}, which has exited: synchronise the "
            "cluster (cluster.sync()) after the last access and before the block exits"
        )
        _fail(f, site, size, "use after free", where, start, gone)
    return offsets, block


def _fail(f: Fragment, site: Site, size: int, kind: str, where: str, start: Array, wrong: Array) -> NoReturn:
    position = int(wrong[0])
    f.fail(
        site.instruction,
        kind,
        f"{site.kind} of {size} byte{'s' * (size != 1)} at {where}",
        position,
        len(wrong),
        address=int(start[position]),
        size=size,
        space="shared",
        access=site.kind,
    )


# ---- barrier.cluster ----


class ClusterBarrier:
    """The barriers of a batch's clusters. Each thread arrives and then waits; a phase is complete once all live threads
    of the cluster have arrived."""

    def __init__(self, batch: Batch, queue: FragmentQueue) -> None:
        geometry, size = batch.geometry, batch.run.cluster_size
        self.batch = batch
        self.queue = queue
        self.clusters = geometry.blocks // size
        self.cluster = geometry.block // size
        # the number of phases that each lane has arrived at, and whether its wait for the last one is still due
        self.phase = np.zeros(geometry.lanes, np.int64)
        self.owing = np.zeros(geometry.lanes, np.bool_)
        # the path of each lane's last arrival, as a number in `places`
        self.place = np.zeros(geometry.lanes, np.int64)
        self.places: dict[tuple[int, ...], int] = {}
        self.instructions: list[Instruction] = []
        self.completed = np.zeros(self.clusters, np.int64)
        self.waiting: list[Fragment] = []

    def meet(self, f: Fragment, call: ClusterCall) -> bool:
        """Arrive or wait with a fragment that is already past the instruction; True if it may continue at once."""
        f.jumps = 0
        if call.waits:
            return self.wait(f, call)
        ids = f.lanes.lanes
        twice = np.flatnonzero(self.owing[ids])
        if len(twice):
            f.fail(
                call.instruction,
                "divergent barrier",
                "a thread arrives at the cluster barrier twice without a wait between the arrivals",
                int(twice[0]),
                len(twice),
            )
        self.phase[ids] += 1
        self.owing[ids] = True
        path = f.path()
        if path not in self.places:
            self.places[path] = len(self.instructions)
            self.instructions.append(call.instruction)
        self.place[ids] = self.places[path]
        if self.batch.guard is not None:
            self.batch.guard.cluster_arrive(f.lanes, "relaxed" in call.instruction.modifiers)
        if call.aligned and "barrier" in self.batch.run.checks:
            self.check_alignment(f, call)
        self.release()
        return True

    def check_alignment(self, f: Fragment, call: ClusterCall) -> None:
        """Report lanes of one warp that make an aligned arrival at different instructions."""
        warps = self.batch.geometry.warp
        mine = np.zeros(self.batch.geometry.warps, np.bool_)
        mine[f.lanes.warps] = True
        ids = f.lanes.lanes
        phase = np.zeros(self.batch.geometry.warps, np.int64)
        phase[f.lanes.warp] = self.phase[ids]
        elsewhere = mine[warps] & (self.phase == phase[warps]) & (self.place != self.place[ids[0]])
        if elsewhere.any():
            warp = int(warps[np.flatnonzero(elsewhere)[0]])
            position = int(np.flatnonzero(f.lanes.warp == warp)[0])
            f.fail(
                call.instruction,
                "divergent barrier",
                "lanes of one warp arrive at the cluster barrier at different .aligned instructions; all lanes of the "
                "warp must execute the same one",
                position,
                int((f.lanes.warp == warp).sum()),
            )

    def wait(self, f: Fragment, call: ClusterCall) -> bool:
        ids = f.lanes.lanes
        never = np.flatnonzero(~self.owing[ids])
        if len(never):
            f.fail(
                call.instruction,
                "divergent barrier",
                "a thread waits at the cluster barrier without having arrived at it",
                int(never[0]),
                len(never),
            )
        if self.ready(ids).all():
            self.owing[ids] = False
            return True
        self.waiting.append(f)
        self.release()
        return False

    def ready(self, ids: Array) -> Array:
        passed: Array = self.phase[ids] <= self.completed[self.cluster[ids]]
        return passed

    def release(self) -> bool:
        """Complete the phases at which all threads have arrived, and release the fragments that wait for them; True if
        some were released."""
        batch, size = self.batch, self.batch.run.cluster_size
        arrived = np.bincount(self.cluster, batch.alive & (self.phase > self.completed[self.cluster]), self.clusters)
        live = batch.live_blocks.reshape(-1, size).sum(axis=1)
        full = (live > 0) & (arrived == live)
        if full.any():
            self.completed[full] += 1
            batch.progress += 1
            if batch.guard is not None:
                batch.guard.cluster_barrier(full)
        going, self.waiting = divide(self.waiting, lambda lanes: self.ready(lanes.lanes))
        epoch = self.queue.epoch()
        for f in going:
            self.owing[f.lanes.lanes] = False
            f.epoch = epoch
            self.queue.add(f)
        return bool(going)

    def waits(self) -> list[tuple[Fragment, Instruction, str]]:
        """The fragments that wait, their instruction, and the barrier in words."""
        return [
            (f, f.program.blocks[f.block - 1].cluster_barrier.instruction, "the barrier of the cluster")
            for f in self.waiting
        ]

    def deadlock(self) -> NoReturn:
        """Report lanes that wait for threads of their cluster that can never arrive."""
        f = self.waiting[0]
        call = f.program.blocks[f.block - 1].cluster_barrier
        cluster = int(self.cluster[f.lanes.lanes[0]])
        size = self.batch.run.cluster_size
        inside = (self.cluster == cluster) & self.batch.alive
        arrived = int((self.phase[inside] > self.completed[cluster]).sum())
        f.fail(
            call.instruction,
            "deadlock",
            f"{arrived} of the {int(inside.sum())} live threads of a cluster of {size} blocks have arrived at the "
            "cluster barrier; the others are blocked elsewhere",
            lanes=f.lanes.count,
        )
