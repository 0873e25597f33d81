"""Pipelines: correct results with every source and sink, memory budgets, and no finished chunk lost or computed
twice."""

from __future__ import annotations

import errno
import gc
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit import graph, ops, pipeline
from cudakit.pipeline import link
from cudakit.pipeline.engine import Execution
from cudakit.pipeline.state import covered

ROWS, COLS = 5, 12


def add(chunk: pipeline.Chunk, a: Any, b: Any, out: Any) -> None:
    ops.add(a, b, out=out, stream=chunk.stream)


def double(chunk: pipeline.Chunk, a: Any, out: Any) -> None:
    ops.scale(a, 2.0, out=out, stream=chunk.stream)


def same(chunk: pipeline.Chunk, a: Any, out: Any) -> None:
    out.copy_from(a, chunk.stream)


def items(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, ROWS, COLS)).astype(np.float32)


@pytest.fixture
def pair() -> Iterator[list[cudakit.Device]]:
    """Two simulated devices of one driver."""
    devices = cudakit.Device.several("sim", 2)
    yield devices
    for device in reversed(devices):
        device.close()


# Sources and sinks ----------------------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 40),
    chunk=st.integers(1, 17),
    streams=st.integers(1, 5),
    threads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_every_item_once_and_in_its_place(device, count, chunk, streams, threads) -> None:
    a, b = items(count), items(count, 1)
    out = np.full_like(a, np.nan)
    readers, writers = threads
    report = pipeline.run(
        add, (a, b), out, devices=device, chunk=chunk, streams=streams, readers=readers, writers=writers
    )
    np.testing.assert_array_equal(out, a + b)
    assert (report.items, report.chunks) == (count, -(-count // chunk))
    assert (report.bytes_in, report.bytes_out) == (2 * a.nbytes, out.nbytes)


def test_files_to_file_with_a_short_last_chunk(device, tmp_path) -> None:
    a, b = items(23), items(23, 1)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    report = pipeline.run(
        add, (tmp_path / "a.npy", str(tmp_path / "b.npy")), tmp_path / "c.npy", devices=device, chunk=5
    )
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a + b)
    assert report.chunks == 5
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy", "c.npy"], "a finished run must not change its result"


def test_memory_maps_are_read_and_written_through_their_files(device, tmp_path) -> None:
    a = items(20)
    np.save(tmp_path / "a.npy", a)
    raw = np.memmap(tmp_path / "raw.bin", np.float32, "w+", offset=4096 + 64, shape=(14, ROWS, COLS))
    source = np.load(tmp_path / "a.npy", mmap_mode="r")[3:17]
    pipeline.run(double, source, raw, devices=device, chunk=4)
    np.testing.assert_array_equal(raw, 2 * a[3:17])
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[0] = 7  # a change that is not in the file
    out = np.empty_like(a)
    pipeline.run(double, private, out, devices=device, chunk=6)
    np.testing.assert_array_equal(out, 2 * private)


def test_an_image_set_goes_from_folder_to_folder_under_its_own_names(device, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    images = items(11)
    names = [f"cat_{i * 7 % 11:02}" for i in range(11)]
    for name, image in zip(names, images, strict=True):
        np.save(tmp_path / "in" / f"{name}.npy", image)
    pipeline.run(double, tmp_path / "in", tmp_path / "out", devices=device, chunk=4, streams=2, writers=2)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(f"{name}.npy" for name in names)
    for name, image in zip(names, images, strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), 2 * image)


def test_a_generator_may_yield_the_same_array_again(device) -> None:
    a = items(25)
    kept = np.empty((7, ROWS, COLS), np.float32)

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, 25, 7):
            part = a[start : start + 7]
            kept[: len(part)] = part
            yield kept[: len(part)]
            kept[:] = np.nan

    seen: list[tuple[int, int]] = []
    out = np.empty_like(a)

    def keep(start: int, stop: int, results: np.ndarray) -> None:
        seen.append((start, stop))
        out[start:stop] = results

    report = pipeline.run(double, blocks(), keep, devices=device, streams=3)
    np.testing.assert_array_equal(out, 2 * a)
    assert seen == [(0, 7), (7, 14), (14, 21), (21, 25)], "a function gets the chunks in order"
    assert report.count == 25


def test_a_generator_of_unknown_length_fills_a_file(device, tmp_path) -> None:
    a, b = items(13), items(13, 1)
    pairs = ((a[i : i + 5], b[i : i + 5]) for i in range(0, 13, 5))
    pipeline.run(add, pairs, tmp_path / "sum.npy", devices=device)
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), a + b)


def test_pinned_arrays_are_copied_from_and_to_where_they_lie(device) -> None:
    a = device.pinned((12, ROWS, COLS))
    a[:] = items(12)
    out = device.pinned((36, ROWS, COLS))
    report = pipeline.run(double, pipeline.FromArray(a, repeats=3), out, devices=device, chunk=5, streams=2)
    np.testing.assert_array_equal(out, 2 * np.concatenate([a, a, a]))
    assert report.host_bytes == 0, "nothing is staged"
    assert report.items == 36


def test_sums_out_of_blocks_and_results_out_of_nothing(device) -> None:
    a = items(17)
    sums = np.empty(17, np.float32)

    def total(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        ops.sum(x.reshape(len(chunk), ROWS * COLS), axis=1, out=out, stream=chunk.stream)

    pipeline.run(total, a, sums, devices=device, chunk=4)
    np.testing.assert_allclose(sums, a.sum((1, 2), dtype=np.float64), rtol=1e-5, atol=1e-5)

    def number(chunk: pipeline.Chunk, out: Any) -> None:
        out.fill(chunk.start, chunk.stream)

    out = np.empty((10, 3), np.float32)
    pipeline.run(number, (), out, count=10, devices=device, chunk=4)
    np.testing.assert_array_equal(out[:, 0], [0, 0, 0, 0, 4, 4, 4, 4, 8, 8])


def test_two_results_go_to_two_sinks(device, tmp_path) -> None:
    a = items(9)

    def both(chunk: pipeline.Chunk, x: Any, twice: Any, sums: Any) -> None:
        double(chunk, x, twice)
        ops.sum(x.reshape(len(chunk), ROWS * COLS), axis=1, out=sums, stream=chunk.stream)

    sums = np.empty(9, np.float32)
    pipeline.run(
        both, a, (tmp_path / "twice.npy", sums), outputs=[((ROWS, COLS), "float32"), ((), "float32")], devices=device,
        chunk=2,
    )  # fmt: skip
    np.testing.assert_array_equal(np.load(tmp_path / "twice.npy"), 2 * a)
    np.testing.assert_allclose(sums, a.sum((1, 2), dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_chunks_go_to_two_devices_and_come_back_in_order(pair) -> None:
    a, b = items(41), items(41, 1)
    out = np.empty_like(a)
    used: list[int] = []

    def noted(chunk: pipeline.Chunk, *arrays: Any) -> None:
        used.append(chunk.device.ordinal)
        add(chunk, *arrays)

    order: list[int] = []

    def keep(start: int, stop: int, results: np.ndarray) -> None:
        order.append(start)
        out[start:stop] = results

    pipeline.run(noted, (a, b), keep, devices=pair, chunk=4, streams=2)
    np.testing.assert_array_equal(out, a + b)
    assert set(used) == {0, 1}
    assert order == sorted(order)


# Budgets --------------------------------------------------------------------------------------------------------------


def test_buffers_stay_within_the_budgets(device) -> None:
    a = items(60)
    item = a[0].nbytes
    out = np.empty_like(a)
    report = pipeline.run(double, a, out, devices=device, streams=4, memory=40 * item, host_memory=23 * item)
    assert 0 < report.host_bytes <= 23 * item
    assert 0 < report.device_bytes <= 40 * item
    np.testing.assert_array_equal(out, 2 * a)


def test_a_chunk_over_budget_is_refused_with_what_would_fit(device) -> None:
    a = items(100)
    item = a[0].nbytes
    with pytest.raises(ValueError, match=r"chunks of 50 items need .* of device memory .* pass chunk=4 or less"):
        pipeline.run(double, a, None, devices=device, streams=3, chunk=50, memory=25 * item)
    with pytest.raises(ValueError, match="pinned host memory"):
        pipeline.run(double, a, None, devices=device, streams=3, chunk=50, host_memory=100)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sources": (items(4), items(5))}, "same number of items, got 4, 5"),
        ({"sources": 3}, "int is not a source"),
        ({"sinks": 3}, "int is not a sink"),
        (
            {"sinks": np.empty((4, ROWS, COLS), np.float64), "outputs": ((ROWS, COLS), "float32")},
            "has items of float64",
        ),
        ({"sinks": np.empty((3, ROWS, COLS), np.float32)}, "must have room for 4 items, got 3"),
        ({"count": 5}, "count must be at most 4, the items of the sources, got 5"),
        ({"streams": 0}, "streams must be a whole number of at least 1, got 0"),
        ({"chunk": 0}, "chunk must be a whole number of at least 1, got 0"),
        ({"devices": []}, "at least 1 device, got an empty list"),
        ({"resume": True}, "cannot be resumed: a null sink keeps no results"),
        ({"sources": iter([])}, "must yield at least one block"),
        ({"devices": "sim"}, r"devices must be a Device or a list .*got 'sim'"),
        ({"memory": "2GB"}, r"memory must be a whole number .*got '2GB'"),
        ({"host_memory": -10}, r"host_memory must be a whole number .*got -10"),
        ({"streams": 2.5}, r"streams must be a whole number .*got 2.5"),
        ({"outputs": (8,)}, r"must have \(shape, dtype\) per result"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_bad_arguments_are_refused_before_anything_runs(device, change, why) -> None:
    arguments: dict[str, Any] = {"sources": items(4), "sinks": None, "devices": device, **change}

    def never(*_: Any) -> None:
        pytest.fail("the function was called")

    with pytest.raises((ValueError, TypeError), match=why):
        pipeline.run(never, arguments.pop("sources"), arguments.pop("sinks"), **arguments)


# Faults ---------------------------------------------------------------------------------------------------------------


def fails_at(index: int, error: Exception):
    def work(chunk: pipeline.Chunk, *arrays: Any) -> None:
        if chunk.index == index:
            raise error
        double(chunk, *arrays)

    return work


def finished(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("[!.]*.npy")}


def test_an_exception_names_its_chunk_and_resume_does_the_rest(device, tmp_path) -> None:
    a = items(20)
    with pytest.raises(
        pipeline.PipelineError, match=r"chunk 3 \(items 9 to 11\) failed in the function.*no good"
    ) as told:
        pipeline.run(fails_at(3, ZeroDivisionError("no good")), a, tmp_path / "out", devices=device, chunk=3)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert (told.value.chunk, told.value.start, told.value.stop, told.value.stage) == (3, 9, 12, "compute")
    assert "resume=True" in str(told.value)
    before = finished(tmp_path / "out")
    assert sorted(before) == [f"{i:02}.npy" for i in range(9)], "every chunk before the failure is on disk"
    made: list[int] = []

    def noted(chunk: pipeline.Chunk, *arrays: Any) -> None:
        made.extend(range(chunk.start, chunk.stop))
        double(chunk, *arrays)

    report = pipeline.run(noted, a, tmp_path / "out", devices=device, chunk=4, resume=True)
    assert made == list(range(9, 20)), "each item is computed once"
    assert (report.items, report.skipped) == (11, 9)
    after = finished(tmp_path / "out")
    assert {name: after[name] for name in before} == before, "finished items must not be written again"
    for i in range(20):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{i:02}.npy"), 2 * a[i])


@pytest.mark.parametrize("sink", ["file", "map"])
def test_a_stopped_file_goes_on_where_it_was(device, tmp_path, sink) -> None:
    a = items(20)

    def into() -> Any:
        if sink == "file":
            return tmp_path / "out.npy"
        mode = "r+" if (tmp_path / "map.bin").exists() else "w+"
        return np.memmap(tmp_path / "map.bin", np.float32, mode, shape=a.shape)

    with pytest.raises(pipeline.PipelineError, match="chunk 2"):
        pipeline.run(fails_at(2, RuntimeError("off")), a, into(), devices=device, chunk=3)
    with pytest.raises(FileExistsError, match="resume=True"):
        pipeline.run(double, a, into(), devices=device, chunk=3)
    if sink == "file":
        assert not (tmp_path / "out.npy").exists(), "a file gets its name once it is complete"
        with pytest.raises(ValueError, match="of another job"):
            pipeline.run(double, a[:9], into(), devices=device, chunk=3, resume=True)
    report = pipeline.run(double, a, into(), devices=device, chunk=5, resume=True)
    assert (report.skipped, report.items) == (6, 14)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy") if sink == "file" else into(), 2 * a)
    assert not list(tmp_path.glob("*.journal"))


def test_a_function_that_forgets_its_stream_is_told(sim) -> None:
    """The default stream is not ordered with the chunk's stream, so the results would be whatever the buffers held."""
    out = np.full((9, ROWS, COLS), np.nan, np.float32)
    with pytest.raises(cudakit.CudakitError, match=r"uninitialised read|default stream of sim"):
        pipeline.run(lambda chunk, x, y: ops.scale(x, 2.0, out=y), items(9), out, devices=sim, chunk=3)


def test_a_finished_folder_of_other_results_is_not_taken_for_done(device, tmp_path) -> None:
    a = items(4)
    pipeline.run(double, a, tmp_path / "out", devices=device)
    with pytest.raises(ValueError, match="the folder is of another job"):
        pipeline.run(double, a[:, :2], tmp_path / "out", devices=device, resume=True)
    with pytest.raises(ValueError, match="the place for results is a source"):
        pipeline.run(double, tmp_path / "out", tmp_path / "out", devices=device, resume=True)


def test_a_run_that_finished_nothing_is_in_nobodys_way(device, tmp_path) -> None:
    a = items(6)
    for place in ("out", "out.npy"):
        with pytest.raises(pipeline.PipelineError, match="chunk 0"):
            pipeline.run(fails_at(0, RuntimeError("off")), a, tmp_path / place, devices=device, chunk=3)
        pipeline.run(double, 3 * a, tmp_path / place, devices=device, chunk=3)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 6 * a)


def test_out_of_memory_in_the_middle_is_told_with_advice(sim, tmp_path) -> None:
    def hungry(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        if chunk.index == 2:
            sim.context.driver.simInject("out_of_memory")
        with chunk.device.empty(out.shape, np.float32, chunk.stream) as between:
            double(chunk, x, between)
            double(chunk, between, out)

    a = items(12)
    with pytest.raises(pipeline.PipelineError, match=r"chunk 2 .*OutOfMemory.*smaller chunk=") as told:
        pipeline.run(hungry, a, tmp_path / "out.npy", devices=sim, chunk=3)
    assert isinstance(told.value.__cause__, cudakit.OutOfMemory)
    assert told.value.report.items == 6
    sim.context.driver.simClearFaults()
    pipeline.run(double, a[:6], None, devices=sim, chunk=3)


@pytest.mark.parametrize("fault", ["launch_failure", "context_lost"])
def test_a_lost_device_stops_it_with_what_is_finished_on_disk(sim, tmp_path, fault) -> None:
    def dies(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        if chunk.index == 3:
            sim.synchronize()
            sim.context.driver.simInject(fault)
        double(chunk, x, out)

    a = items(18)
    with pytest.raises(pipeline.PipelineError, match=r"chunk \d .* failed in") as told:
        pipeline.run(dies, a, tmp_path / "out", devices=sim, chunk=3, streams=1)
    assert isinstance(told.value.__cause__, cudakit.ContextLost)
    there = finished(tmp_path / "out")
    assert len(there) == told.value.report.items
    for name in there:
        np.testing.assert_array_equal(np.load(tmp_path / "out" / name), 2 * a[int(name[:2])])
    with cudakit.Device("sim", fresh=True) as other:
        pipeline.run(double, a, tmp_path / "out", devices=other, chunk=3, resume=True)
    assert len(finished(tmp_path / "out")) == 18


def test_a_full_disk_stops_it_and_is_no_torn_result(device, tmp_path, monkeypatch) -> None:
    a = items(30)
    write, left = os.pwrite, [12 * (a[0].nbytes + 200)]

    def filling(file: int, data: Any, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", filling)
    with pytest.raises(pipeline.PipelineError, match=r"failed in writing its result: OSError.*No space left") as told:
        pipeline.run(double, a, tmp_path / "out", devices=device, chunk=4)
    monkeypatch.undo()
    assert told.value.stage == "write"
    there = finished(tmp_path / "out")
    assert 8 <= len(there) < 30
    assert not list((tmp_path / "out").glob("*.part"))
    for name in there:
        np.testing.assert_array_equal(np.load(tmp_path / "out" / name), 2 * a[int(name[:2])])
    pipeline.run(double, a, tmp_path / "out", devices=device, chunk=4, resume=True)
    after = finished(tmp_path / "out")
    assert len(after) == 30
    assert {name: after[name] for name in there} == there


def test_too_little_room_is_known_before_it_begins(device, tmp_path) -> None:
    big = pipeline.Filled(lambda start, stop, out: pytest.fail("it was read"), 1 << 40, (64, 64), "float32")
    with pytest.raises(OSError, match="GB are free there"):
        pipeline.run(double, big, tmp_path / "out.npy", devices=device, chunk=4)
    assert not (tmp_path / "out.npy.part").exists()


def test_a_file_cut_short_is_named(device, tmp_path) -> None:
    a = items(9)
    for i in range(9):
        np.save(tmp_path / f"x{i}.npy", a[i])
    whole = (tmp_path / "x5.npy").read_bytes()
    (tmp_path / "x5.npy").write_bytes(whole[:-7])
    out = np.full_like(a, np.nan)
    with pytest.raises(pipeline.PipelineError, match=r"chunk 2 \(items 4 to 5, 'x4' to 'x5'\).*x5.npy ends at byte"):
        pipeline.run(double, tmp_path, out, devices=device, chunk=2)
    np.testing.assert_array_equal(out[:4], 2 * a[:4])
    np.save(tmp_path / "one.npy", a)
    data = (tmp_path / "one.npy").read_bytes()
    (tmp_path / "one.npy").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"one\.npy is truncated"):
        pipeline.run(double, tmp_path / "one.npy", out, devices=device, chunk=2)


def test_a_chunk_that_is_not_finite_is_found_where_it_is(device) -> None:
    a = items(12)
    a[7, 2, 3] = np.nan
    a[8, 0, 0] = np.inf
    out = np.empty_like(a)
    with pytest.raises(
        pipeline.PipelineError, match=r"chunk 2 .*2 values that are not finite, the first at item 7\[2, 3\]"
    ):
        pipeline.run(double, a, out, devices=device, chunk=3, finite=True)
    np.testing.assert_array_equal(out[:6], 2 * a[:6])


def test_a_generator_that_fails_stops_at_its_chunk(device, tmp_path) -> None:
    a = items(8)

    def blocks() -> Iterator[np.ndarray]:
        yield a[:3]
        yield a[3:6]
        raise KeyError("sensor")

    with pytest.raises(pipeline.PipelineError, match=r"chunk 2 .*failed in reading: KeyError: 'sensor'") as told:
        pipeline.run(double, blocks(), tmp_path / "out", devices=device)
    assert told.value.report.items == 6
    assert len(finished(tmp_path / "out")) == 6
    with pytest.raises(pipeline.PipelineError, match="at most 3 items, the chunk size, got 5"):
        pipeline.run(double, (a[s] for s in (slice(0, 3), slice(3, 8))), None, devices=device)


def test_an_interrupt_is_raised_once_what_was_computed_is_written(device, tmp_path) -> None:
    a = items(12)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(fails_at(2, KeyboardInterrupt()), a, tmp_path / "out", devices=device, chunk=3)  # type: ignore[arg-type]
    assert len(finished(tmp_path / "out")) == 6


def test_results_that_are_there_are_not_written_over(device, tmp_path) -> None:
    a = items(6)
    pipeline.run(double, a, tmp_path / "out.npy", devices=device)
    pipeline.run(double, a, tmp_path / "out", devices=device)
    for place in ("out.npy", "out"):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            pipeline.run(double, 3 * a, tmp_path / place, devices=device)
        report = pipeline.run(fails_at(0, RuntimeError()), a, tmp_path / place, devices=device, resume=True)
        assert (report.items, report.skipped) == (0, 6), "a complete run leaves nothing to resume"
        pipeline.run(double, 3 * a, tmp_path / place, devices=device, overwrite=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 6 * a)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "4.npy"), 6 * a[4])


# Files after a run, and existing files --------------------------------------------------------------------------------


def test_a_new_run_into_a_folder_that_stops_is_resumed_without_the_old_results(device, tmp_path) -> None:
    a = items(10)
    pipeline.run(double, a, tmp_path / "out", devices=device)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(fails_at(2, RuntimeError()), 3 * a, tmp_path / "out", devices=device, chunk=2, overwrite=True)
    pipeline.run(double, 3 * a, tmp_path / "out", devices=device, resume=True)
    for i in range(10):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{i}.npy"), 6 * a[i])


def test_a_file_of_an_items_name_that_is_no_result_is_told(device, tmp_path) -> None:
    a = items(6)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(fails_at(1, RuntimeError()), a, tmp_path / "out", devices=device, chunk=3)
    (tmp_path / "out" / "4.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"4\.npy is not a result of this job"):
        pipeline.run(double, a, tmp_path / "out", devices=device, chunk=3, resume=True)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_a_source_that_ends_its_thread_ends_the_run(device, error) -> None:
    def fill(start: int, stop: int, out: np.ndarray) -> None:
        raise error("off")

    with pytest.raises(pipeline.PipelineError, match=r"chunk 0 .*failed in reading"):
        pipeline.run(double, pipeline.Filled(fill, 40, 4, "f4"), None, devices=device, chunk=5, readers=2)


@pytest.mark.parametrize("kind", ["array", "pinned", "map"])
def test_a_generator_fills_its_place_and_no_more(device, tmp_path, kind) -> None:
    a = items(10)

    def place(count: int) -> np.ndarray:
        if kind == "pinned":
            return device.pinned((count, ROWS, COLS))
        if kind == "map":
            return np.memmap(tmp_path / f"{count}.bin", np.float32, "w+", shape=(12, ROWS, COLS))[:count]
        return np.empty((count, ROWS, COLS), np.float32)

    small = place(8)
    with pytest.raises(pipeline.PipelineError, match=r"item 9 is past the end of .*, which has room for 8 items"):
        pipeline.run(double, (a[i : i + 5] for i in (0, 5)), small, devices=device)
    if kind == "map":
        assert not small.base[8:].any(), "bytes after the results must be unchanged"
    with pytest.raises(ValueError, match=r"room for 11 items, got 10"):
        pipeline.run(double, (a[i : i + 5] for i in (0, 5)), place(11), devices=device)
    out = place(7)
    report = pipeline.run(double, (a[i : i + 5] for i in (0, 5)), out, devices=device, count=7)
    assert report.items == 7
    np.testing.assert_array_equal(out, 2 * a[:7])


def test_half_a_line_of_the_journal_is_no_range(device, tmp_path, monkeypatch) -> None:
    a = items(12)
    write = os.write

    def filling(file: int, data: bytes) -> int:
        return write(file, data[:-2] if b"10 12" in data else data)

    monkeypatch.setattr(os, "write", filling)
    with pytest.raises(pipeline.PipelineError, match="No space left"):
        pipeline.run(double, a, tmp_path / "out.npy", devices=device, chunk=2)
    monkeypatch.undo()
    lines = (tmp_path / "out.npy.journal").read_text().splitlines()[1:]
    assert all(len(line.split()) == 2 for line in lines)
    pipeline.run(double, a, tmp_path / "out.npy", devices=device, chunk=2, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * a)


def test_two_maps_of_one_file_and_a_map_onto_itself(device, tmp_path) -> None:
    a = items(8)
    whole = np.memmap(tmp_path / "m.bin", np.float32, "w+", shape=(16, ROWS, COLS))

    def both(chunk: pipeline.Chunk, x: Any, one: Any, other: Any) -> None:
        if chunk.index == 2:
            raise RuntimeError("off")
        double(chunk, x, one)
        double(chunk, one, other)

    halves = (whole[:8], whole[8:])
    described: Any = [((ROWS, COLS), "float32")] * 2
    with pytest.raises(pipeline.PipelineError, match="pass resume=True to continue"):
        pipeline.run(both, a, halves, outputs=described, devices=device, chunk=2)

    def rest(chunk: pipeline.Chunk, x: Any, one: Any, other: Any) -> None:
        double(chunk, x, one)
        double(chunk, one, other)

    report = pipeline.run(rest, a, halves, outputs=described, devices=device, chunk=2, resume=True)
    assert report.skipped == 4
    np.testing.assert_array_equal(whole, np.concatenate([2 * a, 4 * a]))
    pipeline.run(double, whole, whole, devices=device, chunk=3)
    np.testing.assert_array_equal(whole, np.concatenate([4 * a, 8 * a]))
    with pytest.raises(ValueError, match="overwrites its own source"):
        pipeline.run(double, whole, whole, devices=device, chunk=3, resume=True)
    with pytest.raises(ValueError, match="two sinks write to"):
        pipeline.run(rest, a, (tmp_path / "o", tmp_path / "o"), outputs=described, devices=device)
    with pytest.raises(ValueError, match="two sinks write to the same memory"):
        pipeline.run(rest, a, (whole[:8], whole[4:12]), devices=device)


def test_results_replace_their_own_items_and_no_others(device) -> None:
    """Results of a chunk must not overwrite items that a later chunk reads."""
    whole = items(8)
    for source, sink in ((whole[:6], whole[2:]), (whole[1:], whole[:-1]), (whole, whole[::-1])):
        with pytest.raises(ValueError, match="shares memory with other items of a source"):
            pipeline.run(double, source, sink, devices=device, chunk=2)
    with pytest.raises(ValueError, match="shares memory with other items of a source"):
        pipeline.run(double, pipeline.FromArray(whole[:4], repeats=2), whole, devices=device, chunk=2)
    np.testing.assert_array_equal(whole, items(8))
    half = whole.shape[1] // 2
    for source, sink in ((whole, whole), (whole[::2], whole[1::2]), (whole[:, :half], whole[:, half : 2 * half])):
        expected = 2 * source
        pipeline.run(double, source, sink, devices=device, chunk=2)
        np.testing.assert_array_equal(sink, expected)


def test_items_that_are_numbers_are_replaced_by_their_own_results_only(device) -> None:
    numbers = np.arange(8, dtype=np.float32)
    with pytest.raises(ValueError, match="shares memory with other items of a source"):
        pipeline.run(double, numbers[:6], numbers[2:], devices=device, chunk=2)
    pipeline.run(double, numbers, numbers, devices=device, chunk=2)
    np.testing.assert_array_equal(numbers, 2 * np.arange(8))


def test_a_value_that_is_not_finite_is_traced_to_the_input(device) -> None:
    a = items(40)
    a[3, 1, 1] = np.nan
    with pytest.raises(pipeline.PipelineError, match=r"first at item 3.*input 0 of that item has 1 such values"):
        pipeline.run(double, a, np.empty_like(a), devices=device, chunk=2, streams=1, finite=True)


def test_bfloat16_files_are_resumed_and_read(device, tmp_path) -> None:
    import ml_dtypes

    a = items(4).astype(ml_dtypes.bfloat16)

    pipeline.run(same, a, tmp_path / "o.npy", devices=device)
    assert pipeline.run(same, a, tmp_path / "o.npy", devices=device, resume=True).skipped == 4
    out = np.empty_like(a)
    pipeline.run(same, pipeline.FromFile(tmp_path / "o.npy", "bfloat16"), out, devices=device)
    assert out.tobytes() == a.tobytes()


def test_memory_that_the_pool_holds_is_had_again(tmp_path) -> None:
    with cudakit.Device("sim", fresh=True, memory=64 << 20) as small:
        source = pipeline.Filled(lambda start, stop, out: None, 4, (1 << 20,), "float32")
        for _ in range(3):
            pipeline.run(same, source, None, devices=small)


def test_pinned_memory_is_given_back_while_the_error_is_looked_at(sim) -> None:
    a = items(20)
    with pytest.raises(pipeline.PipelineError) as told:
        pipeline.run(fails_at(2, RuntimeError()), a, np.empty_like(a), devices=sim, chunk=2)
    assert told.value.__traceback__ is not None
    assert sim.context.driver.simStats().pinned == 0


def test_a_slow_progress_function_slows_nothing_and_one_that_fails_loses_nothing(device, tmp_path) -> None:
    a = items(30)
    told: list[int] = []

    def slow(far: pipeline.Progress) -> None:
        told.append(far.items)
        time.sleep(0.1)

    pipeline.run(double, a, None, devices=device, chunk=1, progress=slow)
    assert told[-1] == 30
    assert len(told) < 30, "fewer calls than chunks: calls have a minimum distance in time"

    def fails(far: pipeline.Progress) -> None:
        if far.items == 30:
            raise ArithmeticError("bar")

    with pytest.raises(ArithmeticError, match="bar"):
        pipeline.run(double, a, tmp_path / "out.npy", devices=device, chunk=10, progress=fails)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * a)


def test_nothing_is_left_open(device, tmp_path) -> None:
    a = items(6)
    np.save(tmp_path / "a.npy", a)
    ended: list[str] = []

    def blocks() -> Iterator[np.ndarray]:
        try:
            yield a[:2]
            yield a[2:4]
            yield a[4:]
        finally:
            ended.append("generator")

    def files() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    before = len(files())
    with pytest.raises(TypeError, match="is not a source"):
        pipeline.run(add, (tmp_path / "a.npy", 3), None, devices=device)
    with pytest.raises(ValueError, match=r"neither an .npy file nor a folder"):
        pipeline.run(double, tmp_path / "a.npy", (tmp_path / "b.npy", tmp_path / "c.txt"), devices=device)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(fails_at(0, RuntimeError()), blocks(), tmp_path / "b.npy", devices=device)
    assert ended == ["generator"]
    assert len(files()) <= before
    assert sorted(os.listdir(tmp_path)) == ["a.npy"]


class KeepsItsSpec(pipeline.Sink):
    """A user's sink, which keeps its spec."""

    def open(self, spec: Any) -> list[Any]:
        self.spec = spec
        return []

    def write(self, start: int, stop: int, items: Any) -> None:
        pass


class Holds:
    """A function that holds device memory."""

    def __init__(self, scratch: Any) -> None:
        self.scratch = scratch

    def __call__(self, chunk: pipeline.Chunk, a: Any, out: Any) -> None:
        same(chunk, a, out)


@pytest.mark.parametrize("kind", ["folder", "own"])
def test_a_kept_sink_keeps_neither_the_function_nor_the_device(tmp_path, kind) -> None:
    gc.collect()
    gc.freeze()  # exclude objects of other tests, so that collections are fast
    gc.disable()
    try:
        device = cudakit.Device("sim", fresh=True)
        function, host = Holds(device.zeros((4,), np.float32)), items(7)
        held = {"function": weakref.ref(function), "scratch": weakref.ref(function.scratch)}
        if kind == "folder":
            held["source"] = weakref.ref(host)  # a user's sink holds the source through the label
        held_device = weakref.ref(device)
        sink = pipeline.ToFolder(tmp_path / "out") if kind == "folder" else KeepsItsSpec()
        pipeline.run(function, host, sink, devices=device, chunk=3)
        device.close()
        del function, host, device
        assert [name for name, value in held.items() if value() is not None] == []
        gc.collect()  # a device is part of a reference cycle
        assert held_device() is None
    finally:
        gc.enable()
        gc.collect()
    assert sink is not None


# Progress and reports -------------------------------------------------------------------------------------------------


def test_progress_and_report_tell_how_far_and_how_fast(device) -> None:
    a = items(40)
    told: list[pipeline.Progress] = []

    def slowly(start: int, stop: int, results: np.ndarray) -> None:
        time.sleep(0.02)

    report = pipeline.run(double, a, slowly, devices=device, chunk=4, progress=told.append, timeline=True)
    assert len(told) >= 2
    assert [p.items for p in told] == sorted(p.items for p in told)
    assert (told[-1].items, told[-1].count) == (40, 40)
    assert told[-1].gbps_out > 0
    writes = [span.end - span.begin for span in report.spans if span.stage == "write"]
    assert len(writes) == 10
    assert report.busy["write"] == pytest.approx(sum(writes))
    stages = {span.stage for span in report.spans}
    assert stages == {"read", "write"} | ({"h2d", "compute", "d2h"} if device.kind == "gpu" else set())
    assert all(0 <= span.begin <= span.end for span in report.spans)
    host = [span for span in report.spans if span.stage in ("read", "write")]
    assert max(report.seconds, *(span.end for span in host)) == report.seconds
    assert "40 items in 10 chunks" in str(report)


@pytest.mark.gpu
def test_the_process_grows_by_the_buffers_and_no_more(gpu) -> None:
    """4 GB pass through; at most 256 MB are in memory at a time."""
    big = pipeline.Filled(lambda start, stop, out: out.fill(start), 1000, (1024, 1024), "float32")
    pipeline.run(double, big, None, count=9, devices=gpu, chunk=3)
    report = pipeline.run(double, big, None, devices=gpu, streams=3, readers=2, host_memory=256 << 20)
    assert report.bytes_in == 1000 << 22
    assert report.host_bytes <= 256 << 20
    assert report.host_growth <= (256 << 20) + (32 << 20)


def test_a_captured_function_is_replayed_for_each_chunk(device) -> None:
    a = items(23)
    calls: list[int] = []

    def twice(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        calls.append(len(chunk))
        double(chunk, x, out)
        double(chunk, out, out)

    out = np.empty_like(a)
    step = graph.captured(twice)
    pipeline.run(step, a, out, devices=device, chunk=3, streams=2)
    np.testing.assert_array_equal(out, 4 * a)
    assert sorted(calls) == [2, 3, 3], "captured once for each stream's arrays, and for the short chunk"
    step.close()


@pytest.mark.parametrize("pinned", [False, True])
def test_the_same_work_one_step_after_another(device, pinned) -> None:
    a, b = items(17), items(17, 1)
    out = np.full_like(a, np.nan)

    def keep(start: int, stop: int, results: np.ndarray) -> None:
        out[start:stop] = results

    options: dict[str, Any] = {"device": device, "pinned": pinned, "sink": keep}
    report = pipeline.sequential(add, (a, b), ((ROWS, COLS), "float32"), chunk=5, **options)
    np.testing.assert_array_equal(out, a + b)
    assert (report.items, report.chunks, report.bytes_in) == (17, 4, 2 * a.nbytes)
    assert (report.host_bytes > 0) == pinned
    with pytest.raises(ValueError, match="count must be at most 17, the items of the sources, got 18"):
        pipeline.sequential(add, (a, b), ((ROWS, COLS), "float32"), chunk=5, count=18, **options)
    with pytest.raises(ValueError, match="at least 1 item, got tuple and chunks of 0"):
        pipeline.sequential(add, (a, b), ((ROWS, COLS), "float32"), chunk=0, **options)


def used(device: cudakit.Device) -> int:
    """Return the bytes in use in this process's pool. The device's memory is also used by other processes."""
    context = device.context
    pool = context.call("cuDeviceGetDefaultMemPool", context.device)
    name = context.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    return int(context.call("cuMemPoolGetAttribute", pool, name))


def test_the_link_is_measured_and_given_back(device) -> None:
    before = used(device)
    measured = link.measure([device], 1 << 12)
    assert min(measured.h2d, measured.d2h, measured.both) > 0
    device.synchronize()
    assert used(device) == before
    both = pipeline.Link(h2d=50e9, d2h=40e9, both=30e9)
    assert both.seconds(90 * 10**9, 30 * 10**9) == pytest.approx(1 + 60 / 50)
    assert both.seconds(0, 40 * 10**9) == pytest.approx(1)


@pytest.mark.parametrize("pinned", [True, False])
def test_the_link_is_measured_in_the_memory_of_the_run(device, monkeypatch, pinned) -> None:
    used, copied = [], []
    images = np.ones((12, 8, 8), np.float32)
    source = device.pinned(images.shape, images.dtype) if pinned else images
    source[:] = images

    def measured(devices, nbytes, memory):
        used.append((nbytes, [{array.nbytes for array in arrays} for arrays in (memory.sources, memory.results)]))
        copied.append([array.ctypes.data for array in memory.sources])
        return pipeline.Link(1.0, 2.0, 1.5)

    def work(execution):
        assert execution._link().both == 1.5
        return work_of(execution)

    work_of = Execution._work
    monkeypatch.setattr(link, "measure", measured)
    monkeypatch.setattr(Execution, "_work", work)
    out = np.empty_like(images)
    pipeline.run(
        lambda chunk, x, y: ops.scale(x, 2.0, out=y, stream=chunk.stream), source, out, chunk=4, devices=device
    )
    assert used == [(4 * 256, [{4 * 256}, {4 * 256}])]
    assert (source.ctypes.data in copied[0]) == pinned
    np.testing.assert_array_equal(out, 2 * images)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0), ([(1, 3)], 2), ([(1, 3), (2, 5)], 4), ([(4, 5), (1, 2), (1, 2)], 2), ([(0, 9), (2, 3), (8, 10)], 10)],
)
def test_seconds_in_which_several_streams_compute_count_once(spans, seconds) -> None:
    assert covered(spans) == pytest.approx(seconds)
    report = pipeline.PipelineReport(["a", "b"], 2, 1, 4, 0, 0, seconds=20.0, computing=covered(spans))
    assert report.compute_share == pytest.approx(seconds / 40)
    report.computing = None
    assert report.compute_share is None


@pytest.mark.gpu
def test_the_bound_is_measured_in_the_run(gpu) -> None:
    a = gpu.pinned((64, 512, 512))
    a[:] = 1
    out = gpu.pinned((64 * 20, 512, 512))
    report = pipeline.run(double, pipeline.FromArray(a, 20), out, devices=gpu, chunk=64, streams=3, measure=True)
    assert {"link", "compute"} <= set(report.bounds)
    assert report.link is not None
    assert min(report.link.h2d, report.link.d2h, report.link.both) > 0
    assert report.bounds["link"] == pytest.approx(report.link.seconds(report.bytes_in, report.bytes_out))
    assert report.bound == max(report.bounds.values()) == report.bounds[str(report.bound_by)]
    assert report.share == pytest.approx(report.bound / report.seconds)
    assert report.computing is not None
    assert 0 < report.computing <= 1.001 * report.busy["compute"]
    assert report.compute_share == pytest.approx(report.computing / report.seconds)
    assert report.streams_by_rule == pytest.approx(2 * report.bounds["compute"] / report.bounds["link"] + 1)
    assert f"{report.share:.0%} of the bound" in str(report)
