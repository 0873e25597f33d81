"""The machine code that all kernels share.

Machine code reports nothing: the interpreter runs a launch again that may fail a check.
"""

from __future__ import annotations

from cudakit.sim.compiled import blocks, copy_memory, global_memory, local_memory, shared_memory, traffic, warps
from cudakit.sim.compiled.ir import Module


def runtime() -> Module:
    """All functions."""
    module = Module()
    for room in (shared_memory, traffic, global_memory, local_memory, copy_memory, warps, blocks):
        for write in room.FUNCTIONS:
            write(module)
    return module
