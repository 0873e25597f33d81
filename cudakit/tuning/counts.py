"""A ranking of kernels on the simulated device, by the work of each unit according to the counters.

Per clock, a multiprocessor issues up to four warp instructions, serves one pass over the banks of shared memory and one
atomic update of an address, and moves about one sector of 32 bytes from or to the L2 (measured on H100 and H200: 26 to
31 bytes). A slot is one clock of one of these units. Each unit's slots are a lower bound on its time, and the busiest
unit's slots are a lower bound on the kernel's time. Divergence needs no unit of its own: each side of a branch is
issued and counted separately. Slots rank candidates. Slots are not times: latencies, clocks, caches and the number of
resident blocks are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INSTRUCTIONS_PER_SLOT = 4
BYTES_PER_SECTOR = 32


@dataclass(frozen=True)
class Load:
    """Slots per unit, summed over all kernels of a run: issue, global memory (including local memory), shared memory,
    and atomics at their busiest addresses. occupancy: the lowest of all kernels."""

    issue: float
    memory: float
    shared: float
    atomics: float
    occupancy: float

    @classmethod
    def of(cls, counters: Mapping[str, Any]) -> Load:
        """Return the load of a row's counters (`Row.counters`, or `Counters.as_dict()`)."""

        def total(*names: str) -> float:
            return float(sum(counters.get(name, 0) for name in names))

        local = total("local_load_bytes", "local_store_bytes") / BYTES_PER_SECTOR
        sectors = total("global_load_sectors", "global_store_sectors", "global_atomic_sectors")
        shared = total("shared_load_wavefronts", "shared_store_wavefronts", "shared_atomic_requests")
        return cls(
            total("instructions") / INSTRUCTIONS_PER_SLOT,
            sectors + local,
            shared,
            total("atomic_depth"),
            float(counters.get("occupancy", 0.0)),
        )

    @property
    def units(self) -> dict[str, float]:
        """Slots by unit."""
        return {"issue": self.issue, "memory": self.memory, "shared": self.shared, "atomics": self.atomics}

    @property
    def busiest(self) -> str:
        """The unit with the most slots."""
        return max(self.units, key=lambda name: self.units[name])

    @property
    def cost(self) -> float:
        """The busiest unit's slots, which rank candidates. Small terms break ties: first the work on all units, then
        the occupancy."""
        total = sum(self.units.values())
        most = self.units[self.busiest]
        return most * (1 + 1e-3 * (total / (4 * most) if most else 0.0) + 1e-6 * (1 - self.occupancy))

    def as_dict(self) -> dict[str, float]:
        return {**self.units, "occupancy": self.occupancy}
