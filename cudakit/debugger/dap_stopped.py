"""Requests of the Debug Adapter Protocol about breakpoints and about a stopped kernel."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.console import Console, Quit
from cudakit.debugger.dap_frames import SCRIPT, Frame, Frames, disassembled
from cudakit.debugger.dap_messages import Body, Channel, Request, RequestError
from cudakit.debugger.dap_points import Points, locations
from cudakit.debugger.dap_variables import Part, Variables, set_value, valued
from cudakit.debugger.session import Focus, Frontend, Stop
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.texts import focus_text

# the protocol's reasons for the reasons of stops
REASONS = {
    "breakpoint": "breakpoint",
    "step": "step",
    "finish": "step",
    "watchpoint": "data breakpoint",
    "report": "exception",
    "launch": "entry",
    "pause": "pause",
}
# a command of the console, even if a variable has its name; Visual Studio's C++ debugger has -exec
_COMMAND = re.compile(r"\s*(?:-exec\s+|`)(.*)", re.DOTALL)

Handler = Callable[[Request], "Body | None"]


class Owner(Frontend, Protocol):
    """The adapter, as its requests see it."""

    def after(self, action: Callable[[], None]) -> None:
        """Do something once the response has been sent."""

    def resume(self) -> None:
        """Let the kernel continue once the response has been sent."""

    def quit(self) -> None:
        """Let the script end at the next statement of a kernel."""


class StoppedRequests:
    """The requests of one session. `handlers` need a stopped kernel, and `anytime` does not."""

    def __init__(self, owner: Owner, channel: Channel) -> None:
        self._owner, self._channel = owner, channel
        self._printed: list[str] = []
        self.console = Console((), read=lambda prompt: None, write=self._printed.append)
        self.session = self.console.session
        self.session.frontend = owner
        self.frames = Frames(self.session)
        self.variables = Variables()
        self.points = Points(self.session, self.frames, owner.note)
        # the frame to which the client has moved the focus
        self._chosen = 0
        self.handlers: Mapping[str, Handler] = {
            "continue": self._continue,
            "next": lambda request: self._step(request, "next", "nexti"),
            "stepIn": lambda request: self._step(request, "step", "stepi"),
            "stepOut": lambda request: self._step(request, "finish", "finish"),
            "stackTrace": self._stack_trace,
            "scopes": self._scopes,
            "variables": self._variables,
            "setVariable": self._set_variable,
            "setExpression": self._set_expression,
            "exceptionInfo": self._exception_info,
            "readMemory": self._read_memory,
            "disassemble": self._disassemble,
        }

    def anytime(self) -> Mapping[str, Handler]:
        return {
            "threads": self._threads,
            "evaluate": self._evaluate,
            "source": lambda request: {"content": self.frames.source_text(request.number("sourceReference"))},
            "loadedSources": lambda request: {"sources": self.frames.all_sources()},
            "breakpointLocations": self._locations,
            "setBreakpoints": self._set_lines,
            "setFunctionBreakpoints": lambda request: self._set(self.points.set_functions, request),
            "setDataBreakpoints": lambda request: self._set(self.points.set_data, request),
            "dataBreakpointInfo": self._data_info,
        }

    def begin(self, stop: Stop) -> None:
        """A kernel has stopped."""
        self._chosen = 0

    def end(self) -> None:
        """The kernel continues: frames and variables are not valid any more."""
        self.frames.clear()
        self.variables.clear()

    def announce_points(self) -> None:
        """Send the client the states of its breakpoints that have changed."""
        for reason, body in self.points.changed():
            self._channel.event("breakpoint", {"reason": reason, "breakpoint": body})

    def body(self, reason: str) -> Body:
        """The body of a stopped event: the thread in focus, and why it has stopped."""
        stop, focus = self.session.stop, self.session.focus
        if stop is None or focus is None:
            raise RequestError("no kernel is stopped", "notStopped")
        body: Body = {"reason": reason, "threadId": self.frames.id_of(focus.lane), "allThreadsStopped": True}
        body["description"] = focus_text(self.session, stop).strip("[]")
        point = stop.breakpoint or (stop.changed.watch if stop.changed is not None else None)
        if point is not None and reason != "pause":
            body["hitBreakpointIds"] = [point.number]
        if isinstance(point, Breakpoint) and not re.search(r":\d+$", point.location) and reason == "breakpoint":
            body["reason"] = "function breakpoint"
        if stop.report is not None:
            body["text"] = str(stop.report).splitlines()[0]
        elif stop.error:
            body["text"] = stop.error
        return body

    # ---- breakpoints ----

    def _set_lines(self, request: Request) -> Body:
        wanted = request.bodies("breakpoints")
        return {"breakpoints": self.points.set_lines(request.body("source"), wanted)}

    @staticmethod
    def _set(change: Callable[[list[Request]], list[Body]], request: Request) -> Body:
        return {"breakpoints": change(request.bodies("breakpoints"))}

    def _locations(self, request: Request) -> Body:
        source, base = request.body("source"), self.frames.first_line - 1
        first = request.number("line") - base
        last = request.number("endLine", first + base) - base
        found = locations(self.session.codes, source.text("path", "") or source.text("name"), first, last)
        return {"breakpoints": [{"line": line + base} for line in found]}

    def _data_info(self, request: Request) -> Body:
        name, reference = request.text("name"), request.number("variablesReference", 0)
        if self.session.stop is None:
            return {"dataId": None, "description": "no kernel is stopped: values can be watched at a stop only"}
        if reference:
            view, expression = self.variables.expression(reference, name)
        else:
            view, expression = self._view(request), name
        frame = Frame(int(view.f.lanes.lanes[view.positions[0]]), 0)
        return self.points.data_info(expression, view, frame)

    # ---- threads and frames ----

    def _threads(self, request: Request) -> Body:
        if self.session.stop is None:
            return {"threads": [{"id": SCRIPT, "name": "the script, and the kernels that it waits for"}]}
        return {"threads": self.frames.threads()}

    def _stack_trace(self, request: Request) -> Body:
        found = self.frames.stack(request.number("threadId"))
        start = request.number("startFrame", 0)
        count = request.number("levels", 0)
        return {"stackFrames": found[start : start + count if count else None], "totalFrames": len(found)}

    def _view(self, request: Request) -> View:
        """The frame that a request names, which comes into focus; the frame in focus if it names none. If a command has
        moved the focus, a frame that the client has named before does not move it back."""
        number = request.number("frameId", 0)
        if number and number != self._chosen:
            frame = self.frames.frame(number)
            view = self.frames.view(frame)
            if view is None:
                raise RequestError("this is a line of the script: kernels are debugged here, and not Python")
            self._chosen = number
            self.session.focus = Focus(view.batch, frame.lane, frame.level)
        return self.session.needed_view()

    # ---- running ----

    def _continue(self, request: Request) -> Body:
        self._owner.resume()
        return {"allThreadsContinued": True}

    def _step(self, request: Request, kind: str, instruction: str) -> None:
        if request.text("granularity", "statement") == "instruction":
            kind = instruction
        lane = self.frames.lane_of(request.number("threadId"))
        found = self.session.place_of(lane)
        if found is None:
            raise RequestError("this thread has ended")
        self.session.focus = Focus(found[0].f.batch, lane)
        # to step out of the kernel itself is to continue
        outermost = kind == "finish" and len(self.session.lines(found[0])) < 2
        if not outermost:
            self.session.step(kind)
        self._owner.resume()

    # ---- variables ----

    def _scopes(self, request: Request) -> Body:
        view = self.frames.view(self.frames.frame(request.number("frameId")))
        return {"scopes": [] if view is None else self.variables.scopes(view)}

    def _variables(self, request: Request) -> Body:
        start, count = request.number("start", 0), request.number("count", 0)
        return {"variables": self.variables.listed(request.number("variablesReference"), start, count, _form(request))}

    def _set_variable(self, request: Request) -> Body:
        view, expression = self.variables.expression(request.number("variablesReference"), request.text("name"))
        return self._changed(view, expression, request)

    def _set_expression(self, request: Request) -> Body:
        return self._changed(self._view(request), request.text("expression"), request)

    def _changed(self, view: View, expression: str, request: Request) -> Body:
        value = set_value(view, expression, request.text("value"))
        body = self.variables.shown(value, expression, view, _form(request))
        return {"value": body.pop("text"), **body}

    # ---- expressions and commands ----

    def _evaluate(self, request: Request) -> Body:
        """The value of an expression. In the debug console also a command, unless the text is an expression with a
        value; while no kernel is stopped, commands only."""
        text, console = request.text("expression"), request.text("context", "") == "repl"
        command = _COMMAND.fullmatch(text) if console else None
        if self.session.stop is None:
            if not console:
                raise RequestError("no kernel is stopped", "notStopped")
            return self._execute(text if command is None else command[1])
        view = self._view(request)
        if command is not None:
            return self._execute(command[1])
        try:
            value = valued(text, view)
        except ExpressionError:
            if console and self._is_command(text):
                return self._execute(text)
            raise
        body = self.variables.described(Part("", text, value), view, _form(request))
        del body["name"], body["evaluateName"]
        return {"result": body.pop("value"), **body}

    def _is_command(self, text: str) -> bool:
        word = re.match(r"\s*([A-Za-z_-]+)", text)
        return word is not None and any(name.startswith(word[1]) for name in self.console.commands)

    def _execute(self, line: str) -> Body:
        """Run a command of the console; the result is what it prints."""
        before = self.session.focus
        self._printed.clear()
        try:
            resumes = self.console.execute(line)
        except Quit:
            self._owner.quit()
            return {"result": "", "variablesReference": 0}
        focus = self.session.focus
        self._owner.after(self.announce_points)
        if self.session.stop is None:
            pass  # it runs already
        elif resumes:
            self._owner.after(lambda: self._channel.event("continued", self._continued()))
            self._owner.resume()
        elif before is not None and focus is not None and before.lane != focus.lane:
            # shows the client the new thread
            self._owner.after(lambda: self._channel.event("stopped", self.body("pause")))
        elif re.match(r"\s*set\b", line):
            self._owner.after(lambda: self._channel.event("invalidated", {"areas": ["variables"]}))
        return {"result": "\n".join(self._printed), "variablesReference": 0}

    def _continued(self) -> Body:
        lane = self.session.focus.lane if self.session.focus is not None else 0
        return {"threadId": self.frames.id_of(lane), "allThreadsContinued": True}

    # ---- faults, memory and code ----

    def _exception_info(self, request: Request) -> Body:
        report = self.session.stop.report if self.session.stop is not None else None
        if report is None:
            raise RequestError("the kernel has not stopped at a fault")
        text = str(report)
        return {
            "exceptionId": report.kind,
            "description": text,
            "breakMode": "always",
            "details": {"message": text.splitlines()[0], "typeName": report.kind, "stackTrace": text},
        }

    def _read_memory(self, request: Request) -> Body:
        """Bytes at an address, as the thread in focus sees them: shared and local memory too."""
        reference = request.text("memoryReference")
        count, view = request.number("count"), self.session.needed_view()
        try:
            address = int(reference, 0) + request.number("offset", 0)
        except ValueError:
            raise RequestError(f"{reference!r} is not an address") from None
        data = _readable(view, address, min(count, 1 << 20))
        body: Body = {"address": f"{address:#x}", "unreadableBytes": count - len(data)}
        return body | ({"data": base64.b64encode(data).decode()} if data else {})

    def _disassemble(self, request: Request) -> Body:
        offset, count = request.number("instructionOffset", 0), request.number("instructionCount")
        code = self.session.needed_view().code
        return {"instructions": disassembled(code, request.text("memoryReference"), offset, min(count, 10000))}


def _form(request: Request) -> str:
    return "x" if request.body("format").flag("hex") else ""


def _readable(view: View, address: int, count: int) -> bytes:
    """The bytes from an address on, up to the first one that cannot be read."""
    if not 0 <= address < 1 << 64:
        return b""
    found: Any = b""
    size = 0
    # memory is readable up to some byte, whose place is searched
    step = 1 << max(count, 1).bit_length()
    while step:
        if size + step <= count:
            with contextlib.suppress(ExpressionError):
                found = view.load(np.array([address], np.uint64), size + step)[0]
                size += step
        step >>= 1
    return bytes(found)
