"""The operands of copies and fills: rows of device, pinned or pageable memory, and pinned sources of pending copies."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.sim.driver.allocations import host_bytes
from cudakit.sim.lockstep.memory import AddressSpace

Bytes = npt.NDArray[np.uint8]
# fills memory that must not be read yet, in units of 2 bytes: a quiet NaN in every floating-point type
POISON = 0xFFFA


@dataclass
class Region:
    """``height`` rows of ``width`` bytes, ``pitch`` bytes apart, of "device", "pinned" or "pageable" memory."""

    kind: str
    address: int
    width: int
    height: int
    pitch: int
    space: AddressSpace

    @property
    def span(self) -> int:
        """Bytes from the first to the last byte, including the gaps between rows."""
        return self.pitch * (self.height - 1) + self.width

    @property
    def extent(self) -> tuple[int, int]:
        return self.address, self.span

    @property
    def rows(self) -> tuple[int, int, int, int]:
        return self.address, self.width, self.height, self.pitch

    def view(self) -> Bytes:
        """A writable view of the bytes, as (height, width); raises MemoryFault if the memory has been freed."""
        if self.kind == "pageable":
            flat = host_bytes(self.address, self.span)
        else:
            flat = self.space.bytes(self.address, self.span)
        rows: Bytes = np.ndarray((self.height, self.width), np.uint8, buffer=flat, strides=(self.pitch, 1))
        return rows

    def poison(self) -> None:
        """Fill the bytes with ``POISON``."""
        for rows, contents in self._poisoned():
            rows[...] = contents

    def is_poison(self) -> bool:
        """Whether all bytes still are those of ``POISON``."""
        return all(bool((rows == contents).all()) for rows, contents in self._poisoned())

    def _poisoned(self) -> Iterator[tuple[Bytes, Bytes]]:
        """The rows, grouped by whether their addresses are even, each group with the bytes of a poisoned row."""
        view, step = self.view(), 1 + self.pitch % 2
        pattern = np.resize(np.array([POISON], "<u2").view(np.uint8), self.width + 1)
        for first in range(step):
            odd = (self.address + first * self.pitch) % 2
            yield view[first::step], pattern[odd : odd + self.width]

    def undefined(self) -> Bytes | None:
        """A table of the uninitialised bytes (not 0), as (height, width); None if there are none."""
        if self.kind != "device":
            return None
        found = self.space.covering(self.address, self.span)
        rows = found.undefined_rows(self.address - found.address, self.width, self.height, self.pitch)
        return None if rows is None else rows.copy()

    def define(self, like: Bytes | None = None) -> None:
        """Mark the bytes as initialised; with ``like``, the table of a copy's source, only those that are 0 in it."""
        if self.kind == "device":
            found = self.space.covering(self.address, self.span)
            found.define(self.address - found.address, self.width, self.height, self.pitch, like)


class PinnedSource:
    """The pinned source of an asynchronous copy: the memory itself, or a copy of it, taken before it is overwritten.
    ``watched``: report changes by the host before the copy runs; not possible if queued work will write the memory."""

    def __init__(self, region: Region, watched: bool) -> None:
        self.region = region
        self.kept: Bytes | None = None
        self.sum = _checksum(region.view()) if watched else None

    def secure(self) -> None:
        if self.kept is None:
            self.kept = self.region.view().copy()

    def read(self) -> Bytes:
        return self.kept if self.kept is not None else self.region.view()

    def changed(self) -> bool:
        return self.sum is not None and _checksum(self.read()) != self.sum


def _checksum(data: Bytes) -> int:
    contiguous: Any = np.ascontiguousarray(data)  # Any: numpy's stubs declare it a buffer only from Python 3.12 on
    return zlib.crc32(contiguous)


def repeated(pattern: Bytes, start: int, stop: int) -> Bytes:
    """Bytes ``start`` to ``stop`` of a pattern that repeats."""
    return pattern[np.arange(start, stop) % len(pattern)]
