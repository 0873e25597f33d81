"""The interface of a peer: another package's way to do a family's work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cudakit.driver.stream import Stream
from cudakit.memory.array import DeviceArray

#: The arrays of one call: inputs and output (a tuple of several outputs).
ArraySet = tuple[list[DeviceArray], Any]
#: A call that queues the work.
Call = Callable[[], object]
#: The milliseconds that launches take, in turn: for choosing between settings.
Cost = Callable[[Sequence[Call]], float]


class Peer(Protocol):
    """One way another package does a family's work."""

    @property
    def name(self) -> str:
        """The row's variant: peer:torch and the like."""
        ...

    @property
    def idea(self) -> str:
        """What it is, in the table's words."""
        ...

    @property
    def rung(self) -> int | None:
        """0 for the vendor's library that a ladder is measured against, or None."""
        ...

    @property
    def arrays(self) -> str:
        """The library whose arrays `call` is given: torch, cupy or cudakit."""
        ...

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Why it cannot do `shape`, or None."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within it, the package queues its work on `stream`."""
        ...

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        """A launch for each set, on `stream`."""
        ...

    def call(self, arrays: ArraySet, stream: Stream) -> Call | None:
        """The call as its user writes it, for the host's cost of it; None if nothing that a user calls does this."""
        ...


def call_of_work(work: Callable[..., Any], arrays: Sequence[Any], options: Mapping[str, Any]) -> Call:
    """The call that does a peer's work on its own arrays, as its user writes it.

    work(*inputs, *outputs, **options) is called once here. If it returns a function, that is the call: for work that
    has something to set up once per set of arrays. Otherwise calling it again is.
    """
    made = work(*arrays, **options)
    return made if callable(made) else functools.partial(work, *arrays, **options)
