"""Hangs: loops in a state that repeats; and endless loops, which change memory in each iteration.

The scheduler (control.py) reports each backward jump. A fragment yields to the others after few jumps in a loop in
which lanes may wait for other lanes, and after many in any other loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.loop_forms import form_of, loops_around
from cudakit.sim.lockstep.program import BasicBlock
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.stuck import report_stuck
from cudakit.sim.ptx.ir import Instruction

# backward jumps before a fragment yields in a loop that waits for other lanes
_TIRED_SPIN = 4
# backward jumps without any progress before a hang is looked for in a loop that waits for other lanes
_IDLE = 2000
# the steps between two looks at a loop's condition, a power of two; how many jumps of the loop are followed at each
_LOOK_EVERY = 512
_FOLLOWED = 16
# and at a few looks, until the fragment goes on in the loop around it
_FOLLOWED_LONG = 1024
_LONG_LOOKS = frozenset(4096 << 2 * k for k in range(7))
# the steps after which it does not matter that a loop goes on to other addresses
_MOVES = 20_000
_RAISE = 'if the kernel only takes long, raise the limit: cudakit.Device("sim", step_limit=...)'


class LoopWatch:
    """The backward jumps of a batch. ``at_barriers`` returns the fragments that wait at barriers, ``barrier_waits``
    those at barriers of a block or a cluster, with their instruction and the barrier in words; ``remaining`` is the
    number of blocks that have not started; ``most`` the jumps before a fragment yields in a loop that does not wait."""

    def __init__(
        self,
        batch: Batch,
        queue: FragmentQueue,
        at_barriers: Callable[[], list[Fragment]],
        barrier_waits: Callable[[], list[tuple[Fragment, Instruction, str]]],
        remaining: int,
        most: int,
    ) -> None:
        self.batch = batch
        self.queue = queue
        self.at_barriers, self.barrier_waits = at_barriers, barrier_waits
        self.remaining = remaining
        self.most = most
        config = batch.run.config
        self.budget = config.step_budget
        self.limit = config.step_limit if self.budget is None else self.budget
        # the live lanes, and the counts of each fragment's loops that are sure to end, when the budget was last renewed
        self.live = batch.live
        self.counts: dict[Any, list[bytes]] | None = None
        # the loop of a fragment that is followed, and for how many jumps
        self.followed: _Followed | None = None
        self.following = 0
        # the steps at the next look at a loop's condition, or at the limit
        self.due = min(_LOOK_EVERY, self.limit + 1)
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
        if self.steps >= self.due:
            self._look_closely(f, block, target)
        if self.followed is not None and self.followed.fragment is f:
            self._follow(f, block, target, self.followed)
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

    def _look_closely(self, f: Fragment, block: BasicBlock, target: int) -> None:
        """Begin to follow a fragment's loop; stop the launch at the limit of its steps."""
        if self.steps > self.limit and not self._goes_on(f, target):
            self._endless(f, block)
        self.following = _FOLLOWED_LONG if self.steps in _LONG_LOOKS else _FOLLOWED
        self.followed = _Followed(f, target)
        self.due = min(self.steps - self.steps % _LOOK_EVERY + _LOOK_EVERY, self.limit + 1)

    def _follow(self, f: Fragment, block: BasicBlock, target: int, followed: _Followed) -> None:
        """Report a loop that a fragment goes on with forever: two iterations begin with equal values of the registers
        that decide it."""
        self.following -= 1
        if self.following < 0 or followed.program is not f.program or f.path()[:-1] != followed.calls:
            self.followed = None
        elif not followed.form.blocks.issuperset((block.number - f.program.blocks[0].number, target)):
            # the fragment has left the loop
            self.followed = _Followed(f, target)
        elif target == followed.form.head:
            # a loop that goes on to other addresses may soon be out of bounds, which says more
            values = followed.form.values(f.regs, addresses=self.steps < _MOVES)
            if values is None or values != followed.values:
                followed.values, followed.progress = values, self.batch.progress
            elif followed.progress == self.batch.progress:
                self._hang(f, block, "repeats with the same values in its condition")
            else:
                self._endless(f, block, "repeats with the same values in its condition, and nothing else changes it")

    def _goes_on(self, f: Fragment, target: int) -> bool:
        """Whether the launch gets a new budget of steps: since it got the last one, a lane has exited, or has gone on
        in a loop that is sure to end. That cannot happen forever."""
        if self.budget is None:
            return False
        counts = {f.lanes.lanes.tobytes(): _counts(f, target)}
        for waiting in self.queue.pending.values():
            counts |= {one.lanes.lanes.tobytes(): _counts(one, one.block) for one in waiting}
        last, live = self.counts, self.live
        self.counts, self.live = counts, self.batch.live
        if last is None:
            goes_on = any(counts.values())
        else:
            goes_on = any(found != last.get(lanes, found) for lanes, found in counts.items())
        if not goes_on and self.live == live:
            return False
        self.steps = 0
        return True

    def _look(self, f: Fragment, block: BasicBlock, target: int) -> None:
        """Report an infinite loop: no other fragment can run, and registers and memory are as at the last look."""
        state = (*_state(f, target), self.batch.progress)
        if self.snapshot == state:
            self._hang(f, block, "repeats with the same registers and memory")
        self.snapshot = state

    def _look_at_all(self, f: Fragment, block: BasicBlock, target: int) -> None:
        """Report loops that wait forever: memory has not changed for long, and each fragment that can run is in a state
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

    def _endless(self, f: Fragment, block: BasicBlock, how: str = "") -> NoReturn:
        """Report a loop that does not end, although its lanes still store or pass barriers. ``how``: the reason why it
        is known; otherwise it has used up the launch's steps."""
        f.fail(
            block.instructions[-1] if block.instructions else None,
            "endless loop",
            f"a loop {how}" if how else f"stopped after {self.steps:,} loop iterations of its blocks without an end",
            lanes=f.lanes.count,
            notes=[] if how else [_RAISE],
        )

    def _hang(self, f: Fragment, block: BasicBlock, how: str) -> NoReturn:
        waits = self.batch.asynchrony.stuck()
        if waits:
            report_stuck(f, waits, self.barrier_waits())
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


class _Followed:
    """A fragment's loop, and the values in its condition at the start of an iteration."""

    def __init__(self, f: Fragment, head: int) -> None:
        # fragments that split or unite are new ones
        self.fragment, self.program, self.calls = f, f.program, f.path()[:-1]
        self.form = form_of(f.program, head)
        self.values: tuple[bytes, ...] | None = None
        self.progress = 0


def _counts(f: Fragment, start: int) -> list[bytes]:
    """The counts of the outermost loops that a fragment at block ``start`` is in, as far as they are sure to end."""
    found: list[bytes] = []
    places = [frame.resume - 1 for frame in f.frames[1:]] + [start]
    for frame, place in zip(f.frames, places, strict=True):
        for form in loops_around(frame.program, place):
            count = form.count
            if count is None or not form.will_end(frame.regs):
                return found
            found.append(frame.regs[count.slot].tobytes())
    return found


def _state(f: Fragment, start: int) -> tuple[Any, ...]:
    """A fragment's place, lanes and registers, of its callers too, if it continues at block ``start``."""
    registers: list[bytes] = []
    after = [frame.resume for frame in f.frames[1:]] + [start]
    for frame, block in zip(f.frames, after, strict=True):
        values = [frame.regs[slot] for slot in frame.program.live[block]]
        # the result of a call that has not returned has no value
        registers += [value.tobytes() for value in values if value is not None]
    return (f.path()[:-1], start, f.program.name, f.lanes.lanes.tobytes(), registers)
