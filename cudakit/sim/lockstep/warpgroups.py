"""The products of warpgroups (wgmma.mma_async) that are in flight in a batch.

A product is issued, belongs to a group of its warp once that warp commits it, and is complete when the warp has waited
for the group. It is computed as late as that: only then its operands in shared memory are read and its accumulator
registers written, so that shared memory that was overwritten too early, or a register that was read too early, shows in
the result. A in registers, and accumulators that no other product in flight writes, are read at the issue.

Registers are followed by slot and by warp. A table of each function (``RegisterTable``) has, for the registers that
wgmma uses, the product whose result each one awaits. A plain mov of such a register copies the entry: compilers insert
moves that ptxas removes, and the copy must receive the result too. So a result is written to all registers that await
it, in the frame of the function that issued the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.descriptors import CHUNK
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, Choice, LaneSet, as_choice
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.warpgroup_operands import WARPS, to_registers
from cudakit.sim.lockstep.warpgroup_product import ENTRIES, Product, RegisterTable, TrackedRegisters


def at(rows: Array, where: Choice) -> tuple[Array, Choice]:
    """The index of some rows and warps of a table."""
    return (rows, where) if isinstance(where, slice) else (rows[:, None], where)


def warp_choice(lanes: LaneSet) -> Choice:
    """The warps of a set, as a slice if they are consecutive."""
    found: Choice | None = lanes.cache.get("warp choice")
    if found is None:
        found = lanes.cache["warp choice"] = as_choice(lanes.warps)
    return found


class Warpgroups:
    """The products in flight of a batch's warpgroups, and the registers that await them."""

    def __init__(self, batch: Batch) -> None:
        warps = batch.geometry.warps
        self.batch = batch
        self.products: list[Product] = []
        self.issued = 0
        self.tables: dict[TrackedRegisters, RegisterTable] = {}
        self.uncommitted = np.zeros(warps, np.int64)
        self.committed = np.zeros(warps, np.int64)
        self.checks: Any = None

    def table(self, registers: TrackedRegisters) -> RegisterTable:
        """The state of a function's registers."""
        found = self.tables.get(registers)
        if found is None:
            found = self.tables[registers] = RegisterTable(registers, self.batch.geometry.warps)
        return found

    def product(self, number: int) -> Product:
        """The product in flight with this number."""
        return next(product for product in self.products if product.number == number)

    # ---- issue and commit ----

    def issue(self, f: Fragment, product: Product, values: tuple[Array | None, ...] | None) -> None:
        """Take a new product of the fragment's warps. ``values`` are its operands that must be the same in all lanes of
        a warpgroup: the descriptors and scale-d; None: it is not checked."""
        form, lanes = product.form, f.lanes
        table, where = self.table(form.registers), warp_choice(lanes)
        warps = product.warps
        product.group = self.committed[warps]
        before = table.awaits[at(form.d_rows, where)]
        if before.any():
            product.before = before
            product.earlier = {int(n): self.product(int(n)) for n in np.unique(before // ENTRIES) if n}
        if self.checks is not None and values is not None:
            self.checks.issue(f, product, values)
        self._begin_reads(f, product)
        first = product.number * ENTRIES + 1
        table.awaits[at(form.d_rows, where)] = np.arange(first, first + len(form.d_rows))[:, None]
        if len(form.a_rows):
            table.read[at(form.a_rows, where)] = product.number
        self.uncommitted[warps] += 1
        self.products.append(product)

    def _begin_reads(self, f: Fragment, product: Product) -> None:
        """Report the shared memory that the product reads to the checks of memory."""
        guard = self.batch.guard
        if guard is None:
            return
        every, form = np.arange(len(product.warps)), product.form
        regions = [product.b_places(self.batch, every)]
        if form.fragments is None:
            regions.append(product.a_places(self.batch, every))
        lanes = self.first_lanes(product.warps[product.units(self.batch, every).firsts])
        for where in regions:
            chunks = where.reshape(len(where), -1)
            token = guard.begin_async_read(f, form.site, chunks.reshape(-1) * CHUNK, np.repeat(lanes, chunks.shape[1]))
            product.tokens.append(token)

    def number(self) -> int:
        """The number of a new product, from 1."""
        self.issued += 1
        return self.issued

    def commit(self, lanes: LaneSet) -> None:
        """End the group of each of these warps."""
        self.committed[lanes.warps] += 1
        self.uncommitted[lanes.warps] = 0

    def moved(self, f: Fragment, registers: TrackedRegisters, to: int, source: int, use: int) -> None:
        """A plain mov writes row ``to`` of the table: a copy of row ``source``, or (-1) of another value."""
        table = self.tables.get(registers)
        if table is None:
            return
        if not f.lanes.complete:
            # a part of a warp cannot take over the result of a whole one
            if self.checks is not None:
                rows = np.array([source] if source >= 0 else [], np.int64), np.array([to])
                self.checks.accessed(f, table, rows, use, None)
            return
        if self.checks is not None:
            self.checks.moved(f, table, to, source, use)
        if self.products:
            where = warp_choice(f.lanes)
            table.awaits[to, where] = table.awaits[source, where] if source >= 0 else 0

    def leave(self, f: Fragment) -> None:
        """The lanes of a fragment have exited."""
        if self.checks is not None:
            self.checks.leave(f)

    # ---- completion ----

    def wait(self, f: Fragment, pending: int) -> None:
        """Complete the products of the fragment's warps, except those that are not committed and the newest ``pending``
        groups, and write their results to the fragment's registers."""
        warps = f.lanes.warps
        limit = np.full(self.batch.geometry.warps, -1, np.int64)
        limit[warps] = self.committed[warps] - pending
        finished: list[tuple[Product, Array]] = []
        for product in self.products:
            due = (product.group < limit[product.warps]) & ~product.done
            if due.any():
                self._compute(product, due)
                finished.append((product, due))
        if not finished:
            return
        self.batch.progress += 1
        for product, due in finished:
            product.done |= due
            self._write(f, product, due)
            self._release(product, due)
        self.products = [product for product in self.products if not product.done.all()]

    def _compute(self, product: Product, due: Array) -> None:
        chosen = np.flatnonzero(due & ~product.computed)
        if len(chosen):
            product.compute(self.batch, chosen)

    def _write(self, f: Fragment, product: Product, due: Array) -> None:
        """Write a completed product's result to the registers of the fragment that await it."""
        form, lanes = product.form, f.lanes
        table, where = self.table(form.registers), warp_choice(lanes)
        mine = np.zeros(self.batch.geometry.warps, np.bool_)
        mine[product.warps[due]] = True
        awaits = table.awaits[:, where]
        here = (awaits // ENTRIES == product.number) & mine[where]
        rows = np.flatnonzero(here.any(axis=1))
        if len(form.a_rows):
            read = table.read[at(form.a_rows, where)]
            table.read[at(form.a_rows, where)] = np.where((read == product.number) & mine[where], 0, read)
        if not len(rows):
            return
        numbers = awaits[rows] % ENTRIES - 1
        table.awaits[:, where] = np.where(here, 0, awaits)
        registers = self._frame(f, form.registers)
        if registers is None:
            return
        words = to_registers(product.matrix(), form.half)
        if lanes is product.lanes and lanes.complete and here[rows].all() and (numbers == numbers[:, :1]).all():
            flat = words.reshape(len(words), -1)
            for row, number in zip(rows.tolist(), numbers[:, 0].tolist(), strict=True):
                registers[form.registers.slots[row]] = flat[number]
            return
        positions = product.positions(lanes.warps)
        for row, number in zip(rows.tolist(), numbers, strict=True):
            slot, some = form.registers.slots[row], np.flatnonzero(here[row])
            old = registers[slot]
            if old is None:
                continue  # it is not used any more
            rows_of_warps = np.array(lanes.pad(np.broadcast_to(old, (lanes.count,))))
            rows_of_warps[some] = words[number[some], positions[some]]
            registers[slot] = lanes.unpad(rows_of_warps)

    def _frame(self, f: Fragment, registers: TrackedRegisters) -> Registers | None:
        """The registers of the function that has issued a product, if it has not returned."""
        for frame in reversed(f.frames):
            if frame.program.tracked is registers:
                return frame.regs
        return None

    def _release(self, product: Product, due: Array) -> None:
        """Notify the checks of the warpgroups that have read their operands: all of their warps here have completed."""
        guard = self.batch.guard
        if guard is None or not product.tokens:
            return
        groups = self.group_of(product.warps)
        open_ = np.unique(groups[~product.done])
        ended = np.setdiff1d(np.unique(groups[due]), open_)
        lanes = None if not len(open_) else self.first_lanes(product.warps[np.isin(groups, ended)])
        for token in product.tokens:
            guard.end_async_read(token, lanes)

    def finish_some(self, choose: Callable[[int], int]) -> bool:
        """Complete the oldest group in flight of one warpgroup before anything waits for it; False if no committed
        product is left to compute. ``choose`` returns a number below its argument. The registers receive the result at
        the wait, as always."""
        warps = np.zeros(self.batch.geometry.warps, np.bool_)
        for product in self.products:
            warps[product.warps[self._ready(product)]] = True
        groups = np.unique(self.group_of(np.flatnonzero(warps)))
        if not len(groups):
            return False
        group = groups[choose(len(groups))]
        oldest: Array | None = None
        for product in self.products:
            due = self._ready(product) & (self.group_of(product.warps) == group)
            if not due.any():
                continue
            if oldest is None:
                oldest = np.full(len(warps), -1, np.int64)
            fresh = due & (oldest[product.warps] < 0)
            oldest[product.warps[fresh]] = product.group[fresh]
            due &= product.group == oldest[product.warps]
            if due.any():
                self._compute(product, due)
        return True

    def _ready(self, product: Product) -> Array:
        """The warps of a product that is committed and not computed."""
        ready: Array = (product.group < self.committed[product.warps]) & ~product.computed
        return ready

    # ---- geometry ----

    def group_of(self, warps: Array) -> Array:
        """The warpgroup of each of these warps, numbered over the batch."""
        per_block = self.batch.geometry.warps_per_block
        groups: Array = warps // per_block * -(-per_block // WARPS) + warps % per_block // WARPS
        return groups

    def first_lanes(self, warps: Array) -> Array:
        """The first lane, over the batch, of the warpgroup of each of these warps."""
        geometry = self.batch.geometry
        block, local = np.divmod(warps, geometry.warps_per_block)
        lanes: Array = block * geometry.threads + local // WARPS * WARPS * 32
        return lanes
