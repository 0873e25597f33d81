"""What a launch did, counted as Nsight Compute counts it.

A request is one warp-level instruction with at least one active lane that is not predicated off. Sectors are the
distinct 32-byte pieces of global memory that one request touches. Wavefronts are the passes that shared memory (32
banks of 4 bytes) needs for one request: lanes that read the same word share it; 64-bit accesses go by half warps and
128-bit accesses by quarter warps, but for loads in which neighbouring lanes share addresses. Bank conflicts are
wavefronts beyond the fewest that so many bytes could need. The contention of an atomic is how many lanes of a warp its
busiest address has: they go one after another. Instructions are PTX's, before the last optimisations of ptxas. Two of
those change what is counted, and are foreseen: neighbouring accesses of shared memory become one
(``cudakit.sim.instructions.merging``), and short branches become predicates (``short_branches``), so that Nsight
Compute does not see them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from cudakit.sim.chips.occupancy import Occupancy

SourceLine = tuple[str, int]


@dataclass
class LineCounters:
    """The part of a kernel's counters that one source line caused; the names mean what they mean in ``Counters``.

    ``*_ideal_sectors`` are the fewest that the active lanes could need for bytes of their own. ``worst_bank_conflict``
    and ``worst_contention`` are those of the worst request: n of n-way, and lanes at one address. ``mix`` are the
    instructions by class (``cudakit.sim.ptx.mix.CLASSES``), those that occur. ``distributed_requests`` are those to the
    shared memory of other blocks of a cluster, which are none of the ``shared_*`` ones. ``short_branches`` are those of
    ``branches`` that ptxas as a rule turns into predicates: over a few instructions, or to the kernel's end.
    """

    instructions: int = 0
    lane_instructions: int = 0
    branches: int = 0
    divergent_branches: int = 0
    short_branches: int = 0
    divergent_short_branches: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_load_ideal_sectors: int = 0
    global_load_bytes: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    global_store_ideal_sectors: int = 0
    global_store_bytes: int = 0
    global_atomic_requests: int = 0
    global_atomic_sectors: int = 0
    global_atomic_bytes: int = 0
    local_load_requests: int = 0
    local_load_bytes: int = 0
    local_store_requests: int = 0
    local_store_bytes: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_ideal_wavefronts: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_ideal_wavefronts: int = 0
    shared_atomic_requests: int = 0
    shared_bytes: int = 0
    distributed_requests: int = 0
    bank_conflicts: int = 0
    worst_bank_conflict: int = 0
    barriers: int = 0
    atomics: int = 0
    atomic_depth: int = 0
    worst_contention: int = 0
    shuffles: int = 0
    mix: dict[str, int] = field(default_factory=dict)

    def add(self, other: LineCounters) -> None:
        """Add another record's figures to this one's; of the worst, the worse stays."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _WORST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name, count in other.mix.items():
            self.mix[name] = self.mix.get(name, 0) + count

    @property
    def branch_efficiency(self) -> float:
        """Branches in which no warp split, over all branches (1.0 where there are none)."""
        return 1.0 - self.divergent_branches / self.branches if self.branches else 1.0

    @property
    def kept_branch_efficiency(self) -> float:
        """``branch_efficiency`` of the branches that ptxas keeps, as a rule: what Nsight Compute calls by that name."""
        kept = self.branches - self.short_branches
        return 1.0 - (self.divergent_branches - self.divergent_short_branches) / kept if kept else 1.0

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

    @property
    def mean_bank_conflict(self) -> float:
        """n of the mean n-way conflict: shared wavefronts of loads and stores over the fewest (1.0: none; 0.0: no
        request)."""
        fewest = self.shared_load_ideal_wavefronts + self.shared_store_ideal_wavefronts
        return (self.shared_load_wavefronts + self.shared_store_wavefronts) / fewest if fewest else 0.0

    @property
    def mean_contention(self) -> float:
        """Lanes at an atomic's busiest address, the mean of its requests (0.0 where there are none)."""
        return self.atomic_depth / self.atomics if self.atomics else 0.0


_NAMES = tuple(f.name for f in fields(LineCounters) if f.name != "mix")
_WORST = ("worst_bank_conflict", "worst_contention")
_SUMS = tuple(name for name in _NAMES if name not in _WORST)


@dataclass
class Counters(LineCounters):
    """All figures of one launch, or of several added together.

    ``instructions`` counts warps, ``lane_instructions`` the lanes active in them; ``*_bytes`` are what lanes asked
    for. ``per_line`` maps (file, line) to the share of each source line: an instruction belongs to the line that a
    report would name, which is the caller's where the code is from one of CUDA's headers. ``inlined`` maps a line to
    the instructions that were inlined into it and belong to other lines. ``launches``, ``blocks`` and ``threads`` add
    up. ``occupancy`` is the theoretical one, the lowest of several launches; None where nobody said what the kernel
    needs.
    """

    launches: int = 0
    blocks: int = 0
    threads: int = 0
    per_line: dict[SourceLine, LineCounters] = field(default_factory=dict)
    inlined: dict[SourceLine, int] = field(default_factory=dict)
    occupancy: Occupancy | None = None

    def merge(self, other: Counters) -> None:
        """Add another launch's counters."""
        self.add(other)
        self.launches += other.launches
        self.blocks += other.blocks
        self.threads += other.threads
        for place, share in other.per_line.items():
            self.per_line.setdefault(place, LineCounters()).add(share)
        for place, count in other.inlined.items():
            self.inlined[place] = self.inlined.get(place, 0) + count
        known = [found for found in (self.occupancy, other.occupancy) if found is not None]
        self.occupancy = min(known, key=lambda found: found.fraction, default=None)

    def as_dict(self) -> dict[str, int | float]:
        """All totals and the derived figures, by name; JSON can hold it."""
        out: dict[str, int | float] = {n: int(getattr(self, n)) for n in ("launches", "blocks", "threads", *_NAMES)}
        out |= {f"instructions_{name}": count for name, count in self.mix.items()}
        out["branch_efficiency"] = self.branch_efficiency
        out["kept_branch_efficiency"] = self.kept_branch_efficiency
        out["sectors_per_request"] = self.sectors_per_request
        out["global_bytes"] = self.global_bytes
        out["global_sector_bytes"] = self.global_sector_bytes
        out["lanes_per_instruction"] = self.lanes_per_instruction
        out["mean_bank_conflict"] = self.mean_bank_conflict
        out["mean_contention"] = self.mean_contention
        if self.occupancy is not None:
            out["occupancy"] = self.occupancy.fraction
        return out
