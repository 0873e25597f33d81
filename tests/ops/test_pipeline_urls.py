"""`.npy` files, raw files and `.npy` parts at URLs as sources and sinks of pipelines."""

from __future__ import annotations

import functools
import http.server
import json
import os
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copying import same, stops_at

import cudakit
from cudakit import ops, pipeline

fsspec = pytest.importorskip("fsspec", reason="needs the fsspec extra")

COUNT = 23
ITEMS = np.random.default_rng(0).standard_normal((COUNT, 6, 5), dtype=np.float32)


class Store:
    """A place for objects. url: without a / at its end."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options
        self.fs, self.root = fsspec.core.url_to_fs(url, **options)

    def save(self, name: str, items: Any) -> str:
        """Save an array with numpy, and return its URL."""
        with self.fs.open(f"{self.root}/{name}", "wb") as file:
            np.save(file, items)
        return f"{self.url}/{name}"

    def names(self, name: str = "") -> list[str]:
        self.fs.invalidate_cache()
        root = f"{self.root}/{name}".rstrip("/")
        return sorted(path.strip("/").removeprefix(root.strip("/")).strip("/") for path in self.fs.find(root))

    def source(self, url: str, *given: Any, **options: Any) -> pipeline.FromFSSpec:
        return pipeline.FromFSSpec(url, *given, storage_options=self.options, **options)

    def sink(self, name: str, items: int | None = None) -> pipeline.ToFSSpec:
        return pipeline.ToFSSpec(f"{self.url}/{name}", items, storage_options=self.options)


@pytest.fixture(params=["memory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}", {"auto_mkdir": True})
        return
    if request.param == "memory":
        memory = fsspec.filesystem("memory")
        memory.store.clear()
        yield Store("memory://bucket", {})
        memory.store.clear()
        return
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto[server]")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    served = server.ThreadedMotoServer(port=0)
    served.start()
    try:
        host, port = served.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}"}
        bucket = f"bucket-{uuid.uuid4().hex}"  # moto has one state per process
        fsspec.filesystem("s3", **options).mkdir(bucket)
        yield Store(f"s3://{bucket}", options)
    finally:
        served.stop()


def read_all(given: pipeline.Source) -> Any:
    """The items that a source reads after it was sent to another process, in ranges of three."""
    source = pickle.loads(pickle.dumps(given))
    out = np.empty((source.count, *source.item.shape), source.item.dtype)
    for start in range(0, source.count, 3):
        stop = min(start + 3, source.count)
        source.read(start, stop, out[start:stop])
    source.close()
    return out


# Sources --------------------------------------------------------------------------------------------------------------


def test_an_npy_file_is_read_in_ranges_by_several_threads(device: cudakit.Device, store: Store) -> None:
    source = store.source(store.save("in.npy", ITEMS))
    assert (source.count, source.item) == (COUNT, pipeline.Item.of((6, 5), "float32"))
    out = np.zeros_like(ITEMS)
    pipeline.run(same, source, out, devices=device, chunk=3, readers=4)
    np.testing.assert_array_equal(out, ITEMS)
    np.testing.assert_array_equal(read_all(source), ITEMS)


def test_ranges_larger_than_a_request_are_put_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudakit.pipeline.fsspec_source._PIECE", 100)  # neither whole items nor whole elements
    np.testing.assert_array_equal(read_all(store.source(store.save("in.npy", ITEMS))), ITEMS)


def test_a_raw_file_has_the_items_that_were_described(store: Store) -> None:
    store.fs.pipe_file(f"{store.root}/in.raw", b"head" + ITEMS.tobytes())
    url = f"{store.url}/in.raw"
    np.testing.assert_array_equal(read_all(store.source(url, (6, 5), "float32", offset=4)), ITEMS)
    with pytest.raises(pipeline.ContentsRefused, match="not whole items of 120 bytes"):
        store.source(url, (6, 5), "float32")
    with pytest.raises(ValueError, match="needs shape=, dtype="):
        store.source(url, (6, 5))
    with pytest.raises(pipeline.ContentsRefused, match=r"not a readable \.npy file"):
        store.source(url)


def test_files_that_cannot_be_read_are_refused(store: Store) -> None:
    with pytest.raises(pipeline.FileMissing, match=r"missing\.npy' does not exist"):
        store.source(f"{store.url}/missing.npy")
    url = store.save("in.npy", ITEMS)
    data = store.fs.cat_file(f"{store.root}/in.npy")
    for kept in (0, 5, 100):
        store.fs.pipe_file(f"{store.root}/in.npy", data[:kept])
        with pytest.raises(pipeline.ContentsRefused, match=r"not a readable \.npy file"):
            store.source(url)
    store.fs.pipe_file(f"{store.root}/in.npy", data[:-7])
    with pytest.raises(pipeline.ContentsRefused, match="is truncated: it has 2,881 bytes, 23 items need 2,888"):
        store.source(url)


def test_a_file_that_is_truncated_during_the_run_stops_it(device: cudakit.Device, store: Store) -> None:
    source = store.source(store.save("in.npy", ITEMS))
    store.save("in.npy", ITEMS[:10])
    with pytest.raises(pipeline.PipelineError, match=r"failed in reading: EOFError: .*in\.npy ends at byte 1,328"):
        pipeline.run(same, source, None, devices=device, chunk=4)


def test_a_source_that_was_changed_is_refused(device: cudakit.Device, store: Store, tmp_path: Path) -> None:
    url = store.save("in.npy", ITEMS)
    out = tmp_path / "out.npy"
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), store.source(url), out, devices=device, chunk=4, streams=1)
    changed = ITEMS.copy()
    changed[-1] = 0  # neither the size nor the first items
    store.save("in.npy", changed)
    with pytest.raises(pipeline.ContentsRefused, match="sources 0 version was"):
        pipeline.run(same, store.source(url), out, devices=device, resume=True)


def test_an_unchanged_source_is_continued(device: cudakit.Device, store: Store, tmp_path: Path) -> None:
    url = store.save("in.npy", ITEMS)
    out = tmp_path / "out.npy"
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(3), store.source(url), out, devices=device, chunk=4, streams=1)
    assert 0 < pipeline.run(same, store.source(url), out, devices=device, resume=True).skipped < COUNT
    np.testing.assert_array_equal(np.load(out), ITEMS)


# Sinks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 4, 23, 50, None])
def test_parts_are_read_as_one_array(device: cudakit.Device, store: Store, items: int | None) -> None:
    pipeline.run(same, ITEMS, store.sink("out/", items), devices=device, writers=3)
    parts = store.names("out")
    assert parts[0] == "index.json"
    assert len(parts) == 1 + -(-COUNT // (items or COUNT))
    source = store.source(f"{store.url}/out/")
    np.testing.assert_array_equal(read_all(source), ITEMS)
    with store.fs.open(f"{store.root}/out/{parts[1]}") as file:
        np.testing.assert_array_equal(np.load(file), ITEMS[: items or COUNT])
    assert store.names() == [f"out/{name}" for name in parts]
    out = np.zeros_like(ITEMS)
    pipeline.run(same, source, out, devices=device, chunk=3, readers=3)
    np.testing.assert_array_equal(out, ITEMS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8", "complex64", "bool"])
def test_parts_keep_numbers(device: cudakit.Device, tmp_path: Path, dtype: str) -> None:
    kind = pipeline.Item.of((), dtype).dtype
    items = (10 * ITEMS).astype(kind)
    pipeline.run(same, items, f"file://{tmp_path}/out/", devices=device)
    read = read_all(pipeline.FromFSSpec(f"file://{tmp_path}/out/"))
    assert read.dtype == kind
    assert read.tobytes() == items.tobytes()


def test_no_items_and_items_of_a_generator(device: cudakit.Device, store: Store) -> None:
    pipeline.run(same, ITEMS[:0], store.sink("none", 4), devices=device)
    assert store.source(f"{store.url}/none").count == 0
    pipeline.run(same, (ITEMS[at : at + 5] for at in range(0, COUNT, 5)), store.sink("out", 4), devices=device)
    np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), ITEMS)


def test_a_stopped_run_continues(device: cudakit.Device, store: Store) -> None:
    with pytest.raises(pipeline.PipelineError, match="pass resume=True"):
        pipeline.run(stops_at(2), ITEMS, store.sink("out", 4), devices=device, chunk=4, streams=1)
    assert store.names() == [
        *(f"out.cudakit/{name}" for name in ("done/0-4", "done/4-8", "job.json")),
        *(f"out/part-00000000{number}.npy" for number in range(2)),
    ]
    with pytest.raises(pipeline.ContentsRefused, match=r"is a folder without index\.json"):
        store.source(f"{store.url}/out")
    with pytest.raises(pipeline.FileOccupied, match="unfinished run"):
        pipeline.run(same, ITEMS, store.sink("out", 4), devices=device)
    with pytest.raises(pipeline.ContentsRefused, match="sources 0 first was"):
        pipeline.run(same, 2 * ITEMS, store.sink("out", 4), devices=device, resume=True)
    with pytest.raises(pipeline.ContentsRefused, match="stored items was 4, now 2"):
        pipeline.run(same, ITEMS, store.sink("out", 2), devices=device, resume=True)
    part = f"{store.root}/out/part-000000001.npy"
    data = store.fs.cat_file(part)
    store.fs.pipe_file(part, data[:-1])
    with pytest.raises(pipeline.ContentsRefused, match=r"part-000000001\.npy has 607 bytes, and .* requires 608"):
        pipeline.run(same, ITEMS, store.sink("out"), devices=device, resume=True)
    store.fs.pipe_file(part, data)
    assert pipeline.run(same, ITEMS, store.sink("out"), devices=device, resume=True).skipped == 8
    np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), ITEMS)
    assert pipeline.run(stops_at(0), ITEMS, store.sink("out"), devices=device, resume=True).skipped == COUNT
    with pytest.raises(pipeline.FileOccupied, match="already exists"):
        pipeline.run(same, ITEMS, store.sink("out"), devices=device)
    pipeline.run(same, 3 * ITEMS[:5], store.sink("out", 2), devices=device, overwrite=True)
    np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), 3 * ITEMS[:5])
    assert store.names() == ["out/index.json", *(f"out/part-00000000{number}.npy" for number in range(3))]


def test_only_parts_are_replaced(device: cudakit.Device, store: Store) -> None:
    store.fs.pipe_file(f"{store.root}/out/notes.txt", b"mine")
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(4), ITEMS, store.sink("out", 4), devices=device, chunk=4, streams=1)
    for items in (ITEMS[:8], ITEMS[:3]):
        pipeline.run(same, items, store.sink("out", 4), devices=device, overwrite=True)
        parts = [f"part-00000000{number}.npy" for number in range(-(-len(items) // 4))]
        assert store.names("out") == ["index.json", "notes.txt", *parts]
        np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), items)


def test_a_whole_bucket_is_refused(device: cudakit.Device, store: Store) -> None:
    if not store.url.startswith("s3://"):
        pytest.skip("only object stores have buckets")
    sink = pipeline.ToFSSpec(store.url, storage_options=store.options)
    with pytest.raises(ValueError, match="is a whole bucket: pass a folder in it"):
        pipeline.run(same, ITEMS, sink, devices=device)


def test_results_older_than_their_source_are_not_kept(device: cudakit.Device, store: Store, tmp_path: Path) -> None:
    parts = store.sink("parts", 4)
    pipeline.run(same, ITEMS, parts, devices=device)
    source = f"{store.url}/parts"
    out = pipeline.ToFolder(tmp_path / "out")
    pipeline.run(same, store.source(source), out, devices=device)
    assert pipeline.run(same, store.source(source), out, devices=device, resume=True).skipped == COUNT
    time.sleep(1.1)  # S3 has whole seconds
    key = f"{store.root}/parts/part-000000002.npy"
    store.fs.pipe_file(key, store.fs.cat_file(key))
    with pytest.raises(pipeline.ContentsRefused, match=r"the source of .*08\.npy was changed after"):
        pipeline.run(same, store.source(source), out, devices=device, resume=True)


def test_a_part_that_was_changed_is_refused(device: cudakit.Device, store: Store) -> None:
    pipeline.run(same, ITEMS, store.sink("out", 4), devices=device)
    part, url = f"{store.root}/out/part-000000005.npy", f"{store.url}/out"
    data = store.fs.cat_file(part)
    store.fs.pipe_file(part, data[:-1])
    with pytest.raises(pipeline.ContentsRefused, match=r"part-000000005\.npy has 487 bytes, and the index .* 488"):
        store.source(url)
    store.fs.rm_file(part)
    with pytest.raises(pipeline.ContentsRefused, match="has 0 bytes"):
        store.source(url)
    store.fs.pipe_file(part, data)
    before = store.source(url).identity()
    assert store.source(url).identity() == before
    store.fs.pipe_file(part, data[:-4] + b"1234")
    assert store.source(url).identity()["version"] != before["version"]
    store.fs.pipe_file(f"{store.root}/out/index.json", json.dumps({"format": "other"}).encode())
    with pytest.raises(pipeline.ContentsRefused, match="its format is 'other'"):
        store.source(url)
    with pytest.raises(pipeline.ContentsRefused, match="not the index"):  # only results are removed
        pipeline.run(same, ITEMS, store.sink("out"), devices=device, overwrite=True)


def test_a_second_run_is_refused(device: cudakit.Device, store: Store) -> None:
    def nested(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        with pytest.raises(pipeline.OutputBusy, match=f"written by process {os.getpid()} on "):
            pipeline.run(same, ITEMS, store.sink("out"), devices=device, overwrite=True)
        same(chunk, x, out)

    pipeline.run(nested, ITEMS, store.sink("out"), devices=device, chunk=COUNT)
    np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), ITEMS)
    with pytest.raises(ValueError, match="two sinks write to"):
        pipeline.run(lambda *_: None, ITEMS, (store.sink("a"), store.sink("a/")), devices=device)
    with pytest.raises(ValueError, match="is a source"):
        pipeline.run(same, store.source(f"{store.url}/out/"), store.sink("out"), devices=device, overwrite=True)


def test_plain_urls_are_enough(device: cudakit.Device, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", ITEMS)
    pipeline.run(same, f"file://{tmp_path}/in.npy", f"file://{tmp_path}/out/", devices=device)
    pipeline.run(same, f"file://{tmp_path}/out", f"file://{tmp_path}/again", devices=device)
    np.testing.assert_array_equal(read_all(pipeline.FromFSSpec(tmp_path / "again")), ITEMS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "in.npy", "out"]
    for name in ("out.npy", "out.h5"):
        with pytest.raises(ValueError, match="URL of one object"):
            pipeline.run(same, ITEMS, f"memory://bucket/{name}", devices=device)
    assert "process" in pipeline.ToFSSpec("memory://bucket/out").private


def doubled(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
    ops.scale(x, 2.0, out=out, stream=chunk.stream)


def test_workers_read_and_write_urls(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the dask extra")
    np.save(tmp_path / "in.npy", ITEMS)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        sink = pipeline.ToFSSpec(f"file://{tmp_path}/out", 3)
        report = pipeline.run(doubled, f"file://{tmp_path}/in.npy", sink, on=client, chunk=3)
        assert report.items == COUNT
        pipeline.run(doubled, f"file://{tmp_path}/out/", tmp_path / "again.npy", on=client, chunk=4)
    np.testing.assert_array_equal(read_all(pipeline.FromFSSpec(f"file://{tmp_path}/out")), 2 * ITEMS)
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), 4 * ITEMS)


def test_portions_write_parts_that_count_when_they_are_adopted(store: Store) -> None:
    from cudakit.pipeline.origin import RunOrigin

    origin = RunOrigin([pipeline.FromArray(ITEMS)], COUNT)
    spec = pipeline.SinkSpec(pipeline.Item.of((6, 5), "float32"), COUNT, origin)
    sink = store.sink("out", 4)
    sink.open(spec)
    for attempt, start, stop, counts in (("a", 12, COUNT, True), ("b", 0, 12, False), ("c", 0, 12, True)):
        portion = pickle.loads(pickle.dumps(sink.portion(attempt)))
        portion.open(spec)
        for at in range(start, stop, 4):
            portion.write(at, min(at + 4, stop), ITEMS[at : min(at + 4, stop)])
        portion.finish(stop - start)
        portion.close()
        if counts:
            sink.adopt(attempt, start, stop)
        else:
            sink.discard(attempt)
            assert store.names("out.cudakit/done") == ["12-23"]
    sink.finish(COUNT)
    sink.close()
    np.testing.assert_array_equal(read_all(store.source(f"{store.url}/out")), ITEMS)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A web server with byte ranges, which the one of the standard library does not have."""

    def do_GET(self) -> None:
        if "Range" not in self.headers:
            super().do_GET()
            return
        start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = Path(self.translate_path(self.path)).read_bytes()[start : stop + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class WholeFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for web servers")
    np.save(tmp_path / "in.npy", ITEMS)
    handler = functools.partial(request.param, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("served", [Ranges], indirect=True)
def test_a_web_server_sends_ranges(device: cudakit.Device, served: str, tmp_path: Path) -> None:
    out = np.zeros_like(ITEMS)
    pipeline.run(same, f"{served}/in.npy", out, devices=device, chunk=4, readers=3)
    np.testing.assert_array_equal(out, ITEMS)
    pipeline.run(same, ITEMS, pipeline.ToFSSpec(tmp_path / "out", 4), devices=device)
    source = pipeline.FromFSSpec(f"{served}/out/")
    np.testing.assert_array_equal(read_all(source), ITEMS)
    assert source.identity() == pipeline.FromFSSpec(f"{served}/out/").identity()


@pytest.mark.parametrize("served", [WholeFiles], indirect=True)
def test_a_web_server_without_ranges_is_refused(served: str, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((1000, 100), np.float32))
    with pytest.raises(pipeline.FileRefused, match="sends whole files only"):
        pipeline.FromFSSpec(f"{served}/in.npy")
