"""Hooks that follow undefined register values (lockstep/undefined.py) through an instruction, and report their uses.

A use is a store to global memory, an address, a branch, or an operand of a vote or an atomic. Arithmetic, moves, and
stores to and loads from shared and local memory pass the codes on. Bit operations and packing pass on only those of
values that were loaded from memory: compilers assemble values from parts in registers that start undefined.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from cudakit.sim.instructions.warp import shuffle_sources
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import reads_of, writes_of
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.undefined import LOADED, UNWRITTEN, ValueOrigin, code_of, fail_use
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Negated, Operand, Register, Vector
from cudakit.sim.ptx.opcodes import row_of, spaces_of
from cudakit.sim.values.bits import table_function

# fmt: off
_ARITHMETIC = frozenset((
    "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "fma", "div", "rem", "min", "max", "neg", "abs", "rcp", "sqrt",
    "rsqrt", "sin", "cos", "ex2", "lg2", "tanh", "setp", "set",
))
# fmt: on
_PASSED = _ARITHMETIC | {"mov", "cvt", "cvta"}
_VOTES = frozenset(("vote", "match", "redux"))
_PRODUCTS = ("mma", "wmma", "wgmma")
_PARAMETERS = frozenset(("param", "param::func", "param::entry"))

Codes = Array | None


def hook_of(slots: Mapping[str, int], instruction: Instruction) -> InstructionHook | None:
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
        self.stored = self._elements(instruction.operands[1]) if instruction.opcode == "st" else []
        loads = instruction.opcode in ("ld", "ldu")
        self.ends = loads or bool(self.stored)
        self.results = self._elements(instruction.operands[0]) if loads else []
        self.uses = self._uses()
        self.loaded_uses = self._loaded_uses()
        self.shuffle = ShuffleReads(slots, instruction) if instruction.opcode == "shfl" else None

    def _elements(self, operand: Operand | None) -> list[int | None]:
        """The slots of a vector's elements; None for an element that is not a register."""
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        return [self.slots[e.name] if isinstance(e, Register) else None for e in elements]

    def _uses(self) -> list[tuple[str, list[int]]]:
        """The operands whose undefined values are reported: how each is used, and its registers. A vector is reported
        if all its elements are undefined."""
        instruction = self.instruction
        uses: list[tuple[str, list[int]]] = []
        if row_of(instruction).memory is not None:
            for operand in instruction.operands:
                if isinstance(operand, Address) and isinstance(operand.base, Register):
                    uses.append(("is used as an address", [self.slots[operand.base.name]]))
        if self.stored and "global" in spaces_of(instruction):
            # the checks of accesses report stores to generic addresses
            slots = [slot for slot in self.stored if slot is not None]
            if len(slots) == len(self.stored):
                uses.append(("is stored", slots))
        if instruction.opcode in ("atom", "red"):
            values = instruction.operands[2 if instruction.opcode == "atom" else 1 :]
            uses += [("is the operand of an atomic", [self.slots[o.name]]) for o in values if isinstance(o, Register)]
        if instruction.opcode in _VOTES:
            uses += [("is the operand of a warp operation", [slot]) for slot in self.reads]
        return uses

    def _loaded_uses(self) -> list[tuple[str, list[int]]]:
        """The operands of which undefined values are reported if they were loaded from memory."""
        instruction = self.instruction
        if self.stored:
            outside = not _PARAMETERS.isdisjoint(spaces_of(instruction))
            return [("is passed to or returned by a function", [s]) for s in self.stored if s is not None and outside]
        if instruction.opcode in _PRODUCTS:
            given = [o for operand in instruction.operands[1:3] for o in _registers(operand)]
            return [("is the operand of a matrix product", [self.slots[o.name]]) for o in given]
        if instruction.opcode == "shfl":
            given = [o for operand in instruction.operands[2:] for o in _registers(operand)]
            return [("is the operand of a warp operation", [self.slots[o.name]]) for o in given]
        if row_of(instruction).memory is not None and not self.results:
            return [(f"is an operand of {instruction.opcode}", [slot]) for slot in self.reads]
        return []

    def __call__(self, f: Fragment, r: Registers) -> None:
        undefined = f.frames[-1].undefined
        if not undefined and self.shuffle is None:
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
        for does, slots in self.loaded_uses:
            codes = undefined.get(slots[0])
            if codes is not None and (codes & LOADED).any():
                codes = np.where(codes & LOADED if held is None else (codes & LOADED) * held, codes, 0)
                if codes.any():
                    fail_use(f, self.instruction, codes, does)
        if any(slot in undefined for slot in self.stored):
            nothing = np.zeros(f.lanes.count, np.uint16)
            f.storing = np.stack([nothing if s is None else undefined.get(s, nothing) for s in self.stored], axis=1)
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

    def after(self, f: Fragment) -> None:
        """Take the codes of values that were loaded."""
        codes, f.loaded, f.storing = f.loaded, None, None
        if codes is None:
            return
        for number, slot in enumerate(self.results):
            if slot is not None and number < codes.shape[1] and codes[:, number].any():
                undefined = f.frames[-1].undefined
                found, old = codes[:, number], undefined.get(slot)
                undefined[slot] = found if old is None else np.where(found, found, old)

    def follow(self, f: Fragment, r: Registers, undefined: Mapping[int, Array]) -> list[Codes]:
        """The codes of each result, before the instruction is executed."""
        instruction = self.instruction
        nothing: list[Codes] = [None] * len(self.writes)
        opcode = instruction.opcode
        if self.shuffle is not None:
            return [self._shuffled(f, r, undefined), None][: len(self.writes)]
        if opcode in ("mma", "wmma"):
            return self._accumulated(undefined)
        if opcode == "wgmma":
            return self._added(f, r, undefined)
        read = [undefined[slot] for slot in self.reads if slot in undefined]
        if not read:
            return nothing
        operands = instruction.operands
        if opcode == "selp":
            a, b, p = (self._codes(o, undefined) for o in operands[1:4])
            if a is None and b is None and p is None:
                return nothing
            zero = np.uint16(0)
            chosen = np.where(value_of(operands[3], self.slots, r), zero if a is None else a, zero if b is None else b)
            return [np.broadcast_to(chosen if p is None else np.maximum(chosen, p), (f.lanes.count,))]
        if opcode in ("and", "or", "lop3"):
            codes = self._most(read)
            if "pred" not in instruction.modifiers:
                codes = _loaded(codes)
            return [np.where(self._decided(r, undefined), np.uint16(0), codes)]
        if opcode in ("setp", "set") and len(operands) == 4:
            codes, other = self._most(read), operands[3]
            if "and" in instruction.modifiers or "or" in instruction.modifiers:
                # the predicate that the comparison is combined with may decide the result
                decides, own = "or" in instruction.modifiers, self._codes(other, undefined)
                known = (value_of(other, self.slots, r) == decides) & (True if own is None else own == 0)
                codes = np.where(known, np.uint16(0), codes)
            return [codes] * len(self.writes)
        if opcode in ("not", "xor") and "pred" in instruction.modifiers:
            return [self._most(read)]
        if opcode == "mov" and isinstance(operands[1], Vector):
            parts = [self._codes(o, undefined) for o in operands[1].elements]
            if isinstance(operands[0], Vector):
                pairs = zip(operands[0].elements, parts, strict=True)
                return [part for into, part in pairs if isinstance(into, Register)]
            if any(part is None for part in parts):
                return [_loaded(self._most(read))]
            return [np.minimum.reduce([part for part in parts if part is not None])]
        if opcode not in _PASSED:
            if row_of(instruction).memory is not None or opcode in _VOTES:
                return nothing
            return [_loaded(self._most(read))] * len(self.writes)
        codes = self._most(read)
        if opcode in _ARITHMETIC and (codes == UNWRITTEN).any():
            codes = np.where(codes == UNWRITTEN, code_of(f, ValueOrigin(instruction)), codes)
        return [codes] * len(self.writes)

    @staticmethod
    def _most(read: list[Array]) -> Array:
        found: Array = np.maximum.reduce(read) if len(read) > 1 else read[0]
        return found

    def _decided(self, r: Registers, undefined: Mapping[int, Array]) -> Array:
        """Whether the result of and, or or lop3 is the same for all values of the undefined operands, by lane."""
        opcode, operands = self.instruction.opcode, self.instruction.operands
        sources = operands[1:4] if opcode == "lop3" else operands[1:3]
        wide = np.uint64
        choices: list[tuple[Array, ...]] = []
        for operand in sources:
            value = np.asarray(
                operand.bits & 0xFFFFFFFFFFFFFFFF
                if isinstance(operand, Immediate)
                else value_of(operand, self.slots, r)
            )
            value = np.where(value, ~wide(0), wide(0)) if value.dtype == np.bool_ else value.astype(wide)
            codes = self._codes(operand, undefined)
            if codes is None:
                choices.append((value,))
            else:
                choices.append((np.where(codes, wide(0), value), np.where(codes, ~wide(0), value)))
        table = operands[4].bits if opcode == "lop3" and isinstance(operands[4], Immediate) else 0
        width = next((int(m[1:]) for m in self.instruction.modifiers if m in ("b16", "b32", "b64")), 64)
        results = [_combine(opcode, table, values) << wide(64 - width) for values in itertools.product(*choices)]
        same: Array = np.logical_and.reduce([one == results[0] for one in results[1:]])
        return same

    def _codes(self, operand: Operand | None, undefined: Mapping[int, Array]) -> Codes:
        register = operand.register if isinstance(operand, Negated) else operand
        return undefined.get(self.slots[register.name]) if isinstance(register, Register) else None

    def _accumulated(self, undefined: Mapping[int, Array]) -> list[Codes]:
        """The results of a matrix product: an element is undefined if its accumulator is."""
        results, sums = self.instruction.operands[0], self.instruction.operands[3:4]
        given = sums[0].elements if sums and isinstance(sums[0], Vector) else ()
        if not isinstance(results, Vector) or len(given) != len(self.writes):
            return [None] * len(self.writes)
        return [self._codes(operand, undefined) for operand in given]

    def _added(self, f: Fragment, r: Registers, undefined: Mapping[int, Array]) -> list[Codes]:
        """The results of a product of a warpgroup: undefined if the accumulator is and is added."""
        adds = np.broadcast_to(value_of(self.instruction.operands[3], self.slots, r), (f.lanes.count,))
        found = [undefined.get(slot) for slot in self.writes]
        added = [None if codes is None else np.where(adds, codes, np.uint16(0)) for codes in found]
        for codes in added:
            # stmatrix and asynchronous copies lose the codes, and no kernel discards such sums
            if codes is not None and ((codes > 0) & (codes < LOADED)).any():
                fail_use(f, self.instruction, codes, "is the accumulator of a product")
        return added

    def _shuffled(self, f: Fragment, r: Registers, undefined: Mapping[int, Array]) -> Codes:
        """The result of a shuffle: undefined if it is read from an undefined value, or from a lane that does not take
        part."""
        found = self.shuffle(f, r) if self.shuffle is not None else None
        if found is None:
            return None
        places, absent = found
        codes = self._codes(self.instruction.operands[1], undefined)
        out = None if codes is None else f.lanes.shuffled(codes, places)
        if absent is None:
            return out
        mine = code_of(f, ValueOrigin(self.instruction, shuffle=True))
        return np.where(absent, mine, np.uint16(0) if out is None else out)


def _combine(opcode: str, table: int, values: tuple[Array, ...]) -> Array:
    """The result of and, or, or lop3 with a table of 8 bits."""
    if opcode == "lop3":
        return table_function(table)(*values)
    found: Array = values[0] & values[1] if opcode == "and" else values[0] | values[1]
    return found


def _loaded(codes: Array) -> Array:
    """The codes of values that were loaded from memory."""
    found: Array = np.where(codes & LOADED, codes, np.uint16(0))
    return found


def _registers(operand: Operand | None) -> list[Register]:
    """The registers of an operand, which may be a vector."""
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    return [one for one in elements if isinstance(one, Register)]


class ShuffleReads:
    """The lanes that a shuffle reads: their places in a table of 32 per warp, and a mask of the lanes whose source does
    not take part; None if all sources do."""

    def __init__(self, slots: Mapping[str, int], instruction: Instruction) -> None:
        self.slots, self.instruction = slots, instruction

    def __call__(self, f: Fragment, r: Registers) -> tuple[Array, Array | None]:
        lanes, guard = f.lanes, self.instruction.guard
        lane, clamp, mask = (value_of(o, self.slots, r) for o in self.instruction.operands[2:])
        if lane.ndim or clamp.ndim or guard is not None:
            held = None if guard is None else r[self.slots[guard[0].name]] != guard[1]
            return self._find(lanes, lane, clamp, mask, held)
        key = ("reads", self.instruction.modifiers, int(lane), int(clamp))
        kept: tuple[Array, tuple[Array, Array | None]] | None = lanes.cache.get(key)
        if kept is None or not (kept[0] is mask or np.array_equal(kept[0], mask)):
            kept = lanes.cache[key] = mask, self._find(lanes, lane, clamp, mask, None)
        return kept[1]

    def absent(self, f: Fragment, r: Registers) -> bool:
        """Whether a lane reads one that does not take part."""
        return self(f, r)[1] is not None

    def _find(
        self, lanes: LaneSet, lane: Array, clamp: Array, mask: Array, held: Array | None
    ) -> tuple[Array, Array | None]:
        distance, bound, members = (np.broadcast_to(v, (lanes.count,)).astype(np.uint32) for v in (lane, clamp, mask))
        source = shuffle_sources(self.instruction, lanes, distance, bound)
        here = np.zeros(lanes.warp_count * 32, np.bool_)
        here[lanes.slots] = True if held is None else held
        places = lanes.warp_rank * 32 + source
        absent = ~here.take(places) | (members >> source.astype(np.uint32) & 1 == 0)
        return places, absent if absent.any() else None


def value_of(operand: Operand | None, slots: Mapping[str, int], r: Registers) -> Any:
    """The value of a register or literal, as a predicate or a 32-bit integer."""
    if isinstance(operand, Negated):
        return ~r[slots[operand.register.name]]
    if isinstance(operand, Register):
        return r[slots[operand.name]]
    return np.uint32(operand.bits & 0xFFFFFFFF) if isinstance(operand, Immediate) else np.uint32(0)
