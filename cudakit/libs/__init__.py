"""CUDA's own libraries on cudakit's arrays and streams: cuBLAS (`blas`) and cuFFT (`fft`), through nvmath-python's
bindings (the extra `libs`). On the simulated device numpy stands in for them, in stream order and with its checks.
"""

from __future__ import annotations

from cudakit.device import Device
from cudakit.libs import blas, calls, fft

__all__ = ["blas", "fft", "library"]


def library(device: Device, name: str = "cublas") -> str:
    """Which library does the work of `blas` ("cublas") or `fft` ("cufft") on a device, to be told with results:
    "cuBLAS 13.1.0", or "numpy 2.4.0 (simulated)". Raises CudakitError where it is not installed."""
    if name not in ("cublas", "cufft"):
        raise ValueError(f'the libraries are "cublas" and "cufft", not {name!r}')
    if device.kind == "sim":
        import numpy as np

        return f"numpy {np.__version__} (simulated)"
    module = calls.bindings(device, name)
    device.context.make_current()
    version = ".".join(str(module.get_property(part)) for part in range(3))  # libraryPropertyType: major, minor, patch
    return f"cu{name[2:].upper()} {version}"
