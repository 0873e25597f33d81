"""Kernels written for Triton (`triton`) or cuTile (`cutile`): compiled ahead of time and loaded as modules.

Each launch is checked against the parameters that the compiler reports, and fills in the block and the shared memory.
Compiled kernels are kept in the disk cache, like NVRTC's (`cudakit.compile.cache`), and are not compiled again.
"""

from __future__ import annotations

from cudakit.frontends import cutile, triton

__all__ = ["cutile", "triton"]
