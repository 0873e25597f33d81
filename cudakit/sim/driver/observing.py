"""Observers of running kernels: the counters of launches, the last store to some bytes, and probes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cudakit.sim.checks.watches import StoreWatch
from cudakit.sim.driver.arguments import Handle
from cudakit.sim.driver.objects import Context
from cudakit.sim.driver.occupancy import OccupancyCalls
from cudakit.sim.lockstep.counters import Counters
from cudakit.sim.lockstep.probes import Probe
from cudakit.sim.lockstep.report import Index3, KernelReport


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
    """simCount, simWatch and simProbe."""

    _counts: list[Count]
    _watches: list[StoreWatch]
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
        ``simEndWatch``."""
        with self._lock.raw, self._lock:
            watch = StoreWatch(address, size)
            self._watches.append(watch)
            return watch

    def simEndWatch(self, watch: StoreWatch) -> KernelReport | None:
        """End a watch. Returns the last store to the watched bytes, or None if nothing was stored there."""
        with self._lock.raw, self._lock:
            self._watches.remove(watch)
            return watch.store

    def simProbe(self, probe: Probe) -> None:
        """Let a probe follow the launches that start from now on, until ``simEndProbe``."""
        with self._lock.raw, self._lock:
            self._probes.append(probe)

    def simEndProbe(self, probe: Probe) -> None:
        """End a probe."""
        with self._lock.raw, self._lock:
            self._probes.remove(probe)
