"""Barriers of a block's threads: arrivals, releases, and the check for divergent barriers.

The scheduler (control.py) reports arriving fragments and requests releases.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment, divide
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.program import BarrierCall
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.report import Other
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.ptx.ir import Instruction

_SAME = "every thread of the block must reach the same __syncthreads()"
_OF_A_WARP = f"lanes of one warp wait at different barriers; {_SAME}"
_OF_A_BLOCK = (
    f"warps of one block wait at different barriers; {_SAME}. This is undefined in CUDA C++, but defined in PTX: the "
    "barriers have the same number, so the warps meet"
)
_DEFINED_IN_PTX = "checks= without 'syncthreads' does not report it"


class BarrierState:
    """The state of one barrier number, for all blocks of a batch."""

    __slots__ = ("arrived", "expected", "threads", "waiting")

    def __init__(self, blocks: int) -> None:
        self.arrived = np.zeros(blocks, np.int64)
        # threads to wait for in each block; 0: all live threads
        self.expected = np.zeros(blocks, np.int64)
        # the thread count that the threads of each block have passed, which may be more than a block has
        self.threads = np.zeros(blocks, np.int64)
        self.waiting: list[Fragment] = []


class BlockBarriers:
    """The barriers of a batch's blocks, by number. Released fragments return to the queue."""

    def __init__(self, batch: Batch, queue: FragmentQueue) -> None:
        self.batch = batch
        self.queue = queue
        self.states: dict[int, BarrierState] = {}

    def waiting(self) -> list[Fragment]:
        """The fragments that wait at barriers."""
        return [f for state in self.states.values() for f in state.waiting]

    def waits(self) -> list[tuple[Fragment, Instruction, str]]:
        """The fragments that wait at barriers, their instruction, and the barrier in words."""
        found = []
        for number, state in self.states.items():
            for f in state.waiting:
                block = int(f.lanes.block[0])
                expected = int(state.expected[block]) or int(self.batch.live_blocks[block])
                what = f"barrier {number}, at which {int(state.arrived[block])} of {expected} threads have arrived"
                found.append((f, _barrier_of(f).instruction, what))
        return found

    def arrive(self, f: Fragment, call: BarrierCall) -> bool:
        """Note a fragment's arrival; True if it may continue at once. The caller calls ``release`` if the instruction
        does not wait."""
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
            if call.waits and threads == 0 and f.lanes.count == batch.live and which not in self.states:
                batch.progress += 1
                if batch.guard is not None:
                    batch.guard.barrier(None)
                if call.reduce:
                    f.regs[call.slot] = self.reduce(call, [(f, f.value)])[0]
                    f.value = None
                return True
            self.wait_at(f, f.lanes, call, which, threads)
        return not call.waits

    def wait_at(self, f: Fragment, lanes: LaneSet, call: BarrierCall, number: int, threads: int) -> None:
        """Note the arrival of lanes at one barrier, and keep their fragment here if they wait."""
        state = self.states.get(number)
        if state is None:
            state = self.states[number] = BarrierState(self.batch.geometry.blocks)
        here = lanes.block_counts
        if "barrier" in self.batch.run.checks:
            _check_counts(state, f, lanes, call, number, threads)
        state.arrived += here
        state.threads[here > 0] = threads
        if threads:
            # a thread count is of whole warps, so that the lanes which the last warp does not have count too
            state.arrived += self.absent(lanes)
        state.expected[here > 0] = min(threads, 32 * self.batch.geometry.warps_per_block)
        if self.batch.guard is not None:
            self.batch.guard.arrive(lanes, number)
        if call.waits:
            state.waiting.append(f)

    def absent(self, lanes: LaneSet) -> Array:
        """The lanes that the partial last warp of each block does not have, if its first lane is in a set."""
        geometry = self.batch.geometry
        missing = 32 * geometry.warps_per_block - geometry.threads
        found = np.zeros(geometry.blocks, np.int64)
        if missing:
            first = lanes.lanes % geometry.threads == 32 * (geometry.warps_per_block - 1)
            found[lanes.block[first]] = missing
        return found

    def release(self) -> bool:
        """Release every block whose threads have all arrived at a barrier; True if there was one."""
        released = False
        epoch = self.queue.epoch()
        for number, state in list(self.states.items()):
            expected = np.where(state.expected, state.expected, self.batch.live_blocks)
            full = (state.arrived > 0) & (state.arrived >= expected)
            if not full.any():
                continue
            released = True
            self.batch.progress += 1
            going, staying = divide(state.waiting, lambda lanes, full=full: full.take(lanes.block))  # type: ignore[misc]
            _check_groups(self.batch.run, number, state, going)
            _check_alignment(self.batch.run, going, state.expected == 0)
            _tell_checks(self.batch, number, state, full, going)
            state.arrived[full] = 0
            state.waiting = staying
            if not staying and not state.arrived.any():
                del self.states[number]
            self.finish_reduction(going)
            for f in going:
                f.epoch, f.jumps, f.value = epoch, 0, None
                self.queue.add(f)
        return released

    def finish_reduction(self, going: list[Fragment]) -> None:
        reducing = [f for f in going if f.value is not None]
        if not reducing:
            return
        calls = [_barrier_of(f) for f in reducing]
        results = self.reduce(calls[0], [(f, f.value) for f in reducing])
        for f, call, result in zip(reducing, calls, results, strict=True):
            f.regs[call.slot] = result

    def reduce(self, call: BarrierCall, parts: list[tuple[Fragment, Array]]) -> list[Array]:
        """Reduce a predicate over each block; returns the result of each part, per lane."""
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

    def deadlock(self) -> NoReturn:
        """Report lanes that wait at barriers that the other threads can never reach."""
        # prefer a barrier at which lanes wait to one with arrivals only
        number, state = max(self.states.items(), key=lambda item: len(item[1].waiting))
        f = state.waiting[0] if state.waiting else None
        if f is None:
            raise RuntimeError("some lanes have not exited, but none of them waits at a barrier")
        call = _barrier_of(f)
        block = int(f.lanes.block[0])
        arrived = int(state.arrived[block])
        expected = int(state.expected[block]) or int(self.batch.live_blocks[block])
        notes = []
        for other_number, other in self.states.items():
            for w in other.waiting:
                inside = int((w.lanes.block == block).sum())
                if not inside:
                    continue
                wait = _barrier_of(w)
                places = self.batch.run.place(wait.instruction)
                where = f"{places[0].file}:{places[0].line}" if places else wait.instruction.text.strip()
                waits = "thread of this block waits" if inside == 1 else "threads of this block wait"
                notes.append(f"{inside} {waits} at barrier {other_number}, at {where}")
        f.fail(
            call.instruction,
            "deadlock",
            f"{arrived} of {expected} threads of the block have arrived at barrier {number}; the others wait elsewhere "
            "or have exited",
            lanes=f.lanes.count,
            notes=notes,
        )


def _varies(values: Array) -> bool:
    return values.ndim > 0 and bool((values != values[0]).any())


def _tell_checks(batch: Batch, number: int, state: BarrierState, full: Array, going: list[Fragment]) -> None:
    """Notify the checks of the threads that have met at a barrier: whole blocks, or some warps of a block."""
    guard = batch.guard
    if guard is None:
        return
    waited = np.zeros(batch.geometry.blocks, np.int64)
    for f in going:
        waited += f.lanes.block_counts
    # a barrier for all threads of the block does not wait for threads that have exited
    plain = (state.expected == 0) | (state.expected == 32 * batch.geometry.warps_per_block)
    whole = full & plain & (waited == batch.live_blocks)
    if whole.any():
        guard.barrier(None if whole.all() else whole)
    if (full & ~whole).any() and going:
        guard.depart(batch.geometry.unite(tuple(f.lanes for f in going))[0], number)


def _check_counts(
    state: BarrierState, f: Fragment, lanes: LaneSet, call: BarrierCall, number: int, threads: int
) -> None:
    """Report a thread count that is not of whole warps, or that differs from the count of other threads at the barrier.
    Both are an illegal instruction on an H200, also if some of the threads pass no count."""
    if threads % 32:
        f.fail(
            call.instruction,
            "divergent barrier",
            f"barrier {number} with {threads} threads: a barrier counts whole warps, so pass a multiple of 32",
            lanes=lanes.count,
        )
    differ = (lanes.block_counts > 0) & (state.arrived > 0) & (state.threads != threads)
    if not differ.any():
        return
    block = int(np.argmax(differ))
    f.fail(
        call.instruction,
        "divergent barrier",
        f"barrier {number} with {_count(threads)}, but other threads of the block are there with "
        f"{_count(int(state.threads[block]))}: pass the same number in all of them",
        lanes=lanes.count,
        others=_first_there(state.waiting, block),
    )


def _count(threads: int) -> str:
    return f"{threads} threads" if threads else "all threads of the block"


def _check_groups(run: KernelRun, number: int, state: BarrierState, going: list[Fragment]) -> None:
    """Report a barrier at which more threads are than it waits for: two groups of warps use it at once, and on a GPU
    the first threads to arrive meet, be they of one group or not. Threads that must meet later are not there yet: only
    a thread that has passed the barrier knows that it is complete."""
    over = (state.expected > 0) & (state.arrived > state.expected)
    if not over.any() or "barrier" not in run.checks:
        return
    for f in reversed(going):
        positions = np.flatnonzero(over.take(f.lanes.block))
        if not len(positions):
            continue
        block = int(f.lanes.block[positions[0]])
        f.fail(
            _barrier_of(f).instruction,
            "divergent barrier",
            f"{int(state.arrived[block])} threads of the block are at barrier {number} at once, which is complete "
            f"with {int(state.expected[block])}: several groups of warps use it, and on a GPU a group may meet a part "
            "of another one",
            int(positions[0]),
            positions,
            others=_first_there([other for other in going if other.path() != f.path()], block),
            notes=["use another barrier number for each group of warps, or put __syncthreads() between their uses"],
        )


def _first_there(fragments: list[Fragment], block: int) -> tuple[Other, ...]:
    """The first of some waiting fragments that has lanes of a block, for a report, if there is one."""
    for f in fragments:
        positions = np.flatnonzero(f.lanes.block == block)
        if len(positions):
            place = f.lane_place(int(positions[0]))
            return (Other("barrier", *place, f.batch.run.place(_barrier_of(f).instruction)),)
    return ()


def _barrier_of(f: Fragment) -> BarrierCall:
    """The barrier at which a fragment waits."""
    return f.program.blocks[f.block - 1].barrier


def _check_alignment(run: KernelRun, going: list[Fragment], plain: Array) -> None:
    """Report divergent barriers.

    "barrier": all lanes of a warp must execute the same aligned barrier instruction. "syncthreads": all threads of a
    block must reach the same __syncthreads() of the source, a barrier without a thread count (``plain``, per block).
    Two instructions of one source line may be the same one, which the compiler has copied.
    """
    if len(going) < 2 or run.checks.isdisjoint(("barrier", "syncthreads")):
        return
    seen: list[tuple[Fragment, BarrierCall]] = []
    for f in going:
        call = _barrier_of(f)
        if not call.aligned:
            continue
        for other, theirs in seen:
            if other.path() == f.path():
                continue
            both = np.isin(f.lanes.warp, other.lanes.warps)
            if both.any():
                if "barrier" in run.checks:
                    _fail_apart(run, f, call, np.flatnonzero(both), other, theirs, _OF_A_WARP)
            elif "syncthreads" in run.checks and run.place(call.instruction) != run.place(theirs.instruction):
                both = plain[f.lanes.block] & (other.lanes.block_counts > 0)[f.lanes.block]
                if both.any():
                    _fail_apart(run, f, call, np.flatnonzero(both), other, theirs, _OF_A_BLOCK, _DEFINED_IN_PTX)
        seen.append((f, call))


def _fail_apart(
    run: KernelRun,
    f: Fragment,
    call: BarrierCall,
    positions: Array,
    other: Fragment,
    theirs: BarrierCall,
    detail: str,
    *notes: str,
) -> NoReturn:
    """Report lanes of two fragments that wait at different barriers instead of the same one."""
    first = int(positions[0])
    same = other.lanes.warp == f.lanes.warp[first]
    if not same.any():
        same = other.lanes.block == f.lanes.block[first]
    block, thread = other.lane_place(int(np.argmax(same)))
    f.fail(
        call.instruction,
        "divergent barrier",
        detail,
        first,
        positions,
        others=(Other("barrier", block, thread, run.place(theirs.instruction)),),
        notes=list(notes),
    )
