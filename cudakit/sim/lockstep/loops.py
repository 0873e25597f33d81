"""Loops that do not end: hangs, in which nothing changes any more, and loops that use up the launch's steps.

The scheduler (control.py) reports each backward jump. A fragment yields to the others after few jumps in a loop in
which lanes may wait for other lanes, and after many in any other loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.program import BasicBlock
from cudakit.sim.lockstep.queue import FragmentQueue

# backward jumps before a fragment yields in a loop that waits for other lanes
_TIRED_SPIN = 4
# backward jumps without any progress before a hang is looked for in a loop that waits for other lanes
_IDLE = 2000


class LoopWatch:
    """The backward jumps of a batch. ``at_barriers`` returns the fragments that wait at barriers; ``remaining`` is the
    number of blocks that have not started; ``most`` the jumps before a fragment yields in a loop that does not wait."""

    def __init__(
        self,
        batch: Batch,
        queue: FragmentQueue,
        at_barriers: Callable[[], list[Fragment]],
        remaining: int,
        most: int,
    ) -> None:
        self.batch = batch
        self.queue = queue
        self.at_barriers = at_barriers
        self.remaining = remaining
        self.most = most
        self.limit = batch.run.config.step_limit
        # backward jumps of the batch, and those since it last made progress in loops that wait for other lanes
        self.steps = self.idle = 0
        self.seen_progress = 0
        self.snapshot: tuple[Any, ...] | None = None
        # an earlier state of one fragment, and of all others with their epochs; the looks since and until the next one
        self.mine: tuple[Any, ...] | None = None
        self.rest: list[tuple[Any, ...]] = []
        self.epochs: list[int] = []
        self.looks = 0
        self.span = 1

    def tired(self, f: Fragment, block: BasicBlock, target: int, alone: bool) -> bool:
        """Note a jump back to block ``target``, of all lanes if ``alone``; True if the fragment should yield."""
        batch = self.batch
        if batch.progress != self.seen_progress:
            self.seen_progress = batch.progress
            self.idle, self.mine = 0, None
        f.jumps += 1
        self.steps += 1
        if self.steps > self.limit:
            self._endless(f, block)
        if block.spins:
            self.idle += 1
        if f.jumps < (_TIRED_SPIN if block.spins else self.most):
            return False
        f.jumps = 0
        if alone and block.spins:
            if self.idle > _IDLE:
                self._look_at_all(f, block, target)
        elif alone and not (self.queue.pending or self.queue.deferred):
            self._look(f, block, target)
        return True

    def _look(self, f: Fragment, block: BasicBlock, target: int) -> None:
        """Report an infinite loop: no other fragment can run, and registers and memory are as at the last look."""
        state = (*_state(f, target), self.batch.progress)
        if self.snapshot == state:
            self._hang(f, block, "repeats with the same registers and memory")
        self.snapshot = state

    def _look_at_all(self, f: Fragment, block: BasicBlock, target: int) -> None:
        """Report loops that wait in vain: memory has not changed for long, and each fragment that can run is in a state
        in which it has been before. A loop that counts its iterations is never in the same state again."""
        mine = _state(f, target)
        self.looks += 1
        if self.mine is None or self.looks > self.span:
            # the span grows, so that it exceeds the length of any cycle in the end
            self.span = 2 * self.span if self.mine is not None else 8
            self.looks, self.mine = 0, mine
            self.rest, self.epochs = self._others()
        elif mine == self.mine:
            rest, epochs = self._others()
            # a fragment that has not run since is in the same state for that reason only
            if rest == self.rest and all(now > then for now, then in zip(epochs, self.epochs, strict=True)):
                self._hang(f, block, "has repeated too many times without progress")

    def _others(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        """The states of the queued fragments, and the epochs of those that can run."""
        queue = self.queue
        running = [one for waiting in queue.pending.values() for one in waiting]
        running.sort(key=lambda one: int(one.lanes.lanes[0]))
        deferred = [one for path in sorted(queue.deferred) for one in queue.deferred[path]]
        return [_state(one, one.block) for one in (*running, *deferred)], [one.epoch for one in running]

    def _endless(self, f: Fragment, block: BasicBlock) -> NoReturn:
        """Report a loop that has used up the launch's steps, although its lanes still store or pass barriers."""
        f.fail(
            block.instructions[-1] if block.instructions else None,
            "endless loop",
            f"stopped after {self.steps:,} loop iterations of its blocks without an end",
            lanes=f.lanes.count,
            notes=['if the kernel only takes long, raise the limit: cudakit.Device("sim", step_limit=...)'],
        )

    def _hang(self, f: Fragment, block: BasicBlock, how: str) -> NoReturn:
        notes = [
            "the compiler may move a plain load or store out of the loop: a flag that other threads change must be "
            "volatile or atomic"
        ]
        waiting = sum(w.lanes.count for w in self.at_barriers())
        if waiting:
            notes.append(f"{waiting} other lanes wait at a barrier")
        if self.remaining:
            notes.append(
                f"{self.remaining} blocks of the grid have not started: if blocks wait for each other, use a "
                "cooperative launch"
            )
        f.fail(
            block.instructions[-1] if block.instructions else None,
            "hang",
            f"a loop {how}: in the compiled code no lane stores, exits or passes a barrier any more",
            lanes=f.lanes.count,
            notes=notes,
        )


def _state(f: Fragment, start: int) -> tuple[Any, ...]:
    """A fragment's place, lanes and registers, of its callers too, if it continues at block ``start``."""
    registers: list[bytes] = []
    after = [frame.resume for frame in f.frames[1:]] + [start]
    for frame, block in zip(f.frames, after, strict=True):
        values = [frame.regs[slot] for slot in frame.program.live[block]]
        # the result of a call that has not returned has no value
        registers += [value.tobytes() for value in values if value is not None]
    return (f.path()[:-1], start, f.program.name, f.lanes.lanes.tobytes(), registers)
