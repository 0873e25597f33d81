"""Tables of a bench's report: in a terminal, and as markdown between the marks of README.md, docs and profiles."""

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
    """A column of a report's table.

    heading: the column's heading. text: returns the cell of a row, given the row and the row that it is compared with.
    leave: the order in which a narrow terminal omits columns, largest number first; a column with 0 is always shown.
    words: the cells are text, not figures. only: "page" for a column of Markdown tables only, "terminal" for a column
    of terminal tables only.
    """

    heading: str
    text: Callable[[Row, Mapping[str, Any]], str]
    leave: int = 0
    words: bool = False
    only: str = ""


def _label(row: Row, _: Mapping[str, Any]) -> str:
    return NOTHING if row["rung"] is None else str(row["rung"])


def _call(row: Row, _: Mapping[str, Any]) -> str:
    spread = row.get("call_us")  # reports of earlier releases do not have the key
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
    """The idea; in the row cpu also the host's time, which is the only time in a simulated device's report."""
    spread = row["time_ms"]
    return _idea(row, _) + (f": {number(spread['median'])} ms" if spread and row["variant"] == "cpu" else "")


def _median(row: Row, _: Mapping[str, Any]) -> str:
    return NOTHING if row["time_ms"] is None else number(row["time_ms"]["median"])


def _percentiles(row: Row, _: Mapping[str, Any]) -> str:
    spread = row["time_ms"]
    return NOTHING if spread is None else f"{number(spread['p10'])} to {number(spread['p90'])}"


_NAME = [
    ReportColumn("rung", _label, only="terminal"),
    ReportColumn("variant", lambda row, _: str(row["variant"]), words=True),
]
_IDEA = ReportColumn("idea", _idea, only="page")
_IDEA_AND_HOST_TIME = replace(_IDEA, text=_idea_and_host_time)
_ERROR = ReportColumn("worst error", _error, leave=9)
_CORRECT = ReportColumn("correct", _verdict, words=True)
_LAST = [ReportColumn("occupancy", _occupancy, leave=8), _ERROR, _CORRECT]
_MS = ReportColumn("ms", _median)
_OTHER_TIMES = [
    ReportColumn("call, us", _call, leave=3),
    ReportColumn("p10 to p90", _percentiles, leave=6),
    ReportColumn("with transfers, ms", lambda row, _: number(row["end_to_end_ms"]), leave=7),
]
# Only in reports of `--back-to-back`.
_BACK_TO_BACK = ReportColumn("back to back, ms", lambda row, _: number(row.get("back_to_back_ms")))

TIMED: list[ReportColumn] = [
    *_NAME,
    _MS,
    ReportColumn("GB/s", lambda row, _: number(row["gbps"])),
    ReportColumn("of copy", _share),
    ReportColumn("x first", _speedup, leave=5),
    *_OTHER_TIMES,
    *_LAST,
    _IDEA,
]
# For families whose work is measured in FLOPs.
TIMED_FLOPS: list[ReportColumn] = [
    *_NAME,
    _MS,
    ReportColumn("TFLOP/s", lambda row, _: number(row["tflops"])),
    ReportColumn("of library", _share),
    ReportColumn("of fp32 peak", lambda row, _: NOTHING, leave=4),
    ReportColumn("x previous", _speedup, leave=5),
    *_OTHER_TIMES,
    *_LAST,
    _IDEA,
]
COUNTED: list[ReportColumn] = [
    *_NAME,
    ReportColumn("bytes/element", _counter("bytes_per_element")),
    ReportColumn("sectors/request", _counter("sectors_per_request")),
    ReportColumn("bank conflicts", _counter("bank_conflicts"), leave=5),
    ReportColumn("instructions", _counter("instructions"), leave=4),
    ReportColumn("branch efficiency", _counter("branch_efficiency"), leave=6),
    *_LAST,
    _IDEA_AND_HOST_TIME,
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


# For pipelines, which move data between host and device.
STREAMED: list[ReportColumn] = [
    *_NAME,
    _MS,
    ReportColumn("GB/s in", _rate("gbps_in"), leave=4),
    ReportColumn("GB/s out", _rate("gbps_out"), leave=4),
    ReportColumn("of bound", _share),
    ReportColumn("x first", _speedup, leave=5),
    ReportColumn("chunks", _streamed("chunks"), leave=6),
    ReportColumn("pinned MB", _streamed("host_bytes", 1e-6), leave=7),
    ReportColumn("device MB", _streamed("device_bytes", 1e-6), leave=7),
    _ERROR,
    _CORRECT,
    _IDEA_AND_HOST_TIME,
]


def counts_flops(rows: Sequence[Row]) -> bool:
    """Whether these rows are rated in TFLOP/s and not in GB/s."""
    return any(row.get("ceiling", "copy") not in ("copy", "bound") for row in rows)


def columns_of(report: Mapping[str, Any], rows: Sequence[Row]) -> list[ReportColumn]:
    """The columns for `rows`: times if they are from a GPU, counters if they are from a simulated device."""
    if any(row.get("pipeline") for row in rows):
        return STREAMED
    if report["device"]["kind"] != "gpu":
        return COUNTED
    timed = TIMED_FLOPS if counts_flops(rows) else TIMED
    if any(row.get("back_to_back_ms") is not None for row in rows):
        after = timed.index(_MS) + 1
        timed = [*timed[:after], _BACK_TO_BACK, *timed[after:]]
    if not counts_flops(rows):
        return timed
    peak = report["ceilings"].get("fp32_tflops")

    def of_peak(row: Row, _: Mapping[str, Any]) -> str:
        return f"{100 * row['tflops'] / peak:.1f} %" if peak and row["tflops"] is not None else NOTHING

    ffma = all(row["dtype"] == "float32" for row in rows)  # tensor cores have another peak
    columns = [column for column in timed if ffma or column.heading != "of fp32 peak"]
    return [replace(column, text=of_peak) if column.heading == "of fp32 peak" else column for column in columns]


def by_shape(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """The rows of each (family, shape, dtype, mode), in the report's order."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["family"], tuple(row["shape"]), row["dtype"], row.get("mode", "")), []).append(row)
    return groups


def group_text(group: Group) -> str:
    """`softmax 8192x8192 float32`, and the mode if it has a name."""
    family, shape, dtype, mode = group
    return " ".join(part for part in (family, shape_text(shape), dtype, mode) if part)


def compared_with(rows: Sequence[Row]) -> list[Row]:
    """Return for each row its baseline, the row that its speed-up is relative to; an empty row if the baseline was not
    run.

    It is the ladder's first variant, or for rows rated in TFLOP/s the previous variant.
    """
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
    """The ceilings measured with these rows; for a simulated device's report, a note that its figures are counted."""
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
    """Print one table per shape, with one line per row, and the variants' ideas after the last table."""
    for group, rows in by_shape(report["rows"]).items():
        notes = terminal.Notes()
        shown = []
        for column in columns_of(report, rows):
            if column.only == "page":
                continue
            texts = [column.text(row, other) for row, other in _with_others(rows)]
            if column is _CORRECT:
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
    """One line per variant with an idea; the family's name precedes the variant's if there are several families."""
    several = len({row["family"] for row in rows}) > 1
    lines = []
    for row in rows:
        if row.get("idea"):
            rung = "" if row["rung"] is None else f"{row['rung']} "
            family = f"{row['family']}/" if several else ""
            lines.append(f"{rung}{family}{row['variant']}: {row['idea']}")
    return list(dict.fromkeys(lines))


def markdown(report: Mapping[str, Any]) -> str:
    """The same tables in markdown, without the column rung, because the rows are in the ladder's order."""
    parts = []
    for group, rows in by_shape(report["rows"]).items():
        ceilings = ceiling_line(report, group)
        parts.append(f"**{group_text(group)}**{f' ({ceilings})' if ceilings else ''}\n")
        parts += [*pages.table(*cells(report, rows)), ""]
    parts.append(device_line(report))
    return "\n".join(parts)


def summary(report: Mapping[str, Any]) -> str:
    """One table with one line per shape: the best variant, its ceiling and the peers of the same run. For a GPU's
    report."""
    groups = by_shape(report["rows"])
    flops = counts_flops(report["rows"])
    unit, key = ("TFLOP/s", "tflops") if flops else ("GB/s", "gbps")
    copies = {copy_group(copy): copy["gbps"] for copy in report["ceilings"].get("copy", [])}
    families = {group[0] for group in groups}
    others = [row["variant"] for row in report["rows"] if row["variant"].startswith("peer:") or row["rung"] == 0]
    peers = sorted(dict.fromkeys(others))
    called = _compared_call(report["rows"])
    headings = ["shape", "cudakit", "of library" if flops else "of copy", *(() if flops else ("copy",))]
    headings += [*(peer.removeprefix("peer:") for peer in peers), "call, us"]
    headings += [*([f"{called.removeprefix('peer:')}'s call"] if called else []), "correct", "best variant"]
    lines = []
    for (family, shape, dtype, mode), rows in groups.items():
        timed = [row for row in rows if row["rung"] and row["ok"] and row[key] is not None]
        best = max(timed, key=lambda row: float(row[key]), default=None)
        by_name = {row["variant"]: row for row in rows}
        parts = (family if len(families) > 1 else "", shape_text(shape), "" if dtype == "float32" else dtype, mode)
        line = [" ".join(part for part in parts if part)]
        line += [number(best[key]), _share(best, {})] if best else [NOTHING] * 2
        line += [] if flops else [number(copies.get((shape, dtype, mode)))]
        line += [number(by_name.get(peer, {}).get(key)) for peer in peers]
        line.append(_call(best or {}, {}))
        line += [_call(by_name.get(called, {}), {})] if called else []
        line.append("NO" if any(row["ok"] is False for row in rows) else "yes")
        line.append(best["variant"] if best else NOTHING)
        lines.append(line)
    shown = pages.table(headings, lines)
    call = "call: the host's microseconds per call; " if "call" in shown[0] else ""
    return "\n".join([*shown, "", f"{unit}; {call}{device_line(report)}"])


def _compared_call(rows: Sequence[Row]) -> str:
    """The peer whose call is compared with ours: torch, or the peer that is the ceiling; "" if neither was run."""
    names = {row["variant"] for row in rows if row["variant"].startswith("peer:")}
    ceilings = (str(row.get("ceiling")) for row in rows)
    return next((name for name in ("peer:torch", *ceilings) if name in names), "")
