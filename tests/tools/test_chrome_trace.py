"""The trace file: the rules of Chrome's format, and the ranges that Perfetto's trace processor reads from it."""

from __future__ import annotations

import copy
import json
import os
import sys
import threading

import numpy as np
import pytest
import trace_format
import trace_processor

import cudakit
from cudakit import nvtx, ops

QUOTED = 'quoted "µ" \\ >'


def other_work():
    with nvtx.range("other thread"), nvtx.range(QUOTED):
        pass


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A trace and its file: two threads with nested ranges, work of the simulated device, a mark and an exception."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with nvtx.trace() as t:
        with nvtx.range("softmax, there and back"), cudakit.Device("sim", fresh=True) as device:
            ops.softmax(device.array(np.ones((4, 100), np.float32))).numpy()
        nvtx.mark("half")
        other = threading.Thread(target=other_work, name="other")
        other.start()
        other.join()
        with pytest.raises(ZeroDivisionError), nvtx.range("failing"):
            _ = 1 / 0
    t.chrome(path)
    return t, path


def read(path):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_the_file_keeps_the_rules_of_its_format(traced):
    t, path = traced
    told = read(path)
    assert trace_format.findings(told) == []
    assert {event["ph"] for event in told["traceEvents"]} == {"X", "i", "M"}
    # The unit of times is the one rule that the file alone cannot break: microseconds.
    written = [(event["name"], event["ts"], event["dur"]) for event in told["traceEvents"] if event["ph"] == "X"]
    expected = [(span.name, span.begin, span.end - span.begin) for lane in t.lanes for span in lane.spans]
    assert [(name, round(begin * 1000), round(took * 1000)) for name, begin, took in written] == expected


VALID = {
    "displayTimeUnit": "ns",
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "program"}},
        {"ph": "X", "name": "outer", "cat": "a,b", "ts": 1.5, "dur": 4.0, "pid": 1, "tid": 2},
        {"ph": "X", "name": "inner", "ts": 2, "dur": 3.5, "pid": 1, "tid": 2, "args": {"raised": "E"}},
        {"ph": "X", "name": "next", "ts": 5.5, "dur": 1, "pid": 1, "tid": 2},
        {"ph": "X", "name": "on another thread", "ts": 5, "dur": 100, "pid": 1, "tid": 3},
        {"ph": "B", "name": "begun", "ts": 7, "pid": 1, "tid": 4},
        {"ph": "E", "name": "begun", "ts": 8, "pid": 1, "tid": 4},
        {"ph": "i", "name": "mark", "s": "t", "ts": 3, "pid": 1, "tid": 2},
    ],
}


def test_a_valid_trace_has_no_findings():
    assert trace_format.findings(VALID) == []


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (1, {"dur": None}, "event 1: X without dur"),
        (1, {"dur": -1}, "event 1: negative duration"),
        (1, {"ts": "1.5"}, "event 1: ts is not of type number"),
        (1, {"ts": float("nan")}, "event 1: ts is not of type number"),
        (1, {"pid": "1"}, "event 1: pid is not of type integer"),
        (1, {"tid": 2.0}, "event 1: tid is not of type integer"),
        (1, {"ph": "Q"}, "event 1: phase 'Q' is unknown"),
        (1, {"name": None}, "event 1: X without name"),
        (1, {"cat": ["a"]}, "event 1: cat is not of type text"),
        (2, {"args": "E"}, "event 2: args is not of type object"),
        (2, {"dur": 3.6}, "thread (1, 2): inner at 2000 ns overlaps the end of an earlier event"),
        (3, {"ts": 5.4}, "thread (1, 2): next at 5400 ns overlaps the end of an earlier event"),
        (0, {"args": None}, "event 0: M without args"),
        (0, {"args": {"name": 7}}, "event 0: metadata process_name needs args.name of type str"),
        (0, {"name": "program_name"}, "event 0: metadata 'program_name' is unknown"),
        (5, {"ph": "E"}, "thread (1, 4): E at 7 without B"),
        (6, {"ph": "B"}, "thread (1, 4): B of begun without E"),
        (6, {"name": "other"}, "thread (1, 4): E of other at 8 ends another range"),
        (6, {"ts": 6}, "thread (1, 4): B and E events are not in the order of their times"),
        (7, {"s": "x"}, "event 7: scope 'x'; known are g, p and t"),
    ],
)
def test_a_broken_rule_is_found(number, change, message):
    trace = copy.deepcopy(VALID)
    event = {**trace["traceEvents"][number], **change}
    trace["traceEvents"][number] = {key: value for key, value in event.items() if value is not None}
    assert message in trace_format.findings(trace)


def test_the_whole_file_has_rules_too():
    assert trace_format.findings([]) == trace_format.findings({}) == ["not an object with a list `traceEvents`"]
    assert trace_format.findings({**VALID, "displayTimeUnit": "us"}) == [
        "displayTimeUnit is 'us'; known are ms and ns",
    ]


needs_perfetto = pytest.mark.skipif(trace_processor.missing() is not None, reason=str(trace_processor.missing()))

SLICES = """
    select slice.name, slice.ts, slice.dur, slice.depth, parent.name as parent, thread.name as thread, thread.tid,
           process.name as process, process.pid, extract_arg(slice.arg_set_id, 'args.raised') as raised
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
         left join slice parent on slice.parent_id = parent.id
    order by slice.id"""
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@needs_perfetto
def test_perfetto_reads_each_range_its_nesting_and_its_duration(traced):
    t, path = traced
    slices, problems = trace_processor.tables(path, SLICES, ERRORS)
    assert problems == []
    process = {"process": f"{os.path.basename(sys.argv[0])} (host time)", "pid": os.getpid()}
    expected, marks = [], set()
    for lane in t.lanes:
        of_lane = {"thread": lane.name, "tid": lane.thread, **process}
        for span in lane.spans:
            parent = span.path[-2] if len(span.path) > 1 else None
            nesting = {"depth": len(span.path) - 1, "parent": parent}
            times = {"ts": span.begin, "dur": span.end - span.begin}
            expected.append({"name": span.name, **times, **nesting, "raised": span.raised, **of_lane})
        marks |= {(lane.thread, at, name) for name, at in lane.marks}
    ranges = [row for row in slices if (row["tid"], row["ts"], row["name"]) not in marks]
    assert len(slices) - len(ranges) == len(marks) > 0
    in_order = [sorted(rows, key=lambda row: (row["tid"], row["ts"], row["depth"])) for rows in (ranges, expected)]
    assert in_order[0] == in_order[1]

    found = {(row["thread"], row["parent"], row["name"].partition("<")[0]) for row in slices}
    main = threading.current_thread().name
    assert {
        (main, None, "softmax, there and back"),
        (main, "softmax, there and back", "softmax.registers"),
        (main, "softmax.registers", "launch registers"),
        ("other", None, "other thread"),
        ("other", "other thread", QUOTED),
    } <= found


@needs_perfetto
def test_perfetto_rejects_a_file_that_is_no_trace(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(VALID)[:-40])
    with pytest.raises(ValueError, match="JSON"):
        trace_processor.tables(path, SLICES)
