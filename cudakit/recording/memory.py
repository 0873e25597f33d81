"""The memory that a launch can access: find it by addresses, and read it.

On the simulated device the driver knows every allocation. On a GPU, pooled allocators hide theirs from the driver: the
arguments' own arrays, cudakit's arrays and torch's blocks are tried first.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudakit.driver.context import Context
from cudakit.launch.strides import unwrapped
from cudakit.memory import dlpack, layout, libraries, pinned
from cudakit.memory.allocation import Allocation
from cudakit.memory.array import DeviceArray

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
WORD = 8
#: Addresses are above the first pages and fit 48 bits.
_LOWEST, _HIGHEST = 1 << 16, 1 << 48
#: The most different words of one region that are compared with the driver's allocations.
_MOST_ASKED = 4096


def is_plausible(address: int) -> bool:
    """Return whether a number may be an address."""
    return _LOWEST <= address < _HIGHEST


class Described(NamedTuple):
    """An array as its library describes it. begin, end: the memory that it is part of."""

    pointer: int
    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    of: str


class Contents(NamedTuple):
    """Bytes, and which of them were never written; None if all were."""

    data: Bytes
    undefined: np.ndarray[Any, np.dtype[np.bool_]] | None


def described(argument: Any) -> Described | None:
    """Return the array that an argument is, or that its tensor map is over; None if it is not an array."""
    array = unwrapped(argument)
    kind = f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"
    if isinstance(array, DeviceArray):
        begin, end = array.allocation.span
        return Described(array.pointer, begin, end, array.dtype.name, array.shape, array.strides, kind)
    if isinstance(array, np.ndarray):
        low, high = layout.span(array.shape, array.strides, array.itemsize)
        at = int(array.ctypes.data)
        return Described(at, at + low, at + high, array.dtype.name, array.shape, array.strides, kind)
    library = libraries.of(type(array), exact=False)
    if library is not None:
        pointer, shape = int(library.read(library.pointer)(array)), tuple(map(int, library.read(library.shape)(array)))
        name, strides = library.dtype_name(library.read(library.dtype)(array)), library.strides_of(array)
        begin, end = _storage(array, pointer, shape, strides)
        return Described(pointer, begin, end, name, shape, strides, kind)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return None
    said = dlpack.take_interface(array, interface)
    low, high = layout.span(said.shape, said.strides, said.dtype.itemsize)
    return Described(
        said.pointer, said.pointer + low, said.pointer + high, said.dtype.name, said.shape, said.strides, kind
    )


def _storage(array: Any, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the bounds of the storage of an array of torch, or of the memory of one of CuPy."""
    if hasattr(array, "untyped_storage"):
        storage = array.untyped_storage()
        return int(storage.data_ptr()), int(storage.data_ptr()) + int(storage.nbytes())
    chunk = getattr(getattr(array, "data", None), "mem", None)
    if chunk is not None and getattr(chunk, "size", False):
        return int(chunk.ptr), int(chunk.ptr) + int(chunk.size)
    low, high = layout.span(shape, strides, int(array.itemsize))
    return pointer + low, pointer + high


class Finder:
    """Finds the memory that contains an address, during one launch. arguments: the launch's, if they are known.
    variables: the memory of the module's variables."""

    def __init__(
        self, context: Context, arguments: Iterable[Described], variables: Iterable[tuple[int, int]] = ()
    ) -> None:
        self.context = context
        spans = [(each.begin, each.end) for each in arguments if each.end > each.begin]
        spans += [thing.span for thing in context.made() if isinstance(thing, Allocation) and thing.open]
        spans += [(block.address, block.address + block.nbytes) for block in pinned.blocks()]
        if context.kind == "gpu":
            spans += _torch_blocks(context)
        self._spans = sorted({*spans, *variables})
        self._begins = [begin for begin, _ in self._spans]

    def __call__(self, address: int) -> tuple[int, int] | None:
        """Return the first address of that memory and the one past its last; None if there is none."""
        at = bisect.bisect_right(self._begins, address) - 1
        inside = [span for span in self._spans[max(at - 64, 0) : at + 1] if address < span[1]]
        if inside:
            return min(begin for begin, _ in inside), max(end for _, end in inside)
        if not is_plausible(address):
            return None
        if self.context.kind == "gpu" and not pinned.is_known(self.context, address):
            return None
        code, begin, size = self.context.driver.cuMemGetAddressRange(address)
        return None if code else (int(begin), int(begin) + int(size))

    def pointers(self, data: Bytes) -> list[int]:
        """Return the different words of some memory that are addresses."""
        words = _words(data)
        words = np.unique(words[(words >= _LOWEST) & (words < _HIGHEST)])
        known = np.zeros(len(words), bool)
        for begin, end in self._spans:
            known |= (words >= begin) & (words < end)
        found = [int(word) for word in words[known]]
        rest = words[~known]
        if len(rest) <= _MOST_ASKED:
            found += [int(word) for word in rest if self(int(word)) is not None]
        return found


def _torch_blocks(context: Context) -> list[tuple[int, int]]:
    """Return the blocks that torch's allocator has handed out on this GPU, without their padding."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return []
    found = []
    try:
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:  # another allocator than torch's own
        return []
    for segment in segments:
        if segment.get("device") == context.ordinal:
            place = int(segment["address"])
            for block in segment["blocks"]:
                place = int(block.get("address", place))
                if block["state"] == "active_allocated":
                    found.append((place, place + int(block.get("requested_size") or block["size"])))
                place += int(block["size"])
    return found


def _words(data: Bytes) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return data[: len(data) // WORD * WORD].view(np.uint64)


def links(data: Bytes, begin: int, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return the pointers in some bytes: place, number of the span they point to, offset in it.

    begin: the address of the bytes, which decides the places that are multiples of 8. spans: sorted, not overlapping.
    """
    first = -begin % WORD
    words = _words(np.ascontiguousarray(data[first:]))
    begins = np.array([low for low, _ in spans], np.uint64)
    ends = np.array([high for _, high in spans], np.uint64)
    if not len(spans) or not len(words):
        return ()
    near = np.searchsorted(begins, words, side="right").astype(np.int64) - 1
    hits = np.flatnonzero((near >= 0) & (words < ends[np.maximum(near, 0)]))
    return tuple((first + WORD * int(hit), int(near[hit]), int(words[hit]) - spans[int(near[hit])][0]) for hit in hits)


def packed_bits(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Bytes:
    """Return a mask with eight elements per byte."""
    return np.packbits(mask)


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in the order of addresses, with those that overlap joined."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def reading(context: Context) -> Callable[[int, int], Contents]:
    """Return read(address, size), for memory on which no work is queued."""
    return _read_simulated(context) if context.kind == "sim" else _read_gpu(context)


def _read_simulated(context: Context) -> Callable[[int, int], Contents]:
    def read(address: int, size: int) -> Contents:
        found = context.driver.simPeek(context.handle, [(address, size)])
        if isinstance(found, str):
            raise RuntimeError(f"memory at {address:#x} cannot be read: {found}")
        data, undefined = found[0]
        return Contents(data, None if undefined is None else undefined != 0)

    return read


def _read_gpu(context: Context) -> Callable[[int, int], Contents]:
    attribute = context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    host = int(context.driver.CUmemorytype.CU_MEMORYTYPE_HOST)

    def read(address: int, size: int) -> Contents:
        data = np.empty(size, np.uint8)
        kind = int(context.call("cuPointerGetAttributes", 1, [attribute], address)[0])
        if kind == host:
            ctypes.memmove(data.ctypes.data, address, size)
        else:
            context.call("cuMemcpyDtoH", data.ctypes.data, address, size)
        return Contents(data, None)

    return read
