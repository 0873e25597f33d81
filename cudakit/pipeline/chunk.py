"""Arguments that a pipeline passes to its caller's functions: the chunk to process, the progress of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudakit.driver.stream import Stream

if TYPE_CHECKING:
    from cudakit.device import Device


@dataclass(frozen=True)
class Chunk:
    """The chunk that a pipeline's function processes.

    Attributes:
        index: Its number among the chunks of this run.
        start, stop: The first item, and the item after the last.
        device: The device with its arrays.
        stream: The stream on which its work must be queued.
    """

    index: int
    start: int
    stop: int
    device: Device
    stream: Stream

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class WorkerProgress:
    """The progress of one worker of a cluster.

    Attributes:
        name: Its name in the cluster.
        items: Finished items.
        rate: Items per second, recently; None if it has finished none.
    """

    name: str
    items: int
    rate: float | None


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        items: Finished items.
        count: All items; None if unknown.
        seconds: Time since the start.
        gbps_in: Mean rate to the devices, in GB/s.
        gbps_out: Mean rate to the host, in GB/s.
        workers: The workers of a cluster; empty in a run without one.
    """

    items: int
    count: int | None
    seconds: float
    gbps_in: float
    gbps_out: float
    workers: tuple[WorkerProgress, ...] = ()
