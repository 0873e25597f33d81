"""Which streams are being captured into graphs: what the layers below `graph` must know of it.

While a stream is captured, nothing it is given runs. So memory cannot be made on it; what a copy reads or writes must
be kept for as long as the graph is; and memory that is dropped meanwhile is freed once the capture has ended, since the
graph may have it among its arguments.
"""

from __future__ import annotations

from typing import Any

from cudakit.driver.primary import Primary
from cudakit.errors import GraphError

# Codes by which a driver says that a call cannot be part of a capture, or that the capture is broken.
_OF_CAPTURE = range(900, 910)


class ActiveCapture:
    """A capture that is under way. kept: what its graph keeps alive. broken: the call that broke it, "" if none did."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.broken = ""


class Captures:
    """The captures that are under way in one context, by the driver's number; true while there are any.

    late: memory that was dropped meanwhile, or while another library captured a stream that uses it.
    """

    def __init__(self, primary: Primary) -> None:
        self._primary: Primary | None = primary
        self._underway: dict[int, ActiveCapture] = {}
        self.late: list[object] = []

    def __bool__(self) -> bool:
        return bool(self._underway)

    def begin(self, number: int) -> ActiveCapture:
        """Note that the driver's capture `number` began."""
        made = self._underway[number] = ActiveCapture()
        return made

    def end(self, number: int) -> None:
        """Note that it ended; with the last of them, let go of the memory that no graph keeps."""
        del self._underway[number]
        self.let_go()

    def let_go(self) -> None:
        """Free memory that was dropped during captures, once no capture is under way; keep what one may still use."""
        if not self._underway:
            late, self.late = self.late, []
            late.clear()

    def of(self, stream: Any) -> ActiveCapture | None:
        """The capture that a stream (a driver handle) is part of, or None."""
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
        """Note what broke the captures, for the error at their end."""
        if int(code) in _OF_CAPTURE:
            for capture in list(self._underway.values()):
                name = getattr(code, "name", int(code))
                capture.broken = capture.broken or f"{routine}, which failed with {name} ({int(code)})"

    def close(self) -> None:
        """Let go of the primary context, which is released with its last holder."""
        self._primary = None
        self._underway.clear()
        self.late.clear()
