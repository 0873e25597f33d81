"""Memory of variable size on the stack: the frame of a function that contains alloca.

The frame begins with the function's variables. alloca makes it larger, for each thread on its own, and stackrestore
smaller again; it ends with the function. ``Batch.frame_ends`` has the ends of the lanes' frames by the depth of the
call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.ptx.ir import Instruction


def begin_frame(batch: Batch, lanes: LaneSet, depth: int, end: int) -> Array:
    """Note that lanes begin a function, with ``depth`` callers, whose variables end at ``end``."""
    ends = batch.frame_ends.get(depth)
    if ends is None:
        ends = batch.frame_ends[depth] = np.zeros(batch.geometry.lanes, np.int64)
    ends[lanes.lanes] = end
    return ends


def frame_end(f: Fragment) -> Any:
    """The end of the frame of the function that the lanes run, as an offset in local memory: one for all lanes, or one
    per lane if the function contains alloca."""
    fixed, depth = f.frames[-1].local_base + f.program.local_bytes, len(f.frames) - 1
    if not f.program.grows:
        return fixed
    ends = f.batch.frame_ends.get(depth)
    if ends is None:
        # the kernel's own frame, which no call has begun
        ends = begin_frame(f.batch, f.batch.geometry.all, depth, fixed)
    return ends.take(f.lanes.lanes)


def grow(f: Fragment, size: Array, align: int, instruction: Instruction) -> Array:
    """Allocate ``size`` bytes per lane at the end of the frame; returns their offsets. Reports a stack overflow."""
    end, most = frame_end(f), f.batch.run.local_bytes
    start: Array = (end + (align - 1)) & -align
    sizes = np.broadcast_to(size, (f.lanes.count,))
    over = (sizes > np.uint64(most)) | (start + np.minimum(sizes, most).astype(np.int64) > most)
    if over.any():
        position = int(np.argmax(over))
        f.fail(
            instruction,
            "stack overflow",
            f"alloca of {int(sizes[position])} bytes at byte {int(start[position])} of the thread's {most} bytes of "
            "local memory: allocate less, or raise the stack limit",
            position,
            np.flatnonzero(over),
        )
    new = start + sizes.astype(np.int64)
    f.batch.frame_ends[len(f.frames) - 1][f.lanes.lanes] = new
    guard = f.batch.guard
    if guard is not None:
        # the bytes are uninitialised, whatever an earlier frame has stored there
        for first, last in {(int(a), int(b)) for a, b in zip(start, new, strict=True)}:
            _, lanes = f.lanes.subset((start == first) & (new == last))
            guard.enter(lanes, first, last - first)
    return start


def shrink(f: Fragment, end: Array, instruction: Instruction) -> None:
    """Free all that was allocated since the frame ended at ``end``. Reports an end that stacksave cannot have
    returned."""
    fixed, now = f.frames[-1].local_base + f.program.local_bytes, frame_end(f)
    ends = np.broadcast_to(end, (f.lanes.count,)).astype(np.int64)
    wrong = (ends < fixed) | (ends > now)
    if wrong.any():
        position = int(np.argmax(wrong))
        f.fail(
            instruction,
            "out of bounds",
            f"stackrestore of {int(ends[position])}, which is not between the start ({fixed}) and the end "
            f"({int(now[position])}) of the memory on the stack: pass a value of stacksave of the same function",
            position,
            np.flatnonzero(wrong),
        )
    f.batch.frame_ends[len(f.frames) - 1][f.lanes.lanes] = ends
