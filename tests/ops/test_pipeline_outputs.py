"""Outputs of pipelines: one run at a time writes to each, and a run resumes only its own job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copying import same, stops_at

import cudakit
from cudakit import pipeline

COUNT = 8
ITEMS = np.arange(COUNT * 4, dtype=np.float32).reshape(COUNT, 4)


def left_over(folder: Path) -> list[str]:
    """The files that a run adds to its results."""
    return sorted(path.name for path in folder.rglob("*") if path.suffix != ".npy" and path.is_file())


# Two runs into one output ---------------------------------------------------------------------------------------------

# The program of another process: it runs the job named on each input line, and pauses in the second chunk until the
# next line.
HOLDER = """
import os, sys, time
import numpy as np
import cudakit
from cudakit import pipeline

device = cudakit.Device("sim")
items = np.arange(32, dtype=np.float32).reshape(8, 4)

def held(chunk, x, out):
    if chunk.index == 1:
        print("in", flush=True)
        sys.stdin.readline()
    out.copy_from(x, chunk.stream)

def slow(start, stop, out):
    time.sleep(0.01)
    out[:] = np.arange(start, stop, dtype=np.float32)[:, None]

def told(chunk, x, *outs):
    for out in outs:
        out.copy_from(x, chunk.stream)
    if chunk.index == 1 and os.fork() == 0:
        os.write(1, f"child {os.getpid()}\\n".encode())
        time.sleep(20)
        os._exit(0)
    if chunk.index == 25:
        sys.stdin.readline()

for line in sys.stdin:
    kind, place, first, last = line.split()
    if kind == "slow":
        source, sinks = pipeline.Filled(slow, 60, (33,), "float32"), (f"{place}/out.npy", f"{place}/out")
        pipeline.run(told, source, sinks, outputs=[((33,), "float32")] * 2, devices=device, chunk=2)
    part = slice(int(first), int(last))
    source, sink = items[part], place
    if kind == "map":
        sink = np.memmap(place, np.float32, "r+", shape=(8, 4))[part]
    if kind == "named":
        source = [f"{place}/in/x{i}.npy" for i in range(8)][part]
        sink = f"{place}/out"
    print("done", pipeline.run(held, source, sink, devices=device, chunk=2, resume=True).items, flush=True)
"""


class Holder:
    """Another process that runs pipelines."""

    def __init__(self, script: Path) -> None:
        script.write_text(HOLDER)
        command = [sys.executable, str(script)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _ask(self, line: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def begin(self, kind: str, place: Path, first: int = 0, last: int = COUNT) -> None:
        """Begin a run; return while it is in progress."""
        assert self._ask(f"{kind} {place} {first} {last}") == ["in"]

    def end(self) -> int:
        """Let the run end. Return the number of its items."""
        said, items = self._ask("")
        assert said == "done"
        return int(items)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def shared_holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Holder]]:
    made: list[Holder] = []
    yield made
    for holder in made:
        holder.close()


@pytest.fixture
def holder(shared_holder: list[Holder], tmp_path: Path) -> Holder:
    """A process shared by this file's tests; a new one after it was killed."""
    if not shared_holder or shared_holder[-1].process.poll() is not None:
        shared_holder.append(Holder(tmp_path / "holder.py"))
    return shared_holder[-1]


@pytest.mark.parametrize("place", ["out.npy", "out", "map"])
def test_two_threads_of_a_process_do_not_share_an_output(device: cudakit.Device, tmp_path: Path, place: str) -> None:
    inside, go = threading.Event(), threading.Event()

    def held(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        if chunk.index == 1:
            inside.set()
            assert go.wait(30)
        same(chunk, x, out)

    def sink(mode: str) -> Any:
        return np.memmap(tmp_path / place, np.float32, mode, shape=ITEMS.shape) if place == "map" else tmp_path / place

    into: Any = {"out.npy": pipeline.ToFile, "out": pipeline.ToFolder, "map": pipeline.ToMap}[place](sink("w+"))
    done: list[int] = []
    first = threading.Thread(target=lambda: done.append(pipeline.run(held, ITEMS, into, devices=device, chunk=2).items))
    first.start()
    try:
        assert inside.wait(30)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(pipeline.OutputBusy, match=f"written by process {os.getpid()} .this process") as refused:
                pipeline.run(same, 3 * ITEMS, sink("r+"), devices=device, chunk=2, **options)
            assert refused.value.pid == os.getpid()
            with pytest.raises(pipeline.OutputBusy):
                pipeline.run(same, 3 * ITEMS, into, devices=device, chunk=2, **options)
    finally:
        go.set()
        first.join()
    assert done == [COUNT]
    if place == "out":
        np.testing.assert_array_equal([np.load(tmp_path / "out" / f"{i}.npy") for i in range(COUNT)], ITEMS)
    else:
        np.testing.assert_array_equal(np.load(tmp_path / place) if place != "map" else sink("r+"), ITEMS)
    assert left_over(tmp_path) == (["map"] if place == "map" else [])


@pytest.mark.parametrize("place", ["out.npy", "out"])
def test_a_second_process_is_refused_and_disturbs_nothing(
    device: cudakit.Device, holder: Holder, tmp_path: Path, place: str
) -> None:
    holder.begin("plain", tmp_path / place)
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(pipeline.OutputBusy, match=f"written by process {holder.process.pid} .*another output"):
            pipeline.run(same, ITEMS, tmp_path / place, devices=device, chunk=2, **options)
    assert holder.end() == COUNT
    again = pipeline.run(stops_at(0), ITEMS, tmp_path / place, devices=device, chunk=2, resume=True)
    assert (again.items, again.skipped) == (0, COUNT)


def test_a_run_of_several_processes_shares_an_output_by_its_parts(
    device: cudakit.Device, holder: Holder, tmp_path: Path
) -> None:
    whole = np.memmap(tmp_path / "map", np.float32, "w+", shape=ITEMS.shape)
    holder.begin("map", tmp_path / "map", 0, 4)
    with pytest.raises(pipeline.OutputBusy):
        pipeline.run(same, ITEMS[3:], whole[3:], devices=device, chunk=2)
    pipeline.run(same, ITEMS[4:], whole[4:], devices=device, chunk=2)
    with pytest.raises(pipeline.OutputBusy):
        pipeline.run(same, ITEMS[:1], whole[:1], devices=device, chunk=2)
    assert holder.end() == 4
    np.testing.assert_array_equal(whole, ITEMS)

    (tmp_path / "in").mkdir()
    names = [tmp_path / "in" / f"x{i}.npy" for i in range(COUNT)]
    for name, item in zip(names, ITEMS, strict=True):
        np.save(name, item)
    holder.begin("named", tmp_path, 0, 5)
    with pytest.raises(pipeline.OutputBusy):
        pipeline.run(same, names[4:], tmp_path / "out", devices=device, chunk=2, resume=True)
    while not (tmp_path / "out" / "x0.npy").exists():  # a result of the other run does not block this run either
        assert holder.process.poll() is None
        time.sleep(0.01)
    assert pipeline.run(same, names[5:], tmp_path / "out", devices=device, chunk=2).items == 3
    assert holder.end() == 5
    for name, item in zip(names, ITEMS, strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / name.name), item)
    assert left_over(tmp_path / "out") == []


def test_kill_9_loses_no_finished_chunk_and_holds_nothing(
    device: cudakit.Device, holder: Holder, tmp_path: Path
) -> None:
    """A run is killed while it is writing, and a process that it forked lives on."""
    assert holder.process.stdin is not None
    assert holder.process.stdout is not None
    place = tmp_path / "killed"
    place.mkdir()
    holder.process.stdin.write(f"slow {place} 0 0\n")
    holder.process.stdin.flush()
    child = int(holder.process.stdout.readline().split()[1])

    def done() -> tuple[int, int]:
        """Return the number of items in the journal, and in the folder."""
        claims = [line.split() for line in (place / "out.npy.journal").read_text().splitlines()[1:]]
        return sum(int(stop) - int(start) for start, stop in claims), len(list((place / "out").glob("[!.]*.npy")))

    while min(done()) < 10:
        assert holder.process.poll() is None
        time.sleep(0.005)
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    try:
        before = {path.name: path.stat().st_ino for path in (place / "out").glob("[!.]*.npy")}
        expected = np.arange(60, dtype=np.float32)[:, None] * np.ones(33, np.float32)
        for sink, kept in zip(("out.npy", "out"), done(), strict=True):
            assert 10 <= kept < 60
            source = pipeline.Filled(
                lambda start, stop, out: np.copyto(out, np.arange(start, stop)[:, None]), 60, (33,), "float32"
            )
            report = pipeline.run(same, source, place / sink, devices=device, chunk=2, resume=True)
            assert (report.items, report.skipped) == (60 - kept, kept), "finished items must not be computed again"
    finally:
        os.kill(child, signal.SIGKILL)
    np.testing.assert_array_equal(np.load(place / "out.npy"), expected)
    np.testing.assert_array_equal([np.load(place / "out" / f"{i:02}.npy") for i in range(60)], expected)
    after = {path.name: path.stat().st_ino for path in (place / "out").glob("[!.]*.npy")}
    assert {name: after[name] for name in before} == before
    assert left_over(place) == []


def test_a_run_removes_only_files_that_it_made(device: cudakit.Device, tmp_path: Path) -> None:
    (tmp_path / "out.npy.part").write_bytes(b"mine")
    with pytest.raises(pipeline.FileOccupied, match=r"out\.npy\.part, .* exists without a journal"):
        pipeline.run(same, ITEMS, tmp_path / "out.npy", devices=device)
    assert (tmp_path / "out.npy.part").read_bytes() == b"mine"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".else.npy.part").write_bytes(b"mine")
    pipeline.run(same, ITEMS, tmp_path / "out", devices=device)
    assert left_over(tmp_path / "out") == [".else.npy.part"]

    def meanwhile(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        (tmp_path / "other.npy").write_bytes(b"mine")
        same(chunk, x, out)

    with pytest.raises(pipeline.PipelineError, match=r"other\.npy was made by another program during the run"):
        pipeline.run(meanwhile, ITEMS, tmp_path / "other.npy", devices=device)
    assert (tmp_path / "other.npy").read_bytes() == b"mine"
    (tmp_path / "other.npy").unlink()
    assert pipeline.run(same, ITEMS, tmp_path / "other.npy", devices=device, resume=True).skipped == COUNT


# Conditions for resuming a run ----------------------------------------------------------------------------------------


@pytest.fixture
def stopped(device: cudakit.Device, tmp_path: Path) -> Path:
    """Return a folder with the source a.npy, and out.npy of a run that stopped after four items."""
    np.save(tmp_path / "a.npy", ITEMS)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(2), tmp_path / "a.npy", tmp_path / "out.npy", devices=device, chunk=2)
    return tmp_path


def journal(folder: Path, lines: str) -> None:
    path = folder / "out.npy.journal"
    path.write_text(path.read_text().splitlines()[0] + "\n" + lines)


def other_source(folder: Path) -> None:
    np.save(folder / "b.npy", ITEMS)
    shutil.copystat(folder / "a.npy", folder / "b.npy")
    (folder / "b.npy").rename(folder / "a2.npy")


def changed_content(folder: Path) -> None:
    """Change the content, with the same size and time."""
    before = (folder / "a.npy").stat()
    np.save(folder / "a.npy", ITEMS + 1)
    os.utime(folder / "a.npy", ns=(before.st_atime_ns, before.st_mtime_ns))


def changed_later(folder: Path) -> None:
    """Change an item after the first ones."""
    data = np.load(folder / "a.npy", mmap_mode="r+")
    data[-1] = 7
    data.flush()
    os.utime(folder / "a.npy", ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_source, r"of another job, or its source has changed: sources 0 path was .*a\.npy, now .*a2\.npy"),
        (changed_content, "sources 0 first was"),
        (changed_later, "sources 0 modified was"),
        (lambda folder: os.truncate(folder / "out.npy.part", 200), r"out\.npy\.part has 200 bytes, .* requires 256"),
        (lambda folder: (folder / "out.npy.part").unlink(), r"out\.npy\.part has 0 bytes"),
        (lambda folder: journal(folder, "0 4\n6 9\n"), "line '6 9' is past the end of 8 items"),
        (lambda folder: journal(folder, "0 4\n2 6\n"), "line '2 6' overlaps"),
        (lambda folder: journal(folder, "0 4\n4 -6\n"), "line '4 -6' is not a range"),
        (lambda folder: journal(folder, "4 4\n"), "line '4 4' is an empty range"),
        (lambda folder: (folder / "out.npy.journal").write_bytes(b"\xff\xfe\n0 4\n"), "cannot be read as text"),
        (lambda folder: (folder / "out.npy.journal").write_text("[1]\n0 4\n"), "is not the record of a run"),
    ],
    ids=["source", "content", "time", "shortened", "lost", "past", "overlap", "text", "empty", "binary", "other"],
)
def test_a_resumed_run_refuses_what_is_not_its_own(
    device: cudakit.Device, stopped: Path, change: Callable[[Path], Any], why: str
) -> None:
    change(stopped)
    source = stopped / ("a2.npy" if (stopped / "a2.npy").exists() else "a.npy")
    out = stopped / "out.npy"
    with pytest.raises(pipeline.ContentsRefused, match=why) as refused:
        pipeline.run(same, source, out, devices=device, chunk=2, resume=True)
    assert "overwrite=True" in str(refused.value)
    pipeline.run(same, source, out, devices=device, chunk=2, overwrite=True)
    np.testing.assert_array_equal(np.load(out), np.load(source))


class Fails(pipeline.Sink):
    """A sink that stores nothing and raises an error after item `stop`."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def write(self, start: int, stop: int, items: Any) -> None:
        if stop > self.stop:
            raise OSError("full")


def test_items_that_one_of_two_outputs_had_are_claimed_once(device: cudakit.Device, tmp_path: Path) -> None:
    """The second output still needs the items, so chunks that the first has in part are processed again."""

    def both(chunk: pipeline.Chunk, x: Any, one: Any, other: Any) -> None:
        same(chunk, x, one)
        same(chunk, x, other)

    options: dict[str, Any] = {"outputs": [((4,), "float32")] * 2, "devices": device, "resume": True}
    for stop, chunk in ((2, 3), (3, 4)):
        with pytest.raises(pipeline.PipelineError, match="full"):
            pipeline.run(both, ITEMS, (tmp_path / "out.npy", Fails(stop)), chunk=chunk, streams=1, **options)
    pipeline.run(both, ITEMS, (tmp_path / "out.npy", Fails(COUNT)), chunk=5, **options)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), ITEMS)


def test_a_resumed_folder_refuses_a_changed_source(device: cudakit.Device, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, item in enumerate(ITEMS):
        np.save(tmp_path / "in" / f"x{i}.npy", item)
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(2), tmp_path / "in", tmp_path / "out", devices=device, chunk=2)
    np.save(tmp_path / "in" / "x1.npy", ITEMS[2])
    with pytest.raises(pipeline.ContentsRefused, match="sources 0 files was"):
        pipeline.run(same, tmp_path / "in", tmp_path / "out", devices=device, resume=True)
    pipeline.run(same, tmp_path / "in", tmp_path / "out", devices=device, overwrite=True)
    later = (tmp_path / "out" / "x3.npy").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "in" / "x3.npy", ns=(later, later))
    with pytest.raises(pipeline.ContentsRefused, match=r"source of .*x3\.npy was changed after that result"):
        pipeline.run(same, tmp_path / "in", tmp_path / "out", devices=device, resume=True)


def test_data_is_on_disk_before_the_journal_claims_it(
    device: cudakit.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, fdatasync, write = os.pwrite, os.fdatasync, os.write
    there: set[int] = set()  # offsets of chunks that were written
    synced: set[int] = set()
    claims: list[list[str]] = []

    def noted_pwrite(file: int, data: Any, offset: int) -> int:
        done = pwrite(file, data, offset)
        there.add(offset)
        return done

    def noted_fdatasync(file: int) -> None:
        before = set(there)
        fdatasync(file)
        synced.update(before)

    def noted_write(file: int, data: bytes) -> int:
        claims.extend(line.split() for line in data.decode().splitlines())
        assert all(128 + 16 * int(start) in synced for start, _ in claims)
        return write(file, data)

    monkeypatch.setattr(os, "pwrite", noted_pwrite)
    monkeypatch.setattr(os, "fdatasync", noted_fdatasync)
    monkeypatch.setattr(os, "write", noted_write)
    pipeline.run(same, ITEMS, tmp_path / "out.npy", devices=device, chunk=2, writers=2)
    assert sorted(int(start) for start, _ in claims) == [0, 2, 4, 6]


# Unusable outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "sink", "kind", "why"),
    [
        ("no.npy", None, FileNotFoundError, r"source '.*no\.npy' does not exist .*pass an .npy file, a folder"),
        (["a.npy", "no.npy"], "out.npy", FileNotFoundError, r"source '.*no\.npy' does not exist"),
        ("text.npy", None, ValueError, r"text\.npy is not a readable .npy file"),
        ("header.npy", None, ValueError, r"header\.npy is not a readable .npy file"),
        ("a.npy", "no/out.npy", FileNotFoundError, "there is no folder .*no for out.npy"),
        ("a.npy", "a.npy/out", FileNotFoundError, r"there is no folder .*a\.npy for out"),
        ("a.npy", "\ud800.npy", ValueError, "surrogates not allowed.*Check that its sources, .* and its sinks"),
        ("\ud800.npy", None, ValueError, "not a valid name"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_advice(
    device: cudakit.Device, tmp_path: Path, source: Any, sink: Any, kind: type[Exception], why: str
) -> None:
    np.save(tmp_path / "a.npy", ITEMS)
    (tmp_path / "text.npy").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x02\x00\x04\x00\x00\x00\xff\xfe{(")
    given = [tmp_path / one for one in source] if isinstance(source, list) else tmp_path / source
    into = None if sink is None else tmp_path / sink
    with pytest.raises(kind, match=why) as refused:
        pipeline.run(same, given, into, devices=device)
    assert isinstance(refused.value, pipeline.PipelineRefused)


@pytest.mark.parametrize("place", ["deep/out.npy", "deep/out"])
def test_an_output_that_vanishes_is_told_with_its_chunk(device: cudakit.Device, tmp_path: Path, place: str) -> None:
    (tmp_path / "deep").mkdir()

    def removes(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        shutil.rmtree(tmp_path / "deep", ignore_errors=True)
        same(chunk, x, out)

    with pytest.raises(pipeline.PipelineError, match="No such file or directory") as told:
        pipeline.run(removes, ITEMS, tmp_path / place, devices=device, chunk=COUNT)
    assert isinstance(told.value.__cause__, FileNotFoundError)


def test_a_record_that_is_damaged_is_refused(device: cudakit.Device, tmp_path: Path) -> None:
    with pytest.raises(pipeline.PipelineError):
        pipeline.run(stops_at(1), ITEMS, tmp_path / "out", devices=device, chunk=2)
    (record,) = (tmp_path / "out").glob(".pipeline*.json")
    assert json.loads(record.read_text())["count"] == COUNT
    record.write_bytes(b"\xff{")
    with pytest.raises(pipeline.ContentsRefused, match="damaged: pass overwrite=True"):
        pipeline.run(same, ITEMS, tmp_path / "out", devices=device, chunk=2, resume=True)
    pipeline.run(same, ITEMS, tmp_path / "out", devices=device, chunk=2, overwrite=True)
