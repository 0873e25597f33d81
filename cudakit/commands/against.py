"""`cudakit bench --against OLD.json`: measure the rows of an older report again and compare."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.measure import regression
from cudakit.measure.bench import Selection
from cudakit.show import outputs, regression_tables, terminal

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.family import Ladder
    from cudakit.shapes import Shape

Work = list[tuple["Ladder[Any]", "Sequence[Shape]", Selection]]


def load(name: str) -> Mapping[str, Any]:
    """Read the report in the file `name`. Raises Refused if it is not a report of a bench."""
    report = outputs.load(Path(name))
    rows = report.get("rows")
    whole = isinstance(report.get("device"), Mapping) and isinstance(rows, list) and all(map(_is_row, rows))
    if not whole:
        raise Refused(f"--against {name}: that is not a report of `cudakit bench --json`")
    return report


def _is_row(row: Any) -> bool:
    if not isinstance(row, Mapping) or not all(isinstance(row.get(key), str) for key in ("family", "variant", "dtype")):
        return False
    shape = row.get("shape")
    whole = isinstance(shape, list) and all(isinstance(extent, int) and extent >= 0 for extent in shape)
    return whole and regression.readable(row)


def families(report: Mapping[str, Any]) -> list[str]:
    """Return the names of the families in the report that still exist."""
    from cudakit import ops

    known = ops.families()
    return [name for name in dict.fromkeys(row["family"] for row in report["rows"]) if name in known]


def work(report: Mapping[str, Any], named: Sequence[Ladder[Any]]) -> Work:
    """Return the shapes and variants to measure again, from an older report, grouped by family, dtype and mode.

    If `named` is not empty, only the families in it are measured. Families, dtypes, modes and variants that no longer
    exist are left out."""
    from cudakit import ops

    known = {family.name: family for family in named} or ops.families()
    groups: dict[tuple[str, str, str], tuple[dict[Shape, None], dict[str, None]]] = {}
    for row in report["rows"]:
        family = known.get(row["family"])
        mode = row.get("mode") or ""
        if family is None:
            continue
        if row["dtype"] not in family.usual_dtypes or mode not in family.modes:
            continue
        shapes, variants = groups.setdefault((row["family"], row["dtype"], mode), ({}, {}))
        shapes[tuple(row["shape"])] = None
        if any(variant.name == row["variant"] for variant in family.variants):
            variants[row["variant"]] = None
    return [
        (known[family], list(shapes), Selection(list(variants), [dtype], [mode]))
        for (family, dtype, mode), (shapes, variants) in groups.items()
        if variants
    ]


def no_rows(report: Mapping[str, Any], named: Sequence[Ladder[Any]]) -> str:
    """Return why no row of the report can be measured again. Call it if `work` returned nothing."""
    found = ", ".join(dict.fromkeys(row["family"] for row in report["rows"]))
    if not found:
        return "it has no rows"
    if named:
        own = ", ".join(family.name for family in named)
        return f"it has no row of {own} whose variant still exists; its rows are of {found}"
    return f"its rows are of {found}: name the family to measure, such as mine.py:FAMILY, unless it is cudakit's own"


def refusal(report: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    """Return why measurements on `device` cannot be compared with the report, or "" if they can."""
    return regression.other_device(report["device"], device)


def nothing_compared(name: str, why: str) -> int:
    """Print that no rows were compared, and the reason. Returns the exit status."""
    terminal.say_error(f"NOTHING COMPARED with {name}: {why}", sys.stderr)
    return cli.EXIT_REFUSED


def conclude(old: Mapping[str, Any], new: Mapping[str, Any], name: str, table: Console) -> int:
    """Compare two reports and show the differences on `table`. Returns the exit status: 1 if a row regressed."""
    found = regression.compare(old, new)
    if found.refusal:
        return nothing_compared(name, found.refusal)
    regression_tables.show(found, old, new, name, table)
    return cli.EXIT_FALSE if found.regressed else cli.EXIT_OK
