"""`pipeline.run`: the arguments become a request, the request a layout, and both a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from cudakit.pipeline.chunk import Progress
from cudakit.pipeline.engine import Execution
from cudakit.pipeline.layout import plan
from cudakit.pipeline.ranges import Range, common
from cudakit.pipeline.refusals import ContentsRefused, FileMissing, FileRefused, OutputBusy, PipelineRefused
from cudakit.pipeline.report import PipelineReport
from cudakit.pipeline.request import Options, RunRequest
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.sinks import as_sink
from cudakit.pipeline.sources import Blocks, Source, as_source
from cudakit.pipeline.tickets import Tickets


def run(
    function: Callable[..., Any],
    sources: Any = (),
    sinks: Any = None,
    *,
    outputs: Any = None,
    count: int | None = None,
    devices: Any = None,
    chunk: int | None = None,
    streams: int = 3,
    memory: int | None = None,
    host_memory: int | None = None,
    readers: int = 1,
    writers: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    finite: bool = False,
    progress: Callable[[Progress], Any] | None = None,
    timeline: bool = False,
    measure: bool | None = None,
) -> PipelineReport:
    """Put every item of `sources` through `function` and give the results to `sinks`.

    function: function(chunk, *inputs, *outputs) queues work on `chunk.stream` that fills the output arrays from the
    input arrays, all on `chunk.device`, of shape (items, *item.shape); it does not wait. The arrays are used again for
    a later chunk, in the stream's order. sources: one source or a tuple of them, of as many items each: numpy arrays,
    memory maps, paths of `.npy` files, folders or lists of them, `Filled`, or one generator of blocks; () for results
    that are made from nothing, with `count`. sinks: one or a tuple: arrays, memory maps, an `.npy` path, a folder, a
    function of (start, stop, items), or None to drop the results once they are on the host; () where there are none.
    outputs: (shape, dtype) of one result, or a list of them, one a sink; unless given, what the sink holds, or else the
    first source's. count: how many items to take; all unless given. devices: a Device or several, to each of which
    chunks go as it is free; the default one unless given. chunk: items; by default 64 MiB of them, fewer where the
    budgets ask for it. streams: on each device. memory: bytes of device memory for the buffers, on each device; half of
    what is free unless given. host_memory: bytes of pinned memory; a quarter of the machine's unless given. readers,
    writers: threads. resume: go on where an earlier run into these sinks stopped, after a kill too. overwrite: begin
    anew, over what is there. finite: refuse results that are not finite. progress: called with a Progress some ten
    times a second. timeline: keep the spans of every chunk. measure: measure the link first, for the bound, which takes
    half a second on a GPU; done where a gigabyte or more is to pass, unless said.

    Returns a PipelineReport. Raises PipelineError, from its cause, for what fails underway. What could not succeed is
    refused before anything is written: PipelineRefused for files (FileMissing, FileOccupied, OutputBusy if another run
    is writing there, ContentsRefused if a resumed run's job or source was changed), ValueError, TypeError, OutOfMemory.
    """
    options = Options(
        chunk, streams, memory, host_memory, readers, writers, resume, overwrite, finite, progress, timeline, measure
    )
    with (
        _refused(sources, sinks),
        contextlib.ExitStack() as undo,
    ):
        given: list[Source | Blocks] = []
        for source in sources if isinstance(sources, tuple) else [sources]:
            given.append(as_source(source))
            undo.callback(given[-1].close)
        into = [as_sink(sink) for sink in (sinks if isinstance(sinks, (tuple, list)) else (sinks,))]
        request = RunRequest.of(function, given, into, outputs, count, devices, options)
        layout = plan(request)
        finished = _open_sinks(request, undo)
        execution = Execution(request, layout, _tickets(request, layout.chunk, finished), finished)
        undo.pop_all()
    return execution.run()


@contextlib.contextmanager
def _refused(sources: Any, sinks: Any) -> Iterator[None]:
    """Raises what the system refuses before the run as PipelineRefused, with what was requested."""
    try:
        yield
    except PipelineRefused:
        raise
    except (OSError, UnicodeError) as error:
        kind: type[PipelineRefused] = FileMissing if isinstance(error, FileNotFoundError) else FileRefused
        if isinstance(error, UnicodeError):
            kind = ContentsRefused
        raise kind(
            f"the pipeline was not started: {type(error).__name__}: {error}. It was to read {_short(sources)} and "
            f"write {_short(sinks)}: check that these exist and can be used"
        ) from error


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 200 and "\n" not in text else type(given).__name__


def _open_sinks(request: RunRequest, undo: contextlib.ExitStack) -> list[list[Range]]:
    """Opens every sink. Returns the ranges of items that each holds already. Raises ValueError for a run that cannot be
    resumed."""
    options = request.options
    if options.resume:
        kept = [sink.forgets for sink in request.sinks if sink.forgets]
        if kept:
            raise ValueError(f"this run cannot be resumed: {kept[0]}")
    finished = []
    for sink, item in zip(request.sinks, request.outputs, strict=True):
        spec = SinkSpec(item, request.total, request.origin, options.resume, options.overwrite)
        try:
            finished.append(sink.open(spec))
        except OutputBusy:  # this very sink may be the one that the other run writes to
            raise
        except BaseException:
            sink.close()
            raise
        undo.callback(sink.close)
    return finished


def _tickets(request: RunRequest, chunk: int, finished: list[list[Range]]) -> Tickets:
    """The chunks that are left: all that some sink does not hold yet."""
    done = finished[0] if finished else []
    for ranges in finished[1:]:
        done = common(done, ranges)
    periods = [source.period for source in request.indexed if source.period]
    return Tickets(request.blocks, request.count, chunk, done, periods)
