"""The picture of a trace: its ranges over time, nested as they were, and beneath them the own time of each."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from cudakit.errors import Refused
from cudakit.show.plots import style

if TYPE_CHECKING:
    from cudakit.trace import Lane, Line, Trace

# What a range of cudakit's own does, told by its name, and the colour for it. What fits none is the user's own.
_KINDS = {
    "start and end": (r"open device|start driver|create context|close device", "#cc79a7"),
    "compile and load": (r"compile .*|NVRTC|(read|write) cache|load .*|plan launch", "#e69f00"),
    "memory": (r"(allocate|free)( pinned)?", "#f0e442"),
    "copies": (r"copy .*|fill", "#56b4e9"),
    "kernels and libraries": (r"launch .*|\w+\.\w+", "#009e73"),
    "waiting": (r"synchronize .*", "#d55e00"),
}
_YOURS = ("your ranges", style.FAINT)

# Of the own times these are shown: so many, and none below so small a share.
_MOST, _LEAST = 16, 0.0005

# Inches of a letter of a bar's label, and of the bars' area at the least; letters of a label beside it at the most.
_LETTER, _WIDTH, _LABEL = 0.073, 7.8, 46
# Inches of the ranges over time at the most: matplotlib writes no picture of just any size.
_HIGHEST = 100.0


def ranges(trace: Trace, path: str | os.PathLike[str], title: str = "") -> None:
    """Draws a trace to `path` (PNG, SVG or PDF, by its ending): its ranges over time, and the own time of each.

    Raises Refused without matplotlib, where the file cannot be written, and where there are no ranges.
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
    figure = style.figure(12, sum(heights) + 2.3)
    above, beneath = figure.subplots(2, 1, height_ratios=heights)
    _draw_nested(above, trace, lanes, depths)
    style.plain(above, title or "ranges over time")
    above.spines["left"].set_visible(False)
    _draw_own(beneath, own, len(lanes) > 1)
    rest = f", the largest {len(own)} of {len(lines)}" if len(own) < len(lines) else ""
    style.plain(beneath, f"own time: within a range, and within none of the ranges in it{rest}")
    beneath.set_title(beneath.get_title(loc="left"), loc="left", fontsize=10, fontweight="normal", color=style.INK)
    used = {_kind(line.path[-1]) for _, line in lines}
    patch = style.load("matplotlib.patches").Patch
    kinds = [*((kind, color) for kind, (_, color) in _KINDS.items()), _YOURS]
    handles = [patch(color=color, label=kind) for kind, color in kinds if (kind, color) in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)
    style.save(figure, path)


def _draw_nested(axes: Any, trace: Trace, lanes: list[Lane], depths: list[int]) -> None:
    """A line of bars for each depth of each thread, time from left to right."""
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
                axes.text(left + took / unit / 2, at, style.literal(span.name), ha="center", va="center", fontsize=9)
        for at, places in bars.items():  # all of a line at once: there may be very many
            axes.broken_barh(places, (at - 0.45, 0.9), facecolors=colors[at], edgecolor="white", linewidth=0.5)
        ticks.append((top + (depth - 1) / 2, style.literal(lane.name)))
        top += depth + 1
    axes.set_xlim(0, whole / unit)
    axes.set_ylim(top - 1.45, -0.55)
    axes.set_yticks([at for at, _ in ticks] if len(lanes) > 1 else [], [name for _, name in ticks] if ticks[1:] else [])
    axes.set_xlabel(f"{name} of the host's clock", color=style.SOFT)


def _draw_own(axes: Any, own: list[tuple[Lane, Line]], several: bool) -> None:
    """A point for each path of ranges at its own time, all runs added up."""
    labels = []
    for at, (lane, line) in enumerate(own):
        color = _kind(line.path[-1])[1]
        axes.plot([line.self_ns / 1e3], [at], "o", color=color, markeredgecolor=style.SOFT, markersize=8)
        told = f"{_time(line.self_ns)}   {100 * line.share:.1f} %"
        place = {"xytext": (10, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(told, (line.self_ns / 1e3, at), color=style.INK, **place)
        times = f" ({line.instances:,} times)" if line.instances > 1 else ""
        name = " > ".join(line.path[-2:])
        name = name if len(name) <= _LABEL else f"{name[: _LABEL - 3]}..."
        labels.append(style.literal((f"{lane.name}: " if several else "") + name + times))
    axes.set_yticks(range(len(own)), labels, fontsize=9)
    axes.set_ylim(len(own) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.2)  # room for the label of the longest
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("us, on a log scale", color=style.SOFT)


def _kind(name: str) -> tuple[str, str]:
    """What a range of this name does, and the colour for it."""
    matching = (kind for kind, (names, _) in _KINDS.items() if re.fullmatch(names, name))
    kind = next(matching, None)
    return _YOURS if kind is None else (kind, _KINDS[kind][1])


def _time(ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.0f} ns"
