"""Zarr arrays: their place, their stored chunks, and the encoding of items. zarr is imported when it is needed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.pipeline.files import HostArray, as_bytes
from cudakit.pipeline.objects import LOCAL, has_scheme, scheme_of
from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.sources import Item

METADATA = "zarr.json"
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
_KINDS = "biufc"  # booleans, integers, real and complex numbers


def zarr_package() -> Any:
    """Return the module zarr. Raises ImportError with the command that installs it."""
    try:
        import zarr
    except ImportError as error:
        raise ImportError("Zarr arrays need the package zarr: pip install 'cudakit[zarr]'") from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise ImportError(f"Zarr arrays need zarr 3, got {zarr.__version__}: pip install 'zarr>=3'")
    return zarr


def is_zarr(given: str | os.PathLike[str]) -> bool:
    """Whether a path or URL is named as a Zarr array, or is the folder of one."""
    text = os.fspath(given).rstrip("/")
    if is_url(text):
        return text.endswith(".zarr")
    return text.endswith(".zarr") or any((Path(text) / name).is_file() for name in (METADATA, ".zarray"))


def is_url(text: str) -> bool:
    """Whether a text is the URL of a store that is not a local folder."""
    return has_scheme(text) and scheme_of(text) not in LOCAL


@dataclass(frozen=True)
class Place:
    """The place of an array.

    folder: the array's folder, absolute; None if it is not in local files. url: the array's URL. inner: the array's
    path in the store, as names. options: of fsspec.
    """

    folder: Path | None
    url: str = ""
    inner: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, store: str | os.PathLike[str], path: str | None, options: Mapping[str, Any] | None) -> Place:
        text = os.fspath(store)
        if not text:
            raise ValueError("the path of a Zarr store is empty: pass a folder such as 'out.zarr', or a URL")
        inner = [part for part in (path or "").split("/") if part]
        if ".." in inner or "." in inner:
            raise ValueError(f"the path in a Zarr store must not have . or .., got {path!r}")
        if is_url(text):
            return cls(None, "/".join([text.rstrip("/"), *inner]), tuple(inner), options)
        root = Path(text.split("://", 1)[-1]).resolve()
        folder = root.joinpath(*inner)
        while (root.parent / METADATA).is_file():  # it is part of a larger store
            root = root.parent
        return cls(folder, inner=folder.relative_to(root).parts)

    @property
    def root(self) -> Path:
        """The folder of the whole store."""
        if self.folder is None:
            raise ValueError(f"{self.url} is not a local folder")
        return self.folder.parents[len(self.inner) - 1] if self.inner else self.folder

    @property
    def groups(self) -> list[str]:
        """The folders or URLs of the groups that have the array, from the whole store on."""
        parts = str(self).rsplit("/" if self.url else os.sep, len(self.inner))
        return ["/".join(parts[:depth]) for depth in range(1, len(parts))]

    def next_to_store(self, ending: str) -> Path:
        """Return the path next to the store's folder, on its file system, of a file that belongs to the array."""
        return self.root.with_name(".".join([self.root.name, *self.inner]) + ending)

    @property
    def scheme(self) -> str:
        """The URL's scheme, such as "s3"; "" for a folder."""
        return scheme_of(self.url)

    def __str__(self) -> str:
        return self.url or str(self.folder)


def place_of_array(array: Any) -> Place | None:
    """Return the place of an open `zarr.Array` in local files; None if it is elsewhere."""
    zarr = zarr_package()
    if not isinstance(array.store, zarr.storage.LocalStore):
        return None
    return Place.of(array.store.root, array.path, None)


def is_array(given: Any) -> bool:
    """Whether an object is a `zarr.Array`. Does not import zarr."""
    return type(given).__module__.split(".")[0] == "zarr" and type(given).__name__ == "Array"


class StoredArray:
    """The shape, chunks and codecs of an array of Zarr format 3, and the encoding of its items.

    Args:
        metadata: The contents of its zarr.json.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = dict(metadata)

    def counted(self, count: int) -> dict[str, Any]:
        """Return the metadata of the same array with another number of items."""
        return {**self.metadata, "shape": [count, *self.metadata["shape"][1:]]}

    def __getstate__(self) -> dict[str, Any]:
        return {"metadata": self.metadata}

    @cached_property
    def _array(self) -> Any:
        return self._in(self.count, {})

    def _in(self, count: int, chunks: dict[str, Any]) -> Any:
        """Return a zarr array of this kind with `count` items, whose stored chunks are in `chunks`."""
        zarr = zarr_package()
        place = zarr.storage.StorePath(zarr.storage.MemoryStore(chunks))
        # Chunks of the fill value are stored too: others would be missing files, and -0.0 would become 0.0.
        return zarr.Array(zarr.AsyncArray(self.counted(count), place, {"write_empty_chunks": True, "order": "C"}))

    @property
    def count(self) -> int:
        """Number of items."""
        return int(self.metadata["shape"][0])

    @property
    def item(self) -> Item:
        """One item."""
        return Item.of(self._array.shape[1:], np.dtype(self._array.dtype).newbyteorder("="))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a chunk, which is a part of a shard if there are shards."""
        return tuple(self._array.chunks)

    @property
    def unit(self) -> int:
        """Items per stored chunk; of a shard, if it has shards."""
        return int(self._stored[0])

    @cached_property
    def _stored(self) -> tuple[int, ...]:
        return tuple(self._array.shards or self._array.chunks)

    @cached_property
    def plain(self) -> bool:
        """Whether a stored chunk has the bytes of whole items one after the other, and nothing else."""
        codecs = self.metadata["codecs"]
        endian = codecs[0].get("configuration", {}).get("endian", "little") if codecs else ""
        alone = len(codecs) == 1 and codecs[0]["name"] == "bytes"
        whole = self._stored[1:] == self._array.shape[1:]
        return bool(alone and whole and endian == "little" and np.dtype("=i4") == np.dtype("<i4"))

    @property
    def compressed(self) -> bool:
        """Whether the size of a stored chunk depends on its contents, or is not known here."""
        return len(self.metadata["codecs"]) > 1 or self.metadata["codecs"][0]["name"] != "bytes"

    def sizes(self, start: int, stop: int) -> Iterator[tuple[str, int | None]]:
        """Yield the keys of the stored chunks that have the items start..stop, each with its bytes; None if it is
        `compressed`."""
        due = int(np.prod(self._stored, dtype=np.int64)) * int(self._array.dtype.itemsize)
        for key in self.keys(start, stop):
            yield key, None if self.compressed else due

    @property
    def fill(self) -> Any:
        """The fill value."""
        return self._array.fill_value

    def keys(self, start: int, stop: int) -> Iterator[str]:
        """Yield the keys of the stored chunks that have the items start..stop, in order."""
        extents = zip(self._array.shape[1:], self._stored[1:], strict=True)
        others = [range(-(-extent // each)) for extent, each in extents]
        for place in itertools.product(range(start // self.unit, -(-stop // self.unit)), *others):
            yield self._array.metadata.encode_chunk_key(place)

    def encode(self, start: int, items: HostArray) -> dict[str, Any]:
        """Return the bytes of each stored chunk by its key, without a copy if the array is `plain`.

        start: the number of the first item, a multiple of `unit`. items: the last chunk may have fewer than `unit`
        items if it is the last of the array; its other items get the fill value.
        """
        stop = start + len(items)
        if start % self.unit:
            raise ValueError(f"results must start at a multiple of {self.unit:,} items, got item {start:,}")
        if self.plain:
            return dict(zip(self.keys(start, stop), map(as_bytes, self._parts(items)), strict=True))
        encoded: dict[str, Any] = {}
        array = self._in(max(stop, self.count), encoded)
        array.set_basic_selection(slice(start, stop), items, prototype=_cpu().buffer_prototype)
        return {key: as_bytes(encoded[key].as_numpy_array()) for key in self.keys(start, stop)}

    def _parts(self, items: HostArray) -> Iterator[HostArray]:
        for start in range(0, len(items), self.unit):
            part = items[start : start + self.unit]
            if len(part) < self.unit:
                whole = np.full((self.unit, *items.shape[1:]), self.fill, items.dtype)
                whole[: len(part)] = part
                part = whole
            yield part


def same_array(one: StoredArray, other: StoredArray, *, any_count: bool) -> bool:
    """Whether two arrays differ in attributes at most. any_count: or in the number of items."""
    ours = {**(one.counted(other.count) if any_count else one.metadata), "attributes": None}
    return ours == {**other.metadata, "attributes": None}


def described(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: tuple[int, ...], shards: tuple[int, ...] | None,
    compressors: Any, attributes: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the metadata of a new array. Raises ValueError or TypeError if zarr rejects the arguments."""
    zarr = zarr_package()
    expect_numbers(dtype, "the results")
    array = zarr.create_array(
        zarr.storage.MemoryStore({}), shape=shape, dtype=dtype, chunks=chunks, shards=shards, compressors=compressors,
        attributes=dict(attributes), zarr_format=3,
    )  # fmt: skip
    return metadata_of(array)


def metadata_of(array: Any) -> dict[str, Any]:
    """Return the contents of an open array's zarr.json. Raises ValueError if it has another format."""
    if array.metadata.zarr_format != 3:
        raise ValueError(
            f"results are written in Zarr format 3, and {array.name or array} has format 2: make a new one"
        )
    (buffer,) = array.metadata.to_buffer_dict(_cpu().buffer_prototype).values()
    metadata: dict[str, Any] = json.loads(buffer.to_bytes())
    return metadata


def read_metadata(text: str | bytes, where: object) -> dict[str, Any]:
    """Return the contents of a zarr.json. Raises ContentsRefused if it is not of an array of format 3."""
    try:
        metadata: dict[str, Any] = json.loads(text)
        found = metadata["zarr_format"], metadata["node_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ContentsRefused(f"{where} is not the metadata of a Zarr array, or is damaged: {error}") from error
    if found != (3, "array"):
        raise ContentsRefused(f"{where} is of a Zarr {found[1]} of format {found[0]}, not of an array of format 3")
    return metadata


def expect_numbers(dtype: np.dtype[Any], what: str) -> None:
    """Raise ValueError for a dtype that Zarr format 3 or this package does not have."""
    if dtype.kind not in _KINDS:
        advice = "store float32, or the bits as uint16" if dtype.itemsize == 2 else "store one that numpy has"
        if dtype.itemsize == 1:
            advice = "store float32, or the bits as uint8"
        raise ValueError(f"Zarr has no dtype {dtype}, which {what} have: {advice}")


def _cpu() -> Any:
    from zarr.core.buffer import cpu

    return cpu


def read_items(array: Any, start: int, stop: int, into: HostArray) -> None:
    """Read a range of an open array's items into a contiguous array, with zarr."""
    cpu = _cpu()
    out = cpu.NDBuffer.from_ndarray_like(into)
    array.get_basic_selection(slice(start, stop), out=out, prototype=cpu.buffer_prototype)
