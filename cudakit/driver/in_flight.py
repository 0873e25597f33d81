"""Host objects kept alive for asynchronous copies that still read or write them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from cudakit.driver.captures import Captures
from cudakit.driver.primary import Primary
from cudakit.errors import NOT_READY


class InFlight:
    """Host objects used by asynchronous copies in flight; each is kept alive until an event shows its copy is done."""

    #: Finished copies are looked for when this many objects, or this many bytes, are held, and at each synchronize().
    MANY = 64
    MANY_BYTES = 64 << 20

    def __init__(self, primary: Primary, captures: Captures) -> None:
        self._captures = captures
        # Dropped by close(), since the primary context is released with its last holder.
        self._primary: Primary | None = primary
        self._held: deque[tuple[int, Any, object]] = deque()
        self._spare: list[Any] = []
        self._bytes = 0  # total size of the held objects
        self._most, self._most_bytes = self.MANY, self.MANY_BYTES
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, stream: Any, kept: object) -> None:
        """Keep `kept` alive until the work now queued on `stream` (a driver handle) is done. Never raises.

        If the stream is being captured, the graph keeps it. A graph of another library keeps nothing: the caller must
        keep the objects that its launches use.
        """
        primary = self._primary
        if primary is None:
            return
        capture = self._captures.of(stream) if self._captures else None
        if capture is not None:
            capture.kept.append(kept)
            return
        if primary.is_capturing(stream):
            return  # an event recorded there would never complete
        if len(self._held) >= self._most or self._bytes >= self._most_bytes:
            self.prune()
            # Raise the limits above what is still in flight, so that the next copies do not each search it again.
            self._most = len(self._held) + max(self.MANY, len(self._held) // 4)
            self._most_bytes = self._bytes + max(self.MANY_BYTES, self._bytes // 4)
        try:
            event = self._spare.pop()
        except IndexError:
            flags = int(primary.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            made = primary.quiet("cuEventCreate", flags)
            event = None if made is None or made[0] else made[1]
        if event is not None and primary.attempt("cuEventRecord", event, stream):
            primary.attempt("cuEventDestroy", event)
            event = None
        if event is None:
            # No event could be made: wait for the copy instead.
            primary.attempt("cuStreamSynchronize", stream)
            return
        self._held.append((int(stream), event, kept))
        self._bytes += _size(kept)

    def prune(self, stream: int | None = None) -> None:
        """Release the objects whose copies are done (of one stream, or all). Never raises and never waits."""
        primary = self._primary
        if primary is None or not self._held or not self._lock.acquire(blocking=False):
            return
        let_go = []
        try:
            for _ in range(len(self._held)):
                entry = self._held.popleft()
                other = stream is not None and entry[0] != stream
                if other or primary.attempt("cuEventQuery", entry[1]) == NOT_READY:
                    self._held.append(entry)
                else:
                    self._spare.append(entry[1])
                    let_go.append(entry[2])
                    self._bytes -= _size(entry[2])
            if not self._held:
                self._bytes = 0
        finally:
            self._lock.release()
        # Dropped outside the lock, because the last reference to an object may run any finalizer.
        let_go.clear()

    def let_go(self) -> None:
        """Release everything without waiting: the context is lost, and its events with it."""
        held = list(self._held)
        self._held.clear()
        self._bytes = 0
        self._spare.clear()
        held.clear()

    def events(self) -> set[int]:
        """Return the handles of the events it owns."""
        return {int(event) for event in (*self._spare, *(entry[1] for entry in self._held))}

    def close(self) -> None:
        """Wait for all copies, release the objects, and destroy the events."""
        primary, self._primary = self._primary, None
        if primary is None:
            return
        if self._held:
            primary.attempt("cuCtxSynchronize")
        while self._held:
            self._spare.append(self._held.popleft()[1])
        while self._spare:
            primary.attempt("cuEventDestroy", self._spare.pop())


def _size(kept: object) -> int:
    """Return the bytes of a host array; 0 for anything else."""
    return int(getattr(kept, "nbytes", 0))
