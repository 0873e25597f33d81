"""Work in child processes: a kernel's fault on a GPU ends the context of its process for good."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from typing import Any

_PATIENCE = 120.0  # seconds without a result before a child is ended

Work = Callable[[int], Iterator[tuple[int, Any]]]


def resumed(count: int, work: Work, lost: Callable[[str], Any]) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) for the numbers 0 to count - 1.

    work(start) runs in a child process and yields (number, value) from `start` on. It may end early, after a fault:
    another child then goes on with the next number. lost(text) makes the value of a number at which a child died. The
    processes are forked, so this one must not have used the GPU.

    Raises:
        RuntimeError: If work raised, which a fault does not.
    """
    start = 0
    while start < count:
        first = start
        for number, value in _child(work, start):
            start = number + 1
            yield number, value
        if start == first:
            yield start, lost("the process died, or gave no result in time")
            start += 1


def _child(work: Work, start: int) -> Iterator[tuple[int, Any]]:
    """Yield what work(start) yields in a child process, until it ends."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        ours.close()
        try:
            for item in work(start):
                theirs.send((item, ""))
        except Exception:
            theirs.send((None, traceback.format_exc()))
        theirs.close()

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        while ours.poll(_PATIENCE):
            item, error = ours.recv()
            if error:
                raise RuntimeError(f"in a child process:\n{error}")
            yield item
    except EOFError:
        process.join(_PATIENCE)
    finally:
        process.kill()
        process.join()
        ours.close()
