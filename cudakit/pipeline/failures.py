"""The error of a run that stopped: the chunk, the stage, and the results that are kept."""

from __future__ import annotations

from collections.abc import Sequence

from cudakit.errors import OutOfMemory
from cudakit.pipeline.report import PipelineError, PipelineReport
from cudakit.pipeline.request import RunRequest
from cudakit.pipeline.sink import Sink
from cudakit.pipeline.state import Failure

_STAGES = {
    "read": "reading",
    "copy": "its copies",
    "compute": "the function",
    "device": "its work on the device",
    "write": "writing its result",
}


def error_of(
    failure: Failure, request: RunRequest, report: PipelineReport, queued: int, finished: str
) -> PipelineError:
    """Return the error that states a failure. queued: the last chunk that was queued. finished: from `kept`."""
    ticket, error = failure.ticket, failure.error
    last = max(ticket.stop - 1, ticket.start)
    names = f"items {ticket.start:,} to {last:,}"
    if request.origin.named:
        names += f", {request.origin.label(ticket.start)!r} to {request.origin.label(last)!r}"
    advice = ""
    if isinstance(error, OutOfMemory):
        advice = (
            " The function's own allocations come on top of the pipeline's buffers: pass a smaller chunk= or memory=."
        )
    if failure.stage == "device" and queued > ticket.index:
        names += f"; or a later chunk up to {queued}, queued at the same time"
    return PipelineError(
        f"chunk {ticket.index} ({names}) failed in {_STAGES[failure.stage]}: {type(error).__name__}: {error}."
        f"{advice} {finished}.",
        chunk=ticket.index, start=ticket.start, stop=ticket.stop, stage=failure.stage, report=report,
    )  # fmt: skip


def kept(sinks: Sequence[Sink], chunks: int, skipped: int) -> str:
    """Describe the finished results of a stopped run. chunks: those that it finished. skipped: items of an earlier
    run."""
    places = [sink.where for sink in sinks if sink.where]
    text = f"{chunks:,} chunks of this run are finished"
    if places and (chunks or skipped):
        text += f", in {', '.join(places)}"
        if not any(sink.forgets for sink in sinks):
            text += "; pass resume=True to continue"
    return text
