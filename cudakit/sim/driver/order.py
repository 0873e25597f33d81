"""Finds races between streams: unordered accesses of queued work to the same device or pinned memory.

The bytes that a copy or fill reads or writes are known exactly. A kernel's arguments show which allocations it may use,
and its instructions which `__constant__` and `__device__` variables. After it has run, the bytes of them that it read
and wrote are known. The checks report:

- two unordered operations that access the same bytes, if at least one writes; except two kernels that access them with
  atomics or volatile accesses, or store the same values;
- accesses of a programmatic dependent launch before griddepcontrol.wait to memory that its predecessor, the kernel
  queued directly before it on its stream, writes, or reads if they write;
- an operation that does not wait for the stream-ordered allocation of its memory, or is queued after the free;
- a free that does not wait for work on the memory. A kernel counts as using all allocations passed to it.

A kernel's reads are only known if "race" or "init" is checked, and only for allocations up to 256 MiB. Without these
checks, only the bytes that a kernel changed are known, up to the same size. If its reads are unknown, a kernel is
assumed to use an allocation among its arguments if unordered work writes all of it.

Reads of pinned memory by the host before a copy has filled it are only seen in cudakit's own calls; the memory contains
poison until then. Writes by the host to pinned memory in flight are noticed when the copy runs (`copies`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cudakit.sim.checks.footprints import LARGEST, READ, WRITE, Footprints, conflict, wrote
from cudakit.sim.driver.faults import CallError, Result, caller, host_report, other_access
from cudakit.sim.driver.objects import MemoryRecord, Operation, Stream, Use
from cudakit.sim.driver.state import DriverState
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.report import FaultReport, HostReport, SourcePlace

Rows = tuple[int, int, int, int]
# pending operations kept per stream and allocation: older ones are nearly always ordered if newer ones are
_KEPT = 16
_ADVICE = "order them: other.wait(stream.record()) before the second is queued, or synchronize the first stream"


class OrderChecks(DriverState):
    """Records the memory that each operation accesses, and reports unordered accesses (if "streams" is checked)."""

    checks: frozenset[str]

    def _covering(self, address: int) -> MemoryRecord | None:
        """The live allocation that contains the byte at ``address``."""
        near = self._space.find(address)
        if near is None or not near.live or not near.address <= address < near.end:
            return None
        return self._memory.get(near.address)

    # ---- work on memory ----

    def _note(self, operation: Operation, does: str, rows: Rows) -> None:
        """Record that a copy or fill reads or writes (``does``) ``rows`` of device or pinned memory."""
        if "streams" not in self.checks:
            return
        memory = self._covering(rows[0])
        if memory is not None:
            self._use(memory, Use(operation, does, rows))

    def _note_kernel(self, operation: Operation, params: list[bytes], variables: Iterable[MemoryRecord]) -> None:
        """Record the memory that a kernel may use: the allocations whose addresses are among its arguments, and the
        variables of its module that it names."""
        if "streams" not in self.checks:
            return
        for variable in variables:
            self._use(variable, Use(operation, "uses"))
        seen = set()
        for value in params:
            for offset in range(0, len(value) - 7, 8):
                memory = self._covering(int.from_bytes(value[offset : offset + 8], "little"))
                if memory is None or memory.allocation.address in seen:
                    continue
                seen.add(memory.allocation.address)
                if memory.freeing:
                    self._mistake(operation.stream.context, _used_after_free(operation, memory))
                else:
                    self._use(memory, Use(operation, "uses"))

    def _use(self, memory: MemoryRecord, use: Use) -> None:
        operation = use.operation
        made = memory.made
        if made is not None and made.done:
            made = memory.made = None
        early = made is not None and not operation.comes_after(made)
        if made is not None and early:
            # other missing orders of this operation have the same cause and are not reported
            self._mistake(operation.stream.context, _used_before(operation, made, memory))
        for number, uses in list(memory.uses.items()):
            while uses and uses[0].operation.done:
                uses.popleft()
            if not uses:
                del memory.uses[number]
                continue
            for other in reversed(uses):
                if other.operation is operation:
                    continue  # an operation may read and write the same memory
                if (early or operation.comes_after(other.operation)) and other.operation is not operation.overlaps:
                    break
                self._compare(memory, use, other)
        memory.uses.setdefault(operation.stream.number, deque(maxlen=_KEPT)).append(use)

    def _compare(self, memory: MemoryRecord, use: Use, other: Use) -> None:
        """Compare two unordered uses: report a race, or note that it must be checked when a kernel has run."""
        if use.rows is not None and other.rows is not None:
            if "writes" in (use.does, other.does) and overlap(use.rows, other.rows):
                self._mistake(use.operation.stream.context, _race(use, other, memory))
            return
        if use.rows is None and other.rows is None:
            # two kernels: which bytes both access is known when the second has run
            use.operation.watched.append((memory, use, other))
            other.operation.watched.append((memory, other, use))
            return
        exact, kernel = (other, use) if use.rows is None else (use, other)
        exactly = not self.checks.isdisjoint(("race", "init")) and memory.allocation.size <= LARGEST
        if not exactly and exact.does == "writes" and exact.rows is not None and _covers(exact.rows, memory):
            self._mistake(use.operation.stream.context, _race(use, other, memory))
        else:
            # whether the kernel accesses those bytes is known when it has run
            kernel.operation.watched.append((memory, kernel, exact))

    def _host_reads(self, address: int, size: int) -> None:
        """Report a read by the host of memory that pending work has yet to write."""
        memory = self._covering(address) if "streams" in self.checks else None
        if memory is None:
            return
        for uses in memory.uses.values():
            for other in uses:
                late = other.does == "writes" and other.rows is not None and not other.operation.done
                if late and other.rows is not None and overlap(other.rows, (address, size, 1, size)):
                    report = host_report(
                        "result read in flight",
                        f"the host reads pinned memory before {other.operation.label} has written it: wait first",
                        "",
                        caller(),
                        others=(_other(other.operation),),
                        allocation=memory.allocation,
                    )
                    self._mistake(other.operation.stream.context, report)

    # ---- kernels as they run ----

    def _before(self, operation: Operation) -> tuple[dict[MemoryRecord, Any], Footprints | None]:
        """Called before a kernel runs: returns the contents of the memory that it shares with unordered work, and an
        object that records its footprint."""
        memories = {memory for memory, _, _ in operation.watched if 0 < len(memory.allocation.store) <= LARGEST}
        if not memories:
            return {}, None
        allocations = [memory.allocation for memory in memories]
        early = None
        if operation.overlaps is not None and "race" in self.checks:
            early = Footprints(
                m.allocation for m, _, other in operation.watched if other.operation is operation.overlaps
            )
        return {memory: memory.allocation.store.copy() for memory in memories}, Footprints(allocations, early)

    def _after(
        self,
        operation: Operation,
        place: Callable[[Any], tuple[SourcePlace, ...]],
        before: dict[MemoryRecord, Any],
        prints: Footprints | None,
    ) -> None:
        """Report races of a kernel that has run. ``place`` returns an instruction's source lines, ``before`` are the
        contents from ``_before``."""
        if prints is None:
            return
        changes: dict[MemoryRecord, Any] = {}
        for memory, old in before.items():
            allocation = memory.allocation
            if allocation.live:
                changes[memory] = changed = allocation.store != old
                # footprints are empty without the checks that record them: take the changed bytes as writes
                marks = prints.marks[allocation]
                marks[changed & (marks == 0)] = WRITE
        for memory, own, other in operation.watched:
            if memory not in changes:
                continue
            allocation, changed = memory.allocation, changes[memory]
            if own.marks is None:
                own.marks = prints.marks[allocation]
                own.wrote = wrote(own.marks)
            if other.rows is not None:
                other.wrote = other.does == "writes"
                other.marks = marks_of(other.rows, np.uint8(WRITE if other.wrote else READ), allocation)
            # the other kernel has not run yet: the marks of both are compared when it has
            if other.marks is None or not (own.wrote or other.wrote):
                continue
            found, report = prints, _race(own, other, memory)
            if other.operation is operation.overlaps:
                if prints.early is None:
                    continue
                found, report = prints.early, _unwaited(operation, other.operation, memory)
            marks = found.marks[allocation]
            bytes_ = np.flatnonzero(conflict(marks, other.marks, changed if other.rows is None else None))
            if len(bytes_):
                first = int(bytes_[0])
                report.notes.insert(0, _where(operation, found, allocation, first, len(bytes_), place))
                self._mistake(operation.stream.context, report)

    def _explain(self, operation: Operation, report: FaultReport) -> None:
        """Add the missing wait to a report of an uninitialised read, if that is the cause."""
        memory = None if report.allocation is None else self._memory.get(report.allocation.address)
        if memory is None or report.kind != "uninitialised read":
            return
        late = [
            use.operation
            for uses in memory.uses.values()
            for use in uses
            if use.does == "writes"
            and use.operation is not operation  # in-place work
            and not use.operation.done
            and not operation.comes_after(use.operation)
        ]
        if late:
            report.others += tuple(_other(o) for o in late[:1])
            report.notes.append(f"it does not wait for the queued work that writes this memory: {_ADVICE}")

    # ---- freeing ----

    def _check_free(self, memory: MemoryRecord, free: Operation | None) -> None:
        """Report a free that does not wait for pending work on the memory, then let it wait, so that the mistake has
        only one report. ``free`` is the queued free; None if the memory is freed at once."""
        if "streams" not in self.checks:
            return
        late = [
            use.operation
            for uses in memory.uses.values()
            for use in uses
            if not use.operation.done and not (free is not None and free.comes_after(use.operation))
        ]
        if not late:
            return
        last = late[-1]
        context = last.stream.context if free is None else free.stream.context
        if free is None:
            detail = "cuMemFree frees memory of a pool at once, while queued work still uses it"
        else:
            detail = f"memory is freed on {free.stream} without waiting for work on another stream that uses it"
        report = host_report(
            "freed while in use",
            detail,
            "cuMemFree" if free is None else free.label,
            caller() if free is None else free.place,
            others=(_other(last),),
            allocation=memory.allocation,
            notes=["have the freeing stream wait for the work first: array.used_on(stream), or an event"],
        )
        self._mistake(context, report)
        if free is None:
            self._scheduler.finish(late)
        else:
            free.wait_for(late)

    def _refuse_freed(self, memory: MemoryRecord, address: int) -> CallError:
        """The error for work on memory whose free is queued."""
        report = host_report(
            "use after free",
            f"{address:#x} was passed to cuMemFreeAsync already",
            "",
            caller(),
            others=(other_access("queued free", memory.freed_at),),
            allocation=memory.allocation,
        )
        return CallError.by(Result.CUDA_ERROR_INVALID_VALUE, report)


def marks_of(rows: Rows, mark: np.uint8, allocation: Allocation) -> Any:
    """The footprint of a copy or fill in an allocation's store."""
    address, width, height, pitch = rows
    marks = np.zeros(len(allocation.store), np.uint8)
    flat = marks[address - allocation.base : address - allocation.base + pitch * (height - 1) + width]
    np.ndarray((height, width), np.uint8, buffer=flat, strides=(pitch, 1))[...] = mark
    return marks


def overlap(a: Rows, b: Rows) -> bool:
    """Whether two sets of rows (address, width, height, pitch) share a byte."""
    end_a, end_b = (r[0] + r[3] * (r[2] - 1) + r[1] for r in (a, b))
    if end_a <= b[0] or end_b <= a[0]:
        return False
    if a[2] == 1 and b[2] == 1:
        return True
    # a row overlaps a row of the other set if the later one starts before the earlier one ends
    starts_a, starts_b = (r[0] + r[3] * np.arange(r[2], dtype=np.int64) for r in (a, b))
    at = np.searchsorted(starts_b, starts_a, side="right")
    before = np.where(at > 0, starts_b[np.maximum(at - 1, 0)] + b[1] > starts_a, False)
    after = np.where(at < len(starts_b), starts_b[np.minimum(at, len(starts_b) - 1)] < starts_a + a[1], False)
    return bool((before | after).any())


def _covers(rows: Rows, memory: MemoryRecord) -> bool:
    """Whether the rows are a whole allocation."""
    address, width, height, pitch = rows
    whole = address == memory.allocation.address and width * height >= memory.allocation.size
    return whole and (height == 1 or pitch == width)


def _other(operation: Operation) -> Any:
    return other_access(f"{operation.label} on {operation.stream}", operation.place)


def _vain(*streams: Stream) -> list[str]:
    """Notes on waits without effect, which may be the reason for the missing order."""
    places = [stream.vain for stream in streams if stream.vain is not None]
    return [f"the wait for an event {place} had no effect: the event had not been recorded yet" for place in places]


def _race(use: Use, other: Use, memory: MemoryRecord) -> HostReport:
    operation, earlier = use.operation, other.operation
    pinned = memory.allocation.kind == "host"
    return host_report(
        "race on pinned memory" if pinned else "race between streams",
        f"{operation.label} on {operation.stream} {use.does} {'pinned ' * pinned}memory that {earlier.label}"
        f" {other.does}, and neither waits for the other",
        operation.label,
        operation.place,
        others=(_other(earlier),),
        allocation=memory.allocation,
        notes=[*_vain(operation.stream, earlier.stream), _ADVICE],
    )


def _unwaited(operation: Operation, earlier: Operation, memory: MemoryRecord) -> HostReport:
    return host_report(
        "access before griddepcontrol.wait",
        f"{operation.label} on {operation.stream} may run at the same time as {earlier.label}, and accesses the same"
        " memory before it waits",
        operation.label,
        operation.place,
        others=(_other(earlier),),
        allocation=memory.allocation,
        notes=[
            "call cudaGridDependencySynchronize() (griddepcontrol.wait) before the access, or do not launch with "
            "programmatic=True"
        ],
    )


def _where(
    operation: Operation,
    prints: Footprints,
    allocation: Allocation,
    first: int,
    count: int,
    place: Callable[[Any], tuple[SourcePlace, ...]],
) -> str:
    """A note with the ``first`` byte in conflict of ``count`` bytes, and the line that accesses it."""
    site = prints.site(allocation, first)
    at = first + allocation.base - allocation.address
    note = f"both access {count} bytes; the first is byte {at} of the allocation"
    places = () if site is None else place(site.instruction)
    if site is not None and places:
        note += f", by a {site.kind} of {operation.label} at {places[0].file}:{places[0].line}"
        if places[0].text is not None:
            note += f"\n      {places[0].text.strip()}"
    return note


def _used_before(operation: Operation, made: Operation, memory: MemoryRecord) -> HostReport:
    return host_report(
        "used before its allocation",
        f"{operation.label} on {operation.stream} does not wait for the stream-ordered allocation of its memory",
        operation.label,
        operation.place,
        others=(_other(made),),
        allocation=memory.allocation,
        notes=[*_vain(operation.stream), _ADVICE],
    )


def _used_after_free(operation: Operation, memory: MemoryRecord) -> HostReport:
    return host_report(
        "use after free",
        f"{operation.label} was queued after the cuMemFreeAsync of memory passed to it",
        operation.label,
        operation.place,
        others=(other_access("earlier queued free", memory.freed_at),),
        allocation=memory.allocation,
    )
