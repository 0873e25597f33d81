"""Comparison of an old and a new report: which rows became slower or faster by more than noise.

Rows are matched by family, variant, shape, dtype and mode. On a GPU, times are compared (`time_ms`, and the host's
`call_us`, `host_us` and `loop_us`). A row changed if the ranges from the tenth to the ninetieth percentile of the two
reports do not overlap, and its median changed by more than FLOOR. Host times also depend on the host's load, so a
change in our host time is ignored if a peer's changed as much. The simulated device does not model time, so its
counters are compared; they are the same in every run, so any difference counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudakit.measure.rows import on_host
from cudakit.measure.timing import Spread
from cudakit.shapes import shape_text

# Medians of two runs differ by more than the spread within a run, because clocks and temperature change: nine of ten
# rows common to two committed reports of one H200 differ by at most 4 %. Smaller relative changes than this are not
# reported.
FLOOR = 0.05
HOST_TIMES = ("call_us", "host_us", "loop_us")
TIMES = ("time_ms", *HOST_TIMES)
# Counters that grow only with the work. Sectors per request are not among them: more may mean wider loads.
COUNTERS = ("instructions", "bytes_per_element", "bank_conflicts")

Identity = tuple[str, str, str, str, str]  # family, variant, shape, dtype, mode


@dataclass(frozen=True)
class Change:
    """A changed figure of a row. ratio: new over old. judged: whether the change counts for the exit status; changes in
    rows of peers and of the CPU do not."""

    row: str
    figure: str
    old: float
    new: float
    noise: float
    judged: bool

    @property
    def ratio(self) -> float:
        return self.new / self.old if self.old else float("inf")

    @property
    def slower(self) -> bool:
        return self.new > self.old


@dataclass
class ReportComparison:
    """The comparison of two reports. refusal: the reason why they cannot be compared, or "". rows: the number of our
    rows that were compared. unmeasured: rows in both reports with a figure in only one."""

    refusal: str = ""
    rows: int = 0
    changes: list[Change] = field(default_factory=list)
    only_old: list[str] = field(default_factory=list)
    only_new: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    @property
    def regressed(self) -> bool:
        """Whether one of our rows became slower."""
        return any(change.slower and change.judged for change in self.changes)


def identity(row: Mapping[str, Any]) -> Identity:
    """Return the key by which a row is matched with a row of another report."""
    shape = shape_text(row["shape"])
    return str(row["family"]), str(row["variant"]), shape, str(row["dtype"]), str(row.get("mode") or "")


def other_device(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the reason why figures of two devices cannot be compared, or ""."""
    for key in ("kind", "name", "arch"):
        if old.get(key) != new.get(key):
            return f"the old report is of {_device(old)}, this is {_device(new)}"
    return ""


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> ReportComparison:
    """Compare two reports in the contract's form (`BenchReport.as_dict`)."""
    found = ReportComparison(other_device(old["device"], new["device"]))
    if found.refusal:
        return found
    before = {identity(row): row for row in old["rows"]}
    after = {identity(row): row for row in new["rows"]}
    found.only_old = [_name(key) for key in before if key not in after]
    found.only_new = [_name(key) for key in after if key not in before]
    simulated = new["device"]["kind"] == "sim"
    drift = _drift(before, after)
    for key in before.keys() & after.keys():
        judged = not on_host(key[1]) and not key[1].startswith("peer:")
        figures = list(_counters(before[key], after[key]) if simulated else _times(before[key], after[key]))
        found.rows += bool(figures) and judged
        missing = simulated and len(figures) < max(map(_counted, (before[key], after[key])))
        if judged and (missing or (not figures and (_has_figures(before[key]) or _has_figures(after[key])))):
            found.unmeasured.append(_name(key))
        for figure, was, now, noise in figures:
            noise = max(noise, drift.get(figure, 0.0) * was)
            if abs(now - was) > noise:
                found.changes.append(Change(_name(key), figure, was, now, noise, judged))
    found.unmeasured.sort()
    found.changes.sort(key=lambda change: (-change.ratio, change.row, change.figure))
    if not found.rows:
        found.refusal = "the two reports have no common row of a cudakit kernel with a figure"
    return found


def _times(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    """Yield each kind of time that both rows have, with the difference that counts as noise."""
    for figure in TIMES:
        was, now = _spread(old.get(figure)), _spread(new.get(figure))
        if was is not None and now is not None:
            below, above = sorted((was, now), key=lambda spread: spread.median)
            # the ranges overlap if the medians differ by less than the two half-ranges that face each other
            facing = (below.p90 - below.median) + (above.median - above.p10)
            yield figure, was.median, now.median, max(facing, FLOOR * was.median)


def _drift(before: Mapping[Identity, Any], after: Mapping[Identity, Any]) -> dict[str, float]:
    """Return, for each host time, a peer's largest relative change; the peers' code is the same in both reports."""
    found: dict[str, float] = {}
    for key in before.keys() & after.keys():
        if key[1].startswith("peer:"):
            for figure, was, now, _ in _times(before[key], after[key]):
                if figure in HOST_TIMES:
                    found[figure] = max(found.get(figure, 0.0), abs(now - was) / was)
    return found


def _has_figures(row: Mapping[str, Any]) -> bool:
    return bool(row.get("counters")) or any(_spread(row.get(figure)) for figure in TIMES)


def _spread(value: Any) -> Spread | None:
    """Return a spread from its JSON data; None if it has no median above 0."""
    if not isinstance(value, Mapping) or not _is_number(value.get("median")) or value["median"] <= 0:
        return None
    median = float(value["median"])
    p10, p90 = (float(value[key]) if _is_number(value.get(key)) else median for key in ("p10", "p90"))
    return Spread(median, p10, p90, int(value.get("n") or 1))


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that can be compared: not NaN, not infinite, not too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def readable(row: Mapping[str, Any]) -> bool:
    """Return whether each figure of a report's row can be compared, is null, or is missing."""
    counters = row.get("counters") or {}
    times = [row[figure] for figure in TIMES if row.get(figure) is not None]
    return (
        isinstance(row.get("counters"), Mapping | None)
        and all(counters.get(figure) is None or _is_number(counters[figure]) for figure in COUNTERS)
        and all(isinstance(time, Mapping) and _is_number(time.get("median")) for time in times)
    )


def _counted(row: Mapping[str, Any]) -> int:
    """Return the number of compared counters that a row has."""
    return sum(_is_number((row.get("counters") or {}).get(figure)) for figure in COUNTERS)


def _counters(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    was, now = old.get("counters") or {}, new.get("counters") or {}
    for figure in COUNTERS:
        if _is_number(was.get(figure)) and _is_number(now.get(figure)):
            yield figure, float(was[figure]), float(now[figure]), 0.0


def _name(key: Sequence[str]) -> str:
    return " ".join(part for part in key if part)


def _device(device: Mapping[str, Any]) -> str:
    return f"{device.get('name')} ({device.get('kind')}, {device.get('arch')})"
