"""Streams as queues: work is kept in a graph of operations and runs when something waits for it.

An operation may run once the operations it comes after are done: the one before it in its stream, the recorded work of
the events its stream waits for, and what the legacy default stream demands. Any order that respects this is one that
hardware may take. The scheduler takes the least expected: of the operations ready it runs the newest first, and work
that the host can see (copies to host memory, host functions) only when somebody waits for it. So a missing wait shows.
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
    """Operations that may run next, in the order in which they are to. Those that were done or blocked since they were
    put here are passed over."""

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
        """The one that is to run next, or None. It is passed over once it is done."""
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
        """Drop what is passed over, if there are more than ``most``."""
        if len(self._kept) > most:
            self._kept = [entry for entry in self._kept if entry[1].ready]
            if self._sign:
                heapq.heapify(self._kept)


class StreamScheduler:
    """All queued work of a driver. ``lose(context, code, report)`` ends the context of work that failed. ``order`` is
    one of ``ORDERS``; ``seed`` makes "random" repeatable."""

    def __init__(self, lose: Callable[[Context, Any, FaultReport], None], order: str = "newest", seed: int = 0) -> None:
        if order not in ORDERS:
            raise ValueError(f"no order {order!r}; there are {', '.join(ORDERS)}")
        self.order = order
        self._lose = lose
        self._random = random.Random(seed)
        self._serial = 0
        self._busy: dict[int, Stream] = {}
        # that the host cannot see: these may run at any time
        self._ready = self._none_ready()
        # that it can, and that what is waited for now needs
        self._awaited = self._none_ready()
        self._needed: dict[int, Operation] = {}
        self.executed = 0
        self.waiting = 0

    def enqueue(
        self,
        stream: Stream,
        label: str,
        run: Callable[[], None] | None = None,
        *,
        after: Iterable[Operation] = (),
        **details: Any,
    ) -> Operation:
        """Add work at the end of a stream, after what the stream, the legacy default stream and ``after`` demand."""
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
        """Note operations whose predecessors are all done."""
        for operation in ready:
            if not operation.visible:
                self._ready.put(operation)
            elif operation.serial in self._needed:
                self._awaited.put(operation)
        self._ready.compact(2 * self.waiting + 64)

    def pending(self) -> Iterator[Operation]:
        """Everything not done yet, stream by stream."""
        for stream in self._busy.values():
            yield from stream.pending

    def pending_of(self, context: Context) -> list[Operation]:
        """The last operation of every stream of a context, streams destroyed meanwhile included."""
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
        """Run one operation that ``target`` waits for (or is), if it is not done: what a query does."""
        if not target.done:
            ready = self._none_ready()
            for operation in self._needed_by([target]).values():
                if operation.ready:
                    ready.put(operation)
            self._run(self._choose([ready]))

    def progress(self, most: int) -> None:
        """Run work that the host cannot see until at most ``most`` operations wait, or none of them may run."""
        while self.waiting > most and self._ready.first() is not None:
            self._run(self._choose([self._ready]))

    def cancel(self, context: Context) -> None:
        """Drop all pending work of a context that was lost or destroyed: it counts as done."""
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
        """By serial number, the operations that must be done for ``targets`` to be, and these."""
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
            # a bug of the simulator, or Ctrl-C: the caller sees the exception, later calls that the context is lost
            self._lose(context, *interrupted(operation.label, operation.place))
            raise
        stream.pending.popleft()
        self._end(operation)
        if not stream.pending:
            del self._busy[id(stream)]
