"""A report as a table: for a terminal through rich, for README.md and profiles/ as markdown between marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cudakit.shapes import shape_text
from cudakit.show import markdown as pages
from cudakit.show import terminal
from cudakit.show.digits import NOTHING, number

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
Group = tuple[str, tuple[int, ...], str, str]  # family, shape, dtype, mode


@dataclass(frozen=True)
class ReportColumn:
    """A heading, and the text of a row's cell, given the row and the one that it is compared with.

    leave: a terminal's table leaves out the columns with the greatest number first, and those with 0 never. words:
    text, not a figure. only: "page" if a terminal's table never has it, "terminal" if markdown never has it.
    """

    heading: str
    text: Callable[[Row, Mapping[str, Any]], str]
    leave: int = 0
    words: bool = False
    only: str = ""


def _label(row: Row, _: Mapping[str, Any]) -> str:
    return NOTHING if row["rung"] is None else str(row["rung"])


def _time(row: Row, _: Mapping[str, Any]) -> str:
    spread = row["time_ms"]
    if spread is None:
        return NOTHING
    return f"{number(spread['median'])} ({number(spread['p10'])} to {number(spread['p90'])})"


def _call(row: Row, _: Mapping[str, Any]) -> str:
    spread = row.get("call_us")  # reports of earlier releases have none
    return NOTHING if spread is None else number(spread["median"])


def _share(row: Row, _: Mapping[str, Any]) -> str:
    return NOTHING if row["of_ceiling"] is None else f"{100 * row['of_ceiling']:.1f} %"


def _speedup(row: Row, other: Mapping[str, Any]) -> str:
    base = other.get("time_ms")
    if base is None or row["time_ms"] is None:
        return NOTHING
    return f"{number(base['median'] / row['time_ms']['median'])} x"


def _error(row: Row, _: Mapping[str, Any]) -> str:
    return number(row["max_abs_error"], 2)


def _occupancy(row: Row, _: Mapping[str, Any]) -> str:
    return f"{100 * row['launch']['occupancy']:.0f} %" if row.get("launch") else NOTHING


def _verdict(row: Row, _: Mapping[str, Any]) -> str:
    if row["ok"] is None:
        return f"skipped: {row['skipped']}"
    if row["ok"]:
        return "yes"
    return f"NO: {row.get('why') or 'wrong result'}"


def _counter(name: str) -> Callable[[Row, Mapping[str, Any]], str]:
    def text(row: Row, _: Mapping[str, Any]) -> str:
        counters = row["counters"] or {}
        return number(counters.get(name))

    return text


def _idea(row: Row, _: Mapping[str, Any]) -> str:
    return str(row.get("idea") or "")


def _idea_and_host_time(row: Row, _: Mapping[str, Any]) -> str:
    """If the device has no clock, the one time there is: the host's own work."""
    spread = row["time_ms"]
    return _idea(row, _) + (f": {number(spread['median'])} ms" if spread and row["variant"] == "cpu" else "")


def _median(row: Row, _: Mapping[str, Any]) -> str:
    return NOTHING if row["time_ms"] is None else number(row["time_ms"]["median"])


def _percentiles(row: Row, _: Mapping[str, Any]) -> str:
    spread = row["time_ms"]
    return NOTHING if spread is None else f"{number(spread['p10'])} to {number(spread['p90'])}"


_WHO = [ReportColumn("rung", _label), ReportColumn("variant", lambda row, _: str(row["variant"]), words=True)]
_IDEA = ReportColumn("what it adds", _idea, only="page")
_IDEA_AND_HOST_TIME = replace(_IDEA, text=_idea_and_host_time)
_OCCUPANCY = ReportColumn("occupancy", _occupancy, leave=8)
_ERROR = ReportColumn("worst error", _error, leave=9)
_RIGHT = ReportColumn("right", _verdict, words=True)
_LAST = [_OCCUPANCY, _ERROR, _RIGHT]
_CALL = ReportColumn("call, us", _call, leave=3)
_WITH_TRANSFERS = ReportColumn("with transfers, ms", lambda row, _: number(row["end_to_end_ms"]), leave=7)
_MS = [
    ReportColumn("ms (p10 to p90)", _time, only="page"),
    ReportColumn("ms", _median, only="terminal"),
    ReportColumn("p10 to p90", _percentiles, leave=6, only="terminal"),
]
_FIRST = [*_WHO, _IDEA, *_MS, _CALL]

TIMED: list[ReportColumn] = [
    *_FIRST,
    ReportColumn("GB/s", lambda row, _: number(row["gbps"])),
    ReportColumn("of copy", _share),
    ReportColumn("x rung 1", _speedup, leave=5),
    _WITH_TRANSFERS,
    *_LAST,
]
# For families whose measure is arithmetic.
TIMED_FLOPS: list[ReportColumn] = [
    *_FIRST,
    ReportColumn("TFLOP/s", lambda row, _: number(row["tflops"])),
    ReportColumn("of library", _share),
    ReportColumn("of fp32 peak", lambda row, _: NOTHING, leave=4),
    ReportColumn("x rung before", _speedup, leave=5),
    _WITH_TRANSFERS,
    *_LAST,
]
COUNTED: list[ReportColumn] = [
    *_WHO,
    _IDEA_AND_HOST_TIME,
    ReportColumn("bytes/element", _counter("bytes_per_element")),
    ReportColumn("sectors/request", _counter("sectors_per_request")),
    ReportColumn("bank conflicts", _counter("bank_conflicts"), leave=5),
    ReportColumn("instructions", _counter("instructions"), leave=4),
    ReportColumn("branch efficiency", _counter("branch_efficiency"), leave=6),
    *_LAST,
]


def _streamed(name: str, scale: float = 1.0) -> Callable[[Row, Mapping[str, Any]], str]:
    """A figure of a pipeline's report."""

    def text(row: Row, _: Mapping[str, Any]) -> str:
        value = (row.get("pipeline") or {}).get(name)
        return NOTHING if value is None else number(value * scale)

    return text


def _rate(name: str) -> Callable[[Row, Mapping[str, Any]], str]:
    """A rate of a pipeline; the simulated device has no clock, so its rates are not shown."""
    text = _streamed(name)
    return lambda row, other: NOTHING if row["time_ms"] is None else text(row, other)


# For pipelines, whose work is the traffic between host and device.
STREAMED: list[ReportColumn] = [
    *_WHO,
    _IDEA_AND_HOST_TIME,
    ReportColumn("ms", _median),
    ReportColumn("GB/s in", _rate("gbps_in"), leave=4),
    ReportColumn("GB/s out", _rate("gbps_out"), leave=4),
    ReportColumn("of bound", _share),
    ReportColumn("x rung 1", _speedup, leave=5),
    ReportColumn("chunks", _streamed("chunks"), leave=6),
    ReportColumn("pinned MB", _streamed("host_bytes", 1e-6), leave=7),
    ReportColumn("device MB", _streamed("device_bytes", 1e-6), leave=7),
    _ERROR,
    _RIGHT,
]


def counts_flops(rows: Sequence[Row]) -> bool:
    """Whether these rows' measure is arithmetic, not bandwidth."""
    return any(row.get("ceiling", "copy") not in ("copy", "bound") for row in rows)


def columns_of(report: Mapping[str, Any], rows: Sequence[Row]) -> list[ReportColumn]:
    """Times for a GPU's report, counters for a simulated device's, which has no clock."""
    if any(row.get("pipeline") for row in rows):
        return STREAMED
    if report["device"]["kind"] != "gpu":
        return COUNTED
    if not counts_flops(rows):
        return TIMED
    peak = report["ceilings"].get("fp32_tflops")

    def of_peak(row: Row, _: Mapping[str, Any]) -> str:
        return f"{100 * row['tflops'] / peak:.1f} %" if peak and row["tflops"] is not None else NOTHING

    ffma = all(row["dtype"] == "float32" for row in rows)  # tensor cores have another peak
    columns = [column for column in TIMED_FLOPS if ffma or column.heading != "of fp32 peak"]
    return [replace(column, text=of_peak) if column.heading == "of fp32 peak" else column for column in columns]


def by_shape(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """The rows of each (family, shape, dtype, mode), in the report's order."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["family"], tuple(row["shape"]), row["dtype"], row.get("mode", "")), []).append(row)
    return groups


def group_text(group: Group) -> str:
    """`softmax 8192x8192 float32`, and the mode where it has a name."""
    family, shape, dtype, mode = group
    return " ".join(part for part in (family, shape_text(shape), dtype, mode) if part)


def compared_with(rows: Sequence[Row]) -> list[Row]:
    """For each row the one its speed-up is counted from: rung 1, or where the measure is arithmetic the rung before;
    nothing where that was not run."""
    rungs = {row["rung"]: row for row in rows if row["rung"] is not None}
    if not counts_flops(rows):
        return [rungs.get(1, {})] * len(rows)
    return [rungs.get(row["rung"] - 1, {}) if row["rung"] else {} for row in rows]


def device_line(report: Mapping[str, Any]) -> str:
    device = report["device"]
    versions = [f"{what} {device[what]}" for what in ("driver", "nvrtc") if device.get(what)]
    return ", ".join([device["name"], device["arch"], *versions, report["date"]])


def copy_group(copy: Mapping[str, Any]) -> tuple[tuple[int, ...], str, str]:
    """The (shape, dtype, mode) that a copy was measured for."""
    return tuple(copy["shape"]), copy.get("dtype", "float32"), copy.get("mode", "")


COUNTED_LINE = "counted by the simulated device, which has no clock: no figure here is a time on a GPU"


def is_counted(report: Mapping[str, Any]) -> bool:
    """Whether the figures are a simulated device's counters."""
    return report["device"]["kind"] == "sim" and not report["ceilings"].get("link")


def ceiling_line(report: Mapping[str, Any], group: Group) -> str:
    """The ceilings measured with these rows, or where the figures come from instead."""
    link = report["ceilings"].get("link")
    if link:
        return (
            f"pinned copies of a chunk's size in the same run: {number(link['h2d'] / 1e9)} GB/s in, "
            f"{number(link['d2h'] / 1e9)} GB/s out, {number(link['both'] / 1e9)} GB/s each way together"
        )
    if is_counted(report):
        return COUNTED_LINE
    parts = []
    for copy in report["ceilings"].get("copy", []):
        if copy_group(copy) == group[1:]:
            parts.append(f"copy of the same bytes {number(copy['gbps'])} GB/s")
    large = report["ceilings"].get("copy_large")
    if large:
        parts.append(f"copy of {large['bytes'] / 2**30:.0f} GiB {number(large['gbps'])} GB/s")
    return "; ".join(parts)


def cells(report: Mapping[str, Any], rows: Sequence[Row], form: str = "page") -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of one shape's rows. form: "page" for the columns of markdown, or "terminal"."""
    columns = [column for column in columns_of(report, rows) if column.only in ("", form)]
    lines = [[column.text(row, other) for column in columns] for row, other in _with_others(rows)]
    return [column.heading for column in columns], lines


def _with_others(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    return list(zip(rows, compared_with(rows), strict=True))


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints one table per shape, with one line per row; after the last one the ideas of the rows."""
    for group, rows in by_shape(report["rows"]).items():
        notes = terminal.Notes()
        shown = []
        for column in columns_of(report, rows):
            if column.only == "page":
                continue
            texts = [column.text(row, other) for row, other in _with_others(rows)]
            if column is _RIGHT:
                texts = [notes.verdict(text) for text in texts]
            shown.append(terminal.Column(column.heading, texts, column.leave, column.words))
        host = next((row["time_ms"] for row in rows if row["variant"] == "cpu"), None)
        times = (
            []
            if host is None or any(column.heading == "ms" for column in shown)
            else [f"cpu: {number(host['median'])} ms, the host's own time"]
        )
        ceilings = "" if is_counted(report) else ceiling_line(report, group)
        terminal.show_table(
            console,
            group_text(group),
            shown,
            notes=[*notes.lines(), *times, *([ceilings] if ceilings else [])],
            styles=[
                "red" if row["ok"] is False else "dim" if row["rung"] is None or row["ok"] is None else None
                for row in rows
            ],
        )
        terminal.show_text(console, "")
    for line in _ideas(report["rows"]):
        terminal.show_text(console, line)
    if is_counted(report):
        terminal.show_text(console, COUNTED_LINE)
    terminal.show_text(console, device_line(report))


def _ideas(rows: Sequence[Row]) -> list[str]:
    """One line per variant with an idea, however many shapes it ran on; with the family if there are several."""
    several = len({row["family"] for row in rows}) > 1
    lines = []
    for row in rows:
        if row.get("idea"):
            rung = "" if row["rung"] is None else f"{row['rung']} "
            family = f"{row['family']}/" if several else ""
            lines.append(f"{rung}{family}{row['variant']}: {row['idea']}")
    return list(dict.fromkeys(lines))


def markdown(report: Mapping[str, Any]) -> str:
    """The same tables as GitHub draws them."""
    parts = []
    for group, rows in by_shape(report["rows"]).items():
        headings, lines = cells(report, rows)
        ceilings = ceiling_line(report, group)
        parts.append(f"**{group_text(group)}**{f' ({ceilings})' if ceilings else ''}\n")
        parts.append(pages.row(headings))
        parts.append("|" + "---|" * len(headings))
        parts.extend(map(pages.row, lines))
        parts.append("")
    parts.append(device_line(report))
    return "\n".join(parts)


def summary(report: Mapping[str, Any]) -> str:
    """One line a shape: the best variant beside its ceiling and the peers of the same run. For a GPU's report."""
    groups = by_shape(report["rows"])
    flops = counts_flops(report["rows"])
    unit, key = ("TFLOP/s", "tflops") if flops else ("GB/s", "gbps")
    copies = {copy_group(copy): copy["gbps"] for copy in report["ceilings"].get("copy", [])}
    families = {group[0] for group in groups}
    others = [row["variant"] for row in report["rows"] if row["variant"].startswith("peer:") or row["rung"] == 0]
    peers = sorted(dict.fromkeys(others))
    called = _compared_call(report["rows"])
    headings = ["shape", *(() if flops else ("copy",)), "best variant", unit, "of library" if flops else "of copy"]
    headings += [*(peer.removeprefix("peer:") for peer in peers), "call, us"]
    headings += [*([f"{called.removeprefix('peer:')}'s call"] if called else []), "right"]
    lines = [pages.row(headings), "|" + "---|" * len(headings)]
    for (family, shape, dtype, mode), rows in groups.items():
        timed = [row for row in rows if row["rung"] and row["ok"] and row[key] is not None]
        best = max(timed, key=lambda row: float(row[key]), default=None)
        beside = {row["variant"]: row for row in rows}
        parts = (family if len(families) > 1 else "", shape_text(shape), "" if dtype == "float32" else dtype, mode)
        line = [" ".join(part for part in parts if part)]
        line += [] if flops else [number(copies.get((shape, dtype, mode)))]
        line += [best["variant"], number(best[key]), _share(best, {})] if best else [NOTHING] * 3
        line += [number(beside.get(peer, {}).get(key)) for peer in peers]
        line.append(_call(best or {}, {}))
        line += [_call(beside.get(called, {}), {})] if called else []
        line.append("NO" if any(row["ok"] is False for row in rows) else "yes")
        lines.append(pages.row(line))
    measured = f"{unit}; call: the host's microseconds per call, a dash if it was not measured"
    return "\n".join([*lines, "", f"{measured}; {device_line(report)}"])


def _compared_call(rows: Sequence[Row]) -> str:
    """The peer whose call stands beside ours: torch's own, or the peer that is the ceiling; "" if there is neither."""
    names = {row["variant"] for row in rows if row["variant"].startswith("peer:")}
    ceilings = (str(row.get("ceiling")) for row in rows)
    return next((name for name in ("peer:torch", *ceilings) if name in names), "")
