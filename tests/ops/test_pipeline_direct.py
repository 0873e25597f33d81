"""Direct I/O of pipelines: files without the page cache, at any alignment of items, memory and file."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import pipeline
from cudakit.pipeline import direct
from cudakit.pipeline.files import as_bytes


def copied(chunk: Any, a: Any, out: Any) -> None:
    out.copy_from(a, chunk.stream)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    why = direct.why_unsupported(tmp_path)
    if why:
        pytest.skip(f"the file system of {tmp_path} has no direct I/O: {why}")
    return tmp_path


# Items of whole pages, of less than a page, of parts of pages, of single bytes.
SHAPES = [((32, 32), "float32"), ((33, 17), "float32"), ((3,), "float64"), ((4097,), "uint8"), ((1,), "uint8")]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 4, 23])
def test_files_are_the_same_with_and_without_direct_io(sim, folder, shape, dtype, chunk) -> None:
    x = np.random.default_rng(0).integers(0, 200, (23, *shape)).astype(dtype)
    np.save(folder / "x.npy", x)
    pipeline.run(
        copied, pipeline.FromFile(folder / "x.npy", direct=True), pipeline.ToFile(folder / "y.npy", direct=True),
        devices=sim, chunk=chunk,
    )  # fmt: skip
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x)
    assert (folder / "y.npy").stat().st_size == direct.PAGE + x.nbytes
    pipeline.run(copied, pipeline.FromFile(folder / "y.npy", direct=True), folder / "z.npy", devices=sim, chunk=chunk)
    np.testing.assert_array_equal(np.load(folder / "z.npy"), x)


def test_data_that_is_only_in_the_page_cache_is_read(folder: Path) -> None:
    path = folder / "x"
    path.write_bytes(bytes(range(256)) * 64)
    with path.open("r+b") as cached:
        cached.seek(5000)
        cached.write(b"new")
        cached.flush()
        file, into = direct.DiskFile(path, os.O_RDONLY, direct=True), np.zeros(4, np.uint8)
        file.read(into, 4999)
        file.close()
    assert bytes(into) == bytes([4999 % 256]) + b"new"


@pytest.mark.parametrize("misplaced", [0, 1, 512])
@pytest.mark.parametrize(("offset", "length"), [(0, 8192), (1, 8192), (4095, 2), (4096, 4096), (100, 20000), (8192, 1)])
def test_a_range_is_written_and_nothing_else(folder: Path, offset: int, length: int, misplaced: int) -> None:
    path = folder / "x"
    path.write_bytes(b"." * 40000)
    whole = np.empty(length + 8192, np.uint8)
    start = -whole.ctypes.data % 4096 + misplaced
    data = whole[start : start + length]
    data[:] = np.random.default_rng(1).integers(0, 255, length)
    file = direct.DiskFile(path, os.O_RDWR, direct=True)
    file.write(data, offset)
    back = np.empty_like(data)
    file.read(back, offset)
    file.close()
    expected = bytearray(b"." * 40000)
    expected[offset : offset + length] = as_bytes(data)
    assert path.read_bytes() == bytes(expected)
    np.testing.assert_array_equal(back, data)


def test_a_file_that_becomes_shorter_is_reported(sim: cudakit.Device, folder: Path) -> None:
    np.save(folder / "x.npy", np.zeros((8, 1024), np.float32))
    source = pipeline.FromFile(folder / "x.npy", direct=True)
    os.truncate(folder / "x.npy", 20000)
    with pytest.raises(pipeline.PipelineError) as raised:
        pipeline.run(copied, source, np.empty((8, 1024), np.float32), devices=sim, chunk=2)
    assert "bytes too early" in str(raised.value.__cause__)


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose file system has no direct I/O. As on Linux, a refused file has been created."""
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **others: Any) -> int:
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, *rest))
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **others)

    monkeypatch.setattr(os, "open", opened)
    return tmp_path


def test_a_file_system_without_direct_io_is_refused(sim: cudakit.Device, refusing: Path) -> None:
    x = np.ones((2, 4), np.float32)
    np.save(refusing / "x.npy", x)
    with pytest.raises(pipeline.FileRefused, match="direct=False"):
        pipeline.FromFile(refusing / "x.npy", direct=True)
    with pytest.raises(pipeline.FileRefused, match="direct=False"):
        pipeline.run(copied, x, pipeline.ToFile(refusing / "y.npy", direct=True), devices=sim)
    assert "direct=False" in direct.why_unsupported(refusing)
    with pytest.raises(pipeline.FileRefused, match="direct=False"):
        direct.measure_disk(refusing, nbytes=1 << 20, block=1 << 16, threads=2)
    assert [path.name for path in refusing.iterdir()] == ["x.npy"]
    disk = direct.measure_disk(refusing, nbytes=1 << 20, block=1 << 16, threads=2, direct=False)
    assert min(disk.read, disk.write, disk.both) > 0


def cached_pages(path: Path) -> list[bool]:
    """Whether each page of a file is in the page cache."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        done = mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages)
        del first  # a map in use cannot be closed
    assert done == 0, os.strerror(ctypes.get_errno())
    return [bool(page & 1) for page in pages]


def dropped(path: Path) -> None:
    file = direct.DiskFile(path, os.O_RDWR, direct=False)
    file.drop()
    file.close()


@pytest.fixture
def on_disk(folder: Path) -> Path:
    """A folder whose files can be removed from the page cache."""
    (folder / "probe").write_bytes(b"x" * direct.PAGE)
    dropped(folder / "probe")
    if any(cached_pages(folder / "probe")):
        pytest.skip(f"the file system of {folder} is memory")
    return folder


def test_a_dropped_file_is_read_from_the_disk(on_disk: Path) -> None:
    file = direct.DiskFile(on_disk / "x", os.O_RDWR | os.O_CREAT, direct=False)
    data, back = np.arange(8192, dtype=np.uint16), np.zeros(8192, np.uint16)
    file.write(data, 0)
    assert all(cached_pages(on_disk / "x"))
    file.drop()
    assert not any(cached_pages(on_disk / "x"))
    file.read(back, 0)
    file.close()
    np.testing.assert_array_equal(back, data)


def test_direct_runs_leave_no_items_in_the_page_cache(sim: cudakit.Device, on_disk: Path) -> None:
    """Each run, also the second with the same source."""
    x = np.ones((12, 1024), np.float32)
    pipeline.run(copied, x, pipeline.ToFile(on_disk / "x.npy", direct=True), devices=sim, chunk=4)
    source = pipeline.FromFile(on_disk / "x.npy", direct=True)
    for name in ("y.npy", "z.npy"):
        dropped(on_disk / "x.npy")
        pipeline.run(copied, source, pipeline.ToFile(on_disk / name, direct=True), devices=sim, chunk=4)
        for path in (on_disk / "x.npy", on_disk / name):
            assert not any(cached_pages(path)[1:])  # page 0 is the header
        np.testing.assert_array_equal(np.load(on_disk / name), x)


def test_a_direct_run_resumes(sim: cudakit.Device, folder: Path) -> None:
    x = np.random.default_rng(0).random((12, 1024), np.float32)
    np.save(folder / "x.npy", x)
    seen: list[int] = []

    def failing(chunk: Any, a: Any, out: Any) -> None:
        seen.append(chunk.start)
        if len(seen) == 4:
            raise RuntimeError("stop here")
        out.copy_from(a, chunk.stream)

    def work(function: Any, **options: Any) -> Any:
        source = pipeline.FromFile(folder / "x.npy", direct=True)
        sink = pipeline.ToFile(folder / "y.npy", direct=True)
        return pipeline.run(function, source, sink, devices=sim, chunk=2, streams=1, **options)

    with pytest.raises(pipeline.PipelineError):
        work(failing)
    report = work(copied, resume=True)
    assert 0 < report.skipped < 12
    np.testing.assert_array_equal(np.load(folder / "y.npy"), x)
    assert work(copied, resume=True).items == 0


def test_the_speed_of_a_disk_is_measured(folder: Path) -> None:
    disk = direct.measure_disk(folder, nbytes=1 << 20, block=1 << 16, threads=2)
    assert min(disk.read, disk.write, disk.both) > 0
    assert list(folder.iterdir()) == []


def test_a_disk_is_measured_by_writes_that_do_not_extend_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of ToFile: file systems may run writes that extend a file one after another."""
    write, extending = direct.DiskFile.write, []

    def recorded(file: direct.DiskFile, data: np.ndarray, offset: int) -> None:
        extending.append(offset + data.nbytes > file.path.stat().st_size)
        write(file, data, offset)

    monkeypatch.setattr(direct.DiskFile, "write", recorded)
    direct.measure_disk(folder, nbytes=1 << 20, block=1 << 16, threads=2)
    assert len(extending) == 2 * 16
    assert not any(extending)


def test_the_least_time_of_a_disk() -> None:
    overlapping = direct.Disk(read=2e9, write=1e9, both=1e9)
    assert overlapping.seconds(10**9, 10**9) == pytest.approx(1)
    assert overlapping.seconds(3 * 10**9, 10**9) == pytest.approx(1 + 1)
    assert overlapping.seconds(10**9, 3 * 10**9) == pytest.approx(1 + 2)
    # Reads and writes that slow each other down are faster one after the other.
    exclusive = direct.Disk(read=2e9, write=1e9, both=0.5e9)
    assert exclusive.seconds(10**9, 10**9) == pytest.approx(0.5 + 1)
    assert exclusive.seconds(3 * 10**9, 10**9) == pytest.approx(1.5 + 1)
