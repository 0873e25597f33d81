"""What a kernel's counters say to look at first: the worst uncoalesced access, bank conflict, divergent branch and
atomic of a kernel, each with its source line and the reason in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# what is not worth a look: sectors over the fewest, n of a mean n-way conflict, lanes at one address, active lanes
SECTORS_OVER_IDEAL = 2.0
CONFLICT_WAYS = 1.5
CONTENTION = 4.0
LANES = 24.0
# a line with less than this share of the kernel's instructions is not worth a look for its idle lanes alone
IDLE_SHARE = 0.05
LOW_OCCUPANCY = 0.5
# barriers that a warp comes to
BARRIERS = 8.0

SourceLine = tuple[str, int]


@dataclass(frozen=True)
class Hint:
    """Something to look at: `kind` ("uncoalesced load"), `place` (file and line; None: the kernel as a whole), `why` in
    a sentence or two."""

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
        """Sectors a request."""
        return self.sectors / self.requests

    @property
    def over(self) -> float:
        """Sectors over the fewest that the lanes' bytes could lie in."""
        return self.sectors / self.ideal if self.ideal else 1.0


def global_traffic(line: Any) -> list[GlobalTraffic]:
    """A line's global loads and stores, those it has."""
    directions = [
        GlobalTraffic("load", line.global_load_requests, line.global_load_sectors, line.global_load_ideal_sectors),
        GlobalTraffic("store", line.global_store_requests, line.global_store_sectors, line.global_store_ideal_sectors),
    ]
    return [access for access in directions if access.requests]


def hints(counters: Any) -> list[Hint]:
    """What to look at first in a kernel's Counters: at most one place of each kind, the worst."""
    worst: list[Hint] = []
    for look in (_uncoalesced, _conflict, _contention, _local, _barriers, _idle, _divergent, _occupancy):
        worst.extend(look(counters))
    return worst


def _worst(counters: Any, badness: Callable[[Any], float]) -> tuple[SourceLine, Any] | None:
    """The line with the greatest badness above 0; of equal ones the first."""
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
                f"A {kind} of one warp touches {_short(access.each)} sectors of 32 bytes; the bytes asked for fit in "
                f"{_short(access.ideal / access.requests)}. Its lanes' addresses are far apart, and the rest of each "
                "sector is moved for nothing: let neighbouring lanes touch neighbouring elements.",
            )


def conflict_ways(line: Any) -> float:
    """n of a line's mean n-way bank conflict. Passes beyond the fewest are none where no lanes meet in a bank: a warp
    of which some lanes are switched off needs a pass for each half or quarter that has one."""
    return float(line.mean_bank_conflict) if line.worst_bank_conflict > 1 else min(line.mean_bank_conflict, 1.0)


def _conflict(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.bank_conflicts if conflict_ways(line) >= CONFLICT_WAYS else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "bank conflict",
            worst[0],
            f"Up to {line.worst_bank_conflict} lanes of a warp want different words of one shared-memory bank, and are "
            f"served one after another: {line.worst_bank_conflict}-way in the worst request, "
            f"{_short(line.mean_bank_conflict)}-way in the mean. Lanes that lie a multiple of 32 words apart do this: "
            "pad each row by one word, or permute its columns.",
        )


def _contention(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.atomic_depth if line.mean_contention >= CONTENTION else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "atomics on one address",
            worst[0],
            f"Up to {line.worst_contention} lanes of a warp ({_short(line.mean_contention)} in the mean) update one "
            "address, each after the one before. Combine their values within the warp first (shuffles, "
            "__reduce_add_sync), or spread them over several addresses.",
        )


def _divergent(counters: Any) -> Iterator[Hint]:
    # Once a block is a guard at a ragged edge, or a thread that does something for all: neither is worth a thought.
    usual = counters.blocks
    worst = _worst(counters, lambda line: line.divergent_branches if line.divergent_branches > usual else 0)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "divergent branch",
            worst[0],
            f"{line.divergent_branches:,} of the {line.branches:,} times that a warp came here its lanes went both "
            "ways, each with the lanes of the other idle. Let the condition be the same for a whole warp where both "
            "ways are long.",
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
            f"{_short(line.lanes_per_instruction)} of 32 lanes are active here in the mean, in {100 * share:.0f} % of "
            "the kernel's instructions. A warp costs the same with one lane as with 32.",
        )


def _local(counters: Any) -> Iterator[Hint]:
    worst = _worst(counters, lambda line: line.local_load_bytes + line.local_store_bytes)
    if worst is not None:
        line = worst[1]
        yield Hint(
            "local memory",
            worst[0],
            f"{line.local_load_bytes + line.local_store_bytes:,} bytes of local memory are moved here, which lies "
            "in device memory. An array indexed by what is only known at run time cannot stay in registers: unroll the "
            "loop, so that its indices are constants.",
        )


def _barriers(counters: Any) -> Iterator[Hint]:
    warps = counters.blocks * -(-counters.threads // max(counters.blocks, 1) // 32)
    each = counters.barriers / warps if warps else 0.0
    worst = _worst(counters, lambda line: line.barriers) if each >= BARRIERS else None
    if worst is not None:
        yield Hint(
            "many barriers",
            worst[0],
            f"A warp comes to {_short(each)} barriers, {_short(worst[1].barriers / warps)} of them here, and at each "
            "waits for the slowest warp of its block. Let each warp do alone what it can, such as reducing by "
            "shuffles, so that few barriers are left.",
        )


def _occupancy(counters: Any) -> Iterator[Hint]:
    occupancy = counters.occupancy
    if occupancy is not None and occupancy.fraction < LOW_OCCUPANCY:
        yield Hint(
            "low occupancy",
            None,
            f"{occupancy_text(occupancy)}. Few warps hide little of the latency of memory; a kernel that "
            "keeps much work in flight in each thread may do well all the same.",
        )


_LIMITS = {
    "threads": "the threads that a multiprocessor holds",
    "blocks": "the blocks that a multiprocessor holds",
    "registers": "registers",
    "shared memory": "shared memory",
}


def occupancy_text(occupancy: Any) -> str:
    """ "50 % occupancy: 1 block a multiprocessor, 32 of 64 warps, limited by registers"."""
    blocks = f"{occupancy.blocks} block{'s' * (occupancy.blocks != 1)}"
    return (
        f"{100 * occupancy.fraction:.3g} % occupancy: {blocks} a multiprocessor, {occupancy.warps} of "
        f"{occupancy.most_warps} warps, limited by {_LIMITS[occupancy.limit]}"
    )


def _short(value: float) -> str:
    """One digit behind the point where it says something: 32, 4.5."""
    return f"{value:.1f}".removesuffix(".0")
