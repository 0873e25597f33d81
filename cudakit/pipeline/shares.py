"""The division of a cluster run's items into shares: one range of items at a time per worker, sized by its rate.

Pure bookkeeping, without Dask: `cluster` assigns the shares that this returns, and reports what became of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cudakit.pipeline.ranges import Range, merged

FIRST = 8  # first shares per worker, while no rate is known: a share is a 1/FIRST part of the worker's even part
AHEAD = 2  # shares per worker: the one at work, and the next, so that its pipeline does not run empty
LEAST_SECONDS = 0.1  # of work in a share; with less, the cost of assigning it would count
MOST_SECONDS = 30.0  # of work in a share: the most that is lost with a worker
LOSSES = 3  # workers that may be lost while they compute the same items
_SILENCE = 1.0  # seconds without a result, after which a worker's known rate is doubted
_SAMPLES = 16  # reports of a worker that its rate is taken from


class ItemsLost(Exception):
    """Every worker that computed these items was lost. args: start, stop, number of workers."""


@dataclass(eq=False)
class Share:
    """A range of items that one worker computes. rival: the share of another worker with the same items."""

    number: int
    start: int
    stop: int
    worker: str
    rival: Share | None = None

    @property
    def length(self) -> int:
        """Number of items."""
        return self.stop - self.start


@dataclass(eq=False)
class Member:
    """A worker: its open shares in order, the items of its adopted shares, and reports (time, all items computed).

    settled: items of the shares that it has computed or dropped. here: whether it is in the cluster. known: its rate
    before the reports.
    """

    open: list[Share] = field(default_factory=list)
    here: bool = True
    adopted: int = 0
    shares: int = 0
    computed: int = 0
    settled: int = 0
    known: float | None = None
    reports: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def rate(self, now: float) -> float | None:
        """Items per second, from the last reports; None if it has computed none."""
        if not self.reports:
            return self.known
        begin, before = self.reports[0]
        seconds, done = max(now - begin, 1e-6), self.computed - before
        if done:
            self.known = done / seconds
        elif self.known is not None and seconds > _SILENCE:
            return min(self.known, 1 / seconds)
        return self.known

    def left(self) -> int:
        """Items of its open shares that it has not computed."""
        return max(sum(share.length for share in self.open) - max(self.computed - self.settled, 0), 0)

    def seconds_left(self, now: float) -> float:
        """Estimated time for its open shares. A worker without a result so far is assumed to have one item now."""
        rate = self.rate(now)
        if rate is None:
            rate = 1 / max(now - self.reports[0][0], 1e-6) if self.reports else math.inf
        return self.left() / rate


class Shares:
    """The items of a run: unassigned, at workers, and finished.

    Args:
        ranges: The items to compute, merged.
        unit: Shares start at multiples of this, and end at one or at the end of a range.
        rivals: Whether a share may be computed by two workers at once, at the end of a run.
    """

    def __init__(self, ranges: Iterable[Range], unit: int, *, rivals: bool) -> None:
        self._pool = merged(ranges)
        self._unit, self._rivals = unit, rivals
        self._count = sum(stop - start for start, stop in self._pool)
        self._lost: dict[int, int] = {}  # first item of a lost share: workers lost
        self._numbers = 0
        self.members: dict[str, Member] = {}
        self.taken = 0  # unstarted shares that were assigned to another worker
        self.doubled = 0  # shares that two workers computed at once

    @property
    def unassigned(self) -> int:
        """Number of items that no worker has."""
        return sum(stop - start for start, stop in self._pool)

    @property
    def over(self) -> bool:
        """Whether every item is finished."""
        return not self._pool and not any(member.open for member in self.members.values())

    def join(self, worker: str) -> None:
        """Add a worker, new or returned."""
        member = self.members.setdefault(worker, Member())
        if not member.here:
            member.here, member.computed, member.settled = True, 0, 0
            member.reports.clear()

    def leave(self, worker: str) -> None:
        """Assign no further shares to a worker; call `forfeit` for those it has."""
        self.members[worker].here = False

    def forfeit(self, worker: str) -> list[Share]:
        """Return the shares that a worker has lost; their items are unassigned again, unless a rival has them. Raises
        ItemsLost if too many workers were lost with the first of them."""
        shares, self.members[worker].open = self.members[worker].open, []
        for place, share in enumerate(shares):
            if share.rival is not None:
                share.rival.rival = None
                continue
            self._return(share)
            if place == 0:  # the one at work
                losses = self._lost[share.start] = self._lost.get(share.start, 0) + 1
                if losses >= LOSSES:
                    raise ItemsLost(share.start, share.stop, losses)
        return shares

    def computed(self, worker: str, items: int, now: float) -> None:
        """Record a worker's report: the number of items it has computed in this run."""
        member = self.members[worker]
        member.computed = max(member.computed, items)
        member.reports.append((now, member.computed))

    def finish(self, share: Share, now: float) -> Share | None:
        """Record that a share's results are in place. Returns its rival, which must be stopped."""
        self._settle(share)
        member = self.members[share.worker]
        member.adopted += share.length
        member.shares += 1
        member.computed = max(member.computed, member.settled)
        member.reports.append((now, member.computed))
        rival, share.rival = share.rival, None
        if rival is not None:
            rival.rival = None
            self._settle(rival)
        return rival

    def assign(self, now: float) -> tuple[list[Share], list[Share]]:
        """Return new shares for the workers that have few, and the shares that their workers are to drop."""
        new: list[Share] = []
        dropped: list[Share] = []
        here = {worker: member for worker, member in self.members.items() if member.here}
        for depth in range(1, AHEAD + 1):
            for worker, member in here.items():
                if len(member.open) < depth and self._pool:
                    new.append(self._take(worker, self._size(member, now), now))
        idle = [worker for worker, member in here.items() if not member.open]
        for worker in idle if not self._pool else ():
            dropped += self._unstarted(worker, now)
            if self._pool:
                new.append(self._take(worker, self._size(self.members[worker], now), now))
            elif self._rivals and (twin := self._rival(worker, now)) is not None:
                new.append(twin)
        return new, dropped

    def _size(self, member: Member, now: float) -> int:
        """Items for a worker's next share: half of its part of the unassigned ones, so that all end together."""
        rate, left = member.rate(now), self.unassigned
        others = [other for other in self.members.values() if other.here]
        known = [value for value in (other.rate(now) for other in others) if value]
        if rate is None or not known:
            return max(self._count // (FIRST * len(others)), 1)
        missing = len(others) - len(known)
        every = sum(known) * (1 + missing / len(known))
        return int(min(max(left * rate / every / 2, rate * LEAST_SECONDS, 1), max(rate * MOST_SECONDS, 1)))

    def _take(self, worker: str, size: int, now: float) -> Share:
        """Move the first unassigned items to a worker: about `size`, in whole units."""
        start, stop = self._pool[0]
        end = min(-(-(start + size) // self._unit) * self._unit, stop)
        if end < stop:
            self._pool[0] = (end, stop)
        else:
            self._pool.pop(0)
        return self._open(worker, start, end, now)

    def _open(self, worker: str, start: int, stop: int, now: float, rival: Share | None = None) -> Share:
        member = self.members[worker]
        if not member.open:  # a rate counts no time without work
            member.reports.clear()
            member.reports.append((now, member.computed))
        share = Share(self._numbers, start, stop, worker, rival)
        self._numbers += 1
        self.members[worker].open.append(share)
        return share

    def _return(self, share: Share) -> None:
        self._pool = merged([*self._pool, (share.start, share.stop)])

    def _settle(self, share: Share) -> None:
        member = self.members[share.worker]
        if share in member.open:
            member.open.remove(share)
            member.settled += share.length

    def _unstarted(self, worker: str, now: float) -> list[Share]:
        """Take the last unstarted share of the worker that would finish last, if `worker` would finish it earlier."""
        slow = max(
            (member for member in self.members.values() if len(member.open) > 1),
            key=lambda member: member.seconds_left(now), default=None,
        )  # fmt: skip
        if slow is None or slow.seconds_left(now) <= self._seconds(worker, slow.open[-1], now):
            return []
        share = slow.open.pop()
        self._return(share)
        self.taken += 1
        return [share]

    def _rival(self, worker: str, now: float) -> Share | None:
        """Assign the share that would be finished last to a second worker, if that would finish it in half the time."""
        slow = max(
            (member for member in self.members.values() if member.open and member.open[0].rival is None),
            key=lambda member: member.seconds_left(now), default=None,
        )  # fmt: skip
        if slow is None:
            return None
        share = slow.open[0]
        if slow.seconds_left(now) < 2 * self._seconds(worker, share, now) + LEAST_SECONDS:
            return None
        share.rival = self._open(worker, share.start, share.stop, now, share)
        self.doubled += 1
        return share.rival

    def _seconds(self, worker: str, share: Share, now: float) -> float:
        """Estimated time of a worker for a share."""
        rate = self.members[worker].rate(now)
        return share.length / rate if rate else math.inf
