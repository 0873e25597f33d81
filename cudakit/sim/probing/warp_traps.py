"""Hooks of traps for instructions that move values between lanes and memory, and for matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.undefined import ShuffleReads
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.probing.made import Trace
from cudakit.sim.probing.makers import INFINITE, NAN, OVERFLOW
from cudakit.sim.probing.operands import FORMATS, PARAMETERS, any_of, elements_of, size_of, special, values_of
from cudakit.sim.probing.places import AddressReader
from cudakit.sim.probing.registers import Hook, key_of
from cudakit.sim.ptx.ir import Address, Instruction, Register, Symbol
from cudakit.sim.ptx.opcodes import row_of, spaces_of


class AccessHook(Hook):
    """A load, store or atomic: reports codes in addresses, and in values that are stored to global memory."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        memory, opcode = row_of(instruction).memory, instruction.opcode
        place = 0 if memory is None or memory.writes == 0 else 1
        self.loads, self.stores = opcode in ("ld", "ldu"), opcode == "st"
        self.size = size_of(instruction)
        address = instruction.operands[1 if self.loads else place]
        self.address = AddressReader(program, instruction, address)
        self.param = not PARAMETERS.isdisjoint(spaces_of(instruction))
        if self.param and isinstance(address, Address) and isinstance(address.base, Symbol):
            self.param_slot = program.slots.get(address.base.name)
            self.param_offset = address.offset
        else:
            self.param = False
        self.elements = elements_of(instruction.operands[0 if self.loads else 1]) if self.loads or self.stores else []
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        given = instruction.operands[place + 1 :] if opcode in ("atom", "red") else ()
        self.given = [program.slots[e.name] for o in given for e in elements_of(o) if isinstance(e, Register)]
        self.loaded: list[Array | None] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.loaded = []
        state = self.trace.states.of(f)
        if self.param:
            self._param(f)
            return
        if state.registers.tables:
            self._check(f, self.address.slot, "is used as an address")
            for slot in self.given:
                self._check(f, slot, "is the operand of an atomic")
        if not (self.loads or self.stores) or (not state.registers.tables and not state.any_stored):
            return
        slots = [self.trace.program_slot(f, e) for e in self.elements]
        codes = [None if s is None else state.registers.read(f, key_of(f, s)) for s in slots]
        if self.stores and "global" in spaces_of(self.instruction):
            self._report(f, codes, np.ones(f.lanes.count, np.bool_))
            return
        if self.loads:
            self.loaded = [None] * len(self.elements)
        for home, offsets, positions in self.address.places(f, r, self.held):
            if hasattr(home, "address"):
                if self.stores:
                    here = np.zeros(f.lanes.count, np.bool_)
                    here[positions] = True
                    self._report(f, codes, here)
                continue
            for number, code in enumerate(codes):
                at = offsets + number * self.size
                if self.stores:
                    state.store(home, at, self.size, None if code is None else code[positions])
                elif (found := state.load(home, at, self.size)) is not None:
                    whole = np.zeros(f.lanes.count, np.int32)
                    whole[positions] = found
                    old = self.loaded[number]
                    self.loaded[number] = whole if old is None else np.maximum(old, whole)

    def _report(self, f: Fragment, codes: list[Array | None], lanes: Array) -> None:
        """Report the codes among those of the elements that lanes (a mask) store to global memory."""
        for code in codes:
            if code is not None:
                used = np.where(lanes if self.held is None else lanes & self.held, code, np.int32(0))
                if used.any():
                    self.trace.events(f).fail(f, self.instruction, used, "is stored to global memory")

    def _check(self, f: Fragment, slot: int | None, does: str) -> None:
        codes = None if slot is None else self.trace.codes(f, slot)
        if codes is not None:
            used = codes if self.held is None else np.where(self.held, codes, np.int32(0))
            if used.any():
                self.trace.events(f).fail(f, self.instruction, used, does)

    def _param(self, f: Fragment) -> None:
        """A parameter of a call is a register, whose parts are numbered by their bytes."""
        registers = self.trace.states.of(f).registers
        for number, element in enumerate(self.elements):
            slot = self.trace.program_slot(f, element)
            if self.param_slot is None:
                continue
            key = key_of(f, self.param_slot, self.param_offset + number * self.size)
            if self.stores:
                registers.write(f, key, None if slot is None else registers.read(f, key_of(f, slot)), self.held)
            else:
                self.loaded.append(registers.read(f, key))

    def after(self, f: Fragment) -> None:
        if self.loads:
            found = self.loaded or [None] * len(self.elements)
            for element, codes in zip(self.elements, found, strict=False):
                if isinstance(element, Register):
                    slot = f.program.slots[element.name]
                    if codes is None and self.loaded:
                        codes = self._from_matrix(f, f.regs[slot])
                    self.trace.put(f, slot, codes, self.held)
        else:
            for slot in self.written:
                self.trace.put(f, slot, None, self.held)
        self.loaded = []

    def _from_matrix(self, f: Fragment, bits: Any) -> Array | None:
        """The codes of infinities and NaN among loaded values that a matrix instruction has stored."""
        state = self.trace.states.of(f)
        if self.size not in (2, 4) or not state.any_matrix or "global" in spaces_of(self.instruction):
            return None
        abnormal = np.broadcast_to(special("f16" if self.size == 2 else "f32", bits), (f.lanes.count,))
        return np.where(abnormal, state.in_shared(f), np.int32(0)) if abnormal.any() else None


class MatrixAccessHook(Hook):
    """ldmatrix, stmatrix, wmma.load and wmma.store. An infinite or NaN element that is loaded has the code of a value
    in the block's shared memory: the places of the elements are not followed."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        modifiers = instruction.modifiers
        self.loads = instruction.opcode == "ldmatrix" or "load" in modifiers
        self.to_global = "store" in modifiers and "global" in spaces_of(instruction)
        self.kind = next((m for m in modifiers if m in FORMATS), "f16")
        values = instruction.operands[0 if self.loads else 1]
        self.slots = [program.slots[e.name] for e in elements_of(values) if isinstance(e, Register)]

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        if self.loads:
            return
        for slot in self.slots:
            codes = self.trace.codes(f, slot)
            if codes is not None and codes.any():
                if self.to_global:
                    self.trace.events(f).fail(f, self.instruction, codes, "is stored to global memory")
                self.trace.states.of(f).store_matrix(f, codes)

    def after(self, f: Fragment) -> None:
        state = self.trace.states.of(f)
        for slot in self.slots if self.loads else ():
            codes: Array | None = None
            if state.any_stored:
                abnormal = np.broadcast_to(_special(self.kind, f.regs[slot]), (f.lanes.count,))
                codes = np.where(abnormal, state.in_shared(f), np.int32(0)) if abnormal.any() else None
            self.trace.put(f, slot, codes, self.held)


class ShuffleHook(Hook):
    """A shuffle passes the codes of the lanes that it reads."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        self.reads = ShuffleReads(program.slots, instruction)
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        source = instruction.operands[1]
        self.source = program.slots[source.name] if isinstance(source, Register) else None
        self.codes: Array | None = None

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.codes = None if self.source is None else self.trace.codes(f, self.source)
        if self.codes is not None:
            places, _ = self.reads(f, r)
            self.codes = f.lanes.shuffled(self.codes, places)

    def after(self, f: Fragment) -> None:
        for number, slot in enumerate(self.written):
            self.trace.put(f, slot, None if number else self.codes, self.held)


class ProductHook(Hook):
    """mma: an infinite or NaN element of the result has the code of an operand of its warp. It is made here if no
    element of the warp's operands is infinite or NaN."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        kinds = [m for m in instruction.modifiers if m in FORMATS]
        # the types of D, A, B and C
        self.kinds = kinds if len(kinds) == 4 else []
        if len(kinds) == 2 and instruction.opcode == "wmma":
            self.kinds = [kinds[0], "f16", "f16", kinds[1]]
        self.operands = [
            [program.slots[e.name] for e in elements_of(o) if isinstance(e, Register)] for o in instruction.operands[:4]
        ]
        self.codes: Array | None = None
        self.clean: Array | None = None

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        codes: Array | None = None
        bad = np.zeros(f.lanes.count, np.bool_)
        for kind, slots in zip(self.kinds[1:], self.operands[1:], strict=False):
            for slot in slots:
                found = self.trace.codes(f, slot)
                if found is not None:
                    codes = found if codes is None else np.maximum(codes, found)
                bad |= _special(kind, r[slot])
        ranks, warps = f.lanes.warp_rank, f.lanes.warp_count
        worst, most = np.zeros(warps, np.bool_), np.zeros(warps, np.int32)
        np.logical_or.at(worst, ranks, bad)
        if codes is not None:
            np.maximum.at(most, ranks, codes)
        self.codes, self.clean = most[ranks], ~worst[ranks]

    def after(self, f: Fragment) -> None:
        if not self.kinds or self.codes is None or self.clean is None:
            for slot in self.operands[0]:
                self.trace.put(f, slot, None)
            return
        for slot in self.operands[0]:
            bits = f.regs[slot]
            kind = "f16x2" if self.kinds[0] == "f16" else self.kinds[0]
            abnormal = np.broadcast_to(_special(self.kinds[0], bits), (f.lanes.count,))
            if not abnormal.any():
                self.trace.put(f, slot, None)
                continue
            codes = np.where(abnormal, self.codes, np.int32(0))
            made = abnormal & self.clean & (codes == 0)
            if made.any():
                values = values_of(kind, bits)
                nan = any_of(np.isnan(v) for v in values) & made
                codes = self._made(f, codes, nan, "nan", NAN)
                over = made & ~nan
                codes = self._made(f, codes, over, "overflow" if "overflow" in self.trace.kinds else "inf", "")
            self.trace.put(f, slot, codes)

    def _made(self, f: Fragment, codes: Array, made: Array, kind: str, name: str) -> Array:
        if kind not in self.trace.kinds or not made.any():
            return codes
        name = name or (OVERFLOW if kind == "overflow" else INFINITE)
        text: Callable[[int], str] = lambda n: "the sum of a matrix product is " + ("nan" if kind == "nan" else "inf")  # noqa: E731
        code = self.trace.note(f, self.instruction, name, made, text, False)
        return np.where(made, np.int32(code), codes)


def _special(kind: str, bits: Any) -> Array:
    """Whether a register of a matrix operand has an infinite or NaN element."""
    if np.asarray(bits).dtype.itemsize == 4 and kind in ("f16", "bf16"):
        kind += "x2"
    return special(kind, bits)
