"""The check of large pipelines finds a chunk in the place of another one, at the committed sizes too."""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import programs
import pytest
from paths import ROOT

import cudakit
from cudakit import pipeline
from cudakit.commands import cli, numbered, streamed
from cudakit.pipeline import direct

EXAMPLES = ["batched_gemm", "blur_images", "chunked_add", "gemm_fft", "several_devices", "streams"]
MORE = {"streams": ["--study", "2"]}


@pytest.fixture(scope="module")
def shared() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim") as device:
        yield device


@pytest.fixture
def run_example(
    shared: cudakit.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Callable[..., dict[str, Any]]:
    """Run an example in this process, on the shared device. Return its rows by variant."""
    monkeypatch.setattr(cli, "open_device", lambda spec: contextlib.nullcontext(shared))
    monkeypatch.setattr(cli, "open_devices", lambda spec, count: [cudakit.Device("sim")])

    def run(name: str, *arguments: str) -> dict[str, Any]:
        report = tmp_path / "report.json"
        monkeypatch.setattr(sys, "argv", [name, "--quiet", "--json", str(report), *arguments, *MORE.get(name, [])])
        with pytest.raises(SystemExit):
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return {row["variant"]: row for row in json.loads(report.read_text())["rows"]}

    return run


class Mixed:
    """A sink that passes chunks to a judge with another chunk's numbers."""

    def __init__(self, judge: Any, fault: str) -> None:
        self.judge, self.fault = judge, fault
        self.kept: list[tuple[int, int, np.ndarray]] = []

    def __call__(self, start: int, stop: int, results: np.ndarray) -> None:
        self.kept.append((start, stop, results.copy()))
        if self.fault == "previous":
            self._pass(start, stop, self.kept[-2:][0][2])
        elif len(self.kept) == 2:
            (one, end, first), (other, last, second) = self.kept
            self._pass(one, end, second)
            self._pass(other, last, first)
            self.kept.clear()

    def _pass(self, start: int, stop: int, results: np.ndarray) -> None:
        self.judge.write(start, stop, results[: stop - start])


@pytest.mark.parametrize("fault", ["none", "previous", "swapped"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_chunk_that_passes_for_another_is_found(run_example, monkeypatch, name, fault) -> None:
    """The worst case: the ring of items is as short as a chunk, so chunks repeat as early as possible."""
    monkeypatch.setattr(numbered, "RING_BYTES", 1)
    run, sequential = pipeline.run, pipeline.sequential

    def mixed(sink: Any) -> Any:
        judge = getattr(sink, "__self__", sink)  # sequential() gets the method
        return Mixed(judge, fault) if isinstance(judge, streamed.Judge) and fault != "none" else sink

    monkeypatch.setattr(pipeline, "run", lambda f, i, sink, **options: run(f, i, mixed(sink), **options))
    monkeypatch.setattr(
        pipeline, "sequential", lambda *given, sink, **options: sequential(*given, sink=mixed(sink), **options)
    )
    rows = run_example(name, "--count", "8", "--size", "6", "--chunk", "2")
    judged = [
        row for row in rows.values() if row["rung"] is not None and not row["variant"].startswith(("sums", "disk"))
    ]
    assert judged
    assert {row["ok"] for row in judged} == {fault == "none"}
    assert {row["ok"] for row in rows.values() if row not in judged} == {True}
    assert fault == "none" or all("items" in row["why"] for row in judged)


@pytest.mark.parametrize("name", ["batched_gemm", "gemm_fft"])
def test_a_time_limit_sets_the_number_of_items(run_example, monkeypatch, name) -> None:
    monkeypatch.setattr(streamed, "PILOT_CHUNKS", 4)
    given = streamed.pipeline.run

    def at_a_rate(*arguments: Any, **options: Any) -> Any:
        report = given(*arguments, **options)
        report.seconds = report.items / 25  # 25 items per second
        return report

    monkeypatch.setattr(pipeline, "run", at_a_rate)
    rows = run_example(name, "--seconds", "3", "--size", "4", "--chunk", "10", "--rungs", "2")
    assert [row["rung"] for row in rows.values()] == [None, 2]
    assert all(row["ok"] and row["shape"] == [70, 4, 4] for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--rungs", "4"], "--rungs must be between 1 and 3, got 4"), (["--rungs", "0"], "'0' is not a count"),
     (["--seconds", "1", "--count", "9"], "pass one of them")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["batched_gemm", "gemm_fft"])
def test_a_budget_that_cannot_be_met_is_rejected(name, arguments, words) -> None:
    done = programs.run(ROOT / "examples" / f"{name}.py", "--device", "sim", "--quiet", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize("supported", [True, False])
def test_a_blur_from_disk_to_disk_is_checked_and_leaves_nothing(run_example, monkeypatch, tmp_path, supported) -> None:
    """Also on a file system without direct I/O, which is simulated."""
    kind = direct.file_system(tmp_path)
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is on a {kind}")
    supported = supported and not direct.why_unsupported(tmp_path)
    if not supported:
        monkeypatch.setattr(direct, "why_unsupported", lambda folder: "no direct I/O")
    mine = tmp_path / "images.npy"
    mine.write_bytes(b"a user's file")
    arguments = ["--disk", str(tmp_path), "--direct", "--size", "12", "--chunk", "2"]
    (row,) = run_example("blur_images", *arguments, "--count", "5").values()
    assert row["ok"]
    assert row["shape"] == [5, 12, 12]
    assert row["disk"]["direct"] == supported
    assert (kind in row["idea"]) == (row["disk"]["file_system"] == kind)
    assert min(row["disk"]["before"].values()) > 0
    assert mine.read_bytes() == b"a user's file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.npy", "report.json"]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=14 * 576))
    (row,) = run_example("blur_images", *arguments).values()
    assert row["shape"] == [6, 12, 12]  # 12.6 images fit into 0.9 of the free space
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100 * 576))
    monkeypatch.setattr(direct, "measure_disk", lambda *given, **options: direct.Disk(5760, 5760, 5760))
    (row,) = run_example("blur_images", *arguments, "--seconds", "2").values()
    assert row["shape"] == [10, 12, 12]  # made in a second, blurred in another
    (row,) = run_example("blur_images", *arguments, "--seconds", "60").values()
    assert row["shape"] == [14, 12, 12]  # 45 images fit, but the simulated device is slower than the disk
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=14 * 576))

    monkeypatch.setattr(streamed.Judge, "seen", property(lambda self: 1, lambda self, seen: None), raising=False)
    (row,) = run_example("blur_images", *arguments).values()
    assert "1 of 6 items" in row["why"]


def test_a_file_is_blurred_from_pinned_and_from_device_memory_in_turn(run_example, tmp_path) -> None:
    if direct.file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is in memory")
    arguments = ["--disk", str(tmp_path), "--kvikio", "--size", "12", "--chunk", "2", "--count", "5"]
    rows = run_example("blur_images", *arguments)
    assert [row["ok"] for row in rows.values()] == [True, True]
    assert {row["variant"] for row in rows.values()} == {"pinned direct", "kvikio"}
    pinned, kvikio = sorted(rows.values(), key=lambda row: row["rung"])
    assert len(pinned["disk"]["seconds"]) == len(kvikio["disk"]["seconds"]) == 5
    assert kvikio["pipeline"]["host_bytes"] < pinned["pipeline"]["host_bytes"]
    assert "the simulated device has no KvikIO" in kvikio["idea"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--disk", "/dev/shm", "--direct"], "which is memory"), (["--direct"], "name it with --disk"),
     (["--kvikio"], "name it with --disk"),
     (["--disk", ".", "--seconds", "3"], "pass it, too"),
     (["--disk", ".", "--direct", "--count", "9000000000"], "may be used there")],
)  # fmt: skip
def test_a_disk_that_is_no_use_is_rejected(tmp_path, monkeypatch, arguments, words) -> None:
    if "/dev/shm" in arguments and direct.file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs")
    if words == "may be used there" and direct.file_system(tmp_path) == "tmpfs":
        pytest.skip("the folder is on a tmpfs")
    monkeypatch.chdir(tmp_path)
    example = ROOT / "examples" / "blur_images.py"
    done = programs.run(example, "--device", "sim", "--quiet", "--size", "12", *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


class Asked(Exception):
    pass


@pytest.mark.parametrize("name", [*EXAMPLES, "blur_100000", "batched_gemm_1024", "gemm_fft_1024"])
def test_no_two_chunks_are_alike_at_the_committed_sizes(run_example, monkeypatch, name) -> None:
    rows = json.loads((ROOT / "profiles" / "h200" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    row = next(row for row in rows if row["pipeline"] and row["variant"] != "disk to disk")
    (count, size, _), chunk = row["shape"], row["pipeline"]["chunk"]
    asked: list[tuple[Any, int, int]] = []

    def make(work: Any, count: int, chunk: int) -> Any:
        asked.append((work, count, chunk))
        raise Asked

    monkeypatch.setattr(streamed.Items, "make", make)
    example = {"blur_100000": "blur_images"}.get(name, name.removesuffix("_1024"))
    with pytest.raises(Asked):
        run_example(example, "--count", str(count), "--size", str(size), "--chunk", str(chunk))
    ((work, count, chunk),) = asked
    ring = numbered.Ring.of(work, count, chunk)
    begins = ring.place(np.arange(0, count, chunk))
    assert len(set(begins.tolist())) == len(begins) == -(-count // chunk) > 3


@pytest.mark.parametrize("reach", [None, 1])
def test_the_judge_knows_every_item(reach: int | None) -> None:
    """Windows of the ring, at its edges too, are compared with the reference of the items themselves."""

    def spread(blocks: list[np.ndarray]) -> np.ndarray:
        """Return weighted sums of rows and their neighbours, which are 0 beyond the edge of an item."""
        padded = np.pad(blocks[0], ((0, 0), (1, 1), (0, 0)))
        return padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]

    work = numbered.Workload(
        "spread", print, 1, (5, 3), lambda blocks: spread([blocks[0].astype(np.float64)]), spread, reach=reach
    )
    items = numbered.Items.make(work, 11, 4)
    (source,) = items.made(11)
    for start in range(0, 11, 4):
        stop = min(start + 4, 11)
        block = np.empty((stop - start, 5, 3), np.float32)
        source.read(start, stop, block)
        results = spread([block])
        np.testing.assert_array_equal(block, items.blocks(start, stop)[0])
        for place in np.ndindex(results.shape):
            wrong = results.copy()
            wrong[place] += 1
            assert not items.judge(start, wrong).ok
        assert items.judge(start, results).ok
        assert items.judge_taken(start, items.taken(start, results)).ok
    with pytest.raises(cudakit.errors.Refused, match="pass a larger --chunk"):
        numbered.Ring.of(numbered.Workload("", print, 2, (4096, 4096), print, print), 1000, 1)
