"""The rate of pinned copies between the host and the devices, measured in the same run as the pipeline."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.report import Link

if TYPE_CHECKING:
    from cudakit.device import Device

_SECONDS = 0.04  # per window: a thousand times the cost of starting and ending it
_WINDOWS = 3


@dataclass(frozen=True)
class HostMemory:
    """Pinned memory that a run copies from and to: arrays of bytes, each of the size that is measured.

    Its place matters: on a machine with several memory nodes, copies of two devices can be a quarter slower from one
    buffer than from another.
    """

    sources: Sequence[HostArray] = ()
    results: Sequence[HostArray] = ()


def measure(devices: Sequence[Device], nbytes: int, memory: HostMemory | None = None) -> Link:
    """Measure copies of `nbytes` on all devices at once: to them, from them, and both; the best of three windows.

    It takes about half a second, and two device buffers of `nbytes` per device, and as many pinned ones for a direction
    that `memory` has no arrays for; they are freed at the end. The arrays of `memory.results` are overwritten. It needs
    no device timer.
    """
    memory = memory or HostMemory()
    sides = []
    try:
        for device in devices:
            streams = (device.stream(), device.stream())
            sides.append((streams, [device.empty(nbytes, np.uint8, stream) for stream in streams]))
        hosts = [
            itertools.cycle(given or [device.pinned(nbytes, np.uint8) for device in devices])
            for given in (memory.sources, memory.results)
        ]

        def copies(to_device: bool, to_host: bool) -> Callable[[], None]:
            def queue() -> None:
                for streams, arrays in sides:
                    if to_device:
                        arrays[0].copy_from(next(hosts[0]), streams[0])
                    if to_host:
                        arrays[1].copy_to(next(hosts[1]), streams[1])

            return queue

        def wait() -> None:
            for streams, _ in sides:
                for stream in streams:
                    stream.synchronize()

        def rate(queue: Callable[[], None]) -> float:
            best = 0.0
            number = 4
            for _ in range(_WINDOWS):
                begin = time.perf_counter()
                for _ in range(number):
                    queue()
                wait()
                seconds = time.perf_counter() - begin
                best = max(best, number * nbytes * len(sides) / seconds)
                number = max(int(number * _SECONDS / seconds), 4)
            return best

        return Link(rate(copies(True, False)), rate(copies(False, True)), rate(copies(True, True)))
    finally:
        for streams, arrays in sides:
            for array in arrays:
                array.close()
            for stream in streams:
                stream.close()


def mean(links: Sequence[Link]) -> Link:
    """Return the mean rates of measurements at several times."""
    return Link(*(sum(getattr(link, name) for link in links) / len(links) for name in ("h2d", "d2h", "both")))
