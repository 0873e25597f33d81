"""What a copy or fill works on: rows of device, pinned or pageable memory; and pinned memory that a copy will read."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.sim.driver.allocations import host_bytes
from cudakit.sim.lockstep.memory import AddressSpace

Bytes = npt.NDArray[np.uint8]


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
        """Bytes from the first to the last, gaps between rows included."""
        return self.pitch * (self.height - 1) + self.width

    @property
    def extent(self) -> tuple[int, int]:
        return self.address, self.span

    @property
    def rows(self) -> tuple[int, int, int, int]:
        return self.address, self.width, self.height, self.pitch

    def view(self) -> Bytes:
        """The bytes now, writable, as (height, width); MemoryFault where they are no longer there."""
        if self.kind == "pageable":
            flat = host_bytes(self.address, self.span)
        else:
            flat = self.space.bytes(self.address, self.span)
        rows: Bytes = np.ndarray((self.height, self.width), np.uint8, buffer=flat, strides=(self.pitch, 1))
        return rows

    def undefined(self) -> Bytes | None:
        """Which of the bytes are undefined (not 0), as (height, width); None where none is."""
        if self.kind != "device":
            return None
        found = self.space.covering(self.address, self.span)
        rows = found.undefined_rows(self.address - found.address, self.width, self.height, self.pitch)
        return None if rows is None else rows.copy()

    def define(self, like: Bytes | None = None) -> None:
        """The bytes have been written: they are as defined as those of another region, or all defined."""
        if self.kind == "device":
            found = self.space.covering(self.address, self.span)
            found.define(self.address - found.address, self.width, self.height, self.pitch, like)


class PinnedSource:
    """What an asynchronous copy will read from pinned memory: the memory itself, watched for changes unless queued work
    is to write it; or a copy, taken before something else overwrites it."""

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
    contiguous: Any = np.ascontiguousarray(data)  # a buffer, which numpy's stubs say from Python 3.12 on only
    return zlib.crc32(contiguous)


def repeated(pattern: Bytes, start: int, stop: int) -> Bytes:
    """Bytes ``start`` to ``stop`` of a pattern that repeats."""
    return pattern[np.arange(start, stop) % len(pattern)]
