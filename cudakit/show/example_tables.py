"""Tables of single examples: host time per launch and per call, launches with a mistake, NVTX ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudakit import trace
from cudakit.errors import Refused
from cudakit.shapes import shape_text
from cudakit.show import markdown
from cudakit.show.digits import NOTHING
from cudakit.show.tables import Group, Row, by_shape, device_line, group_text


def call_name(row: Row) -> str:
    """The name of a call in a table of host times: a launch's variant; other calls also have a family and a shape."""
    if row["family"] == "launch":
        return str(row["variant"])
    return " ".join(part for part in (row["family"], shape_text(row["shape"]), row["variant"]) if part)


def launches(report: Mapping[str, Any]) -> str:
    """The host's microseconds per call, as examples/launch_overhead.py measures them."""
    lines = []
    for row in report["rows"]:
        spread = row.get("host_us")
        if spread is None:
            continue
        above = NOTHING if row.get("above_bare_us") is None else f"{row['above_bare_us']:+.2f}"
        percentiles = f"{spread['p10']:.2f} to {spread['p90']:.2f}"
        lines.append([call_name(row), f"{spread['median']:.2f}", above, percentiles])
    headings = ["launch", "host us per call", "above bare", "p10 to p90"]
    return "\n".join([*markdown.table(headings, lines), "", device_line(report)])


def call_tables(report: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, headings and text cells of each table of examples/call_overhead.py: one column per way to call; ours
    include the difference from torch."""
    ways = list(dict.fromkeys(row["variant"] for row in report["rows"]))
    headings = ["call", *(way.removeprefix("peer:") for way in ways), "correct"]
    loops: dict[Group, list[Row]] = {}
    calls: dict[Group, list[Row]] = {}
    for group, rows in by_shape(report["rows"]).items():
        (loops if group[3] == "loop" else calls)[group] = rows
    burst = report["burst"]
    return [
        (
            f"host us per call, bursts of {burst} (above torch)",
            headings,
            [_call_line(group, rows, ways, _call_cost) for group, rows in calls.items()],
        ),
        (
            f"wall us per call in a loop of {burst} (relative to torch)",
            headings,
            [_call_line(group, rows, ways, _loop_cost) for group, rows in loops.items()],
        ),
    ]


def _call_line(group: Group, rows: list[Row], ways: list[str], text: Callable[[Row], str]) -> list[str]:
    by_way = {row["variant"]: row for row in rows}
    wrong = [f"NO: {way}: {row['why']}" for way, row in by_way.items() if row["ok"] is False]
    cells = [text(by_way[way]) if way in by_way else NOTHING for way in ways]
    return [group_text(group), *cells, "; ".join(wrong) or "yes"]


def _call_cost(row: Row) -> str:
    if row["call_us"] is None:
        return NOTHING
    above = row["above_torch_us"]
    difference = "" if above is None or row["variant"].startswith("peer:") else f" ({above:+.2f})"
    return f"{row['call_us']['median']:.2f}{difference}"


def _loop_cost(row: Row) -> str:
    if row["loop_us"] is None:
        return NOTHING
    share = row["of_torch"]
    ratio = "" if share is None or row["variant"].startswith("peer:") else f" ({share:.2f} x)"
    return f"{row['loop_us']['median']:.2f}{ratio}"


def calls(report: Mapping[str, Any]) -> str:
    """The host's time of calls of cudakit.ops and of torch, as examples/call_overhead.py measures them."""
    parts = []
    for title, headings, lines in call_tables(report):
        parts += [f"**{title}**", "", *markdown.table(headings, lines), ""]
    versions = f", torch {report['torch']}" if report["torch"] else ""
    return "\n".join([*parts, device_line(report) + versions])


#: Words of a table for outcomes that the JSON names differently.
_OUTCOMES = {"right": "correct", "refused": "rejected"}


def mistake_cells(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells of examples/launch_mistakes.py: one line per mistake, one column per package."""
    packages = list(dict.fromkeys(row["variant"] for row in report["rows"]))
    outcomes = {
        (row["mistake"], row["variant"]): _OUTCOMES.get(row["outcome"], row["outcome"]) or NOTHING
        for row in report["rows"]
    }
    mistakes = list(dict.fromkeys(row["mistake"] for row in report["rows"]))
    lines = [[mistake, *(outcomes.get((mistake, package), NOTHING) for package in packages)] for mistake in mistakes]
    return ["launch", *(package.removeprefix("peer:") for package in packages)], lines


def mistakes(report: Mapping[str, Any]) -> str:
    """The outcomes of launches with a mistake, as examples/launch_mistakes.py reports them."""
    return "\n".join([*markdown.table(*mistake_cells(report)), "", device_line(report)])


def ranges(report: Mapping[str, Any]) -> str:
    """The table of a report's NVTX ranges: the outer ranges and those directly within them."""
    if "ranges" not in report:
        raise Refused("the report has no ranges: write one with examples/nvtx_matmul.py --json")
    return trace.markdown(report["ranges"])
