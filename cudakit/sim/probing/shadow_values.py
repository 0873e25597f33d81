"""The shadows of the registers and memory of running kernels, and the accuracy of their lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.report import SourcePlace
from cudakit.sim.probing.losses import OVERFLOWED, LineAccuracy, StoredErrors, number_of
from cudakit.sim.probing.operands import FORMATS
from cudakit.sim.probing.registers import Key, LaneValues, States, key_of, located
from cudakit.sim.probing.shadow_memory import Shadow, ShadowMemory
from cudakit.sim.ptx.ir import Instruction

# a register may hold floats of these (first byte, width), by its own width
PARTS: Mapping[int, tuple[tuple[int, int], ...]] = {
    1: (),
    2: ((0, 2),),
    4: ((0, 4), (0, 2), (2, 2)),
    8: ((0, 8), (0, 4), (4, 4), (0, 2), (2, 2), (4, 2), (6, 2)),
}
Parts = dict[tuple[int, int], Shadow]


def part_of(offset: int, width: int) -> int:
    """The number of a part of a register or parameter."""
    return offset * 16 + width


class ShadowRegisters:
    """The shadows of the registers of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.values = LaneValues(batch.geometry.lanes, np.float64, np.nan)
        self.codes = LaneValues(batch.geometry.lanes, np.int32, 0)
        self.units = LaneValues(batch.geometry.lanes, np.int8, -99)

    @property
    def tables(self) -> list[LaneValues]:
        return [self.values, self.codes, self.units]

    def read(self, f: Fragment, key: Key) -> Shadow | None:
        """The shadow with a key; None if no lane has one."""
        values, codes, units = (table.read(f, key) for table in self.tables)
        if values is None or units is None:
            return None
        return Shadow(values, np.zeros(f.lanes.count, np.int32) if codes is None else codes, int(units.max()))

    def write(self, f: Fragment, key: Key, shadow: Shadow | None, held: Array | None) -> None:
        """Set the shadow with a key; None: remove it."""
        if shadow is None:
            self.values.write(f, key, None, held)
            return
        self.values.write(f, key, shadow.values, held)
        self.codes.write(f, key, shadow.codes if shadow.codes.any() else None, held)
        self.units.write(f, key, np.array(shadow.unit, np.int8), held)


class Shadows:
    """The shadows and the accuracy of lines of all launches that a probe follows."""

    def __init__(self) -> None:
        self.memory = ShadowMemory()
        self.registers: States[ShadowRegisters] = States(self._started)
        # by the id of the run: the shared and local memory of its batch
        self._own: dict[int, list[Any]] = {}
        #: the lines by code - 1
        self.all_lines: list[LineAccuracy] = []
        self.stores: dict[int, StoredErrors] = {}
        #: the names of the instructions at which the shadow restarts
        self.restarts: dict[str, None] = {}
        self._codes: dict[tuple[str, str, int], int] = {}
        self._known: dict[int, tuple[Instruction, int]] = {}

    def code(self, f: Fragment, instruction: Instruction) -> int:
        """The code of an instruction's source line."""
        known = self._known.get(id(instruction))
        if known is not None and known[0] is instruction:
            return known[1]
        places = f.batch.run.place(located(f, instruction))
        place = places[0] if places else SourcePlace("<ptx>", instruction.line, instruction.text)
        kernel = f.batch.run.config.kernel
        key = kernel, place.file, place.line
        if key not in self._codes:
            self.all_lines.append(LineAccuracy(kernel, place))
            self._codes[key] = len(self.all_lines)
        if len(f.frames) == 1:  # the line may depend on the caller
            self._known[id(instruction)] = instruction, self._codes[key]
        return self._codes[key]

    @property
    def lines(self) -> list[LineAccuracy]:
        """The lines with float operations."""
        return [line for line in self.all_lines if line.operations]

    def line(self, code: int) -> LineAccuracy:
        return self.all_lines[number_of(code) - 1]

    def _started(self, batch: Batch) -> ShadowRegisters:
        self._end_batch(batch.run)
        self._own[id(batch.run)] = [batch.shared, batch.local]
        return ShadowRegisters(batch)

    def _end_batch(self, run: Any) -> None:
        self.memory.forget(self._own.pop(id(run), []))

    def end(self, run: Any) -> None:
        """Forget the registers, the shared and the local memory of a launch."""
        self.registers.end(run)
        self._end_batch(run)

    # ---- registers ----

    def get(self, f: Fragment, slot: int, part: tuple[int, int] = (0, 4)) -> Shadow | None:
        """The shadow of a part of a register; None if no lane has one."""
        found = self.registers.of(f).read(f, key_of(f, slot, part_of(*part)))
        if found is None and part == (0, 4):
            # a bfloat16 in the upper half is the same number as a float
            upper = self.get(f, slot, (2, 2))
            return upper if upper is not None and upper.unit == FORMATS["bf16"].unit else None
        return found

    def parts(self, f: Fragment, slot: int, width: int) -> Parts:
        """The shadows in a register of a width in bytes."""
        state, found = self.registers.of(f), {}
        for part in PARTS[width]:
            shadow = state.read(f, key_of(f, slot, part_of(*part)))
            if shadow is not None:
                found[part] = shadow
        return found

    def put(self, f: Fragment, slot: int, width: int, parts: Parts, held: Array | None = None) -> None:
        """Set the shadows in a register; those of its other parts are removed."""
        state = self.registers.of(f)
        for part in PARTS[width]:
            state.write(f, key_of(f, slot, part_of(*part)), parts.get(part), held)

    # ---- accuracy ----

    def stored(self, f: Fragment, instruction: Instruction, actual: Array, shadow: Shadow) -> None:
        """Note values that lanes store to global memory."""
        known = ~np.isnan(shadow.values)
        if known.any():
            store = self.stores.setdefault(self.code(f, instruction), StoredErrors())
            worst_by_code = store.add(actual[known], shadow.values[known], shadow.codes[known], shadow.unit)
            for code, worst in worst_by_code.items():
                line = self.line(code)
                line.stored_error = max(line.stored_error, worst)

    def losses(self) -> list[LineAccuracy]:
        """The lines that lose accuracy, the worst first."""
        found: dict[int, LineAccuracy] = {}
        for store in self.stores.values():
            for code in store.bits:
                line, number = self.line(code), number_of(code)
                overflowed = store.overflowed(number)
                if overflowed or store.is_loss(number, line.stagnates):
                    line.explain(overflowed=overflowed)
                    found[number] = line
        return sorted(found.values(), key=lambda line: -line.stored_error)


def merged(first: Array, second: Array) -> Array:
    """One code of two for each value: that of an infinity, if one is."""
    return np.where((first == 0) | (second >= OVERFLOWED), second, first)
