"""Builders for st.async and red.async: stores of registers to the shared memory of a block of the cluster, which
complete on an mbarrier there."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.sim.instructions.bulk_copies import COMPLETION, SHARED_TYPES, each_lane, reduction
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.loads import elements
from cudakit.sim.instructions.mbarriers import barrier_places
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import CLUSTER, SHARED
from cudakit.sim.lockstep.ranges import shared_range
from cudakit.sim.lockstep.transfers import Transfer, Units
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.values.lanewise import width

_STORED = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")
_REDUCED = ("b32", "u32", "s32", "u64", "s64")


def build_async_store(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    reduces = instruction.opcode == "red"
    kind = modifiers.kind(*(_REDUCED if reduces else _STORED))
    modifiers.flag("async")
    # without a space it is .shared::cluster
    if reduces:
        ordered, own = modifiers.flag("relaxed") and modifiers.flag("cluster"), False
        modifiers.flag("shared::cluster")
    else:
        ordered = True
        modifiers.flag("weak")
        own = modifiers.one_of("shared::cluster", "shared", "shared::cta") in ("shared", "shared::cta")
    completes = modifiers.flag(COMPLETION)
    length = 1 if reduces else int(modifiers.one_of("v2", "v4")[1:] or 1)
    operation = modifiers.one_of(*SHARED_TYPES) if reduces else ""
    modifiers.finish()
    if not ordered or not completes:
        modifiers.refuse("unknown form")
    if reduces and kind == "s64" and operation == "add":
        kind = "u64"
    if reduces and kind not in SHARED_TYPES.get(operation, ()):
        modifiers.refuse(f"{operation or 'no operation'} of .{kind}")
    size = width(kind) // 8
    if size * length > 16:
        modifiers.refuse(f"{size * length} bytes at once")
    target, value, barrier = instruction.operands
    site = c.site(instruction, "red.async" if reduces else "st.async")
    address, offset = c.address(target, instruction)
    space = SHARED if own else CLUSTER
    bar, places = barrier_places(c, barrier, site, space)
    reduced = reduction(instruction, site, operation, kind, space) if reduces else None
    access = MemoryAccess(site, space, 0, size, 1) if reduced is None else reduced.access(site, space)
    values = ", ".join(c.source(part, kind) for part in elements(instruction, value, length))

    def store(f: Fragment, at: Array, bar: Array, values: tuple[Array, ...]) -> None:
        batch = f.batch
        rows = np.stack([np.broadcast_to(v, (f.lanes.count,)).view(access.dtype) for v in values], axis=1)
        found: Any = places(f, bar)
        for position, (start, barrier_at) in enumerate(each_lane(f, at, found)):
            total = size * length
            block, where = shared_range(f, position, start + offset, total, total, site, anywhere=not own)
            transfer = Transfer(f, site, int(f.lanes.lanes[position]), length)
            first = (block * batch.shared.stride + where) // size  # type: ignore[union-attr]
            transfer.destination = Units(batch.shared, np.arange(first, first + length), access)
            transfer.data = rows[position]
            if reduced is not None:
                transfer.combine = reduced.combine
            transfer.barrier = batch.asynchrony.mbarriers.find(f, site, f.lanes, position, barrier_at)
            if transfer.barrier.block != block:
                f.fail(
                    site.instruction,
                    "wrong mbarrier",
                    f"{site.kind} to block {batch.block_index(block)}, but {transfer.barrier.named()} that it "
                    f"completes on is in block {batch.block_index(transfer.barrier.block)}: both must be in one block",
                    position,
                )
            transfer.bytes = total
            transfer.issue()
        if batch.run.counting:
            tally = batch.run.tally(site)
            tally.requests += f.lanes.warp_count
            tally.bulk_bytes += f.lanes.count * size * length

    return [f"{c.bind(store)}(f, {address}, {bar}, ({values},))"]


BUILDERS = {"st.async": build_async_store, "red.async": build_async_store}
