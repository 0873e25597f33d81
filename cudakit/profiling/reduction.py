"""Reduce a launch's two thousand metrics to one row: its time, its fractions of the peaks, its bottleneck."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cudakit.profiling import metrics as names
from cudakit.profiling.binding import explain, percent
from cudakit.profiling.reading import ProfiledLaunch

Row = dict[str, Any]

# stall reasons with a smaller fraction of a warp's time are left out of the row
_LEAST_STALL = 0.01
# the innermost range, which cudakit puts around each launch
_OWN = "launch "
# ranges of library calls, which a variant may consist of
_LIBRARIES = ("cublas.", "cufft.")
# the name of a variant's range: family.variant
_RUNG = re.compile(r"(?P<family>\w+)\.(?P<variant>\w+)")


def reduce(launches: Iterable[ProfiledLaunch]) -> list[Row]:
    """Return one row per launch, in order. A figure is None if its metrics were not collected."""
    return [row_of(launch) for launch in launches]


def row_of(launch: ProfiledLaunch) -> Row:
    """The row of one launch: names, time, traffic, fractions of the peaks, cache hits, occupancy and its limit, stalls,
    FLOPs; `binds` is the bottleneck, and `sentence` explains it."""
    metrics = launch.metrics
    name = range_of(launch.ranges)
    rung = _RUNG.fullmatch(name)
    seconds = _scaled(metrics.get(names.DURATION), 1e-9)
    row: Row = {
        "range": name,
        "family": rung["family"] if rung else "",
        "variant": rung["variant"] if rung else "",
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "time_us": _scaled(metrics.get(names.DURATION), 1e-3),
    }
    row |= {key: _scaled(metrics.get(metric), 0.01) for key, metric in names.SHARES.items()}
    row |= {key: metrics.get(metric) for key, metric in names.COUNTS.items()}
    row["spills"] = _added(*(metrics.get(metric) for metric in names.LOCAL))
    for key, operation in names.GLOBAL.items():
        row[key] = _quotient(
            metrics.get(names.SECTORS.format(operation)), metrics.get(names.REQUESTS.format(operation)) or None
        )
    row["bytes"] = _added(row["dram_bytes_read"], row["dram_bytes_written"])
    row["gbps"] = _scaled(_quotient(row["bytes"], seconds), 1e-9)
    row["multiprocessors_busy"] = _quotient(metrics.get(names.BUSY), metrics.get(names.ELAPSED))
    row["limited_by"], row["blocks_per_multiprocessor"] = _limit(row, metrics)
    row["flops"], row["tensor_flops"] = _flops(metrics)
    row |= _rates(row, seconds)
    row["stalls"], row["ready"] = _stalls(metrics)
    row = {key: _tidy(value) for key, value in row.items()}
    return row | explain(row)


def range_of(ranges: Sequence[str]) -> str:
    """The range that names a launch: the innermost variant's range, else the innermost range; "" if there is none.

    cudakit's own range around each launch is ignored. The range of a library call (cublas.gemm) is used only if there
    is no variant's range.
    """
    said = list(ranges[:-1] if ranges and ranges[-1].startswith(_OWN) else ranges)
    named = [name for name in said if _RUNG.fullmatch(name)]
    rungs = [name for name in named if not name.startswith(_LIBRARIES)]
    return (rungs or named or said or [""])[-1]


def summed(rows: Sequence[Row]) -> list[Row]:
    """Return one row per series of consecutive launches in the same range.

    Times, bytes and FLOPs are added up, and fractions are averaged by time. Other figures (grid, registers, stalls,
    bottleneck) are those of the longest launch.
    """
    sums = []
    for name, group in itertools.groupby(rows, key=lambda row: row["range"]):
        together = list(group)
        if name == "" or len(together) == 1:
            sums += together
            continue
        longest = max(together, key=lambda row: row["time_us"] or 0.0)
        whole = dict(longest)
        times = Counter(row["kernel"] for row in together)
        whole["kernel"] = " + ".join(f"{count} x {name}" if count > 1 else name for name, count in times.items())
        for key in _ADDED:
            whole[key] = _added(*(row.get(key) for row in together))  # older reports lack some
        for key in (*names.SHARES, "multiprocessors_busy"):
            whole[key] = _weighted(together, key)
        seconds = _scaled(whole["time_us"], 1e-6)
        whole["gbps"] = _scaled(_quotient(whole["bytes"], seconds), 1e-9)
        whole |= _rates(whole, seconds)
        whole = {key: _tidy(value) for key, value in whole.items()}
        share = _quotient(longest["time_us"], whole["time_us"]) or 0.0
        most = f"{longest['kernel']}, {percent(share)} of the time"
        whole["sentence"] = f"{len(together)} launches; {most}: {longest['sentence']}"
        sums.append(whole)
    return sums


_ADDED = (
    "time_us", "bytes", "dram_bytes_read", "dram_bytes_written", "flops", "tensor_flops", "bank_conflicts", "spills",
    "load_requests", "load_sectors", "l2_sectors_read", "global_sectors", "global_sectors_ideal", "shared_wavefronts",
    "shared_wavefronts_ideal",
)  # fmt: skip


def _limit(row: Mapping[str, Any], metrics: Mapping[str, float]) -> tuple[str, int | None]:
    """The limit on the resident blocks of a multiprocessor ("" if all its warps can be resident), and their number."""
    limits = {what: metrics[metric] for what, metric in names.LIMITS.items() if metric in metrics}
    if not limits:
        return "", None
    fit = min(limits.values())
    waves = row["waves"]
    if waves is not None and waves < 1 and (row["occupancy"] or 0) < 0.8 * (row["occupancy_theoretical"] or 0):
        return "grid", int(fit)  # fewer blocks than fit
    if row["occupancy_theoretical"] is not None and row["occupancy_theoretical"] >= 0.999:
        return "", int(fit)
    least = [what for what, limit in limits.items() if limit == fit]
    if "blocks" in least:  # the hardware's own limit, which the kernel cannot raise
        least = ["blocks"]
    return " and ".join(least), int(fit)


def _flops(metrics: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The number of all floating point operations, and the number of those on tensor cores."""
    cycles = metrics.get(names.CYCLES)
    arithmetic = [metrics[metric] * count for metric, count in names.ARITHMETIC.items() if metric in metrics]
    tensor = [metrics[metric] for metric in names.TENSOR if metric in metrics]
    plain = cycles * math.fsum(arithmetic) if cycles is not None and arithmetic else None
    products = math.fsum(tensor) if tensor else None
    return _added(plain, products), products


def _rates(row: Mapping[str, Any], seconds: float | None) -> dict[str, float | None]:
    return {
        "tflops": _scaled(_quotient(row["flops"], seconds), 1e-12),
        "intensity": _quotient(row["flops"], row["bytes"]),
    }


def _stalls(metrics: Mapping[str, float]) -> tuple[dict[str, float], float | None]:
    """Stalls as fractions of a warp's time, largest first; and the fraction in which the warp was ready or issued an
    instruction."""
    each = {reason: metrics.get(names.STALL.format(reason), 0.0) for reason in names.STALLS}
    whole = math.fsum(each.values())
    if not whole:
        return {}, None
    shares = {reason: value / whole for reason, value in each.items()}
    waits = sorted((reason for reason in shares if reason not in names.READY), key=lambda reason: -shares[reason])
    kept = {reason: shares[reason] for reason in waits if shares[reason] >= _LEAST_STALL}
    return kept, math.fsum(shares[reason] for reason in names.READY)


def _tidy(value: Any) -> Any:
    """Round a figure to six digits, and make a count an int."""
    if isinstance(value, dict):
        return {key: _tidy(item) for key, item in value.items()}
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _weighted(rows: Sequence[Row], key: str) -> float | None:
    pairs = [(row[key], row["time_us"]) for row in rows]
    if any(value is None or weight is None for value, weight in pairs):
        return None
    return _quotient(math.fsum(value * weight for value, weight in pairs), math.fsum(weight for _, weight in pairs))


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _added(*values: float | None) -> float | None:
    there = [value for value in values if value is not None]
    return math.fsum(there) if there else None
