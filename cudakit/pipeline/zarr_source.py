"""A source that reads a Zarr array, from local files or from a store that fsspec opens."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.pipeline.files import HostArray, read_whole
from cudakit.pipeline.refusals import ContentsRefused, FileMissing, explained
from cudakit.pipeline.sources import Item, Source
from cudakit.pipeline.zarr_arrays import (
    Place,
    StoredArray,
    expect_numbers,
    is_array,
    metadata_of,
    place_of_array,
    read_items,
    zarr_package,
)


class FromZarr(Source):
    """Items of a Zarr array of format 2 or 3. A stored chunk is decoded once if chunks of the pipeline have whole ones,
    which is the default if the memory budgets allow it.

    Chunks without compression that have whole items are read straight into the pipeline's buffer. All others are
    decoded by zarr, in its own threads.

    Args:
        store: The folder of a store, a URL such as "s3://bucket/in.zarr", or an open `zarr.Array`. Each process opens
            a folder or a URL by itself.
        path: The array in the store; None if the store is one array.
        storage_options: Options of fsspec for a URL.

    Raises:
        ImportError: If zarr 3 is not installed.
        FileMissing: If the store does not exist.
        ContentsRefused: If there is a group instead of an array.
        ValueError: If the array has no axes, or does not have numbers.
    """

    def __init__(
        self, store: Any, path: str | None = None, *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._lock, self._open, self._store = threading.Lock(), None, None
        if is_array(store):
            found = place_of_array(store)
            if found is None:  # the store itself is sent to other processes
                self._open = self._store = store
            self.place = found or Place(None, f"{store.store}/{store.path}".rstrip("/"))
        elif isinstance(store, (str, os.PathLike)):
            self.place = Place.of(store, path, storage_options)
        else:
            raise TypeError(f"store must be a path, a URL or a zarr.Array, got {type(store).__name__}")
        array = self._opened()
        if not array.shape:
            raise ValueError(f"{self.place} must have at least 1 axis, which counts the items, got 0 axes")
        dtype = np.dtype(array.dtype).newbyteorder("=")
        expect_numbers(dtype, f"the items of {self.place}")
        self.item, self.count = Item.of(array.shape[1:], dtype), int(array.shape[0])
        self._stored = StoredArray(metadata_of(array)) if array.metadata.zarr_format == 3 else None
        self._plain = self._stored is not None and self._stored.plain and self.place.folder is not None
        if not self._plain:
            self.unit = int(array.chunks[0])  # the chunks of a shard are decoded one by one
        if self.place.scheme == "memory":
            self.private = "it is in this process's memory: save it in a folder, and pass its path"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_open": None}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _opened(self) -> Any:
        """Return the open array."""
        with self._lock:
            if self._open is None:
                self._open = self._store if self._store is not None else open_array(self.place)
            return self._open

    def read(self, start: int, stop: int, into: HostArray) -> None:
        if stop <= start or not into.nbytes:
            return
        if not self._plain or self._stored is None or self.place.folder is None:
            read_items(self._opened(), start, stop, into)
            return
        unit = self._stored.unit
        for key in self._stored.keys(start, stop):
            first = start // unit * unit
            end = min(first + unit, stop)
            part = into[len(into) - (stop - start) : len(into) - (stop - end)]
            self._read_chunk(self.place.folder / key, start - first, part)
            start = end

    def _read_chunk(self, path: Path, skipped: int, into: HostArray) -> None:
        """Read items of one stored chunk, after the first `skipped` ones. A missing chunk has the fill value."""
        try:
            file = system.open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            into[...] = self._stored.fill if self._stored is not None else 0
            return
        try:
            read_whole(file, into, skipped * self.item.nbytes, path)
        finally:
            os.close(file)

    def identity(self) -> dict[str, Any]:
        if self.place.folder is None:
            metadata = json.dumps(self._opened().metadata.to_dict(), sort_keys=True, default=str)
            return {"path": self.place.url, "metadata": _hash(metadata), **super().identity()}
        listed, size, modified = [], 0, 0
        for folder, _, names in os.walk(self.place.folder):
            for name in names:
                status = os.stat(os.path.join(folder, name))
                listed.append(f"{os.path.join(folder, name)} {status.st_size} {status.st_mtime_ns}")
                size, modified = size + status.st_size, max(modified, status.st_mtime_ns)
        return {
            "path": str(self.place.folder), "size": size, "modified": modified,
            "files": _hash("\n".join(sorted(listed))), **super().identity(),
        }  # fmt: skip

    def modified(self, number: int) -> int | None:
        if self.place.folder is None:
            return None
        if self._stored is None:
            return int(self.identity()["modified"])
        paths = (self.place.folder / key for key in self._stored.keys(number, number + 1))
        return max((path.stat().st_mtime_ns for path in paths if path.exists()), default=None)

    def close(self) -> None:
        self._open = None


def _hash(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def open_array(place: Place) -> Any:
    """Open an array for reading. Raises FileMissing or ContentsRefused."""
    zarr = zarr_package()
    where = f"the Zarr array {place}"
    if place.folder is not None and not place.folder.is_dir():
        raise FileMissing(f"{where} does not exist: pass the folder of a Zarr store, and the array's path in it")
    with explained(where, "pass the folder or URL of a Zarr store, and the array's path in it"):
        options = dict(place.options) if place.options else None
        try:
            node = zarr.open(place.url or str(place.folder), mode="r", storage_options=options)
        except (ValueError, KeyError, TypeError) as error:
            raise ContentsRefused(f"{where} cannot be read: {type(error).__name__}: {error}") from error
    if not is_array(node):
        names = ", ".join(sorted(name for name, _ in node.arrays())) or "none"
        raise ContentsRefused(f"{place} is a group of Zarr arrays: pass path=, the name of one of them ({names})")
    return node
