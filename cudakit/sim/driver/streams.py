"""Streams as queues: work is kept in a graph of operations and runs when something waits for it.

An operation may run once the operations it comes after are done: the one before it in its stream, the recorded work of
the events its stream waits for, and what the legacy default stream demands. Any order that respects this is one that
hardware may take. The scheduler takes the least expected: of the operations ready it runs the newest first, and work
that the host can see (copies to host memory, host functions) only when somebody waits for it. So a missing wait shows.

What is queued on a stream comes as ``Work``, which a stream that captures notes in its ``Capture`` instead.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cudakit.sim.driver.faults import OperationFault, Refused, Result, host_report
from cudakit.sim.lockstep.report import Origin

if TYPE_CHECKING:
    from cudakit.sim.driver.state import Context

ORDERS = ("newest", "oldest", "random")

_numbers = itertools.count()


@dataclass(eq=False, slots=True)
class Operation:
    """One piece of queued work.

    ``after`` are the operations that must be done first; ``visible`` says that the host sees it happen. ``reads`` and
    ``writes`` are ranges (address, size) of pinned host memory; ``touches_host`` that it may touch any of it.
    ``secure`` takes a copy of what it will read from the host, before something else overwrites it. ``clock`` says what
    is certain to be done before this starts: the last such operation of each stream, by stream number and serial.
    ``watched`` are a kernel's memories, each with its use and another's that nothing orders; ``poisoned`` says that its
    destination was filled with poison, which nothing but a mistake of the host changes before it runs.
    """

    stream: Stream
    label: str
    run: Callable[[], None] | None
    after: tuple[Operation, ...]
    serial: int
    visible: bool = False
    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    touches_host: bool = False
    secure: Callable[[], None] | None = None
    place: Origin | None = None
    clock: dict[int, int] = field(default_factory=dict)
    watched: list[tuple[Any, Use, Use]] = field(default_factory=list)
    poisoned: bool = False
    done: bool = False

    @property
    def ready(self) -> bool:
        return all(earlier.done for earlier in self.after)

    def finish(self) -> None:
        self.done = True
        # let go of everything: events keep done operations
        self.run = self.secure = None
        self.after = ()
        self.clock = {}
        self.watched = []

    def wait_for(self, others: Iterable[Operation]) -> None:
        """Start only once ``others``, all older, are done."""
        waited = tuple(other for other in others if not other.done)
        self.after += waited
        for other in waited:
            for number, serial in (*other.clock.items(), (other.stream.number, other.serial)):
                if self.clock.get(number, -1) < serial:
                    self.clock[number] = serial

    def comes_after(self, other: Operation) -> bool:
        """Whether ``other`` is certain to be done before this operation starts."""
        return other.done or self.clock.get(other.stream.number, -1) >= other.serial


@dataclass(eq=False, slots=True)
class Use:
    """What an operation does to one allocation. ``does`` is "reads" or "writes", to the bytes ``rows`` (address, width,
    height, pitch); or "uses", for a kernel that was given an address in it, and who knows what it does with it:
    ``marks`` are its footprint there (`footprints`) and ``wrote`` whether there are writes in it, once it has run."""

    operation: Operation
    does: str
    rows: tuple[int, int, int, int] | None = None
    marks: Any = None
    wrote: bool = False


@dataclass(eq=False, slots=True)
class Work:
    """What a call asks to be done on a stream: at once, or each time that the graph which captured it is launched.

    ``kind`` is "kernel", "memcpy", "memset" or "host". ``enqueue(stream, after)`` queues it on a stream, after
    the stream's own work and ``after``, with all checks as of then. ``check`` raises Refused where it cannot be done
    any more. ``details`` are what the node of a graph tells of it.
    """

    kind: str
    enqueue: Callable[[Stream, Iterable[Operation]], Operation]
    check: Callable[[], None] = lambda: None
    details: Any = None


@dataclass(eq=False, slots=True)
class Node:
    """A piece of work in a graph, done after the nodes ``after``. ``lane``: which of the captured streams it was on.
    ``kept`` is the memory in which its parameters were handed out."""

    handle: int
    work: Work
    after: tuple[Node, ...]
    lane: int
    kept: Any = None


@dataclass(eq=False, slots=True)
class Capture:
    """A capture that is under way. ``lanes`` are the streams in it, the first the one that it was begun on. ``broken``
    says what broke it, which nothing but its end can follow."""

    number: int
    graph: int
    lanes: list[Stream]
    place: Origin | None = None
    nodes: list[Node] = field(default_factory=list)
    broken: str = ""

    def add(self, stream: Stream, work: Work, handle: int) -> None:
        """Note work on one of its streams."""
        if self.broken:
            raise Refused(
                Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, f"the capture {self.place} was broken by {self.broken}"
            )
        node = Node(handle, work, tuple(stream.frontier), self.lanes.index(stream))
        self.nodes.append(node)
        stream.frontier = [node]

    def unjoined(self) -> list[Node]:
        """The nodes that its first stream does not come after."""
        reached: set[int] = set()
        stack = list(self.lanes[0].frontier)
        while stack:
            node = stack.pop()
            if node.handle not in reached:
                reached.add(node.handle)
                stack.extend(node.after)
        return [node for node in self.nodes if node.handle not in reached]


@dataclass(eq=False, slots=True)
class Stream:
    """A stream of a context. ``blocking``: ordered with the legacy default stream. ``vain`` is the line of the
    last wait for an event that had not been recorded: legal, and without effect. While it is part of a ``capture``,
    ``frontier`` are the nodes that what it is given next comes after."""

    context: Context
    handle: int
    flags: int
    priority: int
    legacy: bool = False
    last: Operation | None = None
    pending: deque[Operation] = field(default_factory=deque)
    place: Origin | None = None
    vain: Origin | None = None
    name: str = ""
    number: int = field(default_factory=lambda: next(_numbers))
    capture: Capture | None = None
    frontier: list[Node] = field(default_factory=list)

    @property
    def blocking(self) -> bool:
        return not self.flags & 1 and not self.legacy

    def expect_no_capture(self, breaks: str = "") -> None:
        """Refuse work on the legacy default stream while a stream that it waits for is being captured. ``breaks`` names
        the work, which breaks the capture."""
        for stream in self.context.all_streams():
            if stream.blocking and stream.capture is not None:
                if breaks:
                    stream.capture.broken = stream.capture.broken or f"{breaks} on the legacy default stream"
                raise Refused(
                    Result.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                    f"the legacy default stream waits for {stream}, which is being captured",
                )

    def __str__(self) -> str:
        if self.name:
            return self.name
        if self.legacy:
            return "the legacy default stream"
        return f"the stream made {self.place}" if self.place is not None else "a thread's own default stream"


@dataclass(eq=False, slots=True)
class Event:
    """An event; ``operation`` is the recording last enqueued, None before the first. ``captured``: the capture that it
    was last recorded in, if it was in one, and the nodes that were to be done by then."""

    context: Context
    handle: int
    flags: int
    operation: Operation | None = None
    place: Origin | None = None
    captured: tuple[Capture, tuple[Node, ...]] | None = None


class Scheduler:
    """All queued work of a driver. ``order`` is one of ``ORDERS``; ``seed`` makes "random" repeatable."""

    def __init__(self, order: str = "newest", seed: int = 0) -> None:
        if order not in ORDERS:
            raise ValueError(f"no order {order!r}; there are {', '.join(ORDERS)}")
        self.order = order
        self._random = random.Random(seed)
        self._serial = 0
        self._busy: dict[int, Stream] = {}
        self.executed = 0

    def enqueue(
        self,
        stream: Stream,
        label: str,
        run: Callable[[], None] | None = None,
        *,
        after: Iterable[Operation] = (),
        **details: Any,
    ) -> Operation:
        """Add work at the end of a stream, after what the stream, the legacy default stream and ``after`` demand."""
        earlier = [operation for operation in after if not operation.done]
        if stream.last is not None:
            earlier.append(stream.last)
        context = stream.context
        if stream.legacy:
            stream.expect_no_capture(breaks=label)
            earlier.extend(s.last for s in context.all_streams() if s.blocking and s.last is not None)
        elif stream.blocking and context.legacy.last is not None:
            earlier.append(context.legacy.last)
        self._serial += 1
        operation = Operation(stream, label, run, (), self._serial, **details)
        operation.wait_for(earlier)
        stream.last = operation
        stream.pending.append(operation)
        self._busy[id(stream)] = stream
        return operation

    def pending(self) -> Iterator[Operation]:
        """Everything not done yet, stream by stream."""
        for stream in self._busy.values():
            yield from stream.pending

    def pending_of(self, context: Context) -> list[Operation]:
        """The last operation of every stream of a context, streams destroyed meanwhile included."""
        return [s.pending[-1] for s in self._busy.values() if s.context is context and s.pending]

    def finish(self, targets: Iterable[Operation]) -> None:
        """Run until all of ``targets`` are done."""
        wanted = [operation for operation in targets if not operation.done]
        if not wanted:
            return
        needed = self._needed(wanted)
        while any(not operation.done for operation in wanted):
            self._run(self._choose(needed, only_needed=False))

    def step(self, target: Operation) -> None:
        """Run one operation that ``target`` waits for (or is), if it is not done: what a query does."""
        if not target.done:
            self._run(self._choose(self._needed([target]), only_needed=True))

    def cancel(self, context: Context) -> None:
        """Drop all pending work of a context that was lost or destroyed: it counts as done."""
        for key, stream in list(self._busy.items()):
            if stream.context is context:
                for operation in stream.pending:
                    operation.finish()
                stream.pending.clear()
                del self._busy[key]

    @staticmethod
    def _needed(targets: Iterable[Operation]) -> set[int]:
        needed: set[int] = set()
        stack = list(targets)
        while stack:
            operation = stack.pop()
            if operation.done or operation.serial in needed:
                continue
            needed.add(operation.serial)
            stack.extend(operation.after)
        return needed

    def _choose(self, needed: set[int], *, only_needed: bool) -> Operation:
        ready = [
            head
            for stream in self._busy.values()
            if (head := stream.pending[0]).ready and (head.serial in needed or not (only_needed or head.visible))
        ]
        if self.order == "random":
            return self._random.choice(ready)
        choose = max if self.order == "newest" else min
        return choose(ready, key=lambda operation: operation.serial)

    def _run(self, operation: Operation) -> None:
        stream = operation.stream
        context = stream.context
        run = operation.run
        self.executed += 1
        try:
            if run is not None:
                run()
        except OperationFault as fault:
            context.lose(fault.code, fault.report)
            self.cancel(context)
            return
        except BaseException:
            # a bug of the simulator, or Ctrl-C: leave the queues consistent, then say so
            context.lose(
                Result.CUDA_ERROR_UNKNOWN,
                host_report("interrupted", f"{operation.label} did not end", operation.label, operation.place),
            )
            self.cancel(context)
            raise
        stream.pending.popleft()
        operation.finish()
        if not stream.pending:
            del self._busy[id(stream)]
