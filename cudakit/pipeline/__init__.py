"""Pipelines: a stream of chunks through a function of device arrays, larger than the device and than memory.

    def add(chunk, a, b, out):
        ops.add(a, b, out=out, stream=chunk.stream)

    report = pipeline.run(add, ("a.npy", "b.npy"), "sum.npy", streams=4)
    print(report)

Reading, the copies both ways, the work and writing overlap: threads read into pinned buffers and write from them, and
each chunk's copies and work are queued on one of a few streams. A pinned buffer is filled again only when its copy has
finished. The last chunk is as short as it comes. A failure stops the run, names the chunk, and leaves every finished
chunk where it belongs; `resume=True` does what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.pipeline.buffers import plan
from cudakit.pipeline.engine import Chunk, Job, Progress, Run
from cudakit.pipeline.file_sinks import ToFile, ToFolder, ToMap
from cudakit.pipeline.ranges import Range, common, covers, left
from cudakit.pipeline.report import Link, PipelineError, PipelineReport, Span
from cudakit.pipeline.sequential import sequential
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.sinks import Each, Nowhere, ToArray, as_sink
from cudakit.pipeline.sources import Blocks, Filled, FromArray, FromFile, FromFiles, Item, Source, as_source
from cudakit.pipeline.state import Ticket

__all__ = [
    "Blocks",
    "Chunk",
    "Each",
    "Filled",
    "FromArray",
    "FromFile",
    "FromFiles",
    "Item",
    "Link",
    "Nowhere",
    "PipelineError",
    "PipelineReport",
    "Progress",
    "Sink",
    "Source",
    "Span",
    "ToArray",
    "ToFile",
    "ToFolder",
    "ToMap",
    "run",
    "sequential",
]  # fmt: skip

MEASURED_BYTES = 10**9


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

    Returns a PipelineReport. Raises PipelineError, from its cause, for what fails underway; ValueError, TypeError,
    OSError and OutOfMemory before anything has been read for what could not succeed.
    """
    given: list[Source | Blocks] = []
    into: list[Sink] = []
    opened = 0
    try:
        for source in sources if isinstance(sources, tuple) else [sources]:
            given.append(as_source(source))
        for sink in sinks if isinstance(sinks, (tuple, list)) else (sinks,):
            into.append(as_sink(sink))
        on = _devices(devices)
        blocks = next((source for source in given if isinstance(source, Blocks)), None)
        if blocks is not None and len(given) > 1:
            raise ValueError("a generator comes alone: have it yield a tuple of arrays, one for each input")
        inputs = blocks.items if blocks is not None else tuple(source.item for source in given)  # type: ignore[union-attr]
        random = [source for source in given if isinstance(source, Source)]
        if count is not None and (not isinstance(count, (int, np.integer)) or count < 0):
            raise ValueError(f"count={count!r}: a whole number of items is wanted")
        count = count if blocks is not None else _count(random, count)
        made = _outputs(outputs, into, inputs)
        if not callable(function):
            raise TypeError(f"a pipeline's function is called for every chunk, and {function!r} cannot be")
        _expect_numbers({"streams": streams, "readers": readers, "writers": writers})
        optional = {"chunk": chunk, "memory": memory, "host_memory": host_memory}
        _expect_numbers({name: value for name, value in optional.items() if value is not None})
        context = on[0].context
        _expect_apart(random, into)
        straight_in = blocks is None and all(source.pinned(context, 0, 1) is not None for source in random)
        straight_out = all(sink.pinned(context, 0, 0) is not None for sink in into)
        writers = 1 if any(sink.ordered for sink in into) else writers
        readers = 1 if blocks is not None else readers
        total = None if blocks is not None else count
        layout = plan(
            inputs, made, count=total, chunk=chunk or (blocks.length if blocks is not None else None), streams=streams,
            readers=readers, writers=writers, devices=on, staged=(not straight_in, not straight_out), memory=memory,
            host_memory=host_memory,
        )  # fmt: skip

        def label(number: int) -> str:
            for source in random:
                names = source.labels(number, number + 1)
                if names:
                    return names[0]
            return str(number).zfill(len(str(max((count or 10**9) - 1, 0))))

        if resume:
            kept = [sink.forgets for sink in into if sink.forgets]
            if kept:
                raise ValueError(f"this run cannot be resumed: {kept[0]}")
        finished: list[list[Range]] = []
        for sink, item in zip(into, made, strict=True):
            opened += 1
            finished.append(sink.open(SinkSpec(item, total, label, resume, overwrite)))
        done = finished[0] if finished else []
        for ranges in finished[1:]:
            done = common(done, ranges)
        if measure is None:
            passing = sum(item.nbytes for item in (*inputs, *made))
            measure = count is None or count * passing >= MEASURED_BYTES
        flow = _Tickets(blocks, count, layout.chunk, done, [source.period for source in random if source.period])
        job = Job(
            function, iter(flow), given, random, inputs, into, made, finished, on, layout, lambda: flow.count,
            sum(stop - start for start, stop in done), readers, writers, label,
            any(source.named for source in random), finite, progress, timeline, measure,
        )  # fmt: skip
    except BaseException:
        for thing in (*given, *into[:opened]):
            thing.close()
        raise
    return Run(job).run()


class _Tickets:
    """The chunks of a run in order. count: of all items; None until a generator has come to its end, or to as many as
    were asked for."""

    def __init__(
        self, blocks: Blocks | None, count: int | None, chunk: int, done: Sequence[Range], periods: Sequence[int]
    ) -> None:
        self._blocks, self._chunk, self._done, self._periods = blocks, chunk, done, periods
        self._most, self.count = count, count if blocks is None else None

    def __iter__(self) -> Iterator[Ticket]:
        if self._blocks is None:
            ranges = left(self._done, self.count or 0, self._chunk, self._periods)
            yield from (Ticket(index, start, stop) for index, (start, stop) in enumerate(ranges))
            return
        index = start = 0
        for block in self._blocks:
            stop = start + len(block[0])
            if stop - start > self._chunk:
                raise ValueError(
                    f"the generator yields {stop - start:,} items at once, and a chunk holds {self._chunk:,}: pass "
                    "chunk= as large as its largest block"
                )
            if self._most is not None and stop > self._most:
                stop = self._most
                block = tuple(array[: stop - start] for array in block)
            if start < stop and not covers(self._done, start, stop):
                yield Ticket(index, start, stop, block)
                index += 1
            start = stop
            if start == self._most:
                break
        self.count = start


def _expect_numbers(values: dict[str, Any]) -> None:
    """Raises ValueError for what is no whole number from 1 on."""
    for name, value in values.items():
        if type(value) is bool or not isinstance(value, (int, np.integer)) or value < 1:
            what = "bytes" if "memory" in name else "how many"
            raise ValueError(f"{name}={value!r}: a whole number from 1 on is wanted, of {what}")


def _expect_apart(sources: Sequence[Source], sinks: Sequence[Sink]) -> None:
    """Raises ValueError where two sinks would write to one place, or one to where items come from; of a map that is
    its own source it notes that it cannot be resumed."""
    folders = {folder for source in sources if isinstance(source, FromFiles) for folder in source.folders}
    files = {source.path.resolve() for source in sources if isinstance(source, FromFile)}
    for sink in sinks:
        if isinstance(sink, ToFolder) and sink.path.resolve() in folders:
            raise ValueError(f"results cannot go to {sink.path}, where the items come from: name another folder")
        if isinstance(sink, ToMap) and sink.path.resolve() in files:
            sink.forgets = "it writes over its own source, where a chunk that was written cannot be done again"
    places = [sink.path.resolve() for sink in sinks if isinstance(sink, (ToFile, ToFolder))]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"two results cannot both go to {place}: name a place for each")


def _devices(devices: Any) -> list[Device]:
    given = devices if isinstance(devices, (tuple, list)) else [] if devices is None else [devices]
    if not all(isinstance(device, Device) for device in given):
        raise TypeError(
            f"devices={devices!r}: give a Device or several, such as cudakit.Device('sim') or Device.several('gpu')"
        )
    on = [Device()] if devices is None else list(given)
    if not on:
        raise ValueError("an empty list of devices has none to run on")
    if len({device.context.driver for device in on}) > 1:
        raise ValueError(
            f"{', '.join(device.context.spec for device in on)} are of different drivers, which share no pinned "
            "memory: make them together, with Device.several()"
        )
    return on


def _count(sources: Sequence[Source], count: int | None) -> int:
    counts = {source.count for source in sources}
    if len(counts) > 1:
        raise ValueError(
            f"the sources have {', '.join(f'{n:,}' for n in sorted(counts))} items: they must have as many each"
        )
    if not counts:
        if count is None:
            raise ValueError("there is no source, so count= has to say how many results there are to be")
        return count
    (there,) = counts
    if count is None:
        return there
    if not 0 <= count <= there:
        raise ValueError(f"{count:,} items were asked for, and the sources have {there:,}")
    return count


def _described(output: Any) -> Item:
    if not isinstance(output, tuple) or len(output) != 2:
        raise ValueError(
            f"outputs={output!r}: one result is described by (shape, dtype), such as ((512, 512), 'float32')"
        )
    return Item.of(*output)


def _outputs(outputs: Any, sinks: Sequence[Sink], inputs: Sequence[Item]) -> tuple[Item, ...]:
    """What one result of each sink is."""
    if outputs is None:
        told: list[Any] = [None] * len(sinks)
    else:
        told = [
            output if isinstance(output, Item) else _described(output)
            for output in (outputs if isinstance(outputs, list) else [outputs])
        ]
    if len(told) != len(sinks):
        raise ValueError(
            f"{len(told)} outputs are described, and there are {len(sinks)} sinks: one sink takes one output"
        )
    made = []
    for item, sink in zip(told, sinks, strict=True):
        found = item or sink.item() or (inputs[0] if inputs else None)
        if found is None:
            raise ValueError("nothing tells what a result is: pass outputs=(shape, dtype)")
        made.append(found)
    return tuple(made)
