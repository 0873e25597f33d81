"""Advice from a kernel's counters: its worst uncoalesced access, bank conflict, divergent branch, contended atomic and
so on, each with its source line and a sentence that explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# thresholds of advice: sectors relative to the fewest, fraction of bulk bytes outside of the tensor, n of a mean n-way
# conflict, lanes at one address, active lanes
SECTORS_OVER_IDEAL = 2.0
CLIPPED = 0.5
CONFLICT_WAYS = 1.5
CONTENTION = 4.0
LANES = 24.0
# a line's idle lanes are reported if it has at least this fraction of the kernel's instructions
IDLE_SHARE = 0.05
LOW_OCCUPANCY = 0.5
# barriers per warp
BARRIERS = 8.0

SourceLine = tuple[str, int]


@dataclass(frozen=True)
class Hint:
    """One piece of advice: `kind` ("uncoalesced load"), `place` (file and line; None: the whole kernel), and `why`, the
    explanation in a sentence or two."""

    kind: str
    place: SourceLine | None
    why: str


@dataclass(frozen=True)
class GlobalTraffic:
    """One direction of a line's global traffic."""

    kind: str
    requests: int
    sectors: int
    ideal: int

    @property
    def each(self) -> float:
        """Sectors per request."""
        return self.sectors / self.requests

    @property
    def over(self) -> float:
        """Sectors relative to the fewest that can hold the lanes' bytes."""
        return self.sectors / self.ideal if self.ideal else 1.0


def global_traffic(line: Any) -> list[GlobalTraffic]:
    """A line's global loads and its global stores, each only if the line has any."""
    directions = [
        GlobalTraffic("load", line.global_load_requests, line.global_load_sectors, line.global_load_ideal_sectors),
        GlobalTraffic("store", line.global_store_requests, line.global_store_sectors, line.global_store_ideal_sectors),
    ]
    return [access for access in directions if access.requests]


def hints(counters: Any) -> list[Hint]:
    """Advice for a kernel's Counters: for each kind, the worst place, if it is above the kind's threshold."""
    worst: list[Hint] = []
    for look in (_uncoalesced, _clipped, _conflict, _contention, _local, _barriers, _idle, _divergent, _occupancy):
        worst.extend(look(counters))
    return worst


def _worst(counters: Any, badness: Callable[[Any], float]) -> tuple[SourceLine, Any] | None:
    """Return the line with the greatest badness, the first one if several are equal; None if no line is above 0."""
    lines = sorted(counters.per_line.items())
    place, line = max(lines, key=lambda item: badness(item[1]), default=(("", 0), None))
    return (place, line) if line is not None and badness(line) > 0 else None


def _uncoalesced(counters: Any) -> Iterator[Hint]:
    for kind in ("load", "store"):

        def excess(line: Any, kind: str = kind) -> float:
            bad = [a for a in global_traffic(line) if a.kind == kind and a.over >= SECTORS_OVER_IDEAL]
            return sum(access.sectors - access.ideal for access in bad)

        worst = _worst(counters, excess)
        if worst is not None:
            access = next(access for access in global_traffic(worst[1]) if access.kind == kind)
            yield Hint(
                f"uncoalesced {kind}",
                worst[0],
                f"One {kind} of a warp touches {_short(access.each)} sectors of 32 bytes on average; its bytes fit in "
                f"{_short(access.ideal / access.requests)}. The lanes' addresses are far apart, and the unused bytes "
                "of each sector waste bandwidth: have neighbouring lanes access neighbouring elements.",
            )


def clipped(line: Any) -> float:
    """Return the fraction of a line's bulk bytes that is outside of the tensor; 0 if there are none."""
    return float(line.bulk_clipped_bytes / line.bulk_bytes) if line.bulk_bytes else 0.0


def _clipped(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.bulk_clipped_bytes if clipped(line) >= CLIPPED else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "boxes outside of the tensor",
            worst[0],
            f"{100 * clipped(line):.0f} % of the {line.bulk_bytes:,} bytes of this line's boxes are outside of the "
            "tensor: filled when loaded, dropped when stored. Coordinates count elements, the contiguous dimension "
            "first, not boxes. If they are correct, use a smaller box.",
        )


def conflict_ways(line: Any) -> float:
    """Return the average n of a line's n-way bank conflicts; at most 1 if no two lanes ever conflict.

    Extra wavefronts are not always bank conflicts: an 8-byte or 16-byte access takes one wavefront for each half or
    quarter of the warp that has an active lane.
    """
    return float(line.mean_bank_conflict) if line.worst_bank_conflict > 1 else min(line.mean_bank_conflict, 1.0)


def _conflict(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.bank_conflicts if conflict_ways(line) >= CONFLICT_WAYS else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "bank conflict",
            worst[0],
            f"Up to {line.worst_bank_conflict} lanes of a warp access different words of one shared-memory bank, which "
            f"serves them one after another: {line.worst_bank_conflict}-way in the worst request, "
            f"{_short(line.mean_bank_conflict)}-way on average. Words whose distance is a multiple of 32 share a bank: "
            "pad each row by one word, or permute (swizzle) its columns.",
        )


def _contention(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.atomic_depth if line.mean_contention >= CONTENTION else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "atomics on one address",
            worst[0],
            f"Up to {line.worst_contention} lanes of a warp ({_short(line.mean_contention)} on average) update one "
            "address, one after another. Combine their values within the warp first (shuffles, "
            "__reduce_add_sync), or spread them over several addresses.",
        )


def _divergent(counters: Any) -> Iterator[Hint]:
    # once per block is usual: a guard at a ragged edge, or one thread that works for the block
    usual = counters.blocks
    worst = _worst(counters, lambda line: line.divergent_branches if line.divergent_branches > usual else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "divergent branch",
            worst[0],
            f"{line.divergent_branches:,} of the {line.branches:,} times that a warp executed this branch, its lanes "
            "took both paths, and the warp ran them one after the other. If both paths are long, make the condition "
            "the same for all lanes of a warp.",
        )


def _idle(counters: Any) -> Iterator[Hint]:
    least = IDLE_SHARE * counters.instructions

    def idle(line: Any) -> float:
        few = line.lanes_per_instruction < LANES and line.instructions >= least
        return 32 * line.instructions - line.lane_instructions if few else 0

    worst = _worst(counters, idle)
    if worst is not None:
        line = worst[1]
        share = line.instructions / counters.instructions
        yield Hint(
            "idle lanes",
            worst[0],
            f"On average {_short(line.lanes_per_instruction)} of 32 lanes are active here, in {100 * share:.0f} % of "
            "the kernel's instructions. An instruction costs the same with one active lane as with 32: spread the work "
            "over all lanes.",
        )


def _local(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.local_load_bytes + line.local_store_bytes)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "local memory",
            worst[0],
            f"This line reads and writes {line.local_load_bytes + line.local_store_bytes:,} bytes of local memory, "
            "which is in device memory. An array with an index that is only known at run time cannot stay in "
            "registers: unroll the loop, so that the indices are constants.",
        )


def _barriers(counters: Any) -> Iterator[Hint]:
    warps = counters.blocks * -(-counters.threads // max(counters.blocks, 1) // 32)
    each = counters.barriers / warps if warps else 0.0
    worst = _worst(counters, lambda line: line.barriers) if each >= BARRIERS else None
    if worst is not None:
        yield Hint(
            "many barriers",
            worst[0],
            f"Each warp reaches {_short(each)} barriers, {_short(worst[1].barriers / warps)} of them here, and waits "
            "at each for the slowest warp of its block. Exchange data within a warp if possible, for example by a "
            "reduction with shuffles, which needs no barrier.",
        )


def _occupancy(counters: Any) -> Iterator[Hint]:
    occupancy = counters.occupancy
    if occupancy is not None and occupancy.fraction < LOW_OCCUPANCY:
        yield Hint(
            "low occupancy",
            None,
            f"{occupancy_text(occupancy)}. Few warps hide little memory latency, unless each thread keeps several "
            "loads or independent instructions in flight.",
        )


_LIMITS = {
    "threads": "threads per multiprocessor",
    "blocks": "blocks per multiprocessor",
    "registers": "registers",
    "shared memory": "shared memory",
}


def occupancy_text(occupancy: Any) -> str:
    """ "50 % occupancy: 1 block per multiprocessor, 32 of 64 warps, limited by registers"."""
    blocks = f"{occupancy.blocks} block{'s' * (occupancy.blocks != 1)}"
    return (
        f"{100 * occupancy.fraction:.3g} % occupancy: {blocks} per multiprocessor, {occupancy.warps} of "
        f"{occupancy.most_warps} warps, limited by {_LIMITS[occupancy.limit]}"
    )


def _short(value: float) -> str:
    """Return the number with one decimal, or without it if the decimal is 0: 32, 4.5."""
    return f"{value:.1f}".removesuffix(".0")
