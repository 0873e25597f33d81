"""Bars: a rung each, from the first to the last, with the ceiling of the same run as a line and the peers below."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.show.digits import number
from cudakit.show.plots import style
from cudakit.show.plots.measure import Measure
from cudakit.show.tables import by_shape, device_line, group_text

_INCHES = 0.46  # a bar, with the idea under its name


def ladder(report: Mapping[str, Any], path: str, shape: Sequence[int] | None = None) -> None:
    """Draws one shape's rows: of those with most rungs the largest, or `shape`.

    Raises Refused where there is nothing to draw.
    """
    measure = Measure.of(report)
    groups = {group: rows for group, rows in by_shape(report["rows"]).items() if shape in (None, group[1])}
    drawn = {group: [row for row in rows if measure.value(row) is not None] for group, rows in groups.items()}
    if not any(measure.value(row) for row in itertools.chain(*drawn.values()) if row["variant"] != "cpu"):
        of_shape = " of that shape" if shape else ""
        raise Refused(f"there is nothing to draw: no row{of_shape} of the report is right and has {measure.unit}")
    group = max(drawn, key=lambda group: (sum(row["rung"] is not None for row in drawn[group]), math.prod(group[1])))
    rows = drawn[group]
    ours = sorted((row for row in rows if row["rung"]), key=lambda row: row["rung"])
    others = [row for row in rows if not row["rung"] and row["variant"] != "cpu"]
    bars = [*ours, *others]
    figure = style.figure(10.5, 1.25 + _INCHES * len(bars))
    axes = figure.subplots()
    values = [float(measure.value(row) or 0) for row in bars]
    best = measure.best(ours)
    colors = [style.PEER if not row["rung"] else style.COLORS[1] if row is best else style.COLORS[0] for row in bars]
    axes.barh(range(len(bars)), values, height=0.62, color=colors)
    ceiling = measure.ceiling(report, group)
    longest = max([*values, ceiling or 0])
    if ceiling is not None:
        axes.axvline(ceiling, color=style.CEILING, linewidth=1.2, linestyle=(0, (4, 2)))
        whole = " = 100 %" if measure.more_is_better else ""
        axes.annotate(
            f"{measure.ceiling_name(bars)} {number(ceiling)}{whole}", (ceiling, 1), xytext=(0, 3), fontsize=8.5,
            color=style.INK, xycoords=("data", "axes fraction"), textcoords="offset points", ha="right",
        )  # fmt: skip
    for place, (row, value, color) in enumerate(zip(bars, values, colors, strict=True)):
        share = f"  {100 * value / ceiling:.0f} %" if ceiling and measure.more_is_better else ""
        inside = value > 0.82 * longest
        axes.annotate(
            f"{number(value)}{share}", (value, place), xytext=(-5 if inside else 5, 0), textcoords="offset points",
            ha="right" if inside else "left", va="center", fontsize=9, color="white" if inside else style.INK,
            bbox={"facecolor": color, "edgecolor": "none", "pad": 1} if inside else None,  # over the ceiling's line
        )  # fmt: skip
        name = f"{row['rung']}  {row['variant']}" if row["rung"] else str(row["variant"]).removeprefix("peer:")
        for text, up, size, ink in ((name, 6, 9.5, style.INK), (str(row.get("idea") or ""), -7, 7.5, style.SOFT)):
            axes.annotate(
                style.literal(text), (0, place), xytext=(-8, up), textcoords="offset points", ha="right", va="center",
                fontsize=size, color=ink, annotation_clip=False,
            )  # fmt: skip
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.06)
    axes.set_xlabel(measure.unit, color=style.SOFT)
    axes.grid(axis="x", color=style.FAINT, alpha=0.5, linewidth=0.6)
    style.plain(axes, group_text(group), device_line(report))
    axes.spines["left"].set_visible(False)
    style.save(figure, path)
