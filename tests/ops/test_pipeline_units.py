"""Chunks of a pipeline whose sinks and sources store several items together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import pipeline

COUNT = 50
ITEMS = np.arange(COUNT * 3, dtype=np.float32).reshape(COUNT, 3)


def same(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
    out.copy_from(x, chunk.stream)


class Stored(pipeline.Sink):
    """Keeps results in memory. Its unit is known after `open`."""

    def __init__(self, unit: int, done: tuple[tuple[int, int], ...] = ()) -> None:
        self._unit, self._done = unit, list(done)
        self.items = np.full_like(ITEMS, -1)
        self.ranges: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def open(self, spec: pipeline.SinkSpec) -> list[tuple[int, int]]:
        self.unit = self._unit
        return self._done

    def write(self, start: int, stop: int, items: Any) -> None:
        with self._lock:
            self.ranges.append((start, stop))
        self.items[start:stop] = items

    def expect_whole(self, count: int = COUNT) -> None:
        assert all(start % self.unit == 0 and (stop % self.unit == 0 or stop == count) for start, stop in self.ranges)
        np.testing.assert_array_equal(self.items[:count], ITEMS[:count])


class Chunked(pipeline.FromArray):
    """Items that are stored in chunks."""

    def __init__(self, unit: int) -> None:
        super().__init__(ITEMS)
        self.unit = unit
        self.ranges: list[tuple[int, int]] = []

    def read(self, start: int, stop: int, into: Any) -> None:
        if stop - start > 1 or into.base is not None:  # not the first items of `identity`
            self.ranges.append((start, stop))
        super().read(start, stop, into)


@pytest.mark.parametrize("units", [(4, 1), (4, 6), (7, 1), (64, 1)])
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_are_whole_units_of_every_sink(device: cudakit.Device, units: tuple[int, int], threads: int) -> None:
    sinks = [Stored(unit) for unit in units]

    def both(chunk: pipeline.Chunk, x: Any, one: Any, other: Any) -> None:
        same(chunk, x, one)
        same(chunk, x, other)

    report = pipeline.run(both, ITEMS, sinks, devices=device, readers=threads, writers=threads)
    assert report.items == COUNT
    for sink in sinks:
        sink.expect_whole()


def test_a_chunk_that_is_no_multiple_of_the_unit_is_rejected_with_those_that_are(device: cudakit.Device) -> None:
    with pytest.raises(ValueError, match=r"multiple of 8, .* got 20: pass 16 or 24, or store fewer items per chunk"):
        pipeline.run(same, ITEMS, Stored(8), devices=device, chunk=20)
    with pytest.raises(ValueError, match=r"multiple of 8, .* got 5: pass 8, or"):
        pipeline.run(same, ITEMS, Stored(8), devices=device, chunk=5)
    for chunk in (16, COUNT, COUNT + 1):  # one chunk for all items needs no multiple
        sink = Stored(8)
        pipeline.run(same, ITEMS, sink, devices=device, chunk=chunk)
        sink.expect_whole()


def test_finished_items_of_a_resumed_run_count_in_whole_units(device: cudakit.Device) -> None:
    sink = Stored(8, done=((0, 12), (20, 35), (45, COUNT)))
    sink.items[0:8] = sink.items[24:32] = 0
    report = pipeline.run(same, ITEMS, sink, devices=device)
    assert report.skipped == 8 + 8 + 2
    assert all(start % 8 == 0 and (stop % 8 == 0 or stop == COUNT) for start, stop in sink.ranges)
    written = {item for start, stop in sink.ranges for item in range(start, stop)}
    assert written == {*range(8, 24), *range(32, 48)}


@pytest.mark.parametrize("lengths", [(8, 8, 8), (3, 5, 2, 7, 7), (9, 1, 9, 1)])
def test_blocks_of_a_generator_are_regrouped(device: cudakit.Device, lengths: tuple[int, ...]) -> None:
    def blocks() -> Iterator[Any]:
        reused, start = np.empty((max(lengths), 3), np.float32), 0
        for length in lengths:
            reused[:length] = ITEMS[start : start + length]
            yield reused[:length]
            start += length

    sink = Stored(4)
    report = pipeline.run(same, blocks(), sink, devices=device, chunk=9)
    assert report.items == sum(lengths)
    sink.expect_whole(sum(lengths))


def test_sources_are_read_in_whole_stored_chunks_if_the_budget_allows_it(device: cudakit.Device) -> None:
    source = Chunked(10)
    sink = Stored(4)
    pipeline.run(same, source, sink, devices=device)
    sink.expect_whole()
    assert all(start % 20 == 0 for start, _ in source.ranges)
    source, sink = Chunked(10), Stored(4)
    budget = 9 * 12 * (3 * 1 + 1) * 2  # 9 items in each of 8 buffers
    report = pipeline.run(same, source, sink, devices=device, host_memory=budget)
    sink.expect_whole()
    assert report.host_bytes <= budget


def test_chunks_of_sources_that_fit_no_common_size_leave_several_chunks(device: cudakit.Device) -> None:
    source, sink = Chunked(7), Stored(5)
    report = pipeline.run(same, source, sink, devices=device)
    sink.expect_whole()
    assert report.chunk == 10  # at least a stored chunk of the source; 35 would leave two chunks


def test_a_unit_that_exceeds_the_memory_budget_is_rejected(device: cudakit.Device) -> None:
    with pytest.raises(ValueError, match=r"chunks of 8 items need .* store at most 5 items per chunk of the sinks"):
        pipeline.run(same, ITEMS, Stored(8), devices=device, host_memory=5 * 12 * 8)


def test_a_source_that_repeats_must_fit_the_unit(device: cudakit.Device) -> None:
    source = pipeline.FromArray(ITEMS[:10], repeats=5)
    with pytest.raises(ValueError, match=r"repeats 10 items, which is not a multiple of 4.*: store 2 items per chunk"):
        pipeline.run(same, source, Stored(4), devices=device)
    sink = Stored(5)
    pipeline.run(same, source, sink, devices=device)
    assert all(start % 5 == 0 and stop % 5 == 0 for start, stop in sink.ranges)
