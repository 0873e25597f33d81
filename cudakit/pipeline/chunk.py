"""The arguments that a pipeline passes to its caller's functions: the chunk to work on, the progress of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudakit.driver.stream import Stream

if TYPE_CHECKING:
    from cudakit.device import Device


@dataclass(frozen=True)
class Chunk:
    """The chunk that a function works on. index: among this run's chunks. start, stop: its items.

    device, stream: where its work is to be queued.
    """

    index: int
    start: int
    stop: int
    device: Device
    stream: Stream

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Progress:
    """How far a run is. items: finished. count: of how many; None where that is not known. gbps_in, gbps_out: GB/s."""

    items: int
    count: int | None
    seconds: float
    gbps_in: float
    gbps_out: float
