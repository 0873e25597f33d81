"""Where a pipeline's chunks come from: arrays, memory maps, `.npy` files, functions that fill a chunk, generators.

Items lie along the first axis. A source gives any range of them, from any thread; files are read with `pread`, so a
file that is cut short is an error that names it, where a memory map would end the process with SIGBUS.
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
from cudakit.memory.array import as_dtype
from cudakit.memory.layout import is_contiguous
from cudakit.memory.pinned import is_pinned
from cudakit.pipeline.files import HostArray, as_bytes, file_of, is_result, npy_header, place_in_file, read_whole
from cudakit.pipeline.refusals import ContentsRefused, explained

#: Bytes of a source's first items that are hashed to recognise it; at least one item.
FIRST_BYTES = 1 << 20
FIRST_ITEMS = 16  # of a source whose items a function makes


@dataclass(frozen=True)
class Item:
    """One element of a stream: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Any, dtype: Any) -> Item:
        """From a shape, or an int for one axis, and anything that names a dtype."""
        extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
        if any(extent < 0 for extent in extents):
            raise ValueError(f"an item of shape {extents} has a negative extent")
        return cls(extents, as_dtype(dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Source:
    """Items that can be read in any order. item: what one is. count: how many there are."""

    item: Item
    count: int
    #: Whether its items have names of their own.
    named = False
    #: No chunk should go on over a multiple of this; None where any range is as good.
    period: int | None = None

    def read(self, start: int, stop: int, into: HostArray) -> None:
        """Write items start..stop into `into`, contiguous, of shape (stop - start, *item.shape)."""
        raise NotImplementedError

    def view(self, start: int, stop: int) -> HostArray | None:
        """The items where they lie, if they lie in memory one behind the other."""
        return None

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        """The same, if that is pinned memory, which the device can copy from by itself."""
        return None

    def labels(self, start: int, stop: int) -> list[str] | None:
        """Their names; None where they have none but their numbers."""
        return None

    def identity(self) -> dict[str, Any]:
        """What recognises it when a run is resumed, as JSON: a hash of the first items (None if they cannot be read);
        of files also path, size in bytes, and time of the last change in nanoseconds."""
        return {"first": self._first(FIRST_BYTES // max(self.item.nbytes, 1))}

    def _first(self, most: int) -> str | None:
        """A hash of `most` items, of one at least."""
        count = min(self.count, max(most, 1))
        first = np.empty((count, *self.item.shape), self.item.dtype)
        try:
            self.read(0, count, first)
        except Exception:  # the run reads them again, and reports it with its chunk
            return None
        return digest(first)

    def modified(self, number: int) -> int | None:
        """When the file of an item was last changed, in nanoseconds; None if it has none."""
        return None

    def close(self) -> None:
        """Let go of what is open. Idempotent."""


class FromArray(Source):
    """The items of a numpy array, any strides; straight from it where it is pinned and contiguous.

    repeats: how many times over the array's items are taken: the stream is `repeats` times as long as the array.
    """

    def __init__(self, array: HostArray, repeats: int = 1) -> None:
        if array.ndim == 0:
            raise ValueError("an array without axes holds no stream of items: the first axis counts them")
        if repeats < 1:
            raise ValueError(f"an array cannot be repeated {repeats} times")
        self.array = array
        self.item = Item.of(array.shape[1:], array.dtype)
        self.count = len(array) * repeats
        self.period = len(array) if repeats > 1 else None
        self._pinned: bool | None = None

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, HostArray]]:
        """The items by the places where they lie: (offset from start, items)."""
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
    """The items of an `.npy` file whose first axis counts them. dtype: what they are, where the format cannot say it,
    as of bfloat16."""

    def __init__(self, path: str | os.PathLike[str], dtype: Any = None) -> None:
        self.path = Path(path)
        shape, dtype, offset = npy_header(self.path, dtype)
        if not shape:
            raise ValueError(f"{self.path} holds one value: the first axis of a stream counts its items")
        self._begin(self.path, Item.of(shape[1:], dtype), shape[0], offset)

    @classmethod
    def of_map(cls, array: np.memmap[Any, Any]) -> FromFile | None:
        """Of a memory map's file, read as a file; None where the map has other contents than its file, or gaps."""
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

    def _begin(self, path: Path, item: Item, count: int, offset: int) -> None:
        self.item, self.count, self._offset, self._lock = item, count, offset, threading.Lock()
        with explained(f"the source {str(path)!r}", "name an .npy file"):
            there = path.stat().st_size
        due = offset + count * item.nbytes
        if there < due:
            raise ContentsRefused(f"{path} is cut short: {there:,} bytes are there, and {count:,} items take {due:,}")
        self._file: int | None = None

    def read(self, start: int, stop: int, into: HostArray) -> None:
        with self._lock:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDONLY)
        read_whole(self._file, into, self._offset + start * self.item.nbytes, self.path)

    def identity(self) -> dict[str, Any]:
        status = _status(self.path)
        file = {"path": str(self.path.resolve()), "size": status.st_size, "modified": status.st_mtime_ns}
        return {**file, "offset": self._offset, **super().identity()}

    def modified(self, number: int) -> int | None:
        return _status(self.path).st_mtime_ns

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class FromFiles(Source):
    """`.npy` files of one item each, named by their stems: an image set, say. All have the first one's shape and dtype.

    paths: the files in their order, or a folder: then all `.npy` files in it, by name, but for hidden ones. dtype: as
    for FromFile.
    """

    def __init__(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], dtype: Any = None) -> None:
        self._dtype = dtype
        if isinstance(paths, (str, os.PathLike)):
            folder = Path(paths)
            with explained(f"the folder {str(folder)!r} of source items", "name a folder of .npy files"):
                paths = sorted(entry.path for entry in os.scandir(folder) if is_result(entry.name))
            if not paths:
                raise ContentsRefused(f"there is no .npy file in {folder}")
        if not paths:
            raise ValueError("an empty list of files has no item whose shape could be known")
        self._paths = [os.fspath(path) for path in paths]
        shape, dtype, _ = npy_header(Path(self._paths[0]), dtype)
        self.item = Item.of(shape, dtype)
        self.count = len(self._paths)
        names = [Path(path).stem for path in self._paths]
        twice = len(set(names)) < len(names)
        # Results are saved under these names: two of one name would write over each other.
        self._names = None if twice else names
        self.named = not twice

    @property
    def folders(self) -> set[Path]:
        """Where the files lie."""
        return {Path(path).parent.resolve() for path in self._paths}

    def read(self, start: int, stop: int, into: HostArray) -> None:
        for place, path in enumerate(self._paths[start:stop]):
            shape, dtype, offset = npy_header(Path(path), self._dtype)
            if (tuple(shape), dtype) != (self.item.shape, self.item.dtype):
                raise ValueError(f"{path} holds {Item(tuple(shape), dtype)}, and the first file {self.item}")
            file = os.open(path, os.O_RDONLY)
            try:
                read_whole(file, into[place : place + 1], offset, Path(path))
            finally:
                os.close(file)

    def identity(self) -> dict[str, Any]:
        files = [(os.path.abspath(path), _status(path)) for path in self._paths]
        listed = [f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in files]
        return {
            "path": os.path.dirname(files[0][0]), "size": sum(status.st_size for _, status in files),
            "modified": max(status.st_mtime_ns for _, status in files),
            "files": hashlib.sha256(os.fsencode("\n".join(listed))).hexdigest(), **super().identity(),
        }  # fmt: skip

    def modified(self, number: int) -> int | None:
        return _status(self._paths[number]).st_mtime_ns

    def labels(self, start: int, stop: int) -> list[str] | None:
        return None if self._names is None else self._names[start:stop]


class Filled(Source):
    """Items that a function makes: fill(start, stop, out) writes items start..stop into `out`, which is pinned memory.

    It is called from the reading threads, for any range, so a resumed run makes only what is left. A range must always
    get the same items: results in files keep a hash of the first ones, by which `resume` recognises the source.
    """

    def __init__(self, fill: Callable[[int, int, HostArray], Any], count: int, shape: Any, dtype: Any) -> None:
        if count < 0:
            raise ValueError(f"a stream cannot have {count} items")
        self._fill = fill
        self.count = count
        self.item = Item.of(shape, dtype)

    def read(self, start: int, stop: int, into: HostArray) -> None:
        self._fill(start, stop, into)

    def identity(self) -> dict[str, Any]:
        """A hash of a few items only: making one may take long."""
        return {"first": self._first(min(FIRST_ITEMS, FIRST_BYTES // max(self.item.nbytes, 1)))}


class Blocks:
    """A generator of blocks, in order: each an array whose first axis counts items, or a tuple of them, one an input.

    The first block says what an item is and how many a chunk holds, unless `run` is told; later ones may be shorter,
    and an empty one is passed over. The generator may yield the same array again: it has been copied before the next is
    asked for. Its first step is taken at once, by the thread that makes this, and all others by a reading thread.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._blocks = iter(blocks)
        self._first: list[tuple[HostArray, ...]] = []
        first = next((block for block in map(_as_block, self._blocks) if len(block[0])), None)
        if first is None:
            raise ValueError("the generator yields nothing: its first block tells what an item is")
        self._first.append(first)
        self.items = tuple(Item.of(array.shape[1:], array.dtype) for array in first)
        self.length = len(first[0])

    def identity(self) -> dict[str, Any]:
        """A hash of the first block, before the first step. See Source.identity."""
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
                    f"the generator yields items of {', '.join(map(str, items))} after "
                    f"{', '.join(map(str, self.items))}"
                )
            yield arrays

    def close(self) -> None:
        """End the generator where it stands, so that its own `finally` runs. Idempotent."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # it is in the midst of a step, which nobody can end
                close()


def digest(first: HostArray) -> str:
    """A hash of the first items, of FIRST_BYTES at most if there are several."""
    count = max(FIRST_BYTES // max(first[:1].nbytes, 1), 1)
    return hashlib.sha256(as_bytes(first[:count])).hexdigest()


def _status(path: str | os.PathLike[str]) -> os.stat_result:
    with explained(f"the source {os.fspath(path)!r}", "name .npy files that exist"):
        return os.stat(path)


def _as_block(block: Any) -> tuple[HostArray, ...]:
    arrays = tuple(np.asarray(part) for part in (block if isinstance(block, tuple) else (block,)))
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise ValueError("a block is an array, or a tuple of arrays, whose first axis counts its items")
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise ValueError(f"the arrays of one block hold {sorted(lengths)} items: they must hold as many each")
    return arrays


def as_source(given: Any) -> Source | Blocks:
    """What `run` takes for an input: a Source, an array or memory map, a path (an `.npy` file, or a folder of them), a
    list of paths, or a generator of blocks. Raises TypeError for anything else."""
    if isinstance(given, (Source, Blocks)):
        return given
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError("a masked array's mask would be lost: give array.filled(...)")
    if isinstance(given, np.memmap):
        return FromFile.of_map(given) or FromArray(given)
    if isinstance(given, np.ndarray):
        return FromArray(given)
    if isinstance(given, (str, os.PathLike)):
        return FromFiles(given) if Path(given).is_dir() else FromFile(given)
    if isinstance(given, list) and given and all(isinstance(path, (str, os.PathLike)) for path in given):
        return FromFiles(given)
    if isinstance(given, Iterator):
        return Blocks(given)
    if isinstance(given, list):
        raise TypeError("a list is for the paths of files of one item each: give several sources as a tuple")
    raise TypeError(
        f"{type(given).__name__} is no source of items: give a numpy array, a numpy.memmap, the path of an .npy file "
        "or of a folder of them, a list of paths, a generator of blocks, or a pipeline source such as Filled"
    )
