"""The simulated driver: an object with the functions of ``cuda.bindings.driver``, names, arguments and results alike.

    driver = Driver("sm_90")
    driver.cuInit(0)
    error, context = driver.cuDevicePrimaryCtxRetain(0)

Names that start with "sim" are its own: launch records, fault injection, reports, what is still alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.checks.watches import StoreWatch
from cudakit.sim.chips.properties import DEFAULT_MEMORY, attributes, chip
from cudakit.sim.driver.arguments import Handle
from cudakit.sim.driver.contexts import ContextCalls, leak_report
from cudakit.sim.driver.events import StreamCalls
from cudakit.sim.driver.faults import CallError, Injector, Result, caller, host_report
from cudakit.sim.driver.graphs import GraphCalls
from cudakit.sim.driver.launches import write_stdout
from cudakit.sim.driver.objects import Context, Device, Operation, Pool, QueuedWork, Stream
from cudakit.sim.driver.observing import Count
from cudakit.sim.driver.order import Rows
from cudakit.sim.driver.peeking import PeekCalls
from cudakit.sim.driver.regions import Region
from cudakit.sim.driver.state import DriverState, call
from cudakit.sim.driver.streams import StreamScheduler
from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.report import FaultReport, Held, HostReport, LeakReport

# "barrier" (divergent barriers) and "warp" (shuffles from lanes that are not there) are the machine's; "streams" are
# mistakes of host code: pinned memory changed in flight, work of two streams on the same bytes and frees that do not
# wait for it (see `order`); "leaks" what a context still holds as it ends. Accesses out of bounds, misaligned or to
# freed memory end a kernel, and double frees are told of, whatever is asked for.
ALL_CHECKS = frozenset({"barrier", "warp", "race", "init", "streams", "leaks"})


@dataclass(frozen=True)
class Stats:
    """What is alive in a driver, over all its devices. ``bytes`` are device bytes; ``pending`` is queued work, and
    ``freeing`` the bytes of memory whose free is queued."""

    allocations: int
    bytes: int
    pinned: int
    streams: int
    events: int
    modules: int
    contexts: int
    pending: int
    freeing: int


class Driver(GraphCalls, StreamCalls, ContextCalls, PeekCalls):
    """A simulated driver with ``devices`` devices of one architecture.

    ``memory`` is each device's memory in bytes, ``checks`` which of ``ALL_CHECKS`` are on. ``order`` says which of the
    operations that may run next runs: "newest" (the default: what host code expects least), "oldest", or "random" with
    ``seed``. ``printf`` is given the text of device printf. Calls may come from any thread.
    """

    def __init__(
        self,
        arch: str = "sm_90",
        *,
        checks: Iterable[str] = ALL_CHECKS,
        memory: int = DEFAULT_MEMORY,
        devices: int = 1,
        order: str = "newest",
        seed: int = 0,
        printf: Callable[[str], None] = write_stdout,
    ) -> None:
        super().__init__()
        self.checks = frozenset(checks)
        unknown = self.checks - ALL_CHECKS
        if unknown:
            raise ValueError(f"no checks {sorted(unknown)}; there are {', '.join(sorted(ALL_CHECKS))}")
        if memory <= 0 or devices <= 0:
            raise ValueError(f"memory and devices must be positive, got {memory} and {devices}")
        self._space.track_undefined = "init" in self.checks
        self.arch = chip(arch).arch
        self.printf = printf
        self._scheduler = StreamScheduler(self._lose, order, seed)
        self._injector = Injector()
        self._counts: list[Count] = []
        self._watches: list[StoreWatch] = []
        self._leaks: list[Held] = []
        self._sources: dict[str, str] = {}
        self.devices = []
        for ordinal in range(devices):
            device = Device(ordinal, chip(arch), memory, attributes(chip(arch), ordinal))
            device.pool = device.default_pool = Pool(self._new_handle(), device)
            device.pools.append(device.pool)
            self._objects[device.pool.handle] = device.pool
            device.primary = self._make_context(device)
            device.primary.active = False
            self.devices.append(device)

    def __getattr__(self, name: str) -> Any:
        # enums and structs are the real bindings'; functions that are not simulated are not there
        if name.startswith("CU") or name == "cuuint64_t":
            return getattr(cu, name)
        raise AttributeError(f"the simulated driver has no {name}")

    def __repr__(self) -> str:
        return f"<simulated driver: {len(self.devices)} x {self.arch}>"

    # ---- host functions ----

    @call(context=False)
    def cuLaunchHostFunc(self, hStream: Handle, fn: Any, userData: Any) -> None:
        address = int(fn)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        argument = None if userData is None else int(userData)
        self._enqueue_host(hStream, lambda: function(argument), "host function")

    @call(context=False)
    def simLaunchHost(
        self,
        hStream: Handle,
        function: Callable[[], None],
        name: str = "host function",
        reads: Sequence[Rows] = (),
        writes: Sequence[Rows] = (),
    ) -> None:
        """Enqueue a Python callable on a stream. It must not call the driver; an exception of its own ends the context
        and is raised by the call that waits.

        ``reads`` and ``writes``, rows (address, width, height, pitch) of device memory, are for a stand-in of a
        library's kernel, which touches nothing else: it is checked as a copy is (that the memory is there, and that
        streams wait for each other), and may only read what has been written. It looks at the memory by
        ``simHostView(..., define=False)``; what it writes is initialised once it returns."""
        if not reads and not writes:
            self._enqueue_host(hStream, function, name)
            return
        stream, place = self._stream(hStream), caller()
        sources = [self._device_range(*rows) for rows in reads]
        targets = [self._device_range(*rows) for rows in writes]

        pinned = [tuple(r.extent for r in regions if r.kind == "pinned") for regions in (sources, targets)]

        def enqueue(stream: Stream, after: Iterable[Operation]) -> Operation:
            def run() -> None:
                try:
                    for region in (*sources, *targets):
                        region.view()
                    for region in sources:
                        self._expect_written(operation, region)
                    self._as_host_function(function)
                    for region in targets:
                        region.define()
                except MemoryFault as fault:
                    raise self._gone(name, fault, place) from None

            operation = self._scheduler.enqueue(
                stream, name, run, after=after, place=place,
                reads=pinned[0], writes=pinned[1], visible=bool(pinned[1]),
            )  # fmt: skip
            for regions, does in ((sources, "reads"), (targets, "writes")):
                for region in regions:
                    self._note(operation, does, region.rows)
            return operation

        regions = (*sources, *targets)
        self._submit(stream, QueuedWork("host", enqueue, lambda: self._expect_there(*regions), regions))

    def _expect_written(self, operation: Operation, region: Region) -> None:
        """End the context where a stand-in would read what nobody has written."""
        undefined = region.undefined()
        if undefined is None or not undefined.any():
            return
        first = int(np.flatnonzero(undefined)[0])
        allocation = self._space.covering(region.address, region.span)
        at = region.address - allocation.address + first // region.width * region.pitch + first % region.width
        detail = (
            f"{operation.label} reads {np.count_nonzero(undefined)} bytes that nobody has written, the first of them"
            f" byte {at} of the allocation"
        )
        report = host_report("uninitialised read", detail, operation.label, operation.place, allocation=allocation)
        self._explain(operation, report)
        raise self._fault(Result.CUDA_ERROR_LAUNCH_FAILED, report)

    def _enqueue_host(self, hStream: Handle, function: Callable[[], Any], name: str) -> None:
        def run() -> None:
            self._as_host_function(function)

        details: dict[str, Any] = {"visible": True, "touches_host": True, "place": caller()}
        work = QueuedWork(
            "host", lambda stream, after: self._scheduler.enqueue(stream, name, run, after=after, **details)
        )
        self._submit(self._stream(hStream), work)

    def _as_host_function(self, function: Callable[[], Any]) -> None:
        self._local.in_host_function = True
        try:
            function()
        finally:
            self._local.in_host_function = False

    # ---- extensions ----

    def simInject(self, fault: str, after: int = 0, *, times: int = 1, code: Any | None = None) -> None:
        """Make calls fail. ``fault`` is "out_of_memory" (allocations), "launch_failure" (a kernel, as it runs),
        "context_lost" (any call that needs a context) or a driver function's name, then with the CUresult ``code``.
        ``after`` such calls pass first, then ``times`` fail."""
        with self._lock.raw, self._lock:
            self._injector.add(fault, after, times, code)

    def simClearFaults(self) -> None:
        """Withdraw the injected faults that have not struck."""
        with self._lock.raw, self._lock:
            self._injector.injections.clear()

    def simFailureReport(self) -> FaultReport | None:
        """The report of the last call of this thread that failed; None where what it says is not a report."""
        report: FaultReport | None = getattr(self._local, "report", None)
        return report

    def simLastReport(self) -> FaultReport | None:
        """The report of the last fault that a kernel or a queued operation met, or None. ``str`` of it is readable."""
        reports = self.simReports()
        return reports[-1] if reports else None

    def simReports(self) -> tuple[FaultReport, ...]:
        """The reports of the faults that kernels and queued operations met, of host-side mistakes and of leaks, oldest
        first; of a great many only the last."""
        with self._lock.raw, self._lock:
            return tuple(self._reports)

    def simLastMessage(self) -> str:
        """What was wrong in the last call of this thread that failed; "" where none did."""
        return getattr(self._local, "message", "")

    def simLastHint(self) -> str | None:
        """What to do about the last call of this thread that failed; None where its code's usual advice holds."""
        hint: str | None = getattr(self._local, "hint", None)
        return hint

    def simStats(self) -> Stats:
        """What is alive now. Memory whose free is queued counts as freed."""
        with self._lock.raw, self._lock:
            live = [m for m in self._memory.values() if not m.freeing]
            device = [m for m in live if m.allocation.kind == "device"]
            contexts = [c for c in self._contexts() if c.active]
            return Stats(
                allocations=len(device),
                bytes=sum(m.allocation.size for m in device),
                pinned=sum(m.allocation.kind == "host" for m in live),
                streams=sum(len(c.streams) for c in contexts),
                events=sum(len(c.events) for c in contexts),
                modules=sum(len(c.modules) for c in contexts),
                contexts=len(contexts),
                pending=self._scheduler.waiting,
                freeing=self._freeing,
            )

    def simHostView(self, address: int, size: int, *, define: bool = True) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The host bytes behind ``size`` bytes of device memory, writable, for exchange with libraries of the CPU.

        Nothing is waited for, and the bytes count as initialised from here on, if ``define``. It stays readable once
        the memory is freed, and is then nobody else's. ValueError where no one live allocation holds the range."""
        with self._lock.raw, self._lock:
            try:
                view = self._space.bytes(int(address), int(size))
                if size and define:
                    found = self._space.covering(int(address), int(size))
                    found.define(int(address) - found.address, int(size))
                return view
            except MemoryFault as fault:
                raise ValueError(str(fault)) from None

    def simHostReads(self, address: int, size: int) -> None:
        """Say that the host reads memory now, by itself. Where it is pinned, and queued work is still to write it, the
        next call that waits returns a report."""
        with self._lock.raw, self._lock:
            self._host_reads(int(address), int(size))

    def simAlive(self) -> list[Held]:
        """What is alive, by the line that made it. ``str`` of each is readable."""
        with self._lock.raw, self._lock:
            return [held for context in self._contexts() for held in self._held(context)]

    def simLeaks(self) -> list[Held]:
        """What contexts still held when they were released, reset or destroyed, by the line that made it."""
        with self._lock.raw, self._lock:
            return list(self._leaks)

    def simEndReport(self, context: Handle, own: Container[int] = ()) -> LeakReport | None:
        """What ``context`` would leave behind if it were released now, as a report; None where that is nothing, where
        "leaks" is not among the checks, or where others hold the context too. ``own`` are handles and addresses of the
        caller's, which are not to be told of."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            if "leaks" not in self.checks or found.sticky is not None or found.device.retained > 1:
                return None
            held = self._held(found, own)
            return leak_report(found, held) if held else None

    def simLost(self) -> bool:
        """Whether the primary context of one of its devices is lost."""
        with self._lock.raw, self._lock:
            return any(device.primary.sticky is not None for device in self.devices)

    def simKeepReport(self) -> None:
        """Have the next call that waits return the report of the last call of this thread that failed, too: for callers
        that have nobody to tell, such as finalizers."""
        with self._lock.raw, self._lock:
            report, stack = self.simFailureReport(), self._stack()
            if report is not None and self._local.first:
                report.told = False
            if isinstance(report, HostReport) and stack and stack[-1].sticky is None:
                stack[-1].mistakes.insert(0, report)

    def simUnseenReports(self, context: Handle) -> list[FaultReport]:
        """The reports of mistakes and of the fault, if any, that no call on ``context`` has returned, which are taken
        out; none while others hold the context too."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            return [] if found.device.retained > 1 else self._take_unseen(found)

    def simTold(self, context: Handle) -> None:
        """The caller knows that work of ``context`` failed: what has failed by now is left out of ``simFinish``."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            for report in (found.report, *found.mistakes):
                if report is not None:
                    report.told = True

    def simFinish(self, *, run: bool = True) -> list[FaultReport]:
        """Run everything that is queued, in every context, and take out the reports that no call has returned, those of
        contexts that have ended among them. Mistakes that waited when a call returned another are left out. ``run``:
        False takes out only what contexts that have ended left."""
        with self._lock.raw, self._lock:
            for context in [c for c in self._contexts() if c.active and run]:
                self._scheduler.finish(self._scheduler.pending_of(context))
                self._unseen += self._take_unseen(context)
            unseen, self._unseen = self._unseen, []
            return [report for report in unseen if not report.told]

    def simNameStream(self, hStream: Handle, name: str) -> None:
        """What reports call a stream; without it, they name the line that made it."""
        with self._lock.raw, self._lock:
            self._object(hStream, Stream, "a stream").name = name

    def simSource(self, name: str, text: str) -> None:
        """The text of a source file that is not on disk, for reports to quote."""
        with self._lock.raw, self._lock:
            self._sources[name] = text

    def simSourceText(self, name: str) -> str | None:
        """The text that ``simSource`` was given for a file; None for another."""
        return self._sources.get(name)

    def simSetResources(self, hfunc: Handle, *, registers: int, local_bytes: int | None = None) -> None:
        """What ptxas says a kernel needs, for occupancy and limits; without it, the PTX gives an estimate."""
        with self._lock.raw, self._lock:
            try:
                function = self._function(hfunc)
            except CallError as refusal:
                raise ValueError(str(refusal)) from None
            function.registers = registers
            if local_bytes is not None:
                function.local_bytes = local_bytes

    def simNameParameters(self, hfunc: Handle, labels: Sequence[str], pointers: Sequence[bool]) -> None:
        """What reports call a kernel's parameters, and which of them are pointers; without it, they have numbers."""
        with self._lock.raw, self._lock:
            function = self._function(hfunc)
            function.labels, function.pointers = tuple(labels), tuple(pointers)

    def _contexts(self) -> list[Context]:
        return [thing for thing in self._objects.values() if isinstance(thing, Context)]


__all__ = ["ALL_CHECKS", "Driver", "DriverState", "Result", "Stats"]
