"""Helpers for tests that call the simulated driver."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim import Driver

OK = cu.CUresult.CUDA_SUCCESS
NOT_READY = cu.CUresult.CUDA_ERROR_NOT_READY
INVALID_VALUE = cu.CUresult.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = cu.CUresult.CUDA_ERROR_INVALID_HANDLE
NON_BLOCKING = 1


class Host:
    """Calls driver functions and raises at the first error: ``host.cuMemAlloc(64)`` returns only the value."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.driver, name)

        def run(*args: Any) -> Any:
            code, *values = function(*args)
            assert code == OK, f"{name}: {code!r} {self.driver.simLastMessage()}"
            return values[0] if len(values) == 1 else tuple(values)

        return run

    def stream(self, flags: int = NON_BLOCKING) -> Any:
        return self.cuStreamCreateWithPriority(flags, 0)

    def event(self) -> Any:
        return self.cuEventCreate(2)

    def pinned(self, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """Return a pinned array, which lives as long as the driver."""
        size = count * np.dtype(dtype).itemsize
        address = self.cuMemHostAlloc(size, 0)
        return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)

    def upload(self, data: np.ndarray[Any, Any]) -> int:
        pointer = self.cuMemAlloc(data.nbytes)
        self.cuMemcpyHtoD(pointer, data, data.nbytes)
        self.cuCtxSynchronize()
        return int(pointer)

    def download(self, pointer: Any, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        out = np.empty(count, dtype)
        self.cuMemcpyDtoH(out, pointer, out.nbytes)
        return out


def start(**options: Any) -> Host:
    host = Host(Driver(**options))
    host.cuInit(0)
    host.cuCtxSetCurrent(host.cuDevicePrimaryCtxRetain(0))
    return host


def address_of(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)
