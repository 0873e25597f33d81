"""What others offer for the same work, timed beside ours in the same run: cuBLAS, CuPy, torch and Triton, where
installed.

A peer works on our arrays, without a copy, and on our stream, so it is checked and timed by the very code that checks
and times our kernels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
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


def peers_of(family: str, ordinal: int, options: Mapping[str, Any]) -> list[Peer]:
    """The peers of `family` at its `options` whose package is installed and sees GPU number `ordinal`. cuBLAS, which is
    what 100 % means for a product, is among them even where its bindings are not installed: its row then says so."""
    from cudakit.measure.peers import with_cublas

    peers: list[Peer] = [*with_cublas.peers(family, options)]
    if importlib.util.find_spec("cupy") is not None:
        from cudakit.measure.peers import with_cupy

        if with_cupy.sees(ordinal):
            peers += with_cupy.peers(family, ordinal, options)
    if importlib.util.find_spec("torch") is None:
        return peers
    from cudakit.measure.peers import with_torch

    if not with_torch.sees(ordinal):
        return peers
    peers += with_torch.peers(family, ordinal, options)
    if importlib.util.find_spec("triton") is not None:
        from cudakit.measure.peers import with_triton

        peers += with_triton.peers(family, ordinal, options)
    return peers
