"""StreamSet: the streams that use something, which must not be freed before their work is done."""

from __future__ import annotations

import threading

from cudakit.driver.stream import PER_THREAD_DEFAULT, Event, Stream, StreamEnd
from cudakit.errors import NOT_READY

# Reentrant: the garbage collector may run a finalizer that takes it again.
_lock = threading.RLock()


class StreamSet:
    """Streams that use something. cudakit's own are held by their ends (StreamEnd), so that they are not kept alive.

    A stream that was closed or dropped stays in the set until its work is done, which is checked as the set grows.
    """

    __slots__ = ("_ends", "_limit")

    #: Finished streams are looked for when the set has this many.
    MANY = 16

    def __init__(self) -> None:
        self._ends: tuple[Stream | StreamEnd, ...] = ()
        self._limit = self.MANY

    @property
    def others(self) -> tuple[Stream | StreamEnd, ...]:
        """Its streams, or the end of each that was closed or dropped."""
        return tuple(end if isinstance(end, Stream) else end.stream or end for end in self._ends)

    def add(self, stream: Stream) -> None:
        """Add a stream. Never waits."""
        end = stream.end
        if end is None:
            if self._knows(stream):
                return
        elif end in self._ends:
            return
        with _lock:
            if len(self._ends) >= self._limit:
                self.prune()
            if end is None or end not in self._ends:
                self._ends = (*self._ends, stream if end is None else end)

    def _knows(self, stream: Stream) -> bool:
        """Return whether a foreign stream is in the set and, if `stream` has an owner, the set's entry has one too."""
        return any(
            known is stream
            or (known.foreign and int(known) == int(stream) and (known.owner is not None or stream.owner is None))
            for known in self._ends
        )

    def prune(self) -> None:
        """Remove the streams that were closed or dropped and whose work is done. Never raises and never waits."""
        with _lock:
            self._ends = tuple(stream for stream in self._ends if stream.foreign or not _is_done(stream))
            self._limit = len(self._ends) + max(self.MANY, len(self._ends) // 4)

    def waits(self) -> list[Stream | Event]:
        """Return the streams and events to wait for: its streams, and the ends of those closed or dropped."""
        found = (end.last if end.closed else end if isinstance(end, Stream) else end.stream for end in self._ends)
        return [thing for thing in found if thing is not None]


def keeps_its_handle(stream: Stream | StreamEnd) -> bool:
    """Return whether a stream's handle may be used: cudakit's own, a default stream, or kept alive by its owner."""
    return not stream.foreign or stream.owner is not None or int(stream) <= PER_THREAD_DEFAULT


def _is_done(end: Stream | StreamEnd) -> bool:
    return (
        end.closed
        and end.last is not None
        and end.last.alive
        and end.context.attempt("cuEventQuery", end.last.handle) != NOT_READY
    )
