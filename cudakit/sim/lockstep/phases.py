"""Waits for phases of mbarriers, by the parity of the phase or by the state that an arrival returned."""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, Choice, LaneSet
from cudakit.sim.lockstep.mbarriers import Mbarrier
from cudakit.sim.lockstep.observer import AccessObserver
from cudakit.sim.lockstep.sites import Site

_LATE = "mbarrier phase missed"


class PhaseWait:
    """Lanes that wait for a phase of parity ``parity`` to complete: ``which`` is the barrier of each lane, as an index
    of ``objects``. Both forms of the wait ask the same: whether the current phase has the other parity."""

    def __init__(
        self, f: Fragment, site: Site, lanes: LaneSet, objects: list[Mbarrier], which: Array, parity: Array
    ) -> None:
        self.f, self.site, self.lanes = f, site, lanes
        self.instruction = site.instruction
        self.objects, self.which, self.parity = objects, which, parity

    @classmethod
    def start(cls, f: Fragment, site: Site, positions: Array, parity: Array, *, named: bool) -> PhaseWait:
        """The wait of all lanes of a fragment at the objects at ``positions``. ``named``: the program names the parity
        (otherwise it is that of a state)."""
        lanes, mbarriers = f.lanes, f.batch.asynchrony.mbarriers
        places, which = np.unique(positions, return_inverse=True)
        first = np.unique(which, return_index=True)[1]
        objects = [
            mbarriers.find(f, site, lanes, int(first[number]), position, lanes.subset(which == number)[1])
            for number, position in enumerate(places.tolist())
        ]
        wait = cls(f, site, lanes, objects, which, parity)
        if named and f.batch.guard is not None and "barrier" in f.batch.run.checks:
            wait._check_missed(f.batch.guard)
        return wait

    def ready(self) -> Array:
        phases = np.array([barrier.phase for barrier in self.objects]) & 1
        found: Array = phases.take(self.which) != self.parity
        return found

    def passed(self, lanes: LaneSet, mask: Array) -> None:
        guard = self.f.batch.guard
        for number, barrier in enumerate(self.objects):
            mine = mask & (self.which == number)
            if not mine.any():
                continue
            _, some = lanes.subset(mine)
            for warp in some.warps.tolist():
                barrier.waited[warp] = barrier.phase - 1
            if guard is not None:
                guard.mbarrier_wait(self.site, barrier, some)

    def some(self, choice: Choice) -> PhaseWait:
        _, lanes = self.lanes.at(choice)
        return PhaseWait(self.f, self.site, lanes, self.objects, self.which[choice], self.parity[choice])

    def barriers(self) -> list[Mbarrier]:
        left = np.unique(self.which[~self.ready()])
        return [self.objects[number] for number in left.tolist()]

    def _check_missed(self, guard: AccessObserver) -> None:
        """Report a wait for a phase that is over, as is the next one: its parity then stands for a later phase. A warp
        that knows of the last phase, through other synchronisation, means that later phase."""
        for number, barrier in enumerate(self.objects):
            if barrier.phase < 2:
                continue
            mine = np.flatnonzero(self.which == number)
            for position in mine[np.unique(self.lanes.warp[mine], return_index=True)[1]].tolist():
                meant = self._meant(barrier, int(self.lanes.warp[position]), int(self.parity[position]))
                if meant is None or barrier.phase - meant < 2:
                    continue
                lane, newest = int(self.lanes.lanes[position]), (barrier.phase - 1) & 1
                # a warp that knows of the phase before the last one may mean the last one
                if guard.mbarrier_known(barrier, lane, last=True) or (
                    int(self.parity[position]) == newest and guard.mbarrier_known(barrier, lane, last=False)
                ):
                    continue
                own = int(np.searchsorted(self.f.lanes.lanes, self.lanes.lanes[position]))
                self.f.fail(
                    self.instruction,
                    _LATE,
                    f"a wait for parity {meant & 1} of {barrier.named()}, whose phase {meant} is over and phase "
                    f"{meant + 1} too: phase {barrier.phase} has the same parity as one of them, so the wait cannot "
                    "distinguish them",
                    own,
                    notes=["wait for each phase before the arrival that lets the next one complete"],
                )

    @staticmethod
    def _meant(barrier: Mbarrier, warp: int, parity: int) -> int | None:
        """The phase that a warp means by a parity; None if that is not certain."""
        last = barrier.waited.get(warp)
        if last is not None:
            return None if (last & 1) == parity else last + 1
        arrived = barrier.arrived.get(warp, 0)
        return 0 if parity == 0 and arrived > 0 else None
