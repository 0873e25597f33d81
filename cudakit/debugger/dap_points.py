"""Breakpoints in the Debug Adapter Protocol: at lines, functions and data, log points, and their state for the client.

The client sends all breakpoints of a file at once, each time one of them changes; those that are as before stay as they
are, with their counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cudakit.debugger import texts
from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.code import Code
from cudakit.debugger.dap_frames import Frame, Frames
from cudakit.debugger.dap_messages import Body, Request, RequestError
from cudakit.debugger.dap_variables import valued
from cudakit.debugger.session import Session, Stop
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.watchpoints import Watchpoint, watch

_HITS = re.compile(r"(>=|>)?\s*(\d+)")
_PENDING = "set once a kernel with this code is launched"
# the most threads whose messages a log point shows at once
_MOST_LOGGED = 256


@dataclass
class Point:
    """A breakpoint of the client. `wanted` is the client's request, to recognise it; `known` the state that the client
    was sent last; `own` is None if it was refused, with the reason in `error`, and its `number`."""

    wanted: Body
    own: Breakpoint | Watchpoint | None = None
    error: str = ""
    number: int = 0
    known: Body = field(default_factory=dict)


class Points:
    """The client's breakpoints of a session. `show` shows a log point's message."""

    def __init__(self, session: Session, frames: Frames, show: Callable[[str], None]) -> None:
        self._session, self._frames, self._show = session, frames, show
        # by the file's path; those of functions and data have their own keys, which are not paths
        self._sets: dict[str, list[Point]] = {}

    # ---- lines and functions ----

    def set_lines(self, source: Request, wanted: list[Request]) -> list[Body]:
        """Replace the breakpoints of a file."""
        path = source.text("path", "") or source.text("name")

        def made(one: Request) -> Breakpoint:
            return self._breakpoint(one, f"{path}:{one.number('line') - self._frames.first_line + 1}")

        return self._replace(path, wanted, made)

    def set_functions(self, wanted: list[Request]) -> list[Body]:
        """Replace the breakpoints at functions."""
        return self._replace("/functions/", wanted, lambda one: self._breakpoint(one, one.text("name")))

    def _breakpoint(self, one: Request, location: str) -> Breakpoint:
        condition, message = one.text("condition", ""), one.text("logMessage", "")
        if condition:
            parse(condition)
        for part in _expressions(message):
            parse(part)
        hits = one.text("hitCondition", "").strip()
        match = _HITS.fullmatch(hits)
        if hits and match is None:
            raise RequestError(f"a hit count is a number N, or >= N, or > N, not {hits!r}")
        ignore = 0 if match is None else int(match[2]) - (match[1] != ">")
        made = Breakpoint(self._session.number(), location, condition, ignore=max(ignore, 0))
        if message:
            made.instead = lambda stop: self._log(message, stop)
        self._session.add(made)
        return made

    def _replace(
        self, key: str, wanted: list[Request], make: Callable[[Request], Breakpoint | Watchpoint]
    ) -> list[Body]:
        before = self._sets.get(key, [])
        points = []
        for one in wanted:
            kept = next((p for p in before if p.wanted == one.arguments and p.own in self._session.points), None)
            if kept is not None:
                before.remove(kept)
            else:
                kept = Point(one.arguments)
                try:
                    kept.own = make(one)
                except (ExpressionError, RequestError) as error:
                    kept.error, kept.number = str(error), self._session.number()
            points.append(kept)
        for gone in before:
            if gone.own is not None:
                self._session.remove(gone.own.number)
        self._sets[key] = points
        for point in points:
            point.known = self._state(point)
        return [point.known for point in points]

    def _state(self, point: Point) -> Body:
        """A breakpoint for the client: verified once its code is loaded."""
        own = point.own
        if own is None:
            return {"id": point.number, "verified": False, "message": point.error, "reason": "failed"}
        if isinstance(own, Watchpoint):
            return {"id": own.number, "verified": True}
        if not own.resolved:
            return {"id": own.number, "verified": False, "message": self._why_pending(own), "reason": "pending"}
        code = next(one for one in self._session.codes if own.entries(one))
        body: Body = {"id": own.number, "verified": True, "line": own.line + self._frames.first_line - 1}
        source = self._frames.source(code, own.file)
        return body | ({} if source is None else {"source": source})

    def _why_pending(self, own: Breakpoint) -> str:
        file, colon, line = own.location.rpartition(":")
        if colon and line.isdigit() and any(code.files(file) for code in self._session.codes):
            return f"no code at line {line} or after it in the kernels that are loaded; {_PENDING}"
        return _PENDING

    def changed(self) -> Iterator[tuple[str, Body]]:
        """The breakpoints whose state the client does not know yet: the reason, and the state."""
        for points in self._sets.values():
            for point in list(points):
                if point.own is None:
                    continue
                if not any(
                    one is point.own for one in self._session.points
                ):  # a command has deleted it, or it has ended
                    points.remove(point)
                    yield "removed", {"id": point.own.number, "verified": False}
                elif (state := self._state(point)) != point.known:
                    point.known = state
                    yield "changed", state

    # ---- data ----

    def data_info(self, text: str, view: View, frame: Frame) -> Body:
        """Whether an expression can be watched, and the id with which the client does so."""
        try:
            watch(0, text, parse(text, lambda name: view.type(name) is not None), view.code, view)
        except ExpressionError as error:
            return {"dataId": None, "description": str(error)}
        depth = view.frame.depth
        return {
            "dataId": f"{self._frames.id_of(frame.lane)}:{depth}:{text}",
            "description": text,
            "accessTypes": ["write"],
            "canPersist": False,
        }

    def set_data(self, wanted: list[Request]) -> list[Body]:
        """Replace the watched values."""
        return self._replace("/data/", wanted, self._watch)

    def _watch(self, one: Request) -> Watchpoint:
        if one.text("condition", "") or one.text("hitCondition", ""):
            raise RequestError("a watched value has no condition: the kernel stops at each change")
        if one.text("accessType", "write") != "write":
            raise RequestError("only writes can be watched")
        match = re.fullmatch(r"(\d+):(\d+):(.*)", one.text("dataId"), re.DOTALL)
        if match is None:
            raise RequestError("the dataId is not one of dataBreakpointInfo")
        lane = self._frames.lane_of(int(match[1]))
        found = self._session.place_of(lane)
        level = len(found[0].f.frames) - 1 - int(match[2]) if found is not None else -1
        view = self._frames.view(Frame(lane, level))
        if view is None:
            raise RequestError("the frame of this value has ended")
        node = parse(match[3], lambda name: view.type(name) is not None)
        made = watch(self._session.number(), match[3], node, view.code, view)
        self._session.watchpoints.append(made)
        return made

    # ---- log points ----

    def _log(self, message: str, stop: Stop) -> None:
        """Show a message for each thread that has come to a log point; equal ones once."""
        view = self._session.view(stop.place)
        view = View(view.code, view.frame, stop.lanes[:_MOST_LOGGED])
        parts = [_texts(part, view) for part in _expressions(message)]
        lines: dict[str, int] = {}
        for number in range(view.count):
            values = iter([part[number] for part in parts])
            line = _PART.sub(lambda match, values=values: next(values), message)  # type: ignore[misc]
            lines[line] = lines.get(line, 0) + 1
        for line, count in lines.items():
            self._show(line + (f"  ({count} threads)" if count > 1 else ""))
        if len(stop.lanes) > view.count:
            self._show(f"... and {len(stop.lanes) - view.count} more threads")


_PART = re.compile(r"\{([^{}]*)\}")


def _expressions(message: str) -> list[str]:
    """The expressions in braces in a log point's message."""
    return _PART.findall(message)


def _texts(expression: str, view: View) -> list[str]:
    """An expression's value as text, per thread."""
    try:
        return texts.value_texts(view, valued(expression, view))
    except ExpressionError as error:
        return [f"<{error}>"] * view.count


def locations(codes: list[Code], file: str, first: int, last: int) -> list[int]:
    """The lines of a file, from `first` to `last`, at which a breakpoint stops."""
    found = {line for code in codes for number in code.files(file) for line in code.lines_with_code(number)}
    return sorted(line for line in found if first <= line <= last)
