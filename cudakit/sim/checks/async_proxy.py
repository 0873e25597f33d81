"""The asynchronous proxy: bulk copies, tensor copies and warpgroup products access memory beside the threads.

- A store by a thread is visible to it only after fence.proxy.async by that thread, which must happen before the
  asynchronous access starts.
- What an asynchronous copy writes is there only after a wait for its mbarrier: until then its destination is in flight.
- What an asynchronous access reads must not be overwritten until it has been waited for.

An asynchronous access is checked as one of the lane that starts it: a read when it starts and again once it is
complete, a write from its start on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks, other_of
from cudakit.sim.checks.mbarrier_order import MbarrierOrder, Waits
from cudakit.sim.checks.shadow import IN_FLIGHT, LANES, STRONG
from cudakit.sim.checks.shared_memory import SharedChecks
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.mbarriers import BYTES, Mbarrier
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import GLOBAL, SHARED, Piece, positions
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.transfers import Transfer, Units, same_lane, some_units, unit_lanes

# the accesses to mbarriers, among those by space
_OBJECT = "mbarrier"
# bytes of the chunks in which reads in flight are counted
CHUNK = 16
MISSING_FENCE = "missing proxy fence"
# proxy fences of a thread that are kept; a producer of ordinary stores may be as many buffers ahead of the readers
FENCES = 16


@dataclass(eq=False)
class _Reading:
    """Shared memory that an asynchronous access reads until it is complete: chunks of the batch's memory, as a piece
    whose lanes are the lanes that started it."""

    f: Fragment
    access: MemoryAccess
    piece: Piece
    chunks: Array
    # for a copy between blocks: whether it completes on an mbarrier, and once it has, the waits for that phase; only
    # what comes after one of them may overwrite its source
    arrives: bool = False
    waits: Waits | None = None


class AsyncProxy:
    """The checks of one batch's asynchronous accesses."""

    def __init__(self, guard: BatchChecks) -> None:
        self.guard, self.batch = guard, guard.batch
        lanes = guard.batch.geometry.lanes
        # per lane: its last FENCES fence.proxy.async for shared memory, the latest first; the last for global memory
        self.fenced = np.zeros((FENCES, lanes), np.int64)
        self.fenced_global = np.zeros(lanes, np.int64)
        self.mbarriers = MbarrierOrder(guard)
        self.readings: list[_Reading] = []
        store = guard.batch.shared
        # how many accesses in flight read each chunk of shared memory
        self.reading = np.zeros(len(store.bytes) // CHUNK if store is not None else 0, np.int32)
        # the mbarriers that no fence has made visible to asynchronous copies
        self.unfenced: list[Mbarrier] = []
        # the words of shared memory that are live mbarriers
        self.objects = np.zeros(len(store.bytes) // BYTES if store is not None else 0, np.bool_)
        # the transfers by the events at which they started and at which they wrote
        self.issued: dict[int, Transfer] = {}
        self.landed: dict[int, Transfer] = {}
        # the waits for the phase of each transfer that has written
        self.awaited: dict[int, Waits] = {}
        self._accesses: dict[tuple[int, str], MemoryAccess] = {}

    # ---- fences and mbarriers ----

    def fence(self, f: Fragment, event: int, in_shared: bool, in_global: bool) -> None:
        ids = f.lanes.lanes
        if in_global:
            self.fenced_global[ids] = event
        if not in_shared:
            return
        self.fenced[1:, ids] = self.fenced[:-1, ids]
        self.fenced[0, ids] = event
        self.show_mbarriers(f)

    def show_mbarriers(self, f: Fragment) -> None:
        """Asynchronous copies see the mbarriers that these lanes have initialised."""
        if not self.unfenced:
            return
        ids = set(f.lanes.lanes.tolist())
        for barrier in self.unfenced:
            barrier.fenced = barrier.lane in ids
        self.unfenced = [barrier for barrier in self.unfenced if not barrier.fenced]

    def check_visible(self, f: Fragment, site: Site, barrier: Mbarrier, lanes: LaneSet) -> None:
        """Report the use of an mbarrier by lanes that its initialisation is not ordered before."""
        order, shared = self.guard.order, self.guard.shared
        if shared is None or not barrier.event:
            return
        blocks = lanes.block
        if (blocks == barrier.block).all() and barrier.event <= int(order.floor[barrier.block]):
            return
        ids = lanes.lanes[lanes.lanes != barrier.lane]
        if not len(ids):
            return
        owner, event = np.full(len(ids), barrier.lane), np.full(len(ids), barrier.event)
        wrong = ids[~shared.ordered(ids, owner, event)]
        if len(wrong):
            self._unseen(f, site, barrier, int(wrong[0]), "another thread has initialised and not yet published")

    def _visible(self, barrier: Mbarrier, lane: int) -> bool:
        """Whether a lane's asynchronous copies see an mbarrier: after a fence by the thread that initialised it, or in
        its own block after a barrier of the block, as CUDA's own examples of cuda::memcpy_async assume."""
        order = self.guard.order
        own = lane // order.threads == barrier.block
        return barrier.fenced or (own and barrier.event <= int(order.floor[barrier.block]))

    def _unseen(self, f: Fragment, site: Site, barrier: Mbarrier, lane: int, what: str, *notes: str) -> NoReturn:
        advice = "put __syncthreads() (in a cluster: fence.mbarrier_init and cluster.sync()) after the initialisation"
        self._fail_lane(
            f,
            site,
            lane,
            "mbarrier not initialised",
            f"{site.kind} uses {barrier.named()}, which {what}",
            others=other_of(self.guard, barrier.event, barrier.lane),
            notes=list(notes) or [advice],
        )

    def object_written(self, f: Fragment, barrier: Mbarrier, site: Site, lane: int) -> None:
        """Check and note that a lane initialises or invalidates an mbarrier: a store to its memory."""
        shared = self.guard.shared
        if shared is not None and self.guard.race:
            access, piece = self._object(barrier, site, unit_lanes(self.batch.geometry, np.array([lane])))
            shared.write(f.alone(lane), access, piece, self.guard.events.access(site), None)

    def object_read(self, barrier: Mbarrier, site: Site, lanes: LaneSet, event: int) -> None:
        """Note that lanes use an mbarrier."""
        if self.guard.shared is not None:
            self.guard.shared.note_read(*self._object(barrier, site, lanes), event)

    def _object(self, barrier: Mbarrier, site: Site, lanes: LaneSet) -> tuple[MemoryAccess, Piece]:
        access = self._accesses.get((site.number, _OBJECT))
        if access is None:
            access = self._accesses[site.number, _OBJECT] = MemoryAccess(site, SHARED, 0, BYTES, 1)
        store = self.batch.shared
        if store is None:
            raise RuntimeError("an mbarrier without shared memory")
        index = np.full(lanes.count, barrier.position // BYTES)
        return access, Piece(store.view(access.dtype), index, None, lanes, store)

    # ---- transfers ----

    def start(self, transfer: Transfer) -> None:
        """Check a transfer that starts."""
        guard, f = self.guard, transfer.f
        barrier = transfer.barrier
        if barrier is not None and transfer.destination is not None and not self._visible(barrier, transfer.lane):
            self._unseen(
                f,
                transfer.site,
                barrier,
                transfer.lane,
                "no fence has made visible to asynchronous copies",
                "after mbarrier.init, the thread needs fence.mbarrier_init.release.cluster (or fence.proxy.async)",
            )
        source, target = transfer.source, transfer.destination
        if source is not None:
            source, _ = self._checked(source)
            piece = source.piece(_lanes_of(transfer, len(source.index)))
            guard.read(f, source.access, [piece])
            if transfer.reads_shared:
                self._check_fenced(f, source.access, piece)
                transfer.token = self._hold(f, source.access, piece, arrives=barrier is not None)
            elif isinstance(source.home, Allocation):
                self._check_global(f, source.access, piece)
        if barrier is not None and guard.race:
            transfer.knows = guard.order.knowledge(self.batch.geometry.warp[transfer.lane, None])[0]
        if target is not None and transfer.writes_shared and guard.shared is not None:
            piece = target.piece(_lanes_of(transfer, len(target.index)))
            event = guard.events.access(target.access.site)
            self.issued[event] = transfer
            transfer.event = event
            guard.shared.issue(f, target.access, piece, event)
        elif target is not None and guard.race and isinstance(target.home, Allocation):
            units, _ = self._checked(target)
            piece = units.piece(_lanes_of(transfer, len(units.index)))
            guard.memory.start_write(f, units.access, piece, _values(transfer, units), guard.order)

    def taken(self, transfer: Transfer) -> None:
        if transfer.token is None:
            return
        if transfer.barrier is None:
            self.release(transfer.token)
        elif self.guard.race:
            transfer.token.waits = self.mbarriers.waits(transfer.barrier)
        else:
            self._drop(transfer.token, transfer.token.chunks)
        transfer.token = None

    def lands(self, transfer: Transfer) -> None:
        """Note that a transfer writes its destination now."""
        guard, target = self.guard, transfer.destination
        if target is None:
            return
        target, partly = self._checked(target)
        piece = target.piece(_lanes_of(transfer, len(target.index)))
        event = guard.events.last()
        if transfer.writes_shared and guard.shared is not None:
            event = guard.events.access(target.access.site)
            self.issued.pop(transfer.event, None)
            self.landed[event] = transfer
            guard.shared.land_transfer(target.access, piece, event)
        elif transfer.combine is not None:
            guard.update(transfer.f, target.access, [piece], reads=True)
        elif (values := _values(transfer, target)) is not None:
            guard.write(transfer.f, target.access, [piece], values)
        if partly is not None:
            undefined = target.home.undefined_bytes()
            if undefined is not None:
                undefined[partly] = 0
        if transfer.barrier is not None:
            self.mbarriers.publish(transfer.barrier, transfer.lane, transfer.event, transfer.knows)
            if event in self.landed:
                self.awaited[event] = self.mbarriers.waits(transfer.barrier)

    def issues(self, events: Array) -> Array:
        """The events, with the issue of each transfer that has written in place of the event at which it did: what its
        thread does later is not ordered by a wait for the transfer."""
        if not self.awaited:
            return events
        issued = [self.landed[event].event if event in self.awaited else event for event in events.tolist()]
        return np.array(issued, np.int64)

    def unwaited(self, words: Array, low: int, lanes: LaneSet, strong: bool) -> Array | None:
        """A mask of the words of transfers whose phase no thread has waited for that the lanes are, or come after; None
        if there are none. ``words``: the last writes, one per lane or one row per lane. ``strong``: except those of
        reductions."""
        if not self.awaited:
            return None
        flat, width = words.ravel(), words.size // lanes.count
        # runs of equal words are long: one transfer has written them
        starts = np.append(True, flat[1:] != flat[:-1]).nonzero()[0]
        ends = np.append(starts[1:], len(flat))
        here = flat[starts]
        late = (here >= low) & (here < IN_FLIGHT)
        if strong:
            late &= here & STRONG == 0
        events = LANES.event(here)
        phases = {event: self.awaited[event] for event in np.unique(events[late]).tolist() if event in self.awaited}
        late &= np.isin(events, list(phases))
        found = None
        for run in np.flatnonzero(late).tolist():
            start, end, waits = int(starts[run]), int(ends[run]), phases[int(events[run])]
            ids = lanes.lanes[start // width : (end - 1) // width + 1]
            if waits.ordered[ids - waits.first].all():
                continue
            left = self._before_waits(waits, np.unique(ids))
            if len(left):
                found = np.zeros(len(flat), np.bool_) if found is None else found
                found[start:end] = np.isin(np.repeat(lanes.lanes, width)[start:end], left)
        return None if found is None else found.reshape(words.shape)

    def _before_waits(self, waits: Waits, lanes: Array) -> Array:
        """The lanes that do not come after a wait."""
        shared = self.guard.shared
        left: Array = lanes[~waits.ordered[lanes - waits.first]]
        for waited, _ in waits.all():
            left = left[~np.isin(left, waited.lanes)]
        for waited, since in waits.all():
            for one in self._witnesses(waited, left) if len(left) else ():
                if shared is not None and len(left):
                    left = left[~shared.ordered(left, np.full(len(left), one), np.full(len(left), since))]
        waits.ordered[np.setdiff1d(lanes, left) - waits.first] = True
        return left

    def _witnesses(self, waited: LaneSet, lanes: Array) -> list[int]:
        """Lanes of a wait that may order it before others: one of each warp, and all of the warps of these lanes."""
        warps = self.batch.geometry.warp
        near = waited.lanes[np.isin(waited.warp, warps[lanes])]
        return [*waited.lanes[waited.warp_starts].tolist(), *near.tolist()]

    def _checked(self, units: Units) -> tuple[Units, Array | None]:
        """Units of global memory as the checks see them: elements smaller than a granule count as the granules that
        they cover. Also the bytes of those covered partly, at the edges of a box, which are not checked."""
        granule, access = self.guard.memory.granule, units.access
        if access.size >= granule or not isinstance(units.home, Allocation):
            return units, None
        each = granule // access.size
        cells, counts = np.unique(units.index // each, return_counts=True)
        whole = self._accesses.get((access.site.number, GLOBAL))
        if whole is None:
            whole = MemoryAccess(access.site, GLOBAL, 0, granule, 1)
            self._accesses[access.site.number, GLOBAL] = whole
        partly = units.index[np.isin(units.index // each, cells[counts < each])] * access.size
        parts = (partly[:, None] + np.arange(access.size)).reshape(-1) if len(partly) else None
        return Units(units.home, cells[counts == each], whole), parts

    # ---- reads of shared memory in flight ----

    def hold(self, f: Fragment, site: Site, places: Array, lanes: Array) -> _Reading:
        """Check and note that chunks of shared memory at byte positions of the batch are read by lanes from now on."""
        access = self._accesses.get((site.number, SHARED))
        if access is None:
            access = self._accesses[site.number, SHARED] = MemoryAccess(site, SHARED, 0, 4, CHUNK // 4)
        store = self.batch.shared
        if store is None:
            raise RuntimeError("a read of shared memory, which the kernel lacks")
        view = store.view(access.dtype).reshape(-1, access.count)
        piece = Piece(view, places // CHUNK, None, unit_lanes(self.batch.geometry, lanes), store)
        one = f.alone(int(lanes[0]))
        self.guard.read(one, access, [piece])
        self._check_fenced(one, access, piece)
        return self._hold(one, access, piece)

    def _hold(self, f: Fragment, access: MemoryAccess, piece: Piece, *, arrives: bool = False) -> _Reading:
        index = positions(piece.index, piece.lanes.count)
        chunks = index if access.size == CHUNK else np.unique(index * access.size // CHUNK)
        np.add.at(self.reading, chunks, 1)
        made = _Reading(f, access, piece, chunks, arrives)
        self.readings.append(made)
        return made

    def release(self, reading: _Reading, lanes: Array | None = None) -> None:
        """Note that an access in flight has read its memory, or the part of these lanes: it is a read by them now."""
        if reading not in self.readings:
            return
        piece, chunks = reading.piece, reading.chunks
        ended = None if lanes is None else np.isin(piece.lanes.lanes, lanes)
        if ended is None or ended.all():
            self.readings.remove(reading)
        else:
            reading.piece, reading.chunks = some_units(piece, ~ended), chunks[~ended]
            piece, chunks = some_units(piece, ended), chunks[ended]
        np.subtract.at(self.reading, chunks, 1)
        shared = self.guard.shared
        if shared is not None and shared.race and len(chunks):
            event = self.guard.events.access(reading.access.site, piece.lanes)
            shared.note_read(reading.access, piece, event)

    def _drop(self, reading: _Reading, chunks: Array) -> None:
        """Forget that an access in flight reads these chunks. Its read counts from its start on, which a wait for its
        mbarrier is ordered after."""
        mine = np.isin(reading.chunks, chunks)
        np.subtract.at(self.reading, reading.chunks[mine], 1)
        reading.chunks = reading.chunks[~mine]
        if not len(reading.chunks):
            self.readings.remove(reading)

    def check_write(self, f: Fragment, access: MemoryAccess, piece: Piece, index: Array) -> None:
        """Report a write to an mbarrier, or to memory that an access in flight reads."""
        self._check_objects(f, access, piece, index)
        if not self.readings:
            return
        chunks = index * access.size // CHUNK
        held = self.reading.take(chunks) > 0
        if not held.any():
            return
        for reading in list(self.readings):
            late = held & np.isin(chunks, reading.chunks)
            if reading.waits is not None and late.any():
                left = self._before_waits(reading.waits, np.unique(piece.lanes.lanes[late]))
                over = late & ~np.isin(piece.lanes.lanes, left)
                self._drop(reading, chunks[over])
                late &= ~over
            if late.any():
                self._fail_overwritten(f, access, piece, index, int(np.flatnonzero(late)[0]), reading)

    def _fail_overwritten(
        self, f: Fragment, access: MemoryAccess, piece: Piece, index: Array, first: int, reading: _Reading
    ) -> NoReturn:
        byte = int(index[first]) * access.size % piece.home.stride
        site = reading.access.site
        lane = int(reading.piece.lanes.lanes[0])
        block, thread = divmod(lane, self.batch.geometry.threads)
        wait = "wgmma.wait_group" if site.instruction.opcode == "wgmma" else "cp.async.bulk.wait_group.read"
        advice = f"wait for it ({wait}) in the thread that started it, and let other threads wait for that thread"
        if reading.arrives:
            advice = "wait for the copy's mbarrier in the block that receives it, and let that block answer"
        self._fail_lane(
            f,
            access.site,
            int(piece.lanes.lanes[first]),
            "shared memory overwritten in flight",
            f"{access.named} at byte {byte} of shared memory, which the {site.kind} of block "
            f"{self.batch.block_index(block)}, thread {self.batch.thread_index(thread)} may still have to read",
            others=(self.batch.other(site, lane),),
            notes=[advice],
        )

    def _check_objects(self, f: Fragment, access: MemoryAccess, piece: Piece, index: Array) -> None:
        starts = index * access.size // BYTES
        hit = self.objects.take(starts)
        for more in range(1, access.size // BYTES):
            hit = hit | self.objects.take(starts + more)
        if not hit.any():
            return
        first = int(np.flatnonzero(hit)[0])
        start = int(index[first]) * access.size
        found = self.batch.asynchrony.mbarriers.within(start, access.size)
        self._fail_lane(
            f,
            access.site,
            int(piece.lanes.lanes[first]),
            "mbarrier overwritten",
            f"{access.named} at byte {start % piece.home.stride} of shared memory, which is {found.named()}",
            others=(self.batch.other(found.site, found.lane),),
            notes=["call mbarrier.inval (or the destructor) before the memory is used for something else"],
            space="shared",
        )

    # ---- fences of the writers ----

    def _check_fenced(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Report stores that an asynchronous read does not see, as no proxy fence of their thread is in between."""
        shared = self.guard.shared
        if shared is None or not self.guard.race:
            return
        words = shared.writes.words(piece.index, access.size >> shared.shift).reshape(piece.lanes.count, -1)
        # the blocks of a cluster may read in the same instruction, each ordered by its own barriers
        blocks = piece.lanes.lanes // self.batch.geometry.threads
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            self._check_words(shared, f, access, piece, rows, words[rows])

    def _check_words(
        self, shared: SharedChecks, f: Fragment, access: MemoryAccess, piece: Piece, rows: Array, words: Array
    ) -> None:
        """``_check_fenced`` for the lanes `rows` of a piece, all of one block, which read these words."""
        kinds = words[:1, 0] if (words == words[0, 0]).all() else np.unique(words)
        moved = [event == 0 or event in self.landed or event in self.issued for event in LANES.event(kinds).tolist()]
        kinds = kinds[~np.array(moved)]
        if not len(kinds):
            return
        events, owners = LANES.event(kinds), LANES.owner(kinds)
        kept = self.fenced[:, owners]
        after = (kept > events).sum(axis=0)  # the fences of each owner after its store
        fenced = after > 0
        # A thread may fill a ring of buffers ahead of its readers: only the first fence after the store counts.
        fences = kept[np.maximum(after - 1, 0), np.arange(len(owners))]
        mine = int(piece.lanes.lanes[rows[0]])
        theirs = np.flatnonzero(fenced & (owners != mine) & (after < FENCES))  # otherwise the first one is not known
        late = np.zeros(len(kinds), np.bool_)
        late[theirs] = ~shared.ordered(np.full(len(theirs), mine), owners[theirs], fences[theirs])
        wrong = np.flatnonzero(~fenced | late)
        if len(wrong):
            first = int(wrong[0])
            place = int(rows[np.flatnonzero((words == kinds[first]).any(axis=1))[0]])
            self._unfenced(f, access, piece, int(events[first]), int(owners[first]), place, bool(late[first]))

    def _unfenced(
        self, f: Fragment, access: MemoryAccess, piece: Piece, event: int, owner: int, chunk: int, late: bool
    ) -> NoReturn:
        index = positions(piece.index, piece.lanes.count)
        byte = int(index[chunk]) * access.size % piece.home.stride
        block, thread = divmod(owner, self.batch.geometry.threads)
        who = f"block {self.batch.block_index(block)}, thread {self.batch.thread_index(thread)}"
        how = "its fence.proxy.async does not happen before the read" if late else "without fence.proxy.async after it"
        self._fail_lane(
            f,
            access.site,
            int(piece.lanes.lanes[chunk]),
            MISSING_FENCE,
            f"{access.site.kind} reads byte {byte} of shared memory, which {who} has stored to; {how}",
            others=other_of(self.guard, event, owner),
            notes=[
                "each thread that stores needs fence.proxy.async.shared::cta after its stores and before the barrier "
                "that the copying thread waits for"
            ],
            space="shared",
        )

    def _check_global(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """``_check_fenced`` for global memory, as far as the stores are by blocks of this batch."""
        guard = self.guard
        found = guard.memory.writers(access, piece) if guard.race else None
        if found is None:
            return
        events, blocks, threads = found
        order = guard.order
        first, count = order.first_block, self.batch.geometry.blocks
        for event, block, thread in zip(events.tolist(), blocks.tolist(), threads.tolist(), strict=True):
            if thread < 0 or not first <= block < first + count or event in self.landed:
                continue
            if guard.events.site(event).instruction.opcode in ("cp", "red") and "async" in (
                guard.events.site(event).instruction.modifiers
            ):
                continue
            owner = (block - first) * order.threads + thread
            if self.fenced_global[owner] > event:
                continue
            self._fail_lane(
                f,
                access.site,
                int(piece.lanes.lanes[0]),
                MISSING_FENCE,
                f"{access.site.kind} reads global memory that block {self.batch.block_index(block - first)}, thread "
                f"{self.batch.thread_index(thread)} has stored to in this kernel, without fence.proxy.async after it",
                others=other_of(guard, event, owner),
                notes=[
                    "the thread that stores needs fence.proxy.async (or fence.proxy.async.global) before it signals"
                ],
                space="global",
            )

    # ---- reports ----

    def _fail_lane(self, f: Fragment, site: Site, lane: int, kind: str, detail: str, **more: Any) -> NoReturn:
        """Report a lane of the batch."""
        f.alone(lane).fail(site.instruction, kind, detail, access=site.kind, **more)


def _lanes_of(transfer: Transfer, count: int) -> LaneSet:
    """The transfer's lane, once per unit."""
    if transfer.lanes.count == count:
        return transfer.lanes
    return same_lane(transfer.f.batch.geometry, transfer.lane, count)


def _values(transfer: Transfer, units: Units) -> Array | None:
    """The values that a store writes to its destination's units as the checks see them; None for a reduction."""
    values = None if transfer.combine is not None else transfer.values()
    if values is not None and units is not transfer.destination:
        # of no use: the elements are parts of the checked ones
        return np.zeros(len(units.index), units.access.dtype)
    return values
