"""The check that the four warps of a warpgroup execute the same instructions, in the same order: wgmma, setmaxnreg.

Warps need not run together: the n-th such instruction of each warp is compared with the n-th one of the warpgroup's
other warps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.report import Other
from cudakit.sim.lockstep.warpgroup_operands import ROWS, WARPS, units_of
from cudakit.sim.ptx.ir import Instruction


class _Record(NamedTuple):
    """The n-th instruction of a warpgroup, as the first of its warps has executed it."""

    instruction: Instruction
    values: tuple[Any, ...]
    place: tuple[Any, Any]
    warps: set[int]


class Meetings:
    """The instructions of one kind that a batch's warps have executed. ``kind`` is that of reports, ``name`` the
    instruction's, and ``describe`` writes a value of the operand with a name."""

    def __init__(self, batch: Batch, kind: str, name: str, describe: Callable[[str, Any], str]) -> None:
        self.batch = batch
        self.kind = kind
        self.name = name
        self.describe = describe
        self.counts = np.zeros(batch.geometry.warps, np.int64)
        # by first warp of a warpgroup and number, the instructions that some but not all of its warps have executed
        self.records: dict[tuple[int, int], _Record] = {}

    def meet(self, f: Fragment, instruction: Instruction, values: dict[str, Array]) -> None:
        """The fragment's warps execute an instruction; ``values`` are its operands that all warps of a warpgroup must
        pass alike, by warp."""
        warps = f.lanes.warps
        if units_of(self.batch, warps).rows == WARPS * ROWS:
            counts = self.counts[warps].reshape(-1, WARPS)
            if (counts == counts[:, :1]).all():
                for name, value in values.items():
                    groups = value.reshape(-1, WARPS)
                    if (apart := groups != groups[:, :1]).any():
                        wrong = int(np.flatnonzero(apart)[0])
                        self.fail_values(f, instruction, name, value, 32 * wrong, 32 * (wrong // WARPS * WARPS))
                self.counts[warps] += 1
                return
        for rank in range(len(warps)):
            self._meet_warp(f, instruction, {name: value[rank] for name, value in values.items()}, rank)
        self.counts[warps] += 1

    def fail_values(
        self, f: Fragment, instruction: Instruction, name: str, value: Array, wrong: int, first: int
    ) -> None:
        """Report an operand that differs between the lanes at two positions; ``value`` is by lane or by warp."""
        step = 1 if len(value) == f.lanes.count else 32
        here, there = (self.describe(name, value[position // step]) for position in (wrong, first))
        f.fail(
            instruction,
            self.kind,
            f"all threads of a warpgroup must pass the same {name}: this thread has {here}, the first one {there}",
            wrong,
            others=(Other(self.name, *f.lane_place(first), self.batch.run.place(instruction)),),
        )

    def _siblings(self, warp: int) -> Array:
        """The warps of a warp's warpgroup."""
        per_block = self.batch.geometry.warps_per_block
        block, local = divmod(warp, per_block)
        first = local // WARPS * WARPS
        return block * per_block + np.arange(first, min(first + WARPS, per_block))

    def _meet_warp(self, f: Fragment, instruction: Instruction, values: dict[str, Any], rank: int) -> None:
        """Compare a warp's next instruction with that of its warpgroup's other warps."""
        warp, position = int(f.lanes.warps[rank]), int(f.lanes.warp_starts[rank])
        siblings, number = self._siblings(warp), int(self.counts[warp])
        if len(siblings) < WARPS:
            f.fail(
                instruction,
                self.kind,
                f"{self.name} needs all 4 warps of a warpgroup; the last warpgroup of this block has {len(siblings)}",
                position,
                notes=["launch a multiple of 128 threads"],
            )
        gone = siblings[(self.batch.live_warps[siblings] == 0) & (self.counts[siblings] <= number)]
        if len(gone):
            lane = int(gone[0]) % self.batch.geometry.warps_per_block * 32
            f.fail(
                instruction,
                self.kind,
                f"all 4 warps of a warpgroup must execute {self.name}; the warp of thread "
                f"{self.batch.thread_index(lane)} has exited",
                position,
            )
        key, given = (int(siblings[0]), number), tuple(values.values())
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = _Record(instruction, given, f.lane_place(position), set())
        elif record.instruction is not instruction or record.values != given:
            same = record.instruction is instruction
            f.fail(
                instruction,
                self.kind,
                f"the warps of a warpgroup execute {'one' if same else 'different'} {self.name} instruction"
                f"{' with different operands' if same else 's'}; all 4 warps must execute the same ones with the same "
                "operands, in the same order",
                position,
                others=(Other(self.name, *record.place, self.batch.run.place(record.instruction)),),
            )
        record.warps.add(warp)
        if len(record.warps) == len(siblings):
            del self.records[key]

    def leave(self, f: Fragment) -> None:
        """Report warps that have exited without an instruction that other warps of their warpgroup have executed."""
        if not self.records:
            return
        for warp in f.lanes.warps.tolist():
            record = self.records.get((int(self._siblings(warp)[0]), int(self.counts[warp])))
            if record is None or self.batch.live_warps[warp]:
                continue
            f.fail(
                record.instruction,
                self.kind,
                f"a warp exits without executing this {self.name}, which other warps of its warpgroup have executed",
                int(np.searchsorted(f.lanes.warp, warp)),
                others=(Other(self.name, *record.place, self.batch.run.place(record.instruction)),),
            )
