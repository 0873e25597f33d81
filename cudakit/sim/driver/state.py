"""The state of a simulated driver: devices, contexts, memory and handles; and the checks at the entry of every call."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from cuda.bindings import driver as cu

from cudakit.sim.driver.arguments import Handle, as_handle
from cudakit.sim.driver.faults import (
    SUCCESS,
    CallError,
    Injector,
    OperationFault,
    Result,
    caller,
    host_report,
    interrupted,
)
from cudakit.sim.driver.lock import DriverLock
from cudakit.sim.driver.objects import (
    Context,
    Device,
    GraphNode,
    MemoryRecord,
    Operation,
    QueuedWork,
    Stream,
    StreamCapture,
)
from cudakit.sim.driver.streams import StreamScheduler
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.report import FaultReport, HostReport

Reply = tuple[Any, ...]
T = TypeVar("T")

# with more pending operations than this, some run although nothing waits for them
MOST_WAITING = 2048

_DRIVERS = iter(range(1, 1 << 20))
_KEPT_REPORTS = 256

# Calls that a capture in progress forbids, even on unrelated streams and objects, as driver 580 (CUDA 13.0) does; it
# allows loading a module and synchronous copies. tests/core/test_capture_modes.py makes the calls on both devices.
UNSAFE_ON = frozenset(  # calls whose stream or event is checked first, since it may be part of the capture
    (
        "cuMemAllocAsync", "cuMemFreeAsync", "cuStreamQuery", "cuStreamSynchronize", "cuEventQuery",
        "cuEventSynchronize",
    )
)  # fmt: skip
UNSAFE = UNSAFE_ON | {
    "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostUnregister",
    "cuMemPoolSetAttribute", "cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuModuleUnload", "cuCtxSetLimit",
    "cuGraphInstantiate", "cuGraphExecDestroy",
}  # fmt: skip


def call(
    values: int = 0, *, context: bool = True, initialised: bool = True, lost: bool = False
) -> Callable[..., Callable[..., Reply]]:
    """Make a method a driver entry point that returns ``(CUresult, value...)``, with ``values`` values.

    The entry point takes the driver's lock, checks that the call is possible (cuInit was called, this is not a forked
    child; with ``context``: there is a current context, which is not lost unless ``lost`` allows it), applies injected
    faults, and turns ``CallError`` into its result, with None for every value. An interrupt (Ctrl-C) during the call
    loses the context, whose tables may be inconsistent.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Reply]:
        name = function.__name__
        nothing = (None,) * values
        unsafe = name in UNSAFE and name not in UNSAFE_ON

        @functools.wraps(function)
        def enter(self: DriverState, *args: Any, **named: Any) -> Reply:
            if os.getpid() != self._pid:
                # do not touch the lock: a thread that does not exist in this process may hold it
                return (Result.CUDA_ERROR_NOT_INITIALIZED, *nothing)
            with self._lock.raw, self._lock:
                try:
                    self._admit(name, context, initialised, lost)
                    if unsafe:
                        self._expect_allowed(name)
                    answer = function(self, *args, **named)
                except CallError as refusal:
                    self._local.message = f"{name}: {refusal}"
                    self._local.hint = refusal.hint
                    self._local.report = refusal.report
                    self._local.first = refusal.report is not None and not refusal.report.told
                    if refusal.report is not None:
                        refusal.report.told = True
                        for current in self._stack()[-1:]:
                            for mistake in current.mistakes:
                                mistake.told = True
                    if isinstance(refusal.report, HostReport) and not refusal.report.call:
                        refusal.report.call = name
                    return (refusal.code, *nothing)
                except KeyboardInterrupt:
                    for current in self._stack()[-1:]:
                        self._lose(current, *interrupted(name, caller()))
                    raise
            if values == 0:
                return (SUCCESS,)
            return (SUCCESS, answer) if values == 1 else (SUCCESS, *answer)

        return enter

    return decorate


class DriverState:
    """The state that all parts of the driver share. Lookups in it raise ``CallError`` for unknown objects."""

    _pid: int
    _scheduler: StreamScheduler
    _injector: Injector
    devices: list[Device]

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.number = next(_DRIVERS)  # drivers of this process are numbered from 1
        self._lock = DriverLock()
        self._local = threading.local()
        self._space = AddressSpace()
        self._initialised = False
        self._objects: dict[int, Any] = {}
        # handles are never reused and each driver has its own range: a destroyed object's handle is never taken for
        # another object's, and differs from the handles of other drivers
        self._first_handle = self._next_handle = (0x51 << 40) + (self.number << 32)
        self._memory: dict[int, MemoryRecord] = {}
        # variables of modules that kernels use; those that the host has looked up are in `_memory` too
        self._variables: dict[int, MemoryRecord] = {}
        self._allocations_made = 0
        self._pinned_count = 0
        self._frees: deque[Operation] = deque()  # pending frees, and some that are done
        self._freeing = 0  # bytes of memory whose free is queued
        self._reports: deque[FaultReport] = deque(maxlen=_KEPT_REPORTS)  # oldest first
        self._capturing: list[StreamCapture] = []
        # reports that no call has returned, of contexts that have ended
        self._unseen: list[FaultReport] = []

    def _variable(self, address: int, context: Context) -> MemoryRecord:
        """The record of a module's variable."""
        found = self._variables.get(address)
        if found is None or not found.allocation.live:
            found = self._variables[address] = MemoryRecord(self._space.covering(address, 1), context)
        return found

    # ---- entry ----

    def _admit(self, name: str, context: bool, initialised: bool, lost: bool) -> None:
        if getattr(self._local, "in_host_function", False):
            raise CallError(Result.CUDA_ERROR_NOT_PERMITTED, "a host function on a stream must not call the driver")
        if initialised and not self._initialised:
            raise CallError(Result.CUDA_ERROR_NOT_INITIALIZED, "call cuInit(0) first")
        hit = self._injector.hit(name, needs_context=context) if self._injector.injections else None
        if hit is not None:
            if hit.fault == "context_lost":
                report = host_report("injected fault", "the context is lost", name, caller())
                self._lose(self._context(), hit.code, report)
            else:
                raise CallError(hit.code, f"injected fault: {hit.fault}")
        if lost:
            self._current()
        elif context:
            self._context()

    def _current(self) -> Context:
        """The current context of this thread, which may be lost."""
        stack = self._stack()
        if not stack:
            raise CallError(
                Result.CUDA_ERROR_INVALID_CONTEXT, "no context is current on this thread: call cuCtxSetCurrent first"
            )
        return stack[-1]

    def _context(self) -> Context:
        """The current context of this thread, which must be usable."""
        return self._usable(self._current())

    def _usable(self, context: Context) -> Context:
        if not context.active:
            raise CallError(
                Result.CUDA_ERROR_CONTEXT_IS_DESTROYED,
                f"the context of device {context.device.ordinal} was released or destroyed",
            )
        if context.sticky is not None:
            text = f"the context was lost by an earlier fault:\n{context.report}"
            raise CallError(context.sticky, text, report=context.report)
        return context

    def _stack(self) -> list[Context]:
        stack: list[Context] | None = getattr(self._local, "contexts", None)
        if stack is None:
            stack = self._local.contexts = []
        return stack

    def _lose(self, context: Context, code: Any, report: FaultReport) -> None:
        """Mark a context as lost: every later call that needs it returns ``code``. Its queued work is dropped and its
        device memory freed; pinned memory stays until it is freed by a call, since the host can still access it."""
        if context.sticky is not None:
            return
        context.sticky, context.report = code, report
        self._scheduler.cancel(context)
        for memory in [m for m in self._memory.values() if m.context is context]:
            if memory.allocation.kind in ("device", "heap"):
                self._release(memory, "with its context, which was lost")

    def _release(self, memory: MemoryRecord, origin: str) -> None:
        """Free an allocation (MemoryCalls)."""
        raise NotImplementedError

    def _unload(self, loaded: Any) -> None:
        """Release a module and its functions (FunctionCalls)."""
        raise NotImplementedError

    # ---- handles ----

    def _new_handle(self) -> int:
        self._next_handle += 16
        return self._next_handle

    def _object(self, handle: Handle, kind: type[T], what: str) -> T:
        number = as_handle(handle)
        found = self._objects.get(number)
        if isinstance(found, kind):
            return found
        if found is not None:
            noun = "node" if isinstance(found, GraphNode) else type(found).__name__.lower()
            raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, f"{number:#x} is not {what} but a {noun}")
        gone = self._first_handle < number <= self._next_handle
        reason = "has been destroyed" if gone else "is not a handle of this driver"
        raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, f"{what} is required, but {number:#x} {reason}")

    def _device(self, dev: Handle) -> Device:
        number = as_handle(dev)
        if not 0 <= number < len(self.devices):
            raise CallError(
                Result.CUDA_ERROR_INVALID_DEVICE,
                f"device {number} does not exist; this driver has {len(self.devices)} (from 0)",
            )
        return self.devices[number]

    def _context_of(self, handle: Handle) -> Context:
        try:
            return self._object(handle, Context, "a context")
        except CallError as refusal:
            raise CallError(Result.CUDA_ERROR_INVALID_CONTEXT, str(refusal)) from None

    def _stream(self, handle: Handle) -> Stream:
        """A stream by handle: 0 and 1 are the current context's legacy default stream, 2 is this thread's own one."""
        number = as_handle(handle)
        if number in (0, 1):
            return self._context().legacy
        if number == 2:
            context = self._context()
            thread = threading.get_ident()
            stream = context.per_thread.get(thread)
            if stream is None:
                stream = context.per_thread[thread] = Stream(context, 2, 0, 0)
            return stream
        stream = self._object(number, Stream, "a stream")
        self._usable(stream.context)
        return stream

    # ---- queueing work ----

    def _submit(self, stream: Stream, work: QueuedWork) -> None:
        """Queue work on a stream, or add it to the capture that the stream is part of."""
        self._keep_up(stream.context)
        if stream.capture is None:
            work.enqueue(stream, ())
        else:
            stream.capture.add(stream, work, self._new_handle())

    def _not_captured(self, call: str, *streams: Stream) -> None:
        """Raise CallError for a call that cannot be part of a graph, if one of ``streams`` is being captured, or is the
        legacy stream and waits for one that is. The call invalidates the capture."""
        for stream in streams:
            if stream.capture is not None:
                capture = stream.capture
                capture.broken = capture.broken or f"{call} {caller()}"
                raise CallError(
                    Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    f"{stream} is being captured (begun {capture.place}), and {call} cannot be part of a graph: this"
                    " invalidates the capture",
                )
        for stream in streams:
            if stream.legacy:
                stream.expect_no_capture(call)

    def _expect_allowed(self, call: str) -> None:
        """Raise CallError for a call of ``UNSAFE`` that a capture forbids by its mode and this thread's mode. The call
        invalidates these captures."""
        if not self._capturing:
            return
        modes = cu.CUstreamCaptureMode
        mode, thread = self._thread_mode(), threading.get_ident()
        if mode == modes.CU_STREAM_CAPTURE_MODE_RELAXED:
            return
        everywhere = modes.CU_STREAM_CAPTURE_MODE_GLOBAL
        forbidding = [
            capture
            for capture in self._capturing
            if capture.lanes[0].context.active
            and capture.mode != modes.CU_STREAM_CAPTURE_MODE_RELAXED
            and (capture.thread == thread or mode == capture.mode == everywhere)
        ]
        for capture in forbidding:
            capture.broken = capture.broken or f"{call} {caller()}"
        if forbidding:
            raise CallError(
                Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                f"{forbidding[0].lanes[0]} is being captured (begun {forbidding[0].place}) in a mode that forbids"
                f" {call}, which cannot be captured: this invalidates the capture",
                hint="Do it before the capture, or capture with CU_STREAM_CAPTURE_MODE_RELAXED.",
            )

    def _thread_mode(self) -> Any:
        """This thread's CUstreamCaptureMode."""
        return getattr(self._local, "capture_mode", cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)

    def _leave_capture(self, capture: StreamCapture) -> None:
        """End a capture: its streams queue their work again."""
        self._capturing.remove(capture)
        for stream in capture.lanes:
            stream.capture, stream.frontier = None, []

    # ---- running queued work ----

    def _keep_up(self, context: Context) -> None:
        """Run some queued work without effects on the host if too much is pending; a GPU would have run it by now. The
        current call reports failures."""
        if self._scheduler.waiting > MOST_WAITING:
            self._scheduler.progress(MOST_WAITING // 2)
            self._usable(context)

    def _finish(self, targets: list[Operation], *contexts: Context) -> None:
        """Run until ``targets`` are done. Raises CallError for a fault or a reported mistake of the contexts."""
        self._scheduler.finish(targets)
        for device in self.devices:
            for pool in device.pools:
                pool.trim(pool.threshold)
        for context in contexts:
            self._settle(context)

    def _settle(self, context: Context) -> None:
        if context.report is not None:
            raise CallError.by(context.sticky, context.report)
        if context.mistakes:
            raise CallError.by(Result.CUDA_ERROR_ILLEGAL_STATE, context.mistakes.pop(0))

    def _finish_context(self, context: Context) -> None:
        self._finish(self._scheduler.pending_of(context), context)

    def _mistake(self, context: Context, report: FaultReport) -> None:
        """Keep the report of a mistake in host code, for the next call that waits on the context. A mistake that is
        repeated between the same two lines, as in a loop, is kept once."""
        key = (report.kind, report.file, report.line, *((p.file, p.line) for o in report.others for p in o.places))
        if key in context.told:
            return
        context.told.add(key)
        self._reports.append(report)
        context.mistakes.append(report)

    def _fault(self, code: Any, report: FaultReport) -> OperationFault:
        self._reports.append(report)
        return OperationFault(code, report)
