"""The streams that are being captured into graphs, as far as packages that `graph` builds on must know.

Work queued on a captured stream does not run. So memory cannot be allocated on it; the buffers of a captured copy must
live as long as the graph; and memory dropped during a capture is freed after it, because the graph may use it.
"""

from __future__ import annotations

from typing import Any

from cudakit.driver.primary import Primary
from cudakit.errors import GraphError

# Driver codes for a call that cannot be part of a capture, or for a broken capture.
_OF_CAPTURE = range(900, 910)


class ActiveCapture:
    """A capture in progress. kept: objects its graph keeps alive. broken: the call that broke it, empty if none did."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.broken = ""


class Captures:
    """The captures in progress in one context, by the driver's number; true if there are any.

    late: memory that was dropped during a capture, or while another library captured a stream that uses it.
    """

    def __init__(self, primary: Primary) -> None:
        self._primary: Primary | None = primary
        self._underway: dict[int, ActiveCapture] = {}
        self.late: list[object] = []

    def __bool__(self) -> bool:
        return bool(self._underway)

    def begin(self, number: int) -> ActiveCapture:
        """Record that the driver's capture `number` began."""
        made = self._underway[number] = ActiveCapture()
        return made

    def end(self, number: int) -> None:
        """Record that the driver's capture `number` ended; after the last capture, free the memory that no graph
        keeps."""
        del self._underway[number]
        self.let_go()

    def let_go(self) -> None:
        """Free memory that was dropped during captures, unless a capture is still in progress."""
        if not self._underway:
            late, self.late = self.late, []
            late.clear()

    def of(self, stream: Any) -> ActiveCapture | None:
        """Return the capture that a stream (a driver handle) is part of, or None."""
        if not self._underway or self._primary is None:
            return None
        result = self._primary.quiet("cuStreamGetCaptureInfo", stream)
        if result is None or result[0] or not int(result[1]):
            return None
        return self._underway.get(int(result[2]))

    def refuse(self, stream: Any, text: str) -> None:
        """Raise GraphError if a stream (a driver handle) is being captured, by this library or another."""
        if self._primary is not None and self._primary.is_capturing(stream):
            raise GraphError(text)

    def failed(self, routine: str, code: Any) -> None:
        """Record which call broke the captures, for the error at their end."""
        if int(code) in _OF_CAPTURE:
            for capture in list(self._underway.values()):
                name = getattr(code, "name", int(code))
                capture.broken = capture.broken or f"{routine}, which failed with {name} ({int(code)})"

    def close(self) -> None:
        """Drop the reference to the primary context, which is released with its last holder."""
        self._primary = None
        self._underway.clear()
        self.late.clear()
