"""Tables of single examples: host time per call, wrong launches, NVTX ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudakit import trace
from cudakit.errors import Refused
from cudakit.shapes import shape_text
from cudakit.show.digits import NOTHING
from cudakit.show.tables import Row, device_line


def call_name(row: Row) -> str:
    """How a table of host times names a call: a launch by its variant, another call by family and shape too."""
    if row["family"] == "launch":
        return str(row["variant"])
    return " ".join(part for part in (row["family"], shape_text(row["shape"]), row["variant"]) if part)


def launches(report: Mapping[str, Any]) -> str:
    """The host's microseconds per call, as examples/launch_overhead.py measures them."""
    lines = ["| launch | host us a call (p10 to p90) | above bare |", "|---|---|---|"]
    for row in report["rows"]:
        spread = row.get("host_us")
        if spread is None:
            continue
        above = NOTHING if row.get("above_bare_us") is None else f"{row['above_bare_us']:+.2f}"
        times = f"{spread['median']:.2f} ({spread['p10']:.2f} to {spread['p90']:.2f})"
        lines.append(f"| {call_name(row)} | {times} | {above} |")
    return "\n".join([*lines, "", device_line(report)])


def mistake_cells(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells, a line a mistake and a column a package, of examples/launch_mistakes.py."""
    packages = list(dict.fromkeys(row["variant"] for row in report["rows"]))
    outcomes = {(row["mistake"], row["variant"]): row["outcome"] or NOTHING for row in report["rows"]}
    mistakes = list(dict.fromkeys(row["mistake"] for row in report["rows"]))
    lines = [[mistake, *(outcomes.get((mistake, package), NOTHING) for package in packages)] for mistake in mistakes]
    return ["what is launched", *(package.removeprefix("peer:") for package in packages)], lines


def mistakes(report: Mapping[str, Any]) -> str:
    """What became of wrong launches, as examples/launch_mistakes.py tries them."""
    headings, lines = mistake_cells(report)
    table = [headings, ["---"] * len(headings), *lines]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in table), "", device_line(report)])


def ranges(report: Mapping[str, Any]) -> str:
    """The table of a report's NVTX ranges, their own first and the level within them."""
    if "ranges" not in report:
        raise Refused("there are no ranges in the report: examples/nvtx_matmul.py --json writes one that has them")
    return trace.markdown(report["ranges"])
