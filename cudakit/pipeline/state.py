"""The state that the threads of a run share: free buffers, queues, the first failure, the times per stage."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cudakit.errors import ContextLost, DeviceFault
from cudakit.pipeline.buffers import ChunkBuffer
from cudakit.pipeline.report import ChunkSpan
from cudakit.pipeline.tickets import Ticket


@dataclass(frozen=True)
class Failure:
    """An error that stopped a run, with its chunk and stage."""

    ticket: Ticket
    stage: str
    error: BaseException

    @property
    def rank(self) -> tuple[bool, int]:
        """The failure with the lowest rank is reported: faults before lost contexts, then the earliest chunk."""
        late = isinstance(self.error, ContextLost) and not isinstance(self.error, DeviceFault)
        return late, self.ticket.index


class Stopped(Exception):
    """The run was stopped, so this thread must end."""


@dataclass
class StageTimes:
    """Seconds per stage. rates: bytes per second of whole chunks."""

    busy: dict[str, float] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    quickest: float | None = None  # seconds per item of the function's work on the device, in the fastest chunk
    kernels: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # begin and end of that work per device
    waited: dict[str, float] = field(default_factory=dict)
    spans: list[ChunkSpan] = field(default_factory=list)

    def add_wait(self, what: str, begin: float) -> None:
        """Add the time since `begin` (perf_counter) to the time waited for `what`."""
        self.waited[what] = self.waited.get(what, 0.0) + time.perf_counter() - begin


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds in which at least one of the spans (begin, end) runs."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


class State:
    """A condition and the data that it guards. Every wait ends when the run is stopped."""

    def __init__(self, timeline: bool) -> None:
        self.condition = threading.Condition()
        self.in_free: deque[ChunkBuffer] = deque()
        self.out_free: deque[ChunkBuffer] = deque()
        self.ready: dict[int, Ticket] = {}
        self.handed = 0  # tickets handed out
        self.end: int | None = None  # number of tickets; None until it is known
        self.computed: deque[Ticket] = deque()
        self.no_more = False  # no more chunks will be queued
        self.failure: Failure | None = None
        self.stopped = False
        self.items_done = self.chunks_done = self.bytes_in = self.bytes_out = 0
        self.begin = time.perf_counter()
        self.times = StageTimes()
        self._timeline = timeline

    def wait_for(self, met: Callable[[], Any], what: str | None = None, tick: Callable[[], float] | None = None) -> Any:
        """Wait until `met()`, called with the lock held, returns a true value, and return that. Raises Stopped.

        what: the name under which the waiting time is added. tick: called without the lock while waiting; returns the
        seconds until its next call.
        """
        begin = time.perf_counter()
        while True:
            pause = tick() if tick is not None else None
            with self.condition:
                if self.stopped:
                    raise Stopped
                value = met()
                if value:
                    if what is not None:
                        self.times.add_wait(what, begin)
                    return value
                self.condition.wait(pause)

    def over(self, ticket: Ticket) -> bool:
        """Whether a chunk before this one has failed."""
        return self.failure is not None and self.failure.ticket.index < ticket.index

    def put(self, queue: deque[Any], thing: Any) -> None:
        """Add to a queue and wake the threads that wait for it."""
        with self.condition:
            queue.append(thing)
            self.condition.notify_all()

    def fail(self, ticket: Ticket, stage: str, error: BaseException) -> None:
        """Stop the run. If several failures occur, the one with the lowest rank is reported."""
        with self.condition:
            failure = Failure(ticket, stage, error)
            if self.failure is None or failure.rank < self.failure.rank:
                self.failure = failure
            self.stopped = True
            self.condition.notify_all()

    def note(self, stage: str, lane: str, ticket: Ticket, begin: float, end: float, nbytes: int = 0) -> None:
        """Record that a stage of a chunk ran from `begin` to `end` (perf_counter)."""
        with self.condition:
            times = self.times
            times.busy[stage] = times.busy.get(stage, 0.0) + end - begin
            if nbytes and end > begin:
                times.rates.setdefault(stage, []).append(nbytes / (end - begin))
            if self._timeline:
                times.spans.append(ChunkSpan(lane, stage, ticket.index, begin - self.begin, end - self.begin))
