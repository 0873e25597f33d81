"""Stream and Event: the order of work on a device.

with Stream(context) as s:
    x.copy_from(host, stream=s)
    copied = s.record()
    other.wait(copied)          # work queued on `other` from here on starts after the copy
    s.synchronize()
"""

from __future__ import annotations

import operator
import weakref
from typing import Any

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.errors import NOT_READY, NOT_SUPPORTED, Closed, CudakitError, DeviceMismatch, failure

LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: what the handle 0 means, but not to be taken for "no stream"
PER_THREAD_DEFAULT = 2


def foreign_handle(stream: Any) -> int:
    """The handle that an object's `__cuda_stream__` returns. Raises TypeError if it does not return (0, handle)."""
    name = type(stream).__name__
    try:
        protocol = getattr(stream, "__cuda_stream__", None)
        said = protocol() if callable(protocol) else protocol
    except CudakitError:  # one of ours in a wrapper, say closed
        raise
    except Exception as error:
        raise TypeError(f"{name}.__cuda_stream__() failed with {error!r}: it must return (0, handle)") from error
    if protocol is None:
        raise TypeError(f"{name} is no stream: give a Stream, or an object whose __cuda_stream__() returns (0, handle)")
    if not isinstance(said, (tuple, list)) or len(said) != 2:
        raise TypeError(f"{name}.__cuda_stream__() returned {said!r}: it must return (0, handle)")
    version, handle = said
    if version != 0:
        raise TypeError(f"{name}.__cuda_stream__ is of version {version!r}; only 0 is known")
    try:
        address = operator.index(handle)
    except TypeError:
        address = -1
    if isinstance(handle, bool) or not 0 <= address < 2**64:
        raise TypeError(f"{name}.__cuda_stream__() returned the handle {handle!r}: it must be a stream's address")
    return address


class Stream:
    """A queue of work on one device.

    context: whose. priority: smaller runs first; clamped to context.stream_priorities(). blocking: ordered with the
    legacy default stream, as CUDA's plain streams are; a Stream is not unless asked. handle: a foreign stream's address
    (an int), which is used and never destroyed; `owner` is kept alive with it.

    `handle` is the driver's own handle; `int(stream)` its address.
    """

    def __init__(
        self,
        context: Context,
        priority: int = 0,
        *,
        blocking: bool = False,
        handle: int | None = None,
        owner: object = None,
    ) -> None:
        self.context = context
        self.owner = owner
        self.closed = False
        # An object of this stream's own while it is open, by which a launch plan knows it again without keeping it.
        self.tag = object()
        self.end: StreamEnd | None = None  # None for a foreign stream
        self.kept: dict[Any, Any] = {}  # what the layers above keep for as long as the stream: its cuBLAS
        self._finalizer: weakref.finalize[Any, Any] | None = None
        if handle is None:
            flags = context.driver.CUstream_flags
            flag = int(flags.CU_STREAM_DEFAULT if blocking else flags.CU_STREAM_NON_BLOCKING)
            with context.relaxed():
                self.handle: Any = context.call("cuStreamCreateWithPriority", flag, priority)
            self.end = StreamEnd(self)
            self._finalizer = context.adopt(self, self.end.reach)
            context.streams[int(self.handle)] = self
        else:
            context.make_current()
            self.handle = context.driver.CUstream(handle) if context.kind == "gpu" else int(handle)

    @classmethod
    def of(cls, context: Context, stream: Any) -> Stream:
        """`stream` itself, or a Stream over any object with `__cuda_stream__` (version 0), on `context`'s device.

        Raises DeviceMismatch for a stream of another device, TypeError for anything else.
        """
        if isinstance(stream, Stream):
            if stream.context is not context and not stream.context.same_device(context):
                theirs = stream.context
                raise DeviceMismatch(
                    f"a stream of {theirs.spec} was given to {context.spec}{theirs.told_apart(context)}: make one with "
                    "its stream()"
                )
            return stream
        handle = foreign_handle(stream)
        own: Stream | None = context.streams.get(handle)
        if own is not None and not own.closed:
            return own  # one of ours in another library's wrapper: its closing must be seen
        foreign = cls(context, handle=handle, owner=stream)
        if context.kind == "gpu" and handle > PER_THREAD_DEFAULT and not context.alone:
            theirs = context.call("cuStreamGetCtx", foreign.handle)
            if int(theirs) != int(context.handle):
                raise DeviceMismatch(f"the {type(stream).__name__} belongs to another device than {context.spec}")
        return foreign

    def __repr__(self) -> str:
        return f"Stream({self.context.spec!r}, handle={int(self):#x}{', closed' if self.closed else ''})"

    def __int__(self) -> int:
        return int(self.handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's (version, handle)."""
        return 0, int(self.expect_open())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect_open(self) -> Any:
        """Its handle. Raises Closed if it or its device was closed."""
        if self.closed or (self._finalizer is not None and not self._finalizer.alive):
            _expect_device(self.context)
            raise Closed(f"{self!r} was closed: make another with the device's stream()")
        return self.handle

    @property
    def foreign(self) -> bool:
        """Whether the stream is another library's (torch's, say), or one of the driver's own default streams."""
        return self._finalizer is None

    @property
    def last(self) -> Event | None:
        """The end of what was queued, recorded when the stream was closed: later frees are ordered after it."""
        return None if self.end is None else self.end.last

    @property
    def capturing(self) -> bool:
        """Whether it is being captured into a graph, by this library or another."""
        code, status = self.context.driver.cuStreamIsCapturing(self.handle)
        return not code and bool(status)

    @property
    def priority(self) -> int:
        """Its priority, as the driver clamped it."""
        return int(self.context.call("cuStreamGetPriority", self.expect_open()))

    def synchronize(self) -> None:
        """Wait until all of it is done, and raise what any of it failed with."""
        handle = self.expect_open()
        with nvtx.range("synchronize stream"):
            self.context.call("cuStreamSynchronize", handle)
        self.context.in_flight.prune(int(handle))

    def query(self) -> bool:
        """Whether all of it is done, without waiting. Raises what any of it failed with."""
        self.context.make_current()
        return _ready(self.context, "cuStreamQuery", self.context.driver.cuStreamQuery(self.expect_open()))

    @property
    def done(self) -> bool:
        """`query()`."""
        return self.query()

    def record(self, timing: bool = True) -> Event:
        """An event that happens when all that is now queued is done. timing: whether elapsed_since() can use it."""
        event = Event(self.context, timing=timing)
        try:
            event.record(self)
        except BaseException:
            event.close()
            raise
        return event

    def wait(self, event: Event | Stream) -> None:
        """Have work queued from here on start after `event`, or after all that is now queued on another stream."""
        if isinstance(event, Stream):
            with event.record(timing=False) as recorded:
                self.wait(recorded)
            return
        if not isinstance(event, Event):
            raise TypeError(
                f"wait() takes an Event or a Stream, not {type(event).__name__}: give what another stream's record() "
                "returns, or that stream"
            )
        if event.context.driver is not self.context.driver:
            mine, theirs = self.context, event.context
            raise DeviceMismatch(
                f"an event of {theirs.spec} cannot be waited for on {mine.spec}{theirs.told_apart(mine)}"
            )
        self.context.call("cuStreamWaitEvent", self.expect_open(), event.expect_open(), 0)

    def capture(self) -> Any:
        """Capture what is queued on the stream in a `with` block into a Graph, instead of running it.

            with stream.capture() as graph:
                kernel.launch(stream, ...)
            ready = graph.instantiate()
            ready.launch(stream)

        See `cudakit.graph.capture`, which this is.
        """
        if self.context.device_object is None:
            raise CudakitError("a stream of a bare Context is captured by cudakit.graph.capture(stream)")
        return self.context.device_object.capture(self)

    def close(self) -> None:
        """Destroy the stream; what is queued still runs. Idempotent. A foreign stream is only let go of."""
        if self.closed:
            return
        self.kept.clear()
        if self._finalizer is not None:
            self._finalizer()
        self.closed = True
        self.tag = object()
        self.owner = None


class StreamEnd:
    """The part of one of cudakit's own streams that outlives it, for what is ordered after its work.

    closed: whether the stream was closed or dropped. last: the end of what was queued by then, once it is closed; None
    if it could not be recorded: a lost or closed context, or a forked child.
    """

    __slots__ = ("_stream", "closed", "context", "handle", "last")

    foreign = False
    owner = None

    def __init__(self, stream: Stream) -> None:
        self.context = stream.context
        self.handle = stream.handle
        self.closed = False
        self.last: Event | None = None
        self._stream = weakref.ref(stream)

    def __int__(self) -> int:
        return int(self.handle)

    @property
    def stream(self) -> Stream | None:
        """The stream; None once it was closed or dropped."""
        return None if self.closed else self._stream()

    def reach(self) -> None:
        """Destroy the stream. What is queued still runs. For finalizers: never raises."""
        context = self.context
        self.closed = True
        if not context.closed:
            self.last = Event.recorded(context, self.handle)
        context.attempt("cuStreamDestroy", self.handle)


class Event:
    """A moment in a stream's work.

    timing: whether it keeps the time, which costs a little. blocking: synchronize() sleeps instead of spinning.
    """

    def __init__(self, context: Context, *, timing: bool = True, blocking: bool = False) -> None:
        flags = context.driver.CUevent_flags
        flag = 0 if timing else int(flags.CU_EVENT_DISABLE_TIMING)
        if blocking:
            flag |= int(flags.CU_EVENT_BLOCKING_SYNC)
        self._own(context, timing, context.call("cuEventCreate", flag))

    def _own(self, context: Context, timing: bool, handle: Any) -> None:
        self.context = context
        self.timing = timing
        self.handle = handle
        self._finalizer = context.adopt_handle(self, "cuEventDestroy", handle)

    @classmethod
    def recorded(cls, context: Context, stream: Any) -> Event | None:
        """An event of cudakit's own at the end of what is queued on a stream (a driver handle), or None if that fails.

        For finalizers: never raises, and leaves what is current on the thread as it was.
        """
        primary = context.primary
        made = primary.quiet("cuEventCreate", int(context.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        if made is None or made[0]:
            return None
        if primary.attempt("cuEventRecord", made[1], stream):
            primary.attempt("cuEventDestroy", made[1])
            return None
        event = cls.__new__(cls)
        event._own(context, False, made[1])
        context.own.add(event)
        return event

    def __repr__(self) -> str:
        return f"Event({self.context.spec!r}{'' if self._finalizer.alive else ', closed'})"

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect_open(self) -> Any:
        """Its handle. Raises Closed if it or its device was closed."""
        if not self._finalizer.alive:
            _expect_device(self.context)
            raise Closed(f"{self!r} was closed: record another with stream.record()")
        return self.handle

    @property
    def alive(self) -> bool:
        """Whether it still has its handle."""
        return self._finalizer.alive

    def record(self, stream: Stream) -> None:
        """Move the event to the end of what is now queued on `stream`."""
        if not isinstance(stream, Stream):
            raise TypeError(
                f"record() takes the Stream to record, not {type(stream).__name__}: give a stream of the device, such "
                "as its default_stream"
            )
        if not stream.context.same_device(self.context):
            mine, theirs = self.context, stream.context
            raise DeviceMismatch(
                f"an event of {mine.spec} was given a stream of {theirs.spec}{mine.told_apart(theirs)}"
            )
        self.context.call("cuEventRecord", self.expect_open(), stream.expect_open())

    def synchronize(self) -> None:
        """Wait until it has happened, and raise what the work before it failed with."""
        with nvtx.range("synchronize event"):
            self.context.call("cuEventSynchronize", self.expect_open())

    def query(self) -> bool:
        """Whether it has happened, without waiting. An event never recorded has."""
        self.context.make_current()
        return _ready(self.context, "cuEventQuery", self.context.driver.cuEventQuery(self.expect_open()))

    @property
    def done(self) -> bool:
        """`query()`."""
        return self.query()

    def elapsed_since(self, earlier: Event) -> float:
        """Milliseconds from `earlier` to this event, on the device's own clock. Both must have happened.

        Raises CudaError on the simulated device, which has no clock, and for events without timing.
        """
        context = self.context
        for event in (earlier, self):
            if not event.timing:
                raise ValueError("an event recorded with timing=False has no time: record both with timing=True")
        context.make_current()
        result = context.driver.cuEventElapsedTime(earlier.expect_open(), self.expect_open())
        if result[0] and int(result[0]) == NOT_SUPPORTED and context.kind == "sim":
            hint = "The simulated device has no clock: read device.counters() there, and take times on a GPU."
            raise failure(context.driver, "cuEventElapsedTime", result[0], hint=hint)
        return float(context.check("cuEventElapsedTime", result))

    def close(self) -> None:
        """Destroy the event; waits already queued on it stay. Idempotent."""
        self._finalizer()


def _expect_device(context: Context) -> None:
    """Raise if the whole device is gone: then that is the error, not the closed object."""
    if context.closed or context.lost is not None:
        context.make_current()


def _ready(context: Context, routine: str, result: tuple[Any, ...]) -> bool:
    if int(result[0]) == NOT_READY:
        return False
    context.check(routine, result)
    return True
