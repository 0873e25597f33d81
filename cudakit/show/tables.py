"""A report as a table: for a terminal through rich, for README.md and profiles/ as markdown between marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.shapes import shape_text
from cudakit.show.digits import NOTHING, number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
# A heading, and the text of a row's cell beside the row it is compared with.
Column = tuple[str, Callable[[Row, Mapping[str, Any]], str]]
Group = tuple[str, tuple[int, ...], str, str]  # family, shape, dtype, mode


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
    """Where the device has no clock, the one time there is: the host's own work."""
    spread = row["time_ms"]
    return _idea(row, _) + (f": {number(spread['median'])} ms" if spread and row["variant"] == "cpu" else "")


_WHO: list[Column] = [("rung", _label), ("variant", lambda row, _: str(row["variant"]))]
_RIGHT: list[Column] = [("occupancy", _occupancy), ("worst error", _error), ("right", _verdict)]

TIMED: list[Column] = [
    *_WHO,
    ("what it adds", _idea),
    ("ms (p10 to p90)", _time),
    ("call, us", _call),
    ("GB/s", lambda row, _: number(row["gbps"])),
    ("of copy", _share),
    ("x rung 1", _speedup),
    ("with transfers, ms", lambda row, _: number(row["end_to_end_ms"])),
    *_RIGHT,
]
# For families whose measure is arithmetic.
TIMED_FLOPS: list[Column] = [
    *_WHO,
    ("what it adds", _idea),
    ("ms (p10 to p90)", _time),
    ("call, us", _call),
    ("TFLOP/s", lambda row, _: number(row["tflops"])),
    ("of library", _share),
    ("of fp32 peak", lambda row, _: NOTHING),
    ("x rung before", _speedup),
    ("with transfers, ms", lambda row, _: number(row["end_to_end_ms"])),
    *_RIGHT,
]
COUNTED: list[Column] = [
    *_WHO,
    ("what it adds", _idea_and_host_time),
    ("bytes/element", _counter("bytes_per_element")),
    ("sectors/request", _counter("sectors_per_request")),
    ("bank conflicts", _counter("bank_conflicts")),
    ("instructions", _counter("instructions")),
    ("branch eff.", _counter("branch_efficiency")),
    *_RIGHT,
]


def _streamed(name: str, scale: float = 1.0) -> Callable[[Row, Mapping[str, Any]], str]:
    """A figure of a pipeline's report."""

    def text(row: Row, _: Mapping[str, Any]) -> str:
        value = (row.get("pipeline") or {}).get(name)
        return NOTHING if value is None else number(value * scale)

    return text


# For pipelines, whose work is the traffic between host and device.
STREAMED: list[Column] = [
    *_WHO,
    ("what it adds", _idea_and_host_time),
    ("ms", lambda row, _: NOTHING if row["time_ms"] is None else number(row["time_ms"]["median"])),
    ("GB/s in", lambda row, _: NOTHING if row["time_ms"] is None else _streamed("gbps_in")(row, _)),
    ("GB/s out", lambda row, _: NOTHING if row["time_ms"] is None else _streamed("gbps_out")(row, _)),
    ("of bound", _share),
    ("x rung 1", _speedup),
    ("chunks", _streamed("chunks")),
    ("pinned MB", _streamed("host_bytes", 1e-6)),
    ("device MB", _streamed("device_bytes", 1e-6)),
    ("worst error", _error),
    ("right", _verdict),
]


def counts_flops(rows: Sequence[Row]) -> bool:
    """Whether these rows' measure is arithmetic, not bandwidth."""
    return any(row.get("ceiling", "copy") not in ("copy", "bound") for row in rows)


def columns_of(report: Mapping[str, Any], rows: Sequence[Row]) -> list[Column]:
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
    columns = [column for column in TIMED_FLOPS if ffma or column[0] != "of fp32 peak"]
    return [(name, of_peak if name == "of fp32 peak" else text) for name, text in columns]


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


def ceiling_line(report: Mapping[str, Any], group: Group) -> str:
    """The ceilings measured with these rows, or where the figures come from instead."""
    link = report["ceilings"].get("link")
    if link:
        return (
            f"pinned copies of a chunk's size in the same run: {number(link['h2d'] / 1e9)} GB/s in, "
            f"{number(link['d2h'] / 1e9)} GB/s out, {number(link['both'] / 1e9)} GB/s each way together"
        )
    if report["device"]["kind"] == "sim":
        return "counted by the simulated device, which has no clock: no figure here is a time on a GPU"
    parts = []
    for copy in report["ceilings"].get("copy", []):
        if copy_group(copy) == group[1:]:
            parts.append(f"copy of the same bytes {number(copy['gbps'])} GB/s")
    large = report["ceilings"].get("copy_large")
    if large:
        parts.append(f"copy of {large['bytes'] / 2**30:.0f} GiB {number(large['gbps'])} GB/s")
    return "; ".join(parts)


def cells(report: Mapping[str, Any], rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of one shape's rows."""
    columns = columns_of(report, rows)
    beside = compared_with(rows)
    lines = [[text(row, other) for _, text in columns] for row, other in zip(rows, beside, strict=True)]
    return [name for name, _ in columns], lines


def show(report: Mapping[str, Any], console: Console) -> None:
    """Prints one table a shape."""
    from rich.markup import escape
    from rich.table import Table

    for group, rows in by_shape(report["rows"]).items():
        table: Table = Table(title=group_text(group), caption=ceiling_line(report, group), title_justify="left")
        headings, lines = cells(report, rows)
        for heading in headings:
            words = heading in ("variant", "what it adds", "right")
            table.add_column(heading, justify="left" if words else "right", no_wrap=heading == "variant")
        for row, line in zip(rows, lines, strict=True):
            style = "red" if row["ok"] is False else "dim" if row["rung"] is None or row["ok"] is None else None
            table.add_row(*(escape(cell) for cell in line), style=style)
        console.print(table)
    console.print(device_line(report))


def markdown(report: Mapping[str, Any]) -> str:
    """The same tables as GitHub draws them."""
    parts = []
    for group, rows in by_shape(report["rows"]).items():
        headings, lines = cells(report, rows)
        ceilings = ceiling_line(report, group)
        parts.append(f"**{group_text(group)}**{f' ({ceilings})' if ceilings else ''}\n")
        parts.append("| " + " | ".join(headings) + " |")
        parts.append("|" + "---|" * len(headings))
        parts.extend("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
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
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
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
        lines.append("| " + " | ".join(line) + " |")
    measured = f"{unit}; call: the host's microseconds per call, a dash if it was not measured"
    return "\n".join([*lines, "", f"{measured}; {device_line(report)}"])


def _compared_call(rows: Sequence[Row]) -> str:
    """The peer whose call stands beside ours: torch's own, or the peer that is the ceiling; "" if there is neither."""
    names = {row["variant"] for row in rows if row["variant"].startswith("peer:")}
    ceilings = (str(row.get("ceiling")) for row in rows)
    return next((name for name in ("peer:torch", *ceilings) if name in names), "")
