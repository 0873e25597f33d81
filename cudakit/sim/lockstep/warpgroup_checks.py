"""The checks of wgmma: fences, groups, registers in flight, descriptors, and warpgroups whose warps diverge.

All but the extent of operands belong to the check "race". Registers are those of PTX. ptxas repairs some of these
mistakes in PTX, by waits that it inserts or by running the products one after the other; PTX leaves them undefined.

Compilers move register operations across wgmma.fence, which does not name the registers: an operation that is before
the fence in the source may be after it in PTX. The source's lines decide (``_moved``). Constants are not accesses.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.descriptors import extent, mistake, parse
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import SHARED_START
from cudakit.sim.lockstep.report import Other, SourcePlace
from cudakit.sim.lockstep.warpgroup_meetings import Meetings
from cudakit.sim.lockstep.warpgroup_operands import distinct
from cudakit.sim.lockstep.warpgroup_product import ENTRIES, Product, RegisterTable
from cudakit.sim.lockstep.warpgroups import Warpgroups, at, warp_choice
from cudakit.sim.ptx.ir import Instruction

IN_FLIGHT = "wgmma register used before the wait"
NO_FENCE = "missing wgmma.fence"
NO_COMMIT = "missing wgmma.commit_group"
DIVERGENT = "divergent wgmma"
DESCRIPTOR = "invalid matrix descriptor"
_OPERANDS = ("descriptor of A", "descriptor of B", "scale-d")


def state_of(batch: Batch) -> Warpgroups:
    """The products in flight of a batch."""
    found: Warpgroups | None = batch.warpgroups
    if found is None:
        found = batch.warpgroups = Warpgroups(batch)
        if "race" in batch.run.checks:
            found.checks = WarpgroupChecks(found)
    return found


def check_extent(f: Fragment, product: Product, operand: str, bits: Array, rows: int) -> None:
    """Report an operand that is not within the block's shared memory. ``bits`` are the warps' descriptors."""
    form, size = product.form, f.batch.run.shared_bytes
    k_major = form.k_major[0 if operand == "A" else 1]
    for one in distinct(bits):
        low, high = extent(one, rows, form.size, k_major)
        if low >= 0 and high <= size:
            continue
        wrong = np.flatnonzero(bits == one)
        found = parse(one)
        f.fail(
            form.site.instruction,
            "out of bounds",
            f"operand {operand} of wgmma.mma_async is at bytes {low} to {high - 1} of the block's shared memory, which "
            f"has {size} bytes",
            int(f.lanes.warp_starts[wrong[0]]),
            np.flatnonzero(np.isin(f.lanes.warp_rank, wrong)),
            address=found.start,
            size=high - low,
            space="shared",
            access="matrix product",
            notes=[f"the descriptor: {found}; the block's shared memory begins at address {SHARED_START:#x}"],
        )


def _described(name: str, value: Any) -> str:
    return str(bool(value)).lower() if name == "scale-d" else str(parse(int(value)))


class WarpgroupChecks:
    """The checks of a batch's warpgroups. Arrays are by warp of the batch."""

    def __init__(self, state: Warpgroups) -> None:
        warps = state.batch.geometry.warps
        self.state = state
        self.batch = state.batch
        # how many fences and waits each warp has executed, and how many products since the last fence
        self.fences, self.waits, self.unfenced = (np.zeros(warps, np.int64) for _ in range(3))
        # each warp's last fence, as a number in ``fence_list``
        self.last_fence = np.zeros(warps, np.int64)
        self.fence_list: list[Instruction] = []
        self.fence_numbers: dict[int, int] = {}
        self.meetings = Meetings(self.batch, DIVERGENT, "wgmma", _described)
        self._excused: dict[tuple[int, ...], bool] = {}

    # ---- issue ----

    def issue(self, f: Fragment, product: Product, values: tuple[Array | None, ...]) -> None:
        """Check a product that the fragment's warps issue. ``values`` are its operands that must be the same in all
        lanes of a warpgroup."""
        self._meet(f, product, values)
        for name, bits in (("A", product.a_bits), ("B", product.b_bits)):
            if name == "B" or product.form.fragments is None:
                self._check_descriptors(f, product, name, bits)
        self._check_registers(f, product)
        self._check_fence(f, product)
        warps = product.warps
        product.fences, product.waits = self.fences[warps], self.waits[warps]
        self.unfenced[warps] += 1

    def _check_descriptors(self, f: Fragment, product: Product, name: str, bits: Array) -> None:
        for one in distinct(bits):
            reason = mistake(one)
            if reason:
                wrong = np.flatnonzero(bits == one)
                f.fail(
                    product.form.site.instruction,
                    DESCRIPTOR,
                    f"the descriptor of operand {name} ({parse(one)}): {reason}",
                    int(f.lanes.warp_starts[wrong[0]]),
                    np.flatnonzero(np.isin(f.lanes.warp_rank, wrong)),
                )

    def _check_registers(self, f: Fragment, product: Product) -> None:
        """Report a product that reads A from registers that another one in flight writes, or writes those of A."""
        form, where = product.form, warp_choice(f.lanes)
        table = self.state.table(form.registers)
        if len(form.a_rows) and (awaits := table.awaits[at(form.a_rows, where)]).any():
            self._fail_in_flight(f, form.site.instruction, table, form.a_rows, awaits // ENTRIES, "read as a part of A")
        if (read := table.read[at(form.d_rows, where)]).any():
            self._fail_in_flight(f, form.site.instruction, table, form.d_rows, read, "written as an accumulator")

    def _check_fence(self, f: Fragment, product: Product) -> None:
        form, lanes, warps = product.form, f.lanes, product.warps
        instruction = form.site.instruction
        never = np.flatnonzero(self.fences[warps] == 0)
        if len(never):
            self._fail_fence(
                f, instruction, int(never[0]), "the warp has not executed wgmma.fence before its first wgmma"
            )
        table, where = self.state.table(form.registers), warp_choice(lanes)
        rows = np.concatenate((form.d_rows, form.a_rows))
        accessed = table.accessed[at(rows, where)]
        if accessed.any():
            # equal numbers: the same access after the same fence
            alike = (accessed.astype(np.int64) << 32) + 2 * self.last_fence[warps] + (self.unfenced[warps] == 0)
            _, firsts = np.unique(np.where(accessed, alike, 0), return_index=True)
            for row, warp in zip(*np.unravel_index(firsts, accessed.shape), strict=True):
                use = table.registers.uses[accessed[row, warp] - 1]
                if accessed[row, warp] and not self._moved(use, instruction, int(warps[warp])):
                    name = table.registers.names[rows[row]]
                    other = Other(f"access to {name}", *f.lane_place(int(lanes.warp_starts[warp])), self.place(use))
                    self._fail_fence(
                        f,
                        instruction,
                        int(warp),
                        f"the register {name} of {'D' if row < len(form.d_rows) else 'A'} was accessed after the last "
                        "wgmma.fence of the warp",
                        other,
                    )
        before = product.before
        if before is None:
            return
        for number, earlier in product.earlier.items():
            some = np.flatnonzero((before // ENTRIES == number).any(axis=0))
            mine = before[:, some]
            numbers = number * ENTRIES + np.arange(1, len(before) + 1)
            if earlier.form.shape == form.shape and (mine == numbers[:, None]).all():
                continue
            late = some[self.fences[warps[some]] == earlier.fences[earlier.positions(warps[some])]]
            if len(late):
                other = self._other(f, earlier, int(lanes.warp_starts[late[0]]))
                self._fail_fence(
                    f,
                    instruction,
                    int(late[0]),
                    "its accumulators are those of a wgmma of another shape in flight; only products of the same shape "
                    "on the same registers are ordered without a fence",
                    other,
                )

    def _fail_fence(self, f: Fragment, instruction: Instruction, rank: int, detail: str, *others: Other) -> NoReturn:
        f.fail(
            instruction,
            NO_FENCE,
            detail,
            int(f.lanes.warp_starts[rank]),
            others=others,
            notes=[
                "execute wgmma.fence.sync.aligned after the last access to registers of D or A and before the wgmma"
            ],
        )

    def _moved(self, use: Instruction, product: Instruction, warp: int) -> bool:
        """Whether an access to a register, executed after a warp's last fence, may be before it in the source."""
        fence = self.fence_list[self.last_fence[warp]]
        alone = self.unfenced[warp] == 0
        key = (id(use), id(fence), id(product), alone)
        found = self._excused.get(key)
        if found is None:
            found = use.line > fence.line and _sooner(self.place(use), self.place(fence))
            # from the end of the previous iteration of an unrolled loop
            found = found or bool(alone and use.line > fence.line and _sooner(self.place(product), self.place(use)))
            self._excused[key] = found
        return found

    # ---- fences, waits and accesses ----

    def fence(self, f: Fragment, instruction: Instruction) -> None:
        """The fragment's warps execute wgmma.fence."""
        warps, where = f.lanes.warps, warp_choice(f.lanes)
        self.fences[warps] += 1
        self.unfenced[warps] = 0
        number = self.fence_numbers.get(id(instruction))
        if number is None:
            number = self.fence_numbers[id(instruction)] = len(self.fence_list)
            self.fence_list.append(instruction)
        self.last_fence[warps] = number
        for table in self.state.tables.values():
            table.accessed[:, where] = 0

    def wait(self, f: Fragment, instruction: Instruction) -> None:
        """The fragment's warps execute wgmma.wait_group."""
        warps = f.lanes.warps
        self.waits[warps] += 1
        # a warp without products may wait: before a pipeline's first product, or after a loop of no steps
        lost = np.flatnonzero((self.state.committed[warps] == 0) & (self.state.uncommitted[warps] > 0))
        if not len(lost):
            return
        position = int(f.lanes.warp_starts[lost[0]])
        product = next(p for p in self.state.products if warps[lost[0]] in p.warps)
        f.fail(
            instruction,
            NO_COMMIT,
            "the warp waits for groups of wgmma, but has not committed any: its products are in no group",
            position,
            others=(self._other(f, product, position),),
            notes=["execute wgmma.commit_group.sync.aligned after the products and before the wait"],
        )

    def accessed(
        self, f: Fragment, table: RegisterTable, rows: tuple[Array, Array], use: int, held: Array | None
    ) -> None:
        """An instruction reads and writes registers, ``rows`` of the table; ``held``: its guard."""
        lanes, reads, writes = f.lanes, *rows
        where: Any = warp_choice(lanes)
        if held is not None and not held.all():
            where = np.unique(lanes.warp[np.broadcast_to(held, (lanes.count,))])
            if not len(where):
                return
        instruction = table.registers.uses[use - 1]
        if self.state.products:
            for some, does in ((reads, "read"), (writes, "written")):
                if len(some) and (awaits := table.awaits[at(some, where)]).any():
                    self._fail_in_flight(f, instruction, table, some, awaits // ENTRIES, does, where)
            if len(writes) and (read := table.read[at(writes, where)]).any():
                self._fail_in_flight(f, instruction, table, writes, read, "written", where)
        for some in rows:
            if len(some):
                table.accessed[at(some, where)] = use

    def moved(self, f: Fragment, table: RegisterTable, to: int, source: int, use: int) -> None:
        """A plain mov writes a register: a copy of another tracked one, or (-1) of any other value."""
        where = warp_choice(f.lanes)
        if self.state.products:
            awaits, read = table.awaits[to, where], table.read[to, where]
            if source >= 0:
                # a copy of a register in flight renames it
                awaits = np.where(table.awaits[source, where] > 0, 0, awaits)
            if awaits.any():
                # so does an earlier copy to another register
                others = np.delete(table.awaits[:, where], to, axis=0)
                awaits = np.where((others == awaits).any(axis=0), 0, awaits)
            row = np.array([to])
            for numbers in (awaits // ENTRIES, read):
                if numbers.any():
                    self._fail_in_flight(f, table.registers.uses[use - 1], table, row, numbers[None], "written")
        if source >= 0:
            old = table.accessed[source, where]
            table.accessed[to, where] = np.where(old, old, table.accessed[to, where])

    def _fail_in_flight(
        self,
        f: Fragment,
        instruction: Instruction,
        table: RegisterTable,
        rows: Array,
        numbers: Array,
        does: str,
        where: Any = None,
    ) -> NoReturn:
        """Report a register that is used while a product needs it. ``numbers`` are products by row and warp."""
        row, column = np.argwhere(numbers)[0]
        product = self.state.product(int(numbers[row, column]))
        warp = int(np.arange(self.batch.geometry.warps)[warp_choice(f.lanes) if where is None else where][column])
        position = int(np.searchsorted(f.lanes.warp, warp))
        own = int(product.positions(np.array([warp]))[0])
        name = table.registers.names[rows[row]]
        role = "the accumulator register" if rows[row] in product.form.d_rows else "the register"
        if rows[row] in product.form.a_rows and product.number == table.read[rows[row], warp]:
            role = "the register of A"
        others = (self._other(f, product, position),)
        committed = product.group[own] < self.state.committed[warp]
        if not committed and self.waits[warp] > product.waits[own]:
            f.fail(
                instruction,
                NO_COMMIT,
                f"{role} {name} is {does} after a wait, but the wgmma that uses it is in no group: wgmma.wait_group "
                "waits only for groups",
                position,
                others=others,
                notes=["execute wgmma.commit_group.sync.aligned after the wgmma and before the wait"],
            )
        newer = int(self.state.committed[warp] - product.group[own]) - 1
        due = f"wgmma.wait_group {newer}" if committed else "wgmma.commit_group and wgmma.wait_group"
        f.fail(
            instruction,
            IN_FLIGHT,
            f"{role} {name} is {does} while a wgmma that uses it is in flight",
            position,
            others=others,
            notes=[f"it may be used after {due}"],
        )

    # ---- warpgroups ----

    def _meet(self, f: Fragment, product: Product, values: tuple[Array | None, ...]) -> None:
        """Report warps of one warpgroup that do not execute the same products with the same operands."""
        lanes, instruction = f.lanes, product.form.site.instruction
        if not lanes.complete:
            short = int(np.flatnonzero(lanes.present != 0xFFFFFFFF)[0])
            f.fail(
                instruction,
                DIVERGENT,
                "all lanes of a warpgroup must execute wgmma.mma_async together; of this warp only "
                f"{int(lanes.present[short]).bit_count()} do",
                int(lanes.warp_starts[short]),
            )
        by_warp = dict(zip(_OPERANDS, (product.a_bits, product.b_bits, product.adds), strict=True))
        for (name, warps), value in zip(by_warp.items(), values, strict=True):
            if value is not None and value.ndim and (apart := value != np.repeat(warps, 32)).any():
                wrong = int(np.flatnonzero(apart)[0])
                self.meetings.fail_values(f, instruction, name, value, wrong, wrong // 32 * 32)
        self.meetings.meet(f, instruction, by_warp)

    def leave(self, f: Fragment) -> None:
        """The lanes of a fragment have exited."""
        self.meetings.leave(f)

    # ---- places ----

    def place(self, instruction: Instruction) -> tuple[SourcePlace, ...]:
        return self.batch.run.place(instruction)

    def _other(self, f: Fragment, product: Product, position: int) -> Other:
        return Other("wgmma", *f.lane_place(position), self.place(product.form.site.instruction))


def _sooner(one: tuple[SourcePlace, ...], other: tuple[SourcePlace, ...]) -> bool:
    """Whether a place is before another in the source, or at the same line; False if that is unknown. Places are
    innermost first: the outermost different calls decide."""
    if not one or not other:
        return False
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a.file != b.file:
            return False
        if a.line != b.line:
            return a.line < b.line
    return True
