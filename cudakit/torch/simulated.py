"""CPU tensors on the simulated device: kernels run on the tensors' own memory, and each call waits for its result."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.memory.array import DeviceArray

# One call at a time: overlapping views of one storage cannot be registered with the device independently.
_lock = threading.RLock()
_shared: Device | None = None
_chosen: Device | None = None


def simulated_device() -> Device:
    """Return the simulated device that CPU tensors run on: the one set by `set_simulated_device`, or a default one.

    The default one is made on first use, and again after a fault, because a fault ends a simulated device.
    """
    global _shared
    with _lock:
        if _chosen is not None:
            return _chosen
        if _shared is None or _shared.context.lost is not None or _shared.context.closed:
            _shared = Device("sim", fresh=True)
        return _shared


def set_simulated_device(device: Device | None) -> None:
    """Set the simulated device that CPU tensors run on. It is not replaced after a fault.

    Args:
        device: A simulated device, such as `Device("sim:sm_80")`; None for the default one.

    Raises:
        TypeError: If `device` is not a simulated Device.
    """
    global _chosen
    if device is not None and (not isinstance(device, Device) or device.kind != "sim"):
        raise TypeError(f"CPU tensors run on a simulated device, got {device!r}: pass a simulated Device, or None")
    with _lock:
        _chosen = device


def run(tensors: Sequence[Any], work: Callable[[Device, Sequence[DeviceArray]], object]) -> None:
    """Call `work(device, arrays)` with arrays over the memory of CPU tensors, and wait for the work it queued.

    Raises the errors of `work`, and DeviceFault with the report if the simulated device finds a fault.
    """
    with _lock:
        device = simulated_device()
        arrays: list[DeviceArray] = []
        try:
            arrays += _shared_memory(device, tensors)
            first = len(arrays)
            arrays += [device.wrap(tensor.detach()) for tensor in tensors]
            work(device, arrays[first:])
            device.default_stream.synchronize()
        finally:
            for array in reversed(arrays):
                array.close()


def _shared_memory(device: Device, tensors: Sequence[Any]) -> list[DeviceArray]:
    """Return arrays over memory that several tensors share: it is registered as a whole, before the tensors' parts."""
    pieces: list[list[int]] = []  # first byte, end, number of different parts
    for low, high in sorted({_span(tensor) for tensor in tensors if tensor.numel()}):
        if pieces and low < pieces[-1][1]:
            pieces[-1][1] = max(high, pieces[-1][1])
            pieces[-1][2] += 1
        else:
            pieces.append([low, high, 1])
    whole = [(ctypes.c_uint8 * (high - low)).from_address(low) for low, high, parts in pieces if parts > 1]
    return [device.wrap(np.ctypeslib.as_array(memory)) for memory in whole]


def _span(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte, and of the byte after its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * step for extent, step in steps)
    low = int(tensor.data_ptr())
    return low, low + (last + 1) * int(tensor.element_size())
