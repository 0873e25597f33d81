"""The scheduler: which lanes run next, divergence and reconvergence, calls and barriers.

The fragments with the lowest position in the program run first, so that divergent lanes reconverge. A fragment that
keeps jumping backwards while others wait yields to them after a while, so that a lane that spins on a lock never
starves the lane that holds it.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from cudakit.sim.lockstep.asynchrony import Asynchrony
from cudakit.sim.lockstep.barriers import BlockBarriers
from cudakit.sim.lockstep.branches import run_aside
from cudakit.sim.lockstep.clusters import ClusterBarrier
from cudakit.sim.lockstep.fragment import Batch, Fragment, Frame, unite
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.loops import LoopWatch
from cudakit.sim.lockstep.masks import FULL, check_masks, fail_missing
from cudakit.sim.lockstep.memory import round_up
from cudakit.sim.lockstep.owners import note_call
from cudakit.sim.lockstep.pointers import called, divergent_warps
from cudakit.sim.lockstep.program import (
    BARRIER,
    BRANCH,
    CALL,
    CLUSTER,
    EXIT,
    FALL,
    INDIRECT,
    JUMP,
    REGISTERS,
    SWITCH,
    WAIT,
    BarrierCall,
    BasicBlock,
    Program,
)
from cudakit.sim.lockstep.queue import FragmentQueue, Path
from cudakit.sim.lockstep.register_pool import RegisterPool
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.report import plain_name
from cudakit.sim.lockstep.stack import begin_frame, frame_end
from cudakit.sim.lockstep.undefined import run_block, run_probed, unwritten
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import name_of

# backward jumps before a fragment yields to others, in a loop that does not wait for them
TIRED = 4096
_STACK_DEPTH = 4096


def _is_warp_barrier(f: Fragment) -> bool:
    block = f.program.blocks[f.block]
    return bool(block.instructions) and name_of(block.instructions[0]) == "bar.warp"


class LaneScheduler:
    """Runs one batch until all its lanes have exited."""

    def __init__(self, batch: Batch, program: Program, remaining: int) -> None:
        self.batch = batch
        batch.scheduler = self
        self.run = batch.run
        self.queue = FragmentQueue()
        self.barriers = BlockBarriers(batch, self.queue)
        self.cluster = ClusterBarrier(batch, self.queue) if batch.run.config.cluster_barriers else None
        self.asynchrony = batch.asynchrony = Asynchrony(batch, self.queue)
        self.draws = batch.run.config.draw is not None
        # the blocks' registers; None: there has been no setmaxnreg
        self.pool: RegisterPool | None = None
        self.counts = batch.run.block_counts
        self.loops = LoopWatch(batch, self.queue, self.at_barriers, self.barrier_waits, remaining, TIRED)
        self.check_warp = "warp" in batch.run.checks
        self.probed = bool(batch.run.probes)
        # the fragment that ran last
        self.running: Fragment | None = None
        frame = Frame(program, list(program.template), -1, 0)
        if "init" in batch.run.checks and program.unset:
            frame.undefined = unwritten(program, batch.geometry.lanes)
        self.queue.add(Fragment(batch, batch.geometry.all, [frame], 0, 0))

    # ---- choosing ----

    def loop(self) -> None:
        """Run until every lane has exited; raises KernelFault for a fault, a deadlock or a hang."""
        pending, deferred = self.queue.pending, self.queue.deferred
        while True:
            if not pending:
                if self.release() or self.asynchrony.stalled():
                    continue
                if deferred and self.meet():
                    continue
                if self.pool is not None and self.pool.waiting:
                    self.pool.deadlock()
                apart = deferred and self.apart()
                if not apart and self.asynchrony.give_up():
                    continue
                if deferred:
                    path = apart or min(deferred)
                    waiting = deferred.pop(path)
                    self.advance(self.united(waiting), forced=True)
                    continue
                if self.batch.live:
                    self.deadlock()
                self.asynchrony.finish()
                return
            key = min(pending)
            waiting = pending.pop(key)
            if deferred:
                waiting += deferred.pop(key[1], [])
            self.advance(self.united(waiting))

    def united(self, waiting: list[Fragment]) -> Fragment:
        """The fragments at one position as one. Those whose frames are at other offsets, because their callers had
        allocated another number of bytes on the stack, return to the queue."""
        if len(waiting) == 1:
            return waiting[0]
        if self.batch.frame_ends:
            offsets = [[frame.local_base for frame in f.frames] for f in waiting]
            for f, theirs in zip(waiting, offsets, strict=True):
                if theirs != offsets[0]:
                    self.queue.add(f)
            waiting = [f for f, theirs in zip(waiting, offsets, strict=True) if theirs == offsets[0]]
        return unite(waiting)

    def advance(self, f: Fragment, forced: bool = False) -> None:
        """Run a fragment until it exits, waits, splits, or must yield to other fragments."""
        counts, queue = self.counts, self.queue
        pending, deferred = queue.pending, queue.deferred
        self.running = f
        while True:
            program = f.program
            block = program.blocks[f.block]
            if block.sync is not None and not f.released and not self.gathered(f, block):
                if not forced:
                    queue.defer(f)
                    return
                if self.check_warp:
                    fail_missing(f, block.instructions[0], self.missing(f, block))
            careful = bool(f.frames[-1].undefined)
            if block.sync is not None and self.check_warp:
                mask = block.sync(f, f.regs)
                check_masks(f, block.instructions[0], mask)
                if block.absent is not None and (mask.ndim > 0 or not f.lanes.complete or int(mask) != FULL):
                    careful |= block.absent(f, f.regs)
            forced = f.released = False
            lanes = f.lanes
            count = counts[block.number]
            if count is None:
                count = counts[block.number] = [0, 0, 0]
            count[0] += lanes.warp_count
            count[1] += lanes.count
            if self.probed:
                run_probed(f, f.block)
            else:
                run_block(f, f.block, careful)
            if self.draws:
                self.asynchrony.draw()
            kind = block.kind
            if kind == FALL:
                f.block = block.fall
            elif kind == JUMP:
                if block.target <= f.block and self.jumped_back(f, block, block.target):
                    f.block = block.target
                    queue.add(f)
                    return
                f.block = block.target
            elif kind == BRANCH:
                held = f.regs[block.slot]
                if held.ndim == 0:
                    taken = bool(held) != block.negated
                else:
                    yes = int(np.count_nonzero(held))
                    some = 0 < yes < lanes.count
                    if some and (self.probed or f.frames[-1].undefined or not run_aside(queue, f, block, held)):
                        self.part(f, block, held)
                        return
                    taken = some or (yes > 0) != block.negated
                if taken:
                    if block.target <= f.block and self.jumped_back(f, block, block.target):
                        f.block = block.target
                        queue.add(f)
                        return
                    f.block = block.target
                else:
                    f.block = block.fall
            elif kind == BARRIER:
                f.block = block.fall
                if not self.arrive(f, block.barrier):
                    return
            elif kind == CALL:
                self.call(f, block, block.callee)
            elif kind == INDIRECT:
                if not self.call_by_pointer(f, block):
                    return
            elif kind == EXIT:
                self.leave(f)
                return
            elif kind == SWITCH:
                if not self.switch(f, block):
                    return
            elif kind == CLUSTER:
                f.block = block.fall
                if self.cluster is not None and not self.cluster.meet(f, block.cluster_barrier):
                    return
            elif kind == WAIT:
                f.block = block.fall
                if not self.asynchrony.meet(f, block.wait.slot, block.wait.start(f)):
                    return
            elif kind == REGISTERS:
                f.block = block.fall
                if not self.registers().meet(f, *block.registers):
                    return
            elif not self.give_back(f):
                self.leave(f)
                return
            if (pending or deferred) and queue.yields(f.epoch, f.path()):
                queue.add(f)
                return

    def leave(self, f: Fragment) -> None:
        self.batch.leave(f.lanes)
        if self.batch.warpgroups is not None:
            self.batch.warpgroups.leave(f)
        if self.pool is not None:
            self.pool.leave(f)
        if self.asynchrony.transfers:
            self.asynchrony.leave((f.lanes.block_counts > 0) & (self.batch.live_blocks == 0))
        if self.batch.guard is not None:
            self.batch.guard.leave(f)

    def part(self, f: Fragment, block: BasicBlock, held: Array) -> None:
        """Split a fragment at a divergent branch."""
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
                self.jumped_back(part, block, where, alone=False)
            self.queue.add(part)

    def switch(self, f: Fragment, block: BasicBlock) -> bool:
        """Branch by an index; False if the fragment was split or must yield."""
        index = f.regs[block.slot]
        targets = block.targets
        if int(index.max()) >= len(targets):
            f.fail(
                block.instructions[-1], "bad branch index", f"index {int(index.max())}, {len(targets)} branch targets"
            )
        if index.ndim == 0 or int(index.min()) == int(index.max()):
            target = targets[int(index if index.ndim == 0 else index[0])]
            tired = target <= f.block and self.jumped_back(f, block, target)
            f.block = target
            if tired:
                self.queue.add(f)
            return not tired
        self.count_divergent(f, block, index)
        for value in np.unique(index):
            choice, lanes = f.lanes.subset(index == value)
            part = f.part(choice, lanes, targets[int(value)])
            part.jumps = f.jumps
            if part.block <= f.block:
                self.jumped_back(part, block, part.block, alone=False)
            self.queue.add(part)
        return False

    def count_divergent(self, f: Fragment, block: BasicBlock, targets: Array) -> None:
        """Count the warps whose lanes go to different targets."""
        count = self.counts[block.number]
        if count is not None:
            count[2] += divergent_warps(f, targets)

    def call_by_pointer(self, f: Fragment, block: BasicBlock) -> bool:
        """Call the functions that the lanes point to; False if they are several, and the fragment was split."""
        parts = called(f, block)
        if len(parts) > 1:
            self.count_divergent(f, block, f.regs[block.slot])
        for part, callee in parts:
            self.call(part, block, callee)
            if part is not f:
                self.queue.add(part)
        return len(parts) == 1

    def call(self, f: Fragment, block: BasicBlock, callee: Program | None) -> None:
        if callee is None:
            raise RuntimeError(f"call of {block.callee_name} was not linked")
        regs: Registers = list(callee.template)
        for slot, argument in zip(callee.params, block.arguments, strict=True):
            regs[slot] = f.regs[argument]
        base = round_up(int(np.max(frame_end(f))), 16)
        if base + callee.local_bytes > self.run.local_bytes or len(f.frames) > _STACK_DEPTH:
            f.fail(
                block.instructions[-1],
                "stack overflow",
                f"the call of {plain_name(callee.name)} at depth {len(f.frames)} needs more than the thread's "
                f"{self.run.local_bytes} bytes of local memory: reduce the recursion depth or raise the stack limit",
                lanes=f.lanes.count,
            )
        # the caller resumes at `block.fall`; `give_back` copies the results
        caller = Frame(f.program, f.regs, f.frames[-1].resume, f.frames[-1].local_base)
        caller.undefined = f.frames[-1].undefined
        f.frames = [*f.frames[:-1], caller, Frame(callee, regs, block.fall, base)]
        if "init" in self.run.checks and callee.unset:
            f.frames[-1].undefined = unwritten(callee, f.lanes.count)
        f.program, f.regs, f.block = callee, regs, 0
        if callee.local_bytes:
            note_call(self.batch, f.lanes, len(f.frames) - 1)
        if callee.grows:
            begin_frame(self.batch, f.lanes, len(f.frames) - 1, base + callee.local_bytes)
        if self.batch.guard is not None:
            self.batch.guard.enter(f.lanes, base, callee.local_bytes)

    def give_back(self, f: Fragment) -> bool:
        """Return to the caller; False at the end of the kernel itself."""
        if len(f.frames) == 1:
            return False
        *f.frames, done = f.frames
        caller = f.frames[-1]
        f.program, f.regs, f.block = caller.program, caller.regs, done.resume
        block = caller.program.blocks[done.resume - 1]
        for slot, result in zip(block.results, done.program.returns, strict=True):
            f.regs[slot] = done.regs[result]
        return True

    def jumped_back(self, f: Fragment, block: BasicBlock, target: int, alone: bool = True) -> bool:
        """Note a backward jump, of all lanes if ``alone``; True if the fragment must yield to others (its epoch is then
        raised)."""
        if not self.loops.tired(f, block, target, alone):
            return False
        if block.spins:
            self.asynchrony.poll()
        waiting = bool(self.queue.pending) or bool(self.queue.deferred) or bool(self.barriers.states)
        if waiting:
            self.release()
            f.epoch += 1
        return waiting and alone

    # ---- lanes that wait for each other ----

    def gathered(self, f: Fragment, block: BasicBlock) -> bool:
        """Whether all live lanes of the instruction's member mask are in the fragment."""
        lanes = f.lanes
        if lanes.complete or block.sync is None:
            return True
        live = self.batch.live_warps.take(lanes.warps)
        if (lanes.warp_counts.take(lanes.warps) == live).all():
            return True
        return not self.missing(f, block).any()

    def meet(self) -> bool:
        """Release lanes that wait for each other at different bar.warp.sync instructions; True if there were some."""
        deferred = self.queue.deferred
        there = [f for fs in deferred.values() for f in fs if _is_warp_barrier(f)]
        bits = np.zeros(self.batch.geometry.warps, np.uint32)
        for f in there:
            bits[f.lanes.warps] |= f.lanes.present
        going = [f for f in there if not (self.missing(f, f.program.blocks[f.block]) & ~bits.take(f.lanes.warps)).any()]
        for f in going:
            path = f.path()
            deferred[path].remove(f)
            if not deferred[path]:
                del deferred[path]
            f.released = True
            if self.batch.guard is not None:
                # before any of them continues
                self.batch.guard.warp_sync(f.lanes)
        for f in going:
            self.queue.add(f)
        return bool(going)

    def apart(self) -> Path | None:
        """The lowest position of lanes that wait for other lanes of their warps which wait for others in turn, so that
        they never meet; None if there are none."""
        there = [(path, f) for path, fs in self.queue.deferred.items() for f in fs]
        count = -1
        while there and count != len(there):
            count = len(there)
            bits = np.zeros(self.batch.geometry.warps, np.uint32)
            for _, f in there:
                bits[f.lanes.warps] |= f.lanes.present
            there = [
                (path, f)
                for path, f in there
                if not (self.missing(f, f.program.blocks[f.block]) & ~bits.take(f.lanes.warps)).any()
            ]
        return min((path for path, _ in there), default=None)

    def missing(self, f: Fragment, block: BasicBlock) -> Array:
        """The live lanes of the member mask that are not in the fragment, as bits, one uint32 per warp."""
        lanes = f.lanes
        if block.sync is None:
            return np.zeros(lanes.warp_count, np.uint32)
        mask = np.broadcast_to(block.sync(f, f.regs), (lanes.count,))
        named = np.zeros(lanes.warp_count, np.uint32)
        np.bitwise_or.at(named, lanes.warp_rank, mask)
        missing: Array = named & ~lanes.present
        # lanes past the end of a partial warp and lanes that have exited are not missing
        return missing & self.alive_bits(lanes) if missing.any() else missing

    def alive_bits(self, lanes: LaneSet) -> Array:
        """The live lanes of these warps that wait in any queue or barrier, as bits, one uint32 per warp."""
        bits = np.zeros(self.batch.geometry.warps, np.uint32)
        for f in self.fragments():
            bits[f.lanes.warps] |= f.lanes.present
        return bits.take(lanes.warps)

    def fragments(self) -> list[Fragment]:
        """All fragments but the one that is running."""
        queued = [f for fs in (*self.queue.pending.values(), *self.queue.deferred.values()) for f in fs]
        return queued + self.at_barriers()

    # ---- barriers ----

    def arrive(self, f: Fragment, call: BarrierCall) -> bool:
        """Arrive at a barrier of the block with a fragment; True if it may continue at once."""
        goes_on = self.barriers.arrive(f, call)
        if not call.waits:
            self.release()
        return goes_on

    def registers(self) -> RegisterPool:
        """The registers of the batch's blocks."""
        if self.pool is None:
            self.pool = RegisterPool(self.batch, self.queue)
        return self.pool

    def release(self) -> bool:
        """Release the fragments whose barriers are complete; True if there were some."""
        released = self.cluster is not None and self.cluster.release()
        return self.barriers.release() or released

    def at_barriers(self) -> list[Fragment]:
        """The fragments that wait at barriers."""
        there = self.barriers.waiting() + [parked.f for parked in self.asynchrony.parked]
        there += self.pool.waiting if self.pool is not None else []
        return there + (self.cluster.waiting if self.cluster is not None else [])

    def barrier_waits(self) -> list[tuple[Fragment, Instruction, str]]:
        """The fragments that wait at barriers of a block or a cluster, their instruction, and the barrier in words."""
        return self.barriers.waits() + (self.cluster.waits() if self.cluster is not None else [])

    def deadlock(self) -> NoReturn:
        """Report lanes that wait at barriers that the other threads can never reach."""
        if not self.barriers.states and self.cluster is not None and self.cluster.waiting:
            self.cluster.deadlock()
        self.barriers.deadlock()
