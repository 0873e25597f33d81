"""Registers without a defined value: never written by the thread, or the result of a shuffle from an inactive lane.

Such a value may be computed with and discarded; CUDA leaves the program's behaviour undefined only once it is used.
``Frame.undefined`` has the codes of its registers by slot, one uint16 per lane: 0 for a defined value, otherwise the
number of its origin in ``KernelRun.origins``. A basic block is run with its hooks (``Program.careful``), which update
the codes and report uses, only if a register is undefined or a shuffle may read an inactive lane.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.masks import MISSING
from cudakit.sim.lockstep.program import BARRIER, BRANCH, INDIRECT, SWITCH, BasicBlock, Program, follows
from cudakit.sim.ptx.ir import Instruction

# the code of a register that was never written and that no arithmetic has read yet
UNWRITTEN = 1
# the code of the first of the origins
_FIRST = 2


class ValueOrigin(NamedTuple):
    """The instruction that first computed with an unwritten register, or the shuffle that read an inactive lane."""

    instruction: Instruction
    shuffle: bool = False


def unwritten(program: Program, lanes: int) -> dict[int, Array]:
    """The codes of a function's registers at its start."""
    return {slot: np.full(lanes, UNWRITTEN, np.uint16) for slot in program.unset}


def code_of(f: Fragment, origin: ValueOrigin) -> np.uint16:
    """The code of values with this origin."""
    origins = f.batch.run.origins
    for number, known in enumerate(origins):
        if known.instruction is origin.instruction:
            return np.uint16(number + _FIRST)
    origins.append(origin)
    return np.uint16(len(origins) - 1 + _FIRST)


def run_carefully(f: Fragment, block: BasicBlock) -> None:
    """Run a basic block with its hooks, and report a branch on an undefined value."""
    program, index = f.program, f.block
    program.careful(index)(f, f.regs)
    undefined = f.frames[-1].undefined
    if not undefined:
        return
    if block.kind in (BRANCH, SWITCH) and (codes := undefined.get(block.slot)) is not None:
        fail_use(f, block.instructions[-1], codes, "decides a branch")
    if block.kind == INDIRECT and (codes := undefined.get(block.slot)) is not None and codes.any():
        fail_use(f, block.instructions[-1], codes, "is called as a function")
    if block.kind == BARRIER and block.barrier.reduce:
        undefined.pop(block.barrier.slot, None)  # written when the barrier completes
    live = {slot for after in follows(block) if after < len(program.live) for slot in program.live[after]}
    for slot in [slot for slot in undefined if slot not in live]:
        del undefined[slot]


def fail_use(f: Fragment, use: Instruction, codes: Array, does: str) -> NoReturn:
    """Report the use of an undefined value. ``codes`` are its codes per lane, ``does`` says how it is used."""
    lanes = np.flatnonzero(codes)
    position = int(lanes[0])
    code = int(codes[position])
    origin = ValueOrigin(use) if code == UNWRITTEN else f.batch.run.origins[code - _FIRST]
    places = f.batch.run.place(use)
    where = f" at {places[0].file}:{places[0].line}" if places else f", in the PTX instruction {use.text.strip()}"
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
