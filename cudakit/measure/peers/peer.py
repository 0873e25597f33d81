"""The interface of a peer: another package's way to do a family's work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.timing import GpuTimer, Launch
    from cudakit.memory.array import DeviceArray


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

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        """Why it cannot do `shape`, or None."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within it, the package queues its work on `stream`."""
        ...

    def bind(self, sets: Sequence[tuple[list[DeviceArray], DeviceArray]], timer: GpuTimer) -> list[Launch]:
        """A launch for each (inputs, output). The timer is for choosing between settings."""
        ...
