"""The rules of Chrome's trace format, checked without a viewer.

Source: "Trace Event Format" by the authors of Chrome's trace viewer,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Covered: the JSON object format, with
duration (B, E), complete (X), instant (i) and metadata (M) events; other phases count as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

Event = dict[str, Any]

# The argument of each metadata event, and its type.
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
_REQUIRED = {
    "B": ("name", "ts", "pid", "tid"),
    "E": ("ts", "pid", "tid"),
    "X": ("name", "ts", "dur", "pid", "tid"),
    "i": ("name", "ts", "pid", "tid"),
    "M": ("name", "args", "pid", "tid"),
}
_KINDS = {
    "name": "text", "cat": "text", "pid": "integer", "tid": "integer", "ts": "number", "dur": "number", "tts": "number",
    "tdur": "number", "args": "object",
}  # fmt: skip


def findings(trace: Any) -> list[str]:
    """The rules that a trace breaks, each with the number of its event; `trace` is the parsed JSON."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["not an object with a list `traceEvents`"]
    found = []
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append(f"displayTimeUnit is {trace['displayTimeUnit']!r}; known are ms and ns")
    events = trace["traceEvents"]
    for number, event in enumerate(events):
        found += [f"event {number}: {message}" for message in _of_event(event)]
    return found or [*_unmatched(events), *_crossing(events)]


def _of_event(event: Any) -> Iterator[str]:
    phase = event.get("ph") if isinstance(event, dict) else None
    if phase not in _REQUIRED:
        yield f"phase {phase!r} is unknown"
        return
    yield from (f"{phase} without {key}" for key in _REQUIRED[phase] if key not in event)
    yield from (f"{key} is not of type {kind}" for key, kind in _KINDS.items() if key in event and not _is(event, key))
    if phase == "X" and _is(event, "dur") and event["dur"] < 0:
        yield "negative duration"
    if phase == "i" and event.get("s", "t") not in ("g", "p", "t"):
        yield f"scope {event['s']!r}; known are g, p and t"
    if phase == "M":
        key, kind = METADATA.get(event.get("name"), (None, None))
        if key is None:
            yield f"metadata {event.get('name')!r} is unknown"
        elif _is(event, "args") and not isinstance(event["args"].get(key), kind):
            yield f"metadata {event['name']} needs args.{key} of type {kind.__name__}"


def _is(event: Event, key: str) -> bool:
    value = event.get(key)
    if _KINDS[key] == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    kind = {"text": str, "integer": int, "object": dict}[_KINDS[key]]
    return isinstance(value, kind) and not isinstance(value, bool)


def _unmatched(events: Iterable[Event]) -> Iterator[str]:
    """B and E events nest, per thread; the events of one thread are in the order of their times."""
    for thread, own in _threads(events, "BE").items():
        opened: list[Event] = []
        if any(after["ts"] < before["ts"] for before, after in pairwise(own)):
            yield f"thread {thread}: B and E events are not in the order of their times"
        for event in own:
            if event["ph"] == "B":
                opened.append(event)
            elif not opened:
                yield f"thread {thread}: E at {event['ts']} without B"
            elif event.get("name", opened[-1]["name"]) != opened.pop()["name"]:
                yield f"thread {thread}: E of {event['name']} at {event['ts']} ends another range"
        yield from (f"thread {thread}: B of {event['name']} without E" for event in opened)


def _crossing(events: Iterable[Event]) -> Iterator[str]:
    """X events of one thread contain each other or are apart: each is short for a pair of B and E events."""
    for thread, own in _threads(events, "X").items():
        ends: list[int] = []
        spans = [(_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"]), event["name"]) for event in own]
        for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin:
                ends.pop()
            if ends and end > ends[-1]:
                yield f"thread {thread}: {name} at {begin} ns overlaps the end of an earlier event"
            ends.append(end)


def _threads(events: Iterable[Event], phases: str) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] in phases:
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return found


def _ns(microseconds: float) -> int:
    return round(microseconds * 1e3)
