"""HDF5, TIFF and Parquet files as sources and sinks of pipelines."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copying import same, stops_at

import cudakit
from cudakit import pipeline

COUNT = 23
ITEMS = np.random.default_rng(0).standard_normal((COUNT, 6, 5), dtype=np.float32)


def blocks() -> Iterator[Any]:
    for start in range(0, COUNT, 5):
        yield ITEMS[start : start + 5]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spec(count: int = COUNT, items: Any = ITEMS) -> pipeline.SinkSpec:
    from cudakit.pipeline.origin import RunOrigin

    item = pipeline.Item.of(items.shape[1:], items.dtype)
    return pipeline.SinkSpec(item, count, RunOrigin([pipeline.FromArray(items)], count))


def read_all(given: Any) -> np.ndarray:
    """The items that a source reads after it was sent to another process, in ranges of three."""
    source = pickle.loads(pickle.dumps(given))
    out = np.empty((source.count, *source.item.shape), source.item.dtype)
    for start in range(0, source.count, 3):
        stop = min(start + 3, source.count)
        source.read(start, stop, out[start:stop])
    source.close()
    return out


def through_portions(sink: pipeline.Sink, items: Any = ITEMS) -> None:
    """Write items as a cluster's workers do: one share is discarded and computed again."""
    count, middle = len(items), len(items) // 2
    assert not sink.private
    wanted = spec(count, items)
    assert sink.open(wanted) == []
    for attempt, start, stop, lost in [
        ("a", 0, middle, False),
        ("b", middle, count, True),
        ("c", middle, count, False),
    ]:
        portion = pickle.loads(pickle.dumps(sink.portion(attempt)))
        portion.open(wanted)
        for at in range(start, stop, 4):
            portion.write(at, min(at + 4, stop), items[at : min(at + 4, stop)])
        if lost:
            portion.close()
            sink.discard(attempt)
            continue
        portion.finish(stop - start)
        portion.close()
        sink.adopt(attempt, start, stop)
    sink.finish(count)
    sink.close()


# HDF5 -----------------------------------------------------------------------------------------------------------------

HDF5 = {"plain": {}, "chunks": {"chunks": 4}, "cut": {"chunks": (3, 4, 5)}, "gzip": {"compression": "gzip"}}


@pytest.fixture
def h5py() -> Any:
    return pytest.importorskip("h5py", reason="needs the hdf5 extra")


@pytest.mark.parametrize("kind", HDF5)
@pytest.mark.parametrize("threads", [1, 3])
def test_items_go_from_hdf5_to_hdf5(h5py: Any, device: cudakit.Device, tmp_path: Path, kind: str, threads: int) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        options = {**HDF5[kind], "chunks": (4, 6, 5)} if kind == "chunks" else HDF5[kind]
        file.create_dataset("entry/images", data=ITEMS, **options)
    sink = pipeline.ToHDF5(tmp_path / "out.h5", "a/b/c", **HDF5[kind])
    pipeline.run(same, tmp_path / "in.h5", sink, devices=device, readers=threads, writers=threads)
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["a/b/c"][:], ITEMS)
        assert file["a/b/c"].compression == HDF5[kind].get("compression")
    assert names(tmp_path) == ["in.h5", "out.h5"]
    np.testing.assert_array_equal(read_all(pipeline.FromHDF5(tmp_path / "in.h5")), ITEMS)


@pytest.mark.parametrize("kind", HDF5)
def test_a_generator_fills_an_hdf5_file(h5py: Any, device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    pipeline.run(same, blocks(), pipeline.ToHDF5(tmp_path / "out.hdf5", **HDF5[kind]), devices=device)
    np.testing.assert_array_equal(read_all(pipeline.FromHDF5(tmp_path / "out.hdf5", "data")), ITEMS)


@pytest.mark.parametrize("dtype", ["float16", "uint8", ">i4", "complex64", "bool", ">f8"])
def test_hdf5_keeps_numbers(h5py: Any, device: cudakit.Device, tmp_path: Path, dtype: str) -> None:
    items = (10 * ITEMS).astype(dtype)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["data"] = items
    pipeline.run(same, tmp_path / "in.h5", tmp_path / "out.h5", devices=device)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["data"].dtype == items.dtype.newbyteorder("=")
        np.testing.assert_array_equal(file["data"][:], items)


def test_a_string_names_a_file_and_its_dataset(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["entry/data"], file["entry/dark"] = ITEMS, 2 * ITEMS
    pipeline.run(same, f"{tmp_path}/in.h5::entry/dark", tmp_path / "out.hdf5::a/b.npy", devices=device)
    with h5py.File(tmp_path / "out.hdf5") as file:
        np.testing.assert_array_equal(file["a/b.npy"][:], 2 * ITEMS)
    assert names(tmp_path) == ["in.h5", "out.hdf5"]
    out = np.zeros_like(ITEMS)
    pipeline.run(same, f"{tmp_path}/in.h5::/entry/data", out, devices=device)
    np.testing.assert_array_equal(out, ITEMS)
    with pytest.raises(pipeline.ContentsRefused, match="no dataset 'entry/flat': pass dataset=, one of entry/dark"):
        pipeline.run(same, f"{tmp_path}/in.h5::entry/flat", None, devices=device)
    for given in ("in.h5::", "in.h5::/"):
        with pytest.raises(ValueError, match="has no dataset after the ::"):
            pipeline.run(same, f"{tmp_path}/{given}", None, devices=device)
    with pytest.raises(ValueError, match="is a source"):
        pipeline.run(same, f"{tmp_path}/in.h5::entry/data", f"{tmp_path}/in.h5::c", devices=device, overwrite=True)


def test_no_items_make_an_empty_dataset(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    pipeline.run(same, ITEMS[:0], tmp_path / "out.h5", devices=device)
    assert pipeline.FromHDF5(tmp_path / "out.h5").count == 0


def test_a_stopped_run_into_hdf5_continues(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), ITEMS, out, devices=device, chunk=4, streams=1)
    assert names(tmp_path) == ["out.h5.journal", "out.h5.part"]
    with pytest.raises(pipeline.FileOccupied, match="resume=True"):
        pipeline.run(same, ITEMS, out, devices=device)
    report = pipeline.run(same, ITEMS, out, devices=device, resume=True)
    assert report.items < COUNT
    np.testing.assert_array_equal(read_all(pipeline.FromHDF5(out)), ITEMS)
    assert pipeline.run(same, ITEMS, out, devices=device, resume=True).items == 0
    with pytest.raises(pipeline.FileOccupied):
        pipeline.run(same, ITEMS, out, devices=device)
    assert names(tmp_path) == ["out.h5"]


def test_a_file_has_the_same_bytes_at_any_time(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    # A resumed run recognises its finished file by the bytes around the items. HDF5 reads the clock in seconds.
    for name in ("a.h5", "b.h5"):
        pipeline.run(same, ITEMS, tmp_path / name, devices=device)
        time.sleep(1.1)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_a_stopped_run_into_hdf5_chunks_leaves_nothing(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    sink = pipeline.ToHDF5(tmp_path / "out.h5", chunks=4)
    with pytest.raises(ValueError, match="pass no chunks"):
        pipeline.run(same, ITEMS, sink, devices=device, resume=True)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(2), ITEMS, sink, devices=device, chunk=4)
    assert names(tmp_path) == []
    pipeline.run(same, ITEMS, sink, devices=device, chunk=4)
    pipeline.run(same, 2 * ITEMS, sink, devices=device, chunk=4, overwrite=True)
    np.testing.assert_array_equal(read_all(pipeline.FromHDF5(tmp_path / "out.h5")), 2 * ITEMS)
    assert "ToZarr" in sink.private


def test_hdf5_files_that_cannot_be_read_are_refused(h5py: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.h5"
    with pytest.raises(pipeline.FileMissing):
        pipeline.FromHDF5(path)
    with h5py.File(path, "w") as file:
        file["a"], file["b"], file["text"], file["one"] = ITEMS, ITEMS, "words", 1.0
    for dataset, message in ((None, "4 datasets: pass dataset=, one of a, b"), ("c", "no dataset 'c'"),
                             ("text", "array of numbers"), ("one", "array of numbers")):  # fmt: skip
        with pytest.raises(pipeline.ContentsRefused, match=message):
            pipeline.FromHDF5(path, dataset)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(pipeline.ContentsRefused, match="truncated"):
        pipeline.FromHDF5(path, "a")
    path.write_bytes(b"words" * 1000)
    with pytest.raises(pipeline.ContentsRefused, match="not a readable HDF5 file"):
        pipeline.FromHDF5(path)


def test_workers_write_one_hdf5_file(h5py: Any, tmp_path: Path) -> None:
    through_portions(pipeline.ToHDF5(tmp_path / "out.h5"))
    np.testing.assert_array_equal(read_all(pipeline.FromHDF5(tmp_path / "out.h5")), ITEMS)


def test_a_source_is_not_its_own_result(h5py: Any, device: cudakit.Device, tmp_path: Path) -> None:
    pipeline.run(same, ITEMS, tmp_path / "out.h5", devices=device)
    with pytest.raises(ValueError, match="is a source"):
        pipeline.run(same, tmp_path / "out.h5", tmp_path / "out.h5", devices=device, overwrite=True)


# TIFF -----------------------------------------------------------------------------------------------------------------

#: Ways to save pages.
TIFF: dict[str, dict[str, Any]] = {
    "plain": {"photometric": "minisblack"},
    "zlib": {"photometric": "minisblack", "compression": "zlib"},
    "tiles": {"photometric": "minisblack", "tile": (16, 16)},
    "big endian": {"photometric": "minisblack", "byteorder": ">"},
    "ImageJ": {"imagej": True},
    "one description": {"photometric": "minisblack", "truncate": True},
}


@pytest.fixture
def tifffile() -> Any:
    return pytest.importorskip("tifffile", reason="needs the tiff extra")


@pytest.mark.parametrize("kind", TIFF)
def test_pages_go_from_tiff_to_tiff(tifffile: Any, device: cudakit.Device, tmp_path: Path, kind: str) -> None:
    tifffile.imwrite(tmp_path / "in.tif", ITEMS, **TIFF[kind])
    np.testing.assert_array_equal(read_all(pipeline.FromTIFF(tmp_path / "in.tif")), ITEMS)
    pipeline.run(same, tmp_path / "in.tif", tmp_path / "out.tiff", devices=device, chunk=5, readers=3, writers=3)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tiff"), ITEMS)
    assert names(tmp_path) == ["in.tif", "out.tiff"]


@pytest.mark.parametrize(("shape", "dtype"), [((6, 5), "int16"), ((6, 5, 3), "uint8"), ((1, 4), "uint16")])
def test_images_of_numbers_and_colours(
    tifffile: Any, device: cudakit.Device, tmp_path: Path, shape: tuple[int, ...], dtype: str
) -> None:
    items = np.arange(7 * np.prod(shape)).reshape(7, *shape).astype(dtype)
    pipeline.run(same, items, tmp_path / "out.tif", devices=device)
    with tifffile.TiffFile(tmp_path / "out.tif") as file:
        assert [page.shape for page in file.pages] == [shape] * 7
        assert not file.is_bigtiff
    np.testing.assert_array_equal(read_all(pipeline.FromTIFF(tmp_path / "out.tif")), items)


def test_a_generator_fills_a_bigtiff(tifffile: Any, device: cudakit.Device, tmp_path: Path) -> None:
    pipeline.run(same, blocks(), tmp_path / "out.tif", devices=device)
    with tifffile.TiffFile(tmp_path / "out.tif") as file:
        assert file.is_bigtiff
        np.testing.assert_array_equal(file.asarray(), ITEMS)


@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_a_folder_has_one_file_per_item(tifffile: Any, device: cudakit.Device, tmp_path: Path, suffix: str) -> None:
    pipeline.run(same, ITEMS, pipeline.ToFolder(tmp_path / "in", suffix=suffix), devices=device)
    out = pipeline.ToFolder(tmp_path / "out", suffix=".tif")
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), tmp_path / "in", out, devices=device, chunk=4, streams=1)
    report = pipeline.run(same, tmp_path / "in", out, devices=device, readers=3, writers=3, resume=True)
    assert report.items < COUNT
    assert names(tmp_path / "out") == [f"{number:02}.tif" for number in range(COUNT)]
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out" / "17.tif"), ITEMS[17])
    np.testing.assert_array_equal(read_all(pipeline.FromFiles(tmp_path / "out")), ITEMS)


def test_a_stopped_run_into_tiff_continues(tifffile: Any, device: cudakit.Device, tmp_path: Path) -> None:
    out = tmp_path / "out.tif"
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), ITEMS, out, devices=device, chunk=4, streams=1)
    assert names(tmp_path) == ["out.tif.journal", "out.tif.part"]
    assert pipeline.run(same, ITEMS, out, devices=device, resume=True).items < COUNT
    np.testing.assert_array_equal(tifffile.imread(out), ITEMS)
    assert pipeline.run(same, ITEMS, out, devices=device, resume=True).items == 0


def test_workers_write_tiff_files(tifffile: Any, tmp_path: Path) -> None:
    through_portions(pipeline.ToTIFF(tmp_path / "out.tif"))
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out.tif"), ITEMS)
    through_portions(pipeline.ToFolder(tmp_path / "out", suffix=".tif"))
    np.testing.assert_array_equal(read_all(pipeline.FromFiles(tmp_path / "out")), ITEMS)


def test_tiff_files_that_cannot_be_read_are_refused(tifffile: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.tif"
    with pytest.raises(pipeline.FileMissing):
        pipeline.FromTIFF(path)
    for kind in TIFF:
        tifffile.imwrite(path, np.tile(ITEMS, (1, 8, 8)), **TIFF[kind])
        for kept in (0, 20, 200, 2000):
            path.write_bytes(path.read_bytes()[: -200 if kept == 2000 else kept])
            with pytest.raises(pipeline.ContentsRefused, match=r"in\.tif"):
                pipeline.FromTIFF(path)
            tifffile.imwrite(path, np.tile(ITEMS, (1, 8, 8)), **TIFF[kind])
    path.write_bytes(b"words" * 1000)
    with pytest.raises(pipeline.ContentsRefused, match="not a readable TIFF file"):
        pipeline.FromTIFF(path)
    with tifffile.TiffWriter(path) as file:
        file.write(ITEMS[0])
        file.write(ITEMS[0, :3])
    with pytest.raises(pipeline.ContentsRefused, match="page 1"):
        pipeline.FromTIFF(path)
    tifffile.imwrite(path, ITEMS, photometric="minisblack")
    with pytest.raises(pipeline.ContentsRefused, match="must have 1 page, got 23"):
        pipeline.FromFiles([path])


def test_items_that_are_no_images_are_refused(tifffile: Any, device: cudakit.Device, tmp_path: Path) -> None:
    for items in (ITEMS[:, 0, 0], ITEMS > 0, ITEMS[..., None]):
        with pytest.raises(ValueError, match="must be an image"):
            pipeline.run(same, items, tmp_path / "out.tif", devices=device)
    with pytest.raises(ValueError, match="at least 1 page"):
        pipeline.run(same, ITEMS[:0], tmp_path / "out.tif", devices=device)
    assert names(tmp_path) == []


# Parquet --------------------------------------------------------------------------------------------------------------

ROWS = np.random.default_rng(1).standard_normal((COUNT, 3), dtype=np.float32)


@pytest.fixture
def pq() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")


def table_of(items: Any) -> Any:
    import pyarrow

    columns = {name: items[:, place] for place, name in enumerate("abc")}
    return pyarrow.table({"text": [str(number) for number in range(len(items))], **columns})


@pytest.mark.parametrize("group", [1, 5, 100])
def test_columns_go_from_parquet_to_parquet(pq: Any, device: cudakit.Device, tmp_path: Path, group: int) -> None:
    pq.write_table(table_of(ROWS), tmp_path / "in.parquet", row_group_size=group)
    source = pipeline.FromParquet(tmp_path / "in.parquet", ["c", "a"])
    assert source.unit == (1 if group == 100 else group)
    np.testing.assert_array_equal(read_all(source), ROWS[:, [2, 0]])
    sink = pipeline.ToParquet(tmp_path / "out", ["x", "y"], compression="zstd")
    pipeline.run(same, source, sink, devices=device, chunk=4, readers=3, writers=3)
    table = pq.read_table(tmp_path / "out")
    np.testing.assert_array_equal(table["x"], ROWS[:, 2])
    np.testing.assert_array_equal(table["y"], ROWS[:, 0])
    assert len(names(tmp_path / "out")) == 6
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(tmp_path / "out")), ROWS[:, [2, 0]])


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64"])
def test_one_column_has_plain_numbers(pq: Any, device: cudakit.Device, tmp_path: Path, dtype: str) -> None:
    items = (10 * ROWS[:, 0]).astype(dtype)
    pipeline.run(same, items, tmp_path / "out.parquet", devices=device, chunk=4)
    out = np.zeros_like(items)
    pipeline.run(same, tmp_path / "out.parquet", out, devices=device)
    np.testing.assert_array_equal(out, items)
    pipeline.run(same, items[:0], tmp_path / "none.parquet", devices=device)
    assert pipeline.FromParquet(tmp_path / "none.parquet").count == 0


def test_a_stopped_run_into_parquet_continues(pq: Any, device: cudakit.Device, tmp_path: Path) -> None:
    out = pipeline.ToParquet(tmp_path / "out")
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), ROWS, out, devices=device, chunk=4, streams=1)
    with pytest.raises(pipeline.FileOccupied, match="resume=True"):
        pipeline.run(same, ROWS, out, devices=device)
    with pytest.raises(pipeline.ContentsRefused, match="another job"):
        pipeline.run(same, 2 * ROWS, out, devices=device, resume=True)
    assert 0 < pipeline.run(same, ROWS, out, devices=device, chunk=7, resume=True).items < COUNT
    assert pipeline.run(same, ROWS, out, devices=device, resume=True).items == 0
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(out.path)), ROWS)
    pipeline.run(same, ROWS[:9], out, devices=device, overwrite=True)
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(out.path)), ROWS[:9])
    first = out.path / names(out.path)[0]
    first.write_bytes(first.read_bytes()[:-10])
    with pytest.raises(pipeline.ContentsRefused, match="not a readable Parquet file"):
        pipeline.run(same, ROWS[:9], out, devices=device, resume=True)


def test_one_file_has_a_row_group_per_chunk_in_order(pq: Any, device: cudakit.Device, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    sink = pipeline.ToParquet(out, ["x", "y", "z"], compression="zstd")
    pipeline.run(same, ROWS, sink, devices=device, chunk=4, readers=3, writers=3)
    assert names(tmp_path) == ["out.parquet"]
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [4] * 5 + [3]
    np.testing.assert_array_equal(file.read()["y"], ROWS[:, 1])
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(out)), ROWS)
    with pytest.raises(pipeline.FileOccupied, match="already exists"):
        pipeline.run(same, ROWS, out, devices=device)
    pipeline.run(same, (ROWS[at : at + 5] for at in range(0, COUNT, 5)), out, devices=device, overwrite=True)
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(out)), ROWS)


def test_a_stopped_run_into_one_file_starts_again(pq: Any, device: cudakit.Device, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    pipeline.run(same, ROWS, out, devices=device, chunk=4)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), 2 * ROWS, out, devices=device, chunk=4, overwrite=True)
    assert names(tmp_path) == ["out.parquet"]
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(out)), ROWS)  # the earlier results
    with pytest.raises(ValueError, match=r"cannot be resumed: .*: pass a folder"):
        pipeline.run(same, ROWS, out, devices=device, resume=True)
    assert "pass a folder" in pipeline.ToParquet(out).private


@pytest.mark.parametrize("path", ["out", "out.parquet"])
@pytest.mark.parametrize("items", [ITEMS, ROWS], ids=["images", "rows"])
def test_a_column_has_lists_of_a_fixed_size(
    pq: Any, device: cudakit.Device, tmp_path: Path, path: str, items: Any
) -> None:
    import pyarrow

    out = tmp_path / path
    pipeline.run(same, items, pipeline.ToParquet(out, "vector"), devices=device, chunk=4)
    kind = pq.read_table(out).schema.field("vector").type
    assert pyarrow.types.is_fixed_size_list(kind)
    assert kind.list_size == items.shape[1]
    source = pipeline.FromParquet(out, "vector")
    assert source.item == pipeline.Item.of(items.shape[1:], "float32")
    np.testing.assert_array_equal(read_all(source), items)
    assert np.array_equal(np.array(pq.read_table(out)["vector"].to_pylist(), np.float32), items)


def test_several_columns_of_lists(pq: Any, device: cudakit.Device, tmp_path: Path) -> None:
    sink = pipeline.ToParquet(tmp_path / "out", list("abcdef"))
    pipeline.run(same, ITEMS, sink, devices=device, chunk=4)
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(tmp_path / "out")), ITEMS)
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(tmp_path / "out", ["c", "a"])), ITEMS[:, [2, 0]])
    assert pipeline.run(same, ITEMS, sink, devices=device, resume=True).skipped == COUNT


def test_lists_that_are_no_items_are_refused(pq: Any, tmp_path: Path) -> None:
    import pyarrow

    path, pairs = tmp_path / "in.parquet", pyarrow.list_(pyarrow.float32(), 2)
    for values, kind, message in (
        ([[1.0], [2.0, 3.0]], pyarrow.list_(pyarrow.float32()), "lists must have a fixed size"),
        ([[1.0, 2.0], None, [3.0, 4.0]], pairs, "has . nulls"),
        ([[1.0, 2.0], [3.0, None]], pairs, "has 1 nulls"),
    ):
        pq.write_table(pyarrow.table({"a": pyarrow.array(values, kind)}), path)
        with pytest.raises(pipeline.ContentsRefused, match=message):
            pipeline.FromParquet(path)
    for rows, row in (([[1.0, 2.0], [3.0, 4.0], [5.0, None]], 2), ([[1.0, 2.0], None], 1)):
        table = pyarrow.table({"a": pyarrow.array(rows, pairs)})
        pq.write_table(table, path, write_statistics=False)
        with pytest.raises(pipeline.ContentsRefused, match=f"a null at item {row}"):
            read_all(pipeline.FromParquet(path))
    pq.write_table(pyarrow.table({"a": pyarrow.array([[1.0, 2.0]], pairs), "b": [1.0]}), path)
    with pytest.raises(pipeline.ContentsRefused, match="one dtype and shape"):
        pipeline.FromParquet(path)


def test_workers_write_parquet_files(pq: Any, tmp_path: Path) -> None:
    through_portions(pipeline.ToParquet(tmp_path / "out"), ROWS)
    np.testing.assert_array_equal(read_all(pipeline.FromParquet(tmp_path / "out", ["data0", "data1", "data2"])), ROWS)
    assert not [name for name in names(tmp_path / "out") if name.startswith(".")]


def test_nulls_and_other_columns_are_refused(pq: Any, tmp_path: Path) -> None:
    import pyarrow

    path = tmp_path / "in.parquet"
    with pytest.raises(pipeline.FileMissing):
        pipeline.FromParquet(path)
    pq.write_table(table_of(ROWS), path)
    for columns, message in ((None, "'text' of .* must have integers or real"), ("d", "no column 'd'")):
        with pytest.raises(pipeline.ContentsRefused, match=message):
            pipeline.FromParquet(path, columns)
    holes = pyarrow.table({"a": [1, 2, 3, None, 5], "b": [1.0] * 5})
    pq.write_table(holes, path, row_group_size=2)
    with pytest.raises(pipeline.ContentsRefused, match="starts at item 2: fill them"):
        pipeline.FromParquet(path, "a")
    with pytest.raises(pipeline.ContentsRefused, match="has 1 nulls"):
        pipeline.FromParquet(path)
    pq.write_table(holes, path, row_group_size=2, write_statistics=False)
    with pytest.raises(pipeline.ContentsRefused, match="a null at item 3"):
        read_all(pipeline.FromParquet(path, ["a"]))
    path.write_bytes(b"words" * 100)
    with pytest.raises(pipeline.ContentsRefused, match="not a readable Parquet file"):
        pipeline.FromParquet(path)


def test_items_that_are_no_columns_are_refused(pq: Any, device: cudakit.Device, tmp_path: Path) -> None:
    for items, columns in ((ITEMS, ["a"]), (ROWS, ["a", "b"]), (ROWS > 0, None), (ITEMS[:, :0], None)):
        for path in ("out", "out.parquet"):
            with pytest.raises(ValueError, match="Parquet columns must be"):
                pipeline.run(same, items, pipeline.ToParquet(tmp_path / path, columns), devices=device)
    with pytest.raises(ValueError, match="all must differ"):
        pipeline.ToParquet(tmp_path / "out", ["a", "a"])
    assert names(tmp_path) == []
