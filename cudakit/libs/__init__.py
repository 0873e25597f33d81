"""CUDA's libraries on cudakit's arrays and streams: cuBLAS (`blas`) and cuFFT (`fft`).

They are called through nvmath-python's bindings (the extra `libs`). On the simulated device numpy computes the results,
in stream order and with the device's checks.
"""

from __future__ import annotations

from cudakit.device import Device
from cudakit.libs import blas, calls, fft

__all__ = ["blas", "fft", "library"]


def library(device: Device, name: str = "cublas") -> str:
    """Return the name and version of the library that computes on a device, to report with results.

    Args:
        device: A GPU or a simulated device.
        name: "cublas" for `blas`, or "cufft" for `fft`.

    Returns:
        A text such as "cuBLAS 13.1.0", or "numpy 2.4.0 (simulated)".

    Raises:
        CudakitError: If the library is not installed.
        ValueError: If `name` is another one.
    """
    if name not in ("cublas", "cufft"):
        raise ValueError(f'the library must be "cublas" or "cufft", got {name!r}')
    if device.kind == "sim":
        import numpy as np

        return f"numpy {np.__version__} (simulated)"
    module = calls.bindings(device, name)
    device.context.make_current()
    version = ".".join(str(module.get_property(part)) for part in range(3))  # libraryPropertyType: major, minor, patch
    return f"cu{name[2:].upper()} {version}"
