"""The rate of pinned copies between the host and the devices, measured in the same run as the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cudakit.pipeline.report import Link

if TYPE_CHECKING:
    from cudakit.device import Device

_SECONDS = 0.04  # per window: a thousand times the cost of starting and ending it
_WINDOWS = 3


def measure(devices: Sequence[Device], nbytes: int) -> Link:
    """Measure copies of `nbytes` on all devices at once: to them, from them, and both; the best of three windows.

    It takes about half a second, and two pinned and two device buffers of `nbytes` per device, which are freed at the
    end. It needs no device timer.
    """
    sides = []
    try:
        for device in devices:
            streams = (device.stream(), device.stream())
            host = [device.pinned(nbytes, np.uint8) for _ in streams]
            sides.append((streams, host, [device.empty(nbytes, np.uint8, stream) for stream in streams]))

        def copies(to_device: bool, to_host: bool) -> Callable[[], None]:
            def queue() -> None:
                for streams, host, arrays in sides:
                    if to_device:
                        arrays[0].copy_from(host[0], streams[0])
                    if to_host:
                        arrays[1].copy_to(host[1], streams[1])

            return queue

        def wait() -> None:
            for streams, _, _ in sides:
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
        for streams, _, arrays in sides:
            for array in arrays:
                array.close()
            for stream in streams:
                stream.close()
