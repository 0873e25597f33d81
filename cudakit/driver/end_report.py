"""The warnings when a simulated device is closed: leaks, and failures that no call has raised."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from typing import Any

from cudakit.driver.in_flight import InFlight
from cudakit.driver.primary import Primary
from cudakit.errors import LeakWarning, UnseenFault


def end_warnings(primary: Primary, in_flight: InFlight, own: Iterable[Any]) -> list[Warning]:
    """Return a LeakWarning for objects still referenced, and an UnseenFault per failure that no call has raised.

    own: objects that cudakit made for itself, which are not leaks. Waits for the device. Empty in a forked child.
    """
    if os.getpid() != primary.pid:
        return []
    primary.attempt("cuCtxSynchronize")
    in_flight.prune()
    report = _held(primary, in_flight, own)
    if report is not None:
        # Garbage awaiting collection is not a leak.
        gc.collect()
        primary.attempt("cuCtxSynchronize")
        report = _held(primary, in_flight, own)
    unseen: list[Warning] = [UnseenFault(fault) for fault in primary.driver.simUnseenReports(primary.handle)]
    return unseen if report is None else [*unseen, LeakWarning(report)]


def _held(primary: Primary, in_flight: InFlight, own: Iterable[Any]) -> Any:
    handles = {int(thing.handle) for thing in own} | in_flight.events()
    return primary.driver.simEndReport(primary.handle, handles)
