"""A long cluster run through everything that goes wrong: a worker killed, a slow one, the client killed and resumed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from copying import recorded

from cudakit import ops, pipeline

distributed = pytest.importorskip("distributed", reason="needs the dask extra")
zarr = pytest.importorskip("zarr", reason="needs the zarr extra")

COUNT, SIDE = 600, 48

#: Blurs `in.zarr` to `out.zarr` in the folder argv[2], on the cluster argv[1], and prints the number of finished items.
#: One worker is ten times as slow as the others. With `kill` as argv[3], another one is killed on the way.
SCRIPT = """
    import os, signal, sys, time
    from distributed import Client
    from cudakit import ops, pipeline

    COUNT, folder, kill = 600, sys.argv[2], sys.argv[3:] == ["kill"]

    def blur(chunk, images, out):
        name = os.environ.get("NAME_OF_WORKER")
        time.sleep(0.02 * len(chunk) * (10 if name == "1" else 1) / 4)
        if kill and name == "2" and chunk.stop > COUNT // 4:
            try:
                os.close(os.open(f"{folder}/killed", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        ops.blur(images, out=out, stream=chunk.stream)

    if __name__ == "__main__":
        with Client(sys.argv[1]) as client:
            report = pipeline.run(
                blur, f"{folder}/in.zarr", pipeline.ToZarr(f"{folder}/out.zarr", chunks=(4, 48, 48)), on=client,
                chunk=4, resume=True, progress=lambda far: print(far.items, flush=True),
            )
        print(report)
        lost = sum(worker.lost for worker in report.workers)
        shares = [(worker.name, worker.items) for worker in report.workers if worker.items]
        print("report", report.items, report.skipped, lost, shares)
"""


def blur(chunk, images, out):
    ops.blur(images, out=out, stream=chunk.stream)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_item_is_there_once_whatever_is_killed(tmp_path):
    """600 items on three worker processes: one killed with -9, one ten times as slow, the client killed and resumed."""
    images = np.random.default_rng(3).standard_normal((COUNT, SIDE, SIDE), dtype=np.float32)
    zarr.create_array(tmp_path / "in.zarr", data=images, chunks=(4, SIDE, SIDE))
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))

    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster:
        with cluster.get_client() as client:
            client.run(lambda dask_worker: os.environ.update(NAME_OF_WORKER=str(dask_worker.name)))

        def run(*words: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, script, cluster.scheduler_address, str(tmp_path), *words], stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip

        first = run("kill")
        assert first.stdout is not None
        for _ in first.stdout:
            if (tmp_path / "killed").exists() and recorded(tmp_path / "out.zarr.journal") >= COUNT // 4:
                first.send_signal(signal.SIGKILL)
                break
        first.wait()
        first.stdout.close()
        before = recorded(tmp_path / "out.zarr.journal")
        assert COUNT // 4 <= before < COUNT  # it was killed on the way

        second = run()
        said, _ = second.communicate(timeout=100)
        assert second.returncode == 0

    items, skipped, lost, shares = eval(said.splitlines()[-1].partition(" ")[2].replace(" ", ", ", 3))
    assert skipped == before  # what the killed client had finished but not yet recorded is computed again
    assert items + skipped == COUNT
    assert sum(count for _, count in shares) == items
    by_name = dict(shares)
    assert by_name.get("1", 0) < items / 4  # the slow one
    assert len(by_name) >= 2
    assert lost == 0  # the killed one was lost by the first client; its successor is a new worker

    pipeline.run(blur, tmp_path / "in.zarr", pipeline.ToZarr(tmp_path / "one.zarr", chunks=(4, SIDE, SIDE)))
    assert files(tmp_path / "out.zarr") == files(tmp_path / "one.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.zarr",
        "killed",
        "one.zarr",
        "out.zarr",
        "script.py",
    ]
