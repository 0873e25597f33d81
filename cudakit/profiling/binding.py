"""The bottleneck of a kernel: a name and a sentence.

The first of these rules that holds names it:

1. Fewer than 60 % of the multiprocessors had work on average: the grid is too small or ends in a long tail.
2. At most half of a warp's lanes are active, and more than half of the issue slots are used: lanes are wasted.
3. A unit is full: its fraction of peak is above its threshold (`FULL`). If several are full, the bottleneck is the one
   furthest above its threshold, as a ratio. Thresholds are below 100 % because no kernel reaches a data sheet's peak: a
   plain copy reaches 87 % of an H200's DRAM bandwidth, cuBLAS 75 to 80 % of its FMA pipe.
4. No unit is full, so warps wait. The bottleneck is the group of stall reasons (`WAITS`) that takes most of the warps'
   time. Low occupancy is mentioned if registers, shared memory or another limit causes it.
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
    """A unit of the chip. key: the row's key for the unit's fraction of peak. full: the fraction from which the unit
    counts as full. sentence: the explanation if it is full."""

    key: str
    full: float
    name: str
    sentence: str


SHARED = "shared memory"

FULL = (
    Unit("dram_share", 0.70, "DRAM bandwidth", "DRAM runs at {share} of its peak"),
    Unit("l2_share", 0.75, "L2 bandwidth", "the L2 runs at {share} of its peak bandwidth"),
    Unit("l1_share", 0.80, "L1 data path", "the L1 data path is {share} busy with global memory"),
    Unit("tensor_share", 0.55, "tensor pipe", "the tensor pipe is {share} busy"),
    Unit("fma_share", 0.65, "FMA pipe", "the FMA pipe is {share} busy"),
    Unit("alu_share", 0.75, "ALU pipe", "the ALU pipe (integers and logic) is {share} busy"),
    Unit("xu_share", 0.75, "special functions", "the XU pipe (special functions and conversions) is {share} busy"),
    Unit("issue_share", 0.80, "instruction issue", "instructions are issued in {share} of the cycles"),
)
# the same data path, if shared memory takes more than half of it
_SHARED = Unit("l1_share", 0.80, SHARED, "the L1 data path is {share} busy, mostly with shared memory")

_SHARED_LATENCY = "shared memory latency"

# groups of stall reasons: the name of the bottleneck, and what the warps wait for
WAITS = {
    ("long_scoreboard", "lg_throttle", "drain"): ("memory latency", "global memory"),
    ("short_scoreboard", "mio_throttle"): (_SHARED_LATENCY, "shared memory or special functions"),
    ("barrier",): ("barriers", "other warps at barriers"),
    ("membar",): ("memory fences", "memory fences"),
    ("gmma",): ("wgmma latency", "products of wgmma"),
    ("wait", "math_pipe_throttle", "dispatch_stall"): ("instruction latency", "arithmetic results and busy pipes"),
    ("branch_resolving", "no_instruction", "imc_miss"): ("instruction fetch", "instructions, branches and constants"),
}


def explain(row: Row) -> dict[str, str]:
    """`binds` (the bottleneck's name) and `sentence` for a row of `reduction`; both are empty if the metrics that the
    rules need were not collected."""
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
    waits = "".join(f"; warps stall {percent(share)} of the time ({why})" for why, share in _first(row["stalls"]))
    return "small grid", (
        f"a grid of {x * y * z:,} block{'s' * (x * y * z != 1)} keeps {percent(busy)} of the multiprocessors busy on "
        f"average{waits}"
        f"{_uncoalesced(row)}"
    )


def _wasted_lanes(row: Row) -> tuple[str, str] | None:
    lanes, issue = row["lanes"], row["issue_share"]
    if lanes is None or issue is None or lanes > LANES_WASTED or issue < ISSUE_TAKEN:
        return None
    return "idle lanes", (
        f"on average {lanes:.3g} of 32 lanes {'is' if lanes == 1 else 'are'} active, and {percent(issue)} of the issue "
        f"slots are used{_few_warps(row)}"
    )


def _full_unit(row: Row) -> tuple[str, str] | None:
    there = [unit for unit in _units(row) if row[unit.key] >= unit.full]
    if not there:
        return None
    unit = max(there, key=lambda unit: row[unit.key] / unit.full)
    return unit.name, unit.sentence.format(share=percent(row[unit.key])) + _why(row, unit)


def _units(row: Row) -> list[Unit]:
    """The units whose shares were collected; the L1 data path counts as shared memory if shared memory uses most of
    it."""
    there = [unit for unit in FULL if row[unit.key] is not None]
    shared = (
        row["shared_share"] is not None and row["l1_share"] is not None and 2 * row["shared_share"] > row["l1_share"]
    )
    return [_SHARED if shared and unit.key == "l1_share" else unit for unit in there]


def _why(row: Row, unit: Unit) -> str:
    """Return why the unit is full, if the row's figures show it, else ""."""
    if unit.name == SHARED:
        many = "; there are no bank conflicts, but too many shared memory accesses per arithmetic instruction"
        return _fma(row) + (_conflicts(row) or many)
    if unit.key == "l1_share":
        return _fma(row) + _uncoalesced(row)
    if unit.key == "dram_share":
        return f", {row['gbps']:,.0f} GB/s" + _uncoalesced(row) if row["gbps"] is not None else _uncoalesced(row)
    if unit.key in ("fma_share", "tensor_share") and row["issue_share"] is not None:
        return f", and instructions are issued in {percent(row['issue_share'])} of the cycles"
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
    """Return a note if shared memory takes many more wavefronts than its bytes need, else ""."""
    actual, ideal = row["shared_wavefronts"], row["shared_wavefronts_ideal"]
    if not actual or not ideal or actual <= EXCESS * ideal:
        return ""
    return f"; bank conflicts multiply the wavefronts of shared memory by {actual / ideal:.2g}"


def _uncoalesced(row: Row) -> str:
    """Return a note if global accesses touch many more sectors than their bytes need, else ""."""
    actual, ideal = row["global_sectors"], row["global_sectors_ideal"]
    if not actual or not ideal or actual <= EXCESS * ideal:
        return ""
    return f"; uncoalesced accesses touch {actual / ideal:.2g} times the sectors that their bytes need"


def _fma(row: Row) -> str:
    return f"; the FMA pipe is {percent(row['fma_share'])} busy" if row["fma_share"] is not None else ""


def _few_warps(row: Row) -> str:
    occupancy, limit = row["occupancy"], row["limited_by"]
    if occupancy is None or occupancy >= FEW_WARPS or not limit:
        return ""
    return f"; occupancy is only {percent(occupancy)}, limited by {_LIMITS.get(limit, limit)}"


#: A limit as the end of "limited by", if it is not the same word.
_LIMITS = {"grid": "the size of the grid", "block size": "the block size", "blocks": "blocks per multiprocessor"}


def _first(stalls: Mapping[str, float]) -> list[tuple[str, float]]:
    return list(stalls.items())[:1]
