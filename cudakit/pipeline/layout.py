"""The memory of a pipeline: the size of its chunks, and the number of its buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudakit import system
from cudakit.pipeline.request import RunRequest

if TYPE_CHECKING:
    from cudakit.device import Device

# A copy of 64 MiB takes about a millisecond, which hides the host's time per chunk (about 100 us).
CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class BufferLayout:
    """The buffers of a pipeline.

    chunk: items. in_buffers, out_buffers: number of sets of arrays that are read into and written from. device_bytes:
    device memory, in bytes per device. host_bytes: pinned memory, in bytes. host_budget: the most bytes of pinned
    memory.
    """

    chunk: int
    streams: int
    in_buffers: int
    out_buffers: int
    device_bytes: int
    host_bytes: int
    host_budget: int


def plan(request: RunRequest, neighbours: int = 1) -> BufferLayout:
    """Return the layout within the request's budgets of device memory (per device) and pinned memory.

    By default these are half of the free memory, and a quarter of the machine's available memory, divided among
    `neighbours` processes. A chunk has whole units of the sinks, and of the sources too if the budgets allow it. Raises
    ValueError if the requested chunk, or a single unit, does not fit.
    """
    request.expect_device()
    unit = unit_of(request)
    options, devices, count, chunk = request.options, request.devices, request.total, request.options.chunk
    streams, memory, host_memory = options.streams, options.memory, options.host_memory
    staged = request.staged
    read, written = sum(item.nbytes for item in request.inputs), sum(item.nbytes for item in request.outputs)
    there = [item.nbytes for item, on_device in zip(request.inputs, request.on_device, strict=True) if on_device]
    copied = read - sum(there)
    slots = streams * len(devices)
    in_buffers = slots + options.readers if staged[0] else 0
    out_buffers = slots + options.writers if staged[1] else 0
    on_device = streams * (copied + written) + in_buffers * sum(there)
    pinned = in_buffers * copied + out_buffers * written
    budget = min(map(_free, devices)) // 2 if memory is None else memory
    host_budget = system.available_memory() // 4 // neighbours if host_memory is None else host_memory
    limits = [
        ("device memory", "memory", budget, on_device),
        ("pinned host memory", "host_memory", host_budget, pinned),
    ]
    most = min((limit // each for _, _, limit, each in limits if each), default=max(count or 1, 1))
    if chunk is None:
        chunk = max(CHUNK_BYTES // max(read, written, 1), 1)
        if count:
            # Several chunks per stream, so that streams overlap.
            chunk = min(chunk, max(-(-count // (4 * slots)), 1))
        chunk = max(min(chunk, most), 1)
        chunk = _whole(chunk, unit, [source.unit for source in request.indexed], most)
    chunk = -(-chunk // unit) * unit  # a generator's first block may have any length
    if count is not None:
        chunk = min(chunk, max(-(-count // unit), 1) * unit)
    for what, argument, limit, each in limits:
        if chunk * each > limit:
            raise ValueError(
                f"chunks of {chunk:,} items need {chunk * each:,} bytes of {what} for {streams} streams, and the "
                f"budget is {limit:,}: "
                + (f"pass chunk={most // unit * unit:,} or less, fewer streams, " if most >= unit else "")
                + (f"store at most {most:,} items per chunk of the sinks, " if 0 < most < unit else "")
                + ("pass fewer streams, " if most < unit else "")
                + f"or a larger {argument}="
            )
    return BufferLayout(chunk, streams, in_buffers, out_buffers, chunk * on_device, chunk * pinned, host_budget)


def unit_of(request: RunRequest) -> int:
    """Return the least number of items of which every sink stores whole chunks (`Sink.unit`). Raises ValueError if the
    requested chunk, or a source that repeats its items, does not fit it."""
    unit = math.lcm(*(sink.unit for sink in request.sinks))
    chunk, count = request.options.chunk, request.total
    if chunk is not None and chunk % unit and request.blocks is None and not (count is not None and chunk >= count):
        below, above = chunk // unit * unit, -(-chunk // unit) * unit
        raise ValueError(
            f"chunk must be a multiple of {unit:,}, the items per stored chunk of the sinks, got {chunk:,}: pass "
            + (f"{below:,} or {above:,}" if below else f"{above:,}")
            + ", or store fewer items per chunk"
        )
    for period in (source.period for source in request.indexed if source.period):
        if period % unit:
            raise ValueError(
                f"a source repeats {period:,} items, which is not a multiple of {unit:,}, the items per stored "
                f"chunk of the sinks: store {math.gcd(period, unit):,} items per chunk, or repeat the items in an array"
            )
    return unit


def _whole(chunk: int, unit: int, sources: Sequence[int], most: int) -> int:
    """Return about `chunk` items: a multiple of `unit`, and of the items per stored chunk of all sources, or of one, if
    that at most doubles the chunk. A chunk is at least a source's stored chunk if `most` items allow it: in smaller
    ones that would be decoded many times."""
    large = max([each for each in sources if each <= most], default=1)
    wanted = max(chunk, large)
    for step in (math.lcm(unit, *sources), math.lcm(unit, large)):
        if step <= min(most, 2 * wanted):
            return max(wanted // step, 1) * step
    above = -(-wanted // unit) * unit
    return above if wanted > chunk and above <= most else max(wanted // unit, 1) * unit


def _free(device: Device) -> int:
    """Bytes of device memory that can be allocated: the free memory, and unused memory of the pool."""
    context = device.context
    if not device.attribute("MEMORY_POOLS_SUPPORTED"):
        return device.memory_info().free
    pool, names = context.call("cuDeviceGetDefaultMemPool", context.device), context.driver.CUmemPool_attribute
    with context.relaxed():
        reserved, used = (
            int(context.call("cuMemPoolGetAttribute", pool, name))
            for name in (names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        )
    return device.memory_info().free + reserved - used
