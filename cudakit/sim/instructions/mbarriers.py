"""Builders for mbarrier objects: mbarrier.*, cp.async.mbarrier.arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.mbarriers import BYTES, pending_count, phases_of
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_WINDOW
from cudakit.sim.lockstep.phases import PhaseWait
from cudakit.sim.lockstep.pieces import CLUSTER, GENERIC, SHARED, positions
from cudakit.sim.lockstep.program import WAIT, BasicBlock, WaitCall
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.transfers import LateArrival
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Operand, Register, Symbol, refused
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.ptx.types import bits_of

Places = Callable[[Fragment, Array], Array]


def barrier_places(c: Emitter, operand: Operand | None, site: Site, space: str) -> tuple[str, Places]:
    """An expression for the address of an mbarrier, and a function from it to the first byte of each lane's object in
    the batch's shared memory. ``space``: SHARED, CLUSTER or GENERIC."""
    address, offset = c.address(operand, site.instruction)
    base = operand.base if isinstance(operand, Address) else operand
    if isinstance(base, Symbol):
        space = SHARED
    access = MemoryAccess(site, space, offset, BYTES, 1)

    def places(f: Fragment, value: Array) -> Array:
        lanes = f.lanes
        if space == GENERIC:
            start = np.broadcast_to(value, (lanes.count,)).astype(np.uint64) + np.uint64(offset % (1 << 64))
            wrong = np.flatnonzero((start < np.uint64(SHARED_WINDOW)) | (start >= np.uint64(LOCAL_WINDOW)))
            if len(wrong):
                f.fail(
                    site.instruction,
                    "out of bounds",
                    f"{site.kind} at the generic address {int(start[wrong[0]]):#x}, which is not in shared memory: "
                    "mbarriers live in shared memory",
                    int(wrong[0]),
                    wrong,
                    address=int(start[wrong[0]]),
                    size=BYTES,
                    access=site.kind,
                )
            pieces = access.shared_pieces(f, lanes, value, SHARED_WINDOW)
        else:
            pieces = access.locate(f, lanes, value)
        out = np.empty(lanes.count, np.int64)
        for piece in pieces:
            found = positions(piece.index, piece.lanes.count) * BYTES
            out[slice(None) if piece.choice is None else piece.choice] = found
        return out

    return address, places


def space_of(modifiers: Modifiers, *, remote: bool) -> str:
    """Take the state space of an mbarrier operand; ``remote``: it may be in another block of the cluster."""
    if remote and modifiers.flag("shared::cluster"):
        return CLUSTER
    return SHARED if modifiers.one_of("shared", "shared::cta") else GENERIC


def _lanes(value: Any, f: Fragment, dtype: Any = np.int64) -> Array:
    found: Array = np.broadcast_to(value, (f.lanes.count,)).astype(dtype)
    return found


def _tally(f: Fragment, site: Site) -> None:
    if f.batch.run.counting:
        tally = f.batch.run.tally(site)
        tally.requests += f.lanes.warp_count
        tally.lanes += f.lanes.count


def build_init(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = _begin(instruction, "init")
    space = space_of(modifiers, remote=False)
    modifiers.finish()
    site = c.site(instruction, "mbarrier.init")
    address, places = barrier_places(c, instruction.operands[0], site, space)

    def init(f: Fragment, at: Array, count: Array) -> None:
        f.batch.asynchrony.mbarriers.init(f, site, f.lanes, places(f, at), _lanes(count, f))

    return [f"{c.bind(init)}(f, {address}, {c.source(instruction.operands[1], 'u32')})"]


def build_inval(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = _begin(instruction, "inval")
    space = space_of(modifiers, remote=False)
    modifiers.finish()
    site = c.site(instruction, "mbarrier.inval")
    address, places = barrier_places(c, instruction.operands[0], site, space)

    def invalidate(f: Fragment, at: Array) -> None:
        f.batch.asynchrony.mbarriers.invalidate(f, site, f.lanes, places(f, at))

    return [f"{c.bind(invalidate)}(f, {address})"]


def build_transaction(c: Emitter, instruction: Instruction) -> list[str]:
    """mbarrier.expect_tx and mbarrier.complete_tx."""
    modifiers = Modifiers(instruction)
    modifiers.kind("b64")
    verb = modifiers.one_of("expect_tx", "complete_tx")
    ordered, scope = modifiers.flag("relaxed"), modifiers.one_of("cta", "cluster")
    space = space_of(modifiers, remote=True)
    modifiers.finish()
    if ordered != bool(scope):
        modifiers.refuse(".relaxed and a scope need each other")
    site = c.site(instruction, f"mbarrier.{verb}")
    address, places = barrier_places(c, instruction.operands[0], site, space)

    def transaction(f: Fragment, at: Array, size: Array) -> None:
        mbarriers = f.batch.asynchrony.mbarriers
        change = mbarriers.expect if verb == "expect_tx" else mbarriers.complete
        change(f, site, f.lanes, places(f, at), _lanes(size, f))

    return [f"{c.bind(transaction)}(f, {address}, {c.source(instruction.operands[1], 'u32')})"]


def build_arrive(c: Emitter, instruction: Instruction) -> list[str]:
    """mbarrier.arrive and mbarrier.arrive_drop, with .expect_tx and .noComplete."""
    modifiers = Modifiers(instruction)
    modifiers.kind("b64")
    verb = modifiers.one_of("arrive", "arrive_drop")
    expects, no_complete = modifiers.flag("expect_tx"), modifiers.flag("noComplete")
    order, scope = modifiers.one_of("release", "relaxed"), modifiers.one_of("cta", "cluster")
    space = space_of(modifiers, remote=True)
    modifiers.finish()
    operands = list(instruction.operands)
    target = operands.pop(0) if len(operands) > 1 and not _is_address(operands[0]) else None
    given = operands[1] if len(operands) > 1 else None
    if bool(order) != bool(scope) or (expects and no_complete) or ((expects or no_complete) and given is None):
        modifiers.refuse("unknown form")
    if no_complete and (order == "relaxed" or scope == "cluster"):
        modifiers.refuse(f".noComplete with .{order}.{scope}: it is .release.cta")
    if space == CLUSTER and (target is not None or no_complete):
        modifiers.refuse("an arrival at another block's mbarrier returns no state: write _ as the destination")
    site = c.site(instruction, f"mbarrier.{verb}")
    address, places = barrier_places(c, operands[0], site, space)

    def arrive(f: Fragment, at: Array, value: Array) -> Array:
        _tally(f, site)
        values, count = _lanes(value, f), f.lanes.count
        found: Array = f.batch.asynchrony.mbarriers.arrive(
            f,
            site,
            f.lanes,
            places(f, at),
            np.ones(count, np.int64) if expects else values,
            values if expects else None,
            drop=verb == "arrive_drop",
            completes=not no_complete,
        )
        return found

    value = c.bind(np.uint32(1)) if given is None else c.source(given, "u32")
    call = f"{c.bind(arrive)}(f, {address}, {value})"
    return [call] if target is None else c.store(target, "b64", call)


def _is_address(operand: Operand | None) -> bool:
    return operand is not None and not isinstance(operand, (Register, Immediate))


def build_pending_count(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = _begin(instruction, "pending_count")
    modifiers.finish()
    target, state = instruction.operands
    return c.store(target, "u32", f"{c.bind(pending_count)}({c.source(state, 'b64')})")


def _begin(instruction: Instruction, verb: str) -> Modifiers:
    modifiers = Modifiers(instruction)
    modifiers.kind("b64")
    if not modifiers.flag(verb):
        modifiers.refuse("unknown form")
    return modifiers


# ---- waits ----


class _PhaseWaits:
    """mbarrier.test_wait or mbarrier.try_wait: expressions for the address and for the parity or state, and a function
    from these to a fragment's wait."""

    def __init__(self, c: Emitter, instruction: Instruction, verb: str) -> None:
        modifiers = _begin(instruction, verb)
        self.named = modifiers.flag("parity")
        order, scope = modifiers.one_of("acquire", "relaxed"), modifiers.one_of("cta", "cluster")
        space = space_of(modifiers, remote=False)
        modifiers.finish()
        if bool(order) != bool(scope):
            modifiers.refuse("unknown form")
        self.site = c.site(instruction, f"mbarrier.{verb}")
        self.address, self.places = barrier_places(c, instruction.operands[1], self.site, space)
        self.state = c.source(instruction.operands[2], "u32" if self.named else "b64")

    def start(self, f: Fragment, at: Array, value: Array) -> PhaseWait:
        phase = _lanes(value, f) if self.named else _lanes(phases_of(np.asarray(value)), f)
        checked = "barrier" in f.batch.run.checks
        if self.named and checked:
            _check_parity(f, self.site, phase)
        wait = PhaseWait.start(f, self.site, self.places(f, at), phase & 1, named=self.named)
        if checked and not self.named:
            _check_state(f, self.site, wait, phase)
        if f.batch.run.counting:
            tally = f.batch.run.tally(self.site)
            tally.requests += f.lanes.warp_count
            ready = wait.ready()
            tally.ready += int(np.count_nonzero(np.logical_and.reduceat(ready, f.lanes.warp_starts)))
        return wait


def _check_parity(f: Fragment, site: Site, values: Array) -> None:
    wrong = np.flatnonzero((values < 0) | (values > 1))
    if len(wrong):
        detail = f"{site.kind}: a parity of {int(values[wrong[0]])}; it is 0 or 1"
        f.fail(site.instruction, "mbarrier parity", detail, int(wrong[0]), wrong)


def _check_state(f: Fragment, site: Site, wait: PhaseWait, phases: Array) -> None:
    """Report a state of an arrival that is neither of the current phase nor of the one before."""
    now = np.array([barrier.phase for barrier in wait.objects]).take(wait.which)
    wrong = np.flatnonzero((now - phases) & 3 > 1)
    if len(wrong):
        barrier = wait.objects[int(wait.which[wrong[0]])]
        f.fail(
            site.instruction,
            "mbarrier phase missed",
            f"{site.kind}: the state is of an arrival at another phase of {barrier.named()} than the current one, "
            f"{barrier.phase}, and the one before",
            int(wrong[0]),
            wrong,
            notes=["pass the state that the last arrival returned"],
        )


def build_test_wait(c: Emitter, instruction: Instruction) -> list[str]:
    waits = _PhaseWaits(c, instruction, "test_wait")

    def test(f: Fragment, at: Array, value: Array) -> Array:
        wait = waits.start(f, at, value)
        mask = wait.ready()
        wait.passed(f.lanes, mask)
        if not mask.all():
            f.batch.asynchrony.polls(wait)
        return mask

    return c.store(instruction.operands[0], "pred", f"{c.bind(test)}(f, {waits.address}, {waits.state})")


def end_with_wait(c: Emitter, block: BasicBlock, instruction: Instruction) -> None:
    """End a basic block with mbarrier.try_wait."""
    target = instruction.operands[0]
    if not isinstance(target, Register):
        raise refused(instruction, "no destination")
    waits = _PhaseWaits(c, instruction, "try_wait")
    text = f"lambda f, r: {c.bind(waits.start)}(f, {waits.address}, {waits.state})"
    start: Callable[[Fragment, Registers], PhaseWait] = eval(text, c.program.namespace)
    block.kind = WAIT
    block.wait = WaitCall(c.slot(target), lambda f: start(f, f.regs))


# ---- cp.async ----


def build_copy_arrive(c: Emitter, instruction: Instruction) -> list[str]:
    """cp.async.mbarrier.arrive: an arrival once the thread's earlier cp.async copies are complete. Without .noinc the
    pending count is first raised by one."""
    modifiers = Modifiers(instruction)
    modifiers.kind("b64")
    parts = [modifiers.flag(name) for name in ("async", "mbarrier", "arrive")]
    extra = not modifiers.flag("noinc")
    space = space_of(modifiers, remote=False)
    modifiers.finish()
    if not all(parts):
        modifiers.refuse("unknown form")
    base = instruction.operands[0].base if isinstance(instruction.operands[0], Address) else None
    if isinstance(base, Register) and bits_of(base.type) == 32:
        # ptxas allows it without .shared, and uses it as an address in shared memory
        space = SHARED
    site = c.site(instruction, "cp.async.mbarrier.arrive")
    address, places = barrier_places(c, instruction.operands[0], site, space)

    def arrive(f: Fragment, at: Array) -> None:
        asynchrony, lanes = f.batch.asynchrony, f.lanes
        until = f.batch.copies.issued if f.batch.copies is not None else 0
        for number, position in enumerate(places(f, at).tolist()):
            barrier = asynchrony.mbarriers.find(f, site, lanes, number, position)
            if extra:
                asynchrony.mbarriers.raise_pending(f, site, lanes, number, barrier)
            asynchrony.add(LateArrival(f, site, int(lanes.lanes[number]), barrier, until))

    return [f"{c.bind(arrive)}(f, {address})"]


BUILDERS = {
    "mbarrier.init": build_init,
    "mbarrier.inval": build_inval,
    "mbarrier.expect_tx": build_transaction,
    "mbarrier.complete_tx": build_transaction,
    "mbarrier.arrive": build_arrive,
    "mbarrier.arrive_drop": build_arrive,
    "mbarrier.pending_count": build_pending_count,
    "mbarrier.test_wait": build_test_wait,
    "cp.async.mbarrier": build_copy_arrive,
}
