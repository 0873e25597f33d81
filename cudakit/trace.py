"""Trace: ranges collected within the process, as a table or a file for a trace viewer; `cudakit.show.plots` draws them.

`nvtx.trace()` makes one; nothing here needs a tool or a GPU. The times are the host's: its wall clock, read as a range
begins and ends. What a range has queued on a device may run later, so a range that is to hold the device's work too
must wait for it (`stream.synchronize()`) before it ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudakit.errors import CudakitError

_SEPARATOR = " > "
# Letters of each column at the least, so that tables of one program look alike: a second in ns has 13.
_WIDTHS = (6, 13, 9, 13)

_NOTE = (
    "Time %: the time inside a range and outside of the ranges within it, of all time in ranges. Host wall time: a\n"
    "range around an asynchronous call is its enqueue, unless the range waits for the work."
)


@dataclass(slots=True)
class Span:
    """One range that was run through. name: its own. path: the names of the ranges it stands in, outermost first, and
    its own. begin, end: nanoseconds since the trace began; end is None while it is open. raised: the name of the
    exception that ended it, or None. color: as the range was given it."""

    name: str
    path: tuple[str, ...]
    begin: int
    end: int | None
    raised: str | None
    color: str | None


@dataclass(slots=True)
class Lane:
    """What one thread did. spans: in the order they began. marks: (name, nanoseconds since the trace began)."""

    name: str
    thread: int  # the operating system's number of it
    spans: list[Span] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    open: list[Span] = field(default_factory=list)  # the innermost last


@dataclass(slots=True)
class Line:
    """A row of the table: all runs through one path on one thread. total_ns: from begin to end, added up. self_ns: what
    of that lies in no range within it. share: self_ns of all time that the thread spent in ranges. raised: how many
    of the runs an exception ended."""

    path: tuple[str, ...]
    instances: int = 0
    total_ns: int = 0
    self_ns: int = 0
    share: float = 0.0
    raised: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `range` is the whole path in one text."""
        return {
            "range": _SEPARATOR.join(self.path),
            "path": list(self.path),
            "instances": self.instances,
            "total_ns": self.total_ns,
            "avg_ns": self.total_ns / self.instances,
            "self_ns": self.self_ns,
            "share": self.share,
            "raised": self.raised,
        }


class Trace:
    """The ranges of one `with nvtx.trace()` block, of every thread, kept apart by thread and by what they stand in.

    It grows with each range (some 200 bytes), so trace what is of interest and not a day's work.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._own = _Own()
        self._start = time.perf_counter_ns()
        self._stop: int | None = None

    # What nvtx tells it -----------------------------------------------------------------------------------------------

    def push(self, name: str, color: str | None = None) -> None:
        """A range begins on this thread."""
        if self._stop is not None:
            return
        lane = self._lane()
        path = (*lane.open[-1].path, name) if lane.open else (name,)
        span = Span(name, path, 0, None, None, color)
        lane.spans.append(span)
        lane.open.append(span)
        span.begin = self._now()

    def pop(self, raised: type[BaseException] | None = None) -> None:
        """The innermost range of this thread ends. One that began before the trace did is none of its."""
        now = self._now()
        if self._stop is not None:
            return
        lane = self._lane()
        if lane.open:
            span = lane.open.pop()
            span.end = now
            span.raised = None if raised is None else raised.__name__

    def mark(self, name: str, color: str | None = None) -> None:
        """A moment."""
        if self._stop is None:
            self._lane().marks.append((name, self._now()))

    def end(self) -> None:
        """Stop. Ranges that are open, on other threads too, count up to here."""
        if self._stop is None:
            self._stop = self._now()

    def _now(self) -> int:
        return time.perf_counter_ns() - self._start

    def _lane(self) -> Lane:
        lane = self._own.lane
        if lane is None:
            lane = self._own.lane = Lane(threading.current_thread().name, threading.get_native_id())
            self.lanes.append(lane)
        return lane

    # What it tells ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        count = sum(len(lane.spans) for lane in self.lanes)
        return f"Trace({count} ranges on {len(self.lanes)} threads, {self.duration_ns / 1e6:.3f} ms)"

    @property
    def duration_ns(self) -> int:
        """From the trace's begin to its end, or to now."""
        return self._now() if self._stop is None else self._stop

    @property
    def spans(self) -> list[Span]:
        """Every range that was run through, in the order they began, of all threads."""
        return sorted((span for lane in self.lanes for span in list(lane.spans)), key=lambda span: span.begin)

    def lines(self, lane: Lane, depth: int | None = None) -> list[Line]:
        """The table's rows for one thread: a range's own row first, then those within it, in the order they began.

        depth: how many levels of nesting to tell apart; what is deeper counts as its range's own. ValueError below 1.
        """
        if depth is not None and depth < 1:
            raise ValueError(f"depth={depth}: 1 shows the outermost ranges, and None shows all")
        until = self.duration_ns
        found: dict[tuple[str, ...], Line] = {}
        for span in list(lane.spans):
            if depth is not None and len(span.path) > depth:
                continue
            line = found.setdefault(span.path, Line(span.path))
            took = (until if span.end is None else span.end) - span.begin
            line.instances += 1
            line.total_ns += took
            line.self_ns += took
            line.raised += span.raised is not None
            if len(span.path) > 1:
                found[span.path[:-1]].self_ns -= took
        whole = sum(line.total_ns for line in found.values() if len(line.path) == 1)
        for line in found.values():
            line.share = line.self_ns / whole if whole else 0.0
        return list(_as_tree(found))

    def as_dict(self, depth: int | None = None) -> dict[str, Any]:
        """For JSON: {"clock", "duration_ns", "threads": [{"name", "rows", "marks"}]}; a row: see `Line`.

        depth: see `lines`.
        """
        threads = []
        for lane in self._used():
            counted: dict[str, int] = {}
            for name, _ in lane.marks:
                counted[name] = counted.get(name, 0) + 1
            rows = [line.as_dict() for line in self.lines(lane, depth)]
            threads.append({"name": lane.name, "rows": rows, "marks": counted})
        return {"clock": "host wall time", "duration_ns": self.duration_ns, "threads": threads}

    def table(self, depth: int | None = None) -> str:
        """Time %, Total ns, Instances, Avg ns and Range, a row for each path of nested ranges, indented by its depth.

        Time % is of the time outside of nested ranges, so that nothing counts twice: the rows of a thread add up to
        100 %. Total and Avg hold what is nested. Each thread has a table of its own. depth: how many levels of nesting
        to tell apart; what is deeper counts as its range's own.
        """
        threads = self.as_dict(depth)["threads"]
        parts = []
        for thread in threads:
            cells = [("Time %", "Total ns", "Instances", "Avg ns", "Range")]
            for row in thread["rows"]:
                path = row["path"]
                name = "  " * (len(path) - 1) + path[-1] + (f"  ({row['raised']} raised)" if row["raised"] else "")
                figures = f"{row['total_ns']:,}", f"{row['instances']:,}", f"{row['avg_ns']:,.0f}"
                cells.append((f"{100 * row['share']:.1f}", *figures, name))
            columns = list(zip(*cells, strict=True))[:-1]
            widths = [max(least, *map(len, column)) for least, column in zip(_WIDTHS, columns, strict=True)]
            lines = ["  ".join((*map(str.rjust, cell, widths), cell[-1])) for cell in cells]
            if len(threads) > 1:
                lines.insert(0, f"Thread {thread['name']}")
            lines += [f"Mark: {name} ({count:,})" for name, count in thread["marks"].items()]
            parts.append("\n".join(lines))
        return "\n\n".join([*parts, _NOTE]) if parts else "no ranges were run through"

    def chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the ranges in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

        Raises CudakitError where there are no ranges, OSError where the file cannot be written.
        """
        self._expect_ranges()
        Path(path).write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ns"}), encoding="utf-8")

    def events(self) -> list[dict[str, Any]]:
        """The events of `chrome`: complete ones ("X") with microseconds, instants ("i"), and names ("M")."""
        process = os.getpid()
        program = os.path.basename(sys.argv[0]) or "python"
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": f"{program} (host time)"}}
        ]
        until = self.duration_ns
        for lane in self._used():
            where = {"pid": process, "tid": lane.thread}
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": lane.name}})
            for span in list(lane.spans):
                end = until if span.end is None else span.end
                event = {"ph": "X", "name": span.name, "cat": "cudakit", "ts": span.begin / 1e3, **where}
                event["dur"] = (end - span.begin) / 1e3
                if span.raised:
                    event["args"] = {"raised": span.raised}
                events.append(event)
            events += [
                {"ph": "i", "s": "t", "name": name, "cat": "cudakit", "ts": at / 1e3, **where}
                for name, at in list(lane.marks)
            ]
        return events

    def _used(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.spans or lane.marks]

    def _expect_ranges(self) -> None:
        if not any(lane.spans for lane in self.lanes):
            raise CudakitError("the trace holds no ranges: run what is to be traced inside of its with block")


def markdown(told: Mapping[str, Any], depth: int = 2) -> str:
    """The table of `Trace.as_dict()`, as JSON keeps it, in Markdown: `depth` levels of nesting, of its first thread."""
    rows = [row for thread in told["threads"][:1] for row in thread["rows"] if len(row["path"]) <= depth]
    whole = sum(row["total_ns"] for row in rows if len(row["path"]) == 1)
    lines = ["| Time % | Total ns | Instances | Avg ns | Range |", "|---:|---:|---:|---:|:---|"]
    for row in rows:
        within = sum(other["total_ns"] for other in rows if other["path"][:-1] == row["path"])
        name = row["range"].replace("|", "\\|")
        share = 100 * (row["total_ns"] - within) / whole if whole else 0.0
        figures = f"{share:.1f} | {row['total_ns']:,} | {row['instances']:,} | {row['avg_ns']:,.0f}"
        lines.append(f"| {figures} | {name} |")
    return "\n".join(lines)


class _Own(threading.local):
    """A thread's lane of one trace."""

    lane: Lane | None = None


def _as_tree(found: dict[tuple[str, ...], Line]) -> Iterator[Line]:
    """The lines, each followed by those within it."""
    within: dict[tuple[str, ...], list[Line]] = {}
    for line in found.values():
        within.setdefault(line.path[:-1], []).append(line)

    waiting = within.get((), [])[::-1]
    while waiting:
        line = waiting.pop()
        yield line
        waiting += within.get(line.path, [])[::-1]
