"""The default limit of a launch's loop iterations, after which it counts as endless.

A loop that stores or executes atomics changes the state in each iteration, so only a limit can end it if memory decides
how long it runs. The count begins again with each iteration of a loop that is sure to end (lockstep/loops.py). The
limit grows with the work that the launch may have: its threads that run together, the bytes of the memory that its
arguments point to, and its integer arguments, which may be numbers of iterations.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.memory import AddressSpace, Allocation

_LEAST, _MOST = 60_000, 50_000_000
_PER_THREAD, _PER_BYTE, _PER_COUNT = 4, 1, 10
# larger arguments are seeds, bit patterns of floats and the like
_LARGEST_COUNT = 1 << 22


def default_step_limit(threads: int, params: list[bytes], space: AddressSpace) -> int:
    """The limit of a launch with these parameters, of which ``threads`` threads run together. A step is a jump back to
    the start of a loop, by any number of lanes at once."""
    memory = {found.address: found.size for value in params for found in _pointed(value, space)}
    counts = [int(np.frombuffer(value, "<u4")[0]) for value in params if len(value) == 4]
    counts += [int(np.frombuffer(value, "<u8")[0]) for value in params if len(value) == 8]
    largest = max((count for count in counts if count <= _LARGEST_COUNT), default=0)
    wanted = _LEAST + _PER_THREAD * threads + _PER_BYTE * sum(memory.values()) + _PER_COUNT * largest
    return min(wanted, _MOST)


def _pointed(value: bytes, space: AddressSpace) -> list[Allocation]:
    """The live allocations that a parameter's bytes point to."""
    found = []
    for offset in range(0, len(value) - 7, 8):
        address = int.from_bytes(value[offset : offset + 8], "little")
        near = space.find(address)
        if near is not None and near.live and near.address <= address < near.end:
            found.append(near)
    return found
