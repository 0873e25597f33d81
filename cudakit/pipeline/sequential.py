"""A pipeline's work without overlap, one step after another: the baseline for pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.pipeline.buffers import StreamSlot
from cudakit.pipeline.chunk import Chunk
from cudakit.pipeline.given import as_source
from cudakit.pipeline.ranges import left
from cudakit.pipeline.report import PipelineReport
from cudakit.pipeline.sources import Item, Source

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
    """Apply `function` to `sources` one chunk at a time, and wait after each copy and each computation.

    Args:
        function: As for `run`.
        sources: A tuple of sources that can be read in any order, as for `run`; not a generator.
        output: (shape, dtype) of one result.
        device: The device that runs it.
        chunk: Items per chunk.
        count: Number of items to process; all if None.
        pinned: Use pinned host buffers; otherwise pageable ones, which the driver copies through its own buffers.
            Items that are already in memory of the same kind are copied directly.
        sink: Called with (start, stop, items) for each chunk; its time is not counted.

    Returns:
        A report without rates.

    Raises:
        ValueError: If `chunk` is below 1, or the sources have fewer than `count` items.
        TypeError: If a source is a generator.
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
    """Return the sources. Raises ValueError or TypeError if they or the chunk are unsupported."""
    if not isinstance(sources, (tuple, list)) or chunk < 1:
        raise ValueError(
            f"sequential() needs a tuple of sources and chunks of at least 1 item, got {type(sources).__name__} and "
            f"chunks of {chunk}"
        )
    given = [source for source in map(as_source, sources) if isinstance(source, Source)]
    if len(given) < len(sources):
        raise TypeError("sequential() does not support generators: pass sources that can be read in any order")
    return given


def _total(sources: Sequence[Source], count: int | None) -> int:
    """Return the number of items to process: `count`, or all. Raises ValueError if there are fewer."""
    there = min((source.count for source in sources), default=0)
    total = there if count is None else count
    if not 0 <= total <= there:
        raise ValueError(f"count must be at most {there:,}, the items of the sources, got {total:,}")
    return total
