"""Observers of running kernels: the counters of launches, watches of memory, and probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cudakit.sim.checks.watches import Launched, StoreWatch, Watch
from cudakit.sim.checks.write_history import Elements, WriteLog
from cudakit.sim.driver.arguments import Handle
from cudakit.sim.driver.objects import Context
from cudakit.sim.driver.occupancy import OccupancyCalls
from cudakit.sim.lockstep.counters import Counters
from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.probes import Probe
from cudakit.sim.lockstep.report import Index3

LaunchListener = Callable[[Launched], None]


@dataclass
class LaunchRecord:
    """A completed launch. ``shared`` is the dynamic and ``static_shared`` the static shared memory per block in bytes,
    ``registers`` the registers per thread."""

    name: str
    grid: Index3
    block: Index3
    counters: Counters
    shared: int = 0
    static_shared: int = 0
    registers: int = 0


@dataclass(eq=False)
class Count:
    """A count in progress: the launches that run while it is open, of one context or of all (None). ``together``:
    launches of one kernel with one shape are added up in one record, so that memory does not grow with their number."""

    context: Context | None
    together: bool = False
    records: list[LaunchRecord] = field(default_factory=list)

    def add(self, record: LaunchRecord) -> None:
        if self.together:
            shape = (record.name, record.grid, record.block, record.shared)
            for known in self.records:
                if (known.name, known.grid, known.block, known.shared) == shape:
                    known.counters.merge(record.counters)
                    return
            # other counts share the record's counters, so add into a new object
            counters = Counters()
            counters.merge(record.counters)
            record = replace(record, counters=counters)
        self.records.append(record)


class ObservingCalls(OccupancyCalls):
    """simCount, simWatch, simTraceWrites, simOnLaunch and simProbe."""

    _counts: list[Count]
    _watches: list[Watch]
    _listeners: list[LaunchListener]
    _probes: list[Probe]

    def simCount(self, context: Handle | None = None, *, together: bool = False) -> Count:
        """Begin a count. Until ``simEndCount`` it collects a record (kernel name, grid, block, Counters) of every
        kernel that completes, in one context or in all. Earlier launches that have not run yet are counted too: wait
        for them first. ``together``: launches of one kernel with the same grid, block and shared memory make one
        record."""
        with self._lock.raw, self._lock:
            owner = None if context is None else self._object(context, Context, "a context")
            count = Count(owner, together)
            self._counts.append(count)
            return count

    def simEndCount(self, count: Count) -> list[LaunchRecord]:
        """End a count; returns its records."""
        with self._lock.raw, self._lock:
            if count in self._counts:
                self._counts.remove(count)
            return count.records

    def simWatch(self, address: int, size: int) -> StoreWatch:
        """Begin to watch for stores of kernels to ``size`` bytes of global memory at ``address``, until
        ``simEndWatch``. The watch's ``store`` is the last one, or None."""
        watch = StoreWatch(address, size)
        self.simBeginWatch(watch)
        return watch

    def simBeginWatch(self, watch: Watch) -> None:
        """Notify a watch of writes by the work that runs from now on, until ``simEndWatch``."""
        with self._lock.raw, self._lock:
            self._watches.append(watch)

    def simEndWatch(self, watch: Watch) -> None:
        """End a watch. It may have ended already."""
        with self._lock.raw, self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def simTraceWrites(self, elements: Elements, limit: int, trace: Probe | None = None) -> WriteLog:
        """Begin to record the writes to elements of an array by the work that runs from now on, until ``simEndTrace``,
        at most ``limit`` writes of one element each. ``trace``: a SourceTrace, for the sources of stored values. Raises
        ValueError unless one live allocation contains the elements."""
        with self._lock.raw, self._lock:
            try:
                allocation = self._space.covering(elements.low, max(elements.high - elements.low, 1))
            except MemoryFault as fault:
                raise ValueError(str(fault)) from None
            log = WriteLog(elements, allocation, limit, trace)
            self._watches.append(log)
            if trace is not None:
                self._probes.append(trace)
            return log

    def simEndTrace(self, log: WriteLog) -> None:
        """End the recording of writes. It may have ended already."""
        with self._lock.raw, self._lock:
            log.written()
            self.simEndWatch(log)
            if log.trace in self._probes:
                self._probes.remove(log.trace)

    def simAllocation(self, address: int) -> tuple[int, int] | None:
        """The start and the end of the allocation that contains an address, which may have been freed; None if there is
        none."""
        with self._lock.raw, self._lock:
            found = self._space.find(address)
            inside = found is not None and found.address <= address < found.end
            return (found.address, found.end) if found is not None and inside else None

    def simOnLaunch(self, listener: LaunchListener) -> None:
        """Call a function when a launch is queued or captured, until ``simEndOnLaunch``."""
        with self._lock.raw, self._lock:
            self._listeners.append(listener)

    def simEndOnLaunch(self, listener: LaunchListener) -> None:
        """End calling a function. It may have ended already."""
        with self._lock.raw, self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def simProbe(self, probe: Probe) -> None:
        """Let a probe follow the launches that start from now on, until ``simEndProbe``."""
        with self._lock.raw, self._lock:
            self._probes.append(probe)

    def simEndProbe(self, probe: Probe) -> None:
        """End a probe."""
        with self._lock.raw, self._lock:
            self._probes.remove(probe)
