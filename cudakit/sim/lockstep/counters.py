"""The counters of a launch, as Nsight Compute counts.

A request is one warp-level instruction with at least one active lane that is not predicated off. Sectors are the
distinct 32-byte pieces of global memory that one request accesses. Wavefronts are the passes that shared memory (32
banks of 4 bytes) needs for one request: lanes that read the same word share it; 64-bit accesses are processed per half
warp and 128-bit accesses per quarter warp, except loads in which neighbouring lanes share addresses. Bank conflicts are
wavefronts beyond the minimum for the requested bytes. The contention of an atomic is the number of lanes of a warp at
its most contended address, which are serialised. A request of a bulk or tensor copy is the instruction of one thread.
Instructions are those of PTX, before ptxas optimises. Two of its optimisations change the counts and are taken into
account: neighbouring accesses to shared memory are merged (``cudakit.sim.instructions.merging``), and short branches
become predicates (``short_branches``), which Nsight Compute does not count as branches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from cudakit.sim.chips.occupancy import Occupancy

SourceLine = tuple[str, int]


@dataclass
class LineCounters:
    """The counters of one source line of a kernel, named as in ``Counters``.

    ``*_ideal_sectors`` is the minimum if no two active lanes share a byte, and never more than the sectors.
    ``worst_bank_conflict`` is the n of the worst n-way conflict of a request, ``worst_contention`` the largest number
    of lanes at one address. ``mix`` is the number of instructions by class (``cudakit.sim.ptx.mix.CLASSES``), without
    classes that do not occur. ``multiply_adds`` are those of matrix products, by the type of A (``"bf16"``), without
    types that do not occur. ``distributed_requests`` are requests to the shared memory of other blocks of a cluster;
    the ``shared_*`` counters do not include them. ``short_branches`` are the ``branches`` that ptxas usually turns into
    predicates: over a few instructions, or to the kernel's end.

    ``bulk_requests`` are bulk and tensor copies and their reductions; ``bulk_load_bytes`` go from global to shared
    memory (a multicast counts once), ``bulk_store_bytes`` the other way, ``bulk_distributed_bytes`` from the block's
    shared memory to that of a block of the cluster. ``bulk_clipped_bytes`` are those of them outside of the tensor,
    which are filled when loaded and dropped when stored. ``async_store_*`` are st.async and red.async.
    ``mbarrier_waits`` counts each test_wait and try_wait of a warp, ``mbarrier_waits_ready`` those that found the phase
    complete.
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
    bulk_requests: int = 0
    bulk_load_bytes: int = 0
    bulk_store_bytes: int = 0
    bulk_distributed_bytes: int = 0
    bulk_clipped_bytes: int = 0
    async_store_requests: int = 0
    async_store_bytes: int = 0
    bank_conflicts: int = 0
    worst_bank_conflict: int = 0
    barriers: int = 0
    mbarrier_waits: int = 0
    mbarrier_waits_ready: int = 0
    atomics: int = 0
    atomic_depth: int = 0
    worst_contention: int = 0
    shuffles: int = 0
    mix: dict[str, int] = field(default_factory=dict)
    multiply_adds: dict[str, int] = field(default_factory=dict)

    def add(self, other: LineCounters) -> None:
        """Add another record's counters to this one; the ``worst_*`` counters become the maximum of both."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _WORST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for own, others in ((self.mix, other.mix), (self.multiply_adds, other.multiply_adds)):
            for name, count in others.items():
                own[name] = own.get(name, 0) + count

    @property
    def branch_efficiency(self) -> float:
        """The fraction of branches that are not divergent (1.0 if there are no branches)."""
        return 1.0 - self.divergent_branches / self.branches if self.branches else 1.0

    @property
    def kept_branch_efficiency(self) -> float:
        """``branch_efficiency`` without ``short_branches``: comparable with Nsight Compute's branch efficiency."""
        kept = self.branches - self.short_branches
        return 1.0 - (self.divergent_branches - self.divergent_short_branches) / kept if kept else 1.0

    @property
    def sectors_per_request(self) -> float:
        """Global sectors per request, loads and stores together (0.0 if there are no requests)."""
        requests = self.global_load_requests + self.global_store_requests
        return (self.global_load_sectors + self.global_store_sectors) / requests if requests else 0.0

    @property
    def global_bytes(self) -> int:
        """Bytes of global memory that lanes requested, loads and stores together."""
        return self.global_load_bytes + self.global_store_bytes

    @property
    def global_sector_bytes(self) -> int:
        """Bytes moved: 32 for each sector of each request."""
        return 32 * (self.global_load_sectors + self.global_store_sectors)

    @property
    def global_traffic_bytes(self) -> int:
        """Bytes moved to and from global memory: those of sectors and of bulk copies, without clipped ones."""
        return self.global_sector_bytes + self.bulk_load_bytes + self.bulk_store_bytes - self.bulk_clipped_bytes

    @property
    def bulk_bytes(self) -> int:
        """Bytes of all bulk and tensor copies."""
        return self.bulk_load_bytes + self.bulk_store_bytes + self.bulk_distributed_bytes

    @property
    def lanes_per_instruction(self) -> float:
        """Mean number of active lanes per instruction, of 32 (0.0 if there are no instructions)."""
        return self.lane_instructions / self.instructions if self.instructions else 0.0

    @property
    def mean_bank_conflict(self) -> float:
        """The n of the mean n-way bank conflict: shared wavefronts of loads and stores over the minimum (1.0: no
        conflict; 0.0: no requests)."""
        fewest = self.shared_load_ideal_wavefronts + self.shared_store_ideal_wavefronts
        return (self.shared_load_wavefronts + self.shared_store_wavefronts) / fewest if fewest else 0.0

    @property
    def mean_contention(self) -> float:
        """Lanes at an atomic's most contended address, mean over its requests (0.0 if there are no atomics)."""
        return self.atomic_depth / self.atomics if self.atomics else 0.0


_NAMES = tuple(f.name for f in fields(LineCounters) if f.name not in ("mix", "multiply_adds"))
_WORST = ("worst_bank_conflict", "worst_contention")
_SUMS = tuple(name for name in _NAMES if name not in _WORST)


@dataclass(repr=False)
class Counters(LineCounters):
    """The counters of one launch, or the sums of several.

    ``instructions`` counts instructions per warp, ``lane_instructions`` per active lane; ``*_bytes`` are the bytes that
    lanes requested. ``per_line`` maps (file, line) to the counters of that source line: an instruction counts for the
    line that a fault report would name, which is the caller's if the code is in one of CUDA's headers. ``inlined`` maps
    a line to the number of instructions that were inlined into it and count for other lines. ``launches``, ``blocks``
    and ``threads`` are sums. ``occupancy`` is the theoretical occupancy, the lowest of several launches; None if the
    kernel's resources are unknown.
    """

    launches: int = 0
    blocks: int = 0
    threads: int = 0
    per_line: dict[SourceLine, LineCounters] = field(default_factory=dict)
    inlined: dict[SourceLine, int] = field(default_factory=dict)
    occupancy: Occupancy | None = None

    def __repr__(self) -> str:
        figures = {
            name: getattr(self, name)
            for name in ("launches", "blocks", "threads", "instructions", "branches", "divergent_branches")
        }
        figures |= {
            name: getattr(self, name)
            for name in ("global_bytes", "global_sector_bytes", "bulk_bytes", "bank_conflicts", "barriers", "atomics")
            if getattr(self, name)
        }
        return f"Counters({', '.join(f'{name}={value}' for name, value in figures.items())})"

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
        """All totals and derived figures by name, for JSON."""
        out: dict[str, int | float] = {n: int(getattr(self, n)) for n in ("launches", "blocks", "threads", *_NAMES)}
        out |= {f"instructions_{name}": count for name, count in self.mix.items()}
        out |= {f"multiply_adds_{name}": count for name, count in self.multiply_adds.items()}
        out["branch_efficiency"] = self.branch_efficiency
        out["kept_branch_efficiency"] = self.kept_branch_efficiency
        out["sectors_per_request"] = self.sectors_per_request
        out["global_bytes"] = self.global_bytes
        out["global_sector_bytes"] = self.global_sector_bytes
        out["bulk_bytes"] = self.bulk_bytes
        out["global_traffic_bytes"] = self.global_traffic_bytes
        out["lanes_per_instruction"] = self.lanes_per_instruction
        out["mean_bank_conflict"] = self.mean_bank_conflict
        out["mean_contention"] = self.mean_contention
        if self.occupancy is not None:
            out["occupancy"] = self.occupancy.fraction
        return out
