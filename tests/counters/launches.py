"""Counts of a kernel's launches with one grid and block, in one variant, on one device: the rows that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Extents = tuple[int, int, int]
Key = tuple[str, str, str, Extents, Extents]


@dataclass
class Counted:
    """problem, variant: as named in `problems`. kernel: its name, without template arguments. source: the digest of the
    variant's source files. counts: by the device's own names, summed over `launches`."""

    problem: str
    variant: str
    kernel: str
    grid: Extents
    block: Extents
    source: str
    launches: int
    counts: dict[str, float]

    @property
    def key(self) -> Key:
        return (self.problem, self.variant, self.kernel, self.grid, self.block)

    @property
    def family(self) -> str:
        return self.problem.split()[0]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read(rows: Iterable[Mapping[str, Any]]) -> list[Counted]:
    """Return rows from the JSON of `as_dict`."""
    return [Counted(**{**row, "grid": tuple(row["grid"]), "block": tuple(row["block"])}) for row in rows]


def gathered(rows: Iterable[Counted]) -> dict[Key, Counted]:
    """Return one row per key, with the sums of all rows of that key."""
    found: dict[Key, Counted] = {}
    for row in rows:
        known = found.setdefault(row.key, row)
        if known is not row:
            known.launches += row.launches
            for name, value in row.counts.items():
                known.counts[name] = known.counts.get(name, 0) + value
    return found
