"""Code shared by the pipeline examples: flags, the ways to process one stream of items, the check of each chunk.

The first items are compared in full with a float64 reference. While the stream is timed, only one row of each item is
compared. All chunks differ (`numbered.Items`), so a chunk in the wrong place or a buffer that was refilled too early is
detected.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit import pipeline
from cudakit.commands import cli
from cudakit.commands.numbered import Host
from cudakit.commands.numbered import Items as Items
from cudakit.commands.numbered import Workload as Workload
from cudakit.compare import Comparison
from cudakit.errors import Refused
from cudakit.measure.rows import Row, Subject
from cudakit.measure.timing import wall_clock
from cudakit.pipeline.bar import progress_bar
from cudakit.show import outputs, plots

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.device import Device

PILOT_BYTES, PILOT_CHUNKS = 64 << 20, 24  # of the short run that measures the rate for --seconds: bytes per chunk
FULL_BYTES = 1 << 30  # results that are compared in full before the timed run
HOST_SLACK = 128 << 20  # memory used besides the pinned buffers, by compilation and copies for the comparison


def add_arguments(parser: argparse.ArgumentParser, *, count: str, size: str, chunk: str) -> None:
    """Add the common flags and the pipeline's flags. count, size, chunk: the defaults, as shown in the help."""
    cli.add_common_arguments(parser)
    parser.add_argument("--count", type=cli.positive, metavar="N", help=f"number of items ({count})")
    parser.add_argument("--size", type=cli.positive, metavar="N", help=f"rows and columns of an item ({size})")
    parser.add_argument("--chunk", type=cli.positive, metavar="N", help=f"items per chunk ({chunk})")
    parser.add_argument("--streams", type=cli.positive, default=3, metavar="N", help="number of streams (default: 3)")
    parser.add_argument("--memory", type=_bytes, metavar="BYTES", help="device memory for the buffers, such as 2G")
    parser.add_argument("--host-memory", type=_bytes, metavar="BYTES", help="pinned memory for the buffers, such as 2G")
    parser.add_argument("--readers", type=cli.positive, default=4, metavar="N", help="reading threads (default: 4)")
    parser.add_argument(
        "--plot",
        metavar="FILE.png",
        action="append",
        help="draw the streams' timeline, for dark pages if FILE.dark.png; repeat it for both; needs the plot extra",
    )


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that limit the time of an example."""
    parser.add_argument(
        "--seconds",
        type=cli.positive,
        metavar="N",
        help="process as many items as take about N seconds, by the rate of a short run; instead of --count",
    )
    parser.add_argument("--rungs", type=_rungs, metavar="N,...", help="only the rows with these rungs (default: all)")


def _rungs(text: str) -> set[int]:
    return {cli.positive(part) for part in text.split(",")}


def chosen(ways: Sequence[Any], arguments: argparse.Namespace) -> list[tuple[int, Any]]:
    """Return the ways of --rungs, each with its rung. Raises Refused for a rung that does not exist."""
    rungs = arguments.rungs or set(range(1, len(ways) + 1))
    if max(rungs) > len(ways):
        raise Refused(f"--rungs must be between 1 and {len(ways)}, got {max(rungs)}")
    return [(rung, way) for rung, way in enumerate(ways, 1) if rung in rungs]


def count_of(
    work: Workload, device: Device, arguments: argparse.Namespace, *, usual: int, chunk: int, streams: int
) -> int:
    """Return the number of items: that of --count, or the whole chunks that take about --seconds, or `usual`."""
    if arguments.seconds is None:
        return int(arguments.count or usual)
    if arguments.count is not None:
        raise Refused("--count and --seconds both set the number of items: pass one of them")
    few = max(1, min(chunk, PILOT_BYTES // work.nbytes))
    sources = Items.make(work, few * PILOT_CHUNKS, few).resident(device, few * PILOT_CHUNKS)
    for _ in range(2):  # the first run loads kernels and libraries
        done = pipeline.run(
            work.function, tuple(sources), lambda start, stop, results: None, outputs=work.result,
            count=few * PILOT_CHUNKS, chunk=few, streams=streams, devices=[device], measure=False,
            memory=arguments.memory, host_memory=arguments.host_memory,
        )  # fmt: skip
    return max(1, int(arguments.seconds * done.items / done.seconds) // chunk) * chunk


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper(), 1)
    try:
        return int(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes: write one such as 500M or 2G") from None


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raise Refused for output files that cannot be written."""
    outputs.check_destination("--json", arguments.json)
    for path in arguments.plot or ():
        plots.check(path)


class Judge(pipeline.Sink):
    """A sink that compares the results with the reference: one row of each item, or all rows if `full`.

    One row of each item is copied during the run and compared after it: the comparison holds Python's global lock, and
    would delay the thread that queues the copies of two devices.
    """

    forgets = "it compares the results, and keeps none"

    def __init__(self, items: Items, row: Row, *, full: bool = False) -> None:
        self._items, self._row, self._full = items, row, full
        row.verdict.max_abs_error = row.verdict.max_rel_error = 0.0
        self._taken: list[tuple[int, Host]] = []
        self.seen = 0

    def write(self, start: int, stop: int, items: Host) -> None:
        if self._full:
            self._compare(start, stop, self._items.judge(start, items))
        else:
            self._taken.append((start, self._items.taken(start, items)))
        self.seen += stop - start

    def _compare(self, start: int, stop: int, verdict: Comparison) -> None:
        row, worst = self._row, self._row.verdict
        worst.max_abs_error = max(worst.max_abs_error or 0.0, verdict.max_abs_error)
        worst.max_rel_error = max(worst.max_rel_error or 0.0, verdict.max_rel_error)
        if not verdict.ok and row.ok is not False:
            row.fail(f"items {start} to {stop - 1}: {verdict.why}")

    def settle(self, count: int) -> None:
        """Compare the rows. Pass only if every item was compared."""
        for start, own in self._taken:
            self._compare(start, start + len(own), self._items.judge_taken(start, own))
        self._taken.clear()
        if self.seen != count:
            self._row.fail(f"{self.seen} of {count} items were returned")
        elif self._row.ok is None:
            self._row.verdict.ok = True


def cpu_row(items: Items, shape: tuple[int, ...]) -> Row:
    """Return numpy's time for the first items, scaled to all items."""
    row = Row(Subject(items.work.name, "cpu", None, shape, items.work.dtype, idea="numpy on the host"))
    some = items.blocks(0, max(1, min(shape[0], items.longest, (16 << 20) // max(items.work.nbytes, 1))))
    row.judge(items.judge(0, items.work.plain(some)))
    spread = wall_clock(lambda: items.work.plain(some), budget_s=0.2, most=5)
    row.timed(spread.scaled(shape[0] / len(some[0])))
    return row


def sequential_row(
    items: Items, device: Device, shape: tuple[int, ...], chunk: int, *, pinned: bool, rung: int, idea: str
) -> Row:
    """Process one chunk after the other, and wait after each step."""
    row = Row(Subject(items.work.name, "pinned" if pinned else "pageable", rung, shape, items.work.dtype, idea=idea))
    judge = Judge(items, row)
    sources = items.resident(device, shape[0], pinned=pinned)
    done = pipeline.sequential(
        items.work.function, sources, items.work.result, device=device, chunk=chunk, count=shape[0], pinned=pinned,
        sink=judge.write,
    )  # fmt: skip
    judge.settle(shape[0])
    row.streamed(done)
    return row


def pipelined_row(
    items: Items,
    devices: Sequence[Device],
    sources: Sequence[Any],
    shape: tuple[int, ...],
    arguments: argparse.Namespace,
    *,
    name: str,
    rung: int | None,
    idea: str,
    streams: int,
    chunk: int,
    console: Console,
    timeline: bool = False,
) -> tuple[Row, pipeline.PipelineReport]:
    """Process the stream in a pipeline. The first items are compared in full before the stream is timed."""
    row = Row(Subject(items.work.name, name, rung, shape, items.work.dtype, idea=idea))
    # Run a full chunk and the last, shorter chunk, so that the timed run does not compile.
    first = min(shape[0], chunk + shape[0] % chunk)
    whole = np.full((first, *items.work.item), np.nan, items.work.dtype)
    options: dict[str, Any] = {
        "devices": list(devices), "streams": streams, "memory": arguments.memory, "host_memory": arguments.host_memory,
    }  # fmt: skip
    try:
        pipeline.run(items.work.function, tuple(sources), whole, count=first, chunk=chunk, measure=False, **options)
    except ValueError as error:  # budgets that are too small for a chunk
        raise Refused(str(error)) from error
    row.judge(items.judge(0, whole[: max(1, FULL_BYTES // items.work.nbytes)]))
    judge = Judge(items, row)
    with progress_bar(console) as tell:
        done = pipeline.run(
            items.work.function, tuple(sources), judge, outputs=items.work.result, count=shape[0], chunk=chunk,
            readers=arguments.readers, progress=tell, timeline=timeline, measure=True, **options,
        )  # fmt: skip
    judge.settle(shape[0])
    row.streamed(done)
    budget = done.host_bytes if arguments.host_memory is None else arguments.host_memory
    if done.host_growth > budget + HOST_SLACK:
        row.fail(f"the process grew by {done.host_growth:,} bytes, over the budget of {budget:,} and {HOST_SLACK:,}")
    return row, done


def ways(
    items: Items, device: Device, shape: tuple[int, ...], chunk: int, arguments: argparse.Namespace, console: Console
) -> tuple[list[Row], pipeline.PipelineReport]:
    """Process the stream in five ways: with numpy, sequentially from ordinary and from pinned memory, and in pipelines
    from pinned memory and from generated items. Returns the rows, and the report of the pipeline from pinned memory,
    with a timeline for --plot."""
    rows = [cpu_row(items, shape)]
    for rung, pinned, memory in ((1, False, "ordinary memory"), (2, True, "pinned memory")):
        idea = f"a wait after each step, {memory}"
        rows.append(sequential_row(items, device, shape, chunk, pinned=pinned, rung=rung, idea=idea))
    row, done = pipelined_row(
        items, [device], items.resident(device, shape[0]), shape, arguments, name="pipelined", rung=3,
        idea=f"{arguments.streams} streams, from pinned memory", streams=arguments.streams, chunk=chunk,
        console=console, timeline=bool(arguments.plot),
    )  # fmt: skip
    generated, _ = pipelined_row(
        items, [device], items.made(shape[0]), shape, arguments, name="generated", rung=4,
        idea=f"{arguments.readers} threads make the items", streams=arguments.streams, chunk=chunk, console=console,
    )  # fmt: skip
    return [*rows, row, generated], done


def draw(done: pipeline.PipelineReport, arguments: argparse.Namespace, title: str) -> None:
    """Draw a pipeline's timeline to each file of --plot, if any."""
    for path in arguments.plot or ():
        plots.timeline(done.spans, path, title, done)


def link_ceiling(report: pipeline.PipelineReport) -> dict[str, Any]:
    """Return the link's bandwidths in a report, as a ceiling for the JSON."""
    link = report.link
    return {} if link is None else {"link": {"h2d": link.h2d, "d2h": link.d2h, "both": link.both}}
