"""cp.async: copies from global to shared memory. Each takes effect when its own thread waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet, choose
from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.pieces import GLOBAL, SHARED, positions
from cudakit.sim.ptx.ir import Instruction, Register, refused
from cudakit.sim.ptx.modifiers import PREFETCH_SIZES, Modifiers


class _Copy(NamedTuple):
    """A copy by each of some lanes (``ids``) to ``places`` of a view, in each lane's group; the ``number``-th
    that was issued."""

    ids: Array
    group: Array
    view: Array
    places: Array
    data: Array
    access: MemoryAccess
    number: int

    def part(self, mask: Array) -> _Copy:
        """The copies of the lanes in a mask."""
        ids, group, places, data = self.ids[mask], self.group[mask], self.places[mask], self.data[mask]
        return self._replace(ids=ids, group=group, places=places, data=data)


class PendingCopies:
    """cp.async copies of a batch. Each takes effect only when its own thread waits for it, so a missing wait is
    found."""

    def __init__(self, batch: Batch) -> None:
        # how many groups each lane has committed
        self.committed = np.zeros(batch.geometry.lanes, np.int64)
        self.copies: list[_Copy] = []
        # how many instructions have issued copies
        self.issued = 0

    def issue(self, lanes: LaneSet, view: Array, index: Array, data: Array, access: MemoryAccess) -> None:
        """Record copies of ``data`` by these lanes to the places ``index`` of a view of shared memory."""
        ids = lanes.lanes
        self.copies.append(_Copy(ids, self.committed[ids], view, index, data, access, self.issued))
        self.issued += 1

    def commit(self, lanes: LaneSet) -> None:
        self.committed[lanes.lanes] += 1

    def wait(self, f: Fragment, pending: int | None) -> None:
        """Finish these lanes' copies, except their newest ``pending`` groups; None: all copies, committed or not."""
        waiting = np.full(len(self.committed), -1, np.int64)
        ids = f.lanes.lanes
        waiting[ids] = np.iinfo(np.int64).max if pending is None else self.committed[ids] - pending
        self._finish(f, lambda copy: copy.group < waiting[copy.ids])

    def finish(self, f: Fragment, until: int) -> None:
        """Finish these lanes' copies among the first ``until`` that were issued."""
        mine = np.zeros(len(self.committed), np.bool_)
        mine[f.lanes.lanes] = True
        self._finish(f, lambda copy: mine[copy.ids] & (copy.number < until))

    def _finish(self, f: Fragment, chosen: Callable[[_Copy], Array]) -> None:
        guard, left = f.batch.guard, []
        for copy in self.copies:
            done = chosen(copy)
            if not done.any():
                left.append(copy)
                continue
            copy.view[copy.places[done]] = copy.data[done]
            if guard is not None:
                guard.land(copy.ids[done], copy.places[done], copy.access)
            rest = ~done
            if rest.any():
                left.append(copy.part(rest))
        self.copies = left


def build_commit(c: Emitter, instruction: Instruction) -> list[str]:
    return [f"{c.bind(_commit)}(f)"]


def build_wait_all(c: Emitter, instruction: Instruction) -> list[str]:
    return [f"{c.bind(_wait_all)}(f)"]


def build_wait(c: Emitter, instruction: Instruction) -> list[str]:
    return [f"{c.bind(_wait_for)}(f, {c.source(instruction.operands[0], 'u64')})"]


def build_cp(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    modifiers.flag("async")
    cache = modifiers.one_of("ca", "cg")
    shared, source_space = modifiers.one_of("shared", "shared::cta"), modifiers.flag("global")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.one_of(*PREFETCH_SIZES)
    modifiers.finish()
    operands = instruction.operands[: len(instruction.operands) - policy]
    if not (cache and shared and source_space and 3 <= len(operands) <= 4):
        modifiers.refuse("unknown form")
    if cache == "cg" and getattr(operands[2], "bits", 0) != 16:
        modifiers.refuse(".cg copies 16 bytes")
    target, source, size = operands[:3]
    total = getattr(size, "bits", 0)
    if total not in (4, 8, 16):
        raise refused(instruction, "the copy size must be 4, 8 or 16 bytes")
    to, to_offset = c.address(target, instruction)
    at, at_offset = c.address(source, instruction)
    site = c.site(instruction, "cp.async load")
    reading = MemoryAccess(site, GLOBAL, at_offset, 4, total // 4)
    writing = MemoryAccess(c.site(instruction, "cp.async store"), SHARED, to_offset, 4, total // 4)
    limit = "None"
    if len(operands) > 3:
        extra = operands[3]
        predicate = isinstance(extra, Register) and extra.type == "pred"
        limit = c.source(extra, "pred" if predicate else "u32")
        if predicate:
            limit = f"{c.bind(_ignored(total))}({limit})"
    return [f"{c.bind(_copy(reading, writing))}(f, {to}, {at}, {limit})"]


def _ignored(total: int) -> Callable[[Array], Array]:
    return lambda ignore: np.where(ignore, np.uint32(0), np.uint32(total))


def _copies(f: Fragment) -> PendingCopies:
    if f.batch.copies is None:
        f.batch.copies = PendingCopies(f.batch)
    found: PendingCopies = f.batch.copies
    return found


def _commit(f: Fragment) -> None:
    _copies(f).commit(f.lanes)


def _wait_all(f: Fragment) -> None:
    _copies(f).wait(f, None)


def _wait_for(f: Fragment, pending: Any) -> None:
    _copies(f).wait(f, int(pending))


def _copy(reading: MemoryAccess, writing: MemoryAccess) -> Callable[[Fragment, Array, Array, Any], None]:
    def copy(f: Fragment, to: Array, at: Array, limit: Any) -> None:
        lanes, count = f.lanes, reading.count
        if limit is None:
            data = np.array(np.broadcast_to(reading.load(f, at), (lanes.count, count) if count > 1 else lanes.count))
        else:
            data = _read_part(f, reading, at, np.broadcast_to(limit, lanes.count))
        f.batch.progress += 1
        for piece in writing.locate(f, lanes, to):
            if f.batch.guard is not None:
                f.batch.guard.issue(f, writing, piece)
            choice, part = piece.choice, piece.lanes
            places = positions(piece.index, part.count)
            _copies(f).issue(part, piece.view, places, data if choice is None else data[choice], writing)

    return copy


def _read_part(f: Fragment, reading: MemoryAccess, at: Array, limit: Array) -> Array:
    """Load only the first ``limit`` bytes of each lane; the rest becomes zero and is not read."""
    lanes, count = f.lanes, reading.count
    data = np.zeros((lanes.count, count) if count > 1 else lanes.count, np.uint32)
    full = limit >= reading.size
    if full.any():
        choice, part = lanes.subset(full)
        borrowed = f.borrow(choice, part, ())
        data[choice] = reading.load(borrowed, choose(at, choice))
    space = f.batch.run.space
    raw = data.view(np.uint8).reshape(lanes.count, -1)
    addresses = np.broadcast_to(at, lanes.count)
    for position in np.flatnonzero(~full & (limit > 0)):
        start, size = int(addresses[position]) + reading.offset, int(limit[position])
        try:
            allocation = space.covering(start, size)
            if allocation.bounds is not None and not allocation.bounds.holds(start, size):
                raise MemoryFault("out of bounds", start, size, allocation)
            raw[position, :size] = space.bytes(start, size)
        except MemoryFault as fault:
            f.fail_access(reading.site, fault, GLOBAL, int(position), 1)
    return data


BUILDERS = {"cp.async": build_cp, "cp.async.commit_group": build_commit}
BUILDERS |= {"cp.async.wait_all": build_wait_all, "cp.async.wait_group": build_wait}
