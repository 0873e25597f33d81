"""A sink that writes a Zarr array, to local files or to a store that fsspec opens."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.sources import Item
from cudakit.pipeline.zarr_arrays import Place, StoredArray, described, is_array, metadata_of, place_of_array
from cudakit.pipeline.zarr_folder import ZarrFolder
from cudakit.pipeline.zarr_objects import ZarrObjects

#: Bytes of a stored chunk by default: a 64th of the results, within these limits. Larger ones cost no time per file,
#: smaller ones are decoded in parallel, and are divided among a cluster's workers more evenly.
LEAST_BYTES, MOST_BYTES = 256 << 10, 8 << 20
_PARTS = 64
_ENDLESS = 1 << 40  # items of an array whose number of items is not known yet


class ToZarr(Sink):
    """Writes a Zarr array of format 3. Every range that is written has whole stored chunks or shards (`unit`), so two
    writers never write to the same one.

    In local files the array is OUT.zarr.part until it is complete, with its journal OUT.zarr.journal. Compressed
    results may need less disk space than their size, so free space is checked only without compressors. An existing
    `zarr.Array` is written in place.

    A store at a URL has no rename: results are written in place, one object per stored chunk, and the array's zarr.json
    last. Its lock and its record are objects under OUT.zarr.cudakit; the store must be able to create an object only if
    it does not exist.

    Attributes:
        place: The array's place.
        in_place: Whether it writes to an existing array.

    Args:
        store: The folder of a store, a URL such as "s3://bucket/out.zarr", or an existing `zarr.Array` in local files.
        path: The array in the store, in groups that are made if they do not exist; None if the store is one array.
        chunks: Items per chunk, or the shape of a chunk. By default whole items, of which a chunk of the pipeline has
            a whole number.
        shards: Items per shard, or the shape of a shard; None for one file per chunk.
        compressors: As for `zarr.create_array`; None for none.
        attributes: The array's attributes.
        storage_options: Options of fsspec for a URL.

    Raises:
        ImportError: If zarr 3 is not installed.
        ValueError: If an existing array is not in local files, or has another format.
    """

    def __init__(
        self, store: Any, path: str | None = None, *, chunks: int | tuple[int, ...] | None = None,
        shards: int | tuple[int, ...] | None = None, compressors: Any = "auto",
        attributes: Mapping[str, Any] | None = None, storage_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._chunks, self._shards, self._compressors = chunks, shards, compressors
        self._attributes = dict(attributes or {})
        self._item: Item | None = None
        self.in_place = is_array(store)
        if is_array(store):
            array = StoredArray(metadata_of(store))
            place = place_of_array(store)
            if place is None or (path, chunks, shards) != (None, None, None) or compressors != "auto" or attributes:
                raise ValueError(
                    "an existing zarr.Array must be in local files, and has its own chunks, compressors and "
                    "attributes: pass it alone, or pass a path or URL for a new array"
                )
            self.place, self._item, self.unit = place, array.item, array.unit
            self._inner: ZarrFolder | ZarrObjects = ZarrFolder(place, None)
        elif isinstance(store, (str, os.PathLike)):
            self.place = Place.of(store, path, storage_options)
            whole = shards if shards is not None else chunks
            if whole is not None:
                self.unit = int(whole if isinstance(whole, (int, np.integer)) else whole[0])
                if self.unit < 1:
                    raise ValueError(f"chunks and shards must have at least 1 item, got {self.unit}")
            make = self._array
            self._inner = ZarrObjects(self.place, make) if self.place.url else ZarrFolder(self.place, make)
        else:
            raise TypeError(f"store must be a path, a URL or a zarr.Array, got {type(store).__name__}")
        self.private, self.promise, self.where = self._inner.private, self._inner.promise, self._inner.where

    def item(self) -> Item | None:
        return self._item

    def _array(self, spec: SinkSpec, before: StoredArray | None) -> StoredArray:
        """Return the array for results. before: the unfinished or finished one of an earlier run, whose chunks are
        kept unless others were requested."""
        shards = None if self._shards is None else _shape(self._shards, spec.item, "shards")
        if self._chunks is not None:
            chunks = _shape(self._chunks, spec.item, "chunks")
        elif before is not None:
            chunks = before.chunks
        else:
            chunks = _shape(default_items(spec, shards), spec.item, "chunks")
        count = _ENDLESS if spec.count is None else spec.count
        return StoredArray(
            described((count, *spec.item.shape), spec.item.dtype, chunks, shards, self._compressors, self._attributes)
        )

    def open(self, spec: SinkSpec) -> list[Range]:
        finished = self._inner.open(spec)
        self.unit = self._inner.unit
        return finished

    def write(self, start: int, stop: int, items: HostArray) -> None:
        self._inner.write(start, stop, items)

    def portion(self, attempt: str) -> Sink:
        return self._inner.portion(attempt)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        self._inner.adopt(attempt, start, stop)

    def discard(self, attempt: str) -> None:
        self._inner.discard(attempt)

    def finish(self, count: int) -> None:
        self._inner.finish(count)

    def close(self) -> None:
        self._inner.close()


def _shape(given: int | tuple[int, ...], item: Item, what: str) -> tuple[int, ...]:
    """Return the shape of a chunk or shard. given: its items, or its shape."""
    if isinstance(given, (int, np.integer)):
        return (int(given), *(max(extent, 1) for extent in item.shape))
    if len(given) != 1 + len(item.shape):
        raise ValueError(
            f"{what} must be the number of items, or have {1 + len(item.shape)} extents for items of {item}, got "
            f"{tuple(given)}"
        )
    return tuple(given)


def default_items(spec: SinkSpec, shards: tuple[int, ...] | None) -> int:
    """Return the items per chunk: of a size that suits the results, and a divisor of those of a shard or of the run's
    chunk; by default they fit the sources' stored chunks."""
    each = max(spec.item.nbytes, 1)
    total = MOST_BYTES * _PARTS if spec.count is None else spec.count * each
    target = max(min(max(total // _PARTS, LEAST_BYTES), MOST_BYTES) // each, 1)
    if spec.count is not None:
        target = max(min(target, spec.count), 1)
    whole = shards[0] if shards is not None else spec.chunk
    if whole is None:
        if spec.stored <= target:
            return target // spec.stored * spec.stored
        whole = spec.stored
    if shards is None and spec.count is not None:
        whole = max(min(whole, spec.count), 1)
    divisors = [part for low in range(1, math.isqrt(whole) + 1) if whole % low == 0 for part in (low, whole // low)]
    return min(divisors, key=lambda items: abs(math.log(items / target)))
