"""Kernels of other compilers, ahead of time, into modules like any other: Triton (`triton`) and cuTile (`cutile`).

Each launch is checked against what the compiler says of the kernel's parameters, and fills in its block and shared
memory. What was compiled is kept on disk as NVRTC's results are (`cudakit.compile.cache`), so it is never compiled
twice.
"""

from __future__ import annotations

from cudakit.frontends import cutile, triton

__all__ = ["cutile", "triton"]
