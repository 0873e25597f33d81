"""The buffers of a pipeline: pinned arrays on the host, and streams with their arrays on the devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cudakit.driver.stream import Event, Stream
from cudakit.errors import CudakitError
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.sources import Item

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.memory.array import DeviceArray

#: Chunks that may be queued on one stream: the one that runs, and one behind it, so that a copy engine never waits.
DEPTH = 2


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
    """The end of one chunk's work on a slot."""

    slot: StreamSlot
    event: Event
    over: bool = False

    def happened(self) -> bool:
        """Whether it is there, without waiting."""
        return self.over or self.event.query()

    def wait(self) -> None:
        """Wait for it, once, and raise what the work failed with. The event may be recorded anew from then on."""
        self.event.synchronize()
        self.over = True
        self.slot.spare.append(self.event)


@dataclass(eq=False)
class StreamSlot:
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
