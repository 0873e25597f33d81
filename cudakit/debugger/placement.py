"""The places of variables along the control flow.

The ranges in DWARF follow the order of the PTX, in which a block can come after one that does not lead to it. So only
the start of a range counts, as an assignment of a place, and it is followed along the branches. A variable with one
register for its whole function has a value once an instruction has written that register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudakit.debugger.dwarf import (
    Constant,
    DebugFunction,
    DebugVariable,
    InMemory,
    InRegister,
    Place,
    instruction_numbers,
)
from cudakit.sim.lockstep.program import Program, follows, writes_of
from cudakit.sim.ptx.ir import Register

# the places at a merge of branches: not reached yet, and different ones
_UNSEEN, _CONFLICT = object(), object()
_PLACES = (InRegister, InMemory, Constant)


@dataclass(frozen=True)
class _Block:
    """The instructions of a basic block, as a range of numbers, and the blocks that may run after it."""

    first: int
    end: int
    after: tuple[int, ...]


def place_by_flow(program: Program, function: DebugFunction) -> None:
    """Replace the places of a function's variables in registers by those that its control flow reaches."""
    numbers = instruction_numbers(program.function)
    blocks = []
    for block in program.blocks:
        first = numbers[id(block.instructions[0])] if block.instructions else 0
        after = tuple(number for number in follows(block) if 0 <= number < len(program.blocks))
        blocks.append(_Block(first, first + len(block.instructions), after))
    for variable in function.scope.all_variables():
        starts = _starts(program, variable)
        if starts is not None:
            variable.places = _reached(program, blocks, starts)


def _starts(program: Program, variable: DebugVariable) -> dict[int, Place | None] | None:
    """The numbers of the instructions before which a variable gets a place, or loses it; None to leave it as it is."""
    spans = [(span, place) for span, place in variable.places if span is not None]
    if spans:
        starts: dict[int, Place | None] = {low: place for (low, _), place in spans}
        for (_, high), _ in spans:
            starts.setdefault(high, None)
        return starts
    place = variable.places[0][1] if len(variable.places) == 1 else None
    if not isinstance(place, InRegister):
        return None
    instructions = enumerate(program.function.instructions)
    return {n + 1: place for n, i in instructions if any(register.name == place.name for register in writes_of(i))}


def _reached(
    program: Program, blocks: list[_Block], starts: Mapping[int, Place | None]
) -> list[tuple[tuple[int, int] | None, Place]]:
    """The place before each instruction, as ranges."""
    enter: dict[int, object] = {0: None}
    todo = [0]
    while todo:
        number = todo.pop()
        place = enter[number]
        for at in range(blocks[number].first, blocks[number].end):
            place = starts.get(at, place)
        for after in blocks[number].after:
            known = enter.get(after, _UNSEEN)
            if known is _UNSEEN or known is None:
                new = place
            else:
                new = known if place is None or place == known else _CONFLICT
            if new is not known:
                enter[after] = new
                todo.append(after)
    found: list[tuple[tuple[int, int] | None, Place]] = []
    for number, block in enumerate(blocks):
        place = enter.get(number)
        if place is _CONFLICT:
            place = _merged(program, block, starts)
        low = block.first
        for at in range(block.first, block.end):
            if at in starts:
                if low < at and isinstance(place, _PLACES):
                    found.append(((low, at), place))
                low, place = at, starts[at]
        if low < block.end and isinstance(place, _PLACES):
            found.append(((low, block.end), place))
    return found


def _merged(program: Program, block: _Block, starts: Mapping[int, Place | None]) -> Place | None:
    """The register that all branches into a block have set, if the block copies it to the variable's own."""
    for at in range(block.first, block.end):
        instruction, own = program.function.instructions[at], starts.get(at + 1)
        if instruction.opcode == "mov" and isinstance(own, InRegister) and len(instruction.operands) == 2:
            to, source = instruction.operands
            if isinstance(to, Register) and to.name == own.name and isinstance(source, Register):
                return InRegister(source.name)
    return None
