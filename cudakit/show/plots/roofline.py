"""The roofline of a profile: one point per variant, below the roofs of memory bandwidth and arithmetic."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.profiling import reduction
from cudakit.show.plots import style

# The bottlenecks of launches, in a few groups with one colour and marker each.
_GROUPS = {
    "memory": ("DRAM bandwidth", "L2 bandwidth", "memory latency"),
    "L1 and shared memory": ("L1 data path", "shared memory", "shared memory latency"),
    "arithmetic": ("FMA pipe", "tensor pipe", "instruction issue", "ALU pipe", "special functions"),
    "latency and barriers": ("instruction latency", "barriers", "memory fences", "instruction fetch"),
    "too few blocks or lanes": ("small grid", "idle lanes"),
}
_MARKERS = dict(zip(_GROUPS, "osD^X", strict=True))

# Places of a label around its point, in points and degrees, the best first.
_DISTANCES = (8, 15, 24, 36, 50, 66, 84)
_ANGLES = (0, 180, 35, -35, 145, -145, 90, -90, 65, -65, 115, -115)

# The number of points of a line that labels keep away from.
_LINE_PARTS = 150

# Level lines within this factor share one label.
_APART = 1.08

# The roof's bend, or a roof above the points, is shown if it is within this factor of the points.
_NEAR = 12

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw a report of `cudakit profile` to `path`; `x.dark.png` is drawn for dark pages.

    Raises Refused without matplotlib, and if there is nothing to draw.
    """
    style.save(picture(report, style.theme_of(path)), path)


def picture(report: Mapping[str, Any], theme: style.Theme = style.LIGHT) -> Any:
    """Return the matplotlib figure of a report of `cudakit profile`: one point per range, its launches added up.

    Slanted lines are bandwidths, level lines are rates of arithmetic. Measured lines are solid, data sheet lines are
    dashed. Raises Refused without matplotlib, and if no launch has FLOPs and bytes.
    """
    rows = [row for row in reduction.summed(report["rows"]) if row["intensity"] and row["tflops"]]
    if not rows:
        raise Refused("there is nothing to draw: no launch did arithmetic on data from DRAM")
    figure = style.figure(4.9, theme)
    axes = figure.subplots()
    ceilings = _wanted(report["ceilings"].values(), rows)
    rates = [ceiling["value"] for ceiling in ceilings if ceiling["kind"] == "tflops"]
    x, y = [row["intensity"] for row in rows], [row["tflops"] for row in rows]
    speeds = [one["value"] for one in ceilings if one["kind"] == "gbps"]
    bends = [_ridge(speed, rate) for speed in speeds for rate in rates]
    xlim = _decades([*x, *(at for at in bends if min(x) / _NEAR < at < max(x) * _NEAR)], 0.9)
    axes.set(xscale="log", yscale="log", xlim=xlim, ylim=_decades([*y, *_roofs(xlim, speeds, rates, y)], 1.2))
    style.log_ticks(axes.xaxis)
    style.log_ticks(axes.yaxis)
    labels = _draw_ceilings(axes, ceilings, theme)
    ours = (theme.lines[0], theme.lines[2], theme.accent, theme.lines[3], theme.soft)
    colors = dict(zip(_GROUPS, ours, strict=True))
    lines = list(axes.lines)  # the ceilings within the axes
    for group, kinds in _GROUPS.items():
        chosen = [row for row in rows if row["binds"] in kinds]
        axes.plot(
            [row["intensity"] for row in chosen], [row["tflops"] for row in chosen], _MARKERS[group],
            color=colors[group], markersize=7.5, markeredgecolor=theme.page, label=group if chosen else None, zorder=4,
        )  # fmt: skip
    axes.set_xlabel("arithmetic intensity, FLOP per byte of DRAM traffic")
    axes.set_ylabel("arithmetic, TFLOP/s")
    families = dict.fromkeys(row["family"] for row in rows if row["family"])
    command = textwrap.shorten(report["command"].replace(" --quiet", ""), 75, placeholder=" ...")
    under = f"{report['device']['name']}, {report['date']}, {command}"
    style.plain(axes, f"{', '.join(families)} roofline".strip(), under, theme)
    axes.grid(which="major", color=theme.faint, alpha=0.6, linewidth=0.6)
    style.legend(figure, theme, title="limited by", loc="outside lower center", ncols=len(_GROUPS), columnspacing=1.4)
    figure.canvas.draw()  # the layout is final: labels are placed in pixels from here on
    figure.set_layout_engine("none")
    space = _FreeSpace(figure, axes)
    for row in rows:
        space.take_point(row["intensity"], row["tflops"], 5)
        space.points.append(axes.transData.transform((row["intensity"], row["tflops"])))
    for line in lines:
        space.take_line(*line.get_data())
    _name_points(axes, rows, space, theme)
    _name_ceilings(axes, labels, space, theme)
    return figure


def _wanted(ceilings: Iterable[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ceilings of the pipes in use; a data sheet's only if no ceiling of the pipe was measured."""
    tensor = [row for row in rows if (row["tensor_flops"] or 0) > 0.5 * row["flops"]]
    pipes = {"dram"} | ({"tensor"} if tensor else set()) | ({"fma"} if len(tensor) < len(rows) else set())
    kept = [ceiling for ceiling in ceilings if ceiling["pipe"] in pipes]
    measured = {ceiling["pipe"] for ceiling in kept if ceiling["measured"]}
    return [ceiling for ceiling in kept if ceiling["measured"] or ceiling["pipe"] not in measured]


def _ridge(bandwidth: float, rate: float) -> float:
    """Return the FLOPs per byte at which `bandwidth` (GB/s) feeds `rate` (TFLOP/s)."""
    return 1e3 * rate / bandwidth


def _roofs(
    xlim: tuple[float, float], speeds: Sequence[float], rates: Sequence[float], y: Sequence[float]
) -> Iterator[float]:
    """Yield the heights of the roofs at the ends of the axis, except those far above the points."""
    highest = max(rates, default=math.inf)
    heights = [*rates, *(min(x * speed / 1e3, highest) for speed in speeds for x in xlim)]
    yield from (height for height in heights if min(y) < height < _NEAR * max(y))


def _decades(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return limits of a log axis around `values`, with room for labels. The axis spans at least `least` decades."""
    low, high = math.log10(min(values)) - 0.2, math.log10(max(values)) + 0.2
    more = max(0.0, least - (high - low)) / 2
    return 10 ** (low - more), 10 ** (high + more)


def _draw_ceilings(
    axes: Any, ceilings: Sequence[Mapping[str, Any]], theme: style.Theme
) -> list[tuple[str, float, float, float]]:
    """Draw the lines. Return for each label its text, a point of its line, and the line's slope in log units."""
    slanted = [ceiling for ceiling in ceilings if ceiling["kind"] == "gbps"]
    level = [ceiling for ceiling in ceilings if ceiling["kind"] == "tflops"]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    highest = max((ceiling["value"] for ceiling in level), default=top)
    widest = max((ceiling["value"] for ceiling in slanted), default=0.0)
    labels = []
    for ceiling in slanted:
        value = ceiling["value"]
        begin = max(left, _ridge(value, bottom))
        end = min(right, _ridge(value, min(top, highest)))
        if begin < end:
            _line(axes, ceiling, (begin, end), (begin * value / 1e3, end * value / 1e3), theme)
            labels.append((f"{ceiling['name']} {ceiling['value']:,.0f} GB/s", begin, begin * value / 1e3, 1.0))
    named: list[tuple[str, float]] = []
    for ceiling in sorted(level, key=lambda one: -float(one["value"])):
        value = ceiling["value"]
        begin = max(left, _ridge(widest, value)) if widest else left
        if begin < right and bottom < value < top:
            _line(axes, ceiling, (begin, right), (value, value), theme)
            text = f"{ceiling['name']} {value:,.3g}"
            if named and named[-1][1] < _APART * value:  # lines that nearly coincide share a label
                text, value = f"{named[-1][0]}, {text}", named.pop()[1]
            named.append((text, value))
    labels += [(f"{text} TFLOP/s", right, value, 0.0) for text, value in named]
    return labels


def _line(
    axes: Any, ceiling: Mapping[str, Any], x: tuple[float, float], y: tuple[float, float], theme: style.Theme
) -> None:
    axes.plot(x, y, color=theme.ink, linewidth=1.3, linestyle="-" if ceiling["measured"] else (0, (4, 3)), zorder=1)


class _FreeSpace:
    """Places text without overlaps: it keeps the boxes in use, in pixels, and tries candidates in order."""

    def __init__(self, figure: Any, axes: Any) -> None:
        self._axes = axes
        self._renderer = figure.canvas.get_renderer()
        inside = axes.get_window_extent(self._renderer)
        self._inside: Box = (inside.x0, inside.y0, inside.x1, inside.y1)
        self.scale = figure.dpi / 72
        self._taken: list[Box] = []
        self.points: list[Any] = []  # in pixels: the points that have names

    def take(self, box: Any) -> None:
        """Keep labels away from a matplotlib box."""
        self._taken.append((box.x0, box.y0, box.x1, box.y1))

    def take_point(self, x: float, y: float, around: float) -> None:
        """Keep labels `around` points away from (x, y) of the data."""
        px, py = self._axes.transData.transform((x, y))
        away = around * self.scale
        self._taken.append((px - away, py - away, px + away, py + away))

    def take_line(self, x: Sequence[float], y: Sequence[float]) -> None:
        """Keep labels off a line that is straight on these axes."""
        for part in range(_LINE_PARTS + 1):
            share = part / _LINE_PARTS
            self.take_point(x[0] ** (1 - share) * x[1] ** share, y[0] ** (1 - share) * y[1] ** share, 1)

    def size(self, text: Any) -> tuple[float, float]:
        box = text.get_window_extent(self._renderer)
        return box.width, box.height

    def put(self, boxes: Iterable[Box], point: Any = None) -> Box:
        """Reserve and return the first of `boxes` that is free, or, if none is free, the box that overlaps least.

        point: the point that the box names, in pixels; boxes nearer to another point are avoided.
        """
        best, least = None, math.inf
        for box in boxes:
            covered = sum(_overlap(box, other) for other in self._taken) + 4 * _outside(box, self._inside)
            if point is not None and any(_distance(box, other) < _distance(box, point) for other in self.points):
                covered += (box[2] - box[0]) * (box[3] - box[1])
            if covered < least:
                best, least = box, covered
            if not covered:
                break
        if best is None:
            raise ValueError("no place was offered")
        self._taken.append(best)
        return best

    def around(self, x: float, y: float, width: float, height: float) -> Iterator[Box]:
        """Yield places for a label of that size around the point (x, y) of the data, near ones first."""
        px, py = self._axes.transData.transform((x, y))
        for distance, angle in itertools.product(_DISTANCES, _ANGLES):
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # The nearest point of the box, not its middle, is `distance` away.
            cx = px + dx * distance * self.scale + width / 2 * max(-1.0, min(1.0, 2 * dx))
            cy = py + dy * distance * self.scale + height / 2 * max(-1.0, min(1.0, 2 * dy))
            yield cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2

    def along(self, y: float, width: float, height: float) -> Iterator[Box]:
        """Yield places above and below a level line at `y`, from the right edge leftwards."""
        _, py = self._axes.transData.transform((self._axes.get_xlim()[0], y))
        gap = 2 * self.scale
        for step in range(6):
            right = self._inside[2] - 6 * self.scale - step * (width + 8 * self.scale)
            for low in (py + gap, py - gap - height):
                yield right - width, low, right, low + height


def _overlap(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _distance(box: Box, point: Any) -> float:
    return math.dist(point, _nearest(box, point))


def _nearest(box: Box, point: Any) -> tuple[float, float]:
    """Return the point of `box` that is nearest to `point`."""
    return min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])


def _outside(box: Box, frame: Box) -> float:
    """Return the area of `box` outside `frame`."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, frame)


def _name_ceilings(
    axes: Any, labels: Sequence[tuple[str, float, float, float]], space: _FreeSpace, theme: style.Theme
) -> None:
    for text, x, y, slope in labels:
        if slope:
            (ax, ay), (bx, by) = axes.transData.transform([(x, y), (10 * x, 10 * y)])
            angle = math.degrees(math.atan2(by - ay, bx - ax))
            lifted = ay + 0.04 * (by - ay) + 3 * space.scale
            at = axes.transData.inverted().transform((ax + 0.04 * (bx - ax), lifted))
            written = axes.text(
                *at,
                text,
                rotation=angle,
                rotation_mode="anchor",
                ha="left",
                va="bottom",
                fontsize=style.SMALL,
                color=theme.ink,
            )
            space.take(written.get_window_extent())
            continue
        written = axes.text(0, 0, text, transform=axes.transAxes, fontsize=style.SMALL, color=theme.ink, va="bottom")
        box = space.put(space.along(y, *space.size(written)))
        written.set_position(axes.transAxes.inverted().transform(box[:2]))


def _name_points(axes: Any, rows: Sequence[Mapping[str, Any]], space: _FreeSpace, theme: style.Theme) -> None:
    """Write a name next to each point, with a thin line if it had to move away."""
    shorten = len({row["family"] for row in rows}) == 1
    for row in rows:
        name = row["variant"] if shorten and row["variant"] else row["range"] or row["kernel"]
        written = axes.text(
            0, 0, style.literal(name), transform=axes.transAxes, fontsize=style.SMALL, color=theme.ink, va="bottom",
            zorder=5,
        )  # fmt: skip
        width, height = space.size(written)
        point = axes.transData.transform((row["intensity"], row["tflops"]))
        box = space.put(space.around(row["intensity"], row["tflops"], width, height), point)
        inside = axes.transAxes.inverted()  # positions in pixels would not survive another resolution
        written.set_position(inside.transform(box[:2]))
        if _distance(box, point) > 12 * space.scale:
            ends = inside.transform([point, _nearest(box, point)])
            axes.plot(*ends.T, color=theme.soft, linewidth=0.6, transform=axes.transAxes, zorder=3)
