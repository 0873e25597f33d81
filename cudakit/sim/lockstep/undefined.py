"""Undefined register values: registers that the thread has never written, loads of memory that was never written, and
results of shuffles from inactive lanes.

Such a value may be computed with and discarded; CUDA leaves the program's behaviour undefined only once it is used.
``Frame.undefined`` has the codes of its registers by slot, one uint16 per lane: 0 for a defined value, otherwise the
number of its origin in ``KernelRun.origins``. A basic block is run with its hooks (``Program.careful``), which update
the codes and report uses, only if a register is undefined or a shuffle may read an inactive lane. A load of an
undefined value in any other block stops that block (``UndefinedLoad``), and the rest of it is run with hooks: kernels
that load no such values pay nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.masks import MISSING
from cudakit.sim.lockstep.program import BARRIER, BRANCH, INDIRECT, SWITCH, BasicBlock, Program, follows, reads_of
from cudakit.sim.ptx.ir import Instruction, Register

# the code of a register that was never written and that no arithmetic has read yet
UNWRITTEN = 1
# the code of the first of the origins
_FIRST = 2
# set in the codes of values loaded from memory that was never written
LOADED = 0x8000

_VARIABLE = re.compile(r"v(\d+)")


class UndefinedLoad(Exception):
    """A load of an undefined value in a block that is run without hooks. Raised before the load has any effect."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction.text)
        self.instruction = instruction


@dataclass
class ValueOrigin:
    """The instruction that first computed with an unwritten register, the shuffle that read an inactive lane, or the
    load of memory that was never written (``loads``: by lane of the batch, what it has loaded last)."""

    instruction: Instruction
    shuffle: bool = False
    access: MemoryAccess | None = None
    batch: Batch | None = None
    loads: list[UnwrittenMemory] = field(default_factory=list)
    last: Array | None = None

    def note(self, batch: Batch, lanes: Array, memory: UnwrittenMemory) -> None:
        """Note the lanes of a batch that have loaded a value of memory that was never written."""
        if self.batch is not batch or self.last is None:
            self.batch, self.loads = batch, []
            self.last = np.full(batch.geometry.lanes, -1)
        for number, known in enumerate(self.loads):
            if known.home is memory.home:
                known.places[lanes] = memory.places
                self.last[lanes] = number
                return
        places = np.zeros(batch.geometry.lanes, np.int64)
        places[lanes] = memory.places
        self.last[lanes] = len(self.loads)
        self.loads.append(memory._replaced(places))


@dataclass
class UnwrittenMemory:
    """Memory that was never written: the address of each lane's load, or its offset in shared or local memory.
    ``home`` is the allocation, or the store of shared or local memory."""

    home: Any
    space: str
    places: Array

    def _replaced(self, places: Array) -> UnwrittenMemory:
        return UnwrittenMemory(self.home, self.space, places)

    def describe(self, lane: int) -> tuple[str, dict[str, Any]]:
        """The place of a lane's load in words, and as fields of the report."""
        place = int(self.places[lane])
        facts: dict[str, Any] = {"address": place, "space": self.space}
        if self.space == "global":
            facts["allocation"] = self.home
            return (
                f"at {place:#x}, {place - self.home.address} bytes into the {self.home.kind} allocation of "
                f"{self.home.size} bytes; these bytes were never written"
            ), facts
        who = "no thread" if self.space == "shared" else "the thread"
        return (
            f"at byte {place} of {self.space} memory, which {who} has {'not ' * (self.space == 'local')}written",
            facts,
        )


def unwritten(program: Program, lanes: int) -> dict[int, Array]:
    """The codes of a function's registers at its start."""
    return {slot: np.full(lanes, UNWRITTEN, np.uint16) for slot in program.unset}


def code_of(f: Fragment, origin: ValueOrigin) -> np.uint16:
    """The code of values with this origin."""
    origins = f.batch.run.origins
    flag = LOADED if origin.access is not None else 0
    for number, known in enumerate(origins):
        if known.instruction is origin.instruction:
            return np.uint16(number + _FIRST | flag)
    origins.append(origin)
    return np.uint16(len(origins) - 1 + _FIRST | flag)


def origin_of(f: Fragment, code: int) -> ValueOrigin:
    """The origin of values with this code, except UNWRITTEN."""
    found: ValueOrigin = f.batch.run.origins[(code & ~LOADED) - _FIRST]
    return found


# ---- running blocks ----


def run_block(f: Fragment, index: int, careful: bool) -> None:
    """Run a basic block of the fragment's program, with its hooks if ``careful`` or once it loads an undefined value,
    and report a branch on an undefined value."""
    block = f.program.blocks[index]
    if careful:
        _with_hooks(f, index, 0)
    elif block.body is not None:
        try:
            block.body(f, f.regs)
            return
        except UndefinedLoad as found:
            # what the block has computed so far is in variables of its function (registers.py)
            trace = found.__traceback__
            computed = trace.tb_next.tb_frame.f_locals if trace is not None and trace.tb_next is not None else {}
            load = found.instruction
        for name, value in computed.items():
            if (slot := _VARIABLE.fullmatch(name)) is not None:
                f.regs[int(slot[1])] = value
        first = next(number for number, (_, one) in enumerate(block.marks) if one is load)
        # the load has been counted already
        run = f.batch.run
        counting, run.counting = run.counting, False
        _with_hooks(f, index, first, first + 1)
        run.counting = counting
        _with_hooks(f, index, first + 1)
    else:
        return
    _report_end(f, block)


def run_probed(f: Fragment, index: int) -> None:
    """Run a basic block with the hooks of the launch's probes, which include those for undefined values."""
    f.careful = True
    f.program.probed(index)(f, f.regs)
    f.careful = False
    _report_end(f, f.program.blocks[index])


def _with_hooks(f: Fragment, index: int, first: int, end: int | None = None) -> None:
    f.careful = True
    f.program.careful(index, first, end)(f, f.regs)
    f.careful = False


def _report_end(f: Fragment, block: BasicBlock) -> None:
    """Report the use of undefined values by the instruction that ends a block, and forget those that are dead."""
    undefined = f.frames[-1].undefined
    if not undefined:
        return
    if block.kind in (BRANCH, SWITCH) and (codes := undefined.get(block.slot)) is not None:
        fail_use(f, block.instructions[-1], codes, "decides a branch")
    if block.kind == INDIRECT and (codes := undefined.get(block.slot)) is not None and codes.any():
        fail_use(f, block.instructions[-1], codes, "is called as a function")
    if block.kind == BARRIER:
        for operand in reads_of(block.barrier.instruction):
            codes = undefined.get(f.program.slots[operand.name]) if isinstance(operand, Register) else None
            if codes is not None and (codes & LOADED).any():
                fail_use(f, block.barrier.instruction, codes & -(codes >> 15), "is the operand of a barrier")
        if block.barrier.reduce:
            undefined.pop(block.barrier.slot, None)  # written when the barrier completes
    live = {slot for after in follows(block) if after < len(f.program.live) for slot in f.program.live[after]}
    for slot in [slot for slot in undefined if slot not in live]:
        del undefined[slot]


# ---- reports ----


def fail_use(f: Fragment, use: Instruction, codes: Array, does: str) -> NoReturn:
    """Report the use of an undefined value. ``codes`` are its codes per lane, ``does`` says how it is used."""
    lanes = np.flatnonzero(codes)
    position = int(lanes[0])
    code = int(codes[position])
    origin = ValueOrigin(use) if code == UNWRITTEN else origin_of(f, code)
    places = f.batch.run.place(use)
    where = f" at {places[0].file}:{places[0].line}" if places else f", in the PTX instruction {use.text.strip()}"
    if origin.access is not None:
        known = f.batch.run.place(origin.instruction)
        same = bool(places) and bool(known) and (places[0].file, places[0].line) == (known[0].file, known[0].line)
        fail_loaded(f, origin, np.flatnonzero(codes == code), "" if same else f"; the value {does}{where}")
    if origin.shuffle:
        f.fail(
            origin.instruction,
            MISSING,
            f"{origin.instruction.name} reads a lane that does not take part in it, and the undefined result {does}"
            f"{where}",
            position,
            lanes,
            notes=["the lane has exited, is past the end of the block, or is not in the member mask"],
        )
    f.fail(
        origin.instruction,
        "uninitialised read",
        f"read of a local variable (a register) that the thread has not written; the result {does}{where}",
        position,
        lanes,
    )


def fail_loaded(f: Fragment, origin: ValueOrigin, positions: Array, use: str = "") -> NoReturn:
    """Report a load of memory that was never written by the lanes at some positions, or by the first lane that has
    loaded such a value if these lanes have their values from others. ``use`` is added to the report's text."""
    access, last = origin.access, origin.last
    if access is None or last is None:
        raise RuntimeError("the origin is not a load")
    mine = positions[last[f.lanes.lanes[positions]] >= 0]
    if not len(mine):
        culprit = LaneSet(f.batch.geometry, np.flatnonzero(last >= 0)[:1], 1)
        f, mine = Fragment(f.batch, culprit, f.frames, f.block, f.epoch), np.zeros(1, np.int64)
    lane = int(f.lanes.lanes[mine[0]])
    where, facts = origin.loads[int(last[lane])].describe(lane)
    facts |= {"size": access.size, "access": access.site.kind}
    f.fail(access.site.instruction, "uninitialised read", f"{access.named} {where}{use}", int(mine[0]), mine, **facts)
