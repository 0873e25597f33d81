"""Pipelines on a Dask cluster of real worker processes with simulated devices."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from cudakit import ops, pipeline
from cudakit.pipeline.cluster import pickled
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.request import Options
from cudakit.pipeline.worker import Devices, Job, compute_share, end_session

distributed = pytest.importorskip("distributed", reason="needs the dask extra")

COUNT, SIDE = 96, 16


def doubled(chunk, images, out):
    ops.scale(images, 2.0, out=out, stream=chunk.stream)


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(cluster):
    cluster.scale(3)
    with cluster.get_client() as made:
        made.wait_for_workers(3, timeout=60)
        made.run(lambda dask_worker: os.environ.update(NAME_OF_WORKER=str(dask_worker.name)))
        yield made


@pytest.fixture
def images(tmp_path):
    made = np.random.default_rng(1).standard_normal((COUNT, SIDE, SIDE), dtype=np.float32)
    np.save(tmp_path / "in.npy", made)
    return made


def slow_on(name, seconds, function=doubled):
    """A function that takes `seconds` longer per chunk on the worker of that name."""

    def run(chunk, *arrays):
        if os.environ["NAME_OF_WORKER"] == name:
            time.sleep(seconds)
        function(chunk, *arrays)

    return run


@pytest.mark.parametrize("sink", ["out.npy", "out/"])
def test_the_workers_results_are_those_of_one_process(client, images, tmp_path, sink):
    out = tmp_path / sink if sink.endswith(".npy") else f"{tmp_path / sink}/"
    report = pipeline.run(doubled, tmp_path / "in.npy", out, on=client, chunk=5)
    if sink.endswith(".npy"):
        results = np.load(out)
    else:
        names = sorted(Path(out).iterdir())
        assert [path.name for path in names] == [f"{number:02d}.npy" for number in range(COUNT)]
        results = np.stack([np.load(path) for path in names])
    np.testing.assert_array_equal(results, 2 * images)
    assert report.items == COUNT == sum(worker.items for worker in report.workers)
    assert len(report.workers) == 3
    assert all(worker.computed >= worker.items for worker in report.workers)
    assert "worker 0 on" in str(report)
    assert report.as_dict()["workers"][0]["host"]


@pytest.mark.parametrize("options", [{"chunks": 4}, {"chunks": 2, "shards": 6}, {"compressors": None}])
def test_zarr_to_zarr_has_the_same_bytes_as_one_process(client, images, tmp_path, options):
    zarr = pytest.importorskip("zarr", reason="needs the zarr extra")
    zarr.create_array(tmp_path / "in.zarr", data=images, chunks=(8, SIDE, SIDE))
    report = pipeline.run(doubled, tmp_path / "in.zarr", pipeline.ToZarr(tmp_path / "out.zarr", **options), on=client)
    pipeline.run(doubled, tmp_path / "in.npy", pipeline.ToZarr(tmp_path / "one.zarr", **options))
    out, one = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "out.zarr", tmp_path / "one.zarr")
    )
    assert out == one
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr")[:], 2 * images)
    assert report.items == COUNT == sum(worker.items for worker in report.workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npy", "in.zarr", "one.zarr", "out.zarr"]


def test_workers_read_and_write_other_formats(client, images, tmp_path, monkeypatch):
    for package in ("h5py", "tifffile", "pyarrow"):
        pytest.importorskip(package, reason=f"needs {package}")
    monkeypatch.chdir(tmp_path)
    frames = pipeline.ToFolder("frames", suffix=".tif")
    factor, out = 1, np.zeros_like(images)
    for source, sink in [("in.npy", "a.h5"), ("a.h5", "a.tif"), ("a.tif", frames), ("frames", "b.h5")]:
        assert pipeline.run(doubled, source, sink, on=client, chunk=5).items == COUNT
        factor *= 2
    pipeline.FromHDF5("b.h5").read(0, COUNT, out)
    np.testing.assert_array_equal(out, factor * images)

    np.save("rows.npy", images[:, 0, :3])
    pipeline.run(doubled, "rows.npy", pipeline.ToParquet("a"), on=client, chunk=5)
    pipeline.run(doubled, pipeline.FromParquet("a"), pipeline.ToParquet("b"), on=client, chunk=4)
    rows = np.zeros((COUNT, 3), np.float32)
    pipeline.FromParquet("b").read(0, COUNT, rows)
    np.testing.assert_array_equal(rows, 4 * images[:, 0, :3])
    with pytest.raises(ValueError, match="one process writes a Parquet file: pass a folder"):
        pipeline.run(doubled, "rows.npy", "c.parquet", on=client)
    with pytest.raises(ValueError, match="only one process can write HDF5 chunks"):
        pipeline.run(doubled, "rows.npy", pipeline.ToHDF5("c.h5", chunks=4), on=client)


def test_a_relative_path_is_one_of_the_client(client, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline.run(doubled, "in.npy", "out.npy", on=client)
    np.testing.assert_array_equal(np.load("out.npy"), 2 * images)


def test_items_of_a_function_and_several_sinks(client, tmp_path):
    def fill(start, stop, out):
        out[...] = np.arange(start, stop, dtype=np.float32)[:, None]

    def both(chunk, x, once, twice):
        ops.scale(x, 1.0, out=once, stream=chunk.stream)
        ops.scale(x, 2.0, out=twice, stream=chunk.stream)

    report = pipeline.run(
        both, pipeline.Filled(fill, 50, (3,), "float32"), (tmp_path / "once.npy", f"{tmp_path}/twice/"), on=client,
    )  # fmt: skip
    expected = np.repeat(np.arange(50, dtype=np.float32)[:, None], 3, 1)
    np.testing.assert_array_equal(np.load(tmp_path / "once.npy"), expected)
    twice = [np.load(path) for path in sorted((tmp_path / "twice").iterdir())]
    np.testing.assert_array_equal(np.stack(twice), 2 * expected)
    assert report.bytes_out == 2 * expected.nbytes


def test_a_timeline_has_the_lanes_of_every_worker(client, images, tmp_path):
    report = pipeline.run(doubled, tmp_path / "in.npy", None, on=client, chunk=4, timeline=True)
    names = {span.lane.split(":")[0] for span in report.spans if span.stage == "write"}
    assert names == {worker.name for worker in report.workers if worker.computed}
    assert [span.begin for span in report.spans] == sorted(span.begin for span in report.spans)
    assert all(span.begin <= span.end for span in report.spans)


def test_progress_has_the_rate_of_each_worker(client, images, tmp_path):
    seen = []
    pipeline.run(slow_on("0", 0.05), tmp_path / "in.npy", None, on=client, chunk=4, progress=seen.append)
    assert seen[-1].items == seen[-1].count == COUNT
    assert {worker.name for worker in seen[-1].workers} == {"0", "1", "2"}
    assert any(worker.rate for worker in seen[-1].workers)
    assert [far.items for far in seen] == sorted(far.items for far in seen)


def test_a_slow_worker_loses_shares_to_the_others(client, images, tmp_path):
    out = f"{tmp_path}/out/"
    report = pipeline.run(slow_on("1", 0.4), tmp_path / "in.npy", out, on=client, chunk=2)
    results = np.stack([np.load(path) for path in sorted(Path(out).iterdir())])
    np.testing.assert_array_equal(results, 2 * images)
    by_name = {worker.name: worker.items for worker in report.workers}
    assert by_name["1"] < COUNT // 6
    assert report.taken + report.doubled


def test_a_killed_worker_changes_nothing(client, images, tmp_path):
    mark = tmp_path / "killed"

    def fatal(chunk, x, y):
        time.sleep(0.05)
        if chunk.stop > COUNT // 2:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        ops.scale(x, 2.0, out=y, stream=chunk.stream)

    out = f"{tmp_path}/out/"
    report = pipeline.run(fatal, tmp_path / "in.npy", out, on=client, chunk=3)
    assert mark.exists()
    results = np.stack([np.load(path) for path in sorted(Path(out).iterdir())])
    np.testing.assert_array_equal(results, 2 * images)
    assert sum(worker.lost for worker in report.workers) == 1
    assert sum(worker.items for worker in report.workers) == COUNT


def test_items_that_kill_every_worker_stop_the_run(client, images, tmp_path):
    def fatal(chunk, x, y):
        if chunk.start <= 40 < chunk.stop:
            os.kill(os.getpid(), signal.SIGKILL)
        ops.scale(x, 2.0, out=y, stream=chunk.stream)

    with pytest.raises(pipeline.PipelineError, match=r"were lost with 3 workers in a row.* of 96 items are finished"):
        pipeline.run(fatal, tmp_path / "in.npy", tmp_path / "out.npy", on=client, chunk=1)
    client.wait_for_workers(1, timeout=60)  # Dask may give up a worker that died several times
    report = pipeline.run(doubled, tmp_path / "in.npy", tmp_path / "out.npy", on=client, chunk=1, resume=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * images)
    assert report.items + report.skipped == COUNT


def test_a_failure_names_the_worker_and_the_items_and_a_resumed_run_continues(client, images, tmp_path):
    def fragile(chunk, x, y):
        if chunk.start <= 70 < chunk.stop:
            raise ArithmeticError("item 70 is too much for me")
        ops.scale(x, 2.0, out=y, stream=chunk.stream)

    out = f"{tmp_path}/out/"
    with pytest.raises(pipeline.PipelineError, match=r"worker \d: chunk .*item 70 is too much.*resume=True") as caught:
        pipeline.run(fragile, tmp_path / "in.npy", out, on=client, chunk=2)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert caught.value.stage == "compute"
    assert caught.value.start <= 70 < caught.value.stop
    report = pipeline.run(doubled, tmp_path / "in.npy", out, on=client, chunk=2, resume=True)
    names = sorted(Path(out).iterdir())
    assert len(names) == COUNT  # no temporary place is left
    np.testing.assert_array_equal(np.stack([np.load(path) for path in names]), 2 * images)
    assert report.items + report.skipped == COUNT


def test_a_share_that_starts_after_the_end_of_its_run_writes_nothing(client, images, tmp_path):
    """Dask may start a task just when it is cancelled, and the output may be another run's by then."""
    source = pipeline.FromFile(tmp_path / "in.npy")
    origin = RunOrigin([source], COUNT)
    options = Options(2, 3, None, None, 1, 1, False, False, False, None, False, False)
    sink = pipeline.ToFolder(tmp_path / "out")
    sink.open(pipeline.SinkSpec(source.item, COUNT, origin))
    for name, written in (("going", 4), ("over", None)):
        items = (source.item,)
        job = Job(name, doubled, (source,), items, items, COUNT, COUNT, 1, origin.identity, options, "topic")
        if name == "over":
            client.run(end_session, name)
        future = client.submit(
            compute_share, pickled(job), 0, 4, [sink.portion(name)], Devices(("sim",), 1), pure=False
        )
        done = future.result(timeout=60)
        assert (done and done.computed) == written
        client.run(end_session, name)
    assert {path.parent.name for path in Path(tmp_path / "out").rglob("*.npy")} == {"going"}
    sink.close()


def test_a_second_run_into_the_same_output_is_refused(client, images, tmp_path):
    def nested(far):
        if not errors:
            try:
                pipeline.run(doubled, tmp_path / "in.npy", tmp_path / "out.npy", on=client, overwrite=True)
            except pipeline.OutputBusy as error:
                errors.append(error)

    errors: list[Exception] = []
    pipeline.run(doubled, tmp_path / "in.npy", tmp_path / "out.npy", on=client, progress=nested)
    assert len(errors) == 1
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * images)


def test_an_interrupted_run_ends_its_tasks_and_keeps_its_results(client, images, tmp_path):
    def stop(far):
        if far.items:
            raise KeyboardInterrupt

    out = f"{tmp_path}/out/"

    def slow(chunk, x, y):
        time.sleep(0.05)
        doubled(chunk, x, y)

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(slow, tmp_path / "in.npy", out, on=client, chunk=1, progress=stop)
    deadline = time.monotonic() + 20
    while any(client.processing().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(client.processing().values())
    kept = sorted(path for path in Path(out).iterdir() if path.suffix == ".npy")
    assert 0 < len(kept) < COUNT
    assert not list(Path(out).glob(".pipeline*.shares*"))
    for path in kept:
        np.testing.assert_array_equal(np.load(path), 2 * images[int(path.stem)])


SCRIPT = """
    import sys, time
    from distributed import Client
    from cudakit import ops, pipeline

    def slow(chunk, x, y):
        time.sleep(0.1)
        ops.scale(x, 2.0, out=y, stream=chunk.stream)

    if __name__ == "__main__":
        with Client(sys.argv[1]) as client:
            pipeline.run(
                slow, sys.argv[2], sys.argv[3], on=client, chunk=2,
                progress=lambda far: print(far.items, flush=True),
            )
"""


def test_a_killed_client_leaves_its_results_to_the_next(cluster, client, images, tmp_path):
    script, out = tmp_path / "script.py", f"{tmp_path}/out/"
    script.write_text(textwrap.dedent(SCRIPT))
    run = subprocess.Popen(
        [sys.executable, script, cluster.scheduler_address, str(tmp_path / "in.npy"), out], stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert run.stdout is not None
    for line in run.stdout:
        if int(line) >= COUNT // 4:
            run.kill()
            break
    run.wait()
    run.stdout.close()
    report = pipeline.run(doubled, tmp_path / "in.npy", out, on=client, chunk=2, resume=True)
    names = sorted(Path(out).iterdir())
    assert len(names) == COUNT
    np.testing.assert_array_equal(np.stack([np.load(path) for path in names]), 2 * images)
    assert report.skipped >= COUNT // 4
    assert report.items == COUNT - report.skipped


def test_sources_and_sinks_of_this_process_are_refused(client, images, tmp_path):
    def run(source, sink, **options):
        pipeline.run(doubled, source, sink, on=client, **options)

    inside = tmp_path / "in.npy"
    with pytest.raises(ValueError, match=r"source FromArray cannot be used by a cluster's workers: .*memory"):
        run(images, None)
    with pytest.raises(ValueError, match="sink ToArray cannot be used"):
        run(inside, np.empty_like(images))
    with pytest.raises(ValueError, match="sink Each cannot be used"):
        run(inside, lambda start, stop, items: None)
    with pytest.raises(ValueError, match="a generator cannot be a source on a cluster"):
        run((block for block in [images]), None)
    with pytest.raises(ValueError, match="needs a sink"):
        run(inside, ())
    with pytest.raises(TypeError, match=r"must be a dask.distributed.Client, got LocalCluster"):
        pipeline.run(doubled, inside, None, on=client.cluster)
    with pytest.raises(TypeError, match="devices of a run on a cluster are names"):
        run(inside, None, devices=[0])
    big = np.zeros(5 << 20)
    with pytest.raises(ValueError, match=r"have .* MB, at most"):
        pipeline.run(lambda chunk, x, y: big, inside, None, on=client)
    with open(inside, "rb") as file, pytest.raises(ValueError, match="cannot be sent to the workers"):
        pipeline.run(lambda chunk, x, y: file, inside, None, on=client)
    own = np.lib.format.open_memmap(inside, "r+")
    with pytest.raises(ValueError, match="overwrites its own source"):
        run(own, own)


def test_a_source_that_differs_on_a_worker_is_refused(client, tmp_path):
    def fill(start, stop, out):
        out[...] = os.getpid()

    with pytest.raises(pipeline.PipelineError, match=r"the first items of .* differ from the client's"):
        pipeline.run(doubled, pipeline.Filled(fill, 9, (2,), "float32"), None, on=client)


def test_a_worker_frees_its_pipeline_after_the_run(client, images, tmp_path):
    def sessions():
        from cudakit.pipeline import worker

        return {name for name, session in worker._sessions.items() if not session.over}

    before = client.run(sessions)  # those of a killed client end after a time
    pipeline.run(doubled, tmp_path / "in.npy", None, on=client)
    for worker, names in client.run(sessions).items():
        assert not names - before.get(worker, set())


def test_a_task_sees_that_it_was_cancelled(client, tmp_path):
    def watch(path):
        from distributed import get_worker

        from cudakit.pipeline.worker import cancelled

        worker = get_worker()
        key = worker.get_current_task()
        Path(path, "started").touch()
        for _ in range(400):
            if cancelled(worker, key):
                Path(path, "seen").touch()
                return
            time.sleep(0.05)

    def appears(name):
        deadline = time.monotonic() + 15
        while not (tmp_path / name).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return (tmp_path / name).exists()

    future = client.submit(watch, str(tmp_path), pure=False)
    assert appears("started")
    time.sleep(0.2)
    assert not (tmp_path / "seen").exists()
    future.cancel()
    assert appears("seen")


def test_an_empty_run_makes_an_empty_output(client, tmp_path):
    np.save(tmp_path / "none.npy", np.empty((0, 3), np.float32))
    report = pipeline.run(doubled, tmp_path / "none.npy", tmp_path / "out.npy", on=client)
    assert np.load(tmp_path / "out.npy").shape == (0, 3)
    assert report.items == 0


def test_a_worker_whose_device_was_lost_serves_the_next_run(client, images, tmp_path):
    def faulty(chunk, x, y):
        chunk.device.compile(source="__global__ void stray(float* y) { y[1 << 20] = 1; }")["stray"].launch(
            chunk.stream, grid=1, block=1, args=(y,)
        )

    with pytest.raises(pipeline.PipelineError, match=r"(?s)worker \d: .*out-of-bounds access"):
        pipeline.run(faulty, tmp_path / "in.npy", None, on=client, devices="sim")
    pipeline.run(doubled, tmp_path / "in.npy", tmp_path / "out.npy", on=client, devices="sim")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), 2 * images)
