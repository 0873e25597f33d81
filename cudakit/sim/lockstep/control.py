"""The scheduler: which lanes run next, where they part and meet, barriers, and an end of patience with those that hang.

Fragments that are furthest behind in the program run first, so that lanes that parted meet again where their ways join.
A fragment that keeps jumping backwards while others wait is tired after a while and lets them go first, so a lane that
spins on a lock never starves the one that holds it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.barriers import BarrierCall, BarrierState, check_alignment, tell_checks
from cudakit.sim.lockstep.branches import run_aside
from cudakit.sim.lockstep.clusters import ClusterBarrier
from cudakit.sim.lockstep.fragment import Batch, Fragment, Frame, Registers, divide, unite
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.program import BARRIER, BRANCH, CALL, CLUSTER, EXIT, FALL, JUMP, SWITCH, Block, Program

Key = tuple[int, tuple[int, ...]]

# backward jumps before a fragment lets others go first: in a loop that waits for other lanes, and in any other
_TIRED_SPIN = 4
_TIRED = 4096
# backward jumps without any progress before waiting lanes count as hanging
_HANG_SPIN = 20_000
_HANG = 20_000_000
_STACK_DEPTH = 4096


def _varies(values: Array) -> bool:
    return values.ndim > 0 and bool((values != values[0]).any())


def _is_warp_barrier(f: Fragment) -> bool:
    block = f.program.blocks[f.block]
    return bool(block.instructions) and block.instructions[0].opcode == "bar"


class Scheduler:
    """Runs one batch to its end."""

    def __init__(self, batch: Batch, program: Program, remaining: int) -> None:
        self.batch = batch
        self.run = batch.run
        self.remaining = remaining
        self.pending: dict[Key, list[Fragment]] = {}
        self.deferred: dict[tuple[int, ...], list[Fragment]] = {}
        self.barriers: dict[int, BarrierState] = {}
        self.cluster = ClusterBarrier(batch) if batch.run.cluster_barriers else None
        self.counts = batch.run.block_counts
        # backward jumps since the batch last got on, in loops that do not wait for other lanes and in those that do
        self.idle_jumps = [0, 0]
        self.seen_progress = 0
        self.snapshot: tuple[Any, ...] | None = None
        frame = Frame(program, list(program.template), -1, 0)
        self.add(Fragment(batch, batch.geometry.all, [frame], 0, 0))

    def add(self, fragment: Fragment) -> None:
        key = (fragment.epoch, fragment.path())
        self.pending.setdefault(key, []).append(fragment)

    # ---- choosing ----

    def loop(self) -> None:
        """Run until every lane has exited; KernelFault where that cannot be."""
        while True:
            if not self.pending:
                if self.release():
                    continue
                if self.deferred:
                    if self.meet():
                        continue
                    path = min(self.deferred)
                    waiting = self.deferred.pop(path)
                    self.advance(waiting[0] if len(waiting) == 1 else unite(waiting), forced=True)
                    continue
                if self.batch.live:
                    self.deadlock()
                return
            key = min(self.pending)
            waiting = self.pending.pop(key)
            if self.deferred:
                waiting += self.deferred.pop(key[1], [])
            self.advance(waiting[0] if len(waiting) == 1 else unite(waiting))

    def advance(self, f: Fragment, forced: bool = False) -> None:
        """Run a fragment until it ends, waits, parts, or others are behind it."""
        counts, pending = self.counts, self.pending
        while True:
            program = f.program
            block = program.blocks[f.block]
            if block.sync is not None and not f.released and not self.gathered(f, block):
                if not forced:
                    self.deferred.setdefault(f.path(), []).append(f)
                    return
                if "warp" in self.run.checks:
                    self.incomplete(f, block)
            forced = f.released = False
            lanes = f.lanes
            count = counts[block.number]
            if count is None:
                count = counts[block.number] = [0, 0, 0]
            count[0] += lanes.warp_count
            count[1] += lanes.count
            if block.body is not None:
                block.body(f, f.regs)
            kind = block.kind
            if kind == FALL:
                f.block = block.fall
            elif kind == JUMP:
                if block.target <= f.block and self.jumped_back(f, block):
                    f.block = block.target
                    self.add(f)
                    return
                f.block = block.target
            elif kind == BRANCH:
                held = f.regs[block.slot]
                if held.ndim == 0:
                    taken = bool(held) != block.negated
                else:
                    yes = int(np.count_nonzero(held))
                    some = 0 < yes < lanes.count
                    if some and not run_aside(self, f, block, held):
                        self.part(f, block, held)
                        return
                    taken = some or (yes > 0) != block.negated
                if taken:
                    if block.target <= f.block and self.jumped_back(f, block):
                        f.block = block.target
                        self.add(f)
                        return
                    f.block = block.target
                else:
                    f.block = block.fall
            elif kind == BARRIER:
                call: BarrierCall = block.barrier
                f.block = block.fall
                if not self.arrive(f, call):
                    return
            elif kind == CALL:
                self.call(f, block)
            elif kind == EXIT:
                self.leave(f)
                return
            elif kind == SWITCH:
                if not self.switch(f, block):
                    return
            elif kind == CLUSTER:
                f.block = block.fall
                if self.cluster is not None and not self.cluster.meet(self, f, block.barrier):
                    return
            elif not self.give_back(f):
                self.leave(f)
                return
            if pending or self.deferred:
                key = (f.epoch, f.path())
                if (pending and key >= min(pending)) or key[1] in self.deferred:
                    self.add(f)
                    return

    def leave(self, f: Fragment) -> None:
        self.batch.leave(f.lanes)
        if self.batch.guard is not None:
            self.batch.guard.leave(f)

    def part(self, f: Fragment, block: Block, held: Array) -> None:
        """Send the lanes of a fragment two ways."""
        found = f.lanes.split(held)
        if found.parted:
            count = self.counts[block.number]
            if count is not None:
                count[2] += found.parted
        taken, not_taken = (block.fall, block.target) if block.negated else (block.target, block.fall)
        back = min(taken, not_taken) <= f.block
        for choice, lanes, where in ((found.yes, found.set_yes, taken), (found.no, found.set_no, not_taken)):
            part = f.part(choice, lanes, where)
            part.jumps = f.jumps
            if back and where <= f.block:
                self.jumped_back(part, block, alone=False)
            self.add(part)

    def switch(self, f: Fragment, block: Block) -> bool:
        """Branch by an index; False where the lanes parted."""
        index = f.regs[block.slot]
        targets = block.targets
        if int(index.max()) >= len(targets):
            f.fail(block.instructions[-1], "bad branch index", f"index {int(index.max())} of {len(targets)} targets")
        if index.ndim == 0 or int(index.min()) == int(index.max()):
            f.block = targets[int(index if index.ndim == 0 else index[0])]
            return True
        parted = np.unique(f.lanes.warp_rank[index != f.lanes.spread(index.take(f.lanes.warp_starts))])
        count = self.counts[block.number]
        if count is not None:
            count[2] += len(parted)
        for value in np.unique(index):
            choice, lanes = f.lanes.subset(index == value)
            self.add(f.part(choice, lanes, targets[int(value)]))
        return False

    def call(self, f: Fragment, block: Block) -> None:
        callee = block.callee
        if callee is None:
            raise RuntimeError(f"call of {block.barrier} was not linked")
        regs: Registers = list(callee.template)
        for slot, argument in zip(callee.params, block.arguments, strict=True):
            regs[slot] = f.regs[argument]
        base = f.frames[-1].local_base + f.program.local_bytes
        if base + callee.local_bytes > self.run.local_bytes or len(f.frames) > _STACK_DEPTH:
            f.fail(
                block.instructions[-1],
                "stack overflow",
                f"calls are {len(f.frames)} deep and need more than the {self.run.local_bytes} bytes of local memory a "
                "thread has here: end the recursion sooner, or raise the stack limit",
                lanes=f.lanes.count,
            )
        # where the caller goes on; its results are fetched on return
        f.frames = [*f.frames, Frame(callee, regs, block.fall, base)]
        f.frames[-2] = Frame(f.program, f.regs, f.frames[-2].resume, f.frames[-2].local_base)
        f.program, f.regs, f.block = callee, regs, 0
        f.jumps = 0
        if self.batch.guard is not None:
            self.batch.guard.enter(f.lanes, base, callee.local_bytes)

    def give_back(self, f: Fragment) -> bool:
        """Return to the caller; False at the end of the kernel itself."""
        if len(f.frames) == 1:
            return False
        done = f.frames[-1]
        f.frames = f.frames[:-1]
        caller = f.frames[-1]
        f.program, f.regs, f.block = caller.program, caller.regs, done.resume
        block = caller.program.blocks[done.resume - 1]
        for slot, result in zip(block.results, done.program.returns, strict=True):
            f.regs[slot] = done.regs[result]
        return True

    # ---- patience ----

    def jumped_back(self, f: Fragment, block: Block, alone: bool = True) -> bool:
        """Note a backward jump; True where the fragment shall let others go first (its epoch is then raised)."""
        batch = self.batch
        if batch.progress != self.seen_progress:
            self.seen_progress = batch.progress
            self.idle_jumps = [0, 0]
        self.idle_jumps[block.spins] += 1
        f.jumps += 1
        if f.jumps < (_TIRED_SPIN if block.spins else _TIRED):
            return False
        f.jumps = 0
        if self.idle_jumps[block.spins] > (_HANG_SPIN if block.spins else _HANG):
            self.hang(f, block, "for too long")
        others = bool(self.pending) or bool(self.deferred)
        if alone and not others and not block.spins:
            self.look_for_cycle(f, block)
        waiting = others or bool(self.barriers)
        if waiting:
            self.release()
            f.epoch += 1
        return waiting and alone

    def look_for_cycle(self, f: Fragment, block: Block) -> None:
        """Where nobody else can run, a loop whose registers repeat while memory stays as it is never ends."""
        live = [f.regs[slot].tobytes() for slot in f.program.live[block.target]]
        state = (f.path(), id(f.lanes), live, self.batch.progress)
        if self.snapshot is not None and self.snapshot == state:
            self.hang(f, block, "and changes nothing")
        self.snapshot = state

    def hang(self, f: Fragment, block: Block, how: str) -> None:
        notes = [
            "the compiler keeps a load or store of the loop only where it must: a flag that other threads change has "
            "to be volatile or atomic"
        ]
        waiting = sum(w.lanes.count for state in self.barriers.values() for w in state.waiting)
        waiting += sum(w.lanes.count for w in self.cluster.waiting) if self.cluster is not None else 0
        if waiting:
            notes.append(f"{waiting} lanes wait at a barrier meanwhile")
        if self.remaining:
            notes.append(
                f"{self.remaining} blocks of the grid have not started: blocks that wait for each other need a "
                "cooperative launch"
            )
        f.fail(
            block.instructions[-1] if block.instructions else None,
            "hang",
            f"a loop repeats {how}: in the compiled code no lane stores, exits or passes a barrier any more",
            lanes=f.lanes.count,
            notes=notes,
        )

    # ---- lanes that wait for each other ----

    def gathered(self, f: Fragment, block: Block) -> bool:
        """Whether all lanes that the instruction's member mask names are here, but for those that have exited."""
        lanes = f.lanes
        if lanes.complete or block.sync is None:
            return True
        live = self.batch.live_warps.take(lanes.warps)
        if (lanes.warp_counts.take(lanes.warps) == live).all():
            return True
        return not self.missing(f, block).any()

    def meet(self) -> bool:
        """Let lanes go on that wait for each other at different bar.warp.sync instructions; True where some did."""
        there = [f for fs in self.deferred.values() for f in fs if _is_warp_barrier(f)]
        bits = np.zeros(self.batch.geometry.warps, np.uint32)
        for f in there:
            bits[f.lanes.warps] |= f.lanes.present
        going = [f for f in there if not (self.missing(f, f.program.blocks[f.block]) & ~bits.take(f.lanes.warps)).any()]
        for f in going:
            self.deferred[f.path()].remove(f)
            f.released = True
        self.deferred = {path: fs for path, fs in self.deferred.items() if fs}
        for f in going:
            self.add(f)
        return bool(going)

    def missing(self, f: Fragment, block: Block) -> Array:
        """The lanes that the member mask names and that are alive elsewhere, as bits, one uint32 a warp."""
        lanes = f.lanes
        if block.sync is None:
            return np.zeros(lanes.warp_count, np.uint32)
        mask = np.broadcast_to(block.sync(f, f.regs), (lanes.count,))
        named = np.zeros(lanes.warp_count, np.uint32)
        np.bitwise_or.at(named, lanes.warp_rank, mask)
        missing: Array = named & ~lanes.present
        # lanes past the end of a partial warp, or gone, are never missed
        return missing & self.alive_bits(lanes) if missing.any() else missing

    def incomplete(self, f: Fragment, block: Block) -> NoReturn:
        """Lanes named by a member mask will never come."""
        instruction = block.instructions[0]
        missing = self.missing(f, block)
        warps = np.flatnonzero(missing)
        position = int(f.lanes.warp_starts[warps[0]])
        absent = [lane for lane in range(32) if int(missing[warps[0]]) >> lane & 1]
        f.fail(
            instruction,
            "lanes missing from a warp operation",
            f"the member mask of {instruction.name} names lanes that wait elsewhere and never come: "
            f"{', '.join(map(str, absent))} of this warp",
            position,
            int(np.isin(f.lanes.warp_rank, warps).sum()),
        )

    def alive_bits(self, lanes: LaneSet) -> Array:
        """One bit for each lane of these warps that waits somewhere else (or here)."""
        bits = np.zeros(self.batch.geometry.warps, np.uint32)
        everyone = [f for fs in (*self.pending.values(), *self.deferred.values()) for f in fs]
        everyone += [f for state in self.barriers.values() for f in state.waiting]
        everyone += self.cluster.waiting if self.cluster is not None else []
        for f in everyone:
            bits[f.lanes.warps] |= f.lanes.present
        return bits.take(lanes.warps)

    # ---- barriers ----

    def arrive(self, f: Fragment, call: BarrierCall) -> bool:
        """Bring a fragment to a barrier; True where it may go straight on."""
        number, count = call.number(f), call.count(f)
        f.jumps = 0
        batch = self.batch
        if call.reduce:
            f.value = np.broadcast_to(call.value(f), (f.lanes.count,))
        if _varies(number) or _varies(count):
            pairs = np.stack([np.broadcast_to(v, f.lanes.count) for v in (number, count)], axis=1)
            for pair in np.unique(pairs, axis=0):
                choice, lanes = f.lanes.subset((pairs == pair).all(axis=1))
                self.wait_at(f.part(choice, lanes, f.block) if call.waits else f, lanes, call, *map(int, pair))
        else:
            which = int(number if number.ndim == 0 else number[0])
            threads = int(count if count.ndim == 0 else count[0])
            if call.waits and threads == 0 and f.lanes.count == batch.live and which not in self.barriers:
                batch.progress += 1
                if batch.guard is not None:
                    batch.guard.barrier(None)
                if call.reduce:
                    f.regs[call.slot] = self.reduce(call, [(f, f.value)])[0]
                    f.value = None
                return True
            self.wait_at(f, f.lanes, call, which, threads)
        if not call.waits:
            self.release()
        return not call.waits

    def wait_at(self, f: Fragment, lanes: LaneSet, call: BarrierCall, number: int, threads: int) -> None:
        """Note the arrival of lanes at one barrier, and park their fragment there if they wait."""
        state = self.barriers.get(number)
        if state is None:
            state = self.barriers[number] = BarrierState(self.batch.geometry.blocks)
        here = lanes.block_counts
        state.arrived += here
        state.expected[here > 0] = min(threads, self.batch.geometry.threads)
        if self.batch.guard is not None:
            self.batch.guard.arrive(lanes, number)
        if call.waits:
            state.waiting.append(f)

    def release(self) -> bool:
        """Let go of every block whose threads have all arrived at a barrier; True where there was one."""
        released = self.cluster is not None and self.cluster.release(self)
        epoch = min((key[0] for key in self.pending), default=0)
        for number, state in list(self.barriers.items()):
            expected = np.where(state.expected, state.expected, self.batch.live_blocks)
            full = (state.arrived > 0) & (state.arrived >= expected)
            if not full.any():
                continue
            released = True
            self.batch.progress += 1
            going, staying = divide(state.waiting, lambda lanes, full=full: full.take(lanes.block))  # type: ignore[misc]
            tell_checks(self.batch, number, state, full, going)
            state.arrived[full] = 0
            state.waiting = staying
            if not staying and not state.arrived.any():
                del self.barriers[number]
            check_alignment(self.run, going, state.expected == 0)
            self.finish_reduction(going)
            for f in going:
                f.epoch, f.jumps, f.value = epoch, 0, None
                self.add(f)
        return released

    def finish_reduction(self, going: list[Fragment]) -> None:
        reducing = [f for f in going if f.value is not None]
        if not reducing:
            return
        calls = [f.program.blocks[f.block - 1].barrier for f in reducing]
        results = self.reduce(calls[0], [(f, f.value) for f in reducing])
        for f, call, result in zip(reducing, calls, results, strict=True):
            f.regs[call.slot] = result

    def reduce(self, call: BarrierCall, parts: list[tuple[Fragment, Array]]) -> list[Array]:
        """Reduce a predicate over each block; the result for each lane of each part."""
        blocks = self.batch.geometry.blocks
        votes = np.zeros(blocks, np.int64)
        lanes = np.zeros(blocks, np.int64)
        for f, value in parts:
            values = np.broadcast_to(value, (f.lanes.count,))
            votes += np.bincount(f.lanes.block, weights=values, minlength=blocks).astype(np.int64)
            lanes += f.lanes.block_counts
        result: Array
        if call.reduce == "popc":
            result = votes.astype(np.uint32)
        else:
            result = votes > 0 if call.reduce == "or" else votes == lanes
        return [result.take(f.lanes.block) for f, _ in parts]

    def deadlock(self) -> None:
        """Nothing can move, and lanes are left: they wait at barriers that others will never reach."""
        if not self.barriers and self.cluster is not None and self.cluster.waiting:
            self.cluster.deadlock()
        # where somebody waits, rather than where some have only arrived
        number, state = max(self.barriers.items(), key=lambda item: len(item[1].waiting))
        f = state.waiting[0] if state.waiting else None
        if f is None:
            raise RuntimeError("lanes are left, and none of them waits anywhere")
        call: BarrierCall = f.program.blocks[f.block - 1].barrier
        block = int(f.lanes.block[0])
        arrived = int(state.arrived[block])
        expected = int(state.expected[block]) or int(self.batch.live_blocks[block])
        notes = []
        for other_number, other in self.barriers.items():
            for w in other.waiting:
                inside = int((w.lanes.block == block).sum())
                if not inside:
                    continue
                wait: BarrierCall = w.program.blocks[w.block - 1].barrier
                places = self.run.place(wait.instruction)
                where = f"{places[0].file}:{places[0].line}" if places else wait.instruction.text.strip()
                notes.append(f"{inside} threads of this block wait at barrier {other_number}, {where}")
        f.fail(
            call.instruction,
            "deadlock",
            f"{arrived} threads of the block wait at barrier {number} for {expected}; the others are at another "
            "barrier or gone, and none can move",
            lanes=f.lanes.count,
            notes=notes,
        )
