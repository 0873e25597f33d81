"""Streams as queues: work is kept in a graph of operations and runs when something waits for it.

An operation may run once the operations it comes after are done: the one before it in its stream, the recorded work of
the events its stream waits for, and what the legacy default stream demands. Any order that respects this is one that
hardware may take. The scheduler takes the least expected: of the operations ready it runs the newest first, and work
that the host can see (copies to host memory, host functions) only when somebody waits for it. So a missing wait shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cudakit.sim.driver.faults import OperationFault, interrupted
from cudakit.sim.driver.objects import Context, Operation, Stream
from cudakit.sim.lockstep.report import FaultReport

ORDERS = ("newest", "oldest", "random")


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
        self.executed = 0

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
        return operation

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
        needed = self._needed(wanted)
        while any(not operation.done for operation in wanted):
            self._run(self._choose(needed, only_needed=False))

    def step(self, target: Operation) -> None:
        """Run one operation that ``target`` waits for (or is), if it is not done: what a query does."""
        if not target.done:
            self._run(self._choose(self._needed([target]), only_needed=True))

    def cancel(self, context: Context) -> None:
        """Drop all pending work of a context that was lost or destroyed: it counts as done."""
        for key, stream in list(self._busy.items()):
            if stream.context is context:
                for operation in stream.pending:
                    operation.finish()
                stream.pending.clear()
                del self._busy[key]

    @staticmethod
    def _needed(targets: Iterable[Operation]) -> set[int]:
        needed: set[int] = set()
        stack = list(targets)
        while stack:
            operation = stack.pop()
            if operation.done or operation.serial in needed:
                continue
            needed.add(operation.serial)
            stack.extend(operation.after)
        return needed

    def _choose(self, needed: set[int], *, only_needed: bool) -> Operation:
        ready = [
            head
            for stream in self._busy.values()
            if (head := stream.pending[0]).ready and (head.serial in needed or not (only_needed or head.visible))
        ]
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
        operation.finish()
        if not stream.pending:
            del self._busy[id(stream)]
