"""Builders for communication between the lanes of a warp, and for barriers.

Values are arranged as tables of 32 per warp. An inactive lane (exited, past the end of the block, on another path)
does not take part in votes; a shuffle reads all ones from it, which is NaN as a float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.clusters import end_with_cluster_barrier
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.program import BARRIER, BarrierCall, BasicBlock
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Pair, Register, refused
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.ptx.opcodes import Flow, row_of
from cudakit.sim.values.arithmetic import compile_lanewise

_LANE = np.arange(32, dtype=np.int64)
_BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)
_ALL = np.uint32(0xFFFFFFFF)
_MODES = ("up", "down", "bfly", "idx")


def sync_of(c: Emitter, instruction: Instruction) -> Callable[[Fragment, Registers], Any] | None:
    """The member mask of an instruction that waits for a warp's other lanes; None for other instructions."""
    row = row_of(instruction)
    if row.whole_warp:
        return _whole_warp
    return None if row.mask is None else function(c, instruction.operands[row.mask], "u32")


def _whole_warp(f: Fragment, r: Registers) -> Any:
    return _ALL


def function(c: Emitter, operand: Operand | None, kind: str) -> Callable[[Fragment, Registers], Any]:
    """An operand as a function of the fragment and its registers."""
    if isinstance(operand, Register):
        slot = c.slot(operand)
        return lambda f, r: r[slot]
    text = c.source(operand, kind)
    found: Callable[[Fragment, Registers], Any] = eval(f"lambda f, r: {text}", c.program.namespace)
    return found


def _targets(operand: Operand | None) -> tuple[Operand | None, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


def _count(f: Fragment, site: Site) -> None:
    if f.batch.run.counting:
        tally = f.batch.run.tally(site)
        tally.requests += f.lanes.warp_count
        tally.lanes += f.lanes.count


def _meet(f: Fragment, site: Site) -> None:
    """Record communication between the lanes of a warp."""
    _count(f, site)
    if f.batch.guard is not None:
        f.batch.guard.warp_vote(f.lanes)


def _synchronous(modifiers: Modifiers, *modes: str) -> str:
    """The mode of a warp-synchronous instruction; raises UnsupportedPtx if other modifiers are left."""
    modifiers.flag("sync")
    mode = modifiers.one_of(*modes)
    modifiers.finish()
    if not mode:
        modifiers.refuse("unknown form")
    return mode


# ---- shuffles ----


def build_shfl(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    modifiers.kind("b32")
    mode = _synchronous(modifiers, *_MODES)
    value, held = _targets(instruction.operands[0])
    sources = [c.source(o, "b32") for o in instruction.operands[1:5]]
    shuffle = _Shuffle(c.site(instruction, "shuffle"), mode)
    return c.store_all((value, held), ("b32", "pred"), f"{c.bind(shuffle)}(f, {', '.join(sources)})")


class _Shuffle:
    def __init__(self, site: Site, mode: str) -> None:
        self.site = site
        self.mode = mode

    def __call__(self, f: Fragment, value: Array, lane: Array, clamp: Array, mask: Array) -> tuple[Array, Array]:
        lanes = f.lanes
        _meet(f, self.site)
        if lane.ndim == 0 and clamp.ndim == 0:
            key = ("shfl", self.mode, int(lane), int(clamp))
            plan = lanes.cache.get(key)
            if plan is None:
                source, held = _sources(self.mode, _LANE, np.int64(lane), np.int64(clamp))
                plan = lanes.cache[key] = self.plan(
                    lanes, np.tile(source, lanes.warp_count), np.tile(held, lanes.warp_count)
                )
        else:
            wide = lanes.pad(np.broadcast_to(lane, (lanes.count,))).astype(np.int64)
            clamps = lanes.pad(np.broadcast_to(clamp, (lanes.count,))).astype(np.int64)
            source, held = _sources(self.mode, _LANE, wide, clamps)
            plan = self.plan(lanes, source.reshape(-1), held.reshape(-1))
        take, held, whole = plan
        if value.ndim == 0 and whole:
            return value, held
        table = lanes.pad(np.broadcast_to(value, (lanes.count,)), _ALL)
        return table.reshape(-1).take(take), held

    def plan(self, lanes: LaneSet, source: Array, held: Array) -> tuple[Array, Array, bool]:
        """For each active lane, its source in the table and its predicate; and whether all sources are active."""
        take = (np.arange(lanes.warp_count) * 32).repeat(32) + source
        if lanes.complete:
            return take, held, True
        take, held = take.take(lanes.slots), held.take(lanes.slots)
        here = np.zeros(lanes.warp_count * 32, np.bool_)
        here[lanes.slots] = True
        return take, held, bool(here.take(take).all())


def _sources(mode: str, lane: Array, operand: Array | np.int64, clamp: Array | np.int64) -> tuple[Array, Array]:
    """The source lane, and whether it is in range."""
    segment, bound = (clamp >> 8) & 31, clamp & 31
    highest = (lane & segment) | (bound & ~segment & 31)
    lowest = lane & segment
    distance = operand & 31
    if mode == "up":
        source = lane - distance
        held = source >= highest
    elif mode == "down":
        source = lane + distance
        held = source <= highest
    elif mode == "bfly":
        source = lane ^ distance
        held = source <= highest
    else:
        source = lowest | (distance & ~segment & 31)
        held = source <= highest
    return np.where(held, source, lane), held


def shuffle_sources(instruction: Instruction, lanes: LaneSet, lane: Array, clamp: Array) -> Array:
    """The lane of its warp that each of these lanes reads in a shuffle; ``lane`` and ``clamp`` are the operands."""
    mode = next(m for m in instruction.modifiers if m in _MODES)
    source, _ = _sources(mode, lanes.laneid, lane.astype(np.int64), clamp.astype(np.int64))
    return source


# ---- votes and similar instructions ----


def ballot(lanes: LaneSet, held: Array) -> Array:
    """The lanes whose predicate is true, as bits, one uint32 per warp."""
    table = lanes.pad(np.broadcast_to(held, (lanes.count,)), False)
    packed = np.packbits(np.ascontiguousarray(table), axis=1, bitorder="little")
    found: Array = packed.view(np.uint32)[:, 0]
    return found


def build_vote(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("pred", "b32")
    mode = _synchronous(modifiers, "all", "any", "uni", "ballot")
    if (mode == "ballot") != (kind == "b32"):
        modifiers.refuse(f"type .{kind}")
    site = c.site(instruction, "vote")

    def vote(f: Fragment, held: Array, mask: Array) -> Array:
        lanes = f.lanes
        _meet(f, site)
        bits: Array = lanes.spread(ballot(lanes, held)) & mask
        if mode == "ballot":
            return bits
        if mode == "any":
            return np.not_equal(bits, 0)
        members = lanes.spread(lanes.present) & mask
        unanimous = np.equal(bits, members)
        return unanimous if mode == "all" else unanimous | np.equal(bits, 0)

    held, mask = c.source(instruction.operands[1], "pred"), c.source(instruction.operands[2], "b32")
    return c.store(instruction.operands[0], "b32" if mode == "ballot" else "pred", f"{c.bind(vote)}(f, {held}, {mask})")


def build_activemask(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    modifiers.kind("b32")
    modifiers.finish()

    def active(f: Fragment) -> Array:
        return f.lanes.spread(f.lanes.present)

    return c.store(instruction.operands[0], "b32", f"{c.bind(active)}(f)")


def build_match(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("b32", "b64")
    mode = _synchronous(modifiers, "any", "all")
    site = c.site(instruction, "match")

    def match(f: Fragment, value: Array, mask: Array) -> tuple[Array, Array]:
        lanes = f.lanes
        _meet(f, site)
        table = lanes.pad(np.broadcast_to(value, (lanes.count,)))
        present = lanes.spread(lanes.present) & mask
        equal = table[:, :, None] == table[:, None, :]
        packed = np.packbits(equal, axis=2, bitorder="little").view(np.uint32)[:, :, 0]
        bits = lanes.unpad(packed) & present
        if mode == "any":
            return bits, bits == present
        same = bits == present
        return np.where(same, bits, np.uint32(0)), same

    value, mask = c.source(instruction.operands[1], kind), c.source(instruction.operands[2], "b32")
    targets = _targets(instruction.operands[0])
    if mode == "any" and isinstance(instruction.operands[0], Pair):
        modifiers.refuse("match.any has no predicate result")
    return c.store_all(targets, ("b32", "pred"), f"{c.bind(match)}(f, {value}, {mask})")


def build_redux(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u32", "s32", "b32", "f32")
    absolute, nan = modifiers.flag("abs"), modifiers.flag("NaN")
    operation = _synchronous(modifiers, "add", "min", "max", "and", "or", "xor")
    allowed = ("and", "or", "xor") if kind == "b32" else ("min", "max") if kind == "f32" else ("add", "min", "max")
    if operation not in allowed or (kind != "f32" and (absolute or nan)):
        modifiers.refuse(f"{operation} of .{kind}")
    register = Register("%v", "b32")
    kinds = ("NaN", kind) if nan else (kind,)
    run = compile_lanewise(Instruction(operation, kinds, (register, register, register), None, None, instruction.line))
    if run is None:
        raise refused(instruction)
    combine = run
    site = c.site(instruction, "reduction")

    def redux(f: Fragment, value: Array, mask: Array) -> Array:
        lanes = f.lanes
        _meet(f, site)
        values = np.broadcast_to(value & np.uint32(0x7FFFFFFF) if absolute else value, (lanes.count,))
        masks = np.broadcast_to(mask, (lanes.count,))
        out = np.empty(lanes.count, np.uint32)
        for member_mask in np.unique(masks):
            mine = np.flatnonzero(masks == member_mask)
            ranks = lanes.warp_rank[mine]
            rows = np.unique(ranks)
            table = lanes.pad(values)[rows]
            members = (lanes.present[rows] & member_mask)[:, None] & _BIT != 0
            result = table[np.arange(len(rows)), members.argmax(axis=1)]
            started = np.zeros(len(rows), np.bool_)
            for lane in range(32):
                with_lane = members[:, lane]
                combined = combine(result, table[:, lane])
                result = np.where(with_lane & started, combined, result)
                started |= with_lane
            out[mine] = result[np.searchsorted(rows, ranks)]
        return out

    value, mask = c.source(instruction.operands[1], "b32"), c.source(instruction.operands[2], "b32")
    return c.store(instruction.operands[0], "b32", f"{c.bind(redux)}(f, {value}, {mask})")


def build_elect(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    modifiers.flag("sync")
    modifiers.finish()
    if not isinstance(instruction.operands[0], Pair):
        modifiers.refuse("its destination is a lane and a predicate, lane|p")

    def elect(f: Fragment, mask: Array) -> tuple[Array, Array]:
        lanes = f.lanes
        members = lanes.spread(lanes.present) & mask
        # the lowest member is elected
        lowest = members & (~members + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.uint32)
        return leader, lanes.laneid.astype(np.uint32) == leader

    mask = c.source(instruction.operands[1], "b32")
    return c.store_all(_targets(instruction.operands[0]), ("b32", "pred"), f"{c.bind(elect)}(f, {mask})")


# ---- barriers ----


def end_with_barrier(c: Emitter, block: BasicBlock, instruction: Instruction) -> None:
    """End a basic block with a barrier of the thread block."""
    if row_of(instruction).ends is Flow.CLUSTER:
        site = c.site(instruction, "barrier")
        end_with_cluster_barrier(c, block, instruction, lambda f: _count(f, site))
        return
    # bar.x is barrier.x.aligned
    aligned = instruction.opcode == "bar"
    read = Modifiers(instruction)
    read.flag("cta")
    if not aligned:
        aligned = read.flag("aligned")
    what = read.one_of("sync", "arrive", "red")
    reduce = read.one_of("popc", "and", "or") if what == "red" else ""
    if reduce:
        read.kind("u32" if reduce == "popc" else "pred")
    read.finish()
    if not what or (what == "red") != bool(reduce):
        read.refuse("unknown form")
    operands = list(instruction.operands)
    block.kind = BARRIER
    site = c.site(instruction, "barrier")
    if reduce:
        target = operands.pop(0)
        predicate = operands.pop()
    number = function(c, operands[0] if operands else Immediate(0, "s64"), "u32")
    count = function(c, operands[1] if len(operands) > 1 else Immediate(0, "s64"), "u32")

    def which(f: Fragment) -> Any:
        _count(f, site)
        return number(f, f.regs)

    call = BarrierCall(instruction, which, lambda f: count(f, f.regs), what != "arrive", aligned)
    if reduce:
        held = function(c, predicate, "pred")
        call.reduce = reduce
        call.value = lambda f: held(f, f.regs)
        if not isinstance(target, Register):
            raise refused(instruction, "no destination")
        call.slot = c.slot(target)
    block.barrier = call


def build_bar_warp(c: Emitter, instruction: Instruction) -> list[str]:
    """bar.warp.sync: when it runs, its basic block has already waited for the lanes of its mask."""

    def sync(f: Fragment) -> None:
        if f.batch.guard is not None:
            f.batch.guard.warp_sync(f.lanes)

    return [f"{c.bind(sync)}(f)"]


BUILDERS = {"shfl.sync": build_shfl, "vote.sync": build_vote, "match.sync": build_match, "redux.sync": build_redux}
BUILDERS |= {"activemask": build_activemask, "elect.sync": build_elect, "bar.warp": build_bar_warp}
