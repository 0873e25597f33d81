"""The timeline of a pipeline: a line for each thread and stream, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudakit.errors import Refused
from cudakit.show.plots import style

if TYPE_CHECKING:
    from cudakit.pipeline import ChunkSpan

_DRAWN = 36
_LANES = ("read", "stream", "write")
_STAGES = {"read": "#4c78a8", "h2d": "#72b7b2", "compute": "#e45756", "d2h": "#eeca3b", "write": "#b279a2"}


def _place(lane: str) -> tuple[int, int, str]:
    """Where a line stands: by its kind, then by its number, stream 2 above stream 10."""
    kind, _, number = lane.partition(" ")
    return _LANES.index(kind), int(number) if number.isdigit() else -1, number


def timeline(spans: Sequence[ChunkSpan], path: str, title: str) -> None:
    """Draws a pipeline's spans to `path`: a line for each thread and stream, time from left to right.

    Of a long run the chunks in its middle are drawn, as many as can be told from each other.
    """
    if not spans:
        raise Refused("there is nothing to draw: the pipeline kept no timeline")
    chunks = 1 + max(span.chunk for span in spans)
    first = max(0, (chunks - _DRAWN) // 2)
    spans = [span for span in spans if first <= span.chunk < first + _DRAWN]
    if chunks > _DRAWN:
        title += f": chunks {first} to {first + _DRAWN - 1} of {chunks}"
    lanes = sorted({span.lane for span in spans}, key=_place)
    figure = style.figure(13, 1.5 + 0.45 * len(lanes))
    axes = figure.subplots()
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
    axes.set_xlabel("ms since the run began", color=style.SOFT)
    style.plain(axes, title)
    axes.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(_STAGES), frameon=False)
    style.save(figure, path)
