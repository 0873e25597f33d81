"""The fragments of a batch that can run, and those that wait for other lanes of their warps."""

from __future__ import annotations

from cudakit.sim.lockstep.fragment import Fragment

Path = tuple[int, ...]
# epoch and path: the lowest runs first
Key = tuple[int, Path]


class FragmentQueue:
    """The waiting fragments: ``pending`` can run, ``deferred`` wait for other lanes of their warps."""

    __slots__ = ("deferred", "pending")

    def __init__(self) -> None:
        self.pending: dict[Key, list[Fragment]] = {}
        self.deferred: dict[Path, list[Fragment]] = {}

    def add(self, f: Fragment) -> None:
        """Queue a fragment that can run."""
        self.pending.setdefault((f.epoch, f.path()), []).append(f)

    def defer(self, f: Fragment) -> None:
        """Queue a fragment that waits for other lanes of its warps."""
        self.deferred.setdefault(f.path(), []).append(f)

    def epoch(self) -> int:
        """The lowest epoch of the fragments that can run, 0 if there are none."""
        return min((key[0] for key in self.pending), default=0)

    def yields(self, epoch: int, path: Path) -> bool:
        """Whether a fragment at this epoch and path must yield to others, or can unite with others there."""
        return bool(self.pending and min(self.pending) <= (epoch, path)) or path in self.deferred
