"""Sources of a pipeline: arrays, memory maps, `.npy` files, functions that fill a chunk, generators.

Items are along the first axis. A source can read any range of items from any thread. Files are read with `pread`, so a
truncated file raises an error that names it; reading a memory map of it would end the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.memory.array import DeviceArray, as_dtype
from cudakit.memory.layout import is_contiguous
from cudakit.memory.pinned import is_pinned
from cudakit.pipeline.direct import DiskFile
from cudakit.pipeline.files import HostArray, as_bytes, file_of, npy_header, place_in_file
from cudakit.pipeline.refusals import ContentsRefused, explained

#: Bytes of a source's first items that are hashed to identify it; at least one item.
FIRST_BYTES = 1 << 20
FIRST_ITEMS = 16  # for a source whose items are made by a function


@dataclass(frozen=True)
class Item:
    """Shape and dtype of one item."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Any, dtype: Any) -> Item:
        """Make an item from a shape and a dtype.

        Args:
            shape: Extents, or an int for one axis.
            dtype: A dtype or its name.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
        if any(extent < 0 for extent in extents):
            raise ValueError(f"the shape of an item must not have negative extents, got {extents}")
        return cls(extents, as_dtype(dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Source:
    """Items that can be read in any order; the base class of sources.

    Attributes:
        item: Shape and dtype of one item.
        count: Number of items.
        named: Whether the items have names of their own.
        sampled: The most items that `first` reads.
        period: No chunk goes across a multiple of this; None for no limit.
        unit: Reads are fastest if they start and end at multiples of this: the items of a stored chunk.
        private: The reason why workers of a cluster cannot open it; "" if they can. It is pickled for them, without its
            open files.
        on_device: Whether the reader threads call `read_device` instead of `read`, so that its items need no pinned
            memory. A run with such a source has one device.
    """

    item: Item
    count: int
    named = False
    sampled = FIRST_BYTES
    period: int | None = None
    unit = 1
    private = ""
    on_device = False

    def read(self, start: int, stop: int, into: HostArray) -> None:
        """Read a range of items into a contiguous array.

        Args:
            start, stop: The first item, and the item after the last.
            into: Array of shape (stop - start, *item.shape) to write to.
        """
        raise NotImplementedError

    def expect_device(self, context: Context) -> None:
        """Raise an error if it cannot read to the device's memory. Called before the run if it is `on_device`.

        Args:
            context: The device's context.
        """

    def read_device(self, start: int, stop: int, into: DeviceArray) -> None:
        """Read a range of items into device memory. They are there when this returns.

        Args:
            start, stop: The first item, and the item after the last.
            into: Contiguous array of shape (stop - start, *item.shape) to write to. No queued work uses it.
        """
        raise NotImplementedError

    def view(self, start: int, stop: int) -> HostArray | None:
        """Return a view of the items if they are contiguous in memory; else None.

        Args:
            start, stop: The first item, and the item after the last.
        """
        return None

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        """Return a view of the items if they are contiguous in pinned memory, from which copies are direct; else None.

        Args:
            context: The device's context.
            start, stop: The first item, and the item after the last.
        """
        return None

    def labels(self, start: int, stop: int) -> list[str] | None:
        """Return the names of items; None if they have only numbers.

        Args:
            start, stop: The first item, and the item after the last.
        """
        return None

    def identity(self) -> dict[str, Any]:
        """Return values that identify the source when a run is resumed, as JSON.

        They are a hash of the first items (None if these cannot be read); for files also path, size in bytes, and time
        of the last change in nanoseconds.
        """
        return {"first": self.first()}

    def first(self) -> str | None:
        """Return a hash of the first items, by which processes see that they read the same ones; None if they cannot be
        read."""
        count = min(self.count, max(min(self.sampled, FIRST_BYTES // max(self.item.nbytes, 1)), 1))
        first = np.empty((count, *self.item.shape), self.item.dtype)
        try:
            self.read(0, count, first)
        except Exception:  # the run reads them again, and reports the error with its chunk
            return None
        return digest(first)

    def modified(self, number: int) -> int | None:
        """Return the time of the last change of an item's file, in nanoseconds; None if it has no file.

        Args:
            number: The number of the item.
        """
        return None

    def close(self) -> None:
        """Close open files. Idempotent."""


class FromArray(Source):
    """Items of a numpy array with any strides. If it is pinned and contiguous, the device copies directly from it.

    Args:
        array: The array; its first axis counts the items.
        repeats: How often the items are repeated: there are `repeats * len(array)` items.

    Raises:
        ValueError: If the array has no axes, or `repeats` is below 1.
    """

    private = "it is an array in this process's memory: save it with numpy.save or as Zarr, and pass the path"

    def __init__(self, array: HostArray, repeats: int = 1) -> None:
        if array.ndim == 0:
            raise ValueError("the array of a source must have at least 1 axis, which counts the items, got 0 axes")
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        self.array = array
        self.item = Item.of(array.shape[1:], array.dtype)
        self.count = len(array) * repeats
        self.period = len(array) if repeats > 1 else None
        self._pinned: bool | None = None

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, HostArray]]:
        """Yield the items as views of the array, each with its offset from `start`."""
        size = len(self.array)
        at = start
        while at < stop:
            inside = at % size
            taken = min(stop - at, size - inside)
            yield at - start, self.array[inside : inside + taken]
            at += taken

    def read(self, start: int, stop: int, into: HostArray) -> None:
        for offset, part in self._parts(start, stop):
            np.copyto(into[offset : offset + len(part)], part)

    def view(self, start: int, stop: int) -> HostArray | None:
        if not is_contiguous(self.array.shape, self.array.strides, self.array.itemsize) or stop <= start:
            return None
        _, part = next(self._parts(start, stop))
        return part if len(part) == stop - start else None

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        if self._pinned is None:
            self._pinned = is_pinned(context, self.array)
        return self.view(start, stop) if self._pinned else None


class FromFile(Source):
    """Items of an `.npy` file.

    Args:
        path: The file; its first axis counts the items.
        dtype: The dtype of the elements, if the format does not have it, such as bfloat16.
        direct: Whether to read without the page cache. This is fastest for a file that `ToFile(direct=True)` wrote,
            whose items start on a page; other files are copied once more.

    Raises:
        FileMissing: If the file does not exist.
        FileRefused: If the file system does not support direct I/O.
        ContentsRefused: If it is not an `.npy` file that can be read in ranges, or is truncated.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: Any = None, *, direct: bool = False) -> None:
        self.path = Path(path)
        shape, dtype, offset = npy_header(self.path, dtype)
        if not shape:
            raise ValueError(f"{self.path} must have at least 1 axis, which counts the items, got 0 axes")
        self._begin(self.path, Item.of(shape[1:], dtype), shape[0], offset, direct)

    @classmethod
    def of_map(cls, array: np.memmap[Any, Any]) -> FromFile | None:
        """Return a source that reads the file of a memory map; None if the map differs from its file or has gaps.

        Args:
            array: The memory map.
        """
        path = file_of(array)
        if array.mode == "c" or array.ndim == 0 or array.size == 0 or path is None:
            return None
        if not is_contiguous(array.shape, array.strides, array.itemsize):
            return None
        made = cls.__new__(cls)
        made.path = path
        item = Item.of(array.shape[1:], array.dtype)
        made._begin(made.path, item, len(array), place_in_file(array))
        return made

    def _begin(self, path: Path, item: Item, count: int, offset: int, direct: bool = False) -> None:
        self.item, self.count, self._offset, self._lock = item, count, offset, threading.Lock()
        with explained(f"the source {str(path)!r}", "name an .npy file"):
            there = path.stat().st_size
        due = offset + count * item.nbytes
        if there < due:
            raise ContentsRefused(f"{path} is truncated: it has {there:,} bytes, {count:,} items need {due:,}")
        self._file: DiskFile | None = None
        self._direct = direct
        if direct:  # refused here, before a run begins
            with explained(f"the source {str(path)!r}", "name an .npy file"):
                self._opened()
                self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"path": self.path.resolve(), "_file": None}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _opened(self) -> DiskFile:
        """Return the open file; after `close` it is opened again."""
        with self._lock:
            if self._file is None:
                self._file = DiskFile(self.path, os.O_RDONLY, direct=self._direct)
            return self._file

    def read(self, start: int, stop: int, into: HostArray) -> None:
        self._opened().read(into, self._offset + start * self.item.nbytes)

    def identity(self) -> dict[str, Any]:
        return {**file_identity(self.path), "offset": self._offset, **super().identity()}

    def modified(self, number: int) -> int | None:
        return file_modified(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Filled(Source):
    """Items made by a function.

    The function must return the same items each time: `resume` identifies the source by a hash of the first ones. A
    resumed run calls it only for the remaining ranges.

    Args:
        fill: `fill(start, stop, out)` writes the items start..stop to `out`, which is pinned memory. It is called from
            the reader threads, for any range.
        count: Number of items.
        shape: Extents of one item, or an int for one axis.
        dtype: The dtype of the elements.
    """

    sampled = FIRST_ITEMS  # because making an item may be slow

    def __init__(self, fill: Callable[[int, int, HostArray], Any], count: int, shape: Any, dtype: Any) -> None:
        if count < 0:
            raise ValueError(f"count must be at least 0 items, got {count}")
        self._fill = fill
        self.count = count
        self.item = Item.of(shape, dtype)

    def read(self, start: int, stop: int, into: HostArray) -> None:
        self._fill(start, stop, into)


class Blocks:
    """Items from a generator of blocks, read in order.

    A block is an array whose first axis counts items, or a tuple of such arrays, one per input. The first block
    determines the shape and dtype of an item, and the items per chunk unless `run` gets `chunk`. Later blocks may be
    shorter; empty blocks are skipped. The generator may yield the same array again, because each block is copied before
    the next one is requested. The constructor takes the first block; a reader thread takes all others.

    Args:
        blocks: The generator.

    Raises:
        ValueError: If the generator yields no items.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._blocks = iter(blocks)
        self._first: list[tuple[HostArray, ...]] = []
        first = next((block for block in map(_as_block, self._blocks) if len(block[0])), None)
        if first is None:
            raise ValueError("the generator must yield at least one block with items, got none")
        self._first.append(first)
        self.items = tuple(Item.of(array.shape[1:], array.dtype) for array in first)
        self.length = len(first[0])

    def identity(self) -> dict[str, Any]:
        """Identify the source by a hash of the first block, as `Source.identity` does; only before it is iterated."""
        parts = self._first[0] if self._first else ()
        return {"first": [digest(np.ascontiguousarray(part)) for part in parts]}

    def __iter__(self) -> Iterator[tuple[HostArray, ...]]:
        yield from self._first
        self._first.clear()
        for block in self._blocks:
            arrays = _as_block(block)
            items = tuple(Item.of(array.shape[1:], array.dtype) for array in arrays)
            if items != self.items:
                raise ValueError(
                    f"all blocks must have items of {', '.join(map(str, self.items))}, as the first, got "
                    f"{', '.join(map(str, items))}"
                )
            yield arrays

    def close(self) -> None:
        """Close the generator, so that its `finally` blocks run. Idempotent."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # it is running in another thread and cannot be closed
                close()


def digest(first: HostArray) -> str:
    """Return a hash of the first items, up to FIRST_BYTES or at least one item."""
    count = max(FIRST_BYTES // max(first[:1].nbytes, 1), 1)
    return hashlib.sha256(as_bytes(first[:count])).hexdigest()


def file_identity(path: Path) -> dict[str, Any]:
    """Return path, size and time of the last change of a source's file, for `Source.identity`."""
    status = _status(path)
    return {"path": str(path.resolve()), "size": status.st_size, "modified": status.st_mtime_ns}


def files_identity(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
    """Return what `file_identity` does, for several files together, and a hash of their list."""
    files = [(os.path.abspath(path), _status(path)) for path in paths]
    listed = [f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in files]
    return {
        "path": os.path.dirname(files[0][0]), "size": sum(status.st_size for _, status in files),
        "modified": max(status.st_mtime_ns for _, status in files),
        "files": hashlib.sha256(os.fsencode("\n".join(listed))).hexdigest(),
    }  # fmt: skip


def file_modified(path: str | os.PathLike[str]) -> int:
    """Return the time of the last change of a source's file, in nanoseconds."""
    return _status(path).st_mtime_ns


def _status(path: str | os.PathLike[str]) -> os.stat_result:
    with explained(f"the source {os.fspath(path)!r}", "name files that exist"):
        return os.stat(path)


def _as_block(block: Any) -> tuple[HostArray, ...]:
    arrays = tuple(np.asarray(part) for part in (block if isinstance(block, tuple) else (block,)))
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise ValueError("a block must be an array, or a tuple of arrays, whose first axis counts items; got no axis")
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise ValueError(f"the arrays of a block must have as many items each, got {sorted(lengths)}")
    return arrays
