"""The places of variables along the control flow.

The ranges in DWARF follow the order of the PTX, in which a block can come after one that does not lead to it: a range
ends at the next instruction in the text that writes its register. So only the start of a range counts, as an assignment
of a place, and it is followed along the branches. The value may be in several registers: a place is kept with its
copies, until an instruction writes to it, and where branches meet, those remain that all of them have. A variable with
one register for its whole function has a value once an instruction has written that register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudakit.debugger.dwarf import (
    Constant,
    DebugFunction,
    DebugVariable,
    InRegister,
    Place,
    instruction_numbers,
)
from cudakit.sim.lockstep.program import Program, follows, writes_of
from cudakit.sim.ptx.ir import Immediate, Instruction, Register

#: The places that hold a variable's value, the oldest first; None before the variable is assigned.
Places = tuple[Place, ...] | None


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


def _starts(program: Program, variable: DebugVariable) -> dict[int, Place] | None:
    """The numbers of the instructions before which a variable gets a place; None to leave it as it is."""
    starts = {span[0]: place for span, place in variable.places if span is not None}
    place = variable.places[0][1] if len(variable.places) == 1 else None
    if starts or not isinstance(place, InRegister):
        return starts or None
    instructions = enumerate(program.function.instructions)
    return {n + 1: place for n, i in instructions if any(register.name == place.name for register in writes_of(i))}


def _reached(
    program: Program, blocks: list[_Block], starts: Mapping[int, Place]
) -> list[tuple[tuple[int, int] | None, Place]]:
    """The place before each instruction, as ranges."""
    instructions = program.function.instructions
    enter: dict[int, Places] = {0: None}
    todo = [0]
    while todo:
        number = todo.pop()
        places = enter[number]
        for at in range(blocks[number].first, blocks[number].end):
            places = _after(instructions[at], _assigned(places, at, starts))
        for after in blocks[number].after:
            new = _met(enter[after], places) if after in enter else places
            if after not in enter or new != enter[after]:
                enter[after] = new
                todo.append(after)
    found: list[tuple[tuple[int, int] | None, Place]] = []
    for number, places in sorted(enter.items()):
        low, held = blocks[number].first, None
        for at in range(low, blocks[number].end):
            places = _assigned(places, at, starts)
            first = places[0] if places else None
            if first != held:
                if held is not None:
                    found.append(((low, at), held))
                low, held = at, first
            places = _after(instructions[at], places)
        if held is not None:
            found.append(((low, blocks[number].end), held))
    return found


def _assigned(places: Places, at: int, starts: Mapping[int, Place]) -> Places:
    """The places before an instruction, given those after the one before it."""
    if at not in starts:
        return places
    return places if places and starts[at] in places else (starts[at],)


def _after(instruction: Instruction, places: Places) -> Places:
    """The places after an instruction: without the registers that it writes, but with the copy that it makes."""
    if not places:
        return places
    written = [InRegister(register.name) for register in writes_of(instruction)]
    copies = _copies(instruction, places)
    left = tuple(place for place in places if place not in written)
    return (*left, *written) if copies else left


def _copies(instruction: Instruction, places: tuple[Place, ...]) -> bool:
    """Whether an instruction copies the value at the places to the register that it writes."""
    if instruction.opcode != "mov" or instruction.guard is not None or len(instruction.operands) != 2:
        return False
    source = instruction.operands[1]
    if isinstance(source, Register):
        return InRegister(source.name) in places
    return isinstance(source, Immediate) and any(
        isinstance(place, Constant) and place.value == source.bits for place in places
    )


def _met(known: Places, more: Places) -> Places:
    """The places at which two branches meet. The value of a branch that has not assigned the variable is undefined."""
    if known is None or more is None:
        return more if known is None else known
    return tuple(place for place in known if place in more)
