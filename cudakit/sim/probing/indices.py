"""Index arithmetic in 32 bits that overflows, and whose result is used in an address of global memory.

Each 32-bit register from which an address is computed carries its exact value, so that sums whose intermediate results
overflow, but that are correct in the end, are not reported. A value is exact again after and, shr, div and rem: hash
functions overflow on purpose. But a remainder that is negative by an overflow is not an index. The check is at the
instruction that widens the index to 64 bits. Values are followed through registers, calls, shuffles, and shared and
local memory (index_moves.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program, reads_of, writes_of
from cudakit.sim.lockstep.report import KernelReport
from cudakit.sim.probing.index_moves import (
    NONE,
    NOTHING,
    Followed,
    HalvesHook,
    IndexAccessHook,
    IndexShuffleHook,
    Known,
    joined,
)
from cudakit.sim.probing.index_slice import address_slices
from cudakit.sim.probing.operands import any_of, expression, writers
from cudakit.sim.probing.registers import CallHook, Hook
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Register, Vector
from cudakit.sim.ptx.opcodes import row_of

KIND = "index overflow"
_WIDTHS = frozenset(("s32", "u32", "b32"))
# instructions of 32 bits whose exact result is known
_EXACT = frozenset(("add", "sub", "mul", "mad", "shl", "neg", "mov", "or", "selp", "min", "max", "rem"))
# those of them that overflow
_MAKES = frozenset(("add", "sub", "mul", "mad", "shl", "neg", "or"))
# instructions of 64 bits that pass an index on to an address
_PASSES = frozenset(("add", "sub", "mul", "mad", "shl", "mov", "cvta", "or", "neg", "selp"))
_DIVIDES = frozenset(("shr", "and", "div", "rem", "bfe"))
# the registers that are searched for a dividend
_FAR = 64
_LOW, _MIDDLE, _HIGH = -(1 << 31), 1 << 31, 1 << 32


class IndexTraps:
    """The probe of index overflows. The exact value of a register is kept only if it differs from its bits as a signed
    number."""

    def __init__(self) -> None:
        self.followed = Followed()
        # by program: the names of the registers of addresses, and of those from which they are computed
        self._slices: dict[str, frozenset[str]] = {}

    def begin(self, function: Any, run: Any) -> bool:
        self.followed.trace.begin(run)
        self._slices = address_slices(function.reachable)
        return True

    def keeps(self, program: Program) -> Iterable[int]:
        return ()

    def hook(self, program: Program, instruction: Instruction) -> InstructionHook | None:
        opcode, used = instruction.opcode, self._slices[program.name]
        if opcode in ("call", "ret"):
            return CallHook(program, instruction, self.followed.tables)
        written = not used.isdisjoint(o.name for o in writes_of(instruction))
        if row_of(instruction).memory is not None:
            hook = IndexAccessHook(self.followed, program, instruction, used)
            return hook if written or hook.useful else None
        if not written:
            return None
        if opcode == "shfl":
            return IndexShuffleHook(self.followed, program, instruction)
        if HalvesHook.handles(instruction):
            return HalvesHook(self.followed, program, instruction)
        return _IndexHook(self.followed, program, instruction)

    def fault(self, f: Any, position: int, instruction: Instruction | None, report: KernelReport) -> None: ...

    def end(self, run: Any) -> None:
        self.followed.end(run)


def _dividend(program: Program, instruction: Instruction) -> int | None:
    """The number of the source of which an instruction computes the remainder; None if it computes something else.
    Compilers subtract from a number what they compute from its quotient or its masked bits if the divisor is known."""
    if instruction.opcode == "rem":
        return 0
    operands = instruction.operands
    pairs = {"sub": ((1, 2),), "add": ((1, 2), (2, 1)), "mad": ((3, 1), (3, 2))}.get(instruction.opcode, ())
    for whole, part in pairs:
        number, taken = operands[whole], operands[part]
        if isinstance(number, Register) and isinstance(taken, Register) and _divides(program, taken, number):
            return whole - 1
    return None


def _divides(program: Program, taken: Register, number: Register) -> bool:
    """Whether a register is computed from another one by a division, a shift to the right or a mask."""
    pending = [(taken.name, False)]
    seen: set[tuple[str, bool]] = set()
    while pending and len(seen) < _FAR:
        name, divided = pending.pop()
        if (name, divided) in seen:
            continue
        seen.add((name, divided))
        if divided and name == number.name:
            return True
        for writer in writers(program).get(name, ()):
            if row_of(writer).memory is None:
                divides = divided or writer.opcode in _DIVIDES or "hi" in writer.modifiers
                pending += [(o.name, divides) for o in reads_of(writer) if isinstance(o, Register)]
    return False


class _IndexHook(Hook):
    """An instruction that computes an index or an address."""

    def __init__(self, followed: Followed, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.followed = followed
        opcode, modifiers = instruction.opcode, instruction.modifiers
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        self.sources = [o for o in instruction.operands[1:] if not isinstance(o, Vector)]
        self.slots = [program.slots[o.name] if isinstance(o, Register) else None for o in self.sources]
        kind = modifiers[-1] if modifiers else ""
        lo = opcode not in ("mul", "mad") or "lo" in modifiers
        simple = len(self.written) == 1 and "cc" not in modifiers and "sat" not in modifiers
        self.exact = simple and opcode in _EXACT and kind in _WIDTHS and lo
        self.dividend = _dividend(program, instruction) if self.exact else None
        self.passes = simple and opcode in _PASSES and kind in ("s64", "u64", "b64") and lo
        #: the sign of the 32-bit operands that become 64 bits, and how many of them there are
        self.wide, self.signed = 0, False
        if opcode == "cvt" and len(modifiers) >= 2 and modifiers[-2] in ("s64", "u64") and kind in ("s32", "u32"):
            self.wide, self.signed = 1, kind == "s32"
        elif opcode in ("mul", "mad") and "wide" in modifiers and kind in ("s32", "u32"):
            self.wide, self.signed = 2, kind == "s32"
        self.passes |= self.wide > 0
        self.makes = self.exact and self.dividend is None and opcode in _MAKES
        self.idle = True
        self.old: list[Any] = []
        self.values: list[Array | None] = []
        self.codes: list[Array | None] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.idle = not (self.makes or ((self.exact or self.passes) and self.followed.any_register(f)))
        if self.idle:
            return
        self.old = [_operand(o, s, r) for o, s in zip(self.sources, self.slots, strict=True)]
        known = [NOTHING if s is None else self.followed.read(f, s) for s in self.slots]
        self.values, self.codes = [k.exact for k in known], [k.codes for k in known]

    def after(self, f: Fragment) -> None:
        known = NOTHING if self.idle else self._known(f)
        for slot in self.written:
            self.followed.write(f, slot, known, self.held)

    def _known(self, f: Fragment) -> Known:
        if self.exact:
            return Known(*self._computed(f))
        if self.wide:
            return Known(None, self._widened(f))
        return Known(None, self._passed()) if self.passes else NOTHING

    def _passed(self) -> Array | None:
        opcode = self.instruction.opcode
        if opcode == "selp":
            return self._chosen()
        known = [c for c in self.codes if c is not None]
        if len(self.codes) == 2 and len(known) == 2 and opcode in ("or", "add"):
            return np.maximum(np.maximum.reduce(known), joined(*known))
        return None if not known else np.maximum.reduce(known)

    def _chosen(self) -> Array | None:
        """The codes of the operand that a selection chooses."""
        yes, no = (np.int32(0) if c is None else c for c in self.codes[:2])
        found: Array = np.where(self.old[2], yes, no)
        return found if found.ndim else None

    def _half(self) -> Array | None:
        """The codes of halves of addresses, which moves and selections pass on."""
        moved = self.codes[0] if self.instruction.opcode == "mov" else None
        if self.instruction.opcode == "selp":
            moved = self._chosen()
        return None if moved is None or not (moved < 0).any() else np.minimum(moved, 0)

    def _numbers(self) -> list[Any]:
        """The operands as exact numbers."""
        numbers = []
        for bits, value in zip(self.old, self.values, strict=True):
            plain = np.asarray(bits).astype(np.uint32).view(np.int32).astype(np.int64)
            numbers.append(plain if value is None else np.where(value == NONE, plain, value))
        return numbers

    def _computed(self, f: Fragment) -> tuple[Array | None, Array | None]:
        """The exact values of the result if they differ from its bits as a signed number, and its codes."""
        opcode = self.instruction.opcode
        numbers = self._numbers()
        bits = np.asarray(f.regs[self.written[0]])
        signed = bits.astype(np.uint32).view(np.int32).astype(np.int64)
        exact: Any = signed
        if self.dividend is not None:
            return self._remainder(signed, numbers[self.dividend], self.codes[self.dividend])
        if opcode == "add":
            exact = numbers[0] + numbers[1]
        elif opcode == "sub":
            exact = numbers[0] - numbers[1]
        elif opcode in ("mul", "mad"):
            exact = numbers[0] * numbers[1] + (numbers[2] if opcode == "mad" else 0)
        elif opcode == "shl":
            # a shift by 32 bits or more leaves no index
            shift = np.minimum(np.asarray(self.old[1]).astype(np.int64), 31)
            exact = np.where(np.asarray(self.old[1]) < 32, numbers[0] << shift, signed)
        elif opcode == "neg":
            exact = -numbers[0]
        elif opcode == "mov":
            exact = numbers[0] if self.slots[0] is not None else signed
        elif opcode == "or":
            # compilers write additions that have no carry so
            exact = np.where(self.old[0] & self.old[1] == 0, numbers[0] + numbers[1], signed)
        elif opcode == "selp":
            exact = np.where(self.old[2], numbers[0], numbers[1])
        elif opcode in ("min", "max"):
            first = np.asarray(self.old[0] == bits)
            exact = np.where(first, numbers[0], np.where(self.old[1] == bits, numbers[1], signed))
        exact = np.broadcast_to(exact, (f.lanes.count,))
        off = exact != signed
        half = self._half()
        if not off.any():
            return None, half
        # a number from 2**31 to 2**32 is an overflow only if it is used as a signed one
        over, unsigned = (exact < _LOW) | (exact >= _MIDDLE), (exact < _LOW) | (exact >= _HIGH)
        known = [np.where(over, np.maximum(c, 0), np.int32(0)) for c in self.codes[:3] if c is not None]
        codes = np.maximum.reduce(known) if known else np.zeros(f.lanes.count, np.int32)
        before = any_of((n < _LOW) | (n >= _HIGH) for n in numbers)
        made = over & ((codes == 0) | (unsigned & ~before))
        if self.held is not None:
            made = made & self.held
        if made.any() and self.makes:
            codes = self._note(f, made, numbers, exact, signed, codes)
        if half is not None:
            codes = np.where(half < 0, half, codes)
        return np.where(off, exact, NONE), codes

    @staticmethod
    def _remainder(signed: Array, dividend: Array, codes: Array | None) -> tuple[Array | None, Array | None]:
        """A remainder is wrong if it is negative because the dividend overflowed; all others are exact again."""
        wrong = (signed < 0) & (dividend >= _MIDDLE)
        if codes is None or not wrong.any():
            return None, None
        return np.where(wrong, np.abs(signed), NONE), np.where(wrong, codes, np.int32(0))

    def _note(self, f: Fragment, made: Array, numbers: list[Any], exact: Array, got: Array, codes: Array) -> Array:
        lanes = np.flatnonzero(made)
        kept = [np.broadcast_to(n, made.shape)[lanes] for n in numbers]
        right, wrong = exact[lanes], np.broadcast_to(got, made.shape)[lanes]

        def text(place: int) -> str:
            operation = expression(self.instruction, [str(n[place]) for n in kept], "s32")
            fits = "int" if _LOW <= right[place] < _HIGH else "32 bits"
            return f"{operation} = {right[place]} does not fit {fits} and becomes {wrong[place]}"

        code = self.followed.trace.note(f, self.instruction, KIND, made, text, False)
        return np.where(made, np.int32(code), codes)

    def _widened(self, f: Fragment) -> Array | None:
        """The codes of a 64-bit value: of the lanes in which a widened operand is not the exact index."""
        found = np.zeros(f.lanes.count, np.int32)
        for number, (bits, value) in enumerate(zip(self.old, self.values, strict=True)):
            codes = self.codes[number]
            if number >= self.wide:
                if codes is not None:
                    found = np.maximum(found, codes)
                continue
            if codes is not None and self.instruction.opcode == "cvt":
                found = np.minimum(codes, 0)
            if value is None:
                continue
            plain = np.asarray(bits).astype(np.uint32)
            used = plain.view(np.int32).astype(np.int64) if self.signed else plain.astype(np.int64)
            wrong = (value != NONE) & (value != used)
            if not self.signed:
                # a negative number is an unsigned one of 2**31 or more, of which the sign is not known
                wrong &= (value < _LOW) | (value >= 0)
            if codes is not None:
                found = np.where(wrong & (codes > 0), codes, found)
        return found if found.any() else None


def _operand(operand: Operand | None, slot: int | None, r: Any) -> Any:
    if slot is not None:
        return r[slot]
    return np.uint32(operand.bits & 0xFFFFFFFF) if isinstance(operand, Immediate) else np.uint32(0)
