"""One product of a warpgroup (wgmma.mma_async): its form, its operands, and its result once it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.warpgroup_operands import (
    ROWS,
    WARPS,
    Units,
    gather,
    places,
    read,
    rows_of,
    shared_of,
    to_matrix,
    to_registers,
    units_of,
)
from cudakit.sim.ptx.ir import Instruction

# an entry of ``RegisterTable.awaits`` is the product's number times this, plus the number of the register, plus 1
ENTRIES = 256


class TrackedRegisters:
    """The registers of a function that wgmma instructions use, and those that are moved to or from them: ``rows`` maps
    their slots to rows of a table. ``names`` are their names, ``uses`` the instructions that access them."""

    def __init__(self, slots: Iterable[int], names: dict[int, str]) -> None:
        self.slots = tuple(sorted(slots))
        self.rows = {slot: row for row, slot in enumerate(self.slots)}
        self.names = [names[slot] for slot in self.slots]
        self.uses: list[Instruction] = []

    def use(self, instruction: Instruction) -> int:
        """The number of an instruction that accesses the registers, from 1."""
        self.uses.append(instruction)
        return len(self.uses)


class RegisterTable:
    """The state of a function's tracked registers, by row and warp of the batch.

    ``awaits``: the product that will write the register, and its number among the product's accumulators; 0: none.
    ``read``: the number of the product that reads the register as a part of A; 0: none. ``accessed``: the number of the
    instruction that has accessed the register since the warp's last wgmma.fence; 0: none.
    """

    def __init__(self, registers: TrackedRegisters, warps: int) -> None:
        shape = len(registers.slots), warps
        self.registers = registers
        self.awaits = np.zeros(shape, np.int64)
        self.read = np.zeros(shape, np.int64)
        self.accessed = np.zeros(shape, np.int32)


class ProductForm:
    """One wgmma.mma_async instruction.

    ``shape`` is m64nNkK, with ``n``. ``size`` is the bytes of an element in shared memory (1 for bits, which
    are in bytes of 8), ``half`` whether D is float16. ``k_major``: the major of A and of B. ``fragments`` returns the
    patterns of A in registers as (16, k, warps); None: A is in shared memory. ``multiply`` computes D from A, B and C
    (or None). ``d`` and ``a`` are slots of registers, ``d_rows`` and ``a_rows`` the rows of the table.
    """

    def __init__(
        self,
        site: Site,
        shape: str,
        n: int,
        size: int,
        half: bool,
        k_major: tuple[bool, bool],
        fragments: Callable[[LaneSet, tuple[Array, ...]], Array] | None,
        multiply: Callable[[Array, Array, Array | None], Array],
    ) -> None:
        self.site = site
        self.shape = shape
        self.n = n
        self.size = size
        self.half = half
        self.k_major = k_major
        self.fragments = fragments
        self.multiply = multiply
        self.registers = TrackedRegisters((), {})
        self.d: tuple[int, ...] = ()
        self.a: tuple[int, ...] = ()
        self.d_rows = self.a_rows = np.zeros(0, np.int64)

    def tracked(self, registers: TrackedRegisters) -> None:
        """Take the function's tracked registers, once they are known."""
        self.registers = registers
        self.d_rows = np.array([registers.rows[slot] for slot in self.d], np.int64)
        self.a_rows = np.array([registers.rows[slot] for slot in self.a], np.int64)


class Product:
    """A product in flight: the operands of the warps that have issued it together. Arrays are by these warps.

    ``before`` are the entries of the accumulators at the issue, (registers, warps): 0 if the register's value ``c`` is
    read, otherwise another product's result.
    """

    def __init__(
        self,
        number: int,
        form: ProductForm,
        lanes: LaneSet,
        a: tuple[Array, ...],
        bits: tuple[Array, Array],
        adds: Array,
        c: tuple[Array, ...],
    ) -> None:
        self.number = number
        self.form = form
        self.lanes = lanes
        self.warps = lanes.warps
        self.a, self.c = a, c
        self.a_bits, self.b_bits = bits
        self.adds = adds
        self.before: Array | None = None
        self.earlier: dict[int, Product] = {}
        # the number of the group that each warp's commit puts it in, and of fences and waits of the warp so far
        self.group = self.fences = self.waits = np.zeros(lanes.warp_count, np.int64)
        self.computed = np.zeros(lanes.warp_count, np.bool_)
        self.done = np.zeros(lanes.warp_count, np.bool_)
        # D, (warps, 16, n)
        self.result: Array | None = None
        self.tokens: list[Any] = []

    def positions(self, warps: Array) -> Array:
        """The positions of some of the product's warps."""
        return np.searchsorted(self.warps, warps)

    def units(self, batch: Batch, chosen: Array) -> Units:
        """The warps at some positions, in units."""
        if len(chosen) < len(self.warps):
            return units_of(batch, self.warps[chosen])
        found: Units | None = self.lanes.cache.get("units")
        if found is None:
            found = self.lanes.cache["units"] = units_of(batch, self.warps)
        return found

    def compute(self, batch: Batch, chosen: Array) -> None:
        """Compute the rows of D of the warps at some positions, whose earlier products are computed."""
        form, store = self.form, shared_of(batch)
        units = self.units(batch, chosen)
        if form.fragments is None:
            a = read(store, self.a_places(batch, chosen), form.size, form.k_major[0])
        else:
            fragments = form.fragments(self.lanes, self.a).transpose(2, 0, 1)[chosen]
            a = fragments.reshape(len(units.firsts), units.rows, -1)
        b = read(store, self.b_places(batch, chosen), form.size, form.k_major[1])
        c = self._accumulators(chosen)
        if c is not None:
            c = c.reshape(len(units.firsts), units.rows, -1)
        d = form.multiply(a, b, c).reshape(len(chosen), -1, form.n)
        if len(chosen) == len(self.warps):
            self.result = d
        else:
            if self.result is None:
                self.result = np.zeros((len(self.warps), *d.shape[1:]), d.dtype)
            self.result[chosen] = d
        self.computed[chosen] = True

    def a_places(self, batch: Batch, chosen: Array) -> Array:
        """The chunks of A in shared memory of the warps at some positions."""
        form, units = self.form, self.units(batch, chosen)
        bits = self.a_bits[chosen][units.firsts]
        where = places(shared_of(batch), bits, units.blocks, WARPS * ROWS, form.size, form.k_major[0])
        return rows_of(where, units, form.size, form.k_major[0])

    def b_places(self, batch: Batch, chosen: Array) -> Array:
        """The chunks of B in shared memory of the warps at some positions."""
        form, units = self.form, self.units(batch, chosen)
        bits = self.b_bits[chosen][units.firsts]
        return places(shared_of(batch), bits, units.blocks, form.n, form.size, form.k_major[1])

    def _accumulators(self, chosen: Array) -> Array | None:
        """C of the warps at some positions, (warps, 16, n); None if it is not added."""
        adds = self.adds[chosen]
        if not adds.any():
            return None
        before = None if self.before is None else self.before[:, chosen]
        if before is None or not before.any():
            c = to_matrix(gather(self.lanes, self.c), self.form.half)[chosen]
        else:
            c = self._chained(chosen, before)
        if not adds.all():
            c = np.where(adds[:, None, None], c, np.zeros((), c.dtype))
        return c

    def _chained(self, chosen: Array, before: Array) -> Array:
        """C of which other products have computed at least some elements."""
        number = int(before[0, 0]) // ENTRIES
        aligned = number * ENTRIES + np.arange(1, len(before) + 1)
        earlier = self.earlier.get(number)
        if earlier is not None and earlier.form.half == self.form.half and (before == aligned[:, None]).all():
            found: Array = earlier.matrix()[earlier.positions(self.warps[chosen])]
            if found.shape[-1] == self.form.n:
                return found
        words = gather(self.lanes, self.c)[:, chosen]
        for number, earlier in self.earlier.items():
            row, warp = np.nonzero(before // ENTRIES == number)
            register = before[row, warp] % ENTRIES - 1
            position = earlier.positions(self.warps[chosen][warp])
            words[row, warp] = to_registers(earlier.matrix(), earlier.form.half)[register, position]
        return to_matrix(words, self.form.half)

    def matrix(self) -> Array:
        """D of all warps that are computed."""
        if self.result is None:
            raise RuntimeError("a product that is not computed")
        return self.result
