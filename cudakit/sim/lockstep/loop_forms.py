"""The registers that decide how long a loop of a function runs, as far as its PTX shows.

- The condition: the registers on which the loop's exits depend. If neither memory nor other lanes decide too, lanes
  that begin two iterations with the same values in them never leave the loop.
- The count: a register that changes by a constant in each iteration until it reaches a bound. Such a loop ends.

A loop is the set of blocks from which a jump back to its first block, the head, can be reached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.program import (
    BRANCH,
    SWITCH,
    BasicBlock,
    Program,
    follows,
    reads_of,
    writes_of,
)
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Register, Special
from cudakit.sim.ptx.opcodes import row_of

# special registers whose values do not change while a thread runs
_CONSTANT = ("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%gridid", "%lanemask")
# instructions that may end the kernel
_STOPS = ("call", "trap", "brkpt")
# the most iterations that a count may have left
_MOST_LEFT = 1 << 26


class Count(NamedTuple):
    """A register, at the head of the loop, that grows by ``step`` per iteration until it reaches a bound: a number or
    a register. ``kind`` is the type as which they are compared."""

    slot: int
    step: int
    bound: int | str
    kind: str


class LoopForm:
    """A loop. ``condition``: the slots that decide at the head whether lanes stay in it; None if others decide too.
    ``addresses``: the slots from which it computes the addresses of its accesses."""

    def __init__(self, program: Program, head: int) -> None:
        self.head = head
        self.blocks = _body(program.blocks, head)
        parts = [program.blocks[index] for index in sorted(self.blocks)]
        self._slots = program.slots
        self._instructions = [one for part in parts for one in part.instructions]
        # the blocks that each iteration runs exactly once
        self._always = {index for index in self.blocks if not _avoidable(program.blocks, self.blocks, head, index)}
        self._always -= _repeated(program.blocks, self.blocks, head)
        self._where = {id(one): index for index in self.blocks for one in program.blocks[index].instructions}
        self._exits = [index for index in sorted(self.blocks) if not set(follows(program.blocks[index])) <= self.blocks]
        live = frozenset(program.live[head])
        names = self._deciding(program.blocks)
        self.condition: tuple[int, ...] | None = None
        if names is not None:
            slots = {program.slots[name] for name in names if name in program.slots}
            self.condition = tuple(sorted(slots & live))
        accesses = [one for one in self._instructions if row_of(one).memory is not None]
        names = self._computed({one.name for access in accesses for one in _registers(_bases(access))})
        self.addresses = tuple(sorted({program.slots[name] for name in names if name in program.slots} & live))
        self.count = next((found for index in self._exits if (found := self._counted(program, index, live))), None)

    def _deciding(self, blocks: list[BasicBlock]) -> set[str] | None:
        """The names of the registers on which the exits depend; None if memory or other lanes decide too."""
        if any(one.opcode in _STOPS for one in self._instructions):
            return None
        found = self._closure(blocks, self._exits)
        if found is not None and (self._skipped(found) or not self._always.issuperset(self._exits)):
            # which blocks run decides too
            found = self._closure(blocks, [i for i in self.blocks if blocks[i].kind in (BRANCH, SWITCH)])
        return found

    def _closure(self, blocks: list[BasicBlock], branches: Iterable[int]) -> set[str] | None:
        """The registers from which the conditions of some branches are computed; None if they are not pure values."""
        tests = [reads_of(blocks[index].instructions[-1]) for index in branches]
        found = self._computed({one.name for test in tests for one in _registers(test)})
        pure = all(_is_pure(one) for one in self._instructions if any(r.name in found for r in writes_of(one)))
        return found if pure else None

    def _computed(self, names: set[str]) -> set[str]:
        """Registers, and those from which the loop computes them."""
        found, known = set(names), -1
        while known < len(found):
            known = len(found)
            for instruction in self._instructions:
                if any(register.name in found for register in writes_of(instruction)):
                    found.update(one.name for one in _registers(reads_of(instruction)))
        return found

    def _skipped(self, names: Collection[str]) -> bool:
        """Whether an iteration may leave out, or repeat, an instruction that writes one of these registers."""
        return any(
            self._where[id(one)] not in self._always
            for one in self._instructions
            if any(register.name in names for register in writes_of(one))
        )

    def _counted(self, program: Program, index: int, live: Collection[int]) -> Count | None:
        """The count that decides an exit, which is at the end of a block that each iteration runs once."""
        block = program.blocks[index]
        if block.kind != BRANCH or index not in self._always:
            return None
        tests = _registers(reads_of(block.instructions[-1]))
        compare = self._only_write(tests[0].name) if len(tests) == 1 else None
        if compare is None or compare.opcode != "setp" or len(compare.operands) != 3:
            return None
        kind = compare.modifiers[-1]
        if len(compare.modifiers) != 2 or kind[0] not in "usb" or kind[1:] not in ("32", "64"):
            return None
        for one, other in ((1, 2), (2, 1)):
            counter, bound = compare.operands[one], compare.operands[other]
            if not isinstance(counter, Register):
                continue
            limit: int | str | None = None
            if isinstance(bound, Immediate) and isinstance(bound.bits, int):
                limit = bound.bits
            elif isinstance(bound, Register) and not self._writes(bound.name):
                limit = bound.name
            chain = self._steps(counter)
            if limit is None or chain is None:
                continue
            slots = [program.slots[name] for name in chain[0] if program.slots.get(name) in live]
            if slots:
                return Count(slots[0], chain[1], limit, kind)
        return None

    def _steps(self, counter: Register) -> tuple[list[str], int] | None:
        """The registers that hold a counter in turn, and its step; None if it does not grow by a constant."""
        names, step, name = [counter.name], 0, counter.name
        while True:
            write = self._only_write(name)
            if write is None or write.guard is not None:
                return None
            first = write.operands[1]
            if not isinstance(first, Register):
                return None
            if write.opcode in ("add", "sub") and isinstance(write.operands[2], Immediate):
                if "sat" in write.modifiers:
                    return None
                step += write.operands[2].bits if write.opcode == "add" else -write.operands[2].bits
            elif write.opcode != "mov":
                return None
            name = first.name
            if name == counter.name:
                return (names, step) if step else None
            if name in names:
                return None
            names.append(name)

    def _writes(self, name: str) -> list[Instruction]:
        return [one for one in self._instructions if any(register.name == name for register in writes_of(one))]

    def _only_write(self, name: str) -> Instruction | None:
        """The instruction that writes a register once in each iteration, if there is only one."""
        found = self._writes(name)
        return found[0] if len(found) == 1 and self._where[id(found[0])] in self._always else None

    def values(self, registers: Registers, addresses: bool) -> tuple[bytes, ...] | None:
        """The values that decide whether lanes at the head stay in the loop; None if others decide too. ``addresses``:
        also those of the addresses that it accesses."""
        if self.condition is None:
            return None
        found = [registers[slot] for slot in (*self.condition, *(self.addresses if addresses else ()))]
        return tuple(value.tobytes() for value in found if value is not None)

    def will_end(self, registers: Registers) -> bool:
        """Whether the loop ends by its count within some million iterations, for all lanes."""
        count = self.count
        if count is None or registers[count.slot] is None:
            return False
        bound: Any = count.bound
        if isinstance(bound, str):
            bound = registers[self._slots[bound]]
            if bound is None:
                return False
        left = (_numbers(bound, count.kind) - _numbers(registers[count.slot], count.kind)) / count.step
        return bool((left > -2).all() and (left < _MOST_LEFT).all())


def _numbers(value: Any, kind: str) -> Any:
    """Values of an integer type as floats: they may be off by a rounding, which does not matter."""
    if isinstance(value, int):
        return np.float64(value)
    signed = "u" if kind[0] == "u" else "i"
    return np.asarray(value).view(f"{signed}{np.asarray(value).dtype.itemsize}").astype(np.float64)


def _body(blocks: list[BasicBlock], head: int) -> frozenset[int]:
    """The blocks of the loop with a head: those from which a jump back to it is reached without passing it."""
    before: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        for after in follows(block):
            before.setdefault(after, []).append(index)
    found = {head}
    todo = [index for index in before.get(head, ()) if index >= head]
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            todo += before.get(index, ())
    return frozenset(found)


def _repeated(blocks: list[BasicBlock], inside: Collection[int], head: int) -> set[int]:
    """The blocks of the loops within a loop."""
    heads = {after for index in inside for after in follows(blocks[index]) if after <= index and after in inside}
    return {index for other in heads - {head} for index in _body(blocks, other) if index in inside}


def _avoidable(blocks: list[BasicBlock], inside: Collection[int], head: int, index: int) -> bool:
    """Whether an iteration may leave out a block of the loop."""
    if index == head:
        return False
    seen, todo = {head}, [head]
    while todo:
        for after in follows(blocks[todo.pop()]):
            if after == head:
                return True
            if after in inside and after != index and after not in seen:
                seen.add(after)
                todo.append(after)
    return False


def _bases(access: Instruction) -> list[Any]:
    """The registers of an instruction's addresses."""
    return [operand.base for operand in access.operands if isinstance(operand, Address)]


def _registers(operands: Iterable[Any]) -> list[Register]:
    return [operand for operand in operands if isinstance(operand, Register)]


def _is_pure(instruction: Instruction) -> bool:
    """Whether an instruction computes its result from registers and constants only."""
    row = row_of(instruction)
    if row.memory is not None:
        return "param" in instruction.modifiers and instruction.opcode == "ld"
    if row.mask is not None or row.whole_warp or row.ends is not None or row.spins or row.mix in ("warp", "other"):
        return False
    specials = [operand for operand in instruction.operands if isinstance(operand, Special)]
    return all(special.name.partition(".")[0].startswith(_CONSTANT) for special in specials)


def loops_around(program: Program, index: int) -> list[LoopForm]:
    """The loops that contain a block, from the outermost."""
    heads = {after for at, block in enumerate(program.blocks) for after in follows(block) if after <= at}
    found = [form_of(program, head) for head in heads if head <= index]
    return sorted((form for form in found if index in form.blocks), key=lambda form: -len(form.blocks))


def form_of(program: Program, head: int) -> LoopForm:
    """The loop with a head, a block of a function."""
    found: LoopForm | None = program.loops.get(head)
    if found is None:
        found = program.loops[head] = LoopForm(program, head)
    return found
