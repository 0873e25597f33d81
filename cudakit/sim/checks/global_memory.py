"""Races between the blocks of a grid in global memory, and uninitialised reads there.

Two accesses of one granule by different blocks are a race if at least one writes, at least one is not strong, and no
chain of releases and acquires (chains.py) orders them: blocks that run one after another here run at the same time on
hardware. Races within a block are not checked. Storing an unchanged value does not conflict with other stores.

An allocation has a shadow from its first access in a launch to the end of the launch: 8 bytes per granule for writes,
and 8 for reads if the launch may also store to it. A granule is 4 bytes, or 1 if the kernel accesses global memory in
smaller units. Once all shadows take ``_SHADOW_BYTES``, further allocations are not checked for races.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.sim.checks.chains import Chains
from cudakit.sim.checks.events import Events
from cudakit.sim.checks.failures import Conflict, WrongLanes, fail
from cudakit.sim.checks.shadow import BLOCKS, STRONG, Table
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, gather, positions
from cudakit.sim.lockstep.run import KernelRun

_SHADOW_BYTES = 4 << 30


class _Shadow:
    """A launch's record of one allocation. ``undefined`` is nonzero for granules that had uninitialised bytes at the
    start of the launch; None if no granule had any."""

    def __init__(self, undefined: Array | None) -> None:
        self.undefined = undefined
        self.races = False
        self.writes: Table | None = None
        self.reads: Table | None = None


class GlobalChecks:
    """Checks the global memory of one launch."""

    def __init__(self, run: KernelRun, events: Events, granule: int, written: set[Allocation] | None) -> None:
        self.events = events
        self.race, self.init = "race" in run.checks and run.config.blocks > 1, "init" in run.checks
        self.granule = granule
        self.shift = granule.bit_length() - 1
        # the allocations that the launch may store to; None: it may store to any
        self.written = written
        self.shadows: dict[Allocation, _Shadow | None] = {}
        self.bytes = 0
        self.chains = Chains()

    def _shadow(self, allocation: Allocation) -> _Shadow | None:
        undefined = None
        if self.init:
            found = allocation.undefined_bytes()
            undefined = None if found is None else found.view(f"u{self.granule}")
        shadow = _Shadow(undefined)
        needed = 8 * (len(allocation.store) >> self.shift)
        races = self.race and allocation.kind != "constant"
        if races and self.bytes + 2 * needed <= _SHADOW_BYTES:
            shadow.races = True
            if self.written is None or allocation in self.written:
                self.bytes += needed
                shadow.reads = Table(len(allocation.store) >> self.shift, BLOCKS)
        found_shadow = shadow if shadow.races or undefined is not None else None
        self.shadows[allocation] = found_shadow
        return found_shadow

    def finish(self) -> None:
        """Mark the bytes that the launch stored to as initialised."""
        for allocation, shadow in self.shadows.items():
            if shadow is not None and shadow.undefined is not None and shadow.writes is not None and allocation.live:
                shadow.undefined[shadow.writes.first != 0] = 0
                allocation.forget_if_defined()
        self.shadows = {}

    # ---- accesses ----

    def read(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int) -> None:
        allocation: Allocation = piece.home
        shadow = self.shadows[allocation] if allocation in self.shadows else self._shadow(allocation)
        if shadow is None:
            return
        count = access.size >> self.shift
        writes = shadow.writes
        if shadow.undefined is not None:
            self._check_defined(f, access, piece, shadow, count)
        if not shadow.races:
            return
        if writes is not None:
            words = writes.words(piece.index, count)
            if words.any():
                self._compare(f, access, piece, count, writes, words)
        if shadow.reads is not None:
            index = positions(piece.index, piece.lanes.count)
            shadow.reads.note(index, count, self._words(event, f, piece.lanes, access.strong), 1)

    def check_defined(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        allocation: Allocation = piece.home
        shadow = self.shadows[allocation] if allocation in self.shadows else self._shadow(allocation)
        if shadow is not None and shadow.undefined is not None:
            self._check_defined(f, access, piece, shadow, access.size >> self.shift)

    def write(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int, values: Array | None) -> None:
        """Check and note a store of ``values`` (one per lane or one for all) or an atomic (None), before it happens."""
        allocation: Allocation = piece.home
        shadow = self.shadows[allocation] if allocation in self.shadows else self._shadow(allocation)
        if shadow is None:
            return
        count = access.size >> self.shift
        if shadow.writes is None:
            self.bytes += 8 * (len(allocation.store) >> self.shift)
            shadow.writes = Table(len(allocation.store) >> self.shift, BLOCKS)
        writes = shadow.writes
        if not shadow.races:
            view = writes.first if count == 1 else writes.first.reshape(-1, count)
            view[piece.index] = STRONG
            return
        words = writes.words(piece.index, count)
        if words.any():
            self._compare(f, access, piece, count, writes, words, values)
        if shadow.reads is not None:
            words = shadow.reads.words(piece.index, count)
            if words.any():
                self._compare(f, access, piece, count, shadow.reads, words)
        index = positions(piece.index, piece.lanes.count)
        lost = writes.note(index, count, self._words(event, f, piece.lanes, access.strong), 1)
        if lost is None or values is None or access.strong or values.ndim < (1 if access.count == 1 else 2):
            return
        last = dict(zip(index.tolist(), range(len(index)), strict=True))
        winner = np.array([last[place] for place in index[lost].tolist()])
        differ = values[winner] != values[lost]
        if differ.ndim > 1:
            differ = differ.any(axis=1)
        if differ.any():
            one, other = int(lost[differ][0]), int(winner[differ][0])
            wrong = WrongLanes(f, access, piece, one, lost[differ])
            self._report(wrong, event, self._block(f, piece.lanes, other))

    def _words(self, event: int, f: Fragment, lanes: LaneSet, strong: bool) -> Array:
        return (lanes.block << 1) + ((event << BLOCKS.shift) | (f.batch.first_block << 1) | strong)

    def _block(self, f: Fragment, lanes: LaneSet, position: int) -> int:
        return f.batch.first_block + int(lanes.block[position])

    # ---- faults ----

    def _check_defined(self, f: Fragment, access: MemoryAccess, piece: Piece, shadow: _Shadow, count: int) -> None:
        if shadow.undefined is None or not (undefined := gather(shadow.undefined, piece.index, count)).any():
            return
        missing = undefined != 0
        if shadow.writes is not None:
            missing = missing & (shadow.writes.words(piece.index, count) == 0)
        if not missing.any():
            return
        wrong = access.matter(missing, count)
        lanes = np.broadcast_to(wrong.any(axis=-1) if count > 1 else wrong, (piece.lanes.count,))
        if not lanes.any():
            return
        culprits = WrongLanes.where(f, access, piece, lanes)
        address, allocation = self._address(culprits), piece.home
        fail(
            culprits,
            "uninitialised read",
            f"{access.named} at {address:#x}, {address - allocation.address} bytes into the {allocation.kind} "
            f"allocation of {allocation.size} bytes; these bytes were never written",
            address=address,
            allocation=allocation,
        )

    def _compare(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        count: int,
        table: Table,
        words: Array,
        values: Array | None = None,
    ) -> None:
        """Compare an access with earlier ones in a table; ``words`` are the table's first words for the accessed
        granules."""
        others = table.others(piece.index, count)
        for found in (words, others):
            if found is None:
                continue
            wide = found if found.ndim == (2 if count > 1 else 1) else found[None]
            own = (
                ((piece.lanes.block + f.batch.first_block) << 1)[:, None]
                if count > 1
                else ((piece.lanes.block + f.batch.first_block) << 1)
            )
            wrong = (wide != 0) & ((wide & BLOCKS.who) != own)
            if access.strong:
                wrong &= wide & STRONG == 0
            if not wrong.any():
                continue
            wide = np.broadcast_to(wide, wrong.shape)
            if values is not None:
                same = gather(piece.view, piece.index, 1) == values
                if access.count > 1:
                    same = same.all(axis=-1)
                wrong &= ~(same[..., None] if count > 1 else same)
            self._drop_ordered(f, piece.lanes, wide, wrong)
            lanes = wrong.any(axis=1) if count > 1 else wrong
            if not lanes.any():
                continue
            culprits = WrongLanes.where(f, access, piece, lanes)
            first = culprits.first
            word = wide[first] if count == 1 else wide[first][wrong[first]][0]
            self._report(culprits, int(BLOCKS.event(word)), int(BLOCKS.owner(word)))

    def _drop_ordered(self, f: Fragment, lanes: LaneSet, words: Array, wrong: Array) -> None:
        cells = np.nonzero(wrong)
        if not len(cells[0]):
            return
        found = words[cells]
        mine = lanes.block[cells[0]] + f.batch.first_block
        ordered = self.chains.all_ordered(BLOCKS.owner(found), BLOCKS.event(found), mine)
        wrong[tuple(axis[ordered] for axis in cells)] = False

    @staticmethod
    def _address(wrong: WrongLanes) -> int:
        """The address that the reported lane accesses."""
        piece = wrong.piece
        place = int(positions(piece.index, piece.lanes.count)[wrong.first])
        base: int = piece.home.base
        return base + place * wrong.access.size

    def _report(self, wrong: WrongLanes, event: int, block: int) -> None:
        """Report the race with an access by a block of the grid at an event."""
        allocation: Allocation = wrong.piece.home
        address = self._address(wrong)
        fail(
            wrong,
            "global memory race",
            f"{wrong.access.named} at {address:#x}, {address - allocation.address} bytes into the {allocation.kind} "
            f"allocation of {allocation.size} bytes, not synchronised with an access by another block",
            Conflict(self.events.site(event), block),
            address=address,
            allocation=allocation,
            notes=["use atomics, a flag with release and acquire order, or two launches"],
        )


def places_of(access: MemoryAccess, piece: Piece) -> Array:
    """The byte of global memory that each lane accesses, as a number that is equal for equal bytes."""
    index: Any = positions(piece.index, piece.lanes.count)
    found: Array = index * access.size + piece.home.base
    return found
