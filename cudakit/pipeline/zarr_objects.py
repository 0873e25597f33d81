"""`ToZarr` at a URL: an array in an object store, one object per stored chunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from cudakit.pipeline.object_sink import ObjectSink, StoredItems
from cudakit.pipeline.objects import Objects
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.zarr_arrays import GROUP, METADATA, Place, StoredArray, read_metadata, same_array


class ZarrObjects(ObjectSink):
    """Writes each stored chunk of a new array as an object.

    place: of the array. make: returns the array for results; its second argument is the one of an earlier run.
    """

    index = METADATA

    def __init__(self, place: Place, make: Callable[[SinkSpec, StoredArray | None], StoredArray]) -> None:
        super().__init__(place.url, place.options)
        self._groups, self._array = place.groups, make

    def _make(self, spec: SinkSpec, before: StoredItems | None) -> StoredItems:
        return self._array(spec, cast("StoredArray | None", before))

    def _parse(self, text: bytes, where: object) -> StoredItems:
        return StoredArray(read_metadata(text, where))

    def _same(self, before: StoredItems, now: StoredItems, *, any_count: bool) -> bool:
        return same_array(cast("StoredArray", before), cast("StoredArray", now), any_count=any_count)

    def finish(self, count: int) -> None:
        if self._begun:
            for group in self._groups:
                objects = Objects(group, self._options)
                objects.create(objects.at(METADATA), json.dumps(GROUP, indent=2))
        super().finish(count)
