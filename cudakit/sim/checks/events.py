"""The events of one launch: accesses, fences and other synchronisation, numbered in the order of execution."""

from __future__ import annotations

from cudakit.sim.lockstep.lanes import LaneSet
from cudakit.sim.lockstep.sites import Site


class Events:
    """Event numbers increase from 1; 0 means no event. The site of each access is kept for reports, its lanes to order
    it as a whole."""

    __slots__ = ("_lanes", "_sites")

    def __init__(self) -> None:
        self._sites: list[Site | None] = [None]
        self._lanes: list[LaneSet | None] = [None]

    def access(self, site: Site, lanes: LaneSet | None = None) -> int:
        """Return a new number, for an access. ``lanes``: those of the batch that execute it; None: others may too."""
        self._sites.append(site)
        self._lanes.append(lanes)
        return len(self._sites) - 1

    def tick(self) -> int:
        """Return a new number, for an event that is not an access."""
        self._sites.append(None)
        self._lanes.append(None)
        return len(self._sites) - 1

    def last(self) -> int:
        """Return the newest number."""
        return len(self._sites) - 1

    def lanes(self, event: int) -> LaneSet | None:
        """Return the lanes of an access."""
        return self._lanes[event]

    def site(self, event: int) -> Site:
        """Return the site of an access. Raises RuntimeError if the event is not an access."""
        found = self._sites[event]
        if found is None:
            raise RuntimeError(f"event {event} is not an access")
        return found
