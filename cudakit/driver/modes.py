"""Capture modes: calls that another library's capture would forbid, made on a thread that is relaxed for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cudakit.errors import check

# Routines that queue work on a stream, and so are no breach of a capture on another.
QUEUED = frozenset(("cuMemFreeAsync", "cuStreamWaitEvent", "cuEventRecord"))


@contextlib.contextmanager
def relaxed(driver: Any) -> Iterator[None]:
    """Let this thread do in the block what a capture in another mode than RELAXED forbids, and breaks at.

    Such a capture (torch's are GLOBAL) allows no call that may depend on work which it does not see: loading and
    unloading modules, allocating, freeing, waiting, querying an event; GLOBAL not even from other threads. In the block
    these are allowed, except on what is captured itself. So it is for calls whose effect no graph needs to repeat.
    """
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    routine = "cuThreadExchangeStreamCaptureMode"
    before = check(driver, routine, driver.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
