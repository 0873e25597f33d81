"""How much memory a pipeline takes, and the buffers it is made of."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.pipeline.sources import HostArray, Item

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.memory.array import DeviceArray

# A copy of 64 MiB takes about a millisecond, against which what a chunk costs the host (some 100 us) is hidden.
CHUNK_BYTES = 64 << 20
#: Chunks that may be queued on one stream: the one that runs, and one behind it, so that a copy engine never waits.
DEPTH = 2


@dataclass(frozen=True)
class Layout:
    """What a pipeline is made of. chunk: items. device_bytes: on each device. host_bytes: pinned, in all.

    in_buffers, out_buffers: how many sets of pinned arrays there are. host_budget: bytes of pinned memory at most.
    """

    chunk: int
    streams: int
    in_buffers: int
    out_buffers: int
    device_bytes: int
    host_bytes: int
    host_budget: int


def plan(
    inputs: Sequence[Item],
    outputs: Sequence[Item],
    *,
    count: int | None,
    chunk: int | None,
    streams: int,
    readers: int,
    writers: int,
    devices: Sequence[Device],
    staged: tuple[bool, bool],
    memory: int | None,
    host_memory: int | None,
) -> Layout:
    """The layout within the budgets. staged: whether inputs and outputs pass through pinned buffers of the pipeline's.

    memory, host_memory: bytes on each device, bytes of pinned memory; None: half of what is free, a quarter of the
    machine's available memory. Raises ValueError where the chunk, or a single item, does not fit.
    """
    read, written = sum(item.nbytes for item in inputs), sum(item.nbytes for item in outputs)
    lanes = streams * len(devices)
    in_buffers = lanes + readers if staged[0] else 0
    out_buffers = lanes + writers if staged[1] else 0
    on_device = streams * (read + written)
    pinned = in_buffers * read + out_buffers * written
    budget = min(map(_free, devices)) // 2 if memory is None else memory
    host_budget = _available() // 4 if host_memory is None else host_memory
    limits = [
        ("device memory", "memory", budget, on_device),
        ("pinned host memory", "host_memory", host_budget, pinned),
    ]
    most = min((limit // each for _, _, limit, each in limits if each), default=max(count or 1, 1))
    if chunk is None:
        chunk = max(CHUNK_BYTES // max(read, written, 1), 1)
        if count:
            # Enough chunks that the streams overlap: a pipeline of one chunk is none.
            chunk = min(chunk, max(-(-count // (4 * lanes)), 1))
        chunk = max(min(chunk, most), 1)
    if count is not None:
        chunk = max(min(chunk, count), 1)
    for what, argument, limit, each in limits:
        if chunk * each > limit:
            raise ValueError(
                f"chunks of {chunk:,} items take {chunk * each:,} bytes of {what} for {streams} streams, and the "
                f"budget is {limit:,}: "
                + (f"give chunk={most:,} or less, fewer streams, " if most > 0 else "give fewer streams, ")
                + f"or a larger {argument}="
            )
    return Layout(chunk, streams, in_buffers, out_buffers, chunk * on_device, chunk * pinned, host_budget)


def _free(device: Device) -> int:
    """Bytes of device memory that an allocation could have: what is free, and what the pool keeps for the next."""
    context = device.context
    if not device.attribute("MEMORY_POOLS_SUPPORTED"):
        return device.memory_info().free
    pool, names = context.call("cuDeviceGetDefaultMemPool", context.device), context.driver.CUmemPool_attribute
    reserved, used = (
        int(context.call("cuMemPoolGetAttribute", pool, name))
        for name in (names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    )
    return device.memory_info().free + reserved - used


def _available() -> int:
    """Bytes of host memory that could be had without swapping."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(eq=False)
class HostBuffer:
    """A set of pinned arrays of one chunk. It may be used again once `busy`, the last copy's end, has happened."""

    arrays: tuple[HostArray, ...]
    busy: Event | None = None
    _events: dict[int, Event] = field(default_factory=dict)

    def mark(self, stream: Stream) -> None:
        """The copies now queued on `stream` are the last that use it."""
        number = stream.context.ordinal
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = Event(stream.context, timing=False, blocking=True)
        event.record(stream)
        self.busy = event

    def wait(self) -> None:
        """Wait until the device is done with it."""
        if self.busy is not None:
            self.busy.synchronize()
            self.busy = None

    def close(self) -> None:
        for event in self._events.values():
            event.close()
        self.arrays = ()


class Clock:
    """Four events round the three parts of a chunk's work on the device, read once the last has happened."""

    def __init__(self, device: Device) -> None:
        self._events = [Event(device.context, timing=True) for _ in range(4)]

    def tick(self, part: int, stream: Stream) -> None:
        self._events[part].record(stream)

    def read(self, zero: Event) -> tuple[float, ...]:
        """Milliseconds since `zero`: begin, copied in, computed, copied out."""
        return tuple(event.elapsed_since(zero) for event in self._events)

    def close(self) -> None:
        for event in self._events:
            event.close()


@dataclass(eq=False)
class Mark:
    """The end of one chunk's work on a lane."""

    lane: Lane
    event: Event
    over: bool = False

    def happened(self) -> bool:
        """Whether it is there, without waiting."""
        return self.over or self.event.query()

    def wait(self) -> None:
        """Wait for it, once, and raise what the work failed with. The event may be recorded anew from then on."""
        self.event.synchronize()
        self.over = True
        self.lane.spare.append(self.event)


@dataclass(eq=False)
class Lane:
    """One stream of one device with its device arrays: where chunks are worked on, in the order they are queued."""

    number: int
    device: Device
    stream: Stream
    inputs: tuple[DeviceArray, ...]
    outputs: tuple[DeviceArray, ...]
    queued: deque[Mark] = field(default_factory=deque)
    spare: deque[Event] = field(default_factory=deque)
    last: int = -1  # the last chunk that was queued here

    @classmethod
    def make(cls, number: int, device: Device, inputs: Sequence[Item], outputs: Sequence[Item], chunk: int) -> Lane:
        stream = device.stream()
        try:
            arrays = [device.empty((chunk, *item.shape), item.dtype, stream) for item in (*inputs, *outputs)]
        except CudakitError:
            stream.close()
            raise
        return cls(number, device, stream, tuple(arrays[: len(inputs)]), tuple(arrays[len(inputs) :]))

    def waiting(self) -> int:
        """How many chunks are queued and not done."""
        while self.queued and self.queued[0].happened():
            self.queued.popleft()
        return len(self.queued)

    def mark(self, index: int) -> Mark:
        """The work of chunk `index` is all queued. Who waits for the mark gives its event back."""
        event = self.spare.pop() if self.spare else Event(self.device.context, timing=False, blocking=True)
        event.record(self.stream)
        mark = Mark(self, event)
        self.queued.append(mark)
        self.last = index
        return mark

    def close(self) -> None:
        for event in (*(mark.event for mark in self.queued), *self.spare):
            event.close()
        for array in (*self.inputs, *self.outputs):
            array.close()
        self.stream.close()
