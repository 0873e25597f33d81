"""Pipelines that read to device memory. A fake KvikIO reads to that of the simulated device."""

from __future__ import annotations

import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import cudakit
from cudakit import ops, pipeline
from cudakit.pipeline import kvikio_source
from cudakit.pipeline.direct import why_unsupported

COUNT = 23
ITEMS = np.random.default_rng(0).standard_normal((COUNT, 6, 5), dtype=np.float32)


def doubled(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
    ops.scale(x, 2.0, out=out, stream=chunk.stream)


class FakeCuFile:
    """KvikIO's CuFile. reads: the offset and size of each read. files: those that are open."""

    reads: ClassVar[list[tuple[int, int]]] = []
    files: ClassVar[list[FakeCuFile]] = []
    fails_at: int | None = None

    def __init__(self, path: Path, flags: str) -> None:
        assert flags == "r"
        self.path = path
        self.files.append(self)

    def pread(self, buf: Any, size: int, file_offset: int) -> Any:
        assert self in self.files
        interface = buf.__cuda_array_interface__
        assert interface["typestr"] == "|u1"
        assert interface["shape"] == (size,)
        assert interface["data"] == (buf.array.pointer, False)
        self.reads.append((file_offset, size))
        if self.fails_at == len(self.reads):
            raise RuntimeError("a broken disk")
        data = self.path.read_bytes()[file_offset : file_offset + size]
        if len(data) == size:
            array = buf.array
            array.copy_from(np.frombuffer(data, array.dtype).reshape(array.shape))
            array.stream.synchronize()
        return types.SimpleNamespace(get=lambda: len(data))

    def close(self) -> None:
        self.files.remove(self)


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Any:
    given: dict[str, Any] = {}
    fake = types.SimpleNamespace(CuFile=FakeCuFile, defaults=types.SimpleNamespace(set=given.update), given=given)
    monkeypatch.setattr(kvikio_source, "kvikio_package", lambda context: fake)
    monkeypatch.setattr(FakeCuFile, "reads", [])
    monkeypatch.setattr(FakeCuFile, "files", [])
    return fake


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "in.npy", ITEMS)
    return tmp_path / "in.npy"


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize("chunk", [1, 4, 50])
def test_each_chunk_is_read_to_the_device_once(
    sim: cudakit.Device, kvikio: Any, path: Path, readers: int, chunk: int
) -> None:
    out = np.zeros_like(ITEMS)
    report = pipeline.run(
        doubled, pipeline.FromKvikIO(path, threads=3), out, devices=sim, chunk=chunk, readers=readers, streams=2
    )  # fmt: skip
    np.testing.assert_array_equal(out, 2 * ITEMS)
    header = path.stat().st_size - ITEMS.nbytes
    starts = range(0, COUNT, chunk)
    assert sorted(FakeCuFile.reads) == [
        (header + 120 * start, 120 * (min(start + chunk, COUNT) - start)) for start in starts
    ]
    assert FakeCuFile.files == []
    assert kvikio.given == {"num_threads": 3}
    assert report.bytes_in == ITEMS.nbytes
    assert report.busy["read"] > 0


def test_no_pinned_memory_is_used_for_its_items(sim: cudakit.Device, kvikio: Any, path: Path) -> None:
    options: dict[str, Any] = {"devices": sim, "chunk": 4, "streams": 2, "readers": 3}
    there = pipeline.run(doubled, pipeline.FromKvikIO(path), None, **options)
    here = pipeline.run(doubled, pipeline.FromFile(path), None, **options)
    chunk = 4 * 120
    assert here.host_bytes - there.host_bytes == (2 + 3) * chunk  # a chunk per stream and per reader
    assert there.device_bytes - here.device_bytes == 3 * chunk  # instead of a chunk per stream
    with pytest.raises(ValueError, match="bytes of device memory for 2 streams, and the budget is 3,000"):
        pipeline.run(doubled, pipeline.FromKvikIO(path), None, memory=3000, **options)


def test_a_buffer_is_read_into_again_only_after_its_work(sim: cudakit.Device, kvikio: Any, path: Path) -> None:
    kernel = sim.compile(
        source="__global__ void slow(float* y, const float* x, int n) {"
        " float v = 0; for (int k = 0; k < 200; ++k) for (int i = 0; i < n; ++i) v = x[i];"
        " for (int i = 0; i < n; ++i) y[i] = x[i] + 0 * v; }"
    )["slow"]

    def slow(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        kernel.launch(chunk.stream, grid=1, block=1, args=(out, x, x.size))

    items = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.save(path, items)
    out = np.zeros_like(items)
    pipeline.run(slow, pipeline.FromKvikIO(path), out, devices=sim, chunk=1, streams=2, readers=2)
    np.testing.assert_array_equal(out, items)


def test_other_sources_beside_it_are_copied(sim: cudakit.Device, kvikio: Any, path: Path) -> None:
    def add(chunk: pipeline.Chunk, a: Any, b: Any, c: Any, out: Any) -> None:
        ops.add(a, b, out=out, stream=chunk.stream)
        ops.add(out, c, out=out, stream=chunk.stream)

    out = np.zeros_like(ITEMS)
    sources = (10 * ITEMS, pipeline.FromKvikIO(path), path)
    pipeline.run(add, sources, out, devices=sim, chunk=3, readers=3)
    np.testing.assert_allclose(out, 12 * ITEMS, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8", "complex64"])
def test_a_raw_file_of_any_dtype(sim: cudakit.Device, kvikio: Any, tmp_path: Path, dtype: str) -> None:
    kind = pipeline.Item.of((), dtype).dtype
    items = (10 * ITEMS).astype(kind)
    (tmp_path / "in.raw").write_bytes(b"head" + items.tobytes())
    source = pickle.loads(pickle.dumps(pipeline.FromKvikIO(tmp_path / "in.raw", (6, 5), dtype, offset=4)))
    out = np.zeros_like(items)
    pipeline.run(lambda chunk, x, y: y.copy_from(x, chunk.stream), source, out, devices=sim, chunk=4)
    assert out.tobytes() == items.tobytes()
    with pytest.raises(pipeline.ContentsRefused, match="not whole items"):
        pipeline.FromKvikIO(tmp_path / "in.raw", (6, 5), "float64")
    with pytest.raises(ValueError, match="needs shape=, dtype="):
        pipeline.FromKvikIO(tmp_path / "in.raw", (6, 5))
    with pytest.raises(pipeline.FileMissing):
        pipeline.FromKvikIO(tmp_path / "missing.npy")


def test_a_failed_read_stops_the_run_which_continues(
    sim: cudakit.Device, kvikio: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    monkeypatch.setattr(FakeCuFile, "fails_at", 4)
    with pytest.raises(pipeline.PipelineError, match=r"chunk 3 .* failed in reading: RuntimeError: a broken disk"):
        pipeline.run(doubled, pipeline.FromKvikIO(path), out, devices=sim, chunk=4)
    assert FakeCuFile.files == []
    monkeypatch.setattr(FakeCuFile, "fails_at", None)
    assert pipeline.run(doubled, pipeline.FromKvikIO(path), out, devices=sim, resume=True).skipped == 12
    np.testing.assert_array_equal(np.load(out), 2 * ITEMS)

    source = pipeline.FromKvikIO(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(pipeline.PipelineError, match=r"EOFError: .*in\.npy ends at byte .*, 1 bytes too early"):
        pipeline.run(doubled, source, None, devices=sim, chunk=COUNT)


def test_values_that_are_not_finite_are_reported(sim: cudakit.Device, kvikio: Any, path: Path) -> None:
    items = ITEMS.copy()
    items[7, 1, 2] = np.inf
    np.save(path, items)
    with pytest.raises(pipeline.PipelineError, match=r"first at item 7.*input 0 of that item has 1 such values"):
        pipeline.run(doubled, pipeline.FromKvikIO(path), None, devices=sim, chunk=4, finite=True)


def test_the_simulated_device_needs_no_kvikio(sim: cudakit.Device, path: Path) -> None:
    out = np.zeros_like(ITEMS)
    pipeline.run(doubled, pipeline.FromKvikIO(path), out, devices=sim, chunk=4, readers=2)
    np.testing.assert_array_equal(out, 2 * ITEMS)


def test_a_run_has_one_device_and_the_package(
    sim: cudakit.Device, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = cudakit.Device.several("sim", 2)
    with pytest.raises(ValueError, match="FromKvikIO reads to the memory of one device, got 2"):
        pipeline.run(doubled, pipeline.FromKvikIO(path), tmp_path / "out.npy", devices=several)
    monkeypatch.setitem(sys.modules, "kvikio", None)
    gpu = types.SimpleNamespace(kind="gpu")
    with pytest.raises(ImportError, match=r"pip install 'cudakit\[kvikio\]'"):
        pipeline.FromKvikIO(path).expect_device(gpu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads must be at least 1"):
        pipeline.FromKvikIO(path, threads=0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.npy"]


@pytest.mark.gpu
@pytest.mark.parametrize("direct", [False, True])
def test_kvikio_reads_to_a_gpu(gpu: cudakit.Device, tmp_path: Path, direct: bool) -> None:
    """A file whose data starts on a page, and one whose data does not."""
    pytest.importorskip("kvikio", reason="needs the kvikio extra")
    if direct and (why := why_unsupported(tmp_path)):
        pytest.skip(f"the file system of {tmp_path} has no direct I/O: {why}")
    items = np.random.default_rng(1).standard_normal((100, 300, 301), dtype=np.float32)
    if direct:
        sink = pipeline.ToFile(tmp_path / "in.npy", direct=True)
        pipeline.run(lambda chunk, x, y: y.copy_from(x, chunk.stream), items, sink, devices=gpu)
    else:
        np.save(tmp_path / "in.npy", items)
    out = np.zeros_like(items)
    source = pipeline.FromKvikIO(tmp_path / "in.npy", threads=4)
    pipeline.run(doubled, source, out, devices=gpu, chunk=7, readers=3, measure=True)
    np.testing.assert_array_equal(out, 2 * items)
