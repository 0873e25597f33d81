"""The picture of a trace: its nested ranges over time, and below them the self time of each."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from cudakit.errors import Refused
from cudakit.show.plots import style

if TYPE_CHECKING:
    from cudakit.trace import Lane, Line, Trace

# The kinds of cudakit's own ranges: the pattern of their names, and the colour. Any other range is the user's.
_KINDS = {
    "start and end": (r"open device|start driver|create context|close device", "#cc79a7"),
    "compile and load": (r"compile .*|NVRTC|(read|write) cache|load .*|plan launch", "#e69f00"),
    "memory": (r"(allocate|free)( pinned)?", "#e3d43f"),
    "copies": (r"copy .*|fill", "#56b4e9"),
    "kernels and libraries": (r"launch .*|\w+\.\w+", "#009e73"),
    "waiting": (r"synchronize .*", "#d55e00"),
}
_YOURS = ("your ranges", "#b9c2cb")

# The maximum number of self times shown, and the smallest fraction shown.
_MOST, _LEAST = 12, 0.0005

# Width of one letter in a bar and minimum width of the bars' area, in inches; maximum letters of a label next to it.
_LETTER, _WIDTH, _LABEL = 0.075, 5.3, 40
# Maximum height of the ranges over time, in inches: matplotlib limits the size of a picture.
_HIGHEST = 83.0


def ranges(trace: Trace, path: str | os.PathLike[str], title: str = "") -> None:
    """Draw a trace to `path` (PNG, SVG or PDF, by its ending): its ranges over time, and the self time of each.

    `x.dark.png` is drawn for dark pages. Raises Refused without matplotlib, if the file cannot be written, and if there
    are no ranges.
    """
    path = os.fspath(path)
    style.check(path, "picture to")
    lanes = [lane for lane in trace.lanes if lane.spans]
    if not lanes:
        raise Refused("there is nothing to draw: no range ended in this trace. Run work in its block")
    depths = [max(len(span.path) for span in lane.spans) for lane in lanes]
    lines = [(lane, line) for lane in lanes for line in trace.lines(lane)]
    lines.sort(key=lambda pair: -pair[1].self_ns)
    own = [pair for pair in lines if pair[1].share >= _LEAST][:_MOST]
    heights = [min(0.4 * (sum(depths) + len(lanes) - 1) + 0.2, _HIGHEST), 0.26 * len(own) + 0.2]
    theme = style.theme_of(path)
    figure = style.figure(sum(heights) + 2.4, theme)
    above, beneath = figure.subplots(2, 1, height_ratios=heights)
    _draw_nested(above, trace, lanes, depths, theme)
    style.plain(above, title or "ranges over time", "above: nested ranges over time; below: self time of each", theme)
    above.spines["left"].set_visible(False)
    _draw_own(beneath, own, len(lanes) > 1, theme)
    style.frame(beneath, theme)
    rest = f", the largest {len(own)} of {len(lines)}" if len(own) < len(lines) else ""
    text = f"self time: time in a range, without the ranges nested in it{rest}"
    beneath.set_title(text, loc="left", fontsize=style.NORMAL, color=theme.ink)
    used = {_kind(line.path[-1]) for _, line in lines}
    patch = style.load("matplotlib.patches").Patch
    kinds = [*((kind, color) for kind, (_, color) in _KINDS.items()), _YOURS]
    handles = [patch(color=color, label=kind) for kind, color in kinds if (kind, color) in used]
    style.legend(figure, theme, handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    style.save(figure, path)


def _draw_nested(axes: Any, trace: Trace, lanes: list[Lane], depths: list[int], theme: style.Theme) -> None:
    """Draw one line of bars per depth of each thread, time from left to right."""
    until = trace.duration_ns
    begin = min(span.begin for lane in lanes for span in lane.spans)
    end = max(until if span.end is None else span.end for lane in lanes for span in lane.spans)
    whole = max(end - begin, 1)
    unit, name = (1e6, "ms") if whole >= 2e6 else (1e3, "us")
    top, ticks = 0, []
    for lane, depth in zip(lanes, depths, strict=True):
        bars: dict[int, list[tuple[float, float]]] = {}
        colors: dict[int, list[str]] = {}
        for span in lane.spans:
            took = (until if span.end is None else span.end) - span.begin
            left, at = (span.begin - begin) / unit, top + len(span.path) - 1
            bars.setdefault(at, []).append((left, took / unit))
            colors.setdefault(at, []).append(_kind(span.name)[1])
            if took / whole * _WIDTH > _LETTER * (len(span.name) + 2):
                looks = {"ha": "center", "va": "center", "fontsize": style.SMALL, "color": "#10151a"}
                axes.text(left + took / unit / 2, at, style.literal(span.name), **looks)
        for at, places in bars.items():  # all of a line at once: there may be very many
            axes.broken_barh(places, (at - 0.45, 0.9), facecolors=colors[at], edgecolor=theme.page, linewidth=0.4)
        ticks.append((top + (depth - 1) / 2, style.literal(lane.name)))
        top += depth + 1
    axes.set_xlim(0, whole / unit)
    axes.set_ylim(top - 1.45, -0.55)
    axes.set_yticks([at for at, _ in ticks] if len(lanes) > 1 else [], [name for _, name in ticks] if ticks[1:] else [])
    axes.set_xlabel(f"host time, {name}")


def _draw_own(axes: Any, own: list[tuple[Lane, Line]], several: bool, theme: style.Theme) -> None:
    """Draw one point per path of ranges, at its self time summed over all runs."""
    labels = []
    for at, (lane, line) in enumerate(own):
        color = _kind(line.path[-1])[1]
        axes.plot([line.self_ns / 1e3], [at], "o", color=color, markeredgecolor=theme.soft, markersize=6.5)
        told = f"{_time(line.self_ns)}   {100 * line.share:.1f} %"
        place = {"xytext": (10, 0), "textcoords": "offset points", "va": "center", "fontsize": style.SMALL}
        axes.annotate(told, (line.self_ns / 1e3, at), color=theme.ink, **place)
        times = f" ({line.instances:,} times)" if line.instances > 1 else ""
        name = " > ".join(line.path[-2:])
        name = name if len(name) <= _LABEL else f"{name[: _LABEL - 3]}..."
        labels.append(style.literal((f"{lane.name}: " if several else "") + name + times))
    axes.set_yticks(range(len(own)), labels)
    axes.set_ylim(len(own) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.32)  # room for the label of the longest
    style.log_ticks(axes.xaxis)
    axes.grid(axis="x", color=theme.faint, alpha=0.6)
    axes.set_xlabel("self time, us (log scale)")


def _kind(name: str) -> tuple[str, str]:
    """Return the kind of a range of this name, and its colour."""
    matching = (kind for kind, (names, _) in _KINDS.items() if re.fullmatch(names, name))
    kind = next(matching, None)
    return _YOURS if kind is None else (kind, _KINDS[kind][1])


def _time(ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.0f} ns"
