"""Zarr arrays as sources and sinks of pipelines."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copying import recorded, same, stops_at

import cudakit
from cudakit import ops, pipeline

zarr = pytest.importorskip("zarr", minversion="3", reason="needs the zarr extra")

COUNT = 23
ITEMS = np.random.default_rng(0).standard_normal((COUNT, 6, 5), dtype=np.float32)

#: Ways to store 23 items of 6 x 5.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"chunks": 4, "compressors": None},
    "compressed": {"chunks": 4},
    "default": {},
    "cut items": {"chunks": (3, 4, 5)},
    "shards": {"chunks": 2, "shards": 6},
    "plain shards": {"chunks": (2, 6, 5), "shards": (4, 6, 5), "compressors": None},
}


def shapes(kind: dict[str, Any]) -> dict[str, Any]:
    """The options of zarr.create_array for a kind."""
    whole = {
        name: (value, 6, 5) if isinstance(value, int) else value
        for name, value in kind.items()
        if name != "compressors"
    }
    return {**kind, **whole}


def files(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chunk_files(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(folder).items() if name.startswith("c/")}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_items_go_from_zarr_to_zarr(device: cudakit.Device, tmp_path: Path, kind: str, threads: int) -> None:
    source = zarr.create_array(tmp_path / "in.zarr", shape=ITEMS.shape, dtype="f4", **shapes(KINDS[kind]))
    source[:] = ITEMS
    report = pipeline.run(
        same, tmp_path / "in.zarr", pipeline.ToZarr(tmp_path / "out.zarr", **KINDS[kind]), devices=device,
        readers=threads, writers=threads,
    )  # fmt: skip
    assert report.items == COUNT
    result = zarr.open_array(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(result[:], ITEMS)
    if kind != "default":
        assert (result.chunks, result.shards) == (source.chunks, source.shards)
    assert names(tmp_path) == ["in.zarr", "out.zarr"]
    assert not [name for name in files(tmp_path / "out.zarr") if ".part" in name]


def test_a_plain_path_is_enough(device: cudakit.Device, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "in.zarr", data=ITEMS, chunks=(5, 6, 5))
    (tmp_path / "in.zarr").rename(tmp_path / "named")  # a folder that holds zarr.json
    pipeline.run(same, str(tmp_path / "named"), f"file://{tmp_path}/out.zarr", devices=device, chunk=10)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], ITEMS)


@pytest.mark.parametrize("kind", ["plain", "compressed", "cut items", "shards"])
@pytest.mark.parametrize("span", [(0, COUNT), (3, 17), (5, 6), (19, COUNT), (8, 12), (7, 7)])
def test_any_range_can_be_read_in_another_process(tmp_path: Path, kind: str, span: tuple[int, int]) -> None:
    group = zarr.open_group(tmp_path / "store.zarr", mode="w")
    array = group.create_array("deep/er", shape=ITEMS.shape, dtype="f4", fill_value=np.nan, **shapes(KINDS[kind]))
    array[:15] = ITEMS[:15]  # later chunks do not exist: they have the fill value
    expected = ITEMS.copy()
    expected[15:] = np.nan
    start, stop = span
    for given in ((tmp_path / "store.zarr", "deep/er"), (tmp_path / "store.zarr/deep/er",), (array,)):
        source = pickle.loads(pickle.dumps(pipeline.FromZarr(*given)))
        into = np.zeros((stop - start, 6, 5), np.float32)
        source.read(start, stop, into)
        np.testing.assert_array_equal(into, expected[start:stop])
        assert source.unit == (1 if kind == "plain" else array.chunks[0])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "complex64", "bool"])
def test_the_numbers_of_numpy_are_kept(device: cudakit.Device, tmp_path: Path, dtype: str) -> None:
    items = (10 * ITEMS).astype(dtype)
    for kind in ("plain", "compressed"):
        pipeline.run(same, items, pipeline.ToZarr(tmp_path / f"{kind}.zarr", **KINDS[kind]), devices=device)
        out = np.zeros_like(items)
        pipeline.run(same, tmp_path / f"{kind}.zarr", out, devices=device)
        np.testing.assert_array_equal(out, items)


def test_arrays_of_format_2_and_of_big_endian_numbers_are_read(device: cudakit.Device, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "two.zarr", data=ITEMS, chunks=(4, 6, 5), zarr_format=2)
    big = zarr.create_array(
        tmp_path / "big.zarr", shape=ITEMS.shape, dtype="f4", chunks=(4, 6, 5), compressors=None,
        serializer=zarr.codecs.BytesCodec(endian="big"),
    )  # fmt: skip
    big[:] = ITEMS
    for name in ("two.zarr", "big.zarr"):
        out = np.zeros_like(ITEMS)
        pipeline.run(same, tmp_path / name, out, devices=device)
        np.testing.assert_array_equal(out, ITEMS)


def test_every_bit_is_kept_although_it_equals_the_fill_value(device: cudakit.Device, tmp_path: Path) -> None:
    items = np.zeros((16, 4), np.float32)
    items[:4] = -0.0
    items[4:8].view(np.uint32)[...] = 0x7FC00123  # NaNs with a payload
    for number, kind in enumerate(({"compressors": None}, {}, {"shards": 8})):
        for fill in (0.0, np.nan):
            array = zarr.create_array(
                tmp_path / f"{number}{fill}.zarr", shape=items.shape, dtype="f4", chunks=(4, 4), fill_value=fill,
                **({**kind, "shards": (8, 4)} if "shards" in kind else kind),
            )  # fmt: skip
            pipeline.run(same, items, pipeline.ToZarr(array), devices=device)
            assert array[:].tobytes() == items.tobytes()
            out = np.ones_like(items)
            pipeline.run(same, array, out, devices=device)
            assert out.tobytes() == items.tobytes()


@pytest.mark.parametrize("kind", ["plain", "compressed", "shards", "default"])
def test_no_items_make_an_empty_array(device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    pipeline.run(same, ITEMS[:0], pipeline.ToZarr(tmp_path / "out.zarr", **KINDS[kind]), devices=device)
    assert zarr.open_array(tmp_path / "out.zarr", mode="r").shape == (0, 6, 5)
    report = pipeline.run(same, tmp_path / "out.zarr", None, devices=device)
    assert report.items == 0


@pytest.mark.parametrize("kind", ["plain", "compressed", "shards"])
def test_a_generator_fills_an_array_of_unknown_length(device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    def blocks() -> Iterator[Any]:
        for start in range(0, COUNT, 5):
            yield ITEMS[start : start + 5]

    pipeline.run(same, blocks(), pipeline.ToZarr(tmp_path / "out.zarr", **KINDS[kind]), devices=device)
    result = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert result.shape == ITEMS.shape
    np.testing.assert_array_equal(result[:], ITEMS)


def test_several_outputs_attributes_and_groups(device: cudakit.Device, tmp_path: Path) -> None:
    def both(chunk: pipeline.Chunk, x: Any, once: Any, twice: Any) -> None:
        same(chunk, x, once)
        ops.scale(x, 2.0, out=twice, stream=chunk.stream)

    store = tmp_path / "out.zarr"
    sinks = (
        pipeline.ToZarr(store, "raw/once", chunks=4, attributes={"unit": "m"}),
        pipeline.ToZarr(store, "raw/twice", shards=6),
    )  # fmt: skip
    pipeline.run(both, ITEMS, sinks, devices=device)
    group = zarr.open_group(store, mode="r")
    np.testing.assert_array_equal(group["raw/once"][:], ITEMS)
    np.testing.assert_array_equal(group["raw/twice"][:], 2 * ITEMS)
    assert dict(group["raw/once"].attrs) == {"unit": "m"}
    assert names(tmp_path) == ["out.zarr"]
    assert names(store / "raw") == ["once", "twice", "zarr.json"]


# Chunks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunk", "items"), [(None, None), (8, 8), (7, 7), (20, 20), (1000, COUNT)])
def test_the_chunks_of_an_array_divide_those_of_the_pipeline(
    device: cudakit.Device, tmp_path: Path, chunk: int | None, items: int | None
) -> None:
    report = pipeline.run(same, ITEMS, tmp_path / "out.zarr", devices=device, chunk=chunk)
    result = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert report.chunk % result.chunks[0] == 0
    assert items is None or result.chunks[0] == items
    np.testing.assert_array_equal(result[:], ITEMS)


@pytest.mark.parametrize("items", [1, 3, 5, COUNT])
def test_by_default_an_array_has_the_chunks_of_its_source(device: cudakit.Device, tmp_path: Path, items: int) -> None:
    zarr.create_array(tmp_path / "in.zarr", data=ITEMS, chunks=(items, 6, 5))
    report = pipeline.run(same, tmp_path / "in.zarr", tmp_path / "out.zarr", devices=device)
    chunks = zarr.open_array(tmp_path / "out.zarr", mode="r").chunks
    assert chunks[0] % items == 0
    assert report.chunk % chunks[0] == 0


def test_large_items_have_small_chunks(device: cudakit.Device, tmp_path: Path) -> None:
    source = pipeline.Filled(lambda start, stop, out: out.fill(start), 96, (256, 128), "float32")
    pipeline.run(same, source, tmp_path / "out.zarr", devices=device, chunk=24)
    assert zarr.open_array(tmp_path / "out.zarr", mode="r").chunks == (2, 256, 128)  # 256 KiB


def test_a_chunk_that_does_not_fit_is_rejected_before_anything_is_written(
    device: cudakit.Device, tmp_path: Path
) -> None:
    sink = pipeline.ToZarr(tmp_path / "out.zarr", chunks=2, shards=6)
    with pytest.raises(ValueError, match=r"chunk must be a multiple of 6, .* got 8: pass 6 or 12"):
        pipeline.run(same, ITEMS, sink, devices=device, chunk=8)
    assert names(tmp_path) == []


def test_no_stored_chunk_has_two_writers(
    device: cudakit.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is written once, in a run and in the run that resumes it with two outputs of other units."""
    from cudakit.pipeline.chunk_files import ChunkFiles

    put, seen = ChunkFiles.put, []

    def spied(self: ChunkFiles, key: str, data: Any) -> None:
        seen.append((self.folder.name, key))
        put(self, key, data)

    def both(chunk: pipeline.Chunk, x: Any, one: Any, other: Any) -> None:
        if chunk.start >= stop:
            raise RuntimeError("off")
        same(chunk, x, one)
        same(chunk, x, other)

    def sinks() -> tuple[Any, Any]:
        return (
            pipeline.ToZarr(tmp_path / "a.zarr", chunks=2, compressors=None),
            pipeline.ToZarr(tmp_path / "b.zarr", chunks=3),
        )

    monkeypatch.setattr(ChunkFiles, "put", spied)
    stop = 12
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(both, ITEMS, sinks(), devices=device, writers=3, chunk=6)
    stop = COUNT
    pipeline.run(both, ITEMS, sinks(), devices=device, writers=3, chunk=6, resume=True)
    assert len(seen) == len(set(seen)) == 12 + 8
    for name in ("a.zarr", "b.zarr"):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name, mode="r")[:], ITEMS)


# Existing arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "cut items", "shards"])
def test_an_existing_array_is_written_in_place(device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    group = zarr.open_group(tmp_path / "store.zarr", mode="w")
    array = group.create_array("a", shape=ITEMS.shape, dtype="f4", fill_value=np.nan, **shapes(KINDS[kind]))
    zarr.create_array(tmp_path / "store.zarr", name="b", data=ITEMS)
    unit = (array.shards or array.chunks)[0]
    with pytest.raises(pipeline.PipelineError, match=r"store\.zarr/a; pass resume=True"):
        pipeline.run(stops_at(1), ITEMS, array, devices=device, chunk=unit)
    assert names(tmp_path) == ["store.zarr", "store.zarr.a.journal"]
    with pytest.raises(pipeline.FileOccupied, match="unfinished run"):
        pipeline.run(same, ITEMS, array, devices=device, chunk=unit)
    report = pipeline.run(same, ITEMS, array, devices=device, chunk=unit, resume=True)
    assert report.skipped == unit
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "store.zarr")["a"][:], ITEMS)
    assert names(tmp_path) == ["store.zarr"]
    assert names(tmp_path / "store.zarr") == ["a", "b", "zarr.json"]


def test_an_array_may_be_its_own_source(device: cudakit.Device, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "in.zarr", data=ITEMS, chunks=(4, 6, 5))

    def doubled(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        ops.scale(x, 2.0, out=out, stream=chunk.stream)

    with pytest.raises(ValueError, match="overwrites its own source"):
        pipeline.run(doubled, array, array, devices=device, resume=True)
    pipeline.run(doubled, array, array, devices=device, readers=2, writers=2)
    np.testing.assert_array_equal(array[:], 2 * ITEMS)
    pipeline.run(doubled, tmp_path / "in.zarr", tmp_path / "in.zarr", devices=device, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "in.zarr")[:], 4 * ITEMS)


def test_an_existing_array_must_fit(device: cudakit.Device, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(COUNT + 1, 6, 5), dtype="f4")
    with pytest.raises(ValueError, match="must have room for 23 items, got 24"):
        pipeline.run(same, ITEMS, array, devices=device)
    with pytest.raises(ValueError, match=r"items of float32\[6, 5\], but the results are float64"):
        pipeline.run(same, ITEMS.astype("f8"), array, devices=device, outputs=((6, 5), "float64"))
    old = zarr.create_array(tmp_path / "two.zarr", shape=ITEMS.shape, dtype="f4", zarr_format=2)
    with pytest.raises(ValueError, match="has format 2: make a new one"):
        pipeline.run(same, ITEMS, old, devices=device)
    with pytest.raises(ValueError, match="must be in local files"):
        pipeline.ToZarr(zarr.create_array({}, shape=ITEMS.shape, dtype="f4"))


# Errors ---------------------------------------------------------------------------------------------------------------


def test_unsupported_sources_and_results_are_named(device: cudakit.Device, tmp_path: Path) -> None:
    with pytest.raises(pipeline.FileMissing, match=r"no\.zarr does not exist"):
        pipeline.run(same, tmp_path / "no.zarr", None, devices=device)
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    zarr.create_array(tmp_path / "g.zarr", name="one", data=ITEMS)
    with pytest.raises(pipeline.ContentsRefused, match=r"is a group of Zarr arrays: pass path=, .*\(one\)"):
        pipeline.run(same, tmp_path / "g.zarr", None, devices=device)
    zarr.create_array(tmp_path / "point.zarr", shape=(), dtype="f4")
    with pytest.raises(ValueError, match="at least 1 axis"):
        pipeline.run(same, tmp_path / "point.zarr", None, devices=device)
    (tmp_path / "bad.zarr").mkdir()
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{")
    with pytest.raises(pipeline.PipelineRefused):
        pipeline.run(same, tmp_path / "bad.zarr", None, devices=device)
    for dtype, advice in (("bfloat16", "store float32, or the bits as uint16"), ("float8_e4m3fn", "uint8")):
        with pytest.raises(ValueError, match=f"Zarr has no dtype {dtype}, which the results have: .*{advice}"):
            pipeline.run(same, ITEMS, tmp_path / "out.zarr", devices=device, outputs=((6, 5), dtype))
    with pytest.raises(ValueError, match="3 extents for items of float32"):
        pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "out.zarr", chunks=(4, 6)), devices=device)
    with pytest.raises(pipeline.FileMissing, match="make it first"):
        pipeline.run(same, ITEMS, tmp_path / "no" / "out.zarr", devices=device)
    with pytest.raises(pipeline.FileRefused, match=r"is a Zarr array, so .* cannot be made in it"):
        pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "g.zarr", "one/two"), devices=device)
    assert names(tmp_path) == ["bad.zarr", "g.zarr", "point.zarr"]


def test_a_missing_package_is_named(device: cudakit.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    for sources, sink in ((tmp_path / "in.zarr", None), (ITEMS, tmp_path / "out.zarr")):
        with pytest.raises(ImportError, match=r"pip install 'cudakit\[zarr\]'"):
            pipeline.run(same, sources, sink, devices=device)
    assert names(tmp_path) == []


def test_a_full_disk_is_found_before_the_run(
    device: cudakit.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 10**6, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(pipeline.FileRefused, match=r"0\.0 GB are free there"):
        pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "out.zarr", compressors=None), devices=device)
    assert names(tmp_path) == []
    pipeline.run(same, ITEMS, tmp_path / "out.zarr", devices=device)  # compressed results may fit


# Resuming, replacing, sharing -----------------------------------------------------------------------------------------


def stopped(device: cudakit.Device, tmp_path: Path, **options: Any) -> Path:
    """Stop a run into out.zarr after 8 of 23 items, in chunks of 4. Returns the output."""
    if not (tmp_path / "in.npy").exists():
        np.save(tmp_path / "in.npy", ITEMS)
    with pytest.raises(pipeline.PipelineError, match=r"out\.zarr\.part; pass resume=True to continue"):
        pipeline.run(
            stops_at(2), tmp_path / "in.npy", pipeline.ToZarr(tmp_path / "out.zarr", **options), devices=device, chunk=4
        )
    return tmp_path / "out.zarr"


@pytest.mark.parametrize("kind", ["plain", "compressed", "default"])
def test_a_stopped_run_is_continued(device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "whole.zarr", **KINDS[kind]), devices=device, chunk=4)
    out = stopped(device, tmp_path, **KINDS[kind])
    assert names(tmp_path) == ["in.npy", "out.zarr.journal", "out.zarr.part", "whole.zarr"]
    with pytest.raises(pipeline.FileOccupied, match="results of an unfinished run"):
        pipeline.run(same, tmp_path / "in.npy", pipeline.ToZarr(out, **KINDS[kind]), devices=device)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out.zarr.part" / "c").rglob("*") if path.is_file()}
    assert len(before) == 2
    sink = pipeline.ToZarr(out, **KINDS[kind])
    report = pipeline.run(same, tmp_path / "in.npy", sink, devices=device, resume=True)
    assert (report.items, report.skipped) == (COUNT - 8, 8)
    for path, written in before.items():
        assert (out / path.relative_to(tmp_path / "out.zarr.part")).stat().st_mtime_ns == written
    assert files(out) == files(tmp_path / "whole.zarr")
    again = pipeline.run(
        stops_at(0), tmp_path / "in.npy", pipeline.ToZarr(out, **KINDS[kind]), devices=device, resume=True
    )
    assert (again.items, again.skipped) == (0, COUNT)
    assert names(tmp_path) == ["in.npy", "out.zarr", "whole.zarr"]


def test_a_resumed_run_keeps_the_default_chunks(device: cudakit.Device, tmp_path: Path) -> None:
    out = stopped(device, tmp_path)
    with pytest.raises(ValueError, match=r"multiple of 4, .* got 6: pass 4 or 8"):
        pipeline.run(same, tmp_path / "in.npy", out, devices=device, chunk=6, resume=True)
    report = pipeline.run(same, tmp_path / "in.npy", out, devices=device, chunk=8, resume=True)
    assert report.skipped == 8
    np.testing.assert_array_equal(zarr.open_array(out)[:], ITEMS)


def part_of(out: Path) -> Path:
    return out.with_name("out.zarr.part")


def other_line(out: Path, lines: str) -> None:
    journal = out.with_name("out.zarr.journal")
    journal.write_text(journal.read_text().splitlines()[0] + "\n" + lines)


@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        (lambda out: np.save(out.with_name("in.npy"), 2 * ITEMS), {}, "sources 0 first was"),
        (lambda out: other_line(out, "0 4\n6 99\n"), {}, "line '6 99' is past the end of 23 items"),
        (lambda out: other_line(out, "0 x\n"), {}, "is not a range of items"),
        (lambda out: other_line(out, "0 3\n"), {}, "its ranges are not whole stored chunks of 4 items"),
        (lambda out: out.with_name("out.zarr.journal").write_text("none\n0 4\n"), {}, "is not the record of a run"),
        (lambda out: None, {"chunks": 2}, "zarr chunk_grid configuration chunk_shape 0 was 4, now 2"),
        (lambda out: None, {"compressors": "auto"}, "zarr codecs was"),
        (
            lambda out: next((part_of(out) / "c/1").rglob("*/0")).unlink(),
            {},
            "0 bytes, .* requires 480",
        ),
        (lambda out: os.truncate(part_of(out) / "c/0/0/0", 9), {}, "c/0/0/0 has 9 bytes, .* 480"),
        (lambda out: (part_of(out) / "zarr.json").unlink(), {}, r"zarr\.json has 0 bytes"),
        (lambda out: (part_of(out) / "zarr.json").write_text("{}"), {}, "not the metadata of a Zarr"),
        (lambda out: shutil.rmtree(part_of(out)), {}, "it has been changed"),
    ],
)
def test_a_resumed_run_refuses_another_job_and_damage(
    device: cudakit.Device, tmp_path: Path, change: Callable[[Path], Any], options: dict[str, Any], why: str
) -> None:
    out = stopped(device, tmp_path, chunks=4, compressors=None)
    change(out)
    options = {"chunks": 4, "compressors": None} | options
    before = files(tmp_path)
    with pytest.raises(pipeline.ContentsRefused, match=why):
        pipeline.run(same, tmp_path / "in.npy", pipeline.ToZarr(out, **options), devices=device, resume=True)
    assert files(tmp_path) == before
    pipeline.run(same, tmp_path / "in.npy", pipeline.ToZarr(out, **options), devices=device, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(out)[:], np.load(tmp_path / "in.npy"))


def test_only_arrays_are_replaced(device: cudakit.Device, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    pipeline.run(same, ITEMS, out, devices=device, chunk=4)
    with pytest.raises(pipeline.FileOccupied, match="already exists"):
        pipeline.run(same, 2 * ITEMS, out, devices=device)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(1), 2 * ITEMS, out, devices=device, chunk=4, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], ITEMS)  # there until the new one is complete
    pipeline.run(same, 2 * ITEMS, out, devices=device, chunk=4, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], 2 * ITEMS)
    assert names(tmp_path) == ["out.zarr"]
    for name in ("group.zarr", "mine.zarr"):
        zarr.open_group(tmp_path / name, mode="w")
        zarr.create_array(tmp_path / name, name="a", data=ITEMS)
    (tmp_path / "mine.zarr" / "zarr.json").unlink()
    for name in ("group.zarr", "mine.zarr"):
        before = files(tmp_path / name)
        with pytest.raises(pipeline.FileOccupied, match="is not a Zarr array, so overwrite=True does not remove it"):
            pipeline.run(same, ITEMS, tmp_path / name, devices=device, overwrite=True)
        assert files(tmp_path / name) == before
    (tmp_path / "new.zarr.part").mkdir()
    with pytest.raises(pipeline.FileOccupied, match="exists without a journal"):
        pipeline.run(same, ITEMS, tmp_path / "new.zarr", devices=device)


def test_a_source_that_was_changed_later_is_found(device: cudakit.Device, tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "in.zarr", data=ITEMS, chunks=(4, 6, 5))
    pipeline.run(same, tmp_path / "in.zarr", tmp_path / "out.zarr", devices=device)
    source[-1] = 7
    with pytest.raises(pipeline.ContentsRefused, match="was changed after that result was written"):
        pipeline.run(same, tmp_path / "in.zarr", tmp_path / "out.zarr", devices=device, resume=True)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(1), tmp_path / "in.zarr", tmp_path / "new.npy", devices=device, chunk=4)
    source[-1] = 8
    with pytest.raises(pipeline.ContentsRefused, match="sources 0 files was"):
        pipeline.run(same, tmp_path / "in.zarr", tmp_path / "new.npy", devices=device, chunk=4, resume=True)


def test_a_second_run_is_refused(device: cudakit.Device, tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def held(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        inside.set()
        assert go.wait(30)
        same(chunk, x, out)

    out = tmp_path / "out.zarr"
    first = threading.Thread(target=lambda: pipeline.run(held, ITEMS, out, devices=device, chunk=4))
    first.start()
    try:
        assert inside.wait(30)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(pipeline.OutputBusy, match=f"written by process {os.getpid()}"):
                pipeline.run(same, ITEMS, out, devices=device, **options)
    finally:
        go.set()
        first.join()
    np.testing.assert_array_equal(zarr.open_array(out)[:], ITEMS)


KILLED = """
import sys, time
import numpy as np
import cudakit
from cudakit import pipeline

def slow(chunk, x, out):
    time.sleep(0.02)
    out.copy_from(x, chunk.stream)

pipeline.run(slow, sys.argv[1], pipeline.ToZarr(sys.argv[2], chunks=2), devices=cudakit.Device("sim"), chunk=2)
"""


def test_kill_9_loses_no_recorded_chunk(device: cudakit.Device, tmp_path: Path) -> None:
    items = np.random.default_rng(1).standard_normal((200, 33), dtype=np.float32)
    np.save(tmp_path / "in.npy", items)
    (tmp_path / "run.py").write_text(KILLED)
    out, journal = tmp_path / "out.zarr", tmp_path / "out.zarr.journal"
    process = subprocess.Popen([sys.executable, tmp_path / "run.py", tmp_path / "in.npy", out])

    while recorded(journal) < 12:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = recorded(journal)
    report = pipeline.run(same, tmp_path / "in.npy", pipeline.ToZarr(out, chunks=2), devices=device, resume=True)
    assert report.skipped == kept < 200
    assert report.items == 200 - kept
    np.testing.assert_array_equal(zarr.open_array(out)[:], items)
    assert names(tmp_path) == ["in.npy", "out.zarr", "run.py"]
    assert not [name for name in files(out) if ".part" in name]


# Portions -------------------------------------------------------------------------------------------------------------


class Origin:
    """The sources of a run, for a sink that is opened without one."""

    named = False
    identity: tuple[Any, ...] = ()


def spec_of(items: Any) -> pipeline.SinkSpec:
    return pipeline.SinkSpec(pipeline.Item.of(items.shape[1:], items.dtype), len(items), Origin())  # type: ignore[arg-type]


def write_portion(sink: pipeline.Sink, attempt: str, start: int, stop: int, finish: bool = True) -> Any:
    """Write a share as a worker does, in pieces of the unit. Returns the portion."""
    portion = pickle.loads(pickle.dumps(sink.portion(attempt)))
    portion.open(spec_of(ITEMS))
    for begin in range(start, stop, sink.unit):
        end = min(begin + sink.unit, stop)
        portion.write(begin, end, ITEMS[begin:end].copy())
    if finish:
        portion.finish(stop - start)
        portion.close()
    return portion


@pytest.mark.parametrize("kind", ["plain", "compressed", "cut items", "shards"])
def test_portions_are_adopted_in_any_order_or_discarded(device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "whole.zarr", **KINDS[kind]), devices=device)
    sink = pipeline.ToZarr(tmp_path / "out.zarr", **KINDS[kind])
    assert sink.open(spec_of(ITEMS)) == []
    shares = [(start, min(start + 2 * sink.unit, COUNT)) for start in range(0, COUNT, 2 * sink.unit)]
    for number, (start, stop) in reversed(list(enumerate(shares))):
        write_portion(sink, f"run-{number}", start, stop)
        write_portion(sink, f"twice-{number}", start, stop)
        assert not (tmp_path / "out.zarr").exists()
        sink.adopt(f"run-{number}", start, stop)
        sink.discard(f"twice-{number}")
        sink.discard("never-started")
        assert names(tmp_path / "out.zarr.shares") == []
    sink.finish(COUNT)
    sink.close()
    assert files(tmp_path / "out.zarr") == files(tmp_path / "whole.zarr")
    assert names(tmp_path) == ["out.zarr", "whole.zarr"]


def test_a_portion_that_was_discarded_fails_and_makes_nothing(tmp_path: Path) -> None:
    sink = pipeline.ToZarr(tmp_path / "out.zarr", chunks=4)
    sink.open(spec_of(ITEMS))
    zombie = write_portion(sink, "one", 0, 8, finish=False)
    sink.discard("one")
    for start in (0, 8):
        with pytest.raises(FileNotFoundError):
            zombie.write(start, start + 4, ITEMS[start : start + 4])
    assert names(tmp_path / "out.zarr.shares") == []
    late = sink.portion("two")
    write_portion(sink, "three", 8, 12)
    sink.adopt("three", 8, 12)
    sink.close()
    with pytest.raises(pipeline.FileMissing):  # the run has ended
        late.open(spec_of(ITEMS))
    assert names(tmp_path) == ["out.zarr.journal", "out.zarr.part"]
    assert list(chunk_files(tmp_path / "out.zarr.part")) == ["c/2/0/0"]
    assert (tmp_path / "out.zarr.journal").read_text().splitlines()[1:] == ["8 12"]


def test_a_share_that_lacks_a_chunk_is_not_recorded(tmp_path: Path) -> None:
    sink = pipeline.ToZarr(tmp_path / "out.zarr", chunks=4)
    sink.open(spec_of(ITEMS))
    write_portion(sink, "one", 0, 8)
    with pytest.raises(FileNotFoundError):
        sink.adopt("one", 0, 12)
    with pytest.raises(ValueError, match="multiple of 4 items, got item 6"):
        sink.write(6, 8, ITEMS[6:8])
    sink.close()
    assert not (tmp_path / "out.zarr.journal").exists()


# Object stores --------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


@pytest.mark.parametrize("kind", ["plain", "compressed", "shards"])
def test_an_object_store_has_the_same_chunks(device: cudakit.Device, tmp_path: Path, memory: Any, kind: str) -> None:
    pipeline.run(same, ITEMS, pipeline.ToZarr(tmp_path / "whole.zarr", **KINDS[kind]), devices=device)
    sink = pipeline.ToZarr("memory://bucket/out.zarr", "a/b", **KINDS[kind])
    assert "no rename" in sink.promise
    pipeline.run(same, ITEMS, sink, devices=device, writers=2)
    found = {path: memory.cat_file(path) for path in memory.find("/bucket/out.zarr/a/b")}
    expected = files(tmp_path / "whole.zarr")
    assert {path.removeprefix("/bucket/out.zarr/a/b/"): data for path, data in found.items()} == expected
    assert sorted(memory.find("/bucket")) == sorted(
        [*found, "/bucket/out.zarr/zarr.json", "/bucket/out.zarr/a/zarr.json"]
    )
    out = np.zeros_like(ITEMS)
    source = pipeline.FromZarr("memory://bucket/out.zarr", "a/b")
    pipeline.run(same, source, out, devices=device, readers=2)
    np.testing.assert_array_equal(out, ITEMS)
    assert "this process's memory" in source.private
    assert sink.private


def test_a_run_into_an_object_store_is_resumed(device: cudakit.Device, memory: Any) -> None:
    url = "memory://bucket/out.zarr"
    with pytest.raises(pipeline.PipelineError, match="pass resume=True"):
        pipeline.run(stops_at(2), ITEMS, pipeline.ToZarr(url, chunks=4), devices=device, chunk=4)
    assert not memory.exists("/bucket/out.zarr/zarr.json")  # readers find only complete arrays
    assert sorted(memory.find("/bucket/out.zarr.cudakit")) == [
        f"/bucket/out.zarr.cudakit/{name}" for name in ("done/0-4", "done/4-8", "job.json")
    ]
    with pytest.raises(pipeline.FileOccupied, match="unfinished run"):
        pipeline.run(same, ITEMS, pipeline.ToZarr(url, chunks=4), devices=device)
    with pytest.raises(pipeline.ContentsRefused, match="sources 0 first was"):
        pipeline.run(same, 2 * ITEMS, pipeline.ToZarr(url, chunks=4), devices=device, resume=True)
    memory.pipe_file("/bucket/out.zarr.cudakit/done/8-99", b"")
    with pytest.raises(pipeline.ContentsRefused, match="'8-99' is not a range of the items"):
        pipeline.run(same, ITEMS, url, devices=device, resume=True)
    memory.rm_file("/bucket/out.zarr.cudakit/done/8-99")
    kept = memory.cat_file("/bucket/out.zarr/c/1/0/0")
    memory.rm_file("/bucket/out.zarr/c/1/0/0")
    with pytest.raises(pipeline.ContentsRefused, match="c/1/0/0 has 0 bytes"):
        pipeline.run(same, ITEMS, url, devices=device, resume=True)
    memory.pipe_file("/bucket/out.zarr/c/1/0/0", kept)
    report = pipeline.run(same, ITEMS, url, devices=device, resume=True)
    assert report.skipped == 8
    np.testing.assert_array_equal(zarr.open_array(url, mode="r")[:], ITEMS)
    assert pipeline.run(stops_at(0), ITEMS, url, devices=device, resume=True).skipped == COUNT
    with pytest.raises(pipeline.FileOccupied, match="already exists"):
        pipeline.run(same, ITEMS, url, devices=device)
    with pytest.raises(ValueError, match="is a source"):
        pipeline.run(same, url, url, devices=device, overwrite=True)
    pipeline.run(same, 3 * ITEMS[:5], url, devices=device, overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(url, mode="r")[:], 3 * ITEMS[:5])
    assert all(path.startswith("/bucket/out.zarr/") for path in memory.find("/bucket"))


def test_the_lock_of_an_object_store(device: cudakit.Device, memory: Any) -> None:
    url = "memory://bucket/out.zarr"

    def nested(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        with pytest.raises(pipeline.OutputBusy, match=f"written by process {os.getpid()} on "):
            pipeline.run(same, ITEMS, url, devices=device, overwrite=True)
        same(chunk, x, out)

    pipeline.run(nested, ITEMS, url, devices=device, chunk=COUNT)
    assert not memory.exists("/bucket/out.zarr.cudakit/lock-0")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held = {"host": socket.gethostname(), "pid": ended.pid}
    memory.pipe_file("/bucket/out.zarr.cudakit/lock-3", json.dumps(held).encode())
    pipeline.run(same, ITEMS, url, devices=device, overwrite=True)  # of a process that has ended
    assert memory.find("/bucket/out.zarr.cudakit") == []
    memory.pipe_file("/bucket/out.zarr.cudakit/lock-0", json.dumps({**held, "host": "elsewhere"}).encode())
    with pytest.raises(pipeline.OutputBusy, match=r"remove the object .*out\.zarr\.cudakit/lock-0") as busy:
        pipeline.run(same, ITEMS, url, devices=device, overwrite=True)
    assert busy.value.pid == ended.pid


def test_a_store_without_exclusive_create_is_refused(
    device: cudakit.Device, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(memory).pipe_file

    def overwriting(self: Any, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        real(self, path, value)

    def without_modes(self: Any, path: str, value: bytes) -> None:
        real(self, path, value)

    for wrong, why in ((overwriting, "it replaced an object"), (without_modes, "TypeError")):
        monkeypatch.setattr(type(memory), "pipe_file", wrong)
        with pytest.raises(pipeline.FileRefused, match=f"cannot create an object only if it does not exist .*{why}"):
            pipeline.run(same, ITEMS, "memory://bucket/out.zarr", devices=device)
        assert memory.find("/bucket") == []
