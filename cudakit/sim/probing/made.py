"""Values that went wrong: the instruction that made each, its operands, and the report once the value is used.

A value is not reported when it is made: compilers expand functions of the math library into instructions of which some
make infinities or NaN in lanes that then select another value, and lanes past the end of an array compute values that
are not stored. Each value has a code, which is followed through registers and memory until it matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.probing.registers import LaneValues, States, key_of, located
from cudakit.sim.ptx.ir import Instruction, Operand, Register

# the events of one instruction that are kept apart
_KEPT = 64


class Event(NamedTuple):
    """Lanes of a batch in which an instruction made a value that is wrong. ``text`` is the operation with its operands
    and result, per lane of ``lanes`` as ``text(n)``. ``sticky``: the value stays wrong if it becomes finite."""

    kind: str
    instruction: Instruction
    batch: Batch
    lanes: Array
    text: Any
    sticky: bool


class Codes:
    """The codes of the values of a batch: by register, and by byte of shared and local memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.registers = LaneValues(batch.geometry.lanes, np.int32, 0)
        # by memory: one code for each 2 bytes
        self._memory: dict[int, Array] = {}
        # by block: the code of a value that a matrix instruction has stored to shared memory
        self._matrices = np.zeros(batch.geometry.blocks, np.int32)

    def store(self, home: Any, offsets: Array, size: int, codes: Array | None) -> None:
        """Set the codes of elements of ``size`` bytes; None: all 0."""
        table = self._memory.get(id(home))
        if table is None:
            if codes is None or not codes.any():
                return
            table = self._memory[id(home)] = np.zeros(len(home.bytes) // 2 + 1, np.int32)
        places = (offsets >> 1)[:, None] + np.arange(max(size >> 1, 1))
        table[places] = 0 if codes is None else codes[:, None]

    def store_matrix(self, f: Fragment, codes: Array) -> None:
        """Note values that a matrix instruction stores to shared memory, without their places."""
        np.maximum.at(self._matrices, f.lanes.block, codes)

    def in_shared(self, f: Fragment) -> Array:
        """A code of a value in the shared memory of each lane's block; 0 if there is none."""
        found = self._matrices
        table = self._memory.get(id(f.batch.shared))
        if table is not None and f.batch.shared is not None:
            rows = table[: len(f.batch.shared.bytes) // 2].reshape(len(found), -1)
            found = np.maximum(found, rows.max(axis=1))
        return found[f.lanes.block]

    @property
    def any_matrix(self) -> bool:
        """Whether a matrix instruction has stored a value with a code."""
        return bool(self._matrices.any())

    @property
    def any_stored(self) -> bool:
        """Whether memory may have codes."""
        return bool(self._memory) or self.any_matrix

    def load(self, home: Any, offsets: Array, size: int) -> Array | None:
        """The codes of elements of ``size`` bytes; None if all are 0."""
        table = self._memory.get(id(home))
        if table is None:
            return None
        found: Array = table[(offsets >> 1)[:, None] + np.arange(max(size >> 1, 1))].max(axis=1)
        return found if found.any() else None


class Events:
    """The events of a launch by code, from 1."""

    def __init__(self) -> None:
        self._all: list[Event | None] = [None]
        self._codes: dict[int, list[int]] = {}
        #: by code, whether the value stays wrong if it becomes finite
        self.sticky = np.zeros(1, np.bool_)

    def add(self, event: Event) -> int:
        """Add an event; returns its code."""
        known = self._codes.setdefault(id(event.instruction), [])
        if len(known) >= _KEPT:
            return known[-1]
        known.append(len(self._all))
        self._all.append(event)
        self.sticky = np.append(self.sticky, event.sticky)
        return known[-1]

    def kind(self, code: int) -> str:
        event = self._all[code]
        return "" if event is None else event.kind

    def fail(self, f: Fragment, use: Instruction, codes: Array, does: str) -> NoReturn:
        """Stop the kernel: lanes of the fragment use values with these codes (0: none). The report is about the value
        that was made first."""
        code = int(codes[codes > 0].min())
        event = self._all[code]
        if event is None:
            raise RuntimeError(f"no value has the code {code}")
        using = f.lanes.lanes[np.flatnonzero(codes == code)]
        mine = using[np.isin(using, event.lanes)] if f.batch is event.batch else using[:0]
        threads = event.batch.geometry.threads
        if not len(mine):
            mine = event.lanes[event.lanes // threads == using[0] // threads]
        lanes = mine if len(mine) else event.lanes
        place, made = f.batch.run.place(use), f.batch.run.place(event.instruction)
        same = bool(place) and bool(made) and (place[0].file, place[0].line) == (made[0].file, made[0].line)
        where = "" if same or not place else f" at {place[0].file}:{place[0].line}"
        number = int(np.flatnonzero(event.lanes == lanes[0])[0])
        maker = Fragment(event.batch, LaneSet(event.batch.geometry, lanes, len(lanes)), f.frames, f.block, f.epoch)
        maker.fail(
            event.instruction,
            event.kind,
            f"{event.text(number)}; the value {does}{where}",
            0,
            np.arange(len(lanes)),
        )


class Trace:
    """The codes and events of the launches that a probe follows; ``kinds`` are those of its traps."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)
        self.states: States[Codes] = States(Codes)
        self._events: dict[int, Events] = {}

    def begin(self, run: Any) -> None:
        self._events[id(run)] = Events()

    def end(self, run: Any) -> None:
        self.states.end(run)
        self._events.pop(id(run), None)

    def events(self, f: Fragment) -> Events:
        """The events of the launch."""
        return self._events[id(f.batch.run)]

    def codes(self, f: Fragment, slot: int) -> Array | None:
        """The codes of a register, per lane of the fragment; None if all are 0."""
        return self.states.of(f).registers.read(f, key_of(f, slot))

    @staticmethod
    def program_slot(f: Fragment, operand: Operand | None) -> int | None:
        """The slot of a register; None for another operand."""
        return f.program.slots[operand.name] if isinstance(operand, Register) else None

    def put(self, f: Fragment, slot: int, codes: Array | None, held: Array | None = None) -> None:
        """Set the codes of a register."""
        if codes is not None and not codes.any():
            codes = None
        self.states.of(f).registers.write(f, key_of(f, slot), codes, held)

    def note(self, f: Fragment, instruction: Instruction, kind: str, made: Array, text: Any, sticky: bool) -> int:
        """Note lanes (a mask of the fragment) in which an instruction made a value; returns its code."""
        return self.events(f).add(Event(kind, located(f, instruction), f.batch, f.lanes.lanes[made], text, sticky))
