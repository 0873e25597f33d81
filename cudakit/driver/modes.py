"""Capture modes: lets a thread make calls that another library's capture would forbid."""

from __future__ import annotations

from typing import Any


class Relaxed:
    """`with Relaxed(driver):` lets this thread make calls that a capture in another mode than RELAXED forbids.

    Such a capture (torch's are GLOBAL) forbids calls that may depend on work outside it, and is broken by them:
    allocating, freeing, unloading modules, waiting, querying an event. GLOBAL forbids them on other threads too. In the
    block they are allowed, except on a captured stream, and on the legacy default stream if it waits for one.
    cuCtxSynchronize still breaks every capture. Use it for calls whose effect no graph needs to repeat.
    """

    __slots__ = ("_before", "_exchange", "_mode")

    def __init__(self, driver: Any) -> None:
        self._exchange = driver.cuThreadExchangeStreamCaptureMode
        self._mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

    def __enter__(self) -> None:
        # A failure here is not raised: the calls in the block return it if it affects them.
        code, before = self._exchange(self._mode)
        self._before = None if code else before

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._exchange(self._before)
