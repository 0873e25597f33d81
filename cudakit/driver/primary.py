"""A retained primary context, which outlives the Context that made it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from cudakit.driver import at_exit
from cudakit.driver.modes import Relaxed
from cudakit.errors import check

_CAPTURE_IMPLICIT = 906  # returned by queries of the legacy default stream while a blocking stream is captured


def finalizer(owner: object, release: Callable[..., object], *arguments: Any) -> weakref.finalize[Any, Any]:
    """Return a finalizer that does not run at exit: the driver frees everything then, and numpy may still use some of
    the memory."""
    made = weakref.finalize(owner, release, *arguments)
    made.atexit = False
    return made


class Primary:
    """One retain of a device's primary context, released after the last reference to this object is dropped.

    A Context holds one, and so does every pinned host block, so that its memory stays valid while numpy uses it.
    """

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.driver = driver
        self.pid = os.getpid()
        self.device = check(driver, "cuDeviceGet", driver.cuDeviceGet(ordinal))
        self.handle = check(driver, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(self.device))
        self._release = finalizer(self, _release_primary, driver, self.device, self.pid)

    def quiet(self, routine: str, *arguments: Any) -> tuple[Any, ...] | None:
        """Call a driver routine with this context pushed. For finalizers: in any context, and during captures.

        Returns its result. Never raises: None means that it was not called (another process, or the driver is gone).
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
            # A finalizer cannot report errors, and at interpreter exit parts of the driver may be gone.
            return None

    def attempt(self, routine: str, *arguments: Any) -> int:
        """Call `quiet` and return only the code: -1 if the routine was not called."""
        result = self.quiet(routine, *arguments)
        return -1 if result is None else int(result[0])

    def is_capturing(self, stream: Any) -> bool:
        """Return whether a stream (a driver handle) is being captured, by this library or another.

        Also True for the legacy default stream while a stream that it waits for is captured.
        """
        result = self.quiet("cuStreamIsCapturing", stream)
        if result is None or result[0]:
            return result is not None and int(result[0]) == _CAPTURE_IMPLICIT
        return bool(int(result[1]))

    def wait(self) -> None:
        """Wait for all work of the device, even while another library captures. For finalizers.

        cuCtxSynchronize breaks every capture, in any mode. Freeing memory from outside the pool waits for the device
        too, and is allowed on a relaxed thread.
        """
        made = self.quiet("cuMemAlloc", 1)
        if made is None or made[0]:
            self.attempt("cuCtxSynchronize")
        else:
            self.attempt("cuMemFree", made[1])


def report_later(driver: Any, result: tuple[Any, ...]) -> None:
    """Make the next call that waits return the simulated device's report of a failure that no call has raised."""
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
        # As above: raising in a finalizer would only print noise at exit.
        return
