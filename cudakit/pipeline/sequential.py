"""The same work one step after another: the form a pipeline is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.pipeline.buffers import StreamSlot
from cudakit.pipeline.chunk import Chunk
from cudakit.pipeline.ranges import left
from cudakit.pipeline.report import PipelineReport
from cudakit.pipeline.sources import Item, Source, as_source

if TYPE_CHECKING:
    from cudakit.device import Device


def sequential(
    function: Callable[..., Any],
    sources: Sequence[Any],
    output: Any,
    *,
    device: Device,
    chunk: int,
    count: int | None = None,
    pinned: bool = True,
    sink: Callable[[int, int, Any], Any] | None = None,
) -> PipelineReport:
    """Put `sources` through `function` a chunk at a time, waiting after every copy and every piece of work.

    function, sources: as for `run`; the sources can be read in any order. output: (shape, dtype) of one result. count:
    how many items; all unless given. pinned: the host's buffers are pinned; pageable memory is copied through the
    driver's own buffers. Items that lie in memory of that kind already are copied from there. sink: given
    (start, stop, items), outside of the time. Returns a PipelineReport without rates.
    """
    given = _readable(sources, chunk)
    made = Item.of(*output)
    inputs = [source.item for source in given]
    total = _total(given, count)

    def host(item: Item) -> Any:
        shape = (chunk, *item.shape)
        return device.pinned(shape, item.dtype) if pinned else np.zeros(shape, item.dtype)

    buffers = [host(item) for item in inputs]
    result = host(made)
    slot = StreamSlot.make(0, device, inputs, [made], chunk)
    nbytes = sum(array.nbytes for array in slot.inputs + slot.outputs)
    held = sum(buffer.nbytes for buffer in buffers) + result.nbytes if pinned else 0
    report = PipelineReport([device.context.spec], 1, chunk, total, nbytes, held)
    stream = slot.stream
    try:
        begin = time.perf_counter()
        for index, (start, stop) in enumerate(left((), total, chunk)):
            length = stop - start
            arrays = [array[:length] for array in (*slot.inputs, *slot.outputs)]
            for source, buffer, array in zip(given, buffers, arrays, strict=False):
                place = source.pinned(device.context, start, stop) if pinned else source.view(start, stop)
                if place is None:
                    place = buffer[:length]
                    source.read(start, stop, place)
                array.copy_from(place, stream)
                stream.synchronize()
            function(Chunk(index, start, stop, device, stream), *arrays)
            stream.synchronize()
            arrays[-1].copy_to(result[:length], stream)
            stream.synchronize()
            if sink is not None:
                paused = time.perf_counter()
                sink(start, stop, result[:length])
                begin += time.perf_counter() - paused
            report.items, report.chunks = report.items + length, index + 1
            report.bytes_in += sum(array.nbytes for array in arrays[:-1])
            report.bytes_out += arrays[-1].nbytes
        report.seconds = time.perf_counter() - begin
    finally:
        slot.close()
        for source in given:
            source.close()
    return report


def _readable(sources: Sequence[Any], chunk: int) -> list[Source]:
    """The sources. Raises ValueError or TypeError if they, or the chunk, cannot be worked on one after another."""
    if not isinstance(sources, (tuple, list)) or chunk < 1:
        raise ValueError(f"sequential() takes a tuple of sources, and chunks of 1 item or more, not {chunk}")
    given = [source for source in map(as_source, sources) if isinstance(source, Source)]
    if len(given) < len(sources):
        raise TypeError("a generator has no place here: give sources that can be read in any order")
    return given


def _total(sources: Sequence[Source], count: int | None) -> int:
    """How many items to take: `count`, or all. Raises ValueError if there are fewer."""
    there = min((source.count for source in sources), default=0)
    total = there if count is None else count
    if not 0 <= total <= there:
        raise ValueError(f"{total:,} items were asked for, and the sources have {there:,}")
    return total
