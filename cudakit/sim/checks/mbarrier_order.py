"""The order by mbarriers: accesses before an arrival happen before those after a wait for its phase.

The arrivals of a phase are kept per barrier and phase, so that a wait acquires those of its own phase only. Between the
warps of a block the order goes into the same tables as that of named barriers (ordering.py), between blocks of a
cluster into the chains of releases.py.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier

# below the numbers of all other locations of releases
_FIRST_PLACE = -(1 << 50)


class _Phases:
    """The arrivals of one barrier. For each warp of its cluster: the latest event that the arrivals of the current
    phase, and of the last complete one, know of. ``place`` is the location of the current phase's releases."""

    __slots__ = ("done", "done_place", "now", "place", "whole")

    def __init__(self, warps: int, place: int) -> None:
        self.now: Array = np.zeros(warps, np.int64)
        self.done: Array = np.zeros(warps, np.int64)
        self.place, self.done_place = place, place
        # warps whose lanes have all arrived together, in the current phase, and in the last one
        self.whole: tuple[set[int], set[int]] = (set(), set())


class MbarrierOrder:
    """The order by the mbarriers of one batch."""

    def __init__(self, guard: BatchChecks) -> None:
        self.guard = guard
        self.places = 0
        run = guard.batch.run
        # whether there are clusters, and blocks outside of each
        self.several = run.config.blocks > run.cluster_size > 1

    def _place(self) -> int:
        self.places += 1
        return _FIRST_PLACE - self.places

    def _phases(self, barrier: Mbarrier) -> _Phases:
        if barrier.order is None:
            barrier.order = _Phases(self.guard.order.columns, self._place())
        found: _Phases = barrier.order
        return found

    def arrive(self, barrier: Mbarrier, lanes: LaneSet, event: int) -> None:
        """Note arrivals: they publish what these lanes' warps have done and know."""
        order, phases = self.guard.order, self._phases(barrier)
        warps = lanes.warps
        rows = order.knowledge(warps)
        rows[np.arange(len(warps)), warps % order.columns] = event
        np.maximum(phases.now, rows.max(axis=0), out=phases.now)
        if lanes.complete:
            phases.whole[0].update(warps.tolist())
        order.released(lanes, phases.place, event)
        if self.several:
            self._tell_grid(lanes, phases.place, event, releases=True)

    def publish(self, barrier: Mbarrier, lane: int, event: int) -> None:
        """Note that a copy by a lane has arrived at an event; it is ordered before the end of the current phase."""
        geometry, order = self.guard.batch.geometry, self.guard.order
        phases = self._phases(barrier)
        inner = int(geometry.warp[lane]) % order.columns
        phases.now[inner] = max(int(phases.now[inner]), event)
        alone = LaneSet(geometry, np.array([lane]), 1)
        order.released(alone, phases.place, event)
        if self.several:
            self._tell_grid(alone, phases.place, event, releases=True)

    def complete(self, barrier: Mbarrier) -> None:
        phases = self._phases(barrier)
        phases.done, phases.now = phases.now, np.zeros_like(phases.now)
        phases.done_place, phases.place = phases.place, self._place()
        phases.whole = (set(), phases.whole[0])

    def wait(self, barrier: Mbarrier, lanes: LaneSet, event: int) -> None:
        """Note that lanes have waited for the last complete phase."""
        order = self.guard.order
        phases = self._phases(barrier)
        warps = lanes.warps
        order.known[warps] = np.maximum(order.known.take(warps, axis=0), phases.done)
        order.acquired(lanes, phases.done_place, event)
        if phases.whole[1]:
            met = np.isin(lanes.warp, list(phases.whole[1])) & (lanes.warp_counts.take(lanes.warp) == 32)
            if met.any():
                order.synchronised(lanes.subset(met)[1], event)
        if self.several:
            self._tell_grid(lanes, phases.done_place, event, releases=False)

    def known(self, barrier: Mbarrier, lane: int) -> bool:
        """Whether all arrivals of the last complete phase happen before now for a lane."""
        order, phases = self.guard.order, self._phases(barrier)
        warp = np.array([self.guard.batch.geometry.warp[lane]])
        row = order.knowledge(warp)[0]
        # its own arrivals
        row[warp % order.columns] = np.iinfo(np.int64).max
        return bool((row >= phases.done).all())

    def _tell_grid(self, lanes: LaneSet, place: int, event: int, *, releases: bool) -> None:
        """Enter releases or acquires in the chains between blocks, by the first lane of each warp: they lead on to
        other clusters."""
        guard = self.guard
        first = lanes.lanes[lanes.warp_starts]
        guard.memory.chains.strong(
            guard.fences,
            event,
            first,
            np.full(len(first), place),
            reads=not releases,
            writes=releases,
            release=releases,
            acquires=not releases,
        )
