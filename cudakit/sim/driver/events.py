"""Driver calls about streams and events."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.driver.arguments import Handle, as_handle, signed, unsigned
from cudakit.sim.driver.contexts import PRIORITIES
from cudakit.sim.driver.faults import CallError, Result, caller
from cudakit.sim.driver.objects import Context, Event, GraphNode, Stream, StreamCapture
from cudakit.sim.driver.state import DriverState, call


class StreamCalls(DriverState):
    """cuStream* and cuEvent*."""

    @call(1)
    def cuStreamCreate(self, Flags: int) -> Any:
        return self._make_stream(Flags, 0)

    @call(1)
    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> Any:
        return self._make_stream(flags, priority)

    def _make_stream(self, flags: int, priority: int) -> Any:
        context = self._context()
        if unsigned(flags) not in (0, 1):
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"stream flags {flags} are not in CUstream_flags")
        least, greatest = PRIORITIES
        # a priority is clamped to the range, as by the driver
        stream = Stream(context, self._new_handle(), int(flags), min(max(signed(priority), greatest), least))
        stream.place = caller()
        self._objects[stream.handle] = context.streams[stream.handle] = stream
        return cu.CUstream(stream.handle)

    @call(context=False)
    def cuStreamDestroy(self, hStream: Handle) -> None:
        if as_handle(hStream) in (0, 1, 2):
            raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed")
        stream = self._object(hStream, Stream, "a stream")
        if stream.capture is not None:
            stream.capture.broken = stream.capture.broken or f"cuStreamDestroy {caller()}"
            if stream.capture.lanes[0] is stream:
                self._leave_capture(stream.capture)
        # the stream's pending work still runs: the scheduler keeps it
        del self._objects[stream.handle], stream.context.streams[stream.handle]
        if stream.context.sticky is not None:
            raise CallError(stream.context.sticky, str(stream.context.report))

    @call(context=False)
    def cuStreamSynchronize(self, hStream: Handle) -> None:
        stream = self._stream(hStream)
        self._not_captured("cuStreamSynchronize", stream)
        self._expect_allowed("cuStreamSynchronize")
        self._finish([stream.last] if stream.last is not None else [], stream.context)

    @call(context=False)
    def cuStreamQuery(self, hStream: Handle) -> None:
        stream = self._stream(hStream)
        self._not_captured("cuStreamQuery", stream)
        self._expect_allowed("cuStreamQuery")
        self._poll(stream.last, stream.context)

    def _poll(self, operation: Any, context: Context) -> None:
        if operation is None or operation.done:
            self._settle(context)
            return
        self._scheduler.step(operation)
        self._settle(context)
        raise CallError(Result.CUDA_ERROR_NOT_READY, "work is still pending")

    @call(context=False)
    def cuStreamWaitEvent(self, hStream: Handle, hEvent: Handle, Flags: int) -> None:
        stream, event = self._stream(hStream), self._event(hEvent)
        if unsigned(Flags) not in (0, 1):
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"flags {Flags} are not in CUevent_wait_flags")
        if event.captured is not None:
            self._join(stream, event, *event.captured)
            return
        if stream.legacy:
            stream.expect_no_capture("cuStreamWaitEvent")
        if stream.capture is not None and event.operation is not None:
            stream.capture.broken = stream.capture.broken or f"cuStreamWaitEvent {caller()}"
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                f"{stream} is being captured and cannot wait for an event that was recorded outside the capture",
            )
        elif event.operation is None:
            stream.vain = caller()
        elif not event.operation.done:
            self._scheduler.enqueue(stream, "wait for an event", after=[event.operation], place=caller())

    def _join(self, stream: Stream, event: Event, capture: StreamCapture, nodes: tuple[GraphNode, ...]) -> None:
        """Let a stream wait for an event of a capture; this makes it part of the capture."""
        if capture not in (other.capture for other in capture.lanes):
            raise CallError(
                Result.CUDA_ERROR_CAPTURED_EVENT,
                f"the event made {event.place} was last recorded in the capture {capture.place}, which has ended, so it"
                " never completes: record it again",
            )
        if stream.capture is None:
            if stream.legacy:
                raise CallError(Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, f"{stream} cannot be captured")
            stream.capture = capture
            capture.lanes.append(stream)
        elif stream.capture is not capture:
            stream.capture.broken = capture.broken = f"cuStreamWaitEvent {caller()}"
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_MERGE,
                f"{stream} and the event are part of different captures, which cannot be merged",
            )
        stream.frontier += [node for node in nodes if node not in stream.frontier]

    @call(1, context=False)
    def cuStreamGetPriority(self, hStream: Handle) -> int:
        return self._readable(hStream, "cuStreamGetPriority").priority

    @call(1, context=False)
    def cuStreamGetFlags(self, hStream: Handle) -> int:
        return self._stream(hStream).flags

    @call(1, context=False)
    def cuStreamGetCtx(self, hStream: Handle) -> Any:
        return cu.CUcontext(self._readable(hStream, "cuStreamGetCtx").context.handle)

    def _readable(self, handle: Handle, call: str) -> Stream:
        """The stream, for reading its properties; raises CallError for the legacy stream while it waits for a captured
        one."""
        stream = self._stream(handle)
        if stream.legacy:
            stream.expect_no_capture(call)
        return stream

    @call(1, context=False)
    def cuStreamGetDevice(self, hStream: Handle) -> Any:
        return cu.CUdevice(self._stream(hStream).context.device.ordinal)

    @call(1, context=False)
    def cuStreamGetId(self, hStream: Handle) -> int:
        stream = self._stream(hStream)
        return stream.handle or stream.context.handle

    # ---- events ----

    def _event(self, handle: Handle) -> Event:
        event = self._object(handle, Event, "an event")
        self._usable(event.context)
        return event

    @call(1)
    def cuEventCreate(self, Flags: int) -> Any:
        context = self._context()
        flags = unsigned(Flags)
        if flags & ~7 or (flags & 4 and not flags & 2):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"event flags {flags} are not a valid set of CUevent_flags"
            )
        event = Event(context, self._new_handle(), flags, place=caller())
        self._objects[event.handle] = context.events[event.handle] = event
        return cu.CUevent(event.handle)

    @call(context=False)
    def cuEventDestroy(self, hEvent: Handle) -> None:
        event = self._object(hEvent, Event, "an event")
        del self._objects[event.handle], event.context.events[event.handle]
        if event.context.sticky is not None:
            raise CallError(event.context.sticky, str(event.context.report))

    @call(context=False)
    def cuEventRecord(self, hEvent: Handle, hStream: Handle) -> None:
        self._record(hEvent, hStream)

    @call(context=False)
    def cuEventRecordWithFlags(self, hEvent: Handle, hStream: Handle, flags: int) -> None:
        if unsigned(flags) != 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "record flags are for stream capture only")
        self._record(hEvent, hStream)

    def _record(self, hEvent: Handle, hStream: Handle) -> None:
        event, stream = self._event(hEvent), self._stream(hStream)
        if event.context is not stream.context:
            raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "the event and the stream belong to different contexts")
        if stream.capture is not None:
            event.captured = (stream.capture, tuple(stream.frontier))
            return
        self._keep_up(stream.context)
        event.captured = None
        event.operation = self._scheduler.enqueue(stream, "record an event", place=caller())

    @staticmethod
    def _expect_real(call: str, event: Event) -> None:
        """Raise CallError for an event that was last recorded in a capture, since it never completes. This invalidates
        the capture."""
        if event.captured is not None:
            capture = event.captured[0]
            capture.broken = capture.broken or f"{call} {caller()}"
            raise CallError(
                Result.CUDA_ERROR_CAPTURED_EVENT,
                f"the event made {event.place} was last recorded in the capture {capture.place}, so it never completes",
            )

    @call(context=False)
    def cuEventSynchronize(self, hEvent: Handle) -> None:
        event = self._event(hEvent)
        self._expect_real("cuEventSynchronize", event)
        self._expect_allowed("cuEventSynchronize")
        self._finish([event.operation] if event.operation is not None else [], event.context)

    @call(context=False)
    def cuEventQuery(self, hEvent: Handle) -> None:
        event = self._event(hEvent)
        self._expect_real("cuEventQuery", event)
        self._expect_allowed("cuEventQuery")
        self._poll(event.operation, event.context)

    @call(1, context=False)
    def cuEventElapsedTime(self, hStart: Handle, hEnd: Handle) -> float:
        """Always fails: the simulated device does not model time, and must not return a time that looks real."""
        for event in (self._event(hStart), self._event(hEnd)):
            if event.flags & 2:
                raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "the event was made with CU_EVENT_DISABLE_TIMING")
            if event.operation is None:
                raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "the event was never recorded")
            if not event.operation.done:
                raise CallError(Result.CUDA_ERROR_NOT_READY, "the event is not complete")
        raise CallError(
            Result.CUDA_ERROR_NOT_SUPPORTED, "the simulated device has no clock: its events have no elapsed time"
        )
