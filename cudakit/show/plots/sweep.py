"""Lines: bandwidth or TFLOP/s against the size, one line per variant, with its name at its end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.measure.rows import on_host
from cudakit.shapes import shape_text
from cudakit.show.plots import style
from cudakit.show.plots.measure import Measure
from cudakit.show.tables import Group, by_shape, device_line

# Variants with a colour; the others are faint and have no name.
_NAMED = len(style.LIGHT.lines)
# Shapes that differ in more than their size are points, because a line between them would mean nothing. A few matrix
# products are joined in the order of their size.
_JOINED = 14
# Two lines less than this apart, a factor of 1.15 on average, look like one.
_ALIKE = math.log(1.15)


def sweep(report: Mapping[str, Any], path: str, variants: Sequence[str] = ()) -> None:
    """Draw all shapes. `variants`, or the variants that are best for some shape, are in colour, peers grey, the ceiling
    dashed.

    Raises Refused if there is nothing to draw.
    """
    measure = Measure.of(report)
    groups = _ordered(by_shape(report["rows"]), by_size=measure.key == "tflops")
    lines = _lines(groups, measure)
    if not lines:
        raise Refused(f"there is nothing to draw: no row of the report is correct and has {measure.unit}")
    at, to_scale = _places(list(groups))
    joined = to_scale or (measure.key == "tflops" and len(groups) <= _JOINED)
    theme = style.theme_of(path)
    figure = style.figure(5.2, theme)
    axes = figure.subplots()
    labels: list[tuple[str, float, float, str]] = []  # text, x, y, colour
    ceiling = {group: measure.ceiling(report, group) for group in groups}
    known = [group for group in groups if ceiling[group] is not None]
    # A library that is the ceiling already has a line of its own.
    if known and measure.key == "gbps":
        x, y = [at[group] for group in known], [float(ceiling[group] or 0) for group in known]
        looks: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.6}
        if not joined:
            looks = {"linestyle": "", "marker": "_", "markersize": 16, "markeredgewidth": 1.6}
        axes.plot(x, y, color=theme.ink, label="copy (ceiling)", zorder=3, **looks)
        labels.append(("copy", x[-1], y[-1], theme.ink))
    chosen = _chosen(groups, measure, lines, variants)
    colors = _colors(chosen, groups, measure, theme)
    peers = [name for name in lines if name.startswith("peer:") or name == "cublas"]
    markers = iter("sD^vPX*" * len(lines))
    for name, line in lines.items():
        if on_host(name) and not measure.counted:
            continue
        color, width, marker = theme.faint, 1.0, ""
        if name in chosen:
            color, width, marker = colors[name], 2.0, "o"
        elif name in peers:
            color, width, marker = theme.peer_line, 1.3, next(markers)
        x, y = [at[group] for group in line], list(line.values())
        axes.plot(
            x, y, color=color, linewidth=width, marker=marker, markersize=4, label=name,
            linestyle=":" if name in peers and joined else "-" if joined else "", zorder=4 if name in chosen else 2,
        )  # fmt: skip
        if name in chosen or name in peers:
            labels.append((name.removeprefix("peer:"), x[-1], y[-1], color))
    names = [_name(group, to_scale) for group in groups]
    if to_scale:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(
        [at[group] for group in groups], names, rotation=0 if to_scale else 40, ha="center" if to_scale else "right"
    )
    axes.set_xlabel("size" if to_scale and measure.key == "tflops" else "row length, elements" if to_scale else "shape")
    axes.set_ylabel(f"{measure.name}, {measure.unit}")
    axes.yaxis.set_major_formatter("{x:,.12g}")
    if measure.more_is_better:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
    axes.grid(color=theme.faint, alpha=0.5, linewidth=0.6)
    families = " and ".join(dict.fromkeys(group[0] for group in groups))
    style.plain(
        axes,
        f"{families}: {measure.name} by {'row length' if to_scale and measure.key != 'tflops' else 'size'}",
        device_line(report),
        theme,
    )
    _legend(
        figure, theme, peers=bool(peers), rest=any(name in lines for name in _unnamed(groups, chosen)), joined=joined
    )
    _name_lines(figure, axes, labels)
    style.save(figure, path)


def _ordered(groups: Mapping[Group, Any], by_size: bool) -> dict[Group, Any]:
    """Groups by dtype and mode, then by the product of the extents or by the last one."""

    def key(group: Group) -> tuple[Any, ...]:
        _, shape, dtype, mode = group
        return dtype, mode, math.prod(shape) if by_size else shape[-1], shape

    return {group: groups[group] for group in sorted(groups, key=key)}


def _places(groups: Sequence[Group]) -> tuple[dict[Group, float], bool]:
    """Return the place of each shape: to scale if shapes differ in one number only, else side by side."""
    same = len({group[2:] for group in groups}) == 1
    shapes = [group[1] for group in groups]
    square = all(len(set(shape)) == 1 for shape in shapes) and len(shapes[0]) != 2
    to_scale = (
        same and (square or len({shape[:-1] for shape in shapes}) == 1) and min(shape[-1] for shape in shapes) > 0
    )
    return {group: float(group[1][-1]) if to_scale else float(place) for place, group in enumerate(groups)}, to_scale


def _name(group: Group, to_scale: bool) -> str:
    _, shape, dtype, mode = group
    if to_scale:
        return str(shape[-1])
    return " ".join(part for part in (shape_text(shape), "" if dtype == "float32" else dtype, mode) if part)


def _lines(groups: Mapping[Group, Any], measure: Measure) -> dict[str, dict[Group, float]]:
    lines: dict[str, dict[Group, float]] = {}
    for group, rows in groups.items():
        for row in rows:
            value = measure.value(row)
            if value is not None:
                lines.setdefault(row["variant"], {})[group] = value
    return lines


def _chosen(
    groups: Mapping[Group, Any], measure: Measure, lines: Mapping[str, Mapping[Group, float]], variants: Sequence[str]
) -> list[str]:
    """Return the variants to draw in colour, in the ladder's order: the requested variants, or the variants that are
    best for some shape; remaining colours go to the variants that differ most from those already chosen."""
    rungs = {row["variant"]: row["rung"] for rows in groups.values() for row in rows if row["rung"]}
    ours = sorted((name for name in rungs if name in lines), key=lambda name: rungs[name])
    if variants:
        return [name for name in ours if name in variants][:_NAMED]
    best = [measure.best([row for row in rows if row["rung"]]) for rows in groups.values()]
    wins = Counter(str(row["variant"]) for row in best if row is not None)
    names = [name for name, _ in wins.most_common(_NAMED)]
    rest = [name for name in ours if name not in names]
    while rest and len(names) < _NAMED:
        far = max(rest, key=lambda name: min(_apart(lines[name], lines[other]) for other in names))
        if min(_apart(lines[far], lines[other]) for other in names) < _ALIKE:
            break
        names.append(far)
        rest.remove(far)
    return [name for name in ours if name in names]


def _colors(chosen: Sequence[str], groups: Mapping[Group, Any], measure: Measure, theme: style.Theme) -> dict[str, str]:
    """Return each line's colour: the accent for the variant that is best for most shapes."""
    best = [measure.best([row for row in rows if row["variant"] in chosen]) for rows in groups.values()]
    wins = Counter(str(row["variant"]) for row in best if row is not None)
    first = max(chosen, key=lambda name: wins[name], default="")
    others = iter(color for color in theme.lines if color != theme.accent)
    return {name: theme.accent if name == first else next(others) for name in chosen}


def _unnamed(groups: Mapping[Group, Any], chosen: Sequence[str]) -> set[str]:
    """Our variants that have no colour."""
    return {row["variant"] for rows in groups.values() for row in rows if row["rung"]} - set(chosen)


def _legend(figure: Any, theme: style.Theme, *, peers: bool, rest: bool, joined: bool) -> None:
    """Explain the lines in grey; those in colour have their names at their ends."""
    if not joined:  # our other variants are not drawn
        return
    line = style.load("matplotlib.lines").Line2D
    kinds = [(peers, theme.peer_line, ":", "other libraries"), (rest, theme.faint, "-", "cudakit, other variants")]
    handles = [line([], [], color=color, linestyle=dash, label=label) for used, color, dash, label in kinds if used]
    if handles:
        style.legend(figure, theme, handles=handles, loc="outside lower right", ncols=len(handles))


def _apart(one: Mapping[Group, float], other: Mapping[Group, float]) -> float:
    """Return the distance of two lines, in factors: the mean over the shapes that both have."""
    both = [abs(math.log(one[group] / other[group])) for group in one if other.get(group) and one[group]]
    return sum(both) / len(both) if both else 0.0


def _name_lines(figure: Any, axes: Any, labels: Sequence[tuple[str, float, float, str]]) -> None:
    """Write names to the right of the lines' ends, moved apart if they would overlap."""
    figure.canvas.draw()  # make the layout final, so that data coordinates have fixed pixel positions
    right = axes.get_window_extent().x1
    points = [axes.transData.transform((x, y)) for _, x, y, _ in labels]
    places = style.spread([float(y) for _, y in points], 11.5 * figure.dpi / 72)
    for (text, x, y, color), place in zip(labels, places, strict=True):
        _, up = axes.transAxes.inverted().transform((right, place))
        axes.annotate(
            text, (x, y), xytext=(1.02, up), textcoords="axes fraction", fontsize=style.NORMAL, va="center",
            color=color,
            annotation_clip=False, arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.5},
        )  # fmt: skip
