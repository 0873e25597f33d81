"""Traces: their table, dict, plot and file, without time that is counted twice."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import sys
import threading
import time

import numpy as np
import pytest
from cuda.bindings import driver as cu
from paths import ROOT

import cudakit
from cudakit import nvtx, trace
from cudakit.errors import Refused
from cudakit.show import marks, plots
from cudakit.sim.driver import launches
from cudakit.trace import Trace


class Clock:
    """A clock in nanoseconds that the test sets."""

    def __init__(self):
        self.now = 1_000_000

    def perf_counter_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", made.perf_counter_ns)
    return made


def rows(trace, thread=0):
    return {row["range"]: row for row in trace.as_dict()["threads"][thread]["rows"]}


@pytest.fixture
def product(clock):
    """The ranges of a typical matrix product, with planted times."""
    with nvtx.trace() as t:
        clock.now += 5_000  # outside all ranges
        with nvtx.range("product"):
            with nvtx.range("allocate"):
                with nvtx.range("create context"):
                    clock.now += 600
                clock.now += 100
            for _ in range(2):
                with nvtx.range("copy"):
                    clock.now += 50
            clock.now += 200
        clock.now += 7_000
    return t


def test_the_table_has_its_columns_and_counts_nothing_twice(product):
    assert product.table().splitlines()[:5] == [
        "Time %       Total ns  Instances         Avg ns  Range",
        "  20.0          1,000          1          1,000  product",
        "  10.0            700          1            700    allocate",
        "  60.0            600          1            600      create context",
        "  10.0            100          2             50    copy",
    ]


def test_time_percent_is_that_of_the_ranges_own_time(product):
    """Shares based on Total would add up to 240 %, mostly for ranges that only contain others."""
    found = rows(product)
    assert sum(row["share"] for row in found.values()) == pytest.approx(1)
    twice = sum(row["total_ns"] for row in found.values()) / found["product"]["total_ns"]
    assert twice == pytest.approx(2.4)
    assert found["product > allocate"]["self_ns"] == 100
    assert max(found, key=lambda name: found[name]["share"]) == "product > allocate > create context"


def test_what_is_too_deep_counts_as_its_ranges_own(product):
    assert product.table(depth=2).splitlines()[1:4] == [
        "  20.0          1,000          1          1,000  product",
        "  70.0            700          1            700    allocate",
        "  10.0            100          2             50    copy",
    ]
    assert product.table(depth=9) == product.table()
    with pytest.raises(ValueError, match="depth=0: 1 shows"):
        product.table(depth=0)


def test_the_table_in_markdown_is_made_of_the_json(product):
    told = json.loads(json.dumps(product.as_dict()))
    assert marks.WRITERS["ranges"]({"rows": [], "ranges": told}).splitlines()[2:] == [
        "| 20.0 | 1,000 | 1 | 1,000 | product |",
        "| 70.0 | 700 | 1 | 700 | product > allocate |",
        "| 10.0 | 100 | 2 | 50 | product > copy |",
    ]
    with pytest.raises(Refused, match="no ranges"):
        marks.WRITERS["ranges"]({"rows": []})


def test_as_dict_is_json_with_exact_figures(product):
    told = json.loads(json.dumps(product.as_dict()))
    assert told["clock"] == "host wall time"
    assert told["duration_ns"] == 13_000
    assert told["threads"][0]["rows"][3] == {
        "range": "product > copy", "path": ["product", "copy"], "instances": 2, "total_ns": 100, "avg_ns": 50,
        "self_ns": 100, "share": 0.1, "raised": 0,
    }  # fmt: skip


def test_the_same_name_in_two_places_is_two_rows(clock):
    with nvtx.trace() as t:
        for outer in ("a", "b"):
            with nvtx.range(outer), nvtx.range("copy"):
                clock.now += 10
        with nvtx.range("copy"), nvtx.range("copy"):
            clock.now += 5
    assert list(rows(t)) == ["a", "a > copy", "b", "b > copy", "copy", "copy > copy"]
    assert rows(t)["copy"]["self_ns"] == 0


def test_an_exception_ends_ranges_and_is_told(clock):
    with nvtx.trace() as t:
        with nvtx.range("fine"):
            clock.now += 10
        with pytest.raises(ZeroDivisionError), nvtx.range("outer"), nvtx.range("inner"):
            _ = 1 / 0
    assert [span.raised for span in t.spans] == [None, "ZeroDivisionError", "ZeroDivisionError"]
    assert "inner  (1 raised)" in t.table()
    assert not nvtx.listeners or t not in nvtx.listeners
    with nvtx.range("later"):
        pass
    assert "later" not in rows(t)
    with pytest.raises(ZeroDivisionError), nvtx.trace() as t:
        _ = 1 / 0
    assert t not in nvtx.listeners


def test_ranges_over_the_traces_edges(clock):
    """A range that began before the trace is left out; an open range counts up to the trace's end."""
    before, after = nvtx.range("before"), nvtx.range("after")
    before.__enter__()
    tracing = nvtx.trace()
    t = tracing.__enter__()
    with nvtx.range("within"):
        clock.now += 10
    before.__exit__(None, None, None)
    after.__enter__()
    clock.now += 30
    tracing.__exit__(None, None, None)
    clock.now += 1000
    after.__exit__(None, None, None)
    assert {name: row["total_ns"] for name, row in rows(t).items()} == {"within": 10, "after": 30}


def test_traces_nest(clock):
    with nvtx.trace() as outer:
        with nvtx.range("first"):
            clock.now += 1
        with nvtx.trace() as inner, nvtx.range("second"):
            clock.now += 1
    assert list(rows(inner)) == ["second"]
    assert list(rows(outer)) == ["first", "second"]


def test_threads_are_kept_apart():
    """Two simultaneous threads, each in its own range: neither range is nested in the other."""
    together = threading.Barrier(2)

    def work(name):
        with nvtx.range(name):
            together.wait(10)
            with nvtx.range("inner"):
                together.wait(10)

    with nvtx.trace() as t:
        threads = [threading.Thread(target=work, args=(name,), name=f"worker {name}") for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    told = {thread["name"]: [row["range"] for row in thread["rows"]] for thread in t.as_dict()["threads"]}
    assert told == {"worker a": ["a", "a > inner"], "worker b": ["b", "b > inner"]}
    for thread in t.as_dict()["threads"]:
        assert sum(row["share"] for row in thread["rows"]) == pytest.approx(1)
    assert "Thread worker a\n" in t.table()


def test_marks_and_what_is_empty(clock, tmp_path):
    with nvtx.trace() as t:
        pass
    assert t.table() == "no ranges were run through"
    assert len(trace.markdown(t.as_dict()).splitlines()) == 2
    with pytest.raises(cudakit.CudakitError, match="has no ranges"):
        t.chrome(tmp_path / "x.json")
    with pytest.raises(Refused, match="no range ended"):
        plots.ranges(t, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
    with nvtx.trace() as t:
        nvtx.mark("here")
        nvtx.mark("here")
    assert "Mark: here (2)" in t.table()
    assert t.as_dict()["threads"][0]["marks"] == {"here": 2}


def test_the_file_for_a_trace_viewer(product, tmp_path):
    """Chrome's format: microseconds, complete events with a duration, and names of process and thread."""
    path = tmp_path / "trace.json"
    product.chrome(path)
    told = json.loads(path.read_text())
    events = told["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in complete] == [
        ("product", 5.0, 1.0),
        ("allocate", 5.0, 0.7),
        ("create context", 5.0, 0.6),
        ("copy", 5.7, 0.05),
        ("copy", 5.75, 0.05),
    ]
    thread = threading.get_native_id()
    assert {(event["pid"], event["tid"]) for event in complete} == {(os.getpid(), thread)}
    named = {event["name"]: event for event in events if event["ph"] == "M"}
    assert named["thread_name"]["args"] == {"name": threading.current_thread().name}
    assert named["thread_name"]["tid"] == thread
    assert "host time" in named["process_name"]["args"]["name"]
    # Viewers nest ranges by time, so an inner range must be within the times of the outer one.
    for inner, outer in ((1, 0), (2, 1), (3, 0), (4, 0)):
        assert complete[outer]["ts"] <= complete[inner]["ts"]
        ends = [complete[at]["ts"] + complete[at]["dur"] for at in (inner, outer)]
        assert ends[0] <= ends[1] + 1e-9


def test_the_picture(product, tmp_path):
    path = tmp_path / "ranges.png"
    plots.ranges(product, path, title="a product")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 5_000
    plots.ranges(product, tmp_path / "ranges.svg")
    written = re.findall(r"<!-- (.*) -->", (tmp_path / "ranges.svg").read_text())
    assert {"product", "allocate", "create context"} <= set(written), "bars are labelled if there is space"
    assert "product &gt; copy (2 times)" in written
    assert "100 ns   10.0 %" in written


@pytest.mark.parametrize("name", ["$x^^y$", r"a $\frac$ b", "\udcff.cu"])
def test_a_picture_of_any_names(name, tmp_path):
    """matplotlib would read text between dollar signs as mathematics, and raise an error if it is not."""
    with nvtx.trace() as t, nvtx.range(name):
        pass
    plots.ranges(t, tmp_path / "names.png", title=name)
    assert (tmp_path / "names.png").stat().st_size > 10_000


def nested(clock, depth):
    with nvtx.trace() as t, contextlib.ExitStack() as open_ranges:
        for _ in range(depth):
            open_ranges.enter_context(nvtx.range("r"))
        clock.now += 5
    return t


def test_ranges_may_nest_deeper_than_calls(clock):
    t = nested(clock, sys.getrecursionlimit() + 100)
    assert len(t.lines(t.lanes[0])) == sys.getrecursionlimit() + 100


def test_a_picture_of_many_lines_is_no_taller_than_can_be_written(clock, tmp_path):
    plots.ranges(nested(clock, 300), tmp_path / "deep.png")
    height = int.from_bytes((tmp_path / "deep.png").read_bytes()[20:24], "big")
    assert 15_000 < height < 16_000, "ranges up to the limit, and one row for the rest"


def test_a_picture_that_cannot_be_written_is_refused(clock, tmp_path):
    with nvtx.trace() as t, nvtx.range("work"):
        clock.now += 5
    with pytest.raises(Refused, match="does not exist"):
        plots.ranges(t, tmp_path / "nowhere" / "x.png")
    with pytest.raises(Refused, match="does not write"):
        plots.ranges(t, tmp_path / "x.xyz")


def test_a_picture_that_cannot_be_is_refused_before_anything_runs(example, tmp_path, monkeypatch):
    arguments = argparse.Namespace(device="sim", json=None, trace=None, picture=str(tmp_path / "x.docx"), shapes=None)
    with pytest.raises(Refused, match=r"--picture .*x.docx: matplotlib does not write .docx files. Use one of"):
        example["run"](arguments)
    arguments.picture = str(tmp_path / "missing" / "x.png")
    with pytest.raises(Refused, match="does not exist"):
        example["run"](arguments)
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    arguments.picture = str(tmp_path / "x.png")
    with pytest.raises(Refused, match=r"pip install 'cudakit\[plot\]'"):
        example["run"](arguments)


def test_a_device_is_traced_without_a_tool(sim, tmp_path):
    with nvtx.trace() as t, nvtx.range("work"):
        x = sim.array(np.ones(5, np.float32))
        x.numpy()
    found = [row["range"] for row in t.as_dict()["threads"][0]["rows"]]
    assert found == [
        "work", "work > allocate", "work > copy H2D", "work > copy D2H", "work > synchronize stream",
    ]  # fmt: skip


def test_an_enqueue_is_not_the_work(sim, clock, monkeypatch):
    """The kernel runs when its stream is waited for: that range has its time, and the launch's range only that of the
    enqueue."""
    source = """
__global__ void turn(float* x, int n) {
    for (int i = 0; i < n; ++i) x[threadIdx.x] = x[threadIdx.x] * 0.5f + 1.0f;
}
"""
    kernel = sim.compile(source=source, name="turn.cu")["turn"]
    stream = sim.default_stream
    x = sim.zeros((32,))
    stream.synchronize()
    simulate = launches.launch_kernel

    def slow(*arguments, **options):
        clock.now += 1_000
        return simulate(*arguments, **options)

    monkeypatch.setattr(launches, "launch_kernel", slow)
    with nvtx.trace() as t:
        with nvtx.range("not waited for"):
            kernel.launch(stream, grid=1, block=32, args=(x, 4))
        with nvtx.range("waited for"):
            stream.synchronize()
    assert rows(t)["not waited for"]["total_ns"] == 0
    assert rows(t)["waited for"]["total_ns"] == 1_000


def test_a_failed_call_is_no_fast_call(sim):
    """A common mistake is an unchecked timing: a copy that the driver rejects takes almost no time and reports nothing.

    A table with a copy of a megabyte in a microsecond, or frees in 50 ns each, shows failed calls. The same call
    through cudakit raises an error, and its range is marked as failed.
    """
    driver = sim.context.driver
    host = np.ones(1 << 18, np.float32)
    x = sim.array(host)
    handle = x.stream.handle
    with nvtx.trace() as t:
        with nvtx.range("unchecked"):
            code, *_ = driver.cuMemcpyHtoDAsync(x.pointer + (1 << 50), host.ctypes.data, host.nbytes, handle)
        with nvtx.range("copy"):
            x.copy_from(host)
            sim.synchronize()
        x.close()
        with pytest.raises(cudakit.Closed), nvtx.range("checked"):
            x.copy_from(host)
    assert int(code) != 0
    found = rows(t)
    assert found["unchecked"]["raised"] == 0, "in the table only its time distinguishes it from a copy"
    assert found["checked"]["raised"] == 1


def test_a_trace_can_be_read_while_it_runs(clock):
    with nvtx.trace() as t, nvtx.range("open"):
        clock.now += 40
        assert rows(t)["open"]["total_ns"] == 40
        assert "open" in t.table()
        assert re.search(r"Trace\(1 ranges on 1 threads", repr(t))
    assert isinstance(t, Trace)


PHASES = [
    "Context Creation", "Input Generation", "Kernel Compilation", "Memory Allocation", "Memory Copy H2D",
    "Kernel Execution", "Memory Copy D2H", "Memory Deallocation",
]  # fmt: skip


@pytest.fixture
def example():
    """The names defined in examples/nvtx_matmul.py."""
    path = ROOT / "examples" / "nvtx_matmul.py"
    return runpy.run_path(str(path))


def test_the_example_tells_its_phases_and_whose_times_they_are(example, tmp_path, capsys):
    out, traced = tmp_path / "out.json", tmp_path / "traced.json"
    arguments = argparse.Namespace(
        device="sim", json=str(out), trace=str(traced), picture=None, shapes=[(33, 20, 12), (8,)], depth=2, quiet=False
    )
    assert example["run"](arguments) == 0
    said = capsys.readouterr().out
    assert "simulated: times of this machine's CPU" in said
    listed = [line.split()[-2:] for line in said.splitlines() if "Memory" in line]
    assert listed == [["Memory", "Allocation"], ["Copy", "H2D"], ["Copy", "D2H"], ["Memory", "Deallocation"]]
    told = json.loads(out.read_text())
    assert all(row["ok"] for row in told["rows"])
    found = {row["range"]: row for row in told["ranges"]["threads"][0]["rows"]}
    phases = [row["path"][1] for row in found.values() if len(row["path"]) == 2]
    assert phases == [*PHASES, "close device"]
    assert all(found[f"Matrix Multiplication > {phase}"]["instances"] == 2 for phase in PHASES)
    assert found["Matrix Multiplication > Memory Copy H2D > copy H2D"]["instances"] == 4
    assert found["Matrix Multiplication > Memory Deallocation > free"]["instances"] == 6
    # Creating the context is not part of the allocation's time, and each phase waits for its queued work.
    assert "Matrix Multiplication > Memory Allocation > create context" not in found
    for phase in PHASES[3:]:
        assert found[f"Matrix Multiplication > {phase} > synchronize stream"]["instances"] == 2
    names = [event["name"] for event in json.loads(traced.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names.count("Matrix Multiplication") == 2


def test_a_phase_that_fails_is_no_row_of_nanoseconds(example, sim, monkeypatch):
    """An unchecked program continues, with a short row and a wrong result; this one stops, and the rows show the failed
    range."""
    monkeypatch.setattr(cudakit.commands.cli, "open_device", lambda spec: sim)
    sim.context.driver.simInject("cuMemcpyDtoHAsync", code=cu.CUresult.CUDA_ERROR_INVALID_VALUE)
    with nvtx.trace() as t, pytest.raises(cudakit.CudaError, match="cuMemcpyDtoHAsync"):
        example["multiply"]("sim", (8, 8, 8))
    found = {row["path"][-1]: row["raised"] for row in t.as_dict(depth=2)["threads"][0]["rows"]}
    assert found["Kernel Execution"] == 0
    assert found["Memory Copy D2H"] == found["Matrix Multiplication"] == 1
    assert "Memory Deallocation" not in found


@pytest.mark.gpu
def test_the_phases_on_a_gpu_hold_their_waits(example, gpu):
    """Each phase waits within its own range for the work it queues, so its time includes that work."""
    with nvtx.trace() as t:
        example["multiply"]("gpu", (1024, 1024, 1024))
    found = {row["range"]: row["instances"] for row in t.as_dict()["threads"][0]["rows"]}
    for phase in ("Memory Copy H2D", "Kernel Execution", "Memory Copy D2H"):
        assert found[f"Matrix Multiplication > {phase} > synchronize stream"] == 1
