"""Races in global memory, and uninitialised reads there.

Two accesses of one granule by different threads are a race if at least one writes, at least one is not strong or their
sizes differ (mixed_sizes.py), and they are unordered: within a block by barriers and the like (ordering.py), between
blocks by a chain of releases and acquires (releases.py), since blocks that run one after another here run at the same
time on hardware. An access is also ordered after the strong writes that a strong read of the same granule, by its own
block, has seen. Benign races (benign.py) are not reported unless "benign" is among the checks.

An allocation has a shadow from its first access in a launch to the end of the launch: 8 bytes per granule for writes,
and 8 for reads if the launch may also store to it. A granule is 4 bytes, or 1 if the kernel accesses global memory in
smaller units. Once all shadows take ``_SHADOW_BYTES``, further allocations are not checked for races.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.checks import benign, mixed_sizes
from cudakit.sim.checks.events import Events
from cudakit.sim.checks.failures import Conflict, WrongLanes, fail
from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.releases import GridChains
from cudakit.sim.checks.shadow import STRONG, Table, grid_layout, number
from cudakit.sim.checks.stored_values import unwritten_load
from cudakit.sim.lockstep.access import BLOCK, CLUSTER, DEVICE, MemoryAccess, scope_of
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, gather, indices, positions
from cudakit.sim.lockstep.run import KernelRun

_SHADOW_BYTES = 4 << 30
# the lowest word of an access
_EVER = number(1)


class _Shadow:
    """A launch's record of one allocation. ``undefined`` is nonzero for granules that had uninitialised bytes at the
    start of the launch; None if no granule had any."""

    def __init__(self, undefined: Array | None) -> None:
        self.undefined = undefined
        self.races = False
        self.writes: Table | None = None
        self.reads: Table | None = None
        # the union of the units of strong accesses
        self.units = 0


class GlobalChecks:
    """Checks the global memory of one launch."""

    def __init__(self, run: KernelRun, events: Events, granule: int, written: set[Allocation] | None) -> None:
        self.events = events
        self.race, self.init = "race" in run.checks, "init" in run.checks
        self.benign = "benign" in run.checks
        # whether blocks can race with each other
        self.grid = self.race and run.config.blocks > 1
        self.layout = grid_layout(run.config.blocks, run.config.threads)
        self.granule = granule
        self.shift = granule.bit_length() - 1
        # the allocations that the launch may store to; None: it may store to any
        self.written = written
        self.shadows: dict[Allocation, _Shadow | None] = {}
        self.bytes = 0
        self.chains = GridChains(run.config.blocks)
        # whether strong accesses have a scope that may leave out other blocks
        self.narrow = False

    def _shadow(self, allocation: Allocation) -> _Shadow | None:
        """The record of an allocation; None if nothing of it is checked."""
        if allocation in self.shadows:
            return self.shadows[allocation]
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
                shadow.reads = Table(len(allocation.store) >> self.shift, self.layout)
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

    def read(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int, order: BatchOrder) -> None:
        allocation: Allocation = piece.home
        shadow = self._shadow(allocation)
        if shadow is None:
            return
        self.narrow |= access.strong and access.scope < DEVICE
        count = access.size >> self.shift
        shadow.units |= access.unit
        writes = shadow.writes
        if shadow.undefined is not None:
            self._check_defined(f, access, piece, shadow, count)
        if not shadow.races:
            return
        if writes is not None:
            words = writes.words(piece.index, count)
            if np.count_nonzero(words):
                self._compare(f, access, piece, count, shadow, words, order)
        if shadow.reads is not None and (self.benign or not access.site.confirmed):
            index = indices(piece.index, piece.lanes.count)
            shadow.reads.note(index, count, self._words(event, order, piece.lanes, access.strong), _EVER)

    def writers(self, access: MemoryAccess, piece: Piece) -> tuple[Array, Array, Array] | None:
        """The last stores of the launch to the elements of a piece: events, blocks of the grid and threads (negative if
        unknown). None if there were none."""
        shadow = self.shadows.get(piece.home)
        if shadow is None or shadow.writes is None or not shadow.races:
            return None
        words = shadow.writes.words(piece.index, access.size >> self.shift)
        if not np.count_nonzero(words):
            return None
        words = np.unique(words)
        words = words[words != 0]
        return self.layout.event(words), self.layout.owner(words), self.layout.thread(words)

    def check_defined(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        allocation: Allocation = piece.home
        shadow = self._shadow(allocation)
        if shadow is not None and shadow.undefined is not None:
            self._check_defined(f, access, piece, shadow, access.size >> self.shift)

    def write(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        event: int,
        values: Array | None,
        order: BatchOrder,
    ) -> None:
        """Check and note a store of ``values`` (one per lane or one for all) or an atomic (None), before it happens."""
        allocation: Allocation = piece.home
        shadow = self._shadow(allocation)
        if shadow is None:
            return
        self.narrow |= access.strong and access.scope < DEVICE
        count = access.size >> self.shift
        if shadow.writes is None:
            self.bytes += 8 * (len(allocation.store) >> self.shift)
            shadow.writes = Table(len(allocation.store) >> self.shift, self.layout)
        writes = shadow.writes
        if not shadow.races:
            view = writes.first if count == 1 else writes.first.reshape(-1, count)
            view[piece.index] = STRONG
            return
        shadow.units |= access.unit
        index = indices(piece.index, piece.lanes.count)
        old = writes.words(index, count)
        self._compare_all(f, access, piece, count, shadow, old, order, values)
        lost = writes.note(index, count, self._words(event, order, piece.lanes, access.strong), _EVER, old)
        each = values is not None and values.ndim == (1 if access.count == 1 else 2)
        apart = access.strong and access.scope < DEVICE
        if lost is None or not (apart or (values is not None and not access.strong and (each or self.benign))):
            return
        # the last lane wins
        ranked = np.argsort(index, kind="stable")
        winner = ranked[np.searchsorted(index[ranked], index[lost], side="right") - 1]
        why = None
        if apart:
            blocks = piece.lanes.block
            wrong = self._needed(blocks.take(lost), blocks.take(winner), order) > access.scope
        else:
            wrong, why = benign.overwritten(values if each else None, lost, winner, piece.lanes.warp, self.benign)
        if wrong.any():
            one, other = int(lost[wrong][0]), int(winner[wrong][0])
            lane = int(piece.lanes.lanes[other])
            block, thread = divmod(lane, order.threads)
            culprits = WrongLanes(f, access, piece, one, lost[wrong])
            self._report(culprits, event, order.first_block + block, thread, same=not apart, why=why)

    def start_write(
        self, f: Fragment, access: MemoryAccess, piece: Piece, values: Array | None, order: BatchOrder
    ) -> None:
        """Check a store or an atomic (``values``: None) that begins now, and which ``write`` notes when it happens."""
        allocation: Allocation = piece.home
        shadow = self._shadow(allocation)
        if shadow is None or not shadow.races:
            return
        count = access.size >> self.shift
        old = None if shadow.writes is None else shadow.writes.words(indices(piece.index, piece.lanes.count), count)
        self._compare_all(f, access, piece, count, shadow, old, order, values)

    def _words(self, event: int, order: BatchOrder, lanes: LaneSet, strong: bool) -> Array:
        return self._owners(order, lanes) + ((event << self.layout.shift) | strong)

    def _owners(self, order: BatchOrder, lanes: LaneSet) -> Array:
        """The lanes as owners, in the bits of a word."""
        inner = self.layout.inner
        key = ("owners", inner)
        found: Array | None = lanes.cache.get(key)
        if found is None:
            thread = lanes.pick(lanes.geometry.thread) if inner else 0
            found = lanes.cache[key] = ((lanes.block << inner) | thread) << 1
        return found + (order.first_block << (inner + 1))

    # ---- faults ----

    def _check_defined(self, f: Fragment, access: MemoryAccess, piece: Piece, shadow: _Shadow, count: int) -> None:
        if shadow.undefined is None or not (undefined := gather(shadow.undefined, piece.index, count)).any():
            return
        missing = undefined != 0
        if shadow.writes is not None:
            missing = missing & (shadow.writes.words(piece.index, count) == 0)
        if not missing.any():
            return
        unwritten_load(f, access, piece, missing, count)

    def _compare_all(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        count: int,
        shadow: _Shadow,
        old: Array | None,
        order: BatchOrder,
        values: Array | None,
    ) -> None:
        """Compare a write with the earlier writes, the words ``old``, and the earlier reads of its granules."""
        if old is not None and np.count_nonzero(old):
            self._compare(f, access, piece, count, shadow, old, order, values=values)
        if shadow.reads is not None:
            words = shadow.reads.words(piece.index, count)
            if np.count_nonzero(words):
                self._compare(f, access, piece, count, shadow, words, order, reads=True)

    def _compare(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        count: int,
        shadow: _Shadow,
        words: Array,
        order: BatchOrder,
        *,
        reads: bool = False,
        values: Array | None = None,
    ) -> None:
        """Compare an access with the earlier writes (``reads``: reads) of its granules; ``words`` are the last ones."""
        table = shadow.reads if reads else shadow.writes
        if table is None:
            return
        layout, index = self.layout, piece.index
        met = self.chains.everywhere()
        if met:
            # after a barrier of the grid all accesses before it are ordered; earlier words are of earlier events
            met = min(met, int(order.floor.min()))
            if not np.count_nonzero(words >= (met + 1) << layout.shift):
                return
        own = self._owners(order, piece.lanes)
        if count > 1:
            own = own[:, None]
        for found in (words, table.others(index, count), table.peers(index, count)):
            if found is None:
                continue
            wide = found if found.ndim == (2 if count > 1 else 1) else found[None]
            apart = (wide ^ own) & layout.anyone
            wrong = (wide != 0) & (apart != 0)
            if not np.count_nonzero(wrong):
                continue
            # events up to the block's last barrier are ordered for threads of the same block
            floor = (order.floor.take(piece.lanes.block) + 1) << layout.shift
            wrong &= (apart & layout.who != 0) | (wide >= (floor[:, None] if count > 1 else floor))
            if access.strong:
                weak = wide & STRONG == 0
                if self.narrow:
                    weak = weak | self._out_of_scope(access, piece, order, np.broadcast_to(wide, wrong.shape), wrong)
                if mixed_sizes.several(shadow.units):
                    weak = weak | mixed_sizes.torn(self.events, access, layout.event(wide), wrong & ~weak)
                wrong &= weak
            if not np.count_nonzero(wrong):
                continue
            wide = np.broadcast_to(wide, wrong.shape)
            harmless = benign.races(
                self.events, access, piece, layout, wide, wrong, reads=reads, values=values, wanted=self.benign
            )
            if harmless is not None and not self.benign:
                wrong &= ~harmless
            self._drop_ordered(piece, count, shadow, order, wide, wrong, reads)
            if not wrong.any():
                continue
            wrong, why = benign.reported(wrong, harmless, values)
            lanes: Array = np.logical_or.reduce(wrong, axis=1) if count > 1 else wrong
            culprits = WrongLanes.where(f, access, piece, lanes)
            first = culprits.first
            word = wide[first] if count == 1 else wide[first][wrong[first]][0]
            block, thread = int(layout.owner(word)), int(layout.thread(word))
            self._report(culprits, int(layout.event(word)), block, thread if layout.inner else None, why=why)

    def _out_of_scope(self, access: MemoryAccess, piece: Piece, order: BatchOrder, words: Array, wrong: Array) -> Array:
        """A mask of the strong accesses ``words``, among ``wrong``, that are not morally strong with a strong access:
        the scope of one leaves out the block of the other."""
        cells = np.nonzero(wrong & (words & STRONG != 0))
        found = np.zeros(wrong.shape, np.bool_)
        if len(cells[0]):
            blocks = self.layout.owner(words[cells])
            mine = piece.lanes.block.take(cells[0]) + order.first_block
            scopes = self._scopes(self.layout.event(words[cells]))
            found[cells] = np.minimum(scopes, access.scope) < self._needed(mine, blocks, order)
        return found

    def _scopes(self, numbers: Array) -> Array:
        """The scopes of the accesses at these events."""
        kinds, which = np.unique(numbers, return_inverse=True)
        return np.array([scope_of(self.events.site(one).instruction) for one in kinds.tolist()])[which]

    @staticmethod
    def _needed(mine: Array, other: Array, order: BatchOrder) -> Array:
        """The scope that includes two blocks of the grid."""
        size = order.cluster_size
        near = mine // size == other // size if size > 1 else mine == other
        found: Array = np.where(mine == other, BLOCK, np.where(near, CLUSTER, DEVICE))
        return found

    def _drop_ordered(
        self,
        piece: Piece,
        count: int,
        shadow: _Shadow,
        order: BatchOrder,
        words: Array,
        wrong: Array,
        reads: bool,
    ) -> None:
        """Clear the cells of ``wrong`` whose earlier access, in ``words``, happened before the current one."""
        cells = np.nonzero(wrong)
        if not len(cells[0]):
            return
        layout, found = self.layout, words[cells]
        lanes = piece.lanes.lanes[cells[0]]
        block, thread, event = layout.owner(found), layout.thread(found), layout.event(found)
        mine = lanes // order.threads + order.first_block
        ordered = np.zeros(len(lanes), np.bool_)
        near = np.flatnonzero(block == mine)
        if len(near):
            theirs = (block[near] - order.first_block) * order.threads + thread[near]
            ordered[near] = order.ordered(lanes[near], theirs, event[near], reads)
        far = np.flatnonzero(block != mine)
        if len(far) and order.cluster_size > 1 and layout.inner:
            ordered[far] = self._known_in_cluster(order, lanes[far], block[far], thread[far], event[far])
            far = far[~ordered[far]]
        if len(far):
            ordered[far] = self.chains.all_ordered(block[far], thread[far], event[far], order, lanes[far])
        if not reads:
            left = np.flatnonzero(~ordered & (found & STRONG != 0))
            if len(left):
                places = tuple(axis[left] for axis in cells)
                ordered[left] = self._seen(piece, count, shadow, order, places, lanes[left], found[left])
        wrong[tuple(axis[ordered] for axis in cells)] = False

    @staticmethod
    def _known_in_cluster(order: BatchOrder, lanes: Array, blocks: Array, threads: Array, events: Array) -> Array:
        """Whether accesses by threads of other blocks happen before now for lanes of their cluster."""
        found = np.zeros(len(lanes), np.bool_)
        other = blocks - order.first_block
        near = np.flatnonzero(other // order.cluster_size == lanes // order.threads // order.cluster_size)
        theirs = other[near] * order.threads + threads[near]
        found[near] = order.cluster_knows(lanes[near], theirs, events[near])
        return found

    def _seen(
        self,
        piece: Piece,
        count: int,
        shadow: _Shadow,
        order: BatchOrder,
        cells: tuple[Array, ...],
        lanes: Array,
        found: Array,
    ) -> Array:
        """Whether strong writes, the words ``found``, were seen by later strong accesses of the same granules, which
        happened before the current accesses of ``lanes``. A write is ordered before everything that follows a strong
        read which observes it, directly or through other atomics: the last block may reset its counter by a plain
        store."""
        layout = self.layout
        out = np.zeros(len(lanes), np.bool_)
        for table in (shadow.writes, shadow.reads):
            if table is None:
                continue
            words = table.words(piece.index, count)
            shape = (piece.lanes.count, count) if count > 1 else (piece.lanes.count,)
            words = np.broadcast_to(words, shape)[cells]
            mine = lanes // order.threads + order.first_block
            # lanes of one instruction take effect in their order, which is that of the words
            good = (words & STRONG != 0) & (layout.owner(words) == mine) & (words > found)
            if self.narrow:
                some = np.flatnonzero(good)
                scopes = np.minimum(self._scopes(layout.event(words[some])), self._scopes(layout.event(found[some])))
                good[some] = scopes >= self._needed(mine[some], layout.owner(found[some]), order)
            if layout.inner:
                some = np.flatnonzero(good)
                theirs = (mine[some] - order.first_block) * order.threads + layout.thread(words[some])
                held = theirs == lanes[some]
                held |= order.ordered(lanes[some], theirs, layout.event(words[some]), True)
                good[some] = held
            out |= good
        return out

    @staticmethod
    def _address(wrong: WrongLanes) -> int:
        """The address that the reported lane accesses."""
        piece = wrong.piece
        place = int(positions(piece.index, piece.lanes.count)[wrong.first])
        base: int = piece.home.base
        return base + place * wrong.access.size

    def _report(
        self,
        wrong: WrongLanes,
        event: int,
        block: int,
        thread: int | None,
        *,
        same: bool = False,
        why: str | None = None,
    ) -> NoReturn:
        """Report the race with an access by a thread of a block of the grid at an event. ``same``: both accesses are of
        one instruction. ``why``: the reason why the race is benign, if it is."""
        allocation: Allocation = wrong.piece.home
        address = self._address(wrong)
        f = wrong.f
        position = int(wrong.piece.lanes.lanes[wrong.first])
        near = f.batch.first_block + position // f.batch.geometry.threads == block
        whose = "another thread of the block" if near else "another block"
        what = f"not synchronised with an access by {whose}"
        advice = "use atomics, a flag with release and acquire order, or two launches"
        if same and why is None:
            what = f"to which {whose} stores another value in the same instruction"
            advice = "let one thread store, or use atomics"
        elif near:
            advice = "put __syncthreads() between the two accesses (__syncwarp() within one warp), or use atomics"
        if mixed_sizes.differ(wrong.access, self.events.site(event)):
            what, advice = f"of another size than an unordered access by {whose}", mixed_sizes.ADVICE
        fail(
            wrong,
            "global memory race" if why is None else "benign race",
            f"{wrong.access.named} at {address:#x}, {address - allocation.address} bytes into the {allocation.kind} "
            f"allocation of {allocation.size} bytes, {what}",
            Conflict(self.events.site(event), block, thread),
            address=address,
            allocation=allocation,
            notes=[advice] if why is None else [why, benign.ADVICE],
        )


def places_of(access: MemoryAccess, piece: Piece) -> Array:
    """The byte of global memory that each lane accesses, as a number that is equal for equal bytes."""
    index: Any = positions(piece.index, piece.lanes.count)
    found: Array = index * access.size + piece.home.base
    return found
