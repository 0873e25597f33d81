"""The timeline of a pipeline: one lane per copy engine, for kernels, and per reading or writing thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cudakit.errors import Refused
from cudakit.show.plots import style

if TYPE_CHECKING:
    from cudakit.pipeline import ChunkSpan, PipelineReport

_DRAWN = 24  # chunks
_STAGES = {
    "read": "read",
    "h2d": "copy engine\nhost to device",
    "compute": "kernels",
    "d2h": "copy engine\ndevice to host",
    "write": "write",
}


def timeline(spans: Sequence[ChunkSpan], path: str, title: str, done: PipelineReport | None = None) -> None:
    """Draw a pipeline's spans to `path`: one lane per engine and thread, time from left to right, coloured by stream.

    The time between a copy's two events includes its wait for the copy engine. An engine carries out one copy at a
    time, so a copy is drawn from the end of the one before it. Each device has one engine per direction. For a long
    run, the chunks in its middle are drawn.

    Args:
        spans: `PipelineReport.spans` of a run with `timeline=True`.
        path: The picture; its ending names the format. `x.dark.png` is drawn for dark pages.
        title: The title, without the range of chunks.
        done: The run's report, whose rates and measured link are stated below the title.

    Raises:
        Refused: If there are no spans, or without matplotlib.
    """
    if not spans:
        raise Refused("there is nothing to draw: the pipeline kept no timeline")
    chunks = 1 + max(span.chunk for span in spans)
    first = max(0, (chunks - _DRAWN) // 2)
    shown = range(first, first + _DRAWN)
    # The first copy drawn begins at the end of a copy that is not drawn.
    lanes = {
        name: [bar for bar in bars if bar.chunk in shown]
        for name, bars in _lanes(spans, 1 if done is None else len(done.devices)).items()
    }
    lanes = {name: bars for name, bars in lanes.items() if bars}
    theme = style.theme_of(path)
    streams = {span.chunk: _number(span) for span in spans if span.lane.startswith("stream")}
    colors = {stream: theme.lines[place % len(theme.lines)] for place, stream in enumerate(sorted({*streams.values()}))}
    figure = style.figure(1.45 + 0.42 * len(lanes), theme)
    axes = figure.subplots()
    for place, bars in enumerate(lanes.values()):
        axes.broken_barh(
            [(bar.begin * 1e3, (bar.end - bar.begin) * 1e3) for bar in bars], (place - 0.34, 0.68),
            facecolors=[colors.get(streams.get(bar.chunk, -1), theme.peer) for bar in bars], edgecolor=theme.page,
            linewidth=0 if bars[0].stage == "compute" else 0.5,
        )  # fmt: skip
    axes.set_yticks(range(len(lanes)), list(lanes), color=theme.ink)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.margins(x=0.01)
    axes.set_xlabel("time since the run began, ms")
    axes.grid(axis="x", color=theme.faint, alpha=0.6, linewidth=0.6)
    some = f"chunks {first} to {first + _DRAWN - 1} of {chunks}" if chunks > _DRAWN else f"{chunks} chunks"
    style.plain(axes, title, "; ".join([some, *_rates(done)]), theme)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    patch = style.load("matplotlib.patches").Patch
    handles = [patch(color=color, label=f"stream {stream}") for stream, color in colors.items()]
    if handles:  # a simulated device reports no times of its streams
        style.legend(figure, theme, handles=handles, loc="outside lower right", ncols=min(len(handles), 6))
    style.save(figure, path)


def _lanes(spans: Sequence[ChunkSpan], devices: int) -> dict[str, list[ChunkSpan]]:
    """Return the bars of each lane by its name, in the order of the stages."""
    found: dict[str, list[ChunkSpan]] = {}
    for stage, name in _STAGES.items():
        chosen = sorted((span for span in spans if span.stage == stage), key=lambda span: (span.end, span.begin))
        if stage in ("read", "write"):
            threads = sorted({_number(span) for span in chosen})
            for thread in threads:
                label = f"{stage} {thread}" if len(threads) > 1 else f"{name} (host)"
                found[label] = [span for span in chosen if _number(span) == thread]
            continue
        engines: dict[int, list[ChunkSpan]] = {}
        for span in chosen:
            # Streams are dealt to the devices in turn.
            bars = engines.setdefault(_number(span) % devices, [])
            busy = bars[-1].end if bars and stage != "compute" else span.begin
            bars.append(replace(span, begin=min(max(span.begin, busy), span.end)))
        for engine, bars in sorted(engines.items()):
            found[name if devices == 1 else f"{name}, gpu {engine}"] = bars
    return found


def _number(span: ChunkSpan) -> int:
    """The number of a span's stream, or of its reading or writing thread."""
    return int(re.sub(r"\D", "", span.lane) or 0)


def _rates(done: PipelineReport | None) -> list[str]:
    """The rates of a run, and the fraction of the measured link's bandwidth that it reached."""
    if done is None or done.link is None or not done.seconds:
        return []
    share = done.link.seconds(done.bytes_in, done.bytes_out) / done.seconds
    return [
        f"{done.gbps_in:.1f} GB/s in, {done.gbps_out:.1f} GB/s out",
        f"{100 * share:.0f} % of the link's measured bandwidth",
    ]
