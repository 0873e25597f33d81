"""The objects of a simulated driver: devices, contexts and the objects made in them, memory, streams and queued work.

Work is queued on a stream as ``QueuedWork``; if the stream is being captured, it is added to its ``StreamCapture``.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cudakit.sim.chips.properties import Chip
from cudakit.sim.driver.faults import CallError, Result
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.report import FaultReport, Origin

_numbers = itertools.count()


@dataclass(eq=False, slots=True)
class Operation:
    """One piece of queued work.

    ``after`` are the operations that must be done first; ``visible``: it has effects on the host. ``reads`` and
    ``writes`` are ranges (address, size) of pinned host memory; ``touches_host``: it may access any pinned memory.
    ``secure`` copies the host memory that it will read, before something else overwrites it. ``clock`` maps a stream's
    number to the serial of its last operation that is certain to be done before this one starts. ``blocked`` counts the
    operations of ``after`` that are not done; ``followers`` are the operations that wait for this one. ``watched``: per
    allocation of a kernel, its use and an unordered use by another operation. ``poisoned``: its destination was filled
    with poison, and only a mistake in host code changes that before it runs. ``puts``: the region that a copy or fill
    writes, and a function ``values(row, start, stop)`` that returns its bytes; None if they are not known yet.
    ``overlaps``: the predecessor of a programmatic dependent launch, with which it may run at the same time.
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
    puts: tuple[Any, Callable[[int, int, int], Any] | None] | None = None
    kernel: bool = False
    overlaps: Operation | None = None
    done: bool = False
    blocked: int = 0
    followers: list[Operation] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return not self.blocked and not self.done

    def finish(self) -> list[Operation]:
        """Mark the operation as done; returns the operations that may start now."""
        self.done = True
        followers, self.followers = self.followers, []
        for follower in followers:
            follower.blocked -= 1
        # release the data: events keep operations that are done
        self.run = self.secure = self.puts = self.overlaps = None
        self.after = ()
        self.clock = {}
        self.watched = []
        return [follower for follower in followers if follower.ready]

    def wait_for(self, others: Iterable[Operation]) -> None:
        """Delay this operation until ``others``, which are all older, are done."""
        waited = tuple(other for other in others if not other.done)
        self.after += waited
        self.blocked += len(waited)
        for other in waited:
            other.followers.append(self)
            for number, serial in (*other.clock.items(), (other.stream.number, other.serial)):
                if self.clock.get(number, -1) < serial:
                    self.clock[number] = serial

    def comes_after(self, other: Operation) -> bool:
        """Whether ``other`` is certain to be done before this operation starts."""
        return other.done or self.clock.get(other.stream.number, -1) >= other.serial


@dataclass(eq=False, slots=True)
class Use:
    """The use of one allocation by an operation. ``does`` is "reads" or "writes" for a copy or fill of the bytes
    ``rows`` (address, width, height, pitch); "uses" for a kernel that has an address in the allocation among its
    arguments. After the kernel has run, ``marks`` are its footprint (`footprints`) and ``wrote`` is whether that
    contains writes."""

    operation: Operation
    does: str
    rows: tuple[int, int, int, int] | None = None
    marks: Any = None
    wrote: bool = False


@dataclass(eq=False, slots=True)
class QueuedWork:
    """The work that a call queues on a stream: at once, or at each launch of the graph that captured it.

    ``kind`` is "kernel", "memcpy", "memset" or "host". ``enqueue(stream, after)`` checks it and queues it on a stream,
    after the stream's own work and ``after``. ``check`` raises CallError if it is no longer possible. ``details`` are
    the parameters that the graph node reports.
    """

    kind: str
    enqueue: Callable[[Stream, Iterable[Operation]], Operation]
    check: Callable[[], None] = lambda: None
    details: Any = None


@dataclass(eq=False, slots=True)
class GraphNode:
    """The work of a graph node, which runs after the nodes ``after``. ``lane``: the captured stream that it was on, as
    an index. ``kept`` keeps the memory of its reported parameters alive."""

    handle: int
    work: QueuedWork
    after: tuple[GraphNode, ...]
    lane: int
    kept: Any = None


@dataclass(eq=False, slots=True)
class StreamCapture:
    """A capture in progress. ``lanes`` are its streams; it was begun on the first, by ``thread`` in ``mode``.
    ``broken`` is the reason why the capture is invalid, if it is; an invalid capture can only be ended."""

    number: int
    graph: int
    lanes: list[Stream]
    mode: Any
    thread: int = field(default_factory=threading.get_ident)
    place: Origin | None = None
    nodes: list[GraphNode] = field(default_factory=list)
    broken: str = ""

    def add(self, stream: Stream, work: QueuedWork, handle: int) -> None:
        """Add work of one of the captured streams."""
        if self.broken:
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                f"the capture {self.place} was invalidated by {self.broken}",
            )
        node = GraphNode(handle, work, tuple(stream.frontier), self.lanes.index(stream))
        self.nodes.append(node)
        stream.frontier = [node]

    def unjoined(self) -> list[GraphNode]:
        """The nodes that the first captured stream does not wait for."""
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
    """A stream of a context. ``blocking``: ordered with the legacy default stream. ``vain`` is the line of the last
    wait for an event that had not been recorded; such a wait is legal and has no effect. While the stream is part of a
    ``capture``, ``frontier`` are the nodes that its next work comes after."""

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
    capture: StreamCapture | None = None
    frontier: list[GraphNode] = field(default_factory=list)

    @property
    def blocking(self) -> bool:
        return not self.flags & 1 and not self.legacy

    def expect_no_capture(self, breaks: str = "") -> None:
        """Raise CallError for work on the legacy default stream while a stream that it waits for is being captured.
        ``breaks`` names work that invalidates the capture."""
        for stream in self.context.all_streams():
            if stream.blocking and stream.capture is not None:
                if breaks:
                    stream.capture.broken = stream.capture.broken or f"{breaks} on the legacy default stream"
                raise CallError(
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
    """An event. ``operation`` is the last queued record, None if there is none. ``captured``: if it was last recorded
    in a capture, the capture and the nodes before the record."""

    context: Context
    handle: int
    flags: int
    operation: Operation | None = None
    place: Origin | None = None
    captured: tuple[StreamCapture, tuple[GraphNode, ...]] | None = None


@dataclass(eq=False)
class Pool:
    """A stream-ordered memory pool: ``used`` bytes are in allocations, ``reserved`` bytes are taken from the device (at
    least ``used``)."""

    handle: int
    device: Device
    threshold: int = 0
    used: int = 0
    used_high: int = 0
    reserved: int = 0
    reserved_high: int = 0
    flags: dict[int, int] = field(default_factory=dict)
    place: Origin | None = None

    def take(self, size: int) -> None:
        self.used += size
        self.used_high = max(self.used_high, self.used)
        self.reserved = max(self.reserved, self.used)
        self.reserved_high = max(self.reserved_high, self.reserved)

    def trim(self, keep: int) -> None:
        """Return unused memory to the device, except ``keep`` bytes."""
        self.reserved = min(self.reserved, max(self.used, keep))


@dataclass(eq=False)
class MemoryRecord:
    """The driver's record of an allocation: device memory (of ``pool`` if stream-ordered) or pinned host memory.

    ``made`` is the operation that allocates it, while pending; ``uses`` is the pending work on it, by stream number;
    ``freed_at`` is the line of a pending free.
    """

    allocation: Allocation
    context: Context
    pool: Pool | None = None
    made: Operation | None = None
    uses: dict[int, deque[Use]] = field(default_factory=dict)
    freed_at: Origin | None = None
    registered: bool = False
    flags: int = 0
    number: int = 0

    @property
    def freeing(self) -> bool:
        return self.freed_at is not None

    @property
    def size(self) -> int:
        """Bytes that the allocation takes from the device: a multiple of 512."""
        return -(-self.allocation.size // 512) * 512


@dataclass(eq=False)
class Device:
    """One simulated device."""

    ordinal: int
    chip: Chip
    total_memory: int
    attributes: dict[int, int]
    allocated: int = 0
    retained: int = 0
    primary: Context = field(init=False)
    pools: list[Pool] = field(default_factory=list)
    pool: Pool = field(init=False)
    default_pool: Pool = field(init=False)

    @property
    def free_memory(self) -> int:
        return self.total_memory - self.allocated - sum(pool.reserved for pool in self.pools)


@dataclass(eq=False)
class Context:
    """A context: the objects made in it, and its state (``sticky`` is the error by which it was lost)."""

    handle: int
    device: Device
    legacy: Stream = field(init=False)
    flags: int = 0
    active: bool = True
    sticky: Any = None
    report: FaultReport | None = None
    mistakes: list[FaultReport] = field(default_factory=list)
    told: set[Any] = field(default_factory=set)
    streams: dict[int, Stream] = field(default_factory=dict)
    per_thread: dict[int, Stream] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    modules: dict[int, Any] = field(default_factory=dict)
    graphs: dict[int, Any] = field(default_factory=dict)
    peers: set[int] = field(default_factory=set)
    limits: dict[int, int] = field(default_factory=dict)

    def all_streams(self) -> Iterator[Stream]:
        yield self.legacy
        yield from self.streams.values()
        yield from self.per_thread.values()
