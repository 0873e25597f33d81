"""What binds a kernel, in a word and in a sentence, by rules that can be read and argued with.

In this order, the first that holds:

1. Fewer than 60 % of the multiprocessors had work on average: the grid is too small or ends in a long tail.
2. Half of a warp's lanes or fewer work, while more than half of the issue slots are taken: lanes are wasted.
3. A unit is full. Each has a share of its peak from which on it counts as full (`FULL`); of several the one that is
   furthest above it binds. A unit is full below 100 % because no kernel reaches a data sheet's peak: a plain copy gets
   87 % of an H200's DRAM bandwidth, and products of the vendor's library 75 to 80 % of its FMA pipe.
4. Nothing is full: warps wait. The group of reasons (`WAITS`) that takes the most of their time binds; few resident
   warps are named where the chip's own limits keep them few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

BUSY_ENOUGH = 0.6
LANES_WASTED = 16
ISSUE_TAKEN = 0.5
FEW_WARPS = 0.4
EXCESS = 1.25


@dataclass(frozen=True)
class Unit:
    """Something a kernel can fill: its share in a row, from where on it is full, its name, and what is said of it."""

    key: str
    full: float
    name: str
    said: str


SHARED = "shared memory"

FULL = (
    Unit("dram_share", 0.70, "DRAM bandwidth", "DRAM moves {share} of its peak"),
    Unit("l2_share", 0.75, "L2 bandwidth", "the L2 serves sectors at {share} of its peak"),
    Unit("l1_share", 0.80, "L1 data path", "the L1's data path is {share} busy, with accesses to global memory"),
    Unit("tensor_share", 0.55, "tensor pipe", "the tensor pipe is {share} busy"),
    Unit("fma_share", 0.65, "FMA pipe", "the FMA pipe is {share} busy"),
    Unit("alu_share", 0.75, "ALU pipe", "the pipe of integers and logic is {share} busy"),
    Unit("xu_share", 0.75, "special functions", "the pipe of special functions and conversions is {share} busy"),
    Unit("issue_share", 0.80, "instruction issue", "instructions are issued in {share} of the cycles"),
)
# The same data path, where shared memory takes more than half of it.
_SHARED = Unit("l1_share", 0.80, SHARED, "the L1's data path is {share} busy, most of it with shared memory")

_SHARED_LATENCY = "shared memory latency"

# Groups of reasons to wait: the name of what binds, and what the warps wait for.
WAITS = {
    ("long_scoreboard", "lg_throttle", "drain"): ("memory latency", "global memory"),
    ("short_scoreboard", "mio_throttle"): (_SHARED_LATENCY, "shared memory or special functions"),
    ("barrier",): ("barriers", "each other at barriers"),
    ("membar",): ("memory fences", "memory fences"),
    ("wait", "math_pipe_throttle", "dispatch_stall"): ("instruction latency", "arithmetic results and pipes"),
    ("branch_resolving", "no_instruction", "imc_miss"): ("instruction fetch", "instructions, branches and constants"),
}


def explain(row: Row) -> dict[str, str]:
    """`binds` (a name) and `sentence` for a row of `reduction`; both empty where nothing to judge by was collected."""
    for rule in (_small_grid, _wasted_lanes, _full_unit, _waiting):
        verdict = rule(row)
        if verdict is not None:
            binds, sentence = verdict
            return {"binds": binds, "sentence": sentence[0].upper() + sentence[1:] + "."}
    return {"binds": "", "sentence": ""}


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _small_grid(row: Row) -> tuple[str, str] | None:
    busy = row["multiprocessors_busy"]
    if busy is None or busy >= BUSY_ENOUGH:
        return None
    x, y, z = row["grid"]
    waits = "".join(f"; their warps wait {percent(share)} of the time ({why})" for why, share in _first(row["stalls"]))
    return "small grid", (
        f"a grid of {x * y * z:,} blocks keeps {percent(busy)} of the multiprocessors at work on average{waits}"
        f"{_uncoalesced(row)}"
    )


def _wasted_lanes(row: Row) -> tuple[str, str] | None:
    lanes, issue = row["lanes"], row["issue_share"]
    if lanes is None or issue is None or lanes > LANES_WASTED or issue < ISSUE_TAKEN:
        return None
    return "idle lanes", (
        f"a mean instruction is executed by {lanes:.3g} of a warp's 32 lanes, and {percent(issue)} of the issue slots "
        f"are taken{_few_warps(row)}"
    )


def _full_unit(row: Row) -> tuple[str, str] | None:
    there = [unit for unit in _units(row) if row[unit.key] >= unit.full]
    if not there:
        return None
    unit = max(there, key=lambda unit: row[unit.key] / unit.full)
    return unit.name, unit.said.format(share=percent(row[unit.key])) + _why(row, unit)


def _units(row: Row) -> list[Unit]:
    """The units whose shares were collected, the L1's data path under the name of what takes most of it."""
    there = [unit for unit in FULL if row[unit.key] is not None]
    shared = (
        row["shared_share"] is not None and row["l1_share"] is not None and 2 * row["shared_share"] > row["l1_share"]
    )
    return [_SHARED if shared and unit.key == "l1_share" else unit for unit in there]


def _why(row: Row, unit: Unit) -> str:
    """What makes it full, where a figure says so."""
    if unit.name == SHARED:
        few = "; there are no bank conflicts, but too many accesses for the arithmetic they feed"
        return _fma(row) + (_conflicts(row) or few)
    if unit.key == "l1_share":
        return _fma(row) + _uncoalesced(row)
    if unit.key == "dram_share":
        return f", {row['gbps']:,.0f} GB/s" + _uncoalesced(row) if row["gbps"] is not None else _uncoalesced(row)
    if unit.key in ("fma_share", "tensor_share") and row["issue_share"] is not None:
        return f", with instructions issued in {percent(row['issue_share'])} of the cycles"
    return ""


def _waiting(row: Row) -> tuple[str, str] | None:
    groups = {
        name: (sum(row["stalls"].get(reason, 0.0) for reason in reasons), what)
        for reasons, (name, what) in WAITS.items()
    }
    name = max(groups, key=lambda name: groups[name][0])
    share, what = groups[name]
    if not share:
        return None
    nearest = max(_units(row), key=lambda unit: float(row[unit.key]), default=None)
    most = f" (the busiest: {nearest.name}, {percent(row[nearest.key])})" if nearest else ""
    return name, (
        f"no unit is full{most}; warps spend {percent(share)} of their time waiting for {what}"
        f"{_few_warps(row)}{_conflicts(row) if name == _SHARED_LATENCY else ''}{_uncoalesced(row)}"
    )


def _conflicts(row: Row) -> str:
    """Where shared memory takes more passes (wavefronts) than its bytes need."""
    actual, ideal = row["shared_wavefronts"], row["shared_wavefronts_ideal"]
    if not actual or not ideal or actual <= EXCESS * ideal:
        return ""
    return f"; bank conflicts make {actual / ideal:.2g} passes over shared memory of each that is needed"


def _uncoalesced(row: Row) -> str:
    """Where a warp's accesses touch more sectors than their bytes would fill."""
    actual, ideal = row["global_sectors"], row["global_sectors_ideal"]
    if not actual or not ideal or actual <= EXCESS * ideal:
        return ""
    return f"; accesses to global memory touch {actual / ideal:.2g} times the sectors that their bytes would fill"


def _fma(row: Row) -> str:
    return f", the FMA pipe {percent(row['fma_share'])}" if row["fma_share"] is not None else ""


def _few_warps(row: Row) -> str:
    occupancy, limit = row["occupancy"], row["limited_by"]
    if occupancy is None or occupancy >= FEW_WARPS or not limit:
        return ""
    return f", and {percent(occupancy)} of the warps that a multiprocessor can hold are there to fill in ({limit})"


def _first(stalls: Mapping[str, float]) -> list[tuple[str, float]]:
    return list(stalls.items())[:1]
