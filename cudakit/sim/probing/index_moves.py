"""Indices that overflowed, and addresses computed from them, on their way between registers, lanes and memory.

A register of 32 bits may hold one half of a 64-bit address: compilers shuffle addresses so. Its code is negative then,
and does not count before both halves are put together again: the upper half of a product is a reduced hash.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.instructions.undefined import ShuffleReads
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.probing.index_slice import followed_spaces, in_global, parameter_of
from cudakit.sim.probing.made import Trace
from cudakit.sim.probing.operands import elements_of, size_of
from cudakit.sim.probing.places import AddressReader, Place, memory_of
from cudakit.sim.probing.registers import Hook, LaneValues, States, key_of
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Operand, Register, Symbol, Vector

#: stands for a register whose exact value is that of its bits
NONE = np.iinfo(np.int64).min
LOWER, UPPER = 0, 1


def halved(codes: Array, side: int) -> Array:
    """The codes of one half of 64-bit values with some codes."""
    return np.where(codes > 0, -(2 * codes + side), np.int32(0))


def joined(first: Array, second: Array) -> Array:
    """The codes of values put together from a lower and an upper half of the same value, in any order."""
    same = (first < 0) & (second < 0) & (first != second) & (-first >> 1 == -second >> 1)
    return np.where(same, -first >> 1, np.int32(0))


class Followed:
    """Facts about the indices of the launches that a probe follows: codes and exact values by register and in
    memory."""

    def __init__(self) -> None:
        self.trace = Trace(())
        self.exact: States[LaneValues] = States(lambda batch: LaneValues(batch.geometry.lanes, np.int64, NONE))
        self.memory: States[IndexMemory] = States(IndexMemory)

    def end(self, run: Any) -> None:
        self.trace.end(run)
        self.exact.end(run)
        self.memory.end(run)

    def tables(self, f: Fragment) -> list[LaneValues]:
        return [self.trace.states.of(f).registers, self.exact.of(f)]

    def any_register(self, f: Fragment) -> bool:
        return any(table.tables for table in self.tables(f))

    def read(self, f: Fragment, slot: int, part: int = 0) -> Known:
        codes, exact = (table.read(f, key_of(f, slot, part)) for table in self.tables(f))
        return Known(exact, codes)

    def write(self, f: Fragment, slot: int, known: Known, held: Array | None, part: int = 0) -> None:
        codes, exact = self.tables(f)
        given = known.codes if known.codes is not None and known.codes.any() else None
        codes.write(f, key_of(f, slot, part), given, held)
        exact.write(f, key_of(f, slot, part), known.exact, held)


class Known(NamedTuple):
    """The exact values and the codes of a register; None: as its bits, and all 0."""

    exact: Array | None
    codes: Array | None


NOTHING = Known(None, None)


class IndexMemory:
    """Exact values and codes by word of shared and local memory. They hold while a word has the bits with which it was
    stored, because instructions that are not followed may overwrite it."""

    def __init__(self, batch: Batch) -> None:
        # by memory: the exact values, the codes and the bits
        self.tables: dict[int, tuple[Array, Array, Array]] = {}

    def forget(self, place: Place, offset: int, size: int) -> None:
        """Forget what is known about elements of ``size`` bytes."""
        table = self.tables.get(id(place.home))
        if table is not None:
            at = (place.offsets + offset >> 2)[:, None] + np.arange(max(size >> 2, 1))
            table[0][at], table[1][at] = NONE, 0

    def store(self, place: Place, offset: int, bits: Array, known: Known) -> None:
        """Note values of ``bits`` (4 or 8 bytes each) that have been stored."""
        at = place.offsets + offset >> 2
        if bits.dtype.itemsize == 8:
            codes = np.zeros(len(bits), np.int32) if known.codes is None else known.codes
            self._store(place.home, at, bits.astype(np.uint32), Known(None, halved(codes, LOWER)))
            self._store(
                place.home, at + 1, (bits >> np.uint64(32)).astype(np.uint32), Known(None, halved(codes, UPPER))
            )
        else:
            self._store(place.home, at, bits.view(np.uint32), known)

    def _store(self, home: Any, at: Array, bits: Array, known: Known) -> None:
        table = self.tables.get(id(home))
        if table is None:
            if known.exact is None and (known.codes is None or not known.codes.any()):
                return
            words = len(home.bytes) // 4 + 1
            made = np.full(words, NONE), np.zeros(words, np.int32), np.zeros(words, np.uint32)
            table = self.tables[id(home)] = made
        exact, codes, kept = table
        # of lanes that store to the same word, one remains
        here = memory_of(home, np.uint32)[at] == bits
        at = at[here]
        kept[at] = bits[here]
        if known.exact is not None:
            exact[at] = known.exact[here]
        if known.codes is not None:
            codes[at] = known.codes[here]

    def load(self, place: Place, offset: int, size: int) -> Known:
        """The facts about the values of ``size`` bytes, 4 or 8, that are about to be loaded."""
        if id(place.home) not in self.tables:
            return NOTHING
        at = place.offsets + offset >> 2
        exact, codes = self._load(place.home, at)
        return Known(exact, codes) if size == 4 else Known(None, joined(codes, self._load(place.home, at + 1)[1]))

    def _load(self, home: Any, at: Array) -> tuple[Array, Array]:
        exact, codes, kept = (table[at] for table in self.tables[id(home)])
        same = memory_of(home, np.uint32)[at] == kept
        return np.where(same, exact, NONE), np.where(same, codes, np.int32(0))


class IndexAccessHook(Hook):
    """A load, store or atomic. An access of global memory reports an address that was computed from an index that
    overflowed; values in shared and local memory and in parameters are followed."""

    def __init__(self, followed: Followed, program: Program, instruction: Instruction, used: frozenset[str]) -> None:
        super().__init__(program, instruction)
        self.followed = followed
        bases = [o.base for o in instruction.operands if isinstance(o, Address)] if in_global(instruction) else []
        self.checked = [program.slots[base.name] for base in bases if isinstance(base, Register)]
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        self.loads, self.size = instruction.opcode in ("ld", "ldu"), size_of(instruction)
        moves = self.loads or instruction.opcode == "st"
        elements = elements_of(instruction.operands[0 if self.loads else 1]) if moves else []
        #: the registers that are followed, by the number of the element; None: a literal that is stored
        self.elements = {
            number: program.slots[o.name] if isinstance(o, Register) else None
            for number, o in enumerate(elements)
            if (o.name in used if isinstance(o, Register) else isinstance(o, Immediate))
        }
        # what an atomic leaves in memory is not followed
        self.updates = instruction.opcode in ("atom", "red")
        self.parameter: tuple[int, int] | None = None
        self.address: AddressReader | None = None
        parameter = parameter_of(instruction)
        if parameter is not None and isinstance(parameter.base, Symbol):
            slot = program.slots.get(parameter.base.name)
            self.parameter = None if slot is None else (slot, parameter.offset)
        elif (self.elements or self.updates) and followed_spaces(instruction):
            place = 1 if self.loads or instruction.opcode == "atom" else 0
            self.address = AddressReader(program, instruction, instruction.operands[place])
        self.places: list[Place] = []
        self.loaded: dict[int, Known] = {}

    @property
    def useful(self) -> bool:
        """Whether the hook has anything to do."""
        return bool(self.checked or self.elements or (self.updates and self.address))

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.places, self.loaded = [], {}
        memory, registers = self.followed.memory.of(f), self.followed.any_register(f)
        if not (registers or memory.tables):
            return
        for slot in self.checked if registers else ():
            self._check(f, slot)
        if self.parameter is not None:
            slot, offset = self.parameter
            if self.loads:
                parts = {number: offset + number * self.size for number in self.elements}
                self.loaded = {number: self.followed.read(f, slot, part) for number, part in parts.items()}
        elif self.address is not None and (memory.tables or not self.loads):
            self.places = [place for place in self.address.places(f, r, self.held) if not place.is_global]
            if self.loads and self.size in (4, 8):
                self.loaded = {number: self._load(f, number) for number in self.elements}

    def _check(self, f: Fragment, slot: int) -> None:
        codes = self.followed.trace.codes(f, slot)
        if codes is None:
            return
        used = np.where(codes > 0 if self.held is None else (codes > 0) & self.held, codes, np.int32(0))
        if used.any():
            does = "is used in an address of global memory"
            self.followed.trace.events(f).fail(f, self.instruction, used, does)

    def _load(self, f: Fragment, number: int) -> Known:
        exact, codes = np.full(f.lanes.count, NONE), np.zeros(f.lanes.count, np.int32)
        for place in self.places:
            known = self.followed.memory.of(f).load(place, number * self.size, self.size)
            if known.exact is not None:
                exact[place.positions] = known.exact
            if known.codes is not None:
                codes[place.positions] = known.codes
        return Known(exact if (exact != NONE).any() else None, codes if codes.any() else None)

    def after(self, f: Fragment) -> None:
        if not self.loads:
            for number, slot in self.elements.items():
                self._store(f, number, slot)
        for place in self.places if self.updates else ():
            self.followed.memory.of(f).forget(place, 0, self.size)
        loaded = {self.elements[number]: known for number, known in self.loaded.items()}
        for slot in self.written:
            self.followed.write(f, slot, loaded.get(slot, NOTHING), self.held)

    def _store(self, f: Fragment, number: int, slot: int | None) -> None:
        known = NOTHING if slot is None else self.followed.read(f, slot)
        if self.parameter is not None:
            self.followed.write(f, self.parameter[0], known, self.held, self.parameter[1] + number * self.size)
        for place in self.places:
            memory, offset = self.followed.memory.of(f), number * self.size
            memory.forget(place, offset, self.size)
            bits = None if slot is None else np.broadcast_to(f.regs[slot], (f.lanes.count,))[place.positions]
            if bits is not None and bits.dtype.itemsize == self.size and self.size in (4, 8):
                here = Known(*(None if part is None else part[place.positions] for part in known))
                memory.store(place, offset, bits, here)


class IndexShuffleHook(Hook):
    """A shuffle passes on what is known about the lanes that it reads."""

    def __init__(self, followed: Followed, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.followed = followed
        self.reads = ShuffleReads(program.slots, instruction)
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        source = instruction.operands[1]
        self.source = program.slots[source.name] if isinstance(source, Register) else None
        self.known = NOTHING

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.known = NOTHING if self.source is None else self.followed.read(f, self.source)
        if self.known.exact is None and self.known.codes is None:
            return
        places, _ = self.reads(f, r)
        exact, codes = (
            None if values is None else f.lanes.shuffled(values, places, absent)
            for values, absent in zip(self.known, (NONE, 0), strict=True)
        )
        self.known = Known(exact, codes)

    def after(self, f: Fragment) -> None:
        for number, slot in enumerate(self.written):
            self.followed.write(f, slot, NOTHING if number else self.known, self.held)


class HalvesHook(Hook):
    """An instruction that takes a half of a 64-bit value, or that puts halves together."""

    def __init__(self, followed: Followed, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.followed = followed
        self.opcode = instruction.opcode
        self.joins = self.opcode == "bfi" or isinstance(instruction.operands[1], Vector)
        sources = elements_of(instruction.operands[1])
        if self.opcode == "bfi":
            sources = list(instruction.operands[1:3])
        self.sources = [program.slots[o.name] if isinstance(o, Register) else None for o in sources]
        results = elements_of(instruction.operands[0])
        self.results = [program.slots[o.name] if isinstance(o, Register) else None for o in results]
        self.codes: list[Array | None] = []

    @staticmethod
    def handles(instruction: Instruction) -> bool:
        opcode, modifiers, operands = instruction.opcode, instruction.modifiers, instruction.operands
        if opcode == "cvt":
            return len(modifiers) == 2 and modifiers[0] in ("u32", "s32") and modifiers[1] in ("u64", "s64")
        if opcode == "shr":
            return modifiers[-1] in ("u64", "s64", "b64") and _is_32(operands[2])
        if opcode == "bfi":
            return modifiers == ("b64",) and all(_is_32(o) for o in operands[3:5])
        pair = next((o for o in operands[:2] if isinstance(o, Vector)), None)
        return opcode == "mov" and modifiers == ("b64",) and pair is not None and len(pair.elements) == 2

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.codes = [None if s is None else self.followed.read(f, s).codes for s in self.sources]

    def after(self, f: Fragment) -> None:
        found: list[Array | None] = [None] * len(self.results)
        if self.joins:
            lower, upper = self.codes
            if lower is not None and upper is not None:
                found[0] = joined(lower, upper)
        elif self.codes[0] is not None:
            for number in range(len(self.results)):
                # a half that was in a 64-bit register remains what it is
                half = halved(self.codes[0], UPPER if self.opcode == "shr" or number else LOWER)
                found[number] = np.minimum(self.codes[0], half)
        for slot, codes in zip(self.results, found, strict=True):
            if slot is not None:
                self.followed.write(f, slot, Known(None, codes), self.held)


def _is_32(operand: Operand | None) -> bool:
    return isinstance(operand, Immediate) and operand.bits == 32
