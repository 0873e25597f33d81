"""Traps for sums in memory that atomics make infinite or NaN.

Many lanes may add to one element, so an operation is that of an element: its old value, the operands of all lanes that
add to it, and its new value. The element of a sum does not become finite again, so the new value shows an overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program
from cudakit.sim.probing.atomics import given_to
from cudakit.sim.probing.made import Trace
from cudakit.sim.probing.makers import INFINITE, NAN, OVERFLOW
from cudakit.sim.probing.operands import FORMATS, PACKED, elements_of, number, reader, special, values_of
from cudakit.sim.probing.places import Place, memory_of
from cudakit.sim.probing.warp_traps import AccessHook
from cudakit.sim.ptx.ir import Instruction, Register

# the operands that a report shows
_SHOWN = 3
# the bytes of the largest elements that are followed: pairs of 64 bits are exchanged only
_WIDEST = 8


class _Update(NamedTuple):
    """An element of a vector that lanes are about to update: its place, the old bits, the operand's bits, and the
    codes."""

    element: int
    place: Place
    at: Array
    old: Array
    given: Array | None
    codes: Array | None


class AtomicHook(AccessHook):
    """An atomic: its operands count as used. A sum that it makes counts if it is in global memory; in shared memory,
    and as the result of the instruction, it is followed."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(trace, program, instruction)
        self.kind = instruction.modifiers[-1]
        self.is_float = PACKED.get(self.kind, self.kind) in FORMATS
        self.sums = self.is_float and "add" in instruction.modifiers
        self.keeps_wrong = not self.is_float and {"exch", "cas", "min", "max"}.isdisjoint(instruction.modifiers)
        values = elements_of(given_to(instruction)[-1])
        self.reads = [reader(program, o, self.kind) if self.sums else None for o in values]
        results = elements_of(instruction.operands[0]) if instruction.opcode == "atom" else []
        self.results = [program.slots[o.name] if isinstance(o, Register) else None for o in results]
        self.updates: list[_Update] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.updates = []
        state = self.trace.states.of(f)
        if self.size > _WIDEST or not (self.sums or state.any_stored):
            return
        for place in self.address.places(f, r, self.held):
            for element, read in enumerate(self.reads):
                offsets = place.offsets + element * self.size
                at = offsets // self.size
                given = None if read is None else np.broadcast_to(read(r), (f.lanes.count,))[place.positions]
                codes = None if place.is_global else state.load(place.home, offsets, self.size)
                self.updates.append(_Update(element, place, at, self._bits(place)[at], given, codes))

    def _bits(self, place: Place) -> Array:
        return memory_of(place.home, f"u{self.size}")

    def after(self, f: Fragment) -> None:
        returned: dict[int, Array] = {}
        for update in self.updates:
            codes = self._codes(f, update)
            if codes is None:
                continue
            slot = self.results[update.element] if self.results else None
            if slot is not None:
                found = returned.setdefault(slot, np.zeros(f.lanes.count, np.int32))
                found[update.place.positions] = self._returned(f, update, codes, slot)
        for slot in self.written:
            self.trace.put(f, slot, returned.get(slot), self.held)
        self.updates = []

    def _codes(self, f: Fragment, update: _Update) -> Array | None:
        """The codes of the values that lanes find or make in memory; None if there are none."""
        place, new = update.place, self._bits(update.place)[update.at]
        made = self._made(f, update, new) if update.given is not None and special(self.kind, new).any() else None
        if made is None and update.codes is None:
            return None
        before = np.zeros(len(new), np.int32) if update.codes is None else update.codes
        codes = before if made is None else np.where(made > 0, made, before)
        if place.is_global:
            whole = np.zeros(f.lanes.count, np.int32)
            whole[place.positions] = codes
            self.trace.events(f).fail(f, self.instruction, whole, "is stored to global memory")
        stays = special(self.kind, new) if self.is_float else (new == update.old) | self.keeps_wrong
        offsets = place.offsets + update.element * self.size
        self.trace.states.of(f).store(place.home, offsets, self.size, np.where(stays, codes, np.int32(0)))
        return codes

    def _returned(self, f: Fragment, update: _Update, codes: Array, slot: int) -> Array:
        """The codes of the values that lanes had from memory before they updated it."""
        bits = np.broadcast_to(f.regs[slot], (f.lanes.count,))[update.place.positions]
        wrong = special(self.kind, bits) if self.is_float else bits == update.old
        return np.where(wrong, codes, np.int32(0))

    def _made(self, f: Fragment, update: _Update, new: Array) -> Array | None:
        """The codes of the elements that have become infinite or NaN; None if there are none."""
        places, group = np.unique(update.at, return_inverse=True)
        found: Array | None = None
        parts = (values_of(self.kind, bits) for bits in (new, update.old, update.given))
        for y, old, given in zip(*parts, strict=True):
            finite, numbers = np.ones(len(places), np.bool_), np.ones(len(places), np.bool_)
            np.logical_and.at(finite, group, np.isfinite(given))
            np.logical_and.at(numbers, group, ~np.isnan(given))
            infinite = np.isinf(y) & np.isfinite(old) & finite[group]
            nan = np.isnan(y) & ~np.isnan(old) & numbers[group]
            kinds = self.trace.kinds
            for mask, kind, name in ((infinite, "overflow", OVERFLOW), (infinite, "inf", INFINITE), (nan, "nan", NAN)):
                fresh = mask if found is None else mask & (found == 0)
                if kind in kinds and fresh.any():
                    code = self._note(f, update, name, fresh, self._text(group, fresh, y, old, given))
                    found = np.where(fresh, np.int32(code), np.int32(0) if found is None else found)
        return found

    def _note(self, f: Fragment, update: _Update, name: str, made: Array, text: Callable[[int], str]) -> int:
        lanes = np.zeros(f.lanes.count, np.bool_)
        lanes[update.place.positions[made]] = True
        return self.trace.note(f, self.instruction, name, lanes, text, False)

    def _text(self, group: Array, made: Array, y: Array, old: Array, given: Array) -> Callable[[int], str]:
        """The sum of an element as text: its old value, and the operands of the lanes that add to it."""
        lanes, kind = np.flatnonzero(made), PACKED.get(self.kind, self.kind)

        def text(place: int) -> str:
            lane = lanes[place]
            addends = given[group == group[lane]]
            shown = [number(float(v), kind) for v in (old[lane], *addends[:_SHOWN])]
            terms = [shown[0], *(f"({v})" if v.startswith("-") else v for v in shown[1:])]
            terms += [f"... ({len(addends)} atomics)"] if len(addends) > _SHOWN else []
            return f"{' + '.join(terms)} = {number(float(y[lane]), kind)}"

        return text
