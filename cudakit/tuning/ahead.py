"""Compile ahead of the measurements: several configurations at the same time, in threads, because NVRTC releases the
interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Generic, TypeVar

from cudakit import system

T = TypeVar("T")


def threads_here() -> int:
    """Return the number of concurrent compiles: the CPUs of this process, except one for measuring."""
    return max(1, system.usable_cores() - 1)


class Ahead(Generic[T]):
    """Runs `work(item)` for added items in threads, and returns the items in the order in which they were added, so
    that searches with the same seed are the same."""

    def __init__(self, work: Callable[[T], object], threads: int | None = None) -> None:
        threads = threads or threads_here()
        self._work = work
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self._most = 4 * threads  # extra items, so that a slow item at the head of the queue leaves no thread idle
        self._queue: deque[tuple[T, Future[object]]] = deque()

    @property
    def room(self) -> bool:
        """Whether another item may be added."""
        return len(self._queue) < self._most

    @property
    def empty(self) -> bool:
        """Whether all items were returned."""
        return not self._queue

    def add(self, item: T) -> None:
        """Queue an item."""
        self._queue.append((item, self._pool.submit(self._work, item)))

    def next(self, timeout_s: float) -> tuple[T, BaseException | None] | None:
        """Return the next item, after its work, and the exception that the work raised; None if it takes longer than
        `timeout_s`."""
        item, future = self._queue[0]
        try:
            error = future.exception(max(0.0, timeout_s))
        except NotYet:
            return None
        self._queue.popleft()
        return item, error

    def drop(self) -> None:
        """Drop the remaining items. `close` waits for those that are being compiled."""
        self._queue.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait for the compiles that are running."""
        self._pool.shutdown(wait=True, cancel_futures=True)
