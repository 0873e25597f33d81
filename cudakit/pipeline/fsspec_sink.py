"""A sink that writes `.npy` parts to a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cudakit.pipeline.npy_parts import INDEX, NpyParts, is_key
from cudakit.pipeline.object_sink import ObjectSink, StoredItems
from cudakit.pipeline.objects import absolute
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.zarr_sink import default_items


class ToFSSpec(ObjectSink):
    """Writes to a folder of `.npy` objects of equal numbers of items, at any URL that fsspec opens. `FromFSSpec` reads
    it as one array; each part `part-000000000.npy`, `part-000000001.npy` ... can be read by `numpy.load`.

    An object store can neither append to an object nor rename it. A part is written whole or not at all, and
    `index.json` last. `overwrite=True` removes the parts of an earlier run, and nothing else.

    While the run is unfinished, its lock and its record are objects under URL.cudakit, from which `resume=True`
    continues. They are created only if they do not exist: S3, Google and Azure do so atomically, and so do local files;
    if another store of fsspec only looks first, two runs that start in the same moment can both get the lock. The parts
    are not synced to a local disk: use `ToFile` or `ToFolder` there.

    Args:
        url: The folder, such as "s3://bucket/out/".
        items: Items per part; None for a number that fits the chunks of the pipeline, 256 KiB to 8 MiB.
        storage_options: Options of fsspec for the URL.

    Raises:
        ValueError: If a part has no items, or when the run starts, if the URL is a whole bucket.
    """

    index = INDEX

    def __init__(
        self, url: str | os.PathLike[str], items: int | None = None, *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(absolute(url).rstrip("/"), storage_options)
        if items is not None and items < 1:
            raise ValueError(f"items must be at least 1 item per part, got {items}")
        self._items, self.unit = items, items or 1

    def _make(self, spec: SinkSpec, before: StoredItems | None) -> StoredItems:
        items = self._items or (before.unit if before is not None else default_items(spec, None))
        return NpyParts(spec.item, spec.count, items)

    def _parse(self, text: bytes, where: object) -> StoredItems:
        return NpyParts.parsed(text, where)

    def _clear(self, *, complete: bool) -> None:
        for key in self._objects.below(self._objects.root):
            if key == INDEX or is_key(key):  # the folder may have other objects
                self._objects.remove(self._objects.at(key))

    def _same(self, before: StoredItems, now: StoredItems, *, any_count: bool) -> bool:
        return before.metadata == (now.counted(before.count) if any_count else now.metadata)
