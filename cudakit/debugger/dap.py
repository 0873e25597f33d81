"""The Debug Adapter Protocol: the debugger of an editor, such as VS Code or Neovim.

The adapter and the script are one process. One thread reads the client's requests; the script runs in the main thread.
While a kernel is stopped, the thread that runs the kernel answers the requests. Otherwise the reading thread answers
those that do not need a stopped kernel.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from cudakit.debugger import attached
from cudakit.debugger.code import Code
from cudakit.debugger.console import Quit
from cudakit.debugger.dap_messages import Body, Channel, Malformed, Request, RequestError
from cudakit.debugger.dap_output import CapturedOutput, take_streams
from cudakit.debugger.dap_stopped import REASONS, StoppedRequests
from cudakit.debugger.session import Stop
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.texts import stop_text
from cudakit.errors import CudakitError, Refused

# seconds for a script whose kernel was stopped to end, before the process does
_GRACE = 2.0
_CAPABILITIES = (
    "supportsConfigurationDoneRequest", "supportsConditionalBreakpoints", "supportsHitConditionalBreakpoints",
    "supportsFunctionBreakpoints", "supportsDataBreakpoints", "supportsLogPoints", "supportsSetVariable",
    "supportsSetExpression", "supportsEvaluateForHovers", "supportsClipboardContext", "supportsValueFormattingOptions",
    "supportsReadMemoryRequest", "supportsDisassembleRequest", "supportsSteppingGranularity",
    "supportsTerminateRequest", "supportsExceptionInfoRequest", "supportsLoadedSourcesRequest",
    "supportsBreakpointLocationsRequest", "supportsDelayedStackTraceLoading",
)  # fmt: skip
_FILTERS = [
    {
        "filter": "report",
        "label": "Faults of kernels",
        "description": "Stop at the fault that the simulated device reports. All kernels then run slower.",
        "default": True,
    }
]


@dataclass(frozen=True)
class Launch:
    """The script of a launch request, and how it runs. `lines`: kernels stay optimised, without variables."""

    program: str
    arguments: list[str]
    arch: str
    lines: bool = False


#: Runs a script; returns its exit status.
RunScript = Callable[[Launch], int]


class Adapter:
    """A session of one client with one script: a frontend of the debugger's session."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, default_arch: str) -> None:
        self.channel = Channel(source, sink)
        self._default_arch = default_arch
        self._stopped = StoppedRequests(self, self.channel)
        self.session = self._stopped.session
        # guards the state below, and the breakpoints
        self._lock = threading.RLock()
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._in_stop = False
        self._resuming = False
        # the client or the user has ended the session
        self._ending = False
        self._after: list[Callable[[], None]] = []
        self._output: CapturedOutput | None = None
        self._launch: Launch | None = None
        self._debugged = True
        self._always_reports = False
        self._configured = False
        self._ready = threading.Event()
        self._finished = threading.Event()
        self._gone = threading.Event()
        self._malformed = False
        self._handlers: Mapping[str, Callable[[Request], Body | None]] = {
            "initialize": self._initialize,
            "launch": self._launched,
            "attach": self._attach,
            "configurationDone": self._configuration_done,
            "setExceptionBreakpoints": self._set_exceptions,
            "pause": self._pause,
            "terminate": self._terminate,
            "disconnect": self._disconnect,
            **self._stopped.anytime(),
        }

    # ---- the life of a session ----

    def serve(self, run: RunScript) -> int:
        """Answer the client until it disconnects, and run its script; returns the exit status."""
        threading.Thread(target=self._read, name="cudakit debug adapter", daemon=True).start()
        self._ready.wait()
        launch, status = self._launch, 0
        if launch is None or self._ending:
            return 2 if self._malformed else 0
        self._output = CapturedOutput(self.channel.output)
        self.channel.event(
            "process",
            {
                "name": launch.program,
                "systemProcessId": os.getpid(),
                "isLocalProcess": True,
                "startMethod": "launch",
            },
        )
        try:
            follow = attached.attached(self, variables=not launch.lines) if self._debugged else contextlib.nullcontext()
            with follow:
                status = run(launch)
        except Quit:
            self._ending = True
        except (CudakitError, Refused) as error:  # a request that was wrong, or work that was left in a queue
            print(f"error: {error}", file=sys.stderr)
            status = 1
        except Exception:
            traceback.print_exc()
            status = 1
        self._report_end(status)
        self._gone.wait()
        return status

    def _report_end(self, status: int) -> None:
        if self._output is not None:
            self._output.sync()
        with self._lock:
            if self._finished.is_set():
                return
            self._finished.set()
        if not self._gone.is_set():
            self.channel.event("exited", {"exitCode": status})
            self.channel.event("terminated")

    def _read(self) -> None:
        while True:
            try:
                request = self.channel.read()
            except RequestError as error:
                self.channel.refuse(Request(0, ""), error, show=True)
                continue
            except (Malformed, OSError) as error:
                self.channel.output("important", f"cudakit ends the session: {error}\n")
                self._malformed = True
                request = None
            if request is None:
                break
            self._submit(request)
            if request.command == "disconnect":
                break
        with self._lock:
            self.quit()
        self._gone.set()
        if self._launch is not None and self._configured:
            # a script that is not in a kernel cannot be stopped
            in_kernel = self.session.run is not None
            if not self._finished.wait(_GRACE if in_kernel else 0):
                os._exit(2 if self._malformed else 0)

    def quit(self) -> None:
        """Let the script end at the next statement of a kernel."""
        self._ending = True
        self.session.pausing = True
        self._ready.set()
        if self._in_stop:
            self._requests.put(Request(0, ""))  # wakes the stopped thread

    # ---- requests ----

    def _submit(self, request: Request) -> None:
        with self._lock:
            if self._in_stop:
                self._requests.put(request)
            else:
                self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            handler = self._handlers.get(request.command)
            if handler is None:
                handler = self._stopped.handlers.get(request.command)
                if handler is None:
                    raise RequestError(f"cudakit does not support the request {request.command!r}")
                if not self._in_stop:
                    raise RequestError("no kernel is stopped", "notStopped")
            self.channel.respond(request, handler(request))
        except (RequestError, ExpressionError) as error:
            self._after.clear()
            refusal = error if isinstance(error, RequestError) else RequestError(str(error))
            self.channel.refuse(request, refusal, show=request.command in ("launch", "attach"))
        except Exception as error:  # a bug must not leave the client waiting
            self._after.clear()
            traceback.print_exc()
            self.channel.refuse(request, RequestError(f"internal error of cudakit: {error!r}"), show=True)
        after, self._after = self._after, []
        for action in after:
            action()

    def after(self, action: Callable[[], None]) -> None:
        """Do something once the response has been sent."""
        self._after.append(action)

    def resume(self) -> None:
        """Let the kernel continue once the response has been sent."""
        self._resuming = True

    def _initialize(self, request: Request) -> Body:
        if request.text("pathFormat", "path") != "path":
            raise RequestError("only paths are supported for sources, not URIs")
        self._stopped.frames.first_line = int(request.arguments.get("linesStartAt1", True))
        self.after(lambda: self.channel.event("initialized"))
        return {**dict.fromkeys(_CAPABILITIES, True), "exceptionBreakpointFilters": _FILTERS}

    def _launched(self, request: Request) -> None:
        if self._launch is not None:
            raise RequestError("a script has been launched already")
        program, cwd = request.text("program"), request.text("cwd", os.getcwd())
        if not os.path.isdir(cwd):
            raise RequestError(f"there is no folder {cwd!r} (cwd)")
        program = os.path.join(cwd, program)
        if not os.path.isfile(program):
            raise RequestError(f"there is no script {program!r} (program)")
        arguments, arch = request.texts("args"), request.text("arch", self._default_arch)
        environment = request.body("env").arguments
        if not all(value is None or isinstance(value, str) for value in environment.values()):
            raise RequestError("launch: env must have strings as values, or null to remove a variable")
        self._always_reports = request.flag("onReport")
        self.session.on_report |= self._always_reports
        self.session.stop_at_launch = request.flag("stopOnEntry")
        self._debugged = not request.flag("noDebug")
        lines = request.flag("lines")
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        os.chdir(cwd)
        self._launch = Launch(program, arguments, arch, lines)
        self.after(self._start)

    def _attach(self, request: Request) -> None:
        raise RequestError("cudakit launches the script; use a launch request with its `program`")

    def _configuration_done(self, request: Request) -> None:
        self._configured = True
        self.after(self._start)

    def _start(self) -> None:
        if self._launch is not None and self._configured:
            self._ready.set()

    def _set_exceptions(self, request: Request) -> Body:
        filters = request.texts("filters")
        self.session.on_report = "report" in filters or self._always_reports
        return {"breakpoints": [{"verified": True} for _ in filters]}

    def _pause(self, request: Request) -> None:
        if self._in_stop:
            return
        if self.session.run is None:
            self.channel.output("console", "[no kernel is followed now: the next one stops at its start]\n")
        self.session.pausing = True

    def _terminate(self, request: Request) -> None:
        grace = _GRACE if self.session.run is not None else 0.0
        self.quit()
        timer = threading.Timer(grace, self._force_end)
        timer.daemon = True
        self.after(timer.start)

    def _force_end(self) -> None:
        """Report the end of a script that is not in a kernel, and so cannot be stopped; then end the process."""
        if self._launch is None or not self._configured or self._finished.is_set():
            return
        self._report_end(1)
        self._gone.wait(_GRACE)
        os._exit(1)

    def _disconnect(self, request: Request) -> None:
        self.quit()

    # ---- the frontend of the session ----

    def stopped(self, stop: Stop) -> None:
        """Report a stop, and answer requests until the kernel continues."""
        if self._output is not None:
            self._output.sync()
        with self._lock:
            if self._ending:
                raise Quit
            self._in_stop = True
            self._stopped.begin(stop)
            self._show_stop(stop)
        while not (self._resuming or self._ending):
            request = self._requests.get()
            if request.command:
                self._answer(request)
        with self._lock:
            self._in_stop = self._resuming = False
            self._stopped.end()
            while not self._requests.empty():
                request = self._requests.get()
                if request.command:
                    self._answer(request)
            if self._ending:
                raise Quit

    def _show_stop(self, stop: Stop) -> None:
        self._stopped.announce_points()
        if stop.reason in ("watchpoint", "report") or stop.error:
            lines = stop_text(self.session, stop, self.session.needed_view())
            self.channel.output("console", "\n".join(lines).lstrip("\n") + "\n")
        self.channel.event("stopped", self._stopped.body(REASONS[stop.reason]))

    def note(self, text: str) -> None:
        self.channel.output("console", f"{text}\n")

    def loaded(self, code: Code) -> None:
        with self._lock:
            self._stopped.announce_points()


def serve(run: RunScript, default_arch: str) -> int:
    """Serve one client over this process's stdin and stdout; returns the exit status."""
    source, sink = take_streams()
    # until the script runs, what is printed is not the protocol's
    os.dup2(2, 1)
    status = Adapter(source, sink, default_arch).serve(run)
    sys.stdout.flush()
    return status
