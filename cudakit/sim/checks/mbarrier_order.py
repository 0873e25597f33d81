"""The order by mbarriers: accesses before an arrival happen before those after a wait for its phase.

The arrivals of a phase are kept per barrier and phase, so that a wait acquires those of its own phase only. Between the
warps of a block the order goes into the same tables as that of named barriers (ordering.py), between blocks of a
cluster into the chains of releases.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier

# below the numbers of all other locations of releases
_FIRST_PLACE = -(1 << 50)


def by_fence(lanes: LaneSet, fences: Array) -> Iterator[tuple[int, LaneSet]]:
    """The lanes of each fence, with its event. ``fences``: the event of each lane's last fence; 0: none."""
    for event in np.unique(fences[fences > 0]).tolist():
        yield event, lanes.subset(fences == event)[1]


class Waits:
    """The waits for one phase of a barrier: lanes, and the event. ``later``: those for the next phase. ``ordered`` is a
    mask of the lanes of the cluster, from ``first`` on, that are known to come after one of them."""

    __slots__ = ("first", "later", "ordered", "seen")

    def __init__(self, first: int, lanes: int) -> None:
        self.first = first
        self.ordered: Array = np.zeros(lanes, np.bool_)
        self.seen: list[tuple[LaneSet, int]] = []
        self.later: Waits | None = None

    def next(self) -> Waits:
        """The waits for the next phase."""
        self.later = Waits(self.first, len(self.ordered))
        return self.later

    def all(self) -> Iterator[tuple[LaneSet, int]]:
        """The waits for this phase and for later ones."""
        phase: Waits | None = self
        while phase is not None:
            yield from phase.seen
            phase = phase.later


class _Phases:
    """The arrivals of one barrier. For each warp of its cluster: the latest event that the arrivals of the current
    phase, of the last complete one, and of the one before know of. ``place`` is the location of the current phase's
    releases."""

    __slots__ = ("before", "done", "done_place", "done_waits", "now", "place", "waits", "whole")

    def __init__(self, warps: int, place: int, waits: Waits) -> None:
        self.now: Array = np.zeros(warps, np.int64)
        self.done: Array = np.zeros(warps, np.int64)
        self.before: Array = np.zeros(warps, np.int64)
        self.place, self.done_place = place, place
        # the waits for the current phase, and for the last complete one
        self.waits = self.done_waits = waits
        # warps whose lanes have all arrived together, in the current phase, and in the last one
        self.whole: tuple[set[int], set[int]] = (set(), set())


class MbarrierOrder:
    """The order by the mbarriers of one batch."""

    def __init__(self, guard: BatchChecks) -> None:
        self.guard = guard
        self.places = 0
        # per lane: its last fence that releases, before which .relaxed arrivals publish what it did
        self.fenced = np.zeros(guard.batch.geometry.lanes, np.int64)
        # .relaxed waits, which acquire at a later fence: the lanes, and the arrivals of the phase
        self.unfenced: list[tuple[LaneSet, Array, int, set[int]]] = []
        run = guard.batch.run
        # whether there are clusters, and blocks outside of each
        self.several = run.config.blocks > run.cluster_size > 1

    def _place(self) -> int:
        self.places += 1
        return _FIRST_PLACE - self.places

    def _phases(self, barrier: Mbarrier) -> _Phases:
        if barrier.order is None:
            lanes = self.guard.order.threads * self.guard.order.cluster_size
            waits = Waits(barrier.block // self.guard.order.cluster_size * lanes, lanes)
            barrier.order = _Phases(self.guard.order.columns, self._place(), waits)
        found: _Phases = barrier.order
        return found

    def arrive(self, barrier: Mbarrier, lanes: LaneSet, event: int, *, relaxed: bool) -> None:
        """Note arrivals: they publish what these lanes' warps have done and know, ``relaxed`` ones before a fence."""
        phases = self._phases(barrier)
        for before, some in by_fence(lanes, self.fenced[lanes.lanes]) if relaxed else ((event, lanes),):
            self._arrive(phases, some, before)

    def _arrive(self, phases: _Phases, lanes: LaneSet, event: int) -> None:
        order, warps = self.guard.order, lanes.warps
        rows = order.knowledge(warps)
        rows[np.arange(len(warps)), warps % order.columns] = event
        np.maximum(phases.now, rows.max(axis=0), out=phases.now)
        if lanes.complete:
            phases.whole[0].update(warps.tolist())
        order.released(lanes, phases.place, event)
        if self.several:
            self._tell_grid(lanes, phases.place, event, releases=True)

    def meet(self, arrivals: list[tuple[LaneSet, int]], lanes: LaneSet, event: int) -> None:
        """Note that lanes have met at a barrier of their cluster at which only these arrivals publish accesses, up to
        an event each."""
        phases = _Phases(self.guard.order.columns, self._place(), Waits(0, 0))
        for arrived, before in arrivals:
            self._arrive(phases, arrived, before)
        self._acquire(lanes, phases.now, phases.place, phases.whole[0], event)

    def publish(self, barrier: Mbarrier, lane: int, event: int, knows: Array | None) -> None:
        """Note that a copy which a lane started at an event has arrived: what the lane did before it, and ``knows`` of
        others, is ordered before the end of the current phase."""
        geometry, order = self.guard.batch.geometry, self.guard.order
        phases = self._phases(barrier)
        inner = int(geometry.warp[lane]) % order.columns
        if knows is not None:
            np.maximum(phases.now, knows, out=phases.now)
        phases.now[inner] = max(int(phases.now[inner]), event)
        alone = LaneSet(geometry, np.array([lane]), 1)
        order.released(alone, phases.place, event)
        if self.several:
            self._tell_grid(alone, phases.place, event, releases=True)

    def waits(self, barrier: Mbarrier) -> Waits:
        """The waits for the current phase."""
        return self._phases(barrier).waits

    def complete(self, barrier: Mbarrier) -> None:
        phases = self._phases(barrier)
        phases.before, phases.done, phases.now = phases.done, phases.now, np.zeros_like(phases.now)
        phases.done_place, phases.place = phases.place, self._place()
        phases.done_waits, phases.waits = phases.waits, phases.waits.next()
        phases.whole = (set(), phases.whole[0])

    def wait(self, barrier: Mbarrier, lanes: LaneSet, event: int, *, relaxed: bool) -> None:
        """Note that lanes have waited for the last complete phase; ``relaxed``: they acquire at their next fence."""
        phases = self._phases(barrier)
        if all(lanes is not others for others, _ in phases.done_waits.seen):
            phases.done_waits.seen.append((lanes, event))
        if relaxed:
            self.unfenced.append((lanes, phases.done, phases.done_place, phases.whole[1]))
        else:
            self._acquire(lanes, phases.done, phases.done_place, phases.whole[1], event)

    def fence(self, lanes: LaneSet, event: int, *, releases: bool, acquires: bool) -> None:
        """Note a fence: it makes .relaxed waits before it acquire, and .relaxed arrivals after it release."""
        if releases:
            self.fenced[lanes.lanes] = event
        if not acquires or not self.unfenced:
            return
        waits, self.unfenced = self.unfenced, []
        for waiting, done, place, whole in waits:
            here = np.isin(waiting.lanes, lanes.lanes)
            if here.any():
                self._acquire(waiting.subset(here)[1], done, place, whole, event)
            if not here.all():
                self.unfenced.append((waiting.subset(~here)[1], done, place, whole))

    def _acquire(self, lanes: LaneSet, done: Array, place: int, whole: set[int], event: int) -> None:
        order, warps = self.guard.order, lanes.warps
        order.known[warps] = np.maximum(order.known.take(warps, axis=0), done)
        order.acquired(lanes, place, event)
        if whole:
            met = np.isin(lanes.warp, list(whole)) & (lanes.warp_counts.take(lanes.warp) == 32)
            if met.any():
                order.synchronised(lanes.subset(met)[1], event)
        if self.several:
            self._tell_grid(lanes, place, event, releases=False)

    def known(self, barrier: Mbarrier, lane: int, *, last: bool) -> bool:
        """Whether all arrivals of the last complete phase, or else of the one before, happen before now for a lane."""
        order, phases = self.guard.order, self._phases(barrier)
        warp = int(self.guard.batch.geometry.warp[lane])
        events = phases.done if last else phases.before
        row = order.knowledge(np.array([warp]))[0]
        # its own arrivals
        row[warp % order.columns] = np.iinfo(np.int64).max
        first = warp - warp % order.columns
        late = np.flatnonzero(row < events).tolist()
        return all(order.warp_ordered(first + column, int(events[column]), warp) for column in late)

    def _tell_grid(self, lanes: LaneSet, place: int, event: int, *, releases: bool) -> None:
        """Enter releases or acquires in the chains between blocks, by the first lane of each whole warp and by the
        lanes of others: they lead on to other clusters."""
        guard = self.guard
        whole = (lanes.warp_counts == guard.batch.live_warps)[lanes.warp]
        starts = lanes.warp_starts
        for some, entire in ((lanes.lanes[starts[whole[starts]]], True), (lanes.lanes[~whole], False)):
            if len(some):
                guard.memory.chains.strong(
                    guard.fences,
                    event,
                    some,
                    np.full(len(some), place),
                    reads=not releases,
                    writes=releases,
                    release=releases,
                    acquires=not releases,
                    whole=entire,
                )
