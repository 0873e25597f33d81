"""The buffers of a pipeline: arrays that are read into and written from, and streams with their device arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.memory.array import DeviceArray
from cudakit.pipeline.sources import Item

if TYPE_CHECKING:
    from cudakit.device import Device

#: Chunks that may be queued on one stream: the running one and the next, so that a copy engine never waits.
DEPTH = 2


@dataclass(eq=False)
class ChunkBuffer:
    """The arrays of one chunk that threads read into, or write from: pinned ones, and device arrays for sources that
    read to the device. They may be reused after the event `busy`, the end of the last work that uses them."""

    arrays: tuple[Any, ...]
    busy: Event | None = None
    _events: dict[int, Event] = field(default_factory=dict)

    @classmethod
    def make(cls, makers: Sequence[Callable[[Any, Any], Any]], items: Sequence[Item], chunk: int) -> ChunkBuffer:
        """Make the arrays for chunks of at most `chunk` items. makers: for each item, the function that makes its array
        of a shape and dtype."""
        return cls(tuple(maker((chunk, *item.shape), item.dtype) for maker, item in zip(makers, items, strict=True)))

    def mark(self, stream: Stream) -> None:
        """Record that the work queued on `stream` so far is the last that uses it."""
        number = stream.context.ordinal
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = Event(stream.context, timing=False, blocking=True)
        event.record(stream)
        self.busy = event

    def wait(self) -> None:
        """Wait until no queued work uses it."""
        if self.busy is not None:
            self.busy.synchronize()
            self.busy = None

    def close(self) -> None:
        for event in self._events.values():
            event.close()
        for array in self.arrays:
            if isinstance(array, DeviceArray):
                array.close()
        self.arrays = ()


class Clock:
    """Four events around the three stages of a chunk on the device; read them after the last has completed."""

    def __init__(self, device: Device) -> None:
        self._events = [Event(device.context, timing=True) for _ in range(4)]

    def tick(self, part: int, stream: Stream) -> None:
        self._events[part].record(stream)

    def read(self, zero: Event) -> tuple[float, ...]:
        """Return milliseconds since `zero` at the start, after the copy in, the computation, and the copy out."""
        return tuple(event.elapsed_since(zero) for event in self._events)

    def close(self) -> None:
        for event in self._events:
            event.close()


@dataclass(eq=False)
class Mark:
    """The end of one chunk's work on a slot."""

    slot: StreamSlot
    event: Event
    over: bool = False

    def happened(self) -> bool:
        """Whether the work has finished; does not wait."""
        return self.over or self.event.query()

    def wait(self) -> None:
        """Wait for the work and raise its error, if any. Call it once, because the event is reused afterwards."""
        self.event.synchronize()
        self.over = True
        self.slot.spare.append(self.event)


@dataclass(eq=False)
class StreamSlot:
    """One stream of one device with its device arrays. It processes chunks in the order they are queued."""

    number: int
    device: Device
    stream: Stream
    inputs: tuple[DeviceArray, ...]
    outputs: tuple[DeviceArray, ...]
    queued: deque[Mark] = field(default_factory=deque)
    spare: deque[Event] = field(default_factory=deque)
    last: int = -1  # the last chunk queued here

    @classmethod
    def make(
        cls, number: int, device: Device, inputs: Sequence[Item], outputs: Sequence[Item], chunk: int
    ) -> StreamSlot:
        stream = device.stream()
        try:
            arrays = [device.empty((chunk, *item.shape), item.dtype, stream) for item in (*inputs, *outputs)]
        except CudakitError:
            stream.close()
            raise
        return cls(number, device, stream, tuple(arrays[: len(inputs)]), tuple(arrays[len(inputs) :]))

    def waiting(self) -> int:
        """Return the number of chunks that are queued and not finished."""
        while self.queued and self.queued[0].happened():
            self.queued.popleft()
        return len(self.queued)

    def mark(self, index: int) -> Mark:
        """Record that all work of chunk `index` is queued. Waiting for the mark returns its event to `spare`."""
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
