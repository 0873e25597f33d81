"""Thread block clusters: blocks that run together, see each other's shared memory, and meet at barrier.cluster.

The blocks of a cluster are consecutive in their batch. A shared address holds the block's rank in the cluster above
``RANK_SHIFT``: the address that a block takes of a shared variable carries its own rank, so the address stays right in
the hands of another block, and mapa replaces the rank. Generic addresses are that plus the window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import SHARED_START, Batch, Fragment, divide
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_WINDOW
from cudakit.sim.lockstep.program import CLUSTER, Block
from cudakit.sim.ptx.ir import Address, Instruction, Symbol
from cudakit.sim.ptx.modifiers import Modifiers

if TYPE_CHECKING:
    from cudakit.sim.instructions.lowering import Compiler
    from cudakit.sim.lockstep.access import Access
    from cudakit.sim.lockstep.control import Scheduler

RANK_SHIFT = 24
_RANK_MASK = 0xFF
_OFFSET_MASK = (1 << RANK_SHIFT) - 1


def ranks(batch: Batch, lanes: LaneSet) -> Array:
    """Each lane's block within its cluster, int64."""
    size = batch.run.cluster_size
    key = ("cluster rank", size)
    found: Array | None = lanes.cache.get(key)
    if found is None:
        found = lanes.cache[key] = lanes.block % size
    return found


def own_base(f: Fragment) -> Any:
    """What the address of a shared variable has above its offset in the block: a uint64, or one a lane."""
    if f.batch.run.cluster_size == 1:
        return np.uint64(0)
    return ranks(f.batch, f.lanes).astype(np.uint64) << np.uint64(RANK_SHIFT)


# ---- addresses ----


def shared_address(name: str) -> Callable[[Fragment], Any]:
    """How to get the address of a shared variable."""

    def get(f: Fragment) -> Any:
        run = f.batch.run
        address = np.uint64(run.shared_symbols[name])
        return address if run.cluster_size == 1 else address + own_base(f)

    return get


def in_own_shared(f: Fragment, value: Array) -> Array:
    """Whether generic addresses lie in the shared memory of the lane's own block."""
    low = np.uint64(SHARED_WINDOW) + own_base(f)
    high = low + np.uint64(1 << RANK_SHIFT) if f.batch.run.cluster_size > 1 else np.uint64(LOCAL_WINDOW)
    inside: Array = (value >= low) & (value < high)
    return inside


def build_mapa(c: Compiler, instruction: Instruction) -> list[str]:
    """mapa: the same place in the shared memory of another block of the cluster."""
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u32", "u64")
    modifiers.flag("shared::cluster")
    modifiers.finish()
    source = instruction.operands[1]
    if isinstance(source, (Symbol, Address)):
        base, offset = c.address(source, instruction)
        value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
        if kind == "u32":
            value += f".astype({c.bind(np.uint32)})"
    else:
        value = c.source(source, kind)
    rank = c.source(instruction.operands[2], "u32")
    keep = ~(_RANK_MASK << RANK_SHIFT) & (0xFFFFFFFF if kind == "u32" else 0xFFFFFFFFFFFFFFFF)
    dtype = np.uint32 if kind == "u32" else np.uint64

    def mapa(address: Array, block: Array) -> Array:
        # a rank that no cluster has stays one, for the access to report
        high = np.minimum(block, np.uint32(_RANK_MASK)).astype(dtype) << dtype(RANK_SHIFT)
        mapped: Array = (address & dtype(keep)) | high
        return mapped

    return c.store(instruction.operands[0], kind, f"{c.bind(mapa)}({value}, {rank})")


def build_getctarank(c: Compiler, instruction: Instruction) -> list[str]:
    """getctarank: the block in whose shared memory an address lies."""
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u32", "u64")
    modifiers.flag("shared::cluster")
    modifiers.finish()
    value = c.source(instruction.operands[1], kind)

    def rank(address: Array) -> Array:
        found: Array = ((address >> address.dtype.type(RANK_SHIFT)) & address.dtype.type(_RANK_MASK)).astype(np.uint32)
        return found

    return c.store(instruction.operands[0], "u32", f"{c.bind(rank)}({value})")


def offsets_in_cluster(
    access: Access, f: Fragment, lanes: LaneSet, address: Array, window: int, anywhere: bool
) -> tuple[Array, Array]:
    """Where lanes of a cluster's blocks access shared memory: the offset in a block's own shared memory, and the block
    within the batch, both (lanes,) of int64. ``anywhere``: in any block of the cluster, not the lane's own alone.

    A rank that the cluster does not have, and a block that has exited, are reported.
    """
    batch = f.batch
    size = batch.run.cluster_size
    start = np.broadcast_to(address, (lanes.count,)).astype(np.int64) + (access.offset - window)
    rank, own = start >> RANK_SHIFT, ranks(batch, lanes)
    offsets = (start & _OFFSET_MASK) - SHARED_START
    wrong = np.flatnonzero((rank < 0) | (rank >= size))
    if len(wrong):
        where = f"block {int(rank[wrong[0]])} of a cluster that has {size} (ranks start at 0)"
        _fail(access, f, "out of bounds", where, start, wrong)
    if not anywhere:
        wrong = np.flatnonzero(rank != own)
        if len(wrong):
            where = (
                f"the shared memory of block {int(rank[wrong[0]])} of the cluster by block {int(own[wrong[0]])}, and "
                "the access is .shared::cta, which reaches the block's own alone"
            )
            _fail(access, f, "out of bounds", where, start, wrong)
    block = lanes.block - own + rank
    gone = np.flatnonzero((rank != own) & (batch.live_blocks.take(block) == 0))
    if len(gone):
        where = (
            f"the shared memory of block {batch.block_index(int(block[gone[0]]))}, which has exited: its threads must "
            "wait, at a cluster barrier, for the last access"
        )
        _fail(access, f, "use after free", where, start, gone)
    return offsets, block


def _fail(access: Access, f: Fragment, kind: str, where: str, start: Array, wrong: Array) -> NoReturn:
    position = int(wrong[0])
    f.fail(
        access.site.instruction,
        kind,
        f"{access.site.kind} of {access.size} byte{'s' * (access.size != 1)} at {where}",
        position,
        len(wrong),
        address=int(start[position]),
        size=access.size,
        space="shared",
        access=access.site.kind,
    )


# ---- barrier.cluster ----


class ClusterCall:
    """A barrier.cluster instruction: whether it waits (else it arrives), and whether all lanes of a warp must be there
    (``aligned``)."""

    __slots__ = ("aligned", "instruction", "waits")

    def __init__(self, instruction: Instruction, waits: bool, aligned: bool) -> None:
        self.instruction = instruction
        self.waits = waits
        self.aligned = aligned


def end_with_cluster_barrier(c: Compiler, block: Block, instruction: Instruction, count: Callable[[Any], None]) -> None:
    """Make a basic block end with barrier.cluster.arrive or .wait; ``count`` notes that a fragment came."""
    modifiers = Modifiers(instruction)
    modifiers.flag("cluster")
    what = modifiers.one_of("arrive", "wait")
    modifiers.one_of("acquire") if what == "wait" else modifiers.one_of("release", "relaxed")
    aligned = modifiers.flag("aligned")
    modifiers.finish()
    if not what or instruction.operands or instruction.opcode != "barrier":
        modifiers.refuse("barrier.cluster takes .arrive or .wait and no operands")
    block.kind = CLUSTER
    block.barrier = ClusterCall(instruction, what == "wait", aligned)
    if what == "arrive":
        block.lines.append(f"{c.bind(count)}(f)")


class ClusterBarrier:
    """The barriers of a batch's clusters. Each thread arrives and then waits; a phase is complete when all threads of
    the cluster that have not exited have arrived."""

    def __init__(self, batch: Batch) -> None:
        geometry, size = batch.geometry, batch.run.cluster_size
        self.batch = batch
        self.clusters = geometry.blocks // size
        self.cluster = geometry.block // size
        # phases that each lane has arrived at, and whether it has yet to wait for the last
        self.phase = np.zeros(geometry.lanes, np.int64)
        self.owing = np.zeros(geometry.lanes, np.bool_)
        # where each lane arrived last: the place among the places seen
        self.place = np.zeros(geometry.lanes, np.int64)
        self.places: dict[tuple[int, ...], int] = {}
        self.instructions: list[Instruction] = []
        self.completed = np.zeros(self.clusters, np.int64)
        self.waiting: list[Fragment] = []

    def meet(self, scheduler: Scheduler, f: Fragment, call: ClusterCall) -> bool:
        """Bring a fragment, already behind the instruction, to arrive or wait; True where it may go straight on."""
        f.jumps = 0
        if call.waits:
            return self.wait(scheduler, f, call)
        ids = f.lanes.lanes
        twice = np.flatnonzero(self.owing[ids])
        if len(twice):
            f.fail(
                call.instruction,
                "divergent barrier",
                "a thread arrives at the cluster barrier twice without waiting in between",
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
        if call.aligned and "barrier" in self.batch.run.checks:
            self.check_alignment(f, call)
        self.release(scheduler)
        return True

    def check_alignment(self, f: Fragment, call: ClusterCall) -> None:
        """An aligned arrival needs all lanes of a warp at the same instruction."""
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
                "lanes of one warp arrive at the cluster barrier at different instructions, which are .aligned",
                position,
                int((f.lanes.warp == warp).sum()),
            )

    def wait(self, scheduler: Scheduler, f: Fragment, call: ClusterCall) -> bool:
        ids = f.lanes.lanes
        never = np.flatnonzero(~self.owing[ids])
        if len(never):
            f.fail(
                call.instruction,
                "divergent barrier",
                "a thread waits at the cluster barrier without having arrived there",
                int(never[0]),
                len(never),
            )
        if self.ready(ids).all():
            self.owing[ids] = False
            return True
        self.waiting.append(f)
        self.release(scheduler)
        return False

    def ready(self, ids: Array) -> Array:
        passed: Array = self.phase[ids] <= self.completed[self.cluster[ids]]
        return passed

    def release(self, scheduler: Scheduler) -> bool:
        """Complete the phases at which all have arrived, and let those go on that wait for them; True where some do."""
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
        epoch = min((key[0] for key in scheduler.pending), default=0)
        for f in going:
            self.owing[f.lanes.lanes] = False
            f.epoch = epoch
            scheduler.add(f)
        return bool(going)

    def deadlock(self) -> NoReturn:
        """Nothing can move, and lanes wait for threads of their cluster that will never arrive."""
        f = self.waiting[0]
        call: ClusterCall = f.program.blocks[f.block - 1].barrier
        cluster = int(self.cluster[f.lanes.lanes[0]])
        size = self.batch.run.cluster_size
        inside = (self.cluster == cluster) & self.batch.alive
        arrived = int((self.phase[inside] > self.completed[cluster]).sum())
        f.fail(
            call.instruction,
            "deadlock",
            f"{arrived} of the {int(inside.sum())} living threads of a cluster of {size} blocks have arrived at the "
            "cluster barrier; the others are elsewhere, and none can move",
            lanes=f.lanes.count,
        )


BUILDERS = {"mapa": build_mapa, "getctarank": build_getctarank}
