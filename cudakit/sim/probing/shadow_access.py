"""Hooks that carry the float64 shadows through loads, stores, parameters of calls, and atomic additions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.probing.losses import OVERFLOWED, Worst, relative_error, threshold
from cudakit.sim.probing.operands import FORMATS, PARAMETERS, elements_of, float_size, size_of, values_of
from cudakit.sim.probing.places import AddressReader, Place, memory_of
from cudakit.sim.probing.registers import Hook, key_of
from cudakit.sim.probing.shadow_memory import Shadow
from cudakit.sim.probing.shadow_values import Parts, Shadows, merged, part_of
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Register, Symbol
from cudakit.sim.ptx.opcodes import spaces_of
from cudakit.sim.values.lanewise import constant, storage

# the kind of a float by the width of its shadow; a half may also be a bfloat16, which its unit decides
_KINDS = {2: "f16", 4: "f32", 8: "f64"}


def parameter(program: Program, instruction: Instruction) -> tuple[int, int] | None:
    """The slot and offset of the parameter of a call that an ld.param or st.param names; None for other accesses."""
    operand = instruction.operands[1 if instruction.opcode != "st" else 0]
    if PARAMETERS.isdisjoint(spaces_of(instruction)):
        return None
    base, offset = (operand.base, operand.offset) if isinstance(operand, Address) else (operand, 0)
    if not isinstance(base, Symbol) or base.name not in program.slots:
        return None
    return program.slots[base.name], offset


class _ElementsHook(Hook):
    """A load or store of one or more elements."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.shadows = shadows
        self.loads = instruction.opcode != "st"
        self.elements = elements_of(instruction.operands[0 if self.loads else 1])
        self.size = size_of(instruction)
        self.address = AddressReader(program, instruction, instruction.operands[1 if self.loads else 0])

    def parts(self, f: Fragment, operand: Any, r: Any) -> Parts:
        if not isinstance(operand, Register):
            return {}
        slot = f.program.slots[operand.name]
        return self.shadows.parts(f, slot, r[slot].dtype.itemsize)


class ParamHook(_ElementsHook):
    """A parameter of a call."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(shadows, program, instruction)
        found = parameter(program, instruction)
        self.slot, self.offset = found if found is not None else (0, 0)

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        if self.loads:
            return
        state = self.shadows.registers.of(f)
        for number, element in enumerate(self.elements):
            start = self.offset + number * self.size
            for key in [k for k in state.values.tables if k[:3] == key_of(f, self.slot)[:3]]:
                if start <= key[3] // 16 < start + self.size:
                    state.write(f, key, None, self.held)
            for (at, width), shadow in self.parts(f, element, r).items():
                state.write(f, key_of(f, self.slot, part_of(start + at, width)), shadow, self.held)

    def after(self, f: Fragment) -> None:
        if not self.loads:
            return
        state = self.shadows.registers.of(f)
        for number, element in enumerate(self.elements):
            if isinstance(element, Register):
                start, found = self.offset + number * self.size, {}
                for at, width in [(0, 8), (0, 4), (4, 4), (0, 2), (2, 2)]:
                    shadow = state.read(f, key_of(f, self.slot, part_of(start + at, width)))
                    if shadow is not None:
                        found[at, width] = shadow
                slot = f.program.slots[element.name]
                self.shadows.put(f, slot, storage(element.type).itemsize, found, self.held)


class LoadHook(_ElementsHook):
    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.places: list[Place] = self.address.places(f, r, self.held)

    def after(self, f: Fragment) -> None:
        for number, element in enumerate(self.elements):
            if not isinstance(element, Register):
                continue
            slot = f.program.slots[element.name]
            bits = np.broadcast_to(f.regs[slot], (f.lanes.count,))
            parts: Parts = {}
            for width in (8, 4, 2):
                for at in range(0, self.size, width):
                    loaded = (bits >> bits.dtype.type(8 * at)).astype(f"u{width}") if at else bits.astype(f"u{width}")
                    shadow = self._part(f, number * self.size + at, width, loaded)
                    if shadow is not None:
                        parts[at, width] = shadow
            self.shadows.put(f, slot, storage(element.type).itemsize, parts, self.held)
        self.places = []

    def _part(self, f: Fragment, at: int, width: int, bits: Array) -> Shadow | None:
        whole: Shadow | None = None
        for home, offsets, positions in self.places:
            found = self.shadows.memory.load(home, offsets + at, width, bits[positions])
            if found is None:
                continue
            if whole is None:
                whole = Shadow(np.full(f.lanes.count, np.nan), np.zeros(f.lanes.count, np.int32), found.unit)
            whole.values[positions], whole.codes[positions] = found.values, found.codes
            whole = whole._replace(unit=max(whole.unit, found.unit))
        return whole


class StoreHook(_ElementsHook):
    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        found = [self.parts(f, element, r) for element in self.elements]
        if not any(found) and not self.shadows.memory.any:
            return
        places = self.address.places(f, r, self.held)
        for place in places:
            # a value without a shadow may have the bits of the one that it replaces
            for number in range(len(self.elements)):
                self.shadows.memory.remove(place.home, place.offsets + number * self.size, self.size)
        for number, (element, parts) in enumerate(zip(self.elements, found, strict=True)):
            if not parts or not isinstance(element, Register):
                continue
            bits = np.broadcast_to(r[f.program.slots[element.name]], (f.lanes.count,))
            for (at, width), shadow in parts.items():
                if at + width > self.size:
                    continue
                stored = (bits >> bits.dtype.type(8 * at)).astype(f"u{width}") if at else bits.astype(f"u{width}")
                actual = values_of(_kind(width, shadow), stored)[0]
                for place in places:
                    positions = place.positions
                    part = Shadow(shadow.values[positions], shadow.codes[positions], shadow.unit)
                    start = place.offsets + number * self.size + at
                    self.shadows.memory.store(place.home, start, width, stored[positions], part)
                    if place.is_global:
                        self.shadows.stored(f, self.instruction, actual[positions], part)


def _kind(width: int, shadow: Shadow) -> str:
    return "bf16" if width == 2 and shadow.unit >= FORMATS["bf16"].unit else _KINDS[width]


class _Addition(NamedTuple):
    """The additions of an atomic to some elements: their numbers, exact sums, codes, and old values; whether one of the
    addends is not 0; and the position of a lane that adds to each."""

    place: Place
    elements: Array
    total: Array
    codes: Array
    old: Array
    adds: Array
    lanes: Array


def _of_addends(codes: Array, inverse: Array, count: int) -> Array:
    """The codes of the addends of each of some elements: one for each."""
    found = np.zeros(count, np.int32)
    order = np.argsort(codes, kind="stable")  # the last is kept: that of an infinity, if there is one
    order = order[codes[order] != 0]
    found[inverse[order]] = codes[order]
    return found


class AtomicHook(Hook):
    """atom.add and red.add of floats: the shadows of the addends are added to that in memory."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.shadows = shadows
        self.kind = next(m for m in instruction.modifiers if m in FORMATS)
        self.width = float_size(self.kind)
        place = 1 if instruction.opcode == "atom" else 0
        self.address = AddressReader(program, instruction, instruction.operands[place])
        self.value = instruction.operands[place + 1]
        self.written = [program.slots[o.name] for o in writes_of(instruction)]
        self.pending: list[_Addition] = []
        self.code = 0

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.pending = []
        if isinstance(self.value, Register):
            slot = f.program.slots[self.value.name]
            bits, shadow = r[slot], self.shadows.get(f, slot, (0, self.width))
        elif isinstance(self.value, Immediate):
            bits, shadow = constant(self.value, self.kind), None
        else:
            return
        actual = np.broadcast_to(values_of(self.kind, bits)[0], (f.lanes.count,))
        exact = actual if shadow is None else np.where(np.isnan(shadow.values), actual, shadow.values)
        self.code = self.shadows.code(f, self.instruction)
        for place in self.address.places(f, r, self.held):
            index = place.offsets // self.width
            unique, inverse = np.unique(index, return_inverse=True)
            old_bits = memory_of(place.home, f"u{self.width}")[unique].copy()
            old = values_of(self.kind, old_bits)[0]
            known = self.shadows.memory.load(place.home, unique * self.width, self.width, old_bits)
            start = old if known is None else np.where(np.isnan(known.values), old, known.values)
            total = start.copy()
            np.add.at(total, inverse, exact[place.positions])
            codes = np.zeros(len(unique), np.int32) if known is None else known.codes.copy()
            if shadow is not None:
                codes = merged(codes, _of_addends(shadow.codes[place.positions], inverse, len(unique)))
            given = exact[place.positions]
            adds, lanes = np.zeros(len(unique), np.bool_), np.zeros(len(unique), np.int64)
            # the last lane is kept: one whose addend is not 0, if there is one
            order = np.argsort(given != 0, kind="stable")
            adds[inverse[given != 0]] = True
            lanes[inverse[order]] = place.positions[order]
            self.pending.append(_Addition(place, unique, total, codes, old, adds, lanes))

    def after(self, f: Fragment) -> None:
        unit = FORMATS[self.kind].unit
        line = self.shadows.line(self.code) if self.pending else None
        for done in self.pending:
            bits = memory_of(done.place.home, f"u{self.width}")[done.elements].copy()
            actual = values_of(self.kind, bits)[0]
            errors = relative_error(actual, done.total)
            low, high = threshold(unit, stagnation=True), threshold(unit)
            absorbs = np.isfinite(actual) & (actual == done.old) & (done.total != done.old)
            infinite = np.isinf(actual)
            finite = np.where(infinite, 0.0, errors)
            if line is not None:
                line.count(finite)
                line.addends += int(np.count_nonzero(done.adds))
                line.absorbed += int(np.count_nonzero(absorbs & done.adds))
                place = int(np.argmax(finite))
                if finite[place] > line.error or not line.operation:
                    line.show(self._worst(f, done, actual, place, max(line.error, float(finite[place]))))
            codes = np.where((errors >= high) | ((done.codes < 0) & (errors >= low)), done.codes, np.int32(0))
            own = np.where(infinite, np.int32(self.code + OVERFLOWED), np.int32(self.code))
            codes = np.where((errors >= high) & (codes == 0), own, codes)
            codes = np.where(absorbs & (errors >= low) & (codes == 0), np.int32(-self.code), codes)
            if line is not None:
                line.blame(finite[np.abs(codes) == self.code], unit)
                made = infinite & (codes == self.code + OVERFLOWED)
                if line.overflow is None and made.any():
                    line.overflow = self._worst(f, done, actual, int(np.argmax(made)), 1.0)
            self.shadows.memory.store(
                done.place.home, done.elements * self.width, self.width, bits, Shadow(done.total, codes, unit)
            )
            if done.place.is_global:
                # additions of 0 store nothing new
                changed = Shadow(done.total[done.adds], codes[done.adds], unit)
                self.shadows.stored(f, self.instruction, actual[done.adds], changed)
        for slot in self.written:
            self.shadows.put(f, slot, f.regs[slot].dtype.itemsize, {}, self.held)
        self.pending = []

    def _worst(self, f: Fragment, done: _Addition, actual: Array, at: int, error: float) -> Worst:
        """The addition to an element, for reports."""
        operation = f"atomicAdd to {done.old[at]:.9g}"
        block, thread = f.lane_place(int(done.lanes[at]))
        result, exact = f"{actual[at]:.9g}", f"{done.total[at]:.9g}"
        return Worst(error, FORMATS[self.kind].unit, block, thread, operation, result, exact)
