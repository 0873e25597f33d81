"""Samples: the launches of the example program and their expected results, recorded on the simulated device.

A `Recorder` records the arrays and launches of one run on the simulated device. The resulting Sample has the bytes of
each argument (pointers and tensor maps are stored as places in the buffers), and the expected contents of the buffers
with tolerances.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.launch.kernel import Kernel
from cudakit.memory.array import DeviceArray
from cudakit.memory.tensor_map import TensorMap


@dataclass(frozen=True)
class Buffer:
    """One allocation of a sample. before: its bytes before the first kernel. expected: the elements (of `dtype`) after
    the last kernel, as float64 or integers. tolerance: the largest difference allowed per element. Both are None if the
    buffer is not compared."""

    name: str
    before: bytes
    dtype: str = ""
    expected: np.ndarray[Any, Any] | None = None
    tolerance: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Place:
    """A pointer into a buffer: the buffer's number, and the offset in bytes from the buffer's start."""

    buffer: int
    offset: int


@dataclass(frozen=True)
class Map:
    """A tensor map, which the program encodes: the place of its tensor, and the other arguments of
    cuTensorMapEncodeTiled. modes: interleave, swizzle, promotion and fill."""

    place: Place
    data_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    modes: tuple[int, int, int, int]


@dataclass(frozen=True)
class Call:
    """One launch: the number of its entry in the bundle, its configuration, and each argument as bytes, a Place or a
    Map."""

    entry: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int]
    arguments: tuple[bytes | Place | Map, ...]


@dataclass(frozen=True)
class Sample:
    """A run of one or more kernels. title: its description."""

    title: str
    buffers: tuple[Buffer, ...]
    calls: tuple[Call, ...]


class Recorder:
    """Records the launches of one run on the simulated device. arrays: all allocations that kernels may use, by name;
    their current contents are the initial contents of the sample."""

    def __init__(self, title: str, arrays: dict[str, DeviceArray]) -> None:
        self._title = title
        self._arrays = arrays
        self._before = {name: array.numpy().tobytes() for name, array in arrays.items()}
        self._calls: list[Call] = []

    def launch(self, entry: int, kernel: Kernel, stream: Any, keywords: dict[str, Any]) -> None:
        """Launch `kernel` and record its arguments. entry: the number of the kernel's entry."""
        prepared = kernel.prepare(**keywords)
        prepared.launch(stream)
        addresses = (ctypes.c_void_p * len(kernel.parameters)).from_address(prepared.pointers)
        packed = [ctypes.string_at(addresses[one.index] or 0, one.size) for one in kernel.parameters]
        cluster = keywords.get("cluster") or 1
        self._calls.append(
            Call(
                entry,
                prepared.config.grid,
                prepared.config.block,
                prepared.config.shared,
                _three(cluster),
                tuple(
                    self._map(given) if isinstance(given, TensorMap) else self._argument(one.kind, value)
                    for one, value, given in zip(kernel.parameters, packed, prepared.arguments, strict=True)
                ),
            )
        )

    def _argument(self, kind: str, value: bytes) -> bytes | Place:
        if kind not in ("pointer", "bits"):
            return value
        return self._place(int.from_bytes(value, "little")) or value

    def _map(self, given: TensorMap) -> Map:
        found = given.encoding.described(given.array.pointer)
        place = self._place(found.address)
        if place is None:
            raise ValueError(f"{given!r} is not in the memory of {', '.join(self._arrays)}: pass a map of one of them")
        modes = (found.interleave, found.swizzle, found.promotion, found.fill)
        return Map(place, found.data_type, found.dims, found.strides, found.box, found.element_strides, modes)

    def _place(self, address: int) -> Place | None:
        for number, array in enumerate(self._arrays.values()):
            if array.pointer <= address < array.pointer + max(array.nbytes, 1):
                return Place(number, address - array.pointer)
        return None

    def sample(self, compared: dict[str, tuple[Any, Any]]) -> Sample:
        """Return the recorded sample. compared: expected elements and tolerances, by the array's name."""
        buffers = []
        for name, array in self._arrays.items():
            if name not in compared:
                buffers.append(Buffer(name, self._before[name]))
                continue
            expected, tolerance = compared[name]
            if array.numpy().tobytes() == self._before[name]:
                unchanged = np.frombuffer(self._before[name], np.uint8)
                buffers.append(Buffer(name, self._before[name], "uint8", unchanged, np.zeros(unchanged.shape)))
                continue
            wide = np.asarray(expected).reshape(-1)
            bounds = np.broadcast_to(np.asarray(tolerance, np.float64), np.shape(expected)).reshape(-1)
            buffers.append(Buffer(name, self._before[name], array.dtype.name, wide, bounds))
        return Sample(self._title, tuple(buffers), tuple(self._calls))


def _three(extents: int | Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*((extents,) if isinstance(extents, int) else extents), 1, 1)[:3]
    return x, y, z
