"""The events of one launch: its accesses, fences and the like, numbered as they happen."""

from __future__ import annotations

from cudakit.sim.lockstep.sites import Site


class Events:
    """Event numbers ascend from 1; 0 means no event. The site of each access is kept for reports."""

    __slots__ = ("_sites",)

    def __init__(self) -> None:
        self._sites: list[Site | None] = [None]

    def access(self, site: Site) -> int:
        """The number of an access that happens now."""
        self._sites.append(site)
        return len(self._sites) - 1

    def tick(self) -> int:
        """A number between the accesses so far and those that come."""
        self._sites.append(None)
        return len(self._sites) - 1

    def last(self) -> int:
        """The newest number."""
        return len(self._sites) - 1

    def site(self, event: int) -> Site:
        """The site of an access. RuntimeError for an event that is none."""
        found = self._sites[event]
        if found is None:
            raise RuntimeError(f"event {event} is not an access")
        return found
