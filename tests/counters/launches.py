"""A kernel's launches of one grid and block within a rung, counted on either device: the rows that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Extents = tuple[int, int, int]
Key = tuple[str, str, str, Extents, Extents]


@dataclass
class Counted:
    """problem, variant: as `problems` name them. kernel: its name, without template arguments. source: the digest of
    what the rung is made of. counts: by the device's own names, added up over `launches`."""

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
    """What `as_dict` wrote, read back from JSON."""
    return [Counted(**{**row, "grid": tuple(row["grid"]), "block": tuple(row["block"])}) for row in rows]


def gathered(rows: Iterable[Counted]) -> dict[Key, Counted]:
    """One row a key, in the order in which keys come."""
    found: dict[Key, Counted] = {}
    for row in rows:
        known = found.setdefault(row.key, row)
        if known is not row:
            known.launches += row.launches
            for name, value in row.counts.items():
                known.counts[name] = known.counts.get(name, 0) + value
    return found
