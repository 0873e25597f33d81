"""The interface of a peer: another package's implementation of a family."""

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
#: Measures the milliseconds per launch of several launches in turns, to choose between settings.
Cost = Callable[[Sequence[Call]], float]


class Peer(Protocol):
    """One implementation of a family by another package."""

    @property
    def name(self) -> str:
        """The row's variant, such as peer:torch."""
        ...

    @property
    def idea(self) -> str:
        """A description for tables."""
        ...

    @property
    def rung(self) -> int | None:
        """0 for the vendor library that is version 0 of a ladder, else None."""
        ...

    @property
    def arrays(self) -> str:
        """The library of the arrays that `call` uses: torch, cupy or cudakit."""
        ...

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Return the reason why the peer does not support `shape`, or None."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Return a context in which the package queues its work on `stream`."""
        ...

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        """Return one launch per set of arrays, on `stream`."""
        ...

    def call(self, arrays: ArraySet, stream: Stream) -> Call | None:
        """Return a user's call, to measure the host's cost; None if users have no such call."""
        ...


def call_of_work(work: Callable[..., Any], arrays: Sequence[Any], options: Mapping[str, Any]) -> Call:
    """Return a function that does a peer's work on its own arrays, as a user would write it.

    work(*inputs, *outputs, **options) is called once here. If `work` needs a set-up per set of arrays, it returns a
    function, which is returned from here. Otherwise the returned function calls `work` again.
    """
    made = work(*arrays, **options)
    return made if callable(made) else functools.partial(work, *arrays, **options)
