"""Races and uninitialised reads in the shared memory of a batch's blocks.

Two accesses of one granule by different threads are a race if at least one writes, at least one is not strong or their
sizes differ (mixed_sizes.py), and they are unordered (ordering.py). Benign races (benign.py) are not reported unless
"benign" is among the checks: in many kernels every thread stores the same value.

Uninitialised elements that are loaded are undefined values (stored_values.py), reported once they are used.

A granule is 4 bytes, or 1 if the kernel accesses shared memory in smaller units. Reads are entered in the table of
reads only once a thread writes in the same interval: most intervals between two barriers only read.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from cudakit.sim.checks import benign, mixed_sizes
from cudakit.sim.checks.events import Events
from cudakit.sim.checks.failures import Conflict, WrongLanes, fail
from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.releases import GridChains
from cudakit.sim.checks.shadow import IN_FLIGHT, LANES, STRONG, Table, number
from cudakit.sim.checks.stored_values import unwritten_load
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment, Store
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.pieces import Piece, gather, indices, positions
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.warpgroup_operands import WARPS

# the most reads (and their lanes) kept out of the table in an interval without writes; with more, they are entered
_READS_KEPT = 256
_READ_LANES_KEPT = 1 << 21
# how many times to test whether all of shared memory is initialised
_LOOKS = 8
# the bits of a word that are equal for the lanes of one warp
_NO_BITS = number(0)
_WARPS = number(int(LANES.who) & ~(31 << 1))


class _PendingRead(NamedTuple):
    event: int
    index: Any
    lanes: LaneSet
    granules: int
    strong: bool


class SharedChecks:
    """Checks the shared memory of one batch. ``order`` is the order of the batch's accesses, ``grid_chains`` that
    between blocks; the first ``reserved`` bytes of each block count as initialised."""

    def __init__(
        self,
        batch: Batch,
        store: Store,
        events: Events,
        order: BatchOrder,
        grid_chains: GridChains,
        granule: int,
        reserved: int,
    ) -> None:
        run = batch.run
        self.batch, self.events, self.order, self.grid_chains = batch, events, order, grid_chains
        self.race, self.init = "race" in run.checks, "init" in run.checks
        self.benign = "benign" in run.checks
        self.shift = granule.bit_length() - 1
        self.granules = store.stride >> self.shift
        self.writes = Table(batch.geometry.blocks * self.granules, LANES)
        self.reads = Table(batch.geometry.blocks * self.granules, LANES)
        # the padding after each block's memory counts as written
        rows = self.writes.first.reshape(-1, self.granules)
        rows[:, -(-run.shared_bytes >> self.shift) :] = STRONG
        rows[:, : reserved >> self.shift] = STRONG
        self.full = False
        self.looks = _LOOKS
        # all blocks have passed a barrier since this event; words below `low` are before it
        self.low_event = 0
        self.low = number(1 << LANES.shift)
        self.pending: list[_PendingRead] = []
        self.pending_lanes = 0
        self.last_write = self.last_read = 0
        # the union of the units of strong accesses
        self.units = 0
        # the checks of asynchronous accesses
        self.proxy: Any = None
        # granules that copies in flight will write
        self.flying = 0
        # the last access to each block's memory by another block: its event and lane
        self.far_event = np.zeros(batch.geometry.blocks, np.int64)
        self.far_lane = np.zeros(batch.geometry.blocks, np.int64)

    # ---- synchronisation ----

    def passed(self, all_blocks: bool) -> None:
        """Note that ``order`` has recorded a barrier, of all blocks or of some."""
        if not self.full and self.last_write > self.low_event and self.looks:
            self.looks -= 1
            self.full = bool(self.writes.first.all())
        if self.order.cluster_floor is None:
            self._lower(all_blocks)

    def passed_cluster(self) -> None:
        """Note that ``order`` has recorded a barrier of clusters."""
        if self.order.cluster_floor is None:
            self.passed(False)
        else:
            self._lower(False)

    def _lower(self, all_blocks: bool) -> None:
        order = self.order
        floors = order.floor if order.cluster_floor is None else np.repeat(order.cluster_floor, order.cluster_size)
        if not all_blocks:
            floors = floors[self.batch.live_blocks > 0]
        self.low_event = int(floors.min()) if len(floors) else self.low_event
        self.low = number((self.low_event + 1) << LANES.shift)
        if self.pending:
            self.pending = [read for read in self.pending if read.event > self.low_event]
            self.pending_lanes = sum(read.lanes.count for read in self.pending)

    def leave(self, f: Fragment) -> None:
        """Report accesses to another block's shared memory that may happen after that block has exited, which frees the
        memory."""
        order = self.order
        if order.cluster_met is None:
            return
        gone = (f.lanes.block_counts > 0) & (self.batch.live_blocks == 0)
        floors = np.repeat(order.cluster_met, order.cluster_size)
        threads, before = self.batch.geometry.threads, self.batch.first_block
        for block in np.flatnonzero(gone & (self.far_event > floors)).tolist():
            event, lane = int(self.far_event[block]), int(self.far_lane[block])
            per_block, inner = self.batch.geometry.warps_per_block, self.batch.geometry.warp[lane] % order.columns
            if int(order.known[block * per_block : (block + 1) * per_block, inner].max()) >= event:
                continue
            if self.grid_chains.reached(before + lane // threads, lane % threads, event, before + block):
                continue
            site = self.events.site(event)
            f.alone(lane).fail(
                site.instruction,
                "use after free",
                f"{site.kind} of the shared memory of block {self.batch.block_index(block)} of the cluster, which may "
                "already have exited: synchronise the cluster (cluster.sync()) after the last such access",
                space="shared",
                access=site.kind,
            )

    def note_far(self, block: int, lane: int, event: int) -> None:
        """Note that a lane of another block needs the memory of a block."""
        self.far_event[block], self.far_lane[block] = event, lane

    def _note_far(self, access: MemoryAccess, piece: Piece, event: int) -> None:
        """Note accesses to other blocks' shared memory."""
        store = piece.home
        block = positions(piece.index, piece.lanes.count) * access.size // store.stride
        far = block != piece.lanes.block
        if far.any():
            self.far_event[block[far]] = event
            self.far_lane[block[far]] = piece.lanes.lanes[far]

    # ---- accesses ----

    def read(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int) -> None:
        if self.order.cluster_floor is not None:
            self._note_far(access, piece, event)
        self.units |= access.unit
        count = access.size >> self.shift
        if not self.full or self.flying or self.last_write > self.low_event:
            words = self.writes.words(piece.index, count)
            if self.init and not self.full and np.count_nonzero(words) < words.size:
                self._undefined(f, access, piece, words)
            if self.race or self.flying:
                self._compare(f, access, piece, count, self.writes, words)
        if not self.race or (access.site.confirmed and not self.benign):
            return
        self.pending.append(_PendingRead(event, piece.index, piece.lanes, count, access.strong))
        self.pending_lanes += piece.lanes.count
        if len(self.pending) > _READS_KEPT or self.pending_lanes > _READ_LANES_KEPT:
            self._enter_reads(crowded=True)

    def check_defined(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        if self.init and not self.full:
            words = self.writes.words(piece.index, access.size >> self.shift)
            if np.count_nonzero(words) < words.size:
                self._undefined(f, access, piece, words)

    def write(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int, values: Array | None) -> None:
        """Check and note a store of ``values`` (one per lane or one for all) or an atomic (None), before it happens."""
        count = access.size >> self.shift
        index = positions(piece.index, piece.lanes.count)
        lost = self._entered(f, access, piece, index, count, event, values, 0)
        each = values is not None and values.ndim == (1 if access.count == 1 else 2)
        if lost is None or values is None or access.strong or not self.race or not (each or self.benign):
            return
        winner = np.searchsorted(piece.lanes.lanes, LANES.owner(gather(self.writes.first, index[lost], count)))
        if count > 1:
            winner = winner[:, 0]
        wrong, why = benign.overwritten(values if each else None, lost, winner, piece.lanes.warp, self.benign)
        if wrong.any():
            one, other = int(lost[wrong][0]), int(winner[wrong][0])
            lane = int(piece.lanes.lanes[other])
            self._report(WrongLanes(f, access, piece, one, lost[wrong]), access.site, lane, same=True, why=why)

    def issue(self, f: Fragment, access: MemoryAccess, piece: Piece, event: int) -> None:
        """Check and note a cp.async into shared memory, which is in flight from now on."""
        count = access.size >> self.shift
        index = positions(piece.index, piece.lanes.count)
        self._entered(f, access, piece, index, count, event, None, IN_FLIGHT)
        self.flying += len(index)

    def land(self, ids: Array, index: Array, access: MemoryAccess, event: int) -> None:
        """Note that the lanes that issued copies have waited for them: the copies count as stores made now."""
        count = access.size >> self.shift
        self.flying -= len(index)
        self.last_write = event
        self.writes.note(index, count, (event << LANES.shift) + (ids << 1), self.low)

    def land_transfer(self, access: MemoryAccess, piece: Piece, event: int) -> None:
        """Note that an asynchronous copy writes its destination now."""
        count, index = access.size >> self.shift, positions(piece.index, piece.lanes.count)
        self.flying -= len(index)
        self.last_write = event
        self.writes.note(index, count, self._words(event, piece.lanes, access.strong), self.low)

    def note_read(self, access: MemoryAccess, piece: Piece, event: int) -> None:
        """Note a read that needs no check: the end of an asynchronous one."""
        self.pending.append(_PendingRead(event, piece.index, piece.lanes, access.size >> self.shift, access.strong))
        self.pending_lanes += piece.lanes.count

    def ordered(self, mine: Array, theirs: Array, since: Array) -> Array:
        """Whether events ``since`` of lanes ``theirs`` happen before now for the lanes ``mine``."""
        return self._ordered(mine, theirs, since, False)

    def _entered(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        index: Array,
        count: int,
        event: int,
        values: Array | None,
        flight: int,
    ) -> Array | None:
        if self.order.cluster_floor is not None:
            self._note_far(access, piece, event)
        self.units |= access.unit
        if self.proxy is not None and (self.proxy.readings or self.batch.asynchrony.mbarriers.at):
            self.proxy.check_write(f, access, piece, index)
        if self.pending:
            self._enter_reads()
        old = None
        if self.flying or self.last_write > self.low_event:
            old = self.writes.words(index, count)
            self._compare(f, access, piece, count, self.writes, old, values)
        if self.last_read > self.low_event:
            self._compare(f, access, piece, count, self.reads, self.reads.words(index, count))
        self.last_write = event
        words = self._words(event, piece.lanes, access.strong | flight)
        if old is None:
            return self.writes.enter(index, count, words)
        return self.writes.note(index, count, words, self.low, old)

    @staticmethod
    def _owners(lanes: LaneSet) -> Array:
        """The lanes as owners, in the bits of a word."""
        found: Array | None = lanes.cache.get("shared owners")
        if found is None:
            found = lanes.cache["shared owners"] = lanes.lanes << 1
        return found

    def _words(self, event: int, lanes: LaneSet, flags: int) -> Array:
        return self._owners(lanes) + ((event << LANES.shift) | flags)

    def _enter_reads(self, crowded: bool = False) -> None:
        """Enter the pending reads in the table. ``crowded``: there are many; skip reads of cells that already have two
        readers."""
        pending, self.pending, self.pending_lanes = self.pending, [], 0
        for event, index, lanes, count, strong in pending:
            places, words = _ends(indices(index, lanes.count), lanes, self._words(event, lanes, strong))
            earlier, self.last_read = self.last_read, event
            if earlier <= self.low_event:
                self.reads.enter(places, count, words)
            elif not (crowded and self.reads.taken(places, count, self.low)):
                self.reads.note(places, count, words, self.low)

    # ---- faults ----

    def _undefined(self, f: Fragment, access: MemoryAccess, piece: Piece, words: Array) -> None:
        unwritten_load(f, access, piece, words == 0, access.size >> self.shift)

    def _byte(self, wrong: WrongLanes) -> int:
        """The byte of its block's shared memory that the reported lane accesses."""
        piece = wrong.piece
        place = int(positions(piece.index, piece.lanes.count)[wrong.first]) * wrong.access.size
        return place % (self.granules << self.shift)

    def _compare(
        self,
        f: Fragment,
        access: MemoryAccess,
        piece: Piece,
        count: int,
        table: Table,
        last: Array,
        values: Array | None = None,
    ) -> None:
        """Compare an access with earlier accesses to its granules since the last barrier of all blocks. ``last`` are
        the last ones."""
        late = last >= self.low
        if not np.count_nonzero(late):
            return
        index = indices(piece.index, piece.lanes.count)
        if index is not piece.index:
            last = table.words(index, count)
        for words in (last, table.others(index, count)):
            if words is None:
                continue
            wrong = self._unordered(words, piece, access, table is self.reads)
            early = None
            if self.proxy is not None and self.race and table is self.writes:
                early = self.proxy.unwaited(words, self.low, piece.lanes, access.strong)
            if early is not None:
                wrong = early
            if wrong is None:
                continue
            # a race with a copy in flight is never benign
            still, reads = wrong & (words < IN_FLIGHT) & (early is None), table is self.reads
            harmless = benign.races(
                self.events, access, piece, LANES, words, still, reads=reads, values=values, wanted=self.benign
            )
            if harmless is not None and not self.benign:
                wrong &= ~harmless
            if not wrong.any():
                continue
            wrong, why = benign.reported(wrong, harmless, values)
            lanes: Array = wrong if wrong.ndim == 1 else np.logical_or.reduce(wrong, axis=1)
            culprits = WrongLanes.where(f, access, piece, lanes)
            first = culprits.first
            word = words[first] if wrong.ndim == 1 else words[first][wrong[first]][0]
            site = self.events.site(int(LANES.event(word)))
            self._report(
                culprits, site, int(LANES.owner(word)), moving=early is not None or int(word) >= IN_FLIGHT, why=why
            )

    def _unordered(self, words: Array, piece: Piece, access: MemoryAccess, were_reads: bool) -> Array | None:
        """A mask of the granules at which an access to a piece races with the access that a word describes (a read if
        ``were_reads``); None if there is no race."""
        lanes, own = piece.lanes, self._owners(piece.lanes)
        if words.ndim > 1:
            own = own[:, None]
        apart = (words ^ own) & LANES.anyone
        # the cheap and most frequent cases first: the same thread, accesses before the last barrier, and the same warp,
        # ordered by a bar.warp.sync of all its lanes
        if not self.flying and not np.count_nonzero(apart):
            return None
        wrong: Array = (words >= self.low) & (apart != _NO_BITS)
        if self.flying:
            wrong |= words >= IN_FLIGHT
        if not np.count_nonzero(wrong) or self._met(words, lanes):
            return None
        moving = words >= IN_FLIGHT
        if self.batch.geometry.whole_warps:
            low = self.order.warp_low.take(lanes.warp)
            wrong &= (apart & _WARPS != _NO_BITS) | (words >= (low[:, None] if own.ndim > 1 else low))
            if not np.count_nonzero(wrong):
                return None
        if access.strong:
            weak = words & STRONG == 0
            if mixed_sizes.several(self.units):
                weak |= mixed_sizes.torn(self.events, access, LANES.event(words), wrong & ~weak)
            if "volatile" in access.site.instruction.modifiers:
                weak |= self._volatile_data(words, wrong, piece)
            # reductions in flight do not race with each other
            wrong &= weak
        if not self.race:
            wrong &= moving
        cells = np.nonzero(wrong & ~moving)
        if len(cells[0]):
            # asynchronous accesses of one lane have long runs of equal words
            found, mine = words[cells], lanes.lanes[cells[0]]
            starts = np.append(True, (found[1:] != found[:-1]) | (mine[1:] != mine[:-1])).nonzero()[0]
            counts = np.diff(starts, append=len(found))
            found, mine = found[starts], mine[starts]
            since = LANES.event(found)
            if self.proxy is not None and not were_reads:
                since = self.proxy.issues(since)
            ordered = self._ordered(mine, LANES.owner(found), since, were_reads).repeat(counts)
            wrong[tuple(axis[ordered] for axis in cells)] = False
        return wrong if np.count_nonzero(wrong) else None

    def _met(self, words: Array, lanes: LaneSet) -> bool:
        """Whether the words are of one access, which barriers of part of the block order before this one. With named
        barriers this is the usual case, and need not look at each lane."""
        order = self.order
        if not order.gathered or order.cluster_floor is not None:
            return False
        first = int(words.flat[0])
        if first >= IN_FLIGHT or np.count_nonzero((words ^ first) >> LANES.shift):
            return False
        event = first >> LANES.shift
        others = self.events.lanes(event)
        return others is not None and order.barriers_order(event, others, lanes)

    def _ordered(self, mine: Array, theirs: Array, since: Array, were_reads: bool) -> Array:
        """Whether accesses by lanes ``theirs`` at events ``since`` happen before the current accesses of ``mine``."""
        found = self._lanes_ordered(mine, theirs, since, were_reads)
        left = np.flatnonzero(~found)
        if not were_reads or not len(left):
            return found
        # The reads of a product count as those of the warpgroup's first lane. All of its threads have waited for it, so
        # any other one may signal that the memory is free, too.
        events, places = np.unique(since[left], return_inverse=True)
        products = np.array([self.events.site(event).instruction.opcode == "wgmma" for event in events.tolist()])
        left = left[products[places]]
        threads, warp = self.batch.geometry.threads, self.batch.geometry.warp
        for further in range(0, 32 * WARPS, 32):
            left = left[~found[left] & (theirs[left] % threads + further < threads)]
            others = theirs[left] + further
            own = warp[mine[left]] == warp[others]
            found[left] = own | self._lanes_ordered(mine[left], others, since[left], were_reads)
        return found

    def _lanes_ordered(self, mine: Array, theirs: Array, since: Array, were_reads: bool) -> Array:
        order, threads = self.order, self.batch.geometry.threads
        if order.cluster_floor is None:
            return order.ordered(mine, theirs, since, were_reads)
        block, other = mine // threads, theirs // threads
        found: Array = since <= order.cluster_floor[block // order.cluster_size]
        near = np.flatnonzero(~found & (block == other))
        if len(near):
            found[near] = order.ordered(mine[near], theirs[near], since[near], were_reads)
        far = np.flatnonzero(~found & (block != other))
        if len(far):
            found[far] = order.cluster_knows(mine[far], theirs[far], since[far])
            far = far[~found[far]]
        if len(far):
            # blocks of a cluster may also be ordered by flags and fences
            first = self.batch.first_block
            found[far] = self.grid_chains.all_ordered(
                first + other[far], theirs[far] % threads, since[far], order, mine[far]
            )
        return found

    def _volatile_data(self, words: Array, wrong: Array, piece: Piece) -> Array:
        """A mask of the words of ``wrong`` by volatile accesses of the same warp, if the lanes of the warp now access
        several elements by a volatile access: data that the code exchanges as if the warp ran in lockstep. One element
        accessed by all its lanes may be a flag, for which the lanes wait."""
        found = np.zeros(words.shape, np.bool_)
        lanes, warps = piece.lanes, self.batch.geometry.warp
        index = positions(piece.index, lanes.count)
        data = np.zeros(lanes.warp_count, np.bool_)
        data[lanes.warp_rank[index != lanes.spread(index.take(lanes.warp_starts))]] = True
        cells = np.nonzero(wrong & (words & STRONG != 0))
        mine = cells[0]
        owner, event = LANES.owner(words[cells]), LANES.event(words[cells])
        both = data[lanes.warp_rank[mine]] & (warps[owner] == lanes.warp[mine])
        if both.any():
            volatile = {
                int(one): "volatile" in self.events.site(int(one)).instruction.modifiers
                for one in np.unique(event[both])
            }
            both &= [volatile.get(one, False) for one in event.tolist()]
            found[cells] = both
        return found

    def _report(
        self,
        wrong: WrongLanes,
        site: Site,
        lane: int,
        *,
        moving: bool = False,
        same: bool = False,
        why: str | None = None,
    ) -> NoReturn:
        """Report the race with an access by a lane of the batch at a site. ``moving``: that access is a cp.async in
        flight; ``same``: both accesses are of one instruction; ``why``: the reason why the race is benign, if it is."""
        byte = self._byte(wrong)
        what = f"{wrong.access.named} at byte {byte} of shared memory"
        block, thread = divmod(lane, self.batch.geometry.threads)
        mine = int(wrong.piece.lanes.lanes[wrong.first])
        if moving:
            whose = "the same thread" if mine == lane else "another thread"
            kind = "read before cp.async wait"
            detail = f"{what}, which a {site.kind.removesuffix(' store')} of {whose} may not have written yet"
            notes = ["wait for the copy (cp.async.wait_group, __pipeline_wait_prior) first"]
            if mine != lane:
                notes = ["wait for the copy in the thread that issued it, then call __syncthreads()"]
            if site.kind != "cp.async store":
                kind, notes = "read before mbarrier wait", ["wait for the phase of the copy's mbarrier first"]
        else:
            kind = "shared memory race"
            whose, barrier = "another thread of the block", "__syncthreads()"
            if mine // self.batch.geometry.threads != block:
                whose, barrier = "a thread of another block of the cluster", "cluster.sync()"
            elif self.batch.geometry.warp[mine] == self.batch.geometry.warp[lane]:
                # in a race within a block, the first pair found is often within one warp
                whose, barrier = "another thread of the warp", "__syncthreads() (__syncwarp() within one warp)"
            detail = f"{what}, not synchronised with an access by {whose}"
            notes = [f"put {barrier} between the two accesses, or use atomics"]
            if "volatile" in wrong.access.site.instruction.modifiers and "volatile" in site.instruction.modifiers:
                notes = ["volatile does not order accesses of different threads: put __syncwarp() between them"]
            if mixed_sizes.differ(wrong.access, site):
                detail, notes = f"{what}, of another size than an unordered access by {whose}", [mixed_sizes.ADVICE]
            if same and why is None:
                detail = f"{what}, to which {whose} stores another value in the same instruction"
                notes = ["let one thread store, or use atomics"]
            if why is not None:
                kind, notes = "benign race", [why, benign.ADVICE]
        conflict = Conflict(site, self.batch.first_block + block, thread)
        fail(wrong, kind, detail, conflict, address=byte, notes=notes)


def _ends(index: Any, lanes: LaneSet, words: Array) -> tuple[Any, Array]:
    """The index and words of a read; if all lanes of each warp read one element, of only the first and the last lane of
    each warp, since the table keeps no others."""
    if isinstance(index, slice) or not lanes.complete or index[0] != index[31]:
        return index, words
    rows = index.reshape(-1, 32)
    if np.count_nonzero(rows != rows[:, :1]):
        return index, words
    return rows[:, ::31].ravel(), words.reshape(-1, 32)[:, ::31].ravel()
