"""Values that accompany the registers of a running kernel: one per lane of the batch, by register.

They are kept per lane of the batch, not per fragment, so that they stay correct if fragments are split and united.
Arrays are never written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import CALL, INDIRECT, Program
from cudakit.sim.ptx.ir import Instruction

# the depth of the call, the function, the slot, and the part of the register or the byte of a parameter
Key = tuple[int, str, int, int]


class LaneValues:
    """Values by key, one per lane of a batch; ``absent`` stands for no value."""

    def __init__(self, lanes: int, dtype: Any, absent: Any) -> None:
        self.lanes, self.dtype, self.absent = lanes, np.dtype(dtype), absent
        self.tables: dict[Key, Array] = {}

    def read(self, f: Fragment, key: Key) -> Array | None:
        """The values of a fragment's lanes; None if no lane of the batch has one."""
        table = self.tables.get(key)
        return None if table is None else f.lanes.pick(table)

    def write(self, f: Fragment, key: Key, values: Array | None, held: Array | None = None) -> None:
        """Set the values of a fragment's lanes, of those in the mask ``held`` only; None: remove them."""
        table, whole = self.tables.get(key), f.lanes.index is None and held is None
        if values is None and (table is None or whole):
            self.tables.pop(key, None)
            return
        if whole and values is not None:
            self.tables[key] = np.broadcast_to(values, (self.lanes,))
            return
        table = np.full(self.lanes, self.absent, self.dtype) if table is None else table.copy()
        new = np.broadcast_to(np.asarray(self.absent if values is None else values, self.dtype), (f.lanes.count,))
        if held is None:
            table[f.lanes.lanes] = new
        else:
            table[f.lanes.lanes[held]] = new[held]
        self.tables[key] = table

    def copy(self, f: Fragment, source: tuple[int, str, int], target: tuple[int, str, int]) -> None:
        """Copy all parts of a register to another one."""
        for key in [key for key in self.tables if key[:3] == target]:
            self.write(f, key, None)
        for key in [key for key in self.tables if key[:3] == source]:
            self.write(f, (*target, key[3]), self.read(f, key))


def key_of(f: Fragment, slot: int, part: int = 0) -> Key:
    """The key of a register of the function that a fragment executes."""
    return len(f.frames), f.program.name, slot, part


def located(f: Fragment, instruction: Instruction) -> Instruction:
    """The instruction, or the call of the function that contains it if it has no source line: functions of the math
    library are without lines in kernels compiled for a debugger."""
    depth = len(f.frames) - 1
    while depth > 0 and not f.batch.run.place(instruction):
        caller = f.frames[depth - 1].program
        instruction = caller.blocks[f.frames[depth].resume - 1].end
        depth -= 1
    return instruction


def guarded(f: Fragment, r: Any, guard: tuple[int, bool] | None) -> Array | None:
    """The lanes of a fragment for which an instruction's guard holds, as a mask; None if it has no guard."""
    if guard is None:
        return None
    held: Array = np.broadcast_to(r[guard[0]] != guard[1], (f.lanes.count,))
    return held


State = TypeVar("State")


class States(Generic[State]):
    """The state of a probe for the batch that a launch runs; ``make`` creates that of a new batch."""

    def __init__(self, make: Callable[[Batch], State]) -> None:
        self._make = make
        # by the id of the run: the batch, which keeps the run alive, and its state
        self._known: dict[int, tuple[Batch, State]] = {}

    def of(self, f: Fragment) -> State:
        found = self._known.get(id(f.batch.run))
        if found is None or found[0] is not f.batch:
            found = self._known[id(f.batch.run)] = f.batch, self._make(f.batch)
        return found[1]

    def end(self, run: Any) -> None:
        """Forget a launch."""
        self._known.pop(id(run), None)


class Hook:
    """A hook with an ``after``. The methods of subclasses are called with the fragment."""

    ends = True

    def __init__(self, program: Program, instruction: Instruction) -> None:
        self.program, self.instruction = program, instruction
        self.guard: tuple[int, bool] | None = None
        if instruction.guard is not None:
            self.guard = program.slots[instruction.guard[0].name], instruction.guard[1]
        self.held: Array | None = None

    def __call__(self, f: Fragment, r: Any) -> None:
        self.held = guarded(f, r, self.guard)

    def after(self, f: Fragment) -> None: ...


class CallHook(Hook):
    """Passes the values of parameters to the callee, and those of results to the caller. ``tables`` returns the values
    of a fragment's batch."""

    ends = False

    def __init__(
        self, program: Program, instruction: Instruction, tables: Callable[[Fragment], list[LaneValues]]
    ) -> None:
        super().__init__(program, instruction)
        self.tables = tables

    def __call__(self, f: Fragment, r: Any) -> None:
        depth, name = len(f.frames), f.program.name
        moves: list[tuple[tuple[int, str, int], tuple[int, str, int]]] = []
        if self.instruction.opcode == "call":
            block = f.program.blocks[f.block]
            callees = [block.callee] if block.kind == CALL else []
            callees += list(block.pointers.callees.values()) if block.kind == INDIRECT else []
            for callee in callees:
                if callee is not None:
                    pairs = zip(block.arguments, callee.params, strict=False)
                    moves += [((depth, name, own), (depth + 1, callee.name, theirs)) for own, theirs in pairs]
        elif depth > 1:
            caller = f.frames[-2].program
            results = caller.blocks[f.frames[-1].resume - 1].results
            pairs = zip(f.program.returns, results, strict=False)
            moves += [((depth, name, own), (depth - 1, caller.name, theirs)) for own, theirs in pairs]
        for table in self.tables(f):
            for source, target in moves:
                table.copy(f, source, target)
