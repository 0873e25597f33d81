"""Builders for bulk copies: cp.async.bulk, cp.reduce.async.bulk, their groups and prefetches.

A lane copies a range of bytes as units of 16 bytes; a reduction writes elements. Copies into shared memory complete on
an mbarrier, those out of it in the lane's bulk groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.sim.instructions.atomics import Atomic, Update
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.mbarriers import Places, barrier_places
from cudakit.sim.lockstep.access import DEVICE, MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import CLUSTER, GLOBAL, SHARED
from cudakit.sim.lockstep.ranges import global_range, peer_blocks, shared_range
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.transfers import Transfer, Units
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, refused
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.values.lanewise import width

ALIGN = 16
COMPLETION = "mbarrier::complete_tx::bytes"
# the state spaces of a copy by their names: the destination's is named first
SPACES = {"shared::cluster": CLUSTER, "shared::cta": SHARED, "global": GLOBAL}
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
# the types of each reduction, into global memory and into the shared memory of another block
_GLOBAL_TYPES: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "inc": ("u32",),
    "dec": ("u32",),
} | dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16"))
_GLOBAL_TYPES |= dict.fromkeys(("and", "or", "xor"), ("b32", "b64"))
SHARED_TYPES: dict[str, tuple[str, ...]] = {"add": ("u32", "s32", "u64"), "inc": ("u32",), "dec": ("u32",)}
SHARED_TYPES |= dict.fromkeys(("min", "max"), ("u32", "s32")) | dict.fromkeys(("and", "or", "xor"), ("b32",))
_KINDS = ("u32", "s32", "u64", "s64", "b32", "b64", "f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Reduction:
    """How a transfer combines its elements with those of its destination: ``update`` of values of ``kind``."""

    kind: str
    update: Update

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return width(self.kind) // 8

    def combine(self, old: Array, new: Array) -> Array:
        return self.update(old, new, None)

    def access(self, site: Site, space: str) -> MemoryAccess:
        """The access to the destination: one relaxed atomic per element."""
        made = MemoryAccess(site, space, 0, self.size, 1)
        made.strong, made.scope, made.unit = True, DEVICE, self.size if self.size >= 4 else 0
        return made


def reduction(instruction: Instruction, site: Site, operation: str, kind: str, space: str) -> Reduction:
    """The reduction of an asynchronous instruction."""
    access = MemoryAccess(site, space, 0, width(kind) // 8, 1)
    atomic = Atomic(instruction, access, operation, kind, space, False)
    # unlike red.global, it does not flush subnormal numbers of float32
    return Reduction(kind, atomic.far if space == GLOBAL and kind != "f32" else atomic.near)


class _Copy:
    """One bulk copy instruction. ``space`` and ``source`` are the state spaces of its operands."""

    def __init__(
        self, site: Site, space: str, source: str, offsets: tuple[int, int], reduced: Reduction | None
    ) -> None:
        self.site, self.space, self.source, self.offsets, self.reduced = site, space, source, offsets, reduced
        self.reading = MemoryAccess(site, source, 0, 4, ALIGN // 4)
        self.writing = MemoryAccess(site, space, 0, 4, ALIGN // 4)
        if reduced is not None:
            self.writing = reduced.access(site, space)

    def start(
        self,
        f: Fragment,
        position: int,
        to: int,
        at: int,
        size: int,
        barrier: int | None,
        mask: int | None,
    ) -> None:
        """Start the copy of the lane at a position. ``barrier``: the first byte of its mbarrier in the batch's shared
        memory; None: it completes in a bulk group. ``mask``: the blocks of a multicast."""
        site = self.site
        if size % ALIGN:
            detail = f"{site.kind} of {size} bytes: a multiple of 16 is copied"
            f.fail(site.instruction, "bulk copy size", detail, position)
        if not size:
            # no memory is accessed, so the addresses may be just past an array, and no bytes are counted
            count_bulk(f, site, 0)
            return
        lane, units = int(f.lanes.lanes[position]), size // ALIGN
        source = self._units(f, position, at + self.offsets[1], size, self.source, self.reading, None)
        targets: list[int | None] = [None]
        if mask is not None:
            targets = list(peer_blocks(f, position, mask, to, site))
        for block in targets:
            transfer = Transfer(f, site, lane, units)
            transfer.source = source
            transfer.destination = self._units(f, position, to + self.offsets[0], size, self.space, self.writing, block)
            if self.reduced is not None:
                transfer.combine, transfer.arrange = self.reduced.combine, self._elements
            finish(f, transfer, position, barrier, block, size)
            transfer.issue()
        count_bulk(f, site, size)

    def _elements(self, chunks: Array) -> Array:
        """Chunks of the source as elements of the destination."""
        found: Array = np.ascontiguousarray(chunks).view(self.writing.dtype).reshape(-1)
        return found

    def _units(
        self,
        f: Fragment,
        position: int,
        address: int,
        size: int,
        space: str,
        access: MemoryAccess,
        peer: int | None,
    ) -> Units:
        batch = f.batch
        rows = np.arange(size // access.size)
        if space == GLOBAL:
            allocation, offset = global_range(f, position, address, size, ALIGN, self.site)
            return Units(allocation, rows + offset // access.size, access)
        block, offset = shared_range(f, position, address, size, ALIGN, self.site, anywhere=space == CLUSTER)
        if batch.shared is None:
            raise RuntimeError("a range in shared memory, which the kernel lacks")
        start = (block if peer is None else peer) * batch.shared.stride + offset
        return Units(batch.shared, rows + start // access.size, access)


def finish(f: Fragment, transfer: Transfer, position: int, barrier: int | None, block: int | None, size: int) -> None:
    """Set what a transfer completes on: an mbarrier, in a multicast that of block ``block``; or a bulk group."""
    batch = f.batch
    asynchrony = batch.asynchrony
    if barrier is None:
        transfer.group = int(asynchrony.groups.committed[transfer.lane])
        return
    if block is not None and batch.shared is not None:
        barrier = block * batch.shared.stride + barrier % batch.shared.stride
    transfer.barrier = asynchrony.mbarriers.find(f, transfer.site, f.lanes, position, barrier)
    transfer.bytes = size


def count_bulk(f: Fragment, site: Site, size: int, clipped: int = 0) -> None:
    """Count a bulk request; ``clipped``: bytes of it that are outside of the tensor."""
    if f.batch.run.counting:
        tally = f.batch.run.tally(site)
        tally.requests += 1
        tally.bulk_bytes += size
        tally.clipped_bytes += clipped


def each_lane(f: Fragment, *values: Any) -> list[tuple[int, ...]]:
    """The values of each lane, as ints."""
    count = f.lanes.count
    columns = [[None] * count if v is None else np.broadcast_to(v, (count,)).tolist() for v in values]
    return list(zip(*columns, strict=True))


def build_bulk(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    reduces = modifiers.flag("reduce")
    operation = kind = ""
    if reduces:
        kind = modifiers.kind(*_KINDS)
    modifiers.flag("async")
    modifiers.flag("bulk")
    target, source = modifiers.one_of(*SPACES), modifiers.one_of(*SPACES)
    barrier, grouped = modifiers.flag(COMPLETION), modifiers.flag("bulk_group")
    multicast, policy = modifiers.flag("multicast::cluster"), modifiers.flag("L2::cache_hint")
    if reduces:
        operation = modifiers.one_of(*_OPERATIONS)
        noftz = modifiers.flag("noftz")
        types = _GLOBAL_TYPES if target == "global" else SHARED_TYPES
        if kind not in types.get(operation, ()):
            modifiers.refuse(f"{operation or 'no operation'} of .{kind}")
        if noftz != (operation == "add" and kind in ("f16", "bf16")):
            modifiers.refuse("only .add of .f16 and .bf16 has .noftz, and needs it")
    modifiers.finish()
    pairs = {("shared::cluster", "shared::cta"), ("global", "shared::cta")}
    if not reduces:
        pairs |= {("shared::cluster", "global"), ("shared::cta", "global")}
    if (target, source) not in pairs or barrier == grouped or grouped != (target == "global"):
        modifiers.refuse("unknown form")
    if multicast and (target, source) != ("shared::cluster", "global"):
        modifiers.refuse("only copies from global memory to .shared::cluster are multicast")
    if policy and "global" not in (target, source):
        modifiers.refuse("only copies from or to global memory have a cache policy")
    operands = list(instruction.operands)
    if len(operands) != 3 + barrier + multicast + policy:
        modifiers.refuse(f"{len(operands)} operands")
    site = c.site(instruction, "bulk reduction" if reduces else "bulk copy")
    to, to_offset = c.address(operands[0], instruction)
    at, at_offset = c.address(operands[1], instruction)
    reduced = reduction(instruction, site, operation, kind, SPACES[target]) if reduces else None
    copy = _Copy(site, SPACES[target], SPACES[source], (to_offset, at_offset), reduced)
    values = [to, at, c.source(operands[2], "u32")]
    bar, places = _barrier(c, operands[3], site, target) if barrier else ("None", None)
    mask = c.source(operands[4], "u16") if multicast else "None"

    def run(f: Fragment, to: Array, at: Array, size: Array, bar: Any, mask: Any) -> None:
        found = places(f, bar) if places is not None else None
        for position, values in enumerate(each_lane(f, to, at, size, found, mask)):
            copy.start(f, position, *values)

    return [f"{c.bind(run)}(f, {', '.join(values)}, {bar}, {mask})"]


def _barrier(c: Emitter, operand: Operand | None, site: Site, target: str) -> tuple[str, Places]:
    return barrier_places(c, operand, site, CLUSTER if target == "shared::cluster" else SHARED)


# ---- groups ----


def build_commit(c: Emitter, instruction: Instruction) -> list[str]:
    def commit(f: Fragment) -> None:
        f.batch.asynchrony.groups.commit(f)

    return [f"{c.bind(commit)}(f)"]


def build_wait(c: Emitter, instruction: Instruction) -> list[str]:
    reads = "read" in instruction.modifiers
    pending = instruction.operands[0]
    if not isinstance(pending, Immediate):
        raise refused(instruction, "the number of groups must be a literal")
    count = pending.bits % (1 << 32)

    def wait(f: Fragment) -> None:
        f.batch.asynchrony.groups.wait(f, count, reads=reads)

    return [f"{c.bind(wait)}(f)"]


def build_prefetch(c: Emitter, instruction: Instruction) -> list[str]:
    """Prefetches move no data; their modifiers and operands are checked."""
    modifiers = Modifiers(instruction)
    for name in ("async", "bulk", "prefetch", "L2", "global"):
        if not modifiers.flag(name):
            modifiers.refuse("unknown form")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if len(instruction.operands) != 2 + policy:
        modifiers.refuse(f"{len(instruction.operands)} operands")
    c.address(instruction.operands[0], instruction)
    return []


BUILDERS = {
    "cp.async.bulk": build_bulk,
    "cp.reduce": build_bulk,
    "cp.async.bulk.commit_group": build_commit,
    "cp.async.bulk.wait_group": build_wait,
    "cp.async.bulk.prefetch": build_prefetch,
}
