"""The end of the process: runs work still queued on simulated devices, and exits with status 1 after an unseen failure.

Without this, a script that never waits for its last launch would end with status 0 and its kernel would never run.
A process under pytest is left alone: pytest sets its status, and tests leave devices in any state on purpose. It
has no effect in a process that ends by os._exit() or by a signal.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_drivers: weakref.WeakSet[Any] = weakref.WeakSet()
_failures: list[str] = []  # not on stderr yet
_failed = False
_armed = False
_status: int | None = None  # the status that the script passed to sys.exit()


def watch(driver: Any) -> None:
    """Run the work queued on `driver`, a simulated one, when the interpreter exits."""
    global _armed
    if _under_pytest():
        return
    _drivers.add(driver)
    if not _armed:
        _armed = True
        _note_status()
        atexit.register(_finish_rest)
        atexit.register(_finish)
        # Called when the interpreter starts to exit, before threads are joined. Exit handlers run last in, first out.
        early = getattr(threading, "_register_atexit", None)
        if early is not None:
            with suppress(RuntimeError):  # the interpreter exits already
                early(_come_first)


def note(reports: Iterable[Any]) -> None:
    """Report failures that no call has raised when the process exits, and set its exit status to 1."""
    global _failed
    texts = [str(report) for report in reports]
    if _armed:
        _failures.extend(texts)
        _failed = _failed or bool(texts)


def warned() -> None:
    """Set the exit status to 1, as `note` does, for a failure that a warning has reported."""
    global _failed
    _failed = _armed


def _under_pytest() -> bool:
    # A script started by a test inherits these variables, but has not imported pytest.
    return "_pytest" in sys.modules and not {"PYTEST_VERSION", "PYTEST_CURRENT_TEST"}.isdisjoint(os.environ)


def _note_status() -> None:
    """Record the status that the main thread passes to sys.exit(), which exit handlers cannot read."""
    leave = sys.exit

    def exit(status: Any = None, /) -> None:
        global _status
        if threading.current_thread() is threading.main_thread():
            _status = status if isinstance(status, int) else int(status is not None)
        leave(status)

    sys.exit = exit  # type: ignore[assignment]


def _come_first() -> None:
    atexit.unregister(_finish)
    atexit.register(_finish)


def _finish_rest() -> None:
    """Run `_finish` once more, for work queued by exit handlers that ran after it."""
    _finish(others=False)  # the other handlers would run twice


def _finish(others: bool = True) -> None:
    """Run queued work, report failures, and end the process here if its status would be 0.

    others: run the other exit handlers before ending the process.
    """
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt  # the script's status is already SIGINT's
    usual = 1
    if not interrupted:
        try:
            for driver in list(_drivers):
                note(driver.simFinish())
        except KeyboardInterrupt:
            usual = 128 + signal.SIGINT
            note(["interrupted: the work queued on the simulated device was not finished"])
        except Exception as error:
            note([f"{type(error).__name__}: {error}"])
    if not _failed:
        return
    # After an exception the status is 1 too.
    status = (_status or 0) & 0xFF or usual
    _flush()  # the script's own output comes first
    with suppress(AttributeError, OSError, ValueError):
        for text in _failures:
            sys.stderr.write(f"{text}\n")
        sys.stderr.write(f"cudakit: queued work failed and no call waited for it; exiting with status {status}\n")
    _failures.clear()
    if interrupted:
        return
    atexit.unregister(_finish)
    atexit.unregister(_finish_rest)
    with suppress(Exception):
        if others:
            atexit._run_exitfuncs()  # handlers of other libraries: nothing runs after os._exit
    _flush()
    # An exit handler has no other way to change the status.
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _after_fork_in_child() -> None:
    # The parent finishes and reports its own work.
    global _failed
    _drivers.clear()
    _failures.clear()
    _failed = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
