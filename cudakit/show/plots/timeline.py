"""The timeline of a pipeline: one lane per copy engine, for kernels, and per reading or writing thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    """Draw a pipeline's spans to `path`: one lane per engine and thread, time from left to right.

    The time between a copy's two events includes its wait for the copy engine. An engine carries out one copy at a
    time, so a copy is drawn from the end of the one before it. Each device has one engine per direction. Of a long
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
    spans = [span for span in spans if first <= span.chunk < first + _DRAWN]
    devices = 1 if done is None else len(done.devices)
    lanes = _lanes(spans, devices)
    theme = style.theme_of(path)
    colors = {
        "read": theme.peer, "h2d": theme.lines[0], "compute": theme.accent, "d2h": theme.lines[4], "write": theme.peer,
    }  # fmt: skip
    figure = style.figure(1.15 + 0.42 * len(lanes), theme)
    axes = figure.subplots()
    for place, (stage, bars) in enumerate(lanes.values()):
        axes.broken_barh(
            [(begin * 1e3, (end - begin) * 1e3) for begin, end in bars], (place - 0.34, 0.68),
            facecolors=colors[stage], edgecolor=theme.page, linewidth=0 if stage == "compute" else 0.5,
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
    style.save(figure, path)


def _lanes(spans: Sequence[ChunkSpan], devices: int) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """The stage and the bars of each lane by its name, in the order of the stages."""
    found: dict[str, tuple[str, list[tuple[float, float]]]] = {}
    for stage, name in _STAGES.items():
        chosen = sorted((span for span in spans if span.stage == stage), key=lambda span: (span.end, span.begin))
        if stage in ("read", "write"):
            threads = sorted({span.lane for span in chosen}, key=lambda lane: int(re.sub(r"\D", "", lane) or 0))
            for thread in threads:
                label = thread if len(threads) > 1 else f"{name} (host)"
                found[label] = stage, [(span.begin, span.end) for span in chosen if span.lane == thread]
            continue
        engines: dict[int, list[tuple[float, float]]] = {}
        for span in chosen:
            # Streams are dealt to the devices in turn.
            engine = int(re.sub(r"\D", "", span.lane) or 0) % devices
            bars = engines.setdefault(engine, [])
            busy = bars[-1][1] if bars and stage != "compute" else span.begin
            bars.append((min(max(span.begin, busy), span.end), span.end))
        for engine, bars in sorted(engines.items()):
            found[name if devices == 1 else f"{name}, gpu {engine}"] = stage, bars
    return found


def _rates(done: PipelineReport | None) -> list[str]:
    """The rates of a run, and the fraction that it reached of what its measured link allows."""
    if done is None or not done.seconds:
        return []
    rates = [f"{done.gbps_in:.1f} GB/s in, {done.gbps_out:.1f} GB/s out"]
    if done.link is not None:
        share = done.link.seconds(done.bytes_in, done.bytes_out) / done.seconds
        rates.append(f"{100 * share:.0f} % of the link's measured bandwidth")
    return rates
