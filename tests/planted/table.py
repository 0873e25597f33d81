"""Prints a table of the results that `planted.sanitize` wrote: `python -m planted.table FILE.json > FILE.md`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# why these twins are correct although compute-sanitizer reports them
_HOST_WAITS = "the host waits for the allocating stream before another stream uses it; memcheck ignores that wait"
CORRECT = {
    "pinned_shared_by_streams": _HOST_WAITS,
    "streams_not_ordered": _HOST_WAITS,
    "event_recorded_late": _HOST_WAITS,
    "constant_replaced": _HOST_WAITS,
    "variable_of_other_kernel": _HOST_WAITS,
    "counter_reset_early": _HOST_WAITS,
    "event_of_other_stream": _HOST_WAITS,
    "graph_branch_not_ordered": _HOST_WAITS,
    "graph_edge_missing": _HOST_WAITS,
    "pipe_refill": "bar.arrive and bar.sync of named barriers order the producer and the consumers",
    "tile_of_warps": "cooperative groups' own collectives reuse a tile's scratch after a shuffle",
    "flag_before_data": "a flag in shared memory, with __threadfence_block on both sides, orders the warps",
}


def table(data: dict[str, Any]) -> str:
    """Return Markdown: both verdicts on every planted bug, and the reports on correct twins."""
    rows = data["cases"]
    tools = [tool for tool in TOOLS if all(tool in row["wrong"] for row in rows)]
    silent = {None, ""}
    found = [row for row in rows if any(row["wrong"][tool]["finding"] not in {*silent, "hang"} for tool in tools)]
    hung = [row for row in rows if row not in found and any(row["wrong"][t]["finding"] == "hang" for t in tools)]
    ours = [row for row in rows if _right_line(row)]
    false = {tool: [row["name"] for row in rows if row["right"][tool]["finding"] not in silent] for tool in tools}
    unseen = {tool: [row["name"] for row in rows if row["right"][tool]["finding"] is None] for tool in tools}
    device, version = data["device"], " ".join(data["sanitizer"])
    lines = [
        f"# Planted bugs: the simulated device and compute-sanitizer ({device['name']})",
        "",
        f"{len(rows)} bugs, each in its own kernel or host function, and as many correct twins. The simulated"
        f" device reports {len(ours)} with the class and the line that are marked in the source. At least one tool of"
        f" compute-sanitizer reports {len(found)}; {len(hung)} more hung without a report and were stopped.",
        "",
        "Reports on correct twins: the simulated device "
        f"{sum(row['right']['sim']['finding'] not in silent for row in rows)}"
        + "".join(f", {tool} {len(names)}" + _names(names) for tool, names in false.items())
        + ".",
        *(f"Not run under {tool}: {', '.join(names)}." for tool, names in unseen.items() if names),
        *(f"Measured on {name}: {', '.join(cases)}." for name, cases in _elsewhere(rows).items()),
        *(f"`{name}` is correct: {CORRECT[name]}." for names in false.values() for name in names if name in CORRECT),
        "",
        f"| bug | class | simulated device | {' | '.join(tools)} |",
        "|---" * (3 + len(tools)) + "|",
    ]
    for row in rows:
        cells = [_cell(row["wrong"][tool]) for tool in ("sim", *tools)]
        lines.append(f"| {row['idea']} | {row['class']} | {' | '.join(cells)} |")
    lines += ["", f"{device['name']}, {device['arch']}, driver {device['driver']}, nvrtc {device['nvrtc']}; {version}"]
    return "\n".join(lines) + "\n"


def _elsewhere(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The cases that were measured on another device than the others, by its name."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "device" in row:
            found.setdefault(row["device"], []).append(row["name"])
    return found


def _right_line(row: dict[str, Any]) -> bool:
    said = row["wrong"]["sim"]
    marked = {f"{row['file']}:{line}" for line in row["marked"]}
    return said["finding"] == row["class"] and bool(marked & set(said["places"]))


def _names(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _cell(said: dict[str, Any]) -> str:
    if said["finding"] is None:
        return "not run"
    if not said["finding"]:
        return "-"
    at = f", {said['places'][0]}" if said["places"] else ""
    return f"{said['finding']}{at}".replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    sys.stdout.write(table(json.loads(parser.parse_args().json.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
