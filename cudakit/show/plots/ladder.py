"""A ladder as bars: the variants that improve on all earlier variants, and the peers, with the ceiling measured in the
same run."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.measure.rows import on_host
from cudakit.show.digits import number
from cudakit.show.plots import style
from cudakit.show.plots.measure import Measure
from cudakit.show.tables import by_shape, device_line, group_text

Row = Mapping[str, Any]

_INCHES = 0.37  # per bar, with the idea under its name
_MOST = 7  # variants in one picture
_BETTER = 1.1  # a variant that improves on all earlier variants by less than this factor is left out
_IDEA = 46  # letters


def ladder(report: Mapping[str, Any], path: str, shape: Sequence[int] | None = None, only: Sequence[str] = ()) -> None:
    """Draw one shape: `shape`, or, of the shapes with the most variants, the largest.

    only: our variants to draw; by default at most seven: the first, the best, and those that improve most on all
    before them. Raises Refused if there is nothing to draw.
    """
    measure = Measure.of(report)
    groups = {group: rows for group, rows in by_shape(report["rows"]).items() if shape in (None, group[1])}
    drawn = {group: [row for row in rows if measure.value(row) is not None] for group, rows in groups.items()}
    if not any(measure.value(row) for row in itertools.chain(*drawn.values()) if not on_host(row["variant"])):
        of_shape = " of that shape" if shape else ""
        raise Refused(f"there is nothing to draw: no row{of_shape} of the report is correct and has {measure.unit}")
    group = max(drawn, key=lambda group: (sum(row["rung"] is not None for row in drawn[group]), math.prod(group[1])))
    everything = sorted((row for row in drawn[group] if row["rung"]), key=lambda row: row["rung"])
    ours = [row for row in everything if row["variant"] in only] if only else chosen(everything, measure)
    others = [row for row in drawn[group] if not row["rung"] and not on_host(row["variant"])]
    bars = [*ours, *sorted(others, key=lambda row: measure.value(row) or 0, reverse=not measure.more_is_better)]
    theme = style.theme_of(path)
    figure = style.figure(1.55 + _INCHES * len(bars), theme)
    axes = figure.subplots()
    ceiling = measure.ceiling(report, group)
    name = measure.ceiling_name(bars)
    numbered = len(ours) == len(everything)  # numbers with gaps would look like a mistake
    _draw_bars(axes, bars, measure, measure.best(ours), ceiling, theme, numbered=numbered)
    if ceiling is not None:
        whole = " = 100 %" if measure.more_is_better else ""
        axes.axvline(ceiling, color=theme.ink, linewidth=1.1, linestyle=(0, (4, 2)), zorder=2.5)
        axes.annotate(
            f"{name} {number(ceiling)} {measure.unit}{whole}", (ceiling, 1), xytext=(0, 3), fontsize=style.SMALL,
            color=theme.ink, xycoords=("data", "axes fraction"), textcoords="offset points", ha="right",
        )  # fmt: skip
    axes.set_yticks([])
    axes.set_ylim(len(bars) - 0.45, -0.6)
    axes.set_xlabel(f"{measure.name}, {measure.unit}")
    axes.xaxis.set_major_formatter("{x:,.12g}")
    axes.grid(axis="x", color=theme.faint, alpha=0.6, linewidth=0.6)
    style.plain(axes, group_text(group), device_line(report), theme)
    axes.spines["left"].set_visible(False)
    _note(figure, theme, left_out=len(everything) - len(ours), others=bool(others), several=len(ours) > 1)
    style.save(figure, path)


def chosen(ours: Sequence[Row], measure: Measure) -> list[Row]:
    """Select at most seven variants, in the ladder's order: the first, the best, and those that improve most on all
    variants before them."""
    best = measure.best(ours)
    gains: list[tuple[float, Row]] = []
    reached = 0.0
    for row in ours:
        value = measure.value(row) or 0.0
        worth = value if measure.more_is_better else 1 / value if value else math.inf
        if not reached or row is best:
            gains.append((math.inf, row))
        elif worth >= _BETTER * reached:
            gains.append((worth / reached, row))
        reached = max(reached, worth)
    kept = sorted(gains, key=lambda pair: -pair[0])[:_MOST]
    return [row for _, row in gains if any(row is other for _, other in kept)]


def _draw_bars(
    axes: Any,
    bars: Sequence[Row],
    measure: Measure,
    best: Row | None,
    ceiling: float | None,
    theme: style.Theme,
    *,
    numbered: bool,
) -> None:
    values = [float(measure.value(row) or 0) for row in bars]
    longest = max([*values, ceiling or 0])
    colors = [theme.peer if not row["rung"] else theme.accent if row is best else theme.ours for row in bars]
    axes.barh(range(len(bars)), values, height=0.66, color=colors)
    axes.set_xlim(0, longest * 1.03)
    for place, (row, value, color) in enumerate(zip(bars, values, colors, strict=True)):
        share = f" · {_percent(value / ceiling)}" if ceiling and measure.more_is_better else ""
        inside = value > 0.8 * longest
        axes.annotate(
            f"{number(value)}{share}", (value, place), xytext=(-5 if inside else 5, 0), textcoords="offset points",
            ha="right" if inside else "left", va="center", fontsize=style.NORMAL, zorder=4,
            color=(theme.on_accent if row is best else theme.on_bar) if inside else theme.ink,
            fontweight="bold" if row is best else "normal",
            bbox={"facecolor": color, "edgecolor": "none", "pad": 1} if inside else None,  # covers the ceiling's line
        )  # fmt: skip
        name = str(row["variant"]).removeprefix("peer:")
        if numbered and row["rung"]:
            name = f"{row['rung']}  {name}"
        idea = _short(str(row.get("idea") or ""))
        weight = "bold" if row is best else "normal"
        for text, up, size, ink in (
            (name, 5 if idea else 0, style.NORMAL, theme.ink),
            (idea, -5.5, style.SMALL - 0.5, theme.soft),
        ):
            axes.annotate(
                style.literal(text), (0, place), xytext=(-6, up), textcoords="offset points", ha="right", va="center",
                fontsize=size, color=ink, annotation_clip=False, fontweight=weight if size == style.NORMAL else None,
            )  # fmt: skip


def _percent(share: float) -> str:
    """`share` in percent; below one percent with a decimal, so that it is not 0."""
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %"


def _short(idea: str) -> str:
    """`idea` if it is short, else its first parts, or its first words."""
    if len(idea) <= _IDEA:
        return idea
    parts = re.match(rf"(.{{12,{_IDEA}}})[,;:] ", idea)
    return parts[1] if parts else textwrap.shorten(idea, _IDEA, placeholder=" …")


def _note(figure: Any, theme: style.Theme, *, left_out: int, others: bool, several: bool) -> None:
    """A legend of the colours below the bars, and the number of variants that are left out."""
    patch = style.load("matplotlib.patches").Patch
    named = [(theme.accent, "cudakit, best variant"), (theme.ours, "cudakit"), (theme.peer, "other libraries")]
    shown = [pair for pair, used in zip(named, (True, several, others), strict=True) if used]
    handles = [patch(color=color, label=label) for color, label in shown]
    if left_out:
        text = f"{left_out} more variant{'s' * (left_out > 1)} not shown"
        handles.append(patch(color="none", label=text))
    style.legend(figure, theme, handles=handles, loc="outside lower right", ncols=len(handles), handlelength=1.2)
