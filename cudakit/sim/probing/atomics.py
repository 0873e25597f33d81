"""The lanes of an atomic from whose operands the new value of an element is computed.

Those are all lanes for sums and bitwise operations, the last one for an exchange, and for a minimum, a maximum or a
compare-and-swap at most one per place in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program
from cudakit.sim.probing.operands import reader
from cudakit.sim.ptx.ir import Instruction, Operand

# operations that keep either the old value or an operand
_CHOOSING = frozenset(("min", "max", "cas"))


class Given(NamedTuple):
    """The operands of an atomic that is about to run: its value, and the value that a compare-and-swap compares with;
    each is one for all ``lanes`` or one per lane."""

    instruction: Instruction
    lanes: LaneSet
    value: Any
    compare: Any


class OperandsHook:
    """Remembers the operands of an atomic in ``given``, and calls another hook of the instruction, if it has one."""

    ends = False

    def __init__(self, program: Program, instruction: Instruction, following: InstructionHook | None) -> None:
        self.instruction, self.following = instruction, following
        kind = instruction.modifiers[-1]
        operands = given_to(instruction)
        self.value = reader(program, operands[-1], kind)
        self.compare = reader(program, operands[0], kind)
        self.given: Given | None = None

    def __call__(self, f: Fragment, r: Any) -> None:
        if self.following is not None:
            self.following(f, r)
        self.given = None
        if self.value is not None and self.compare is not None:
            self.given = Given(self.instruction, f.lanes, self.value(r), self.compare(r))

    def after(self, f: Fragment) -> None:
        pass


def chooses(instruction: Instruction) -> bool:
    """Whether an instruction is an atomic of integers that keeps either the old value or an operand."""
    atomic = instruction.opcode in ("atom", "red") and not _CHOOSING.isdisjoint(instruction.modifiers)
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    return atomic and kind[:1] in "usb" and kind not in ("b128", "bf16", "bf16x2")


def given_to(instruction: Instruction) -> tuple[Operand | None, ...]:
    """The operands of an atomic after its address, without a cache policy: its value, before it the compare value."""
    operands = instruction.operands[2 if instruction.opcode == "atom" else 1 :]
    return operands[: 2 if "cas" in instruction.modifiers else 1]


def remaining(given: Given | None, access: MemoryAccess, piece: Piece, chosen: Array) -> Array | None:
    """The positions of the lanes from whose operands the new value of one element is computed. The atomic of the lanes
    at the positions ``chosen`` of a piece is about to update it. Empty if the old value remains, None if unknown."""
    instruction = access.site.instruction
    modifiers = instruction.modifiers
    if "exch" not in modifiers and _CHOOSING.isdisjoint(modifiers):
        return chosen
    index = np.broadcast_to(positions(piece.index, piece.lanes.count), (piece.lanes.count,))[chosen]
    found: list[int] = []
    for place in np.unique(index).tolist():
        group = chosen[index == place]
        if "exch" in modifiers:
            found.append(int(group[-1]))
        elif given is None or given.instruction is not instruction:
            return None
        else:
            kept = _kept(given, piece.lanes.lanes[group], int(piece.view[place]))
            found += [] if kept is None else [int(group[kept])]
    return np.array(sorted(found), np.int64)


def _kept(given: Given, lanes: Array, old: int) -> int | None:
    """The number of the lane whose operand remains if lanes update a value one after another; None if ``old`` does."""
    modifiers = given.instruction.modifiers
    kind = modifiers[-1]
    at = np.searchsorted(given.lanes.lanes, lanes)
    values, compares = (_integers(part, given.lanes.count, at, kind) for part in (given.value, given.compare))
    if kind[0] == "s":
        old = _signed(old, int(kind[1:]))
    kept: int | None = None
    for number, (value, compare) in enumerate(zip(values, compares, strict=True)):
        if compare == old if "cas" in modifiers else value < old if "min" in modifiers else value > old:
            old, kept = value, number
    return kept


def _integers(bits: Any, count: int, at: Array, kind: str) -> list[int]:
    """The operands of the lanes at some positions as integers of a type."""
    size = int(kind[1:])
    found = [int(value) % (1 << size) for value in np.broadcast_to(bits, (count,))[at].tolist()]
    return [_signed(value, size) for value in found] if kind[0] == "s" else found


def _signed(value: int, size: int) -> int:
    return value - (1 << size) if value >> (size - 1) else value
