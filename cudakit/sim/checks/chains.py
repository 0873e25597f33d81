"""Ordering by flags and fences: chains of releases and acquires (PTX ISA, "Memory Consistency Model").

The parties are warps or lanes of a batch, or blocks of a grid (for global memory). A party releases at a
location by a strong write (an atomic, for example) after a fence, or by a write with .release: this publishes all its
accesses up to the fence. A party acquires by a later strong read of the location that acquires by itself (``acquires``
of MemoryAccess), or one that a fence follows. A fence counts for the whole party, whichever of its threads executed it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from heapq import heappop, heappush

import numpy as np

from cudakit.sim.lockstep.lanes import Array

Key = Hashable
# with more lanes than this, locations without a release are filtered out first
_MANY = 64
# a search that has visited this many releases stops and assumes that there is a chain
_STEPS = 200_000


class Chains:
    """The releases and acquires so far. Events are increasing numbers; parties are ints; a location is any hashable
    object."""

    def __init__(self) -> None:
        self.fences: dict[int, int] = {}
        # releases at each location so far
        self._count: dict[Key, int] = {}
        # per party and location: the numbers of its releases there, and the events up to which they publish
        self._released: dict[int, dict[Key, tuple[list[int], list[int]]]] = {}
        # per party: how many releases of each location it has acquired
        self._acquired: dict[int, dict[Key, int]] = {}
        # per party and location: the releases seen by strong reads that no fence has followed yet
        self._pending: dict[int, dict[Key, int]] = {}
        # per location: (releases seen, party, event)
        self._readers: dict[Key, list[tuple[int, int, int]]] = {}

    def places(self) -> list[int]:
        """The locations with a release that are numbers."""
        return [key for key in self._count if isinstance(key, int)]

    def fence(self, parties: Array, event: int) -> None:
        self.fences.update(dict.fromkeys(parties.tolist(), event))

    def settle(self, parties: Array, event: int) -> None:
        """Note a fence by these parties: their earlier strong reads acquire."""
        if self._pending:
            for party in self._pending.keys() & set(parties.tolist()):
                for place, seen in self._pending.pop(party).items():
                    self._acquired_at(event, party, place, seen)

    def read(self, event: int, party: int, place: Key, acquires: bool) -> None:
        """Note a strong read, which acquires at once or once a fence follows."""
        if acquires:
            self.acquire(event, party, place)
        elif seen := self._count.get(place, 0):
            self._pending.setdefault(party, {})[place] = seen

    def strong(
        self,
        event: int,
        parties: Array,
        places: Array,
        *,
        reads: bool,
        writes: bool,
        release: bool,
        acquires: bool,
    ) -> None:
        """Note a strong access: one party and one location per lane, in the order in which the lanes take effect."""
        if len(places) > _MANY:
            wanted = np.zeros(len(places), np.bool_)
            if reads and self._count:
                wanted |= np.isin(places, self.places())
            if writes and (release or self.fences):
                wanted |= True if release else [party in self.fences for party in parties.tolist()]
            parties, places = parties[wanted], places[wanted]
        for party, place in zip(parties.tolist(), places.tolist(), strict=True):
            if reads:
                self.read(event, party, place, acquires)
            if writes:
                published = event if release else self.fences.get(party)
                if published is not None:
                    self.release(party, place, published)

    def release(self, party: int, place: Key, published: int) -> None:
        number = self._count.get(place, 0)
        mine = self._released.setdefault(party, {})
        found = mine.get(place)
        if found is None:
            found = mine[place] = ([], [])
        numbers, events = found
        if events and events[-1] >= published:
            # publishes nothing new; a reader of the later release also sees the earlier
            return
        self._count[place] = number + 1
        numbers.append(number)
        events.append(published)

    def acquire(self, event: int, party: int, place: Key) -> None:
        seen = self._count.get(place, 0)
        if seen:
            self._acquired_at(event, party, place, seen)

    def _acquired_at(self, event: int, party: int, place: Key, seen: int) -> None:
        mine = self._acquired.setdefault(party, {})
        if mine.get(place, 0) < seen:
            mine[place] = seen
            self._readers.setdefault(place, []).append((seen, party, event))

    def all_ordered(self, parties: Array, events: Array, others: Array) -> Array:
        """``ordered`` for arrays of accesses."""
        out = np.zeros(len(parties), np.bool_)
        if not self._count:
            return out
        pairs = (parties << 31) | others
        order = np.argsort(pairs, kind="stable")
        sorted_pairs = pairs[order]
        starts = np.flatnonzero(np.append(True, sorted_pairs[1:] != sorted_pairs[:-1]))
        last = np.maximum.reduceat(events[order], starts)
        ends = np.append(starts[1:], len(order))
        for start, end, event in zip(starts.tolist(), ends.tolist(), last.tolist(), strict=True):
            members = order[start:end]
            party, other = int(parties[members[0]]), int(others[members[0]])
            # if the last event is ordered, so are the earlier ones
            if self.ordered(party, event, other):
                out[members] = True
            else:
                out[members] = [self.ordered(party, one, other) for one in events[members].tolist()]
        return out

    def ordered(self, party: int, event: int, other: int) -> bool:
        """Whether the access of ``party`` at ``event`` happens before the current access of ``other``."""
        released, acquired = self._released.get(party), self._acquired.get(other)
        if not released or not acquired:
            return False
        for place in released if len(released) <= len(acquired) else acquired:
            seen, mine = acquired.get(place), released.get(place)
            if seen is not None and mine is not None:
                numbers, events = mine
                first = bisect_left(events, event)
                if first < len(events) and numbers[first] < seen:
                    return True
        return self._chain(party, event, other)

    def _chain(self, party: int, event: int, other: int) -> bool:
        """Whether a chain through other parties orders the two accesses."""
        known = {party: event}
        queue = [(event, party)]
        steps = 0
        while queue:
            since, one = heappop(queue)
            steps += 1 + len(self._released.get(one, ()))
            if steps > _STEPS:
                return True
            if one == other and one != party:
                return True
            if known[one] < since:
                continue
            for place, (numbers, events) in self._released.get(one, {}).items():
                first = bisect_left(events, since)
                if first == len(events):
                    continue
                for seen, reader, when in self._readers.get(place, ()):
                    if seen > numbers[first] and when < known.get(reader, when + 1):
                        known[reader] = when
                        heappush(queue, (when, reader))
        return False
