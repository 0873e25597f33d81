"""CPU tensors on the simulated device: kernels run on the tensors' own memory, and every call waits for its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudakit.device import Device
from cudakit.memory.array import DeviceArray

# One call at a time: two views of one storage that overlap cannot be registered with the device independently.
_lock = threading.RLock()
_shared: Device | None = None
_chosen: Device | None = None


def simulated_device() -> Device:
    """The simulated device that CPU tensors run on: the one set by `set_simulated_device`, else one of the ops' own.

    The ops' own is made on first use, and again after a fault, which ends a simulated device.
    """
    global _shared
    with _lock:
        if _chosen is not None:
            return _chosen
        if _shared is None or _shared.context.lost is not None or _shared.context.closed:
            _shared = Device("sim", fresh=True)
        return _shared


def set_simulated_device(device: Device | None) -> None:
    """Run the ops on CPU tensors on `device`, a simulated one (`Device("sim:sm_80")`); None: on the ops' own again.

    A device that is set here is not replaced after a fault. Raises TypeError for anything else.
    """
    global _chosen
    if device is not None and (not isinstance(device, Device) or device.kind != "sim"):
        raise TypeError(f"CPU tensors run on a simulated device, got {device!r}: give a simulated Device, or None")
    with _lock:
        _chosen = device


def run(tensors: Sequence[Any], work: Callable[[Device, Sequence[DeviceArray]], object]) -> None:
    """Call `work(device, arrays)` with arrays over the memory of CPU tensors, and wait for what it queued.

    Raises what `work` raises, and DeviceFault with the report if a kernel makes a mistake.
    """
    with _lock:
        device = simulated_device()
        arrays: list[DeviceArray] = []
        storages = _shared_storages(device, tensors)
        try:
            arrays += [device.wrap(tensor.detach()) for tensor in tensors]
            work(device, arrays)
            device.default_stream.synchronize()
        finally:
            for array in (*arrays, *storages):
                array.close()


def _shared_storages(device: Device, tensors: Sequence[Any]) -> list[DeviceArray]:
    """Arrays over the storages that several of the tensors are views of: each is registered whole, before its views."""
    owners: dict[int, list[Any]] = {}
    for tensor in tensors:
        if tensor.numel():
            owners.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    wrapped = []
    for views in owners.values():
        if len(views) > 1:
            storage = views[0].untyped_storage()
            wrapped.append(device.wrap(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))))
    return wrapped
