"""Follows the registers of wgmma through a function: the accumulators and those of A, and those moved to or from them.

Lines are added to the instructions that access one of these registers: at a plain mov, the copy takes over what the
register awaits (lockstep/warpgroups.py); any other access is reported to the checks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.warpgroup import Issue, Wait
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import BasicBlock, Program, reads_of, writes_of
from cudakit.sim.lockstep.warpgroup_product import TrackedRegisters
from cudakit.sim.lockstep.warpgroups import Warpgroups
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Register


def track_registers(c: Emitter) -> None:
    """Add the lines to a compiled function, if it has a wgmma.mma_async."""
    program = c.program
    bound = program.namespace.values()
    issues, waits = [v for v in bound if isinstance(v, Issue)], [v for v in bound if isinstance(v, Wait)]
    if not issues:
        return
    slots = _closure(program, {slot for issue in issues for slot in (*issue.form.d, *issue.form.a)})
    names = {slot: name for name, slot in c.slots.items() if slot in slots}
    registers = program.tracked = TrackedRegisters(slots, names)
    for issue in issues:
        issue.form.tracked(registers)
    for wait in waits:
        wait.touched = frozenset(slots)
    if c.module.debug:
        return  # no product is in flight between two instructions
    for block in program.blocks:
        _add_lines(c, block, registers)


def _closure(program: Program, slots: set[int]) -> set[int]:
    """The slots that plain moves connect with the given ones."""
    near: dict[int, list[int]] = {}
    for block in program.blocks:
        for instruction in block.instructions:
            move = _move(instruction)
            if move is not None and isinstance(move[1], Register):
                to, source = (program.slots[register.name] for register in (move[0], move[1]))
                near.setdefault(to, []).append(source)
                near.setdefault(source, []).append(to)
    found, todo = set(slots), list(slots)
    while todo:
        for other in near.get(todo.pop(), ()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def _move(instruction: Instruction) -> tuple[Register, Operand | None] | None:
    """Destination and source of a plain mov of a whole register, which ptxas may remove; None: it is not one."""
    if instruction.opcode != "mov" or instruction.guard is not None or len(instruction.operands) != 2:
        return None
    to, source = instruction.operands
    if not isinstance(to, Register) or not isinstance(source, (Register, Immediate)):
        return None
    return to, source


def _add_lines(c: Emitter, block: BasicBlock, registers: TrackedRegisters) -> None:
    starts = [line for line, _ in block.marks] + [len(block.lines)]
    lines = block.lines[: starts[0]]
    marks: list[tuple[int, Instruction]] = []
    for (start, instruction), end in zip(block.marks, starts[1:], strict=True):
        marks.append((len(lines), instruction))
        if instruction.opcode != "wgmma":
            lines += _line(c, instruction, registers)
        lines += block.lines[start:end]
    block.lines, block.marks = lines, marks


def _line(c: Emitter, instruction: Instruction, registers: TrackedRegisters) -> list[str]:
    move = _move(instruction)
    if move is not None:
        to, source = (registers.rows.get(c.slot(o), -1) if isinstance(o, Register) else -1 for o in move)
        return [f"{c.bind(_Moved(registers, to, source, instruction))}(f)"] if to >= 0 else []
    reads, writes = _rows(c, reads_of(instruction), registers), _rows(c, writes_of(instruction), registers)
    if not len(reads) and not len(writes):
        return []
    accessed = _Accessed(registers, reads, writes, instruction)
    if instruction.guard is None:
        return [f"{c.bind(accessed)}(f)"]
    register, negated = instruction.guard
    return [f"{c.bind(accessed)}(f, {'~' * negated}r[{c.slot(register)}])"]


def _rows(c: Emitter, operands: Iterable[Operand], registers: TrackedRegisters) -> Array:
    slots = {c.slots[o.name] for o in operands if isinstance(o, Register)}
    return np.array(sorted(registers.rows[slot] for slot in slots if slot in registers.rows), np.int64)


class _Moved:
    """A mov of row ``source`` of the table, or (-1) of another value, to row ``to``."""

    def __init__(self, registers: TrackedRegisters, to: int, source: int, instruction: Instruction) -> None:
        self.registers = registers
        self.to, self.source = to, source
        self.use = registers.use(instruction)

    def __call__(self, f: Fragment) -> None:
        state: Warpgroups | None = f.batch.warpgroups
        if state is not None:
            state.moved(f, self.registers, self.to, self.source, self.use)


class _Accessed:
    """An instruction that reads and writes rows of the table."""

    def __init__(self, registers: TrackedRegisters, reads: Array, writes: Array, instruction: Instruction) -> None:
        self.registers = registers
        self.rows = (reads, writes)
        self.use = registers.use(instruction)

    def __call__(self, f: Fragment, held: Array | None = None) -> None:
        state: Warpgroups | None = f.batch.warpgroups
        if state is not None and state.checks is not None:
            state.checks.accessed(f, state.table(self.registers), self.rows, self.use, held)
