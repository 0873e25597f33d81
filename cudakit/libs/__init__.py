"""CUDA's libraries on cudakit's arrays and streams: cuBLAS (`blas`), cuFFT (`fft`) and NCCL (`nccl`).

cuBLAS and cuFFT are called through nvmath-python's bindings (the extra `libs`), NCCL through nccl4py's (the extra
`nccl`). On the simulated device numpy computes the results, in stream order and with the device's checks.
"""

from __future__ import annotations

from cudakit.device import Device
from cudakit.libs import blas, calls, fft, nccl, nccl_library

__all__ = ["blas", "fft", "library", "nccl"]


def library(device: Device, name: str = "cublas") -> str:
    """Return the name and version of the library that computes on a device, to report with results.

    Args:
        device: A GPU or a simulated device.
        name: "cublas" for `blas`, "cufft" for `fft`, or "nccl".

    Returns:
        A text such as "cuBLAS 13.1.0", or "numpy 2.4.0 (simulated)".

    Raises:
        CudakitError: If the library is not installed.
        ValueError: If `name` is another one.
    """
    if name not in ("cublas", "cufft", "nccl"):
        raise ValueError(f'the library must be "cublas", "cufft" or "nccl", got {name!r}')
    if device.kind == "sim":
        import numpy as np

        return f"numpy {np.__version__} (simulated)"
    if name == "nccl":
        return f"NCCL {nccl_library.version(nccl_library.bindings())}"
    module = calls.bindings(device, name)
    device.context.make_current()
    version = ".".join(str(module.get_property(part)) for part in range(3))  # libraryPropertyType: major, minor, patch
    return f"cu{name[2:].upper()} {version}"
