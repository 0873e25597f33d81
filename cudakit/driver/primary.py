"""A retain of a primary context, which outlives the Context that made it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from cudakit.driver import at_exit
from cudakit.driver.modes import Relaxed
from cudakit.errors import check

_CAPTURE_IMPLICIT = 906  # what queries of the legacy default stream return while a blocking stream is captured


def finalizer(owner: object, release: Callable[..., object], *arguments: Any) -> weakref.finalize[Any, Any]:
    """A finalizer that is not run at exit: the driver frees all a process had, while numpy may still look at some."""
    made = weakref.finalize(owner, release, *arguments)
    made.atexit = False
    return made


class Primary:
    """One retain of a device's primary context, released when nothing holds this object any more.

    A Context holds one, and so does every pinned host block, which must not lose its memory while numpy looks at it.
    """

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.driver = driver
        self.pid = os.getpid()
        self.device = check(driver, "cuDeviceGet", driver.cuDeviceGet(ordinal))
        self.handle = check(driver, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self.device))
        self._release = finalizer(self, _release_primary, driver, self.device, self.pid)

    def quiet(self, routine: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Call a driver routine with this context pushed, whatever is current or captured, for finalizers.

        Returns its result. Never raises: None means "not called" (another process, or a driver that is already gone).
        """
        if os.getpid() != self.pid:
            return None
        try:
            if self.driver.cuCtxPushCurrent(self.handle)[0]:
                return None
            try:
                with Relaxed(self.driver):
                    result: tuple[Any, ...] = getattr(self.driver, routine)(*arguments)
                    report_later(self.driver, result)
                return result
            finally:
                self.driver.cuCtxPopCurrent()
        except Exception:
            # A finalizer cannot report, and at the interpreter's end the driver may be gone in any way.
            return None

    def attempt(self, routine: str, *arguments: Any) -> int:
        """`quiet`, for the code alone: -1 if it was not called."""
        result = self.quiet(routine, *arguments)
        return -1 if result is None else int(result[0])

    def is_capturing(self, stream: Any) -> bool:
        """Whether a stream (a driver handle) is being captured, by this library or another.

        True for the legacy default stream, too, while a stream that it waits for is captured.
        """
        result = self.quiet("cuStreamIsCapturing", stream)
        if result is None or result[0]:
            return result is not None and int(result[0]) == _CAPTURE_IMPLICIT
        return bool(int(result[1]))

    def wait(self) -> None:
        """Wait for all work of the device, for finalizers: also while another library captures.

        Every capture is broken by cuCtxSynchronize, in whatever mode. A free of memory from outside of the pool waits
        for the device too, and is allowed to a relaxed thread.
        """
        made = self.quiet("cuMemAlloc", 1)
        if made is None or made[0]:
            self.attempt("cuCtxSynchronize")
        else:
            self.attempt("cuMemFree", made[1])


def report_later(driver: Any, result: tuple[Any, ...]) -> None:
    """Have the simulated device's report of a failure that no call raises returned by the next call that waits."""
    if result[0] and hasattr(driver, "simKeepReport"):
        driver.simKeepReport()


def _release_primary(driver: Any, device: Any, pid: int) -> None:
    if os.getpid() != pid:
        return
    try:
        driver.cuDevicePrimaryCtxRelease(device)
        if hasattr(driver, "simFinish"):
            at_exit.note(driver.simFinish(run=False))
    except Exception:
        # As above: a finalizer that raises only prints noise at exit.
        return
