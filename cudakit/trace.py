"""Trace: ranges collected within the process, as a table or a file for a trace viewer; `cudakit.show.plots` draws them.

`nvtx.trace()` makes one; no tool and no GPU is needed. The times are the host's wall clock at the start and end of each
range. Work that a range queues on a device may run later: to include it, wait for it (`stream.synchronize()`) within
the range.
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
# Minimum widths of the columns, so that tables of one program look alike: a second in ns has 13 characters.
_WIDTHS = (6, 13, 9, 13)

_NOTE = (
    "Time %: the time inside a range and outside of the ranges within it, of all time in ranges. Host wall time: a\n"
    "range around an asynchronous call is its enqueue, unless the range waits for the work."
)


@dataclass(slots=True)
class Span:
    """One run of a range. path: the names of the enclosing ranges, outermost first, and its own. begin, end:
    nanoseconds since the start of the trace; end is None while it is open. raised: the name of the exception that ended
    it, or None. color: the range's."""

    name: str
    path: tuple[str, ...]
    begin: int
    end: int | None
    raised: str | None
    color: str | None


@dataclass(slots=True)
class Lane:
    """The ranges of one thread. spans: in the order of their starts. marks: (name, nanoseconds since the start of the
    trace)."""

    name: str
    thread: int  # the operating system's number
    spans: list[Span] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    open: list[Span] = field(default_factory=list)  # the innermost last


@dataclass(slots=True)
class Line:
    """A row of the table: all runs of one path on one thread. total_ns: the sum of their durations. self_ns: total_ns
    without nested ranges. share: self_ns divided by all time that the thread spent in ranges. raised: the number of
    runs that an exception ended."""

    path: tuple[str, ...]
    instances: int = 0
    total_ns: int = 0
    self_ns: int = 0
    share: float = 0.0
    raised: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON; `range` is the whole path in one text."""
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
    """The ranges of one `with nvtx.trace()` block, per thread and per path of enclosing ranges.

    Each range takes about 200 bytes: trace the part of interest, not a day's work.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._own = _Own()
        self._start = time.perf_counter_ns()
        self._stop: int | None = None

    # Called by nvtx ---------------------------------------------------------------------------------------------------

    def push(self, name: str, color: str | None = None) -> None:
        """Start a range on this thread."""
        if self._stop is not None:
            return
        lane = self._lane()
        path = (*lane.open[-1].path, name) if lane.open else (name,)
        span = Span(name, path, 0, None, None, color)
        lane.spans.append(span)
        lane.open.append(span)
        span.begin = self._now()

    def pop(self, raised: type[BaseException] | None = None) -> None:
        """End the innermost range of this thread; ranges that started before the trace are left out."""
        now = self._now()
        if self._stop is not None:
            return
        lane = self._lane()
        if lane.open:
            span = lane.open.pop()
            span.end = now
            span.raised = None if raised is None else raised.__name__

    def mark(self, name: str, color: str | None = None) -> None:
        """Record a mark."""
        if self._stop is None:
            self._lane().marks.append((name, self._now()))

    def end(self) -> None:
        """Stop. Ranges that are still open, also on other threads, count up to here."""
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

    # Results ----------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        count = sum(len(lane.spans) for lane in self.lanes)
        return f"Trace({count} ranges on {len(self.lanes)} threads, {self.duration_ns / 1e6:.3f} ms)"

    @property
    def duration_ns(self) -> int:
        """Nanoseconds from the trace's start to its end, or until now."""
        return self._now() if self._stop is None else self._stop

    @property
    def spans(self) -> list[Span]:
        """Every run of a range, of all threads, in the order of their starts."""
        return sorted((span for lane in self.lanes for span in list(lane.spans)), key=lambda span: span.begin)

    def lines(self, lane: Lane, depth: int | None = None) -> list[Line]:
        """Return the table's rows for one thread: each range, followed by the ranges nested in it.

        Args:
            lane: The thread, one of `lanes`.
            depth: Levels of nesting to show; deeper ranges count as their enclosing range's own time. All if None.

        Raises:
            ValueError: If `depth` is below 1.
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
        """Return the trace for JSON: {"clock", "duration_ns", "threads": [{"name", "rows", "marks"}]}.

        Args:
            depth: Levels of nesting to show, as for `lines`.
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
        """Return a table per thread, with one row per path of nested ranges, indented by depth.

        Columns: Time %, Total ns, Instances, Avg ns and Range. Time % leaves out the time in nested ranges, so that the
        rows of a thread add up to 100 %; Total and Avg include it.

        Args:
            depth: Levels of nesting to show, as for `lines`.
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

        Args:
            path: The JSON file.

        Raises:
            CudakitError: If the trace has no ranges.
            OSError: If the file cannot be written.
        """
        self._expect_ranges()
        Path(path).write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ns"}), encoding="utf-8")

    def events(self) -> list[dict[str, Any]]:
        """Return the events that `chrome` writes: ranges ("X", in microseconds), marks ("i") and names ("M")."""
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
            raise CudakitError("the trace has no ranges: run the work to trace inside the with block")


def markdown(told: Mapping[str, Any], depth: int = 2) -> str:
    """The first thread's table of `Trace.as_dict()` in Markdown, with `depth` levels of nesting."""
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
    """Holds, per thread, the thread's lane in one trace."""

    lane: Lane | None = None


def _as_tree(found: dict[tuple[str, ...], Line]) -> Iterator[Line]:
    """The lines, each followed by those nested in it."""
    within: dict[tuple[str, ...], list[Line]] = {}
    for line in found.values():
        within.setdefault(line.path[:-1], []).append(line)

    waiting = within.get((), [])[::-1]
    while waiting:
        line = waiting.pop()
        yield line
        waiting += within.get(line.path, [])[::-1]
