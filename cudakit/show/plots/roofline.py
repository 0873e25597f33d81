"""A roofline of a profile: what each rung reaches, under what memory and arithmetic allow at its FLOPs a byte."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cudakit.errors import Refused
from cudakit.profiling import reduction
from cudakit.show.plots import style

# What binds a launch, in the few groups that a picture can tell apart, each with its colour and marker.
_GROUPS = {
    "memory": ("DRAM bandwidth", "L2 bandwidth", "memory latency"),
    "L1 and shared memory": ("L1 data path", "shared memory", "shared memory latency"),
    "arithmetic": ("FMA pipe", "tensor pipe", "instruction issue", "ALU pipe", "special functions"),
    "waiting for results and each other": ("instruction latency", "barriers", "memory fences", "instruction fetch"),
    "an empty chip": ("small grid", "idle lanes"),
}
_COLORS = dict(
    zip(_GROUPS, (*style.COLORS[:1], style.COLORS[2], style.COLORS[1], style.COLORS[3], style.SOFT), strict=True)
)
_MARKERS = dict(zip(_GROUPS, "osD^X", strict=True))

# Where a label may stand around its point, in points and degrees, the best places first.
_DISTANCES = (8, 15, 24, 36, 50, 66, 84)
_ANGLES = (0, 180, 35, -35, 145, -145, 90, -90, 65, -65, 115, -115)

# A line is kept free of labels at so many points of it.
_LINE_PARTS = 150

# Level lines that are no further apart than this factor share a name's place.
_APART = 1.08

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draws a report of `cudakit profile` to `path`. Raises Refused without matplotlib, and for nothing to draw."""
    style.save(picture(report), path)


def picture(report: Mapping[str, Any]) -> Any:
    """The matplotlib figure of a report of `cudakit profile`: a point a range, its launches added up.

    Slanted lines are bandwidths and level ones rates of arithmetic, full where they were measured and dashed where
    they are a data sheet's. Raises Refused without matplotlib, and where no launch has FLOPs and bytes.
    """
    rows = [row for row in reduction.summed(report["rows"]) if row["intensity"] and row["tflops"]]
    if not rows:
        raise Refused("there is nothing to draw: no launch did arithmetic on data from DRAM")
    figure = style.figure(8.6, 5.6)
    axes = figure.subplots()
    ceilings = _wanted(report["ceilings"].values(), rows)
    rates = [ceiling["value"] for ceiling in ceilings if ceiling["kind"] == "tflops"]
    x, y = [row["intensity"] for row in rows], [row["tflops"] for row in rows]
    ridges = [_ridge(one["value"], rate) for one in ceilings if one["kind"] == "gbps" for rate in rates]
    axes.set(xscale="log", yscale="log", xlim=_decades([*x, *ridges], 2.0), ylim=_decades([*y, *rates], 2.0))
    labels = _draw_ceilings(axes, ceilings)
    lines = list(axes.lines)  # those of the ceilings that lie within the axes
    for group, kinds in _GROUPS.items():
        chosen = [row for row in rows if row["binds"] in kinds]
        axes.plot(
            [row["intensity"] for row in chosen], [row["tflops"] for row in chosen], _MARKERS[group],
            color=_COLORS[group], markersize=9, markeredgecolor="white", label=group if chosen else None, zorder=4,
        )  # fmt: skip
    axes.set_xlabel("FLOPs a byte of DRAM traffic", color=style.SOFT)
    axes.set_ylabel("TFLOP/s", color=style.SOFT)
    families = dict.fromkeys(row["family"] for row in rows if row["family"])
    # A line too long would push the axes aside.
    command = textwrap.shorten(report["command"].replace(" --quiet", ""), 75, placeholder=" ...")
    style.plain(
        axes, f"{', '.join(families)} roofline".strip(), f"{command}, {report['device']['name']}, {report['date']}"
    )
    axes.grid(which="major", alpha=0.25)
    legend = axes.legend(title="bound by", loc="best", fontsize=9, title_fontsize=9, framealpha=1.0)
    figure.canvas.draw()  # what is placed below is placed in pixels, which the layout has settled by now
    figure.set_layout_engine("none")
    space = _FreeSpace(figure, axes)
    space.take(legend.get_window_extent())
    for row in rows:
        space.take_point(row["intensity"], row["tflops"], 5)
        space.points.append(axes.transData.transform((row["intensity"], row["tflops"])))
    for line in lines:
        space.take_line(*line.get_data())
    _name_ceilings(axes, labels, space)
    _name_points(axes, rows, space)
    return figure


def _wanted(ceilings: Iterable[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The ceilings of the pipes that these launches use; a data sheet's only of a pipe of which none was measured."""
    tensor = [row for row in rows if (row["tensor_flops"] or 0) > 0.5 * row["flops"]]
    pipes = {"dram"} | ({"tensor"} if tensor else set()) | ({"fma"} if len(tensor) < len(rows) else set())
    kept = [ceiling for ceiling in ceilings if ceiling["pipe"] in pipes]
    measured = {ceiling["pipe"] for ceiling in kept if ceiling["measured"]}
    return [ceiling for ceiling in kept if ceiling["measured"] or ceiling["pipe"] not in measured]


def _ridge(bandwidth: float, rate: float) -> float:
    """FLOPs a byte at which `bandwidth` (GB/s) feeds `rate` (TFLOP/s)."""
    return 1e3 * rate / bandwidth


def _decades(values: Sequence[float], least: float) -> tuple[float, float]:
    """Limits of a log axis around `values` with room for labels, `least` decades at least."""
    low, high = math.log10(min(values)) - 0.35, math.log10(max(values)) + 0.3
    more = max(0.0, least - (high - low)) / 2
    return 10 ** (low - more), 10 ** (high + more)


def _draw_ceilings(axes: Any, ceilings: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float, float]]:
    """Draws the lines. Gives for each label its text, where its line passes, and its slope in decades a decade."""
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
            _line(axes, ceiling, (begin, end), (begin * value / 1e3, end * value / 1e3))
            labels.append((f"{ceiling['name']} {ceiling['value']:,.0f} GB/s", begin, begin * value / 1e3, 1.0))
    named: list[tuple[str, float]] = []
    for ceiling in sorted(level, key=lambda one: -float(one["value"])):
        value = ceiling["value"]
        begin = max(left, _ridge(widest, value)) if widest else left
        if begin < right:
            _line(axes, ceiling, (begin, right), (value, value))
            text = f"{ceiling['name']} {value:,.3g}"
            if named and named[-1][1] < _APART * value:  # lines that are nearly one have their names on one
                text, value = f"{named[-1][0]}, {text}", named.pop()[1]
            named.append((text, value))
    labels += [(f"{text} TFLOP/s", right, value, 0.0) for text, value in named]
    return labels


def _line(axes: Any, ceiling: Mapping[str, Any], x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.plot(x, y, color=style.CEILING, linewidth=1.4, linestyle="-" if ceiling["measured"] else (0, (4, 3)), zorder=1)


class _FreeSpace:
    """Text put where nothing else is: boxes in pixels that are taken, and candidates tried in order."""

    def __init__(self, figure: Any, axes: Any) -> None:
        self._axes = axes
        self._renderer = figure.canvas.get_renderer()
        inside = axes.get_window_extent(self._renderer)
        self._inside: Box = (inside.x0, inside.y0, inside.x1, inside.y1)
        self.scale = figure.dpi / 72
        self._taken: list[Box] = []
        self.points: list[Any] = []  # in pixels: what names belong to

    def take(self, box: Any) -> None:
        """Keeps labels away from a matplotlib box."""
        self._taken.append((box.x0, box.y0, box.x1, box.y1))

    def take_point(self, x: float, y: float, around: float) -> None:
        """Keeps labels `around` points away from (x, y) of the data."""
        px, py = self._axes.transData.transform((x, y))
        away = around * self.scale
        self._taken.append((px - away, py - away, px + away, py + away))

    def take_line(self, x: Sequence[float], y: Sequence[float]) -> None:
        """Keeps labels off a line that is straight on these axes."""
        for part in range(_LINE_PARTS + 1):
            share = part / _LINE_PARTS
            self.take_point(x[0] ** (1 - share) * x[1] ** share, y[0] ** (1 - share) * y[1] ** share, 1)

    def size(self, text: Any) -> tuple[float, float]:
        box = text.get_window_extent(self._renderer)
        return box.width, box.height

    def put(self, boxes: Iterable[Box], point: Any = None) -> Box:
        """The first of `boxes` that is free, or the one that covers least; it is taken from then on.

        point: in pixels, what the box is to name: one that stands nearer to another point would be taken for its name.
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
        """Places for a label of that size about the point (x, y) of the data, near ones first."""
        px, py = self._axes.transData.transform((x, y))
        for distance, angle in itertools.product(_DISTANCES, _ANGLES):
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # The nearest point of the box, not its middle, is `distance` away.
            cx = px + dx * distance * self.scale + width / 2 * max(-1.0, min(1.0, 2 * dx))
            cy = py + dy * distance * self.scale + height / 2 * max(-1.0, min(1.0, 2 * dy))
            yield cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2

    def along(self, y: float, width: float, height: float) -> Iterator[Box]:
        """Places above and under a level line at `y`, from the right edge leftwards."""
        _, py = self._axes.transData.transform((self._axes.get_xlim()[0], y))
        gap = 2 * self.scale
        for step in range(6):
            right = self._inside[2] - 6 * self.scale - step * (width + 8 * self.scale)
            for low in (py + gap, py - gap - height):
                yield right - width, low, right, low + height


def _overlap(one: Box, other: Box) -> float:
    """The area two boxes share."""
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _distance(box: Box, point: Any) -> float:
    return math.dist(point, _nearest(box, point))


def _nearest(box: Box, point: Any) -> tuple[float, float]:
    """The point of `box` that is nearest to `point`."""
    return min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])


def _outside(box: Box, frame: Box) -> float:
    """The area of `box` that lies out of `frame`."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, frame)


def _name_ceilings(axes: Any, labels: Sequence[tuple[str, float, float, float]], space: _FreeSpace) -> None:
    for text, x, y, slope in labels:
        if slope:
            (ax, ay), (bx, by) = axes.transData.transform([(x, y), (10 * x, 10 * y)])
            angle = math.degrees(math.atan2(by - ay, bx - ax))
            at = axes.transData.inverted().transform((ax + 0.04 * (bx - ax), ay + 0.04 * (by - ay)))
            written = axes.text(
                *at,
                text,
                rotation=angle,
                rotation_mode="anchor",
                ha="left",
                va="bottom",
                fontsize=9,
                color=style.CEILING,
            )
            space.take(written.get_window_extent())
            continue
        written = axes.text(0, 0, text, transform=axes.transAxes, fontsize=9, color=style.CEILING, va="bottom")
        box = space.put(space.along(y, *space.size(written)))
        written.set_position(axes.transAxes.inverted().transform(box[:2]))


def _name_points(axes: Any, rows: Sequence[Mapping[str, Any]], space: _FreeSpace) -> None:
    """A name beside each point, with a thin line to it where it had to move away."""
    shorten = len({row["family"] for row in rows}) == 1
    for row in rows:
        name = row["variant"] if shorten and row["variant"] else row["range"] or row["kernel"]
        written = axes.text(0, 0, style.literal(name), transform=axes.transAxes, fontsize=9, va="bottom", zorder=5)
        width, height = space.size(written)
        point = axes.transData.transform((row["intensity"], row["tflops"]))
        box = space.put(space.around(row["intensity"], row["tflops"], width, height), point)
        inside = axes.transAxes.inverted()  # positions in pixels would not survive another resolution
        written.set_position(inside.transform(box[:2]))
        if _distance(box, point) > 12 * space.scale:
            ends = inside.transform([point, _nearest(box, point)])
            axes.plot(*ends.T, color=style.SOFT, linewidth=0.6, transform=axes.transAxes, zorder=3)
