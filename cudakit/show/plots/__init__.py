"""Pictures of reports. Needs the `plot` extra (matplotlib), which is imported when a picture is drawn."""

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
    """Draw a bench's report to `path` and return the files written.

    A report of several families becomes one picture per family: `bench.png` becomes `bench_softmax.png` and so on.

    Args:
        report: The JSON of a bench.
        path: The picture; its ending names the format (PNG, SVG, PDF). `x.dark.png` is drawn for dark pages.
        kind: "ladder", one bar per variant for one shape, or "sweep", one line per variant over sizes; by default a
            ladder for one shape and a sweep for several.
        shape: The ladder's shape.
        variants: The ladder's bars, or the sweep's coloured lines; by default a selection.

    Raises:
        Refused: If there is nothing to draw, or the report is not a bench's.
    """
    _expect_bench(report)
    known = dict.fromkeys(str(row["variant"]) for row in report["rows"])
    if not known.keys() >= set(variants):
        strange = ", ".join(name for name in variants if name not in known)
        raise Refused(f"the report has no {strange}; there are {', '.join(known)}")
    families = list(dict.fromkeys(row["family"] for row in report["rows"]))
    written = []
    for family in families or [""]:
        rows = [row for row in report["rows"] if row["family"] == family]
        target = _with_family(path, family) if len(families) > 1 else path
        part = {**report, "rows": rows}
        if (kind or ("sweep" if len(by_shape(rows)) > 1 else "ladder")) == "ladder":
            ladder(part, target, None if shape is None else tuple(shape), variants)
        else:
            sweep(part, target, variants)
        written.append(target)
    return written


def _with_family(path: str, family: str) -> str:
    """`bench.png` as `bench_softmax.png`, `bench.dark.png` as `bench_softmax.dark.png`."""
    whole = Path(path)
    stem, _, dark = whole.stem.partition(".dark")
    return str(whole.with_name(f"{stem}_{family}{'.dark' if whole.stem.endswith('.dark') else dark}{whole.suffix}"))


def _expect_bench(report: Mapping[str, Any]) -> None:
    """Raise Refused for JSON that is not a bench's."""
    if "ncu" in report:
        raise Refused("that is a profile: `cudakit profile --import FILE.json` draws its roofline")
    rows = report.get("rows")
    missing = [key for key in ("device", "date", "ceilings", "rows") if key not in report]
    if not missing:
        entries = rows if isinstance(rows, list) else [{}]
        missing = [key for key in _ROW if not all(key in row for row in entries)]
    if missing:
        raise Refused(f"not a report of a bench: it has no {', '.join(missing)}")
