"""setmaxnreg: warps return registers to their block, or wait for more.

A block has the registers that its threads have at launch. The compiler must know that number: it follows from the
kernel's launch bounds, or from its maximum number of registers. Otherwise ptxas ignores setmaxnreg, and so does the
simulated device. Registers of warps that have exited are not given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment, divide
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import round_up
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.warpgroup_meetings import Meetings
from cudakit.sim.ptx.ir import Instruction

# registers of an SM, the most of a thread, and the unit in which they are allocated to threads
_REGISTERS, _MOST, _UNIT = 65536, 255, 8
DIVERGENT = "divergent setmaxnreg"
NEVER = "registers never available"


def registers_at_launch(directives: Mapping[str, Sequence[int]]) -> int:
    """Registers of a thread at the start of a kernel, as ptxas derives them from the kernel's directives; 0 if they do
    not determine the number."""
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    threads = directives.get("maxntid") or directives.get("reqntid")
    blocks = directives.get("minnctapersm", (0,))[0]
    if not threads or not blocks:
        return 0
    whole = round_up(int(np.prod(threads)), 128)
    return min(_MOST, _REGISTERS // (whole * blocks) // _UNIT * _UNIT)


class RegisterPool:
    """The registers of a batch's blocks. ``count`` are those of a thread of each warp, ``free`` those of each block
    that no warp has, as registers per thread of one warp. ``waiting`` are the fragments whose request is not met."""

    def __init__(self, batch: Batch, queue: FragmentQueue) -> None:
        self.batch = batch
        self.queue = queue
        self.launch = round_up(batch.run.config.registers, _UNIT)
        self.count = np.full(batch.geometry.warps, self.launch, np.int64)
        self.free = np.zeros(batch.geometry.blocks, np.int64)
        self.waiting: list[Fragment] = []
        self.wanted: dict[int, tuple[Instruction, int]] = {}
        self.meetings = Meetings(batch, DIVERGENT, "setmaxnreg", lambda name, value: str(value))
        self.checking = "barrier" in batch.run.checks

    def meet(self, f: Fragment, instruction: Instruction, count: int) -> bool:
        """A fragment, already past the instruction, asks for ``count`` registers per thread; True if it may continue at
        once."""
        f.jumps = 0
        if self.checking:
            self.meetings.meet(f, instruction, {})
        if not self.launch:
            return True
        warps = f.lanes.warps
        if "dec" in instruction.modifiers:
            released = np.maximum(self.count[warps] - count, 0)
            np.add.at(self.free, self.block_of(warps), released)
            self.count[warps] -= released
            self.release()
            return True
        self.waiting.append(f)
        self.wanted[id(f)] = (instruction, count)
        return self.release(f)

    def block_of(self, warps: Array) -> Array:
        found: Array = warps // self.batch.geometry.warps_per_block
        return found

    def release(self, mine: Fragment | None = None) -> bool:
        """Assign registers to the warps that wait, first come first served, and let them continue. Returns whether some
        could, or whether all of ``mine`` can, which is then not queued."""
        released = False
        parked, self.waiting = self.waiting, []
        epoch = self.queue.epoch()
        for f in parked:
            instruction, count = self.wanted.pop(id(f))
            mask = self._take(f, count)
            going, staying = divide([f], lambda lanes, mask=mask: np.isin(lanes.warp, mask))  # type: ignore[misc]
            for part in staying:
                self.waiting.append(part)
                self.wanted[id(part)] = (instruction, count)
            for part in going:
                released = True
                self.batch.progress += 1
                if part is mine:
                    return True
                part.epoch = epoch
                self.queue.add(part)
        return released and mine is None

    def _take(self, f: Fragment, count: int) -> Array:
        """Assign the fragment's warps their registers if the block has enough; returns the warps that have them."""
        met = []
        for warp in f.lanes.warps.tolist():
            block, missing = warp // self.batch.geometry.warps_per_block, max(0, count - int(self.count[warp]))
            if missing <= self.free[block]:
                self.free[block] -= missing
                self.count[warp] += missing
                met.append(warp)
        return np.array(met, np.int64)

    def leave(self, f: Fragment) -> None:
        """The lanes of a fragment have exited."""
        if self.checking:
            self.meetings.leave(f)

    def deadlock(self) -> NoReturn:
        """Report warps whose request can never be met."""
        f = self.waiting[0]
        instruction, count = self.wanted[id(f)]
        warp = int(f.lanes.warps[0])
        geometry = self.batch.geometry
        block = warp // geometry.warps_per_block
        first = block * geometry.warps_per_block
        counts = self.count[first : first + geometry.warps_per_block]
        held = [f"{int((counts == n).sum())} warps with {n}" for n in np.unique(counts).tolist()]
        total, free = 32 * self.launch * geometry.warps_per_block, 32 * int(self.free[block])
        f.fail(
            instruction,
            NEVER,
            f"setmaxnreg waits for {count} registers per thread, but no other warp releases any: the block was "
            f"launched with {self.launch} for each thread of its {geometry.warps_per_block} warps, {total} in total; "
            f"{free} are free, and this warp needs {32 * (count - int(self.count[warp]))} more",
            lanes=f.lanes.count,
            notes=[
                f"registers per thread now: {', '.join(held)}",
                "the sum over all warps must not exceed the registers at launch: 168 for 384 threads are enough for "
                "24 + 240 + 240",
            ],
        )
