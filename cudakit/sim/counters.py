"""What a launch did, counted as Nsight Compute counts it.

A request is one warp-level instruction with at least one active lane that is not predicated off. Sectors are the
distinct 32-byte pieces of global memory that one request touches. Wavefronts are the passes that shared memory (32
banks of 4 bytes) needs for one request: lanes that read the same word share it; 64-bit accesses go by half warps and
128-bit accesses by quarter warps. Bank conflicts are wavefronts beyond the fewest that the active lanes could need.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass
class LineCounters:
    """The part of a kernel's counters that one source line caused; the names mean what they mean in ``Counters``."""

    instructions: int = 0
    lane_instructions: int = 0
    branches: int = 0
    divergent_branches: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_load_bytes: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    global_store_bytes: int = 0
    local_load_requests: int = 0
    local_store_requests: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    bank_conflicts: int = 0
    barriers: int = 0
    atomics: int = 0
    shuffles: int = 0

    def add(self, other: LineCounters) -> None:
        """Add another record's figures to this one's."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def branch_efficiency(self) -> float:
        """Branches in which no warp split, over all branches (1.0 where there are none)."""
        return 1.0 - self.divergent_branches / self.branches if self.branches else 1.0

    @property
    def sectors_per_request(self) -> float:
        """Global sectors a request, loads and stores together (0.0 where there are none)."""
        requests = self.global_load_requests + self.global_store_requests
        return (self.global_load_sectors + self.global_store_sectors) / requests if requests else 0.0

    @property
    def global_bytes(self) -> int:
        """Bytes that lanes asked global memory for, loads and stores together."""
        return self.global_load_bytes + self.global_store_bytes

    @property
    def global_sector_bytes(self) -> int:
        """Bytes moved: 32 for each sector of each request."""
        return 32 * (self.global_load_sectors + self.global_store_sectors)

    @property
    def lanes_per_instruction(self) -> float:
        """Active lanes of 32 in an instruction (0.0 where there are none)."""
        return self.lane_instructions / self.instructions if self.instructions else 0.0


_NAMES = tuple(f.name for f in fields(LineCounters))


@dataclass
class Counters(LineCounters):
    """All figures of one launch, or of several added together.

    ``instructions`` counts warps, ``lane_instructions`` the lanes active in them; ``*_bytes`` are what lanes asked
    for. ``per_line`` maps (file, line) to the share of each source line. ``launches``, ``blocks`` and ``threads`` add
    up.
    """

    launches: int = 0
    blocks: int = 0
    threads: int = 0
    per_line: dict[tuple[str, int], LineCounters] = field(default_factory=dict)

    def merge(self, other: Counters) -> None:
        """Add another launch's counters."""
        self.add(other)
        self.launches += other.launches
        self.blocks += other.blocks
        self.threads += other.threads
        for place, share in other.per_line.items():
            self.per_line.setdefault(place, LineCounters()).add(share)

    def as_dict(self) -> dict[str, int | float]:
        """All totals and the derived figures, by name; JSON can hold it."""
        out: dict[str, int | float] = {n: int(getattr(self, n)) for n in ("launches", "blocks", "threads", *_NAMES)}
        out["branch_efficiency"] = self.branch_efficiency
        out["sectors_per_request"] = self.sectors_per_request
        out["global_bytes"] = self.global_bytes
        out["global_sector_bytes"] = self.global_sector_bytes
        out["lanes_per_instruction"] = self.lanes_per_instruction
        return out
