"""Plain loads whose values a compare-and-swap confirms: the first read in an atomicCAS loop.

    old = *address;
    do { assumed = old; old = atomicCAS(address, assumed, f(assumed)); } while (old != assumed);

The value of such a load is a guess. It has no effect unless the atomic finds the same value in memory, so an atomic by
another thread between the two does no harm. A load is confirmed if on every path its value reaches nothing but

- the compare operand of a compare-and-swap of the same address and size, unchanged;
- the new value of the same compare-and-swap, through arithmetic;
- a comparison of its compare operand with its result.

If that comparison has decided a branch and both are equal, the value is confirmed and may be used. A value that is
stored, passed to a function, used as an address or compared with another one is not confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cudakit.sim.lockstep.program import reads_of, writes_of
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Label, Operand, PtxFunction, Register, Symbol
from cudakit.sim.ptx.opcodes import Flow, row_of, spaces_of
from cudakit.sim.values.lanewise import BUILDERS, width

# the contents of a register: the loaded value; a value computed from it; the result of the compare-and-swap; whether
# that result and the loaded value are equal, or differ
_LOADED, _DERIVED, _RESULT, _EQUAL, _DIFFERENT = range(5)
_GUESSES = frozenset((_LOADED, _DERIVED))
_VERDICTS = frozenset((_RESULT, _EQUAL, _DIFFERENT))
# in a state: the registers of the address have changed since the load
_MOVED, _CHANGED = "the address", 5
_WIDTHS = (16, 32, 64)
_ORDERED = frozenset(("volatile", "relaxed", "acquire", "mmio", "nc"))
_COPIES = ("mov", "cvta")
# a load with more states than this is not confirmed
_STATES = 2000

# the registers that hold something which depends on the loaded value
_State = Mapping[str, int]


class _Used(Exception):
    """The loaded value is used for something else."""


class _Place(NamedTuple):
    """An address: a register or variable, and an offset in bytes. ``through`` are the registers it was computed in."""

    root: str
    offset: int
    through: frozenset[str]


def confirmed_loads(function: PtxFunction) -> set[int]:
    """The ids of the load instructions whose values a compare-and-swap confirms."""
    swaps = [i for i in function.instructions if _is_swap(i)]
    if not swaps:
        return set()
    flow = _Flow(function)
    places = {(place.root, place.offset) for swap in swaps if (place := flow.place(swap.operands[1])) is not None}
    found = set()
    for at, instruction in enumerate(function.instructions):
        if _is_candidate(instruction):
            place = flow.place(instruction.operands[1])
            if place is not None and (place.root, place.offset) in places and flow.confirms(at, place):
                found.add(id(instruction))
    return found


def _is_swap(instruction: Instruction) -> bool:
    return instruction.opcode == "atom" and "cas" in instruction.modifiers


def _is_candidate(instruction: Instruction) -> bool:
    return (
        instruction.opcode == "ld"
        and instruction.guard is None
        and _ORDERED.isdisjoint(instruction.modifiers)
        and isinstance(instruction.operands[0], Register)
        and width(instruction.modifiers[-1]) in _WIDTHS
        and width(instruction.operands[0].type) == width(instruction.modifiers[-1])
        and set(spaces_of(instruction)) <= {"global", "shared", "shared::cta"}
    )


class _Flow:
    """Follows loaded values through one function."""

    def __init__(self, function: PtxFunction) -> None:
        self.function = function
        self.instructions = function.instructions
        self.makers: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for register in writes_of(instruction):
                self.makers.setdefault(register.name, []).append(instruction)

    def place(self, operand: Operand | None) -> _Place | None:
        """The place of an address, through copies and sums with constants."""
        base: Operand | None = operand
        offset = 0
        if isinstance(operand, Address):
            base, offset = operand.base, operand.offset
        through: set[str] = set()
        while isinstance(base, Register):
            through.add(base.name)
            source = self._copied(base)
            if source is None:
                return _Place(base.name, offset, frozenset(through))
            base, more = source
            offset += more
        return _Place(base.name, offset, frozenset(through)) if isinstance(base, Symbol) else None

    def _copied(self, register: Register) -> tuple[Operand | None, int] | None:
        """The operand of which a register is a copy, and the constant added to it; None if it is not a copy, or if one
        of the two is written more than once."""
        maker = self._only_maker(register)
        if maker is None or maker.guard is not None:
            return None
        source, offset = maker.operands[1], 0
        if maker.opcode == "add" and isinstance(maker.operands[2], Immediate):
            offset = maker.operands[2].bits
        elif maker.opcode not in _COPIES:
            return None
        if isinstance(source, Register) and self._only_maker(source) is not None:
            return source, offset
        return (source, offset) if isinstance(source, Symbol) else None

    def _only_maker(self, register: Register) -> Instruction | None:
        makers = self.makers.get(register.name, ())
        return makers[0] if len(makers) == 1 else None

    def confirms(self, load: int, place: _Place) -> bool:
        """Whether the value of the load at ``place``, instruction number ``load``, has no other uses."""
        instruction = self.instructions[load]
        target = instruction.operands[0]
        if not isinstance(target, Register):
            return False
        follow = _Value(self, place)
        pending: list[tuple[int, _State]] = [(load + 1, {target.name: _LOADED})]
        seen: set[tuple[int, frozenset[tuple[str, int]]]] = set()
        try:
            while pending:
                at, state = pending.pop()
                key = at, frozenset(state.items())
                if at >= len(self.instructions) or key in seen or _GUESSES.isdisjoint(state.values()):
                    continue
                seen.add(key)
                if len(seen) > _STATES:
                    return False
                pending += self._after(at, state, follow)
        except _Used:
            return False
        return follow.compared

    def _after(self, at: int, state: _State, follow: _Value) -> list[tuple[int, _State]]:
        """The numbers of the instructions that may follow one, each with the registers then."""
        instruction = self.instructions[at]
        ends = row_of(instruction).ends
        if ends is not Flow.JUMP:
            after = follow.step(instruction, state)
            if ends in (Flow.EXIT, Flow.RETURN) and instruction.guard is None:
                return []
            if ends is Flow.SWITCH:
                table = instruction.operands[1]
                names = self.function.branch_targets[table.name] if isinstance(table, Label) else []
                return [(self.function.labels[name], after) for name in names]
            return [(at + 1, after)]
        target = instruction.operands[0]
        jump = self.function.labels[target.name] if isinstance(target, Label) else len(self.instructions)
        if instruction.guard is None:
            return [(jump, state)]
        register, negated = instruction.guard
        taken, passed = follow.branch(state, register.name)
        return [(jump, passed if negated else taken), (at + 1, taken if negated else passed)]


class _Value:
    """Follows the value loaded from ``place`` through each instruction. ``compared``: it has reached a
    compare-and-swap."""

    def __init__(self, flow: _Flow, place: _Place) -> None:
        self.flow, self.place = flow, place
        self.compared = False

    def branch(self, state: _State, name: str) -> tuple[_State, _State]:
        """The registers after a branch on a predicate: if it is true, and if it is false."""
        holds = state.get(name)
        if holds in _GUESSES:
            raise _Used
        if holds not in (_EQUAL, _DIFFERENT):
            return state, state
        return ({}, state) if holds == _EQUAL else (state, {})

    def step(self, instruction: Instruction, state: _State) -> _State:
        """The registers after an instruction that is not a branch. Raises _Used if it uses the value otherwise."""
        read = {state[o.name] for o in reads_of(instruction) if isinstance(o, Register) and o.name in state}
        guesses = read & _GUESSES
        made: int | None = None
        if _is_swap(instruction):
            made = self._swap(instruction, state, guesses)
        elif guesses or read:
            made = self._computed(instruction, state, guesses)
        after = dict(state)
        if made == _RESULT and _is_swap(instruction):
            # only the newest result is compared
            after = {name: what for name, what in state.items() if what not in _VERDICTS}
        for register in writes_of(instruction):
            name = register.name
            # lanes for which a guard is false keep the old value
            kept = instruction.guard is not None and after.get(name) in _GUESSES
            if kept:
                after[name] = _DERIVED
            elif made is not None:
                after[name] = made
            else:
                after.pop(name, None)
            if name in self.place.through:
                after[_MOVED] = _CHANGED
        return after

    def _swap(self, instruction: Instruction, state: _State, guesses: set[int]) -> int | None:
        """The contents of a compare-and-swap's result."""
        if not guesses:
            return None
        _, address, compare = instruction.operands[:3]
        place = self.flow.place(address)
        base = address.base if isinstance(address, Address) else address
        confirms = (
            instruction.guard is None
            and not (isinstance(base, Register) and base.name in state)
            and isinstance(compare, Register)
            and state.get(compare.name) == _LOADED
            and place is not None
            and place[:2] == self.place[:2]
            and _MOVED not in state
        )
        if not confirms:
            raise _Used
        self.compared = True
        return _RESULT

    def _computed(self, instruction: Instruction, state: _State, guesses: set[int]) -> int | None:
        """The contents of an instruction's results, computed from registers of the state."""
        opcode, operands = instruction.opcode, instruction.operands
        sources = [state.get(o.name) if isinstance(o, Register) else None for o in operands[1:]]
        plain = instruction.guard is None and isinstance(operands[0], Register)
        if opcode == "mov" and plain and sources and isinstance(operands[1], Register):
            return sources[0]
        if opcode == "setp" and plain and len(sources) == 2 and set(sources) == {_LOADED, _RESULT}:
            comparison, kind = instruction.modifiers[0], instruction.modifiers[-1]
            if comparison in ("eq", "ne") and kind[0] in "bus":
                return _EQUAL if comparison == "eq" else _DIFFERENT
        if not guesses:
            return None
        if opcode not in BUILDERS and opcode not in _COPIES:
            raise _Used
        return _DERIVED
