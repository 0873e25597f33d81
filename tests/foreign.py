"""Arrays of torch and CuPy in memory that the simulated device reads; only their device number is changed.

torch's arrays are real tensors of its CPU build, in memory registered with the device. CuPy needs a GPU, so its arrays
are of a class defined here with the attributes that cudakit reads.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit.memory import libraries


class ndarray:
    """A stand-in of cupy.ndarray."""

    def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
        self.host = host
        self.data = SimpleNamespace(ptr=host.ctypes.data, device_id=device)
        self.dtype, self.shape, self.strides = host.dtype, host.shape, host.strides
        self.flags = host.flags


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Make the simulated device accept torch's CPU tensors, if torch is installed, and arrays of the class above."""
    cupy = ModuleType("cupy")
    cupy.ndarray = ndarray  # type: ignore[attr-defined]
    cupy.cuda = SimpleNamespace(get_current_stream=None)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        known = [replace(libraries.named("cupy"), kind="sim", described=False)]
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401

            # a CPU tensor's index is -1
            known.append(replace(libraries.named("torch"), kind="sim", device="({0}.get_device() + 1)"))
        patch.setattr(libraries, "more", known)
        yield


@contextlib.contextmanager
def registered(device: cudakit.Device, address: int, size: int) -> Iterator[None]:
    """Return host memory that the kernels of a simulated device may use."""
    device.context.call("cuMemHostRegister", address, size, 0)
    try:
        yield
    finally:
        device.synchronize()
        device.context.call("cuMemHostUnregister", address)


class Says:
    """A stream of another library whose `__cuda_stream__` returns a given value or raises a given exception."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def __cuda_stream__(self) -> Any:
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said
