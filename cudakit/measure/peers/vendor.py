"""The common part of cuBLAS and cuFFT as peers: version 0 of a ladder, through `cudakit.libs` on cudakit's arrays."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost


@dataclass(frozen=True)
class VendorPeer(ABC):
    """A library of NVIDIA with a family's options."""

    options: Mapping[str, Any]
    name: str = ""
    idea: str = "NVIDIA's library"
    rung: int | None = 0
    arrays: str = "cudakit"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if importlib.util.find_spec("nvmath") is None:
            return "nvmath-python is not installed: pip install 'cudakit[libs]'"
        return None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        yield

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]

    @abstractmethod
    def call(self, arrays: ArraySet, stream: Stream) -> Call: ...
