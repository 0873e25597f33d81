"""Bulk copies from and to global memory in flight.

- Nothing may access what a store or reduction writes until its thread has waited for all of it; a wait for its source
  (.read) is not enough. Reductions and atomics go together.
- Nothing may write what a load reads before the load has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.transfers import Transfer, Units

# bytes; a multiple of the size of any unit
PAGE = 256
_WAIT = (
    "wait for it (cp.async.bulk.wait_group, without .read) in the thread that started it, and let other threads wait "
    "for that thread"
)
_ARRIVAL = "wait for the load's mbarrier before its source is written"


class _Place:
    """Units of global memory, at least one."""

    def __init__(self, units: Units) -> None:
        self.units = units

    @cached_property
    def low(self) -> int:
        """The first byte of the allocation that the units have."""
        return int(self.units.index.min()) * self.units.access.size

    @cached_property
    def high(self) -> int:
        """The byte after the last one."""
        return (int(self.units.index.max()) + 1) * self.units.access.size

    @cached_property
    def pages(self) -> list[int]:
        """The pages of the allocation that have some of the units."""
        found: list[int] = np.unique(self.units.index // (PAGE // self.units.access.size)).tolist()
        return found


class _Flying(_Place):
    """A transfer in flight, and what it reads or writes."""

    def __init__(self, transfer: Transfer, units: Units) -> None:
        super().__init__(units)
        self.transfer = transfer


class _Stores:
    """The stores in flight to one allocation, by pages: there may be many."""

    def __init__(self) -> None:
        self.pages: dict[int, list[_Flying]] = {}

    def add(self, made: _Flying) -> None:
        for page in made.pages:
            self.pages.setdefault(page, []).append(made)

    def near(self, place: _Place) -> list[_Flying]:
        """Those on the same pages as a place."""
        return list({one: None for page in place.pages for one in self.pages.get(page, ())})

    def all(self) -> list[_Flying]:
        return list({one: None for stores in self.pages.values() for one in stores})

    def keep(self, which: Callable[[Transfer], bool]) -> None:
        kept = ((page, [one for one in stores if which(one.transfer)]) for page, stores in self.pages.items())
        self.pages = {page: stores for page, stores in kept if stores}


class GlobalTransfers:
    """The transfers of one batch from and to global memory."""

    def __init__(self, checks: BatchChecks) -> None:
        self.checks = checks
        self.stores: dict[Allocation, _Stores] = {}
        self.loads: dict[Allocation, dict[Transfer, _Flying]] = {}
        # whether the accesses are those of a transfer that writes its destination now
        self.landing = False

    @property
    def any(self) -> bool:
        """Whether there are some in flight."""
        return bool(self.stores or self.loads)

    def start(self, transfer: Transfer) -> None:
        """Note a transfer that starts. Report a store to what a load in flight reads, or to what another store in
        flight writes, unless both store the same: their order is not determined."""
        if transfer.group >= 0 and (made := _flying(transfer, transfer.destination)) is not None:
            for load in self.loads.get(made.units.home, {}).values():
                if len(found := _shared(made, load)):
                    self._report_written(transfer.f, transfer.site, made.units, int(found[0]), load.transfer)
            stores = self.stores.setdefault(made.units.home, _Stores())
            for store in stores.near(made):
                if len(found := _shared(made, store)) and _conflict(made, store):
                    self._report(transfer.f, transfer.site, made.units, int(found[0]), transfer.lane, store.transfer)
            stores.add(made)
        elif transfer.barrier is not None and (made := _flying(transfer, transfer.source)) is not None:
            self.loads.setdefault(made.units.home, {})[transfer] = made

    def lands(self, transfer: Transfer) -> None:
        """Note that a transfer has read its source."""
        source = transfer.source
        loads = None if source is None else self.loads.get(source.home)
        if source is not None and loads is not None and loads.pop(transfer, None) is not None and not loads:
            del self.loads[source.home]

    def complete(self, due: Callable[[list[Transfer]], list[Transfer]]) -> None:
        """Note that the stores which ``due`` selects have been waited for."""
        over = set(due([one.transfer for stores in self.stores.values() for one in stores.all()]))
        if over:
            self._keep(lambda transfer: transfer not in over)

    def leave(self, lanes: LaneSet) -> None:
        """Forget the stores of the blocks that have exited with these lanes."""
        batch = self.checks.batch
        gone = (lanes.block_counts > 0) & (batch.live_blocks == 0)
        if gone.any():
            self._keep(lambda transfer: not gone[transfer.lane // batch.geometry.threads])

    def _keep(self, which: Callable[[Transfer], bool]) -> None:
        for stores in self.stores.values():
            stores.keep(which)
        self.stores = {home: stores for home, stores in self.stores.items() if stores.pages}

    def check(self, f: Fragment, access: MemoryAccess, piece: Piece, *, reads: bool, writes: bool) -> None:
        """Report an access to memory that a store in flight writes, or a write to what a load in flight reads."""
        if self.landing:
            return
        stores = self.stores.get(piece.home)
        loads = list(self.loads.get(piece.home, {}).values()) if writes else []
        if stores is None and not loads:
            return
        units = Units(piece.home, positions(piece.index, piece.lanes.count), access)
        if not len(units.index):
            return
        mine = _Place(units)
        for one in stores.near(mine) if stores is not None else ():
            if reads and writes and one.transfer.combine is not None:
                continue
            found = _shared(mine, one)
            if len(found):
                lane = int(piece.lanes.lanes[found[0]])
                self._report(f, access.site, units, int(found[0]), lane, one.transfer)
        for one in loads:
            found = _shared(mine, one)
            if len(found):
                one_lane = f.alone(int(piece.lanes.lanes[found[0]]))
                self._report_written(one_lane, access.site, units, int(found[0]), one.transfer)

    # ---- reports ----

    def _report(self, f: Fragment, site: Any, units: Units, position: int, lane: int, transfer: Transfer) -> NoReturn:
        whose = "the same thread" if lane == transfer.lane else "another thread"
        self._fail(
            f.alone(lane),
            site,
            units,
            position,
            "access before bulk wait",
            f"a {transfer.site.kind} of {whose} may not have written yet",
            transfer,
            _WAIT,
        )

    def _report_written(self, f: Fragment, site: Any, units: Units, position: int, transfer: Transfer) -> NoReturn:
        detail = f"a {transfer.site.kind} may still have to read"
        self._fail(f, site, units, position, "global memory overwritten in flight", detail, transfer, _ARRIVAL)

    def _fail(
        self,
        f: Fragment,
        site: Any,
        units: Units,
        position: int,
        kind: str,
        which: str,
        transfer: Transfer,
        advice: str,
    ) -> NoReturn:
        home, access = units.home, units.access
        address = home.base + int(units.index[position]) * access.size
        f.fail(
            site.instruction,
            kind,
            f"{access.named} at {address:#x}, {address - home.address} bytes into the {home.kind} allocation of "
            f"{home.size} bytes, which {which}",
            space="global",
            access=site.kind,
            address=address,
            allocation=home,
            others=(self.checks.batch.other(transfer.site, transfer.lane),),
            notes=[advice],
        )


def _flying(transfer: Transfer, units: Units | None) -> _Flying | None:
    """A transfer and its units in global memory; None if these are elsewhere or there are none."""
    here = units is not None and isinstance(units.home, Allocation) and len(units.index)
    return _Flying(transfer, units) if units is not None and here else None


def _cells(units: Units, size: int) -> Array:
    """The cells of ``size`` bytes that units cover, one row per unit."""
    each = units.access.size // size
    return units.index[:, None] * each + np.arange(each)


def _shared(mine: _Place, other: _Place) -> Array:
    """The positions of the first one's units that share a byte with the second one's, in the same allocation."""
    if other.low >= mine.high or other.high <= mine.low:
        return np.zeros(0, np.int64)
    size = min(mine.units.access.size, other.units.access.size)
    return np.flatnonzero(np.isin(_cells(mine.units, size), _cells(other.units, size)).any(axis=1))


def _conflict(mine: _Flying, other: _Flying) -> bool:
    """Whether the result of two overlapping stores depends on their order."""
    reductions = mine.transfer.combine is not None, other.transfer.combine is not None
    if any(reductions):
        return not all(reductions)
    size = min(mine.units.access.size, other.units.access.size)
    cells, values = [], []
    for one in (mine, other):
        data = one.transfer.values()
        if data is None:
            return False
        cells.append(_cells(one.units, size).reshape(-1))
        values.append(np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(-1, size))
    _, here, there = np.intersect1d(cells[0], cells[1], return_indices=True)
    return bool((values[0][here] != values[1][there]).any())
