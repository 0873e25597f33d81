"""The reader and writer threads of a run: readers fill pinned buffers, writers pass results to the sinks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Event
from cudakit.pipeline.buffers import ChunkBuffer, Clock
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.ranges import Range, covers
from cudakit.pipeline.sink import Sink
from cudakit.pipeline.sources import Item, Source
from cudakit.pipeline.state import State, Stopped
from cudakit.pipeline.tickets import Ticket


class ChunkReader:
    """Takes tickets in order and reads their items into pinned memory. Each reader thread calls `run`."""

    def __init__(
        self, state: State, tickets: Iterator[Ticket], sources: Sequence[Source], items: Sequence[Item],
        context: Context, chunk: int, staged: bool,
    ) -> None:  # fmt: skip
        self._state, self._tickets, self._sources, self._items = state, tickets, sources, items
        self._context, self._chunk, self._staged = context, chunk, staged
        self._turn = threading.Lock()
        self._next = 0  # the item after those of the last ticket

    def run(self, number: int) -> None:
        """Read chunks until none is left, or the run is stopped."""
        try:
            while self._one(f"read {number}"):
                pass
        except Stopped:
            pass

    def _one(self, lane: str) -> bool:
        state = self._state
        with self._turn:
            # A ticket and its buffer are taken together, so that no later chunk has the buffer that an earlier one
            # needs.
            free = state.in_free
            buffer = (
                state.wait_for(lambda: state.end is not None or (free and free.popleft())) if self._staged else None
            )
            if state.end is not None or state.stopped:
                return False
            ticket = Ticket(state.handed, self._next, self._next + self._chunk)
            try:
                upcoming = next(self._tickets, None)
                if upcoming is None:
                    self._finish(ticket.index)
                    return False
                ticket, self._next = upcoming, upcoming.stop
                # The generator may reuse its array, so a block is copied before the next one is requested.
                if ticket.block is not None:
                    self._fill(ticket, buffer, lane)
            except Stopped:
                raise
            except BaseException as error:  # reported here, because the thread ends and the error would be lost
                self._broken(ticket, error)
                return False
            state.handed += 1
        if ticket.block is None:
            try:
                self._fill(ticket, buffer, lane)
            except Stopped:
                raise
            except BaseException as error:
                self._broken(ticket, error)
                return False
        ticket.block = None
        with state.condition:
            state.ready[ticket.index] = ticket
            state.condition.notify_all()
        return True

    def _finish(self, count: int) -> None:
        with self._state.condition:
            self._state.end = count
            self._state.condition.notify_all()

    def _broken(self, ticket: Ticket, error: BaseException) -> None:
        """Make this chunk the last one. The chunks before it are still processed."""
        ticket.error, ticket.block = error, None
        with self._state.condition:
            self._state.ready[ticket.index] = ticket
            end = self._state.end
            self._state.end = ticket.index + 1 if end is None else min(end, ticket.index + 1)
            self._state.condition.notify_all()

    def _fill(self, ticket: Ticket, buffer: ChunkBuffer | None, lane: str) -> None:
        ticket.buffer = buffer
        if buffer is not None:
            buffer.wait()
        begin = time.perf_counter()
        arrays, nbytes = [], 0
        with nvtx.range("pipeline read"):
            for place in range(len(self._items)):
                straight = None if ticket.block is not None else self._sources[place].pinned(
                    self._context, ticket.start, ticket.stop
                )  # fmt: skip
                if straight is None:
                    straight = _part(buffer, place, ticket)
                    if ticket.block is not None:
                        np.copyto(straight, ticket.block[place])
                    elif self._sources[place].on_device:
                        self._sources[place].read_device(ticket.start, ticket.stop, straight)
                    else:
                        self._sources[place].read(ticket.start, ticket.stop, straight)
                    nbytes += straight.nbytes
                arrays.append(straight)
        ticket.arrays = tuple(arrays)
        if nbytes:
            self._state.note("read", lane, ticket, begin, time.perf_counter(), nbytes)


class ChunkWriter:
    """Waits for chunks in the order they were queued, and passes their results to the sinks."""

    def __init__(
        self, state: State, sinks: Sequence[Sink], finished: Sequence[Sequence[Range]], *, finite: bool,
        item: Callable[[int], list[HostArray]], zero: dict[int, tuple[Event, float]], clocks: dict[int, list[Clock]],
    ) -> None:  # fmt: skip
        self._state, self._sinks, self._finished, self._finite = state, sinks, finished, finite
        self._item = item
        self._zero, self._clocks = zero, clocks
        self._ordered = any(sink.ordered for sink in sinks)

    def run(self, number: int) -> None:
        """Write results until no more chunks come. Computed chunks are written even if a later chunk has failed."""
        state = self._state
        while True:
            with state.condition:
                while not state.computed and not state.no_more:
                    state.condition.wait()
                if not state.computed:
                    return
                ticket = state.computed.popleft()
            stage = "device"
            try:
                if ticket.done is not None:
                    ticket.done.wait()
                stage = "write"
                if not (self._ordered and state.over(ticket)):
                    self._write(ticket, f"write {number}")
            except BaseException as error:
                state.fail(ticket, stage, error)
            if ticket.out is not None:
                state.put(state.out_free, ticket.out)

    def _write(self, ticket: Ticket, lane: str) -> None:
        state = self._state
        if ticket.clock is not None:
            self._read_clock(ticket, ticket.clock)
        begin = time.perf_counter()
        nbytes = 0
        with nvtx.range("pipeline write"):
            for place, (sink, results) in enumerate(zip(self._sinks, ticket.results, strict=True)):
                if self._finite:
                    check_finite(place, ticket, results, self._item)
                if not covers(self._finished[place], ticket.start, ticket.stop):
                    sink.write(ticket.start, ticket.stop, results)
                nbytes += results.nbytes
        state.note("write", lane, ticket, begin, time.perf_counter(), nbytes)
        with state.condition:
            state.items_done += ticket.length
            state.chunks_done += 1
            state.bytes_in += sum(array.nbytes for array in ticket.arrays)
            state.bytes_out += nbytes
            state.condition.notify_all()

    def _read_clock(self, ticket: Ticket, clock: Clock) -> None:
        zero, host = self._zero[ticket.device]
        at = [host + ms / 1e3 for ms in clock.read(zero)]
        with self._state.condition:
            self._clocks[ticket.device].append(clock)
            each = (at[2] - at[1]) / max(ticket.length, 1)
            times = self._state.times
            times.quickest = each if times.quickest is None else min(times.quickest, each)
            times.kernels.setdefault(ticket.device, []).append((at[1], at[2]))
        for stage, begin, end in zip(("h2d", "compute", "d2h"), at, at[1:], strict=False):
            self._state.note(stage, f"stream {ticket.slot}", ticket, begin, end)


def check_finite(place: int, ticket: Ticket, results: HostArray, item_of: Callable[[int], list[HostArray]]) -> None:
    """Raise ValueError if results are not finite, with their number and the item of the first.

    `item_of` reads the inputs of that item again, so that the error also reports their values that are not finite.
    """
    if not _has_infinities(results.dtype):
        return
    bad = ~np.isfinite(results)
    if not bad.any():
        return
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    item = ticket.start + int(first[0])
    inputs = [
        f"input {number} of that item has {int(np.size(array) - np.count_nonzero(np.isfinite(array))):,} such values"
        for number, array in enumerate(item_of(item))
        if _has_infinities(array.dtype)
    ]
    raise ValueError(
        f"output {place} has {int(bad.sum()):,} values that are not finite, the first at item {item:,}"
        f"{list(map(int, first[1:]))} ({results[first]})" + "".join(f"; {text}" for text in inputs)
    )


def _has_infinities(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating point. numpy classifies those of ml_dtypes as void."""
    return dtype.kind in "fc" or (dtype.kind == "V" and dtype.names is None and dtype.type is not np.void)


def _part(buffer: ChunkBuffer | None, place: int, ticket: Ticket) -> Any:
    if buffer is None:
        raise RuntimeError(f"chunk {ticket.index} has no buffer for its input {place}")
    return buffer.arrays[place][: ticket.length]
