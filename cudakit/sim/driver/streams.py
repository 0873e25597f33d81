"""Streams as queues: work is kept in a graph of operations and runs when something waits for it.

An operation may run once its predecessors are done: the previous operation of its stream, the recorded work of the
events that its stream waits for, and those required by the legacy default stream. Hardware may use any order that
respects this. To expose missing waits, the scheduler uses an unexpected one: it runs the newest ready operation first,
and work with effects on the host (copies to host memory, host functions) only when something waits for it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cudakit.sim.driver.faults import OperationFault, interrupted
from cudakit.sim.driver.objects import Context, Operation, Stream
from cudakit.sim.lockstep.report import FaultReport

ORDERS = ("newest", "oldest", "random")


class ReadyOperations:
    """The operations that may run next, in the scheduler's order. Operations that have been done or blocked since they
    were added are skipped."""

    def __init__(self, order: str, choice: random.Random) -> None:
        self._sign = {"newest": -1, "oldest": 1}.get(order, 0)
        self._random = choice
        self._kept: list[tuple[int, Operation]] = []

    def put(self, operation: Operation) -> None:
        entry = self._sign * operation.serial, operation
        if self._sign:
            # serial numbers differ, so operations are never compared
            heapq.heappush(self._kept, entry)
        else:
            self._kept.append(entry)

    def first(self) -> Operation | None:
        """The operation to run next, or None. It stays here until it is done."""
        while self._kept:
            if not self._sign:
                place = self._random.randrange(len(self._kept))
                self._kept[0], self._kept[place] = self._kept[place], self._kept[0]
            operation = self._kept[0][1]
            if operation.ready:
                return operation
            self._drop_first()
        return None

    def _drop_first(self) -> None:
        if self._sign:
            heapq.heappop(self._kept)
        else:
            self._kept[0] = self._kept[-1]
            self._kept.pop()

    def compact(self, most: int) -> None:
        """Drop operations to be skipped, if there are more than ``most``."""
        if len(self._kept) > most:
            self._kept = [entry for entry in self._kept if entry[1].ready]
            if self._sign:
                heapq.heapify(self._kept)


class StreamScheduler:
    """Runs the queued work of a driver. ``lose(context, code, report)`` is called if work fails and ends its context.
    ``order`` is one of ``ORDERS``; ``seed`` makes "random" reproducible."""

    def __init__(self, lose: Callable[[Context, Any, FaultReport], None], order: str = "newest", seed: int = 0) -> None:
        if order not in ORDERS:
            raise ValueError(f"unknown order {order!r}; use one of {', '.join(ORDERS)}")
        self.order = order
        self._lose = lose
        self._random = random.Random(seed)
        # the moments at which kernels' asynchronous copies complete, apart from the order of operations
        self._moments = random.Random(seed)
        self._serial = 0
        self._busy: dict[int, Stream] = {}
        # ready operations without effects on the host: these may run at any time
        self._ready = self._none_ready()
        # ready operations with effects on the host that the current wait needs
        self._awaited = self._none_ready()
        self._needed: dict[int, Operation] = {}
        self.executed = 0
        self.waiting = 0

    def draw(self) -> int | None:
        """The seed of the moments at which the next kernel's asynchronous copies complete; None, unless the order is
        "random": as late as allowed."""
        return self._moments.getrandbits(32) if self.order == "random" else None

    def enqueue(
        self,
        stream: Stream,
        label: str,
        run: Callable[[], None] | None = None,
        *,
        after: Iterable[Operation] = (),
        **details: Any,
    ) -> Operation:
        """Add work to the end of a stream, to run after the stream's own work, ``after``, and the work that the rules
        of the legacy default stream require."""
        earlier = [operation for operation in after if not operation.done]
        if stream.last is not None:
            earlier.append(stream.last)
        context = stream.context
        if stream.legacy:
            stream.expect_no_capture(breaks=label)
            earlier.extend(s.last for s in context.all_streams() if s.blocking and s.last is not None)
        elif stream.blocking and context.legacy.last is not None:
            earlier.append(context.legacy.last)
        self._serial += 1
        operation = Operation(stream, label, run, (), self._serial, **details)
        operation.wait_for(earlier)
        stream.last = operation
        stream.pending.append(operation)
        self._busy[id(stream)] = stream
        self.waiting += 1
        self._put([operation] if operation.ready else [])
        return operation

    def _none_ready(self) -> ReadyOperations:
        return ReadyOperations(self.order, self._random)

    def _put(self, ready: Iterable[Operation]) -> None:
        """Add operations whose predecessors are all done."""
        for operation in ready:
            if not operation.visible:
                self._ready.put(operation)
            elif operation.serial in self._needed:
                self._awaited.put(operation)
        self._ready.compact(2 * self.waiting + 64)

    def pending(self) -> Iterator[Operation]:
        """The operations that are not done yet, stream by stream."""
        for stream in self._busy.values():
            yield from stream.pending

    def pending_of(self, context: Context) -> list[Operation]:
        """The last operation of every stream of a context, including destroyed streams."""
        return [s.pending[-1] for s in self._busy.values() if s.context is context and s.pending]

    def finish(self, targets: Iterable[Operation]) -> None:
        """Run until all of ``targets`` are done."""
        wanted = [operation for operation in targets if not operation.done]
        if not wanted:
            return
        self._needed, self._awaited = self._needed_by(wanted), self._none_ready()
        for operation in self._needed.values():
            if operation.visible and operation.ready:
                self._awaited.put(operation)
        while wanted:
            if wanted[-1].done:
                wanted.pop()
            else:
                self._run(self._choose([self._ready, self._awaited]))
        self._needed = {}

    def step(self, target: Operation) -> None:
        """Run ``target``, or one operation that it waits for, if it is not done: the progress that a query makes."""
        if not target.done:
            ready = self._none_ready()
            for operation in self._needed_by([target]).values():
                if operation.ready:
                    ready.put(operation)
            self._run(self._choose([ready]))

    def progress(self, most: int) -> None:
        """Run work without effects on the host until at most ``most`` operations are pending, or no more may run."""
        while self.waiting > most and self._ready.first() is not None:
            self._run(self._choose([self._ready]))

    def cancel(self, context: Context) -> None:
        """Drop the pending work of a context that was lost or destroyed; it counts as done."""
        for key, stream in list(self._busy.items()):
            if stream.context is context:
                while stream.pending:
                    self._end(stream.pending.popleft())
                del self._busy[key]

    def _end(self, operation: Operation) -> None:
        """Note that an operation is done."""
        self.waiting -= 1
        self._put(operation.finish())

    @staticmethod
    def _needed_by(targets: Iterable[Operation]) -> dict[int, Operation]:
        """``targets`` and all operations that must be done before them, by serial number."""
        needed: dict[int, Operation] = {}
        stack = list(targets)
        while stack:
            operation = stack.pop()
            if operation.done or operation.serial in needed:
                continue
            needed[operation.serial] = operation
            stack.extend(operation.after)
        return needed

    def _choose(self, sources: list[ReadyOperations]) -> Operation:
        ready = [operation for source in sources if (operation := source.first()) is not None]
        if self.order == "random":
            return self._random.choice(ready)
        choose = max if self.order == "newest" else min
        return choose(ready, key=lambda operation: operation.serial)

    def _run(self, operation: Operation) -> None:
        stream = operation.stream
        context = stream.context
        run = operation.run
        self.executed += 1
        try:
            if run is not None:
                run()
        except OperationFault as fault:
            self._lose(context, fault.code, fault.report)
            return
        except BaseException:
            # a bug in the simulator, or Ctrl-C: this call raises the exception, later calls report a lost context
            self._lose(context, *interrupted(operation.label, operation.place))
            raise
        stream.pending.popleft()
        self._end(operation)
        if not stream.pending:
            del self._busy[id(stream)]
