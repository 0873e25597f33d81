"""Barriers among the threads of a block: who has arrived, and whether those that meet there may.

The scheduler (control.py) parks fragments at barriers and lets them go.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment, Run
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.report import Other


class BarrierState:
    """One barrier number of all blocks of a batch."""

    __slots__ = ("arrived", "expected", "waiting")

    def __init__(self, blocks: int) -> None:
        self.arrived = np.zeros(blocks, np.int64)
        # threads to wait for in each block; 0: all that are alive
        self.expected = np.zeros(blocks, np.int64)
        self.waiting: list[Fragment] = []


class BarrierCall:
    """What a barrier instruction asks: the number and count as functions of the fragment, whether it waits, what it
    reduces and where the result goes, and whether all lanes of a warp must be there (``aligned``)."""

    __slots__ = ("aligned", "count", "instruction", "number", "reduce", "slot", "value", "waits")

    def __init__(self, instruction: Any, number: Any, count: Any, waits: bool, aligned: bool) -> None:
        self.instruction = instruction
        self.number = number
        self.count = count
        self.waits = waits
        self.aligned = aligned
        self.reduce = ""
        self.value: Any = None
        self.slot = -1


def tell_checks(batch: Batch, number: int, state: BarrierState, full: Array, going: list[Fragment]) -> None:
    """Tell the checks who has met: whole blocks, or the warps that came and go on."""
    guard = batch.guard
    if guard is None:
        return
    waited = np.zeros(batch.geometry.blocks, np.int64)
    for f in going:
        waited += f.lanes.block_counts
    # where a barrier is for all threads of a block, those that have exited hold nothing up: they are behind it, too
    plain = (state.expected == 0) | (state.expected == batch.geometry.threads)
    whole = full & plain & (waited == batch.live_blocks)
    if whole.any():
        guard.barrier(None if whole.all() else whole)
    if (full & ~whole).any():
        for f in going:
            guard.depart(f.lanes, number)


def check_alignment(run: Run, going: list[Fragment], plain: Array) -> None:
    """An aligned barrier needs all lanes of a warp at the same instruction; __syncthreads(), which names no count
    (``plain``, for each block), all threads of the block at the same one of the source."""
    if len(going) < 2 or "barrier" not in run.checks:
        return
    seen: list[tuple[Fragment, BarrierCall]] = []
    for f in going:
        call: BarrierCall = f.program.blocks[f.block - 1].barrier
        if not call.aligned:
            continue
        for other, theirs in seen:
            if other.path() == f.path():
                continue
            both = np.isin(f.lanes.warp, other.lanes.warps)
            whose = "lanes of one warp"
            if not both.any() and run.place(call.instruction) != run.place(theirs.instruction):
                both = plain[f.lanes.block] & (other.lanes.block_counts > 0)[f.lanes.block]
                whose = "threads of one block"
            if both.any():
                _fail_apart(run, f, call, np.flatnonzero(both), other, theirs, whose)
        seen.append((f, call))


def _fail_apart(
    run: Run, f: Fragment, call: BarrierCall, positions: Array, other: Fragment, theirs: BarrierCall, whose: str
) -> NoReturn:
    """Lanes of two fragments wait at different barriers that should be one."""
    first = int(positions[0])
    same = other.lanes.warp == f.lanes.warp[first]
    if not same.any():
        same = other.lanes.block == f.lanes.block[first]
    block, thread = other.lane_place(int(np.argmax(same)))
    f.fail(
        call.instruction,
        "divergent barrier",
        f"{whose} wait at different barrier instructions: every thread of the block must reach the same "
        "__syncthreads()",
        first,
        positions,
        others=(Other("barrier", block, thread, run.place(theirs.instruction)),),
    )
