"""`pipeline.run`: check the arguments (`RunRequest`), size the buffers (`plan`), and run (`Execution`)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from cudakit.pipeline.bar import progress_bar
from cudakit.pipeline.chunk import Progress
from cudakit.pipeline.cluster import ClusterRun, specs_of
from cudakit.pipeline.engine import Execution
from cudakit.pipeline.given import as_source
from cudakit.pipeline.layout import plan, unit_of
from cudakit.pipeline.ranges import Range, aligned, common
from cudakit.pipeline.refusals import ContentsRefused, FileMissing, FileRefused, OutputBusy, PipelineRefused
from cudakit.pipeline.report import PipelineReport
from cudakit.pipeline.request import Options, RunRequest, devices_of
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.sinks import as_sink
from cudakit.pipeline.sources import Blocks, Source
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
    progress: Callable[[Progress], Any] | bool | None = None,
    timeline: bool = False,
    measure: bool | None = None,
    on: Any = None,
) -> PipelineReport:
    """Apply `function` to all items of `sources`, chunk by chunk, and write the results to `sinks`.

    Args:
        function: `function(chunk, *inputs, *outputs)` queues work on `chunk.stream` that computes the output arrays
            from the input arrays, and does not wait. The arrays are on `chunk.device` and have the shape (items,
            *item.shape). They are reused for later chunks of the same stream, in stream order.
        sources: One source, or a tuple of sources with equal numbers of items: numpy arrays, memory maps, paths or URLs
            of `.npy` files and of Zarr arrays, folders or lists of `.npy` files, `Filled`, or one generator of blocks.
            () if results need no input; then pass `count`.
        sinks: One sink, or a tuple: arrays, memory maps, a path of an `.npy` file, a path or URL of a Zarr array (its
            name ends in .zarr) or of a folder, a function of (start, stop, items), or None to drop the results after
            the copy to the host. () if there are no results.
        outputs: (shape, dtype) of one result, or a list with one pair per sink; if None, those of the sink, or else of
            the first source.
        count: Number of items to process; all if None.
        devices: One Device or several; each chunk goes to the device with the least queued work. The default device if
            None. With `on`: the names of the devices that each worker opens, such as "gpu:0"; if None, each worker
            opens its part of its host's GPUs.
        chunk: Items per chunk; if None, 64 MiB of items, or fewer if the memory budgets require it. It must be a
            multiple of the items per stored chunk of each sink; by default it is also one of each source's, if that
            fits the memory budgets.
        streams: Streams per device.
        memory: Device memory for the buffers, in bytes per device; half of the free memory if None.
        host_memory: Pinned memory for the buffers, in bytes; a quarter of the machine's available memory if None.
        readers, writers: Number of threads.
        resume: Continue an earlier run into the same sinks that stopped or was killed.
        overwrite: Start again, and replace existing results.
        finite: Stop with an error if a result is not finite.
        progress: True for a bar on the terminal's standard error; or a function that is called with a `Progress` about
            ten times per second.
        timeline: Record the spans of every chunk in the report.
        measure: Measure the link before and after the run, for the report's bound, which takes a second on a GPU; if
            None, only if a gigabyte or more is copied. With `on`: if True, each worker measures its link.
        on: A `dask.distributed.Client`, to run in its cluster's workers. The sources and sinks must be such that every
            worker can open them: paths on shared file systems, URLs, `Filled`. `chunk`, `streams`, `memory`, `readers`
            and `writers` are those of each worker; `host_memory` is by default divided among the workers of a host.

    Returns:
        The report of the run.

    Raises:
        PipelineError: If the run fails; its `__cause__` is the failure.
        PipelineRefused: If a file or folder cannot be used, before anything is written: FileMissing, FileOccupied,
            OutputBusy if another run is writing there, or ContentsRefused if the job or a source of a resumed run has
            changed.
        ValueError: If arguments do not fit each other.
        TypeError: If an argument has a wrong type.
        OutOfMemory: If the buffers cannot be allocated.
    """
    with contextlib.ExitStack() as bar:
        tell = bar.enter_context(progress_bar()) if progress is True else progress or None
        options = Options(
            chunk, streams, memory, host_memory, readers, writers, resume, overwrite, finite, tell, timeline, measure
        )
        return _started(function, sources, sinks, outputs, count, devices, options, on).run()


def _started(
    function: Callable[..., Any], sources: Any, sinks: Any, outputs: Any, count: int | None, devices: Any,
    options: Options, on: Any,
) -> Execution | ClusterRun:  # fmt: skip
    """Check the arguments and open the sinks. Returns the run; after an error, everything is closed."""
    with _refused(sources, sinks), contextlib.ExitStack() as undo:
        given: list[Source | Blocks] = []
        for source in sources if isinstance(sources, tuple) else [sources]:
            given.append(as_source(source))
            undo.callback(given[-1].close)
        into = [as_sink(sink) for sink in (sinks if isinstance(sinks, (tuple, list)) else (sinks,))]
        if on is not None:
            request = RunRequest.of(function, given, into, outputs, count, [], options)
            cluster = ClusterRun(on, request, specs_of(devices))
            cluster.prepare(_open_sinks(request, undo))
            undo.pop_all()
            return cluster
        request = RunRequest.of(function, given, into, outputs, count, devices_of(devices), options)
        layout = plan(request)  # a request that cannot fit opens no sink
        finished = _open_sinks(request, undo)
        layout = plan(request) if any(sink.unit > 1 for sink in request.sinks) else layout
        execution = Execution(request, layout, _tickets(request, layout.chunk, finished), finished)
        undo.pop_all()
        return execution


@contextlib.contextmanager
def _refused(sources: Any, sinks: Any) -> Iterator[None]:
    """Convert errors of the system before the run to PipelineRefused, which states what was requested."""
    try:
        yield
    except PipelineRefused:
        raise
    except (OSError, UnicodeError) as error:
        kind: type[PipelineRefused] = FileMissing if isinstance(error, FileNotFoundError) else FileRefused
        if isinstance(error, UnicodeError):
            kind = ContentsRefused
        raise kind(
            f"the pipeline was not started: {type(error).__name__}: {error}. Check that its sources, "
            f"{_short(sources)}, and its sinks, {_short(sinks)}, exist and can be used"
        ) from error


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 200 and "\n" not in text else type(given).__name__


def _open_sinks(request: RunRequest, undo: contextlib.ExitStack) -> list[list[Range]]:
    """Open every sink, and return the ranges of items that each already has. Raises ValueError if `resume` was
    requested for a run that cannot be resumed."""
    options = request.options
    if options.resume:
        kept = [sink.forgets for sink in request.sinks if sink.forgets]
        if kept:
            raise ValueError(f"this run cannot be resumed: {kept[0]}")
    finished = []
    for sink, item in zip(request.sinks, request.outputs, strict=True):
        spec = SinkSpec(
            item, request.total, request.origin, options.resume, options.overwrite, options.chunk,
            math.lcm(*(source.unit for source in request.indexed)),
        )  # fmt: skip
        try:
            finished.append(sink.open(spec))
        except OutputBusy:  # not closed: the other run may be writing to the same sink object
            raise
        except BaseException:
            sink.close()
            raise
        undo.callback(sink.close)
    return finished


def _tickets(request: RunRequest, chunk: int, finished: list[list[Range]]) -> Tickets:
    """Return the remaining chunks: those with items that at least one sink does not have."""
    done = finished[0] if finished else []
    for ranges in finished[1:]:
        done = common(done, ranges)
    periods = [source.period for source in request.indexed if source.period]
    unit = unit_of(request)
    return Tickets(request.blocks, request.count, chunk, aligned(done, unit, request.total), periods, unit)
