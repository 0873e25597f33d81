"""The events of one launch: accesses, fences and other synchronisation, numbered in the order of execution."""

from __future__ import annotations

from cudakit.sim.lockstep.sites import Site


class Events:
    """Event numbers increase from 1; 0 means no event. The site of each access is kept for reports."""

    __slots__ = ("_sites",)

    def __init__(self) -> None:
        self._sites: list[Site | None] = [None]

    def access(self, site: Site) -> int:
        """Return a new number, for an access."""
        self._sites.append(site)
        return len(self._sites) - 1

    def tick(self) -> int:
        """Return a new number, for an event that is not an access."""
        self._sites.append(None)
        return len(self._sites) - 1

    def last(self) -> int:
        """Return the newest number."""
        return len(self._sites) - 1

    def site(self, event: int) -> Site:
        """Return the site of an access. Raises RuntimeError if the event is not an access."""
        found = self._sites[event]
        if found is None:
            raise RuntimeError(f"event {event} is not an access")
        return found
