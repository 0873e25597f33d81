"""A source that reads numbers from a URL: an `.npy` object, raw items, or the `.npy` parts that `ToFSSpec` wrote."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from cudakit.pipeline.files import HostArray, as_bytes, parsed_npy_header
from cudakit.pipeline.npy_parts import INDEX, NpyParts
from cudakit.pipeline.objects import Objects, absolute, reachable, scheme_of
from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.sources import Item, Source

_HEADER = 12 + (64 << 10)  # bytes that have the header of any array of numbers
_PIECE = 8 << 20  # bytes per request; a store sends several at the same time
#: Names of stores for what changes with an object's contents, the best first.
_VERSIONS = ("ETag", "etag", "md5Hash", "crc32c", "mtime", "LastModified", "last_modified", "updated", "created")
_ADVICE = "pass the URL of an .npy file, or of a folder that ToFSSpec wrote"


class FromFSSpec(Source):
    """Items of an `.npy` file, of a raw file, or of a folder that `ToFSSpec` wrote, at any URL that fsspec opens:
    "s3://bucket/in.npy", "https://...", "file:///data/in.npy".

    Each chunk is read as byte ranges of at most 8 MiB, which stores such as S3 send at the same time. `readers=4` of
    `run` requests several chunks at once. The source is identified by URL, size, and tag or time of the last change.

    Args:
        url: The file or folder.
        shape: Extents of one item, or an int for one axis, of a raw file: items without a header. None for a file or
            folder that has its shape.
        dtype: The dtype of a raw file's elements; or, for an `.npy` file, as for `FromFile`.
        offset: Bytes before the first item of a raw file.
        storage_options: Options of fsspec for the URL.

    Raises:
        ImportError: If fsspec, or its package for the URL's store, is not installed.
        FileMissing: If the file does not exist.
        FileRefused: If the store cannot be used.
        ContentsRefused: If it is not such a file or folder, or it is truncated.
        ValueError: If the shape of a raw file is passed without its dtype.
    """

    def __init__(
        self, url: str | os.PathLike[str], shape: Any = None, dtype: Any = None, *, offset: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if (shape is not None and dtype is None) or offset < 0 or (shape is None and offset):
            raise ValueError(
                f"a raw file needs shape=, dtype= and an offset of at least 0, got shape={shape!r}, dtype={dtype!r}, "
                f"offset={offset!r}"
            )
        self.url, self._options = absolute(url), storage_options
        self._lock = threading.Lock()
        self._store: Objects | None = None
        self._parts: NpyParts | None = None
        self._times: dict[str, int | None] | None = None  # of the last changes
        self._offset = offset
        with reachable(f"the source {self.url!r}", _ADVICE):
            if shape is not None:
                self.item, self.count = self._raw(Item.of(shape, dtype))
            elif self.url.endswith(".npy") or not self._find_parts():
                self.item, self.count = self._npy(dtype)
        if scheme_of(self.url) == "memory":
            self.private = "memory:// is in the client's process: save it in a folder, and pass its path"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_store": None}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    @property
    def _objects(self) -> Objects:
        with self._lock:
            if self._store is None:
                self._store = Objects(self.url, self._options)
            return self._store

    def _size(self) -> int:
        info = self._objects.info(self._objects.root)
        size = info["size"]
        if info["type"] == "directory":
            raise ContentsRefused(
                f"{self.url} is a folder without {INDEX}: the run that writes it has not finished, or ToFSSpec did not "
                "write it. Pass the URL of an .npy file, or finish the run with resume=True"
            )
        if size is None:
            raise ContentsRefused(f"the server does not report the size of {self.url}: copy the file first")
        return int(size)

    def _raw(self, item: Item) -> tuple[Item, int]:
        there = self._size() - self._offset
        count, rest = divmod(there, item.nbytes) if item.nbytes else (0, there)
        if rest:
            raise ContentsRefused(
                f"{self.url} has {there:,} bytes after the first {self._offset:,}, which are not whole items of "
                f"{item.nbytes:,} bytes ({item}): pass its shape, dtype and offset, or write the file again"
            )
        return item, count

    def _npy(self, dtype: Any) -> tuple[Item, int]:
        there = self._size()
        (start,) = self._objects.ranges([(self._objects.root, 0, min(there, _HEADER))]) if there else (b"",)
        shape, dtype, self._offset = parsed_npy_header(io.BytesIO(start), self.url, dtype)
        if not shape:
            raise ValueError(f"{self.url} must have at least 1 axis, which counts the items, got 0 axes")
        item = Item.of(shape[1:], dtype)
        due = self._offset + shape[0] * item.nbytes
        if there < due:
            raise ContentsRefused(f"{self.url} is truncated: it has {there:,} bytes, {shape[0]:,} items need {due:,}")
        return item, shape[0]

    def _find_parts(self) -> bool:
        """Whether the URL is a folder of parts. Raises ContentsRefused if a part is missing, or has another size."""
        index = self._objects.at(INDEX)
        text = self._objects.get(index)
        if text is None:
            return False
        self._parts = parts = NpyParts.parsed(text, index)
        self.item, self.count = parts.item, parts.count
        there = self._infos()
        for key, due in parts.sizes(0, self.count) if there else ():
            size = there[key]["size"] if key in there else 0
            if size != due:
                raise ContentsRefused(
                    f"{self._objects.at(key)} has {size:,} bytes, and the index {index} requires {due:,}: it has been "
                    "changed. Restore it, or write the array again"
                )
        return True

    def _infos(self) -> dict[str, dict[str, Any]]:
        """Return `Objects.info` of each object by its key; nothing for web servers, which have no listing."""
        if scheme_of(self.url) in ("http", "https"):
            return {}
        return self._objects.infos(self._objects.root)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield the byte ranges of the items start..stop, in order."""
        if self._parts is None:
            yield self._objects.root, start, stop
            return
        unit = self._parts.unit
        for number in range(start // unit, -(-stop // unit)):
            first = number * unit
            yield self._objects.at(self._parts.key(number)), max(start - first, 0), min(stop - first, unit)

    def read(self, start: int, stop: int, into: HostArray) -> None:
        if not into.nbytes:
            return
        nbytes, offset = self.item.nbytes, self._offset if self._parts is None else self._parts.offset
        pieces = [
            (path, at, min(at + _PIECE, offset + end * nbytes))
            for path, begin, end in self._ranges(start, stop)
            for at in range(offset + begin * nbytes, offset + end * nbytes, _PIECE)
        ]
        view, at = as_bytes(into), 0
        for data in self._objects.ranges(pieces):
            view[at : at + len(data)] = data
            at += len(data)

    def identity(self) -> dict[str, Any]:
        infos = self._known()
        listed = sorted([key, str(info["size"]), _version(info)] for key, info in infos.items())
        times = [time for info in infos.values() if (time := _modified(info)) is not None]
        return {
            "path": self.url, "size": sum(info["size"] or 0 for info in infos.values()),
            "version": hashlib.sha256(json.dumps(listed).encode()).hexdigest(), "modified": max(times, default=None),
            **super().identity(),
        }  # fmt: skip

    def modified(self, number: int) -> int | None:
        key = "" if self._parts is None else self._parts.key(number // self._parts.unit)
        if self._times is None:  # one request for all items
            self._times = {key: _modified(info) for key, info in self._known().items()}
        return self._times.get(key)

    def _known(self) -> dict[str, dict[str, Any]]:
        """Return `Objects.info` of the file, or of the index and the parts, by their keys."""
        with reachable(f"the source {self.url!r}", _ADVICE):
            if self._parts is None:
                return {"": self._objects.info(self._objects.root)}
            return self._infos() or {INDEX: self._objects.info(self._objects.at(INDEX))}

    def close(self) -> None:
        self._times = None


def _version(info: Mapping[str, Any]) -> str:
    return str(next((info[name] for name in _VERSIONS if info.get(name)), None))


def _modified(info: Mapping[str, Any]) -> int | None:
    """Return the time of an object's last change, in nanoseconds; None if the store does not have it as a time."""
    for name in ("mtime", "LastModified", "last_modified", "created"):
        time = info.get(name)
        if isinstance(time, datetime):
            return int(time.timestamp() * 1e9)
        if isinstance(time, (int, float)):
            return int(time * 1e9)
    return None
