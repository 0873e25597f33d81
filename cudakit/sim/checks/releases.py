"""Ordering between blocks by flags and fences: releases by one thread, acquires by another (PTX ISA, "Memory
Consistency Model").

A thread releases at a location by a strong write (an atomic, for example) after a fence, or by a write with .release.
This publishes

- the thread's own accesses up to the fence;
- those of its warp up to the warp's last bar.warp.sync before the fence, or up to a fence of their own;
- those of its block up to the block's last barrier before the fence, or up to a fence by any of its threads that a
  barrier orders before the write;
- accesses of other blocks that the thread has acquired, if the same rules order the acquire before the write.

Another thread acquires by a later strong read of the location that acquires by itself (``acquires`` of MemoryAccess),
or one that a fence follows: its own, or one of another thread of its block that the read happened before. The acquire
holds for the thread itself, and for another thread of its block after a barrier of both (ordering.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from cudakit.sim.checks.chains import Key
from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.shadow import UNKNOWN
from cudakit.sim.lockstep.lanes import Array

# with more lanes than this, locations without a release are filtered out first
_MANY = 64
# a search that has visited this many releases stops and assumes that there is a chain
_STEPS = 200_000
# the most blocks of a grid with a table of what they know of each other
_MOST_BLOCKS = 512
# stands for every thread of a block
ALL = -2


class _Release(NamedTuple):
    """A release by a lane of a batch, the ``number``-th at its location. It publishes the lane's own accesses up to the
    event ``own``, and up to ``warp`` those of its warp, which a bar.warp.sync ordered before it."""

    number: int
    lane: int
    own: int
    warp: int
    fences: BlockFences


class _Releases:
    """The releases of one block at one location."""

    __slots__ = ("by_warp", "common", "numbers")

    def __init__(self) -> None:
        # releases by number, and the event up to which each publishes the accesses of all threads of the block
        self.numbers: list[int] = []
        self.common: list[int] = []
        # per warp: its releases that publish more of some threads, by what they publish, in the order of their numbers
        self.by_warp: dict[int, dict[tuple[int, int, int], _Release]] = {}

    def first(self, thread: int, event: int) -> int | None:
        """The number of the first release that publishes an access by a thread (``ALL``: by any) at an event; None if
        none does."""
        found = bisect_left(self.common, event)
        best = self.numbers[found] if found < len(self.common) else None
        if thread == ALL or not self.by_warp:
            return best
        for warp, made in self.by_warp.items():
            for release in made.values():
                if best is not None and release.number >= best:
                    break
                if event > release.own:
                    continue
                fences = release.fences
                order, geometry = fences.order, fences.order.geometry
                theirs = release.lane - release.lane % order.threads + thread
                if thread in (release.lane % order.threads, UNKNOWN):
                    holds = True
                elif int(geometry.warp[theirs]) == warp:
                    holds = event <= max(release.warp, int(fences.event[theirs]))
                else:
                    # named barriers, and flags between warps, up to the current event
                    holds = order.warp_ordered(int(geometry.warp[theirs]), event, warp)
                if holds:
                    best = release.number
        return best


class _Acquire(NamedTuple):
    """The first ``seen`` releases of a location have been acquired by a thread of a block at an event; ``whole``: by
    its warp."""

    seen: int
    block: int
    thread: int
    event: int
    whole: bool = False


class BlockFences:
    """The fences of the threads of one batch, as far as they order accesses between blocks."""

    def __init__(self, order: BatchOrder) -> None:
        lanes, blocks = order.geometry.lanes, order.geometry.blocks
        self.order = order
        # per lane: the event of its last fence, the barrier of its block and the bar.warp.sync of its warp before it
        self.event = np.zeros(lanes, np.int64)
        self.floor = np.zeros(lanes, np.int64)
        self.synced = np.zeros(lanes, np.int64)
        # per block: its last fence, and the last one before its last barrier
        self.newest = np.zeros(blocks, np.int64)
        self.settled = np.zeros(blocks, np.int64)
        self.any = False
        # per block, and per thread and location: the releases seen by a strong read, and the event of the read; a fence
        # turns it into an acquire
        self.pending: dict[int, dict[tuple[int, Key], tuple[int, int]]] = {}

    def fence(self, lanes: Array, blocks: Array, event: int) -> None:
        order = self.order
        self.any = True
        self.event[lanes] = event
        self.floor[lanes] = order.floor[lanes // order.threads]
        self.synced[lanes] = order.synced[lanes]
        self.newest[blocks] = event

    def barrier(self, blocks: Array | None) -> None:
        which = slice(None) if blocks is None else blocks
        self.settled[which] = self.newest[which]


class GridChains:
    """The releases and acquires between blocks so far. Events are increasing numbers; a location is any hashable
    object."""

    def __init__(self, blocks: int) -> None:
        # releases at each location so far
        self._count: dict[Key, int] = {}
        # per block and location
        self._released: dict[int, dict[Key, _Releases]] = {}
        self._acquired: dict[int, dict[Key, list[_Acquire]]] = {}
        # per location and (block, thread): how many releases it has acquired
        self._seen: dict[Key, dict[tuple[int, int], int]] = {}
        self._readers: dict[Key, list[_Acquire]] = {}
        # (block, other block): all accesses of the first up to this event are ordered before now for the second
        self._known: dict[tuple[int, int], int] = {}
        # the same for all pairs of a grid that is not too large, as far as releases, acquires and barriers of whole
        # blocks show; the event of the barrier that changed a row last
        self._table: Array | None = np.zeros((blocks, blocks), np.int64) if blocks <= _MOST_BLOCKS else None
        self._changed = np.zeros(blocks, np.int64) if blocks <= _MOST_BLOCKS else None
        if self._table is not None:
            # a block's knowledge of itself is in ordering.py
            np.fill_diagonal(self._table, np.iinfo(np.int64).max)
        # the least of the table; -1 if it may have changed
        self._least = 0
        # per location: the row of a thread that acquires it; per block: that of its threads since its last barrier
        self._published: dict[Key, Array] = {}
        self._gained: dict[int, Array] = {}

    # ---- what happens ----

    def awake(self, fences: BlockFences, release: bool) -> bool:
        """Whether a strong access can affect the order; False until the first fence or release. ``release``: it has
        .release."""
        return release or fences.any or bool(self._count)

    def strong(
        self,
        fences: BlockFences,
        event: int,
        lanes: Array,
        places: Array,
        *,
        reads: bool,
        writes: bool,
        release: bool,
        acquires: bool,
        whole: bool = False,
    ) -> None:
        """Note a strong access by lanes of a batch: one location per lane, in the order in which they take effect.
        ``whole``: each lane stands for its warp, all lanes of which take part."""
        order = fences.order
        block = lanes // order.threads
        able = np.ones(len(lanes), np.bool_) if release else (fences.event[lanes] > 0) | (fences.settled[block] > 0)
        if len(places) > _MANY:
            wanted = able.copy() if writes else np.zeros(len(lanes), np.bool_)
            if reads and self._count:
                wanted |= np.isin(places, [key for key in self._count if isinstance(key, int)])
            lanes, places, able = lanes[wanted], places[wanted], able[wanted]
        for lane, place, may in zip(lanes.tolist(), places.tolist(), able.tolist(), strict=True):
            one, thread = divmod(lane, order.threads)
            if reads and (seen := self._count.get(place, 0)):
                if acquires:
                    self._acquire(event, order.first_block + one, thread, place, seen, whole)
                else:
                    fences.pending.setdefault(one, {})[thread, place] = (seen, event)
            if writes and may:
                if release:
                    # a copy that arrives at an mbarrier publishes what happened before its start
                    common, own = min(int(order.floor[one]), event), event
                    warp = event if whole else min(int(order.synced[lane]), event)
                else:
                    common, warp, own = int(fences.floor[lane]), int(fences.synced[lane]), int(fences.event[lane])
                # a fence of the block that a barrier orders before this write publishes too
                common = max(common, min(int(fences.settled[one]), event))
                self._release(order.first_block + one, place, common, _Release(0, lane, own, warp, fences))

    def fence(self, fences: BlockFences, event: int, lanes: Array) -> None:
        """Note a fence by lanes of a batch: strong reads that happened before it, by the lane itself or by another
        thread of its block, acquire."""
        order = fences.order
        for one, found in fences.pending.items():
            mine = lanes[lanes // order.threads == one]
            if not len(mine):
                continue
            for (thread, place), (seen, when) in found.items():
                reader = one * order.threads + thread
                after = order.ordered(mine, np.full(len(mine), reader), np.full(len(mine), when), True)
                for lane in mine[after | (mine == reader)].tolist():
                    self._acquire(event, order.first_block + one, lane % order.threads, place, seen)

    def passed(self, batch: range, which: Array | None, event: int) -> None:
        """Note that all threads of some blocks of a batch (a mask; None: of all) have met at a barrier."""
        for block in self._gained.keys() & batch if self._gained else ():
            if which is None or which[block - batch.start]:
                self._gain(block, event)

    def meet(self, blocks: range, place: Key, event: int) -> None:
        """Note that all threads of some blocks have met at a barrier."""
        for block in blocks:
            self._release(block, place, event, None)
        for block in blocks:
            self._acquire(event, block, ALL, place, self._count[place])

    def _release(self, block: int, place: Key, common: int, made: _Release | None) -> None:
        mine = self._released.setdefault(block, {}).setdefault(place, _Releases())
        number = self._count.get(place, 0)
        news = not mine.common or mine.common[-1] < common
        if news:
            mine.numbers.append(number)
            mine.common.append(common)
        if made is not None and made.own > common:
            warp = mine.by_warp.setdefault(int(made.fences.order.geometry.warp[made.lane]), {})
            # a reader of the later release also sees the earlier
            if made[1:4] not in warp:
                warp[made[1:4]] = made._replace(number=number)
                news = True
        if news:
            self._count[place] = number + 1
            self._publish(block, place, common)

    def _acquire(self, event: int, block: int, thread: int, place: Key, seen: int, whole: bool = False) -> None:
        known = self._seen.setdefault(place, {})
        if known.get((block, thread), 0) < seen:
            known[block, thread] = seen
            made = _Acquire(seen, block, thread, event, whole)
            self._acquired.setdefault(block, {}).setdefault(place, []).append(made)
            self._readers.setdefault(place, []).append(made)
            if seen == self._count[place] and (row := self._published.get(place)) is not None:
                gained = self._gained.get(block)
                self._gained[block] = row if gained is None else np.maximum(gained, row)
                if thread == ALL:
                    self._gain(block, event)

    def _publish(self, block: int, place: Key, common: int) -> None:
        """Note that a release publishes all accesses of its block up to the event ``common``, and those of other blocks
        that were known before it."""
        if self._table is None or self._changed is None:
            return
        row = self._table[block].copy() if self._changed[block] <= common else np.zeros(len(self._table), np.int64)
        row[block] = common
        known = self._published.get(place)
        self._published[place] = row if known is None else np.maximum(known, row)

    def _gain(self, block: int, event: int) -> None:
        """Note that all threads of a block know what its threads have acquired."""
        if self._table is not None and self._changed is not None:
            np.maximum(self._table[block], self._gained.pop(block), out=self._table[block])
            self._changed[block] = event
            self._least = -1

    # ---- order ----

    def everywhere(self) -> int:
        """All accesses up to this event are ordered before now for all threads of every other block."""
        if self._least < 0 and self._table is not None:
            self._least = int(self._table.min())
        return self._least

    def all_ordered(self, blocks: Array, threads: Array, events: Array, order: BatchOrder, lanes: Array) -> Array:
        """Whether accesses by ``threads`` of ``blocks`` at ``events`` happen before the current accesses of ``lanes``
        of the batch of ``order``, which are in other blocks."""
        if not self._count:
            return np.zeros(len(lanes), np.bool_)
        mine = lanes // order.threads + order.first_block
        if self._table is not None:
            out: Array = self._table[mine, blocks] >= events
            left = np.flatnonzero(~out)
            if len(left):
                out[left] = self._searched(blocks[left], threads[left], events[left], order, lanes[left], mine[left])
            return out
        return self._searched(blocks, threads, events, order, lanes, mine)

    def _searched(
        self, blocks: Array, threads: Array, events: Array, order: BatchOrder, lanes: Array, mine: Array
    ) -> Array:
        """``all_ordered`` by a search per pair of blocks."""
        out = np.zeros(len(lanes), np.bool_)
        pairs = (blocks << 31) | mine
        ranked = np.argsort(pairs, kind="stable")
        pairs = pairs[ranked]
        starts = np.append(True, pairs[1:] != pairs[:-1]).nonzero()[0]
        ends = np.append(starts[1:], len(pairs))
        cases = zip(pairs[starts].tolist(), np.maximum.reduceat(events[ranked], starts).tolist(), strict=True)
        found = [self._all_ordered(pair >> 31, last, pair & ((1 << 31) - 1), order) for pair, last in cases]
        out[ranked] = np.repeat(found, ends - starts)
        for number in [number for number, holds in enumerate(found) if not holds]:
            members = ranked[starts[number] : ends[number]]
            block, other = int(blocks[members[0]]), int(mine[members[0]])
            out[members] = self._each(block, threads[members], events[members], other, order, lanes[members])
        return out

    def _all_ordered(self, block: int, event: int, other: int, order: BatchOrder) -> bool:
        """Whether all accesses of a block up to an event happen before the current accesses of all lanes of another."""
        if event <= self._known.get((block, other), 0):
            return True
        if not self._reaches(block, ALL, event, other, order, ALL):
            return False
        self._known[block, other] = event
        return True

    def _each(
        self, block: int, threads: Array, events: Array, other: int, order: BatchOrder, lanes: Array
    ) -> list[bool]:
        found: dict[tuple[int, int, int], bool] = {}
        out = []
        for case in zip(threads.tolist(), events.tolist(), lanes.tolist(), strict=True):
            if case not in found:
                thread, event, lane = case
                found[case] = self._reaches(block, thread, event, other, order, lane)
            out.append(found[case])
        return out

    def reached(self, block: int, thread: int, event: int, other: int) -> bool:
        """Whether an access by a thread of ``block`` happens before the current position of a thread of ``other``."""
        return any(True for _ in self._search(block, thread, event, other))

    def _reaches(self, block: int, thread: int, event: int, other: int, order: BatchOrder, lane: int) -> bool:
        """Whether an access by a thread (``ALL``: by any) of ``block`` happens before the current access of a lane of
        block ``other`` (``ALL``: of all its lanes)."""
        return any(_holds(acquire, order, lane) for acquire in self._search(block, thread, event, other))

    def _search(self, block: int, thread: int, event: int, other: int) -> Iterator[_Acquire]:
        """The acquires by block ``other`` that an access by a thread of ``block`` happens before."""
        released, acquired = self._released.get(block), self._acquired.get(other)
        if not released or not acquired:
            return
        # the direct way, which is the usual one
        for place in released if len(released) <= len(acquired) else acquired:
            if place in released and place in acquired:
                number = released[place].first(thread, event)
                if number is not None:
                    yield from (acquire for acquire in acquired[place] if acquire.seen > number)
        queue = [(event, block, thread)]
        known = {(block, thread): event}
        steps = 0
        while queue:
            since, one, via = heappop(queue)
            if known[one, via] < since:
                continue
            for place, made in self._released.get(one, {}).items():
                steps += 1
                number = made.first(via, since)
                if number is None:
                    continue
                for acquire in self._readers.get(place, ()):
                    steps += 1
                    if acquire.seen <= number:
                        continue
                    if acquire.block == other:
                        yield acquire
                    key = (acquire.block, acquire.thread)
                    if acquire.event < known.get(key, acquire.event + 1):
                        known[key] = acquire.event
                        heappush(queue, (acquire.event, *key))
            if steps > _STEPS:
                # too many to follow: assume that there is a chain
                yield _Acquire(0, other, ALL, 0)
                return


def _holds(acquire: _Acquire, order: BatchOrder, lane: int) -> bool:
    """Whether an acquire happens before the current access of a lane of the same block (``ALL``: of all its lanes)."""
    if acquire.thread == ALL:
        return True
    block = acquire.block - order.first_block
    if lane == ALL:
        return acquire.event <= int(order.floor[block])
    theirs = block * order.threads + acquire.thread
    if theirs == lane or (acquire.whole and order.geometry.warp[theirs] == order.geometry.warp[lane]):
        return True
    return bool(order.ordered(np.array([lane]), np.array([theirs]), np.array([acquire.event]), True)[0])
