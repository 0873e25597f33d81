"""The lock of a simulated driver.

A real driver is C: no Python runs in the middle of a call. Here the garbage collector could run then, and the
finalizers that it runs call the driver, on the same thread, while its tables are half changed. So nothing is collected
while a call is under way.
"""

from __future__ import annotations

import gc
import os
import threading

# Reentrant, for the collector may run between taking it and stopping the collector.
_gate = threading.RLock()
_inside = 0
_resume = False


class DriverLock:
    """Holds off the garbage collector, and has a reentrant lock beside it: ``with lock.raw, lock:`` takes both.

    The lock itself is taken by C code, which an interrupt (Ctrl-C) cannot come between; were it taken in ``__enter__``,
    one that comes before the block has begun would leave it taken for good.
    """

    __slots__ = ("raw",)

    def __init__(self) -> None:
        self.raw = threading.RLock()

    def __enter__(self) -> None:
        global _inside, _resume
        with _gate:
            if _inside == 0:
                _resume = gc.isenabled()
                gc.disable()
            _inside += 1

    def __exit__(self, *_: object) -> None:
        global _inside
        with _gate:
            _inside -= 1
            if _inside == 0 and _resume:
                # The call is over, so a finalizer that runs from here on finds the driver at rest.
                gc.enable()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have been inside: it is not in this process.
    global _gate, _inside
    _gate = threading.RLock()
    if _inside:
        _inside = 0
        if _resume:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
