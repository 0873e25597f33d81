"""Pictures of reports. Needs the `plot` extra (matplotlib), which is imported when a picture is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudakit.errors import Refused
from cudakit.show.plots.ladder import ladder
from cudakit.show.plots.ranges import ranges
from cudakit.show.plots.style import check
from cudakit.show.plots.sweep import sweep
from cudakit.show.plots.timeline import timeline
from cudakit.show.tables import by_shape

__all__ = ["KINDS", "check", "ladder", "plot", "ranges", "sweep", "timeline"]

KINDS = ("ladder", "sweep")

_ROW = ("family", "variant", "rung", "shape", "dtype", "ok")


def plot(
    report: Mapping[str, Any],
    path: str,
    *,
    kind: str | None = None,
    shape: Sequence[int] | None = None,
    variants: Sequence[str] = (),
) -> list[str]:
    """Draws a bench's report to `path` (PNG, SVG or PDF, by its ending) and gives the files written.

    kind: "ladder", a bar a rung of one shape, or "sweep", a line a variant against the size; unless said, a ladder of
    one shape and a sweep of several. shape: the ladder's. variants: the sweep's lines in colour. A report of several
    families gives a picture each, `bench.png` as `bench_softmax.png` and so on. Raises Refused where there is nothing
    to draw, and for a report of something else.
    """
    _expect_bench(report)
    known = dict.fromkeys(str(row["variant"]) for row in report["rows"])
    if not known.keys() >= set(variants):
        strange = ", ".join(name for name in variants if name not in known)
        raise Refused(f"the report has no {strange}; there are {', '.join(known)}")
    families = list(dict.fromkeys(row["family"] for row in report["rows"]))
    whole = Path(path)
    written = []
    for family in families or [""]:
        rows = [row for row in report["rows"] if row["family"] == family]
        target = str(whole.with_stem(f"{whole.stem}_{family}")) if len(families) > 1 else path
        part = {**report, "rows": rows}
        if (kind or ("sweep" if len(by_shape(rows)) > 1 else "ladder")) == "ladder":
            ladder(part, target, None if shape is None else tuple(shape))
        else:
            sweep(part, target, variants)
        written.append(target)
    return written


def _expect_bench(report: Mapping[str, Any]) -> None:
    """Raises Refused for JSON that is none of a bench's."""
    if "ncu" in report:
        raise Refused("that is a profile: `cudakit profile --import FILE.json` draws its roofline")
    rows = report.get("rows")
    missing = [key for key in ("device", "date", "ceilings", "rows") if key not in report]
    if not missing:
        entries = rows if isinstance(rows, list) else [{}]
        missing = [key for key in _ROW if not all(key in row for row in entries)]
    if missing:
        raise Refused(f"that is no report of a bench, which has rungs on shapes: it has no {', '.join(missing)}")
