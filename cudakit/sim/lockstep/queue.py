"""The fragments of a batch that can run, and those that wait for other lanes of their warps."""

from __future__ import annotations

from cudakit.sim.lockstep.fragment import Fragment

Path = tuple[int, ...]
# epoch and path: the lowest runs first
Key = tuple[int, Path]


class FragmentQueue:
    """``pending`` are the fragments that can run, ``deferred`` those that wait for other lanes of their warps."""

    __slots__ = ("deferred", "pending")

    def __init__(self) -> None:
        self.pending: dict[Key, list[Fragment]] = {}
        self.deferred: dict[Path, list[Fragment]] = {}

    def add(self, f: Fragment) -> None:
        """Let a fragment run in its turn."""
        self.pending.setdefault((f.epoch, f.path()), []).append(f)

    def defer(self, f: Fragment) -> None:
        """Let a fragment wait for other lanes of its warps."""
        self.deferred.setdefault(f.path(), []).append(f)

    def epoch(self) -> int:
        """The lowest epoch of those that can run, 0 if there are none."""
        return min((key[0] for key in self.pending), default=0)

    def yields(self, epoch: int, path: Path) -> bool:
        """Whether a fragment at a place must let others run first, or meets others there."""
        return bool(self.pending and min(self.pending) <= (epoch, path)) or path in self.deferred
