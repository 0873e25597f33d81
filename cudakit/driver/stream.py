"""Stream and Event: the order of work on a device.

with Stream(context) as s:
    x.copy_from(host, stream=s)
    copied = s.record()
    other.wait(copied)          # work queued on `other` after this starts after the copy
    s.synchronize()
"""

from __future__ import annotations

import operator
import weakref
from typing import Any

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.errors import NOT_READY, NOT_SUPPORTED, Closed, CudakitError, DeviceMismatch, failure

LEGACY_DEFAULT = 1  # CU_STREAM_LEGACY: the same stream as handle 0, but not mistaken for "no stream"
PER_THREAD_DEFAULT = 2


def foreign_handle(stream: Any) -> int:
    """Return the handle of an object's `__cuda_stream__`. Raises TypeError if it does not return (0, handle)."""
    name = type(stream).__name__
    try:
        protocol = getattr(stream, "__cuda_stream__", None)
        said = protocol() if callable(protocol) else protocol
    except CudakitError:  # a cudakit stream in a wrapper, such as a closed one
        raise
    except Exception as error:
        raise TypeError(f"{name}.__cuda_stream__() must return (0, handle), but raised {error!r}") from error
    if protocol is None:
        raise TypeError(
            f"a stream is needed, got {name}; pass a Stream, or an object whose __cuda_stream__() returns (0, handle)"
        )
    if not isinstance(said, (tuple, list)) or len(said) != 2:
        raise TypeError(f"{name}.__cuda_stream__() must return (0, handle), got {said!r}")
    version, handle = said
    if version != 0:
        raise TypeError(f"{name}.__cuda_stream__() returned version {version!r}, but only version 0 is supported")
    try:
        address = operator.index(handle)
    except TypeError:
        address = -1
    if isinstance(handle, bool) or not 0 <= address < 2**64:
        raise TypeError(f"{name}.__cuda_stream__() must return a stream's address as its handle, got {handle!r}")
    return address


class Stream:
    """A queue of work on one device. `int(stream)` is the address of its handle.

    Args:
        context: The device's context.
        priority: Smaller numbers run first; clamped to context.stream_priorities().
        blocking: Order the stream with the legacy default stream, as CUDA's plain streams are.
        handle: Address of another library's stream, which is used but never destroyed.
        owner: An object that keeps the other library's stream alive; kept alive as long as this Stream.

    Attributes:
        handle: The driver's own handle.
        closed: Whether close() was called.
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
        # Identifies this open stream to a launch plan, which must not keep the stream alive.
        self.tag = object()
        self.end: StreamEnd | None = None  # None for a foreign stream
        self.kept: dict[Any, Any] = {}  # objects that live as long as the stream, such as its cuBLAS handle
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
        """Return `stream` itself, or a Stream over any object with `__cuda_stream__` (version 0).

        Args:
            context: The context of the device that the stream must be on.
            stream: A Stream, or a stream of torch, CuPy or another library.

        Raises:
            DeviceMismatch: If the stream is on another device.
            TypeError: If the object is not a stream.
        """
        if isinstance(stream, Stream):
            if stream.context is not context and not stream.context.same_device(context):
                theirs = stream.context
                raise DeviceMismatch(
                    f"the stream is on {theirs.spec}, not on {context.spec}{theirs.told_apart(context)}; use a "
                    "stream of the latter"
                )
            return stream
        handle = foreign_handle(stream)
        own: Stream | None = context.streams.get(handle)
        if own is not None and not own.closed:
            return own  # a cudakit stream in another library's wrapper: return it, so that its closing is noticed
        foreign = cls(context, handle=handle, owner=stream)
        if context.kind == "gpu" and handle > PER_THREAD_DEFAULT and not context.alone:
            theirs = context.call("cuStreamGetCtx", foreign.handle)
            if int(theirs) != int(context.handle):
                raise DeviceMismatch(f"the {type(stream).__name__} is on another device than {context.spec}")
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
        """Return the handle. Raises Closed if the stream or its device was closed."""
        if self.closed or (self._finalizer is not None and not self._finalizer.alive):
            _expect_device(self.context)
            raise Closed(f"{self!r} was closed; make another with the device's stream()")
        return self.handle

    @property
    def foreign(self) -> bool:
        """Whether the stream is another library's (such as torch's), or one of the driver's default streams."""
        return self._finalizer is None

    @property
    def last(self) -> Event | None:
        """The end of the queued work, recorded when the stream was closed; later frees are ordered after it."""
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
        """Wait until all queued work is done.

        Raises:
            CudaError: If any of the work failed; on the simulated device with its report.
        """
        handle = self.expect_open()
        with nvtx.range("synchronize stream"):
            self.context.call("cuStreamSynchronize", handle)
        self.context.in_flight.prune(int(handle))

    def query(self) -> bool:
        """Return whether all queued work is done, without waiting.

        Raises:
            CudaError: If any of the work failed.
        """
        self.context.make_current()
        return _ready(self.context, "cuStreamQuery", self.context.driver.cuStreamQuery(self.expect_open()))

    @property
    def done(self) -> bool:
        """The result of `query()`."""
        return self.query()

    def record(self, timing: bool = True) -> Event:
        """Return an event that completes after all work queued so far.

        Args:
            timing: Record the time as well, for `Event.elapsed_since`.
        """
        event = Event(self.context, timing=timing)
        try:
            event.record(self)
        except BaseException:
            event.close()
            raise
        return event

    def wait(self, event: Event | Stream) -> None:
        """Make work queued after this call wait for an event or another stream.

        Args:
            event: An event; or a stream, for all work queued on it so far.

        Raises:
            DeviceMismatch: If the event is of another driver.
            TypeError: If `event` is neither an event nor a stream.
        """
        if isinstance(event, Stream):
            with event.record(timing=False) as recorded:
                self.wait(recorded)
            return
        if not isinstance(event, Event):
            raise TypeError(
                f"wait() needs an Event or a Stream, got {type(event).__name__}; pass another stream, or the result of "
                "its record()"
            )
        if event.context.driver is not self.context.driver:
            mine, theirs = self.context, event.context
            raise DeviceMismatch(
                f"a stream of {mine.spec} cannot wait for an event of {theirs.spec}{theirs.told_apart(mine)}"
            )
        self.context.call("cuStreamWaitEvent", self.expect_open(), event.expect_open(), 0)

    def capture(self) -> Any:
        """Capture the work queued on the stream in a `with` block into a Graph, instead of running it.

        `cudakit.graph.capture` has the details.

            with stream.capture() as graph:
                kernel.launch(stream, ...)
            ready = graph.instantiate()
            ready.launch(stream)
        """
        if self.context.device_object is None:
            raise CudakitError("capture() needs a stream made by a Device; use cudakit.graph.capture(stream)")
        return self.context.device_object.capture(self)

    def close(self) -> None:
        """Destroy the stream after its queued work. A second call does nothing. A foreign stream is not destroyed."""
        if self.closed:
            return
        self.kept.clear()
        if self._finalizer is not None:
            self._finalizer()
        self.closed = True
        self.tag = object()
        self.owner = None


class StreamEnd:
    """The part of one of cudakit's own streams that outlives it, so that frees can be ordered after its work.

    closed: whether the stream was closed or dropped. last: the end of the work queued by then, after it was closed;
    None if it could not be recorded (a lost or closed context, or a forked child).
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
        """The stream; None after it was closed or dropped."""
        return None if self.closed else self._stream()

    def reach(self) -> None:
        """Destroy the stream after its queued work. For finalizers: never raises."""
        context = self.context
        self.closed = True
        if not context.closed:
            self.last = Event.recorded(context, self.handle)
        context.attempt("cuStreamDestroy", self.handle)


class Event:
    """A point in a stream's work.

    Args:
        context: The device's context.
        timing: Record the time, which costs a little.
        blocking: synchronize() sleeps instead of spinning.
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
        """Return an event at the end of the work queued on a stream (a driver handle), or None if that fails.

        For finalizers: never raises, and does not change the thread's current context. The event is not a leak.
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
        """Return the handle. Raises Closed if the event or its device was closed."""
        if not self._finalizer.alive:
            _expect_device(self.context)
            raise Closed(f"{self!r} was closed; record another with stream.record()")
        return self.handle

    @property
    def alive(self) -> bool:
        """Whether the event still has its handle."""
        return self._finalizer.alive

    def record(self, stream: Stream) -> None:
        """Move the event to the end of the work queued on a stream so far.

        Args:
            stream: A stream of the same device.

        Raises:
            DeviceMismatch: If the stream is on another device.
        """
        if not isinstance(stream, Stream):
            raise TypeError(
                f"record() needs a Stream, got {type(stream).__name__}; pass a stream of the device, such as its "
                "default_stream"
            )
        if not stream.context.same_device(self.context):
            mine, theirs = self.context, stream.context
            raise DeviceMismatch(
                f"an event of {mine.spec} cannot be recorded on a stream of {theirs.spec}{mine.told_apart(theirs)}"
            )
        self.context.call("cuEventRecord", self.expect_open(), stream.expect_open())

    def synchronize(self) -> None:
        """Wait until the event has completed.

        Raises:
            CudaError: If any work before the event failed.
        """
        with nvtx.range("synchronize event"):
            self.context.call("cuEventSynchronize", self.expect_open())

    def query(self) -> bool:
        """Return whether the event has completed, without waiting; True if it was never recorded.

        Raises:
            CudaError: If any work before the event failed.
        """
        self.context.make_current()
        return _ready(self.context, "cuEventQuery", self.context.driver.cuEventQuery(self.expect_open()))

    @property
    def done(self) -> bool:
        """The result of `query()`."""
        return self.query()

    def elapsed_since(self, earlier: Event) -> float:
        """Return the milliseconds from `earlier` to this event, by the device's clock.

        Args:
            earlier: An event on the same device. Both must have completed.

        Raises:
            CudaError: On the simulated device, which does not model time, or if an event has not completed.
            ValueError: If one of the events was made with timing=False.
        """
        context = self.context
        for event in (earlier, self):
            if not event.timing:
                raise ValueError("elapsed_since() needs two events with a time; record both with timing=True")
        context.make_current()
        result = context.driver.cuEventElapsedTime(earlier.expect_open(), self.expect_open())
        if result[0] and int(result[0]) == NOT_SUPPORTED and context.kind == "sim":
            hint = "The simulator does not model time: use device.counters() there, and measure times on a GPU."
            raise failure(context.driver, "cuEventElapsedTime", result[0], hint=hint)
        return float(context.check("cuEventElapsedTime", result))

    def close(self) -> None:
        """Destroy the event; waits queued on it are kept. A second call does nothing."""
        self._finalizer()


def _expect_device(context: Context) -> None:
    """Raise if the device is closed or lost: that error matters more than the closed object."""
    if context.closed or context.lost is not None:
        context.make_current()


def _ready(context: Context, routine: str, result: tuple[Any, ...]) -> bool:
    if int(result[0]) == NOT_READY:
        return False
    context.check(routine, result)
    return True
