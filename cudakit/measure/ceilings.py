"""The ceilings that a bench's rows are compared with: a copy of the same bytes, a large copy, the fp32 peak.

A family's ceiling is "copy", which is measured here, or the name of a peer (`cublas`), whose row is then the ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.measure.timing import GpuTimer, Launch, rotations

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.memory.array import DeviceArray

# The large copy: bytes read and bytes written together.
LARGE_COPY = 4 << 30


def copy_ceiling(device: Device, timer: GpuTimer, traffic: int) -> dict[str, Any]:
    """Time a device-to-device copy whose reads and writes add up to `traffic` bytes, rotated through memory like the
    variants, so that the L2 does not help."""
    half = max(traffic // 2, 1)
    l2, free = int(device.attribute("L2_CACHE_SIZE")), device.memory_info()[0]
    stream = timer.stream
    launches: list[Launch] = []
    for _ in range(rotations(2 * half, l2, free_bytes=free // 2)):
        source = device.empty((half,), np.uint8, stream=stream)
        target = device.empty((half,), np.uint8, stream=stream)
        source.fill(1, stream)
        launches.append(_copy(target, source, stream))
    spread = timer.time(launches)
    return {"bytes": 2 * half, "gbps": 2 * half / spread.median / 1e6, "time_ms": spread.as_dict()}


def large_copy_ceiling(device: Device, timer: GpuTimer) -> dict[str, Any]:
    """Time a copy of LARGE_COPY bytes, or of a quarter of the free memory if that is less: the bandwidth of large
    arrays."""
    return copy_ceiling(device, timer, min(LARGE_COPY, device.memory_info()[0] // 4))


def fp32_peak(device: Device) -> float:
    """Return the peak TFLOP/s of float32 fused multiply-adds: multiprocessors x lanes x 2 x highest clock."""
    lanes = 64 if device.arch in ("sm_70", "sm_75", "sm_80") else 128
    multiprocessors = int(device.attribute("MULTIPROCESSOR_COUNT"))
    return multiprocessors * lanes * 2 * int(device.attribute("CLOCK_RATE")) * 1000 / 1e12


def _copy(target: DeviceArray, source: DeviceArray, stream: Stream) -> Launch:
    return lambda: target.copy_from(source, stream)
