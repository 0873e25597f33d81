"""The run of a pipeline: reader threads, queueing of work on the devices' streams, writer threads, and clean-up.

For each chunk, a reader thread takes the next ticket and an unused pinned buffer, and fills it. The caller's thread
queues the copy to a device, the function's work and the copy back on one stream. A writer thread waits for the stream
and passes the result to the sink.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from cudakit import nvtx, system
from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.memory.array import DeviceArray
from cudakit.pipeline import failures, link
from cudakit.pipeline.buffers import DEPTH, ChunkBuffer, Clock, StreamSlot
from cudakit.pipeline.chunk import Chunk, Progress
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.layout import BufferLayout
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.report import Link, PipelineError, PipelineReport
from cudakit.pipeline.request import RunRequest
from cudakit.pipeline.state import Failure, State, Stopped, covered
from cudakit.pipeline.threads import ChunkReader, ChunkWriter
from cudakit.pipeline.tickets import ChunkOrder, Ticket

_PROGRESS = 0.1  # seconds between calls of the progress function
_PATIENCE = 2.0  # seconds to wait, after a failure, for a reader that is blocked by its source
_VIEWS = 64  # chunks of a pinned source that the measurement of the link copies
_POLL = 0.0002  # seconds between polls while all streams are full


class Execution:
    """One run of a request; not reusable."""

    def __init__(
        self, request: RunRequest, layout: BufferLayout, tickets: ChunkOrder, finished: Sequence[Sequence[Range]]
    ) -> None:
        self.request, self.layout, self.tickets, self.finished = request, layout, tickets, finished
        self.state = State(request.options.timeline)
        self.timed = all(device.kind == "gpu" for device in request.devices)
        self.slots: list[StreamSlot] = []
        self.buffers: list[ChunkBuffer] = []
        self.zero: dict[int, tuple[Event, float]] = {}
        self.clocks: dict[int, list[Clock]] = {number: [] for number in range(len(request.devices))}
        self.all_clocks: list[Clock] = []
        self.stage = "copy"  # of the chunk that is being queued
        self.queued = -1  # the last chunk that was queued completely
        self._told = 0.0
        devices = request.devices
        self.report = PipelineReport(
            [device.context.spec for device in devices], layout.streams, layout.chunk, tickets.count,
            layout.device_bytes * len(devices), layout.host_bytes, skipped=tickets.skipped,
        )  # fmt: skip

    def run(self) -> PipelineReport:
        """Run it. Raises PipelineError from the failure that stopped it. The buffers are always freed."""
        request, state = self.request, self.state
        before = system.peak_memory_from_now()
        interrupted: BaseException | None = None
        try:
            self._make()
            links = [self._link()] if request.measured and self.timed else []
            state.begin = time.perf_counter()
            interrupted = self._work()
            if state.failure is None and interrupted is None:
                # Wait for work that the function queued on streams other than its chunk's.
                for device in request.devices:
                    device.synchronize()
                self._finish_sinks()
            seconds = time.perf_counter() - state.begin
            if state.failure is None and interrupted is None:
                self._tell(force=True)
                if links:
                    self.report.link = link.mean([*links, self._link()])
        finally:
            self._close()
        self._finish(seconds, system.peak_memory() - before)
        if interrupted is not None:
            raise interrupted
        if state.failure is not None:
            raise self._error(state.failure) from state.failure.error
        return self.report

    def _finish_sinks(self) -> None:
        for sink in self.request.sinks:
            try:
                sink.finish(self._count())
            except OSError as error:
                end = self._count()
                raise PipelineError(
                    f"all chunks are done, but finishing the output failed: {type(error).__name__}: {error}. "
                    f"{self._kept()}.",
                    chunk=self.state.chunks_done, start=end, stop=end, stage="write", report=self.report,
                ) from error  # fmt: skip

    def _work(self) -> BaseException | None:
        """Start the threads, queue all chunks, and join the threads. Returns the interruption (Ctrl-C), if any."""
        request, state = self.request, self.state
        reader = ChunkReader(
            state, iter(self.tickets), request.indexed, request.inputs, request.devices[0].context, self.layout.chunk,
            bool(self.layout.in_buffers),
        )  # fmt: skip
        writer = ChunkWriter(
            state,
            request.sinks,
            self.finished,
            finite=request.options.finite,
            item=self._item,
            zero=self.zero,
            clocks=self.clocks,
        )
        readers: list[threading.Thread] = []
        writers: list[threading.Thread] = []
        interrupted: BaseException | None = None
        try:
            _start(readers, reader.run, request.options.readers, "reader")
            _start(writers, writer.run, request.options.writers, "writer")
            self._queue()
        except Stopped:
            pass
        except BaseException as error:  # Ctrl-C: computed chunks are written, then it is raised again
            interrupted = error
        finally:
            with state.condition:
                state.stopped = state.stopped or interrupted is not None
                state.no_more = True
                state.condition.notify_all()
            try:
                for thread in writers:
                    thread.join()
            finally:
                with state.condition:
                    state.stopped = True
                    state.condition.notify_all()
                for thread in readers:
                    # A reader that is blocked by its source ends when that returns; it uses no shared state then. A
                    # read into device memory must have ended, because that is freed.
                    ended = (state.failure is None and interrupted is None) or any(request.on_device)
                    thread.join(None if ended else _PATIENCE)
        return interrupted

    def _item(self, number: int) -> list[HostArray]:
        """Read the inputs of one item again; none if they come from a generator."""
        arrays = []
        for source in self.request.indexed:
            array = np.empty((1, *source.item.shape), source.item.dtype)
            source.read(number, number + 1, array)
            arrays.append(array)
        return arrays

    def _count(self) -> int:
        count = self.tickets.count
        return self.tickets.skipped + self.state.items_done if count is None else count

    def _link(self) -> Link:
        """Measure copies of a chunk's size, within the budget of pinned memory, in the memory that the run uses."""
        layout, request = self.layout, self.request
        items = (*request.inputs, *request.outputs)
        each = max([item.nbytes for item in items], default=1) * layout.chunk
        nbytes = max(min(each, layout.host_budget // (2 * len(request.devices))), 1)
        sources, results = (
            [array for buffer in free for array in buffer.arrays if isinstance(array, np.ndarray)]
            for free in (self.state.in_free, self.state.out_free)
        )
        if not layout.in_buffers and request.blocks is None:
            context, length = request.devices[0].context, layout.chunk
            starts = range(0, (request.count or 0) - length + 1, length)[:_VIEWS]
            views = [source.pinned(context, start, start + length) for source in request.indexed for start in starts]
            sources = [view for view in views if view is not None]
        large = [
            [array.reshape(-1).view(np.uint8)[:nbytes] for array in given if array.nbytes >= nbytes]
            for given in (sources, results)
        ]
        return link.measure(request.devices, nbytes, link.HostMemory(*large))

    def _make(self) -> None:
        request, layout = self.request, self.layout
        # Slots alternate between devices, so that consecutive chunks go to different devices.
        for number in range(layout.streams * len(request.devices)):
            device = request.devices[number % len(request.devices)]
            copied = [item for item, on_device in zip(request.inputs, request.on_device, strict=True) if not on_device]
            self.slots.append(StreamSlot.make(number, device, copied, request.outputs, layout.chunk))
        host = request.devices[0].pinned  # usable by all devices of the process
        read_into = [request.devices[0].empty if on_device else host for on_device in request.on_device]
        for items, makers, count, free in (
            (request.inputs, read_into, layout.in_buffers, self.state.in_free),
            (request.outputs, [host] * len(request.outputs), layout.out_buffers, self.state.out_free),
        ):
            for _ in range(count):
                buffer = ChunkBuffer.make(makers, items, layout.chunk)
                self.buffers.append(buffer)
                free.append(buffer)
        if any(request.on_device):
            request.devices[0].synchronize()  # after which other threads and streams may use the memory
        if self.timed:
            for number, device in enumerate(request.devices):
                event = Event(device.context, timing=True)
                event.record(device.default_stream)
                event.synchronize()
                self.zero[number] = (event, time.perf_counter())

    # Queueing ---------------------------------------------------------------------------------------------------------

    def _queue(self) -> None:
        """Queue every chunk in order, when it has been read and a slot is free. Runs in the caller's thread."""
        state, index = self.state, 0
        while True:
            state.wait_for(functools.partial(self._next_is_known, index), "reading", self._tell)
            if state.end is not None and index >= state.end:
                return
            ticket = state.ready.pop(index)
            if ticket.error is not None:
                state.fail(ticket, "read", ticket.error)
                return
            if self.layout.out_buffers:
                ticket.out = state.wait_for(lambda: state.out_free and state.out_free.popleft(), "results", self._tell)
            self.stage = "device"
            try:
                slot = self._free_slot()
            except CudakitError as error:  # a stream reports the failure of earlier work
                state.fail(ticket, self.stage, error)
                return
            try:
                self._enqueue(ticket, slot)
            except Exception as error:
                state.fail(ticket, self.stage, error)
                return
            self.queued = index
            state.put(state.computed, ticket)
            index += 1

    def _next_is_known(self, index: int) -> bool:
        return index in self.state.ready or (self.state.end is not None and index >= self.state.end)

    def _free_slot(self) -> StreamSlot:
        """Return the slot with the fewest queued chunks, so that idle devices come first. Waits while all are full."""
        begin = time.perf_counter()
        while True:
            slot = min(self.slots, key=lambda slot: (slot.waiting(), slot.last))
            if slot.waiting() < DEPTH:
                break
            if self.state.stopped:
                raise Stopped
            self._tell()
            time.sleep(_POLL)
        self.state.times.add_wait("devices", begin)
        return slot

    def _enqueue(self, ticket: Ticket, slot: StreamSlot) -> None:
        length, stream = ticket.length, slot.stream
        self.stage = "copy"
        ticket.clock = clock = self._clock(slot) if self.timed else None
        ticket.slot, ticket.device = slot.number, slot.number % len(self.request.devices)
        outputs = tuple(array[:length] for array in slot.outputs)
        with nvtx.range("pipeline copy in"):
            inputs = self._copy_in(ticket, slot)
        self.stage = "compute"
        chunk = Chunk(ticket.index, ticket.start, ticket.stop, slot.device, stream)
        with nvtx.range("pipeline compute"):
            self.request.function(chunk, *inputs, *outputs)
        self._release(ticket, stream)
        if clock is not None:
            clock.tick(2, stream)
        self.stage = "copy"
        with nvtx.range("pipeline copy out"):
            self._copy_out(ticket, outputs, stream)
        ticket.done = slot.mark(ticket.index)

    def _copy_in(self, ticket: Ticket, slot: StreamSlot) -> list[DeviceArray]:
        """Queue the copies of a chunk's inputs, and return them on the device. Inputs that were read to device memory
        are not copied."""
        clock, stream, arrays = ticket.clock, slot.stream, iter(slot.inputs)
        if clock is not None:
            clock.tick(0, stream)
        inputs = []
        for given in ticket.arrays:
            if isinstance(given, DeviceArray):
                inputs.append(given)
            else:
                inputs.append(next(arrays)[: ticket.length].copy_from(given, stream))
        if not any(self.request.on_device):
            self._release(ticket, stream)
        if clock is not None:
            clock.tick(1, stream)
        return inputs

    def _release(self, ticket: Ticket, stream: Stream) -> None:
        """Return the buffer of a chunk's inputs, for use after the work queued so far. Idempotent."""
        buffer, ticket.buffer = ticket.buffer, None
        if buffer is not None:
            buffer.mark(stream)
            self.state.put(self.state.in_free, buffer)

    def _copy_out(self, ticket: Ticket, outputs: Sequence[DeviceArray], stream: Stream) -> None:
        results = []
        for place, (sink, array) in enumerate(zip(self.request.sinks, outputs, strict=True)):
            straight = sink.pinned(stream.context, ticket.start, ticket.stop)
            host = _of(ticket.out, place)[: ticket.length] if straight is None else straight
            array.copy_to(host, stream)
            results.append(host)
        if ticket.clock is not None:
            ticket.clock.tick(3, stream)
        ticket.results = tuple(results)

    def _clock(self, slot: StreamSlot) -> Clock:
        number = slot.number % len(self.request.devices)
        with self.state.condition:
            if self.clocks[number]:
                return self.clocks[number].pop()
        clock = Clock(slot.device)
        self.all_clocks.append(clock)
        return clock

    # The end ----------------------------------------------------------------------------------------------------------

    def _tell(self, force: bool = False) -> float:
        """Call the progress function if it is due. Returns the seconds until the next call."""
        if self.request.options.progress is None:
            return _PROGRESS if force else 1.0
        now = time.perf_counter()
        if force or now - self._told >= _PROGRESS:
            state, seconds = self.state, max(now - self.state.begin, 1e-9)
            self.request.options.progress(
                Progress(
                    self.tickets.skipped + state.items_done, self.tickets.count, seconds,
                    state.bytes_in / seconds / 1e9, state.bytes_out / seconds / 1e9,
                )
            )  # fmt: skip
            self._told = now = time.perf_counter()  # counted from the call's end, so a slow function does not dominate
        return max(self._told + _PROGRESS - now, 0.001)

    def _close(self) -> None:
        """Free all resources. After a failure, errors here are suppressed, so that they do not hide the failure."""
        broken = self.state.failure is not None
        for slot in self.slots:
            with contextlib.suppress(CudakitError) if broken else contextlib.nullcontext():
                slot.stream.synchronize()
        state = self.state
        with state.condition:
            left = [*state.ready.values(), *([] if state.failure is None else [state.failure.ticket])]
            state.ready.clear()
            state.in_free.clear()
            state.out_free.clear()
        for ticket in left:
            # A traceback can keep the tickets alive, which would keep the pinned memory.
            ticket.arrays, ticket.results, ticket.buffer, ticket.out = (), (), None, None
        made: list[Any] = [*self.slots, *self.buffers, *self.all_clocks, *(event for event, _ in self.zero.values())]
        for thing in [*made, *self.request.sources, *self.request.sinks]:
            with contextlib.suppress(CudakitError) if broken else contextlib.nullcontext():
                thing.close()

    def _finish(self, seconds: float, growth: int) -> None:
        report, state, request = self.report, self.state, self.request
        times = state.times
        report.seconds, report.host_growth = seconds, growth
        report.items, report.chunks = state.items_done, state.chunks_done
        report.bytes_in, report.bytes_out = state.bytes_in, state.bytes_out
        report.busy, report.waited = times.busy, times.waited
        if times.kernels:
            report.computing = sum(covered(spans) for spans in times.kernels.values())
        report.spans = sorted(times.spans, key=lambda span: span.begin)
        report.count = self.tickets.count
        if report.link is None:
            return
        report.bounds["link"] = report.link.seconds(report.bytes_in, report.bytes_out)
        for stage, nbytes, threads in (
            ("read", report.bytes_in, request.options.readers),
            ("write", report.bytes_out, request.options.writers),
        ):
            if times.rates.get(stage):
                report.bounds[stage] = nbytes / median(times.rates[stage]) / threads
        if times.quickest is not None:
            alone = times.quickest * report.items
            # Kernels of several streams that share a device take longer than alone.
            report.bounds["compute"] = min(alone, report.computing or alone) / len(request.devices)

    def _error(self, failure: Failure) -> PipelineError:
        return failures.error_of(failure, self.request, self.report, self.queued, self._kept())

    def _kept(self) -> str:
        return failures.kept(self.request.sinks, self.state.chunks_done, self.tickets.skipped)


def _of(buffer: ChunkBuffer | None, place: int) -> Any:
    if buffer is None:
        raise RuntimeError(f"there is no pinned buffer for output {place}")
    return buffer.arrays[place]


def _start(threads: list[threading.Thread], work: Callable[[int], None], count: int, name: str) -> None:
    for number in range(count):
        thread = threading.Thread(target=work, args=(number,), name=f"pipeline {name} {number}", daemon=True)
        threads.append(thread)
        thread.start()
