"""The simulated driver: an object with the functions of ``cuda.bindings.driver``, same names, arguments and results.

    driver = Driver("sm_90a")
    driver.cuInit(0)
    error, context = driver.cuDevicePrimaryCtxRetain(0)

Functions that start with "sim" are extensions: launch records, fault injection, reports, live objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.checks.watches import HostWrite, Watch
from cudakit.sim.chips.properties import DEFAULT_MEMORY, attributes, chip
from cudakit.sim.compiled.kept_code import CodeStore, keep_in
from cudakit.sim.driver.arguments import Handle
from cudakit.sim.driver.contexts import ContextCalls, leak_report
from cudakit.sim.driver.events import StreamCalls
from cudakit.sim.driver.faults import CallError, Injector, Result, caller, host_report
from cudakit.sim.driver.graphs import GraphCalls
from cudakit.sim.driver.launches import write_stdout
from cudakit.sim.driver.objects import Context, Device, Operation, Pool, QueuedWork, Stream
from cudakit.sim.driver.observing import Count, LaunchListener
from cudakit.sim.driver.order import Rows
from cudakit.sim.driver.peeking import PeekCalls
from cudakit.sim.driver.regions import Region
from cudakit.sim.driver.state import DriverState, call
from cudakit.sim.driver.streams import StreamScheduler
from cudakit.sim.driver.tensor_maps import TensorMapCalls
from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.probes import Probe
from cudakit.sim.lockstep.report import FaultReport, Held, HostReport, LeakReport

# "barrier" (lanes of a warp apart at barriers), "syncthreads" (warps of a block apart at __syncthreads()), "warp"
# (inactive lanes in warp operations), "race" and "init" check kernels. "streams" checks host code: pinned memory
# changed in flight, races between streams, and frees that do not wait for work (see `order`). "leaks" reports live
# objects when a context ends. Out-of-bounds, misaligned and use-after-free accesses and double frees are always
# reported.
DEFAULT_CHECKS = frozenset({"barrier", "syncthreads", "warp", "race", "init", "streams", "leaks"})
# "benign" includes "race", and also reports races that cannot change a result. "clipping" reports tensor copies of
# boxes wholly outside of the tensor, which some kernels make at its edges.
ALL_CHECKS = DEFAULT_CHECKS | {"benign", "clipping"}


@dataclass(frozen=True)
class Stats:
    """Live objects of a driver, over all its devices. ``bytes`` is device memory, ``pending`` the number of queued
    operations, ``freeing`` the bytes whose free is queued."""

    allocations: int
    bytes: int
    pinned: int
    streams: int
    events: int
    modules: int
    contexts: int
    pending: int
    freeing: int


class Driver(GraphCalls, StreamCalls, ContextCalls, PeekCalls, TensorMapCalls):
    """A simulated driver with ``devices`` devices of one architecture.

    ``memory`` is each device's memory in bytes; ``checks`` are the enabled checks, from ``ALL_CHECKS``. ``order``
    selects which of the ready operations runs next: "newest" (the default, which host code expects least), "oldest", or
    "random" with ``seed``, which also draws the moments at which a kernel's asynchronous copies complete (otherwise as
    late as allowed). ``printf`` is called with the text of device printf. ``step_limit`` is the most loop
    iterations of the blocks of a launch that run together, after which it is stopped as endless; by default it follows
    from the launch's size and arguments. Calls may come from any thread.
    """

    def __init__(
        self,
        arch: str = "sm_90a",
        *,
        checks: Iterable[str] = DEFAULT_CHECKS,
        memory: int = DEFAULT_MEMORY,
        devices: int = 1,
        order: str = "newest",
        seed: int = 0,
        printf: Callable[[str], None] = write_stdout,
        step_limit: int | None = None,
    ) -> None:
        super().__init__()
        self.checks = frozenset(checks)
        unknown = self.checks - ALL_CHECKS
        if unknown:
            raise ValueError(f"unknown checks {sorted(unknown)}; use {', '.join(sorted(ALL_CHECKS))}")
        if "benign" in self.checks:
            self.checks |= {"race"}
        if memory <= 0 or devices <= 0:
            raise ValueError(f"memory and devices must be positive, got {memory} and {devices}")
        if step_limit is not None and step_limit <= 0:
            raise ValueError(f"step_limit must be positive, got {step_limit}")
        self.step_limit = step_limit
        # for another driver like this one
        self.settings = {
            "checks": self.checks,
            "memory": memory,
            "order": order,
            "seed": seed,
            "printf": printf,
            "step_limit": step_limit,
        }
        self._space.track_undefined = "init" in self.checks
        self.arch = chip(arch).arch
        self.printf = printf
        self._scheduler = StreamScheduler(self._lose, order, seed)
        self._injector = Injector()
        self._counts: list[Count] = []
        self._watches: list[Watch] = []
        self._listeners: list[LaunchListener] = []
        self._probes: list[Probe] = []
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
        # enums and structs are those of the bindings; functions that are not simulated do not exist
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
        """Enqueue a Python callable on a stream. It must not call the driver. If it raises an exception, the context is
        lost, and the call that waits for it raises the exception.

        For a function that replaces a library's kernel, ``reads`` and ``writes`` are all device memory that it
        accesses, as rows (address, width, height, pitch). Such a function is checked like a copy (the memory is
        allocated, streams wait for each other) and must not read uninitialised memory. It accesses the memory through
        ``simHostView(..., define=False)``; the memory that it writes counts as initialised when it returns."""
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
                    for watch in self._watches:
                        for region in targets:
                            watch.write(HostWrite("host function", name, place), region.rows)
                    self._as_host_function(function)
                    for region in targets:
                        region.define()
                    for watch in self._watches:
                        watch.written()
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
        """Report a function of ``simLaunchHost`` that would read uninitialised memory; the context is lost."""
        undefined = region.undefined()
        if undefined is None or not undefined.any():
            return
        first = int(np.flatnonzero(undefined)[0])
        allocation = self._space.covering(region.address, region.span)
        at = region.address - allocation.address + first // region.width * region.pitch + first % region.width
        detail = (
            f"{operation.label} reads {np.count_nonzero(undefined)} bytes that were never written; the first is byte"
            f" {at} of the allocation"
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
        """Make calls fail. ``fault`` is "out_of_memory" (allocations), "launch_failure" (a kernel when it runs),
        "context_lost" (any call that needs a context) or the name of a driver function, which requires the CUresult
        ``code``. The first ``after`` such calls pass, then ``times`` calls fail."""
        with self._lock.raw, self._lock:
            self._injector.add(fault, after, times, code)

    def simClearFaults(self) -> None:
        """Remove the injected faults that have not occurred yet."""
        with self._lock.raw, self._lock:
            self._injector.injections.clear()

    def simFailureReport(self) -> FaultReport | None:
        """The report of this thread's last failed call; None if its message is not a report."""
        report: FaultReport | None = getattr(self._local, "report", None)
        return report

    def simLastReport(self) -> FaultReport | None:
        """The report of the last fault of a kernel or a queued operation, or None. Its ``str`` is the printed form."""
        reports = self.simReports()
        return reports[-1] if reports else None

    def simReports(self) -> tuple[FaultReport, ...]:
        """The reports of faults of kernels and queued operations, of mistakes in host code and of leaks, oldest first.
        Only the most recent ones are kept."""
        with self._lock.raw, self._lock:
            return tuple(self._reports)

    def simLastMessage(self) -> str:
        """The error message of this thread's last failed call; "" if none has failed."""
        return getattr(self._local, "message", "")

    def simLastHint(self) -> str | None:
        """The advice for this thread's last failed call; None if the usual advice for its code applies."""
        hint: str | None = getattr(self._local, "hint", None)
        return hint

    def simStats(self) -> Stats:
        """Counts of the live objects. Memory whose free is queued counts as freed."""
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
        """A writable view of ``size`` bytes of device memory, for exchange with CPU libraries.

        It does not wait for queued work. With ``define``, the bytes count as initialised from now on. The view stays
        valid after the memory is freed, and its bytes are not reused. Raises ValueError unless one live allocation
        contains the range."""
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
        """Note that host code reads memory now. If it is pinned memory that queued work has yet to write, the next call
        that waits returns a report."""
        with self._lock.raw, self._lock:
            self._host_reads(int(address), int(size))

    def simAlive(self) -> list[Held]:
        """The live objects, grouped by the line that made them. The ``str`` of each group is its printed form."""
        with self._lock.raw, self._lock:
            return [held for context in self._contexts() for held in self._held(context)]

    def simLeaks(self) -> list[Held]:
        """The objects alive when their contexts were released, reset or destroyed, by the line that made them."""
        with self._lock.raw, self._lock:
            return list(self._leaks)

    def simEndReport(self, context: Handle, own: Container[int] = ()) -> LeakReport | None:
        """A report of the objects that would leak if ``context`` were released now. None if there are no such objects,
        if "leaks" is not among the checks, or if others also retain the context. ``own`` are handles and addresses of
        the caller, which are not reported."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            if "leaks" not in self.checks or found.sticky is not None or found.device.retained > 1:
                return None
            held = self._held(found, own)
            return leak_report(found, held) if held else None

    def simLost(self) -> bool:
        """Whether the primary context of any of the driver's devices is lost."""
        with self._lock.raw, self._lock:
            return any(device.primary.sticky is not None for device in self.devices)

    def simKeepReport(self) -> None:
        """Let the next call that waits return the report of this thread's last failed call again, for callers that
        cannot raise, such as finalizers."""
        with self._lock.raw, self._lock:
            report, stack = self.simFailureReport(), self._stack()
            if report is not None and self._local.first:
                report.told = False
            if isinstance(report, HostReport) and stack and stack[-1].sticky is None:
                stack[-1].mistakes.insert(0, report)

    def simUnseenReports(self, context: Handle) -> list[FaultReport]:
        """Take the reports of mistakes, and of the fault, that no call on ``context`` has returned. Empty while others
        retain the context too."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            return [] if found.device.retained > 1 else self._take_unseen(found)

    def simTold(self, context: Handle) -> None:
        """Note that the caller knows of the failures of ``context`` so far: ``simFinish`` does not return them."""
        with self._lock.raw, self._lock:
            found = self._object(context, Context, "a context")
            for report in (found.report, *found.mistakes):
                if report is not None:
                    report.told = True

    def simFinish(self, *, run: bool = True) -> list[FaultReport]:
        """Run all queued work, in every context, and take the reports that no call has returned, including those of
        contexts that have ended. Mistakes that were pending when a call returned another report are left out.
        ``run=False`` runs nothing and takes only the reports of contexts that have ended."""
        with self._lock.raw, self._lock:
            for context in [c for c in self._contexts() if c.active and run]:
                self._scheduler.finish(self._scheduler.pending_of(context))
                self._unseen += self._take_unseen(context)
            unseen, self._unseen = self._unseen, []
            return [report for report in unseen if not report.told]

    def simKeepCode(self, store: CodeStore | None) -> None:
        """Keep the machine code of this process's kernels in a store, for later processes; None: keep none."""
        keep_in(store)

    def simNameStream(self, hStream: Handle, name: str) -> None:
        """Set a stream's name for reports; without one, reports name the line that made it."""
        with self._lock.raw, self._lock:
            self._object(hStream, Stream, "a stream").name = name

    def simSource(self, name: str, text: str) -> None:
        """Set the text of a source file that is not on disk, so that reports can quote it."""
        with self._lock.raw, self._lock:
            self._sources[name] = text

    def simSourceText(self, name: str) -> str | None:
        """The text that ``simSource`` has set for a file; None if it has not set any."""
        return self._sources.get(name)

    def simSetResources(self, hfunc: Handle, *, registers: int, local_bytes: int | None = None) -> None:
        """Set a kernel's resources as reported by ptxas, for occupancy and limits; by default they are estimated from
        the PTX."""
        with self._lock.raw, self._lock:
            try:
                function = self._function(hfunc)
            except CallError as refusal:
                raise ValueError(str(refusal)) from None
            function.registers = registers
            if local_bytes is not None:
                function.local_bytes = local_bytes

    def simNameParameters(self, hfunc: Handle, labels: Sequence[str], pointers: Sequence[bool]) -> None:
        """Set the names of a kernel's parameters in reports, and which of them are pointers; by default they are
        numbered."""
        with self._lock.raw, self._lock:
            function = self._function(hfunc)
            function.labels, function.pointers = tuple(labels), tuple(pointers)

    def _contexts(self) -> list[Context]:
        return [thing for thing in self._objects.values() if isinstance(thing, Context)]


__all__ = ["ALL_CHECKS", "DEFAULT_CHECKS", "Driver", "DriverState", "Result", "Stats"]
