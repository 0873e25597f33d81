"""Pictures of a report. Needs the `plot` extra (matplotlib), which is imported when a picture is asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.cli import Refused, check_destination, shape_text
from cudakit.tables import device_line

if TYPE_CHECKING:
    from cudakit.pipeline import Span


def plot(report: Mapping[str, Any], path: str) -> None:
    """Draws one family's report to `path` (PNG, SVG or PDF, by its ending): a line a variant against the row length.

    A GPU's report is drawn in GB/s with the copy as its ceiling, a simulated device's in bytes moved an element.
    """
    matplotlib = _matplotlib()
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")

    timed = report["device"]["kind"] == "gpu"
    shapes = _shapes(report)
    if not shapes:
        raise Refused("there is nothing to draw: the report has no rows")
    # Shapes that differ in their last axis only are drawn to scale; a mixed list has a place each.
    to_scale = len({shape[:-1] for shape in shapes}) == 1 and len(shapes) > 1
    places = [shape[-1] for shape in shapes] if to_scale else list(range(len(shapes)))
    figure, axes = pyplot.subplots(figsize=(11, 6.5), layout="constrained")
    copies = {tuple(copy["shape"]): copy["gbps"] for copy in report["ceilings"].get("copy", [])}
    if copies:
        axes.plot(
            places, [copies.get(shape) for shape in shapes], color="black", linestyle="--", label="copy (ceiling)"
        )
    for variant, values in _lines(report, timed).items():
        peer = variant == "cpu" or variant.startswith("peer:")
        style = {"linestyle": ":", "marker": "x"} if peer else {"linestyle": "-", "marker": "o"}
        axes.plot(places, [values.get(shape) for shape in shapes], markersize=4, label=variant, **style)
    if to_scale:
        axes.set_xscale("log", base=2)
        axes.set_xlabel(f"row length N, shape {shape_text(shapes[0][:-1])}xN")
    else:
        axes.set_xlabel("shape, by row length")
    names = [str(shape[-1]) if to_scale else shape_text(shape) for shape in shapes]
    axes.set_xticks(places, names, rotation=45, ha="right")
    axes.set_ylabel("GB/s" if timed else "bytes of global memory moved an element (counted, not timed)")
    if not timed:
        axes.set_yscale("log")
    axes.set_title(f"{report['rows'][0]['family']} on {device_line(report)}", fontsize=10)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")  # beside the lines, not over them
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def timeline(spans: Sequence[Span], path: str, title: str) -> None:
    """Draws a pipeline's spans to `path`: a line for each thread and stream, time from left to right.

    Of a long run the chunks in its middle are drawn, as many as can be told from each other.
    """
    matplotlib = _matplotlib()
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    if not spans:
        raise Refused("there is nothing to draw: the pipeline kept no timeline")
    chunks = 1 + max(span.chunk for span in spans)
    first = max(0, (chunks - _DRAWN) // 2)
    spans = [span for span in spans if first <= span.chunk < first + _DRAWN]
    if chunks > _DRAWN:
        title += f": chunks {first} to {first + _DRAWN - 1} of {chunks}"
    lanes = sorted({span.lane for span in spans}, key=lambda lane: (_LANES.index(lane.split()[0]), lane))
    figure, axes = pyplot.subplots(figsize=(13, 1.2 + 0.45 * len(lanes)), layout="constrained")
    for stage, color in _STAGES.items():
        chosen = [span for span in spans if span.stage == stage]
        if chosen:
            axes.barh(
                [lanes.index(span.lane) for span in chosen],
                [(span.end - span.begin) * 1e3 for span in chosen],
                left=[span.begin * 1e3 for span in chosen],
                color=color, edgecolor="white", linewidth=0.3, label=stage,
            )  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel("ms since the run began")
    axes.set_title(title, fontsize=10)
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


_DRAWN = 36
_LANES = ("read", "stream", "write")
_STAGES = {"read": "#4c78a8", "h2d": "#72b7b2", "compute": "#e45756", "d2h": "#eeca3b", "write": "#b279a2"}


def check(path: str) -> None:
    """Raises Refused where `plot` could not draw to `path`: found out before anything is measured for it."""
    check_destination("--plot", path)
    _matplotlib()
    backends: Any = importlib.import_module("matplotlib.backend_bases")
    known = sorted(backends.FigureCanvasBase.get_supported_filetypes())
    ending = os.path.splitext(path)[1][1:]
    if ending and ending.lower() not in known:
        raise Refused(f"--plot {path}: matplotlib does not write .{ending} files. Use one of {', '.join(known)}")


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise Refused("--plot needs matplotlib: pip install 'cudakit[plot]'") from error


def _shapes(report: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The shapes measured, by their last axis, then by size."""
    return sorted({tuple(row["shape"]) for row in report["rows"]}, key=lambda shape: (shape[-1], shape))


def _lines(report: Mapping[str, Any], timed: bool) -> dict[str, dict[tuple[int, ...], float]]:
    lines: dict[str, dict[tuple[int, ...], float]] = {}
    for row in report["rows"]:
        value = row["gbps"] if timed else (row["counters"] or {}).get("bytes_per_element")
        if value is not None and row["ok"]:
            lines.setdefault(row["variant"], {})[tuple(row["shape"])] = value
    return lines
