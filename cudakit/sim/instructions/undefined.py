"""Hooks that follow undefined register values (lockstep/undefined.py) through an instruction, and report their uses.

A use is a store, an address, a branch, or an operand of a vote. Arithmetic and moves pass the codes on. Bit operations
and packing do not: compilers assemble values from parts in registers that start undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudakit.sim.instructions.warp import shuffle_sources
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import reads_of, writes_of
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.undefined import UNWRITTEN, ValueOrigin, code_of, fail_use
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Negated, Operand, Register, Vector
from cudakit.sim.ptx.opcodes import row_of, spaces_of

# fmt: off
_ARITHMETIC = frozenset((
    "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "fma", "div", "rem", "min", "max", "neg", "abs", "rcp", "sqrt",
    "rsqrt", "sin", "cos", "ex2", "lg2", "tanh", "setp", "set",
))
# fmt: on
_PASSED = _ARITHMETIC | {"mov", "cvt", "cvta"}
_VOTES = frozenset(("vote", "match", "redux"))
_PRIVATE = ("local", "param", "param::func", "param::entry", "shared", "shared::cta", "shared::cluster")

Hook = Callable[[Fragment, Registers], None]
Codes = Array | None


def hook_of(slots: Mapping[str, int], instruction: Instruction) -> Hook | None:
    """The hook of an instruction; None if it has no registers."""
    made = _Hook(slots, instruction)
    return made if made.reads or made.writes else None


class _Hook:
    """Updates the codes of an instruction's results. ``follow`` returns the codes of each result."""

    def __init__(self, slots: Mapping[str, int], instruction: Instruction) -> None:
        self.slots = slots
        self.instruction = instruction
        self.guard = None
        if instruction.guard is not None:
            self.guard = slots[instruction.guard[0].name], instruction.guard[1]
        self.reads = [slots[o.name] for o in reads_of(instruction) if isinstance(o, Register)]
        self.writes = [slots[o.name] for o in writes_of(instruction)]
        self.uses = self._uses()
        self.shuffle = instruction.opcode == "shfl"

    def _uses(self) -> list[tuple[str, list[int]]]:
        """The operands whose undefined values are reported: how each is used, and its registers. A vector is reported
        if all its elements are undefined."""
        instruction = self.instruction
        uses: list[tuple[str, list[int]]] = []
        if row_of(instruction).memory is not None:
            for operand in instruction.operands:
                if isinstance(operand, Address) and isinstance(operand.base, Register):
                    uses.append(("is used as an address", [self.slots[operand.base.name]]))
        if instruction.opcode == "st" and not any(space in spaces_of(instruction) for space in _PRIVATE):
            value = instruction.operands[1]
            elements = value.elements if isinstance(value, Vector) else (value,)
            if all(isinstance(element, Register) for element in elements):
                uses.append(("is stored", [self.slots[element.name] for element in elements]))  # type: ignore[union-attr]
        if instruction.opcode in ("atom", "red"):
            values = instruction.operands[2 if instruction.opcode == "atom" else 1 :]
            uses += [("is the operand of an atomic", [self.slots[o.name]]) for o in values if isinstance(o, Register)]
        if instruction.opcode in _VOTES:
            uses += [("is the operand of a warp operation", [slot]) for slot in self.reads]
        return uses

    def __call__(self, f: Fragment, r: Registers) -> None:
        undefined = f.frames[-1].undefined
        if not undefined and not self.shuffle:
            return
        held: Array | None = None
        if self.guard is not None:
            slot, negated = self.guard
            if (codes := undefined.get(slot)) is not None and codes.any():
                fail_use(f, self.instruction, codes, "decides a branch")
            held = np.broadcast_to(r[slot] != negated, (f.lanes.count,))
        for does, slots in self.uses:
            if all(slot in undefined for slot in slots):
                codes = undefined[slots[0]]
                for slot in slots[1:]:
                    codes = np.minimum(codes, undefined[slot])
                if held is not None:
                    codes = np.where(held, codes, 0)
                if codes.any():
                    fail_use(f, self.instruction, codes, does)
        if not self.writes:
            return
        for slot, new in zip(self.writes, self.follow(f, r, undefined), strict=True):
            if held is not None:
                old = undefined.get(slot)
                if old is not None or new is not None:
                    zero = np.uint16(0)
                    new = np.where(held, zero if new is None else new, zero if old is None else old)
            if new is not None and new.any():
                undefined[slot] = new
            else:
                undefined.pop(slot, None)

    def follow(self, f: Fragment, r: Registers, undefined: Mapping[int, Array]) -> list[Codes]:
        """The codes of each result, before the instruction is executed."""
        instruction = self.instruction
        nothing: list[Codes] = [None] * len(self.writes)
        opcode = instruction.opcode
        if self.shuffle:
            return [self._shuffled(f, r, undefined), None][: len(self.writes)]
        if opcode in ("mma", "wmma"):
            return self._accumulated(undefined)
        read = [undefined[slot] for slot in self.reads if slot in undefined]
        if not read:
            return nothing
        operands = instruction.operands
        if opcode == "selp":
            a, b, p = (self._codes(o, undefined) for o in operands[1:4])
            if a is None and b is None and p is None:
                return nothing
            zero = np.uint16(0)
            chosen = np.where(self._value(operands[3], r), zero if a is None else a, zero if b is None else b)
            return [np.broadcast_to(chosen if p is None else np.maximum(chosen, p), (f.lanes.count,))]
        if opcode in ("and", "or") and "pred" in instruction.modifiers:
            a, b = (self._codes(o, undefined) for o in operands[1:3])
            decides = opcode == "or"
            out = np.zeros(f.lanes.count, np.uint16)
            for codes, other, other_codes in ((a, operands[2], b), (b, operands[1], a)):
                if codes is not None:
                    # a defined operand may decide the result
                    known = (self._value(other, r) == decides) & (True if other_codes is None else other_codes == 0)
                    out = np.maximum(out, np.where(known, np.uint16(0), codes))
            return [out]
        if opcode in ("not", "xor") and "pred" in instruction.modifiers:
            return [self._most(read)]
        if opcode == "mov" and isinstance(operands[1], Vector):
            parts = [self._codes(o, undefined) for o in operands[1].elements]
            if any(part is None for part in parts):
                return nothing
            return [np.minimum.reduce([part for part in parts if part is not None])]
        if opcode not in _PASSED:
            return nothing
        codes = self._most(read)
        if opcode in _ARITHMETIC and (codes == UNWRITTEN).any():
            codes = np.where(codes == UNWRITTEN, code_of(f, ValueOrigin(instruction)), codes)
        return [codes] * len(self.writes)

    @staticmethod
    def _most(read: list[Array]) -> Array:
        found: Array = np.maximum.reduce(read) if len(read) > 1 else read[0]
        return found

    def _codes(self, operand: Operand | None, undefined: Mapping[int, Array]) -> Codes:
        register = operand.register if isinstance(operand, Negated) else operand
        return undefined.get(self.slots[register.name]) if isinstance(register, Register) else None

    def _value(self, operand: Operand | None, r: Registers) -> Any:
        """The value of a register or literal, as a predicate or a 32-bit integer."""
        if isinstance(operand, Negated):
            return ~r[self.slots[operand.register.name]]
        if isinstance(operand, Register):
            return r[self.slots[operand.name]]
        return np.uint32(operand.bits & 0xFFFFFFFF) if isinstance(operand, Immediate) else np.uint32(0)

    def _accumulated(self, undefined: Mapping[int, Array]) -> list[Codes]:
        """The results of a matrix product: an element is undefined if its accumulator is."""
        results, sums = self.instruction.operands[0], self.instruction.operands[3:4]
        given = sums[0].elements if sums and isinstance(sums[0], Vector) else ()
        if not isinstance(results, Vector) or len(given) != len(self.writes):
            return [None] * len(self.writes)
        return [self._codes(operand, undefined) for operand in given]

    def _shuffled(self, f: Fragment, r: Registers, undefined: Mapping[int, Array]) -> Codes:
        """The result of a shuffle: undefined if it is read from an undefined value, or from a lane that does not take
        part."""
        lanes = f.lanes
        _, value, lane, clamp, mask = self.instruction.operands
        distance, bound, members = (
            np.broadcast_to(self._value(o, r), (lanes.count,)).astype(np.uint32) for o in (lane, clamp, mask)
        )
        source = shuffle_sources(self.instruction, lanes, distance, bound)
        here = np.zeros(lanes.warp_count * 32, np.bool_)
        here[lanes.slots] = True
        if self.guard is not None:
            here[lanes.slots] = r[self.guard[0]] != self.guard[1]
        rows = lanes.warp_rank * 32
        absent = ~here.take(rows + source) | (members >> source.astype(np.uint32) & 1 == 0)
        codes = self._codes(value, undefined)
        out = np.zeros(lanes.count, np.uint16)
        if codes is not None:
            out = lanes.pad(codes).reshape(-1).take(rows + source)
        if absent.any():
            out = np.where(absent, code_of(f, ValueOrigin(self.instruction, shuffle=True)), out)
        return out
