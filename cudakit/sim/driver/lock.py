"""The lock of a simulated driver.

The driver is Python code, so the garbage collector could run in the middle of a call. Finalizers would then call the
driver on the same thread while its tables are inconsistent. The collector is therefore disabled during calls.
"""

from __future__ import annotations

import gc
import os
import threading

# Reentrant, since the collector may run after the lock is taken and before the collector is disabled.
_gate = threading.RLock()
_inside = 0
_resume = False


class DriverLock:
    """Disables the garbage collector; ``raw`` is a reentrant lock. ``with lock.raw, lock:`` takes both.

    ``raw`` is a separate lock so that C code takes it, which an interrupt (Ctrl-C) cannot stop halfway. If
    ``__enter__`` took it, an interrupt between that call and the start of the block would leave it locked forever.
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
                # The call has ended: a finalizer that runs from here on finds consistent tables.
                gc.enable()


def _after_fork_in_child() -> None:
    # A thread of the parent, which does not exist in the child, may have held the lock.
    global _gate, _inside
    _gate = threading.RLock()
    if _inside:
        _inside = 0
        if _resume:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
