"""Sinks that keep results in memory, pass them on, or drop them; and the sink of whatever `run` is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.memory.layout import is_contiguous
from cudakit.memory.pinned import is_pinned
from cudakit.pipeline.file_sinks import ToFile, ToMap
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.folder_sink import ToFolder
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.sources import Item


class Nowhere(Sink):
    """Drops the results once they have reached the host."""

    forgets = "a null sink keeps nothing to go on from"

    def write(self, start: int, stop: int, items: HostArray) -> None:
        pass


class Each(Sink):
    """Gives every chunk to a function, in order: function(start, stop, items). The array is reused once it returns."""

    ordered = True
    forgets = "a function keeps no record of what it was given"

    def __init__(self, function: Callable[[int, int, HostArray], Any]) -> None:
        self._function = function

    def write(self, start: int, stop: int, items: HostArray) -> None:
        self._function(start, stop, items)


class ToArray(Sink):
    """The items of a numpy array, any strides; straight into it where it is pinned and contiguous."""

    forgets = "an array in memory ends with its process"

    def __init__(self, array: HostArray) -> None:
        if array.ndim == 0:
            raise ValueError("an array without axes has no place for items: the first axis counts them")
        if not array.flags.writeable:
            raise ValueError("the array for the results is read-only")
        self.array = array
        self._straight: bool | None = None
        self.where = "the array for the results"

    def item(self) -> Item:
        return Item.of(self.array.shape[1:], self.array.dtype)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_same_item(self.item(), spec.item, "the array for the results")
        if spec.count is not None and spec.count != len(self.array):
            raise ValueError(f"{spec.count:,} items were asked for, and the array for them holds {len(self.array):,}")
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        expect_room(stop, len(self.array), self.where)
        np.copyto(self.array[start:stop], items)

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        if self._straight is None:
            array = self.array
            self._straight = is_contiguous(array.shape, array.strides, array.itemsize) and is_pinned(context, array)
        if not self._straight:
            return None
        expect_room(stop, len(self.array), self.where)
        return self.array[start:stop]

    def finish(self, count: int) -> None:
        expect_full(count, len(self.array), self.where)


def as_sink(given: Any) -> Sink:
    """What `run` takes for an output: a Sink, an array or memory map, the path of an `.npy` file, the path of a folder
    (it exists, or its name has no ending), a function for `Each`, or None. Raises TypeError for anything else."""
    if given is None:
        return Nowhere()
    if isinstance(given, Sink):
        return given
    if isinstance(given, np.memmap):
        return ToMap(given)
    if isinstance(given, np.ndarray):
        return ToArray(given)
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if not os.fspath(given):
            raise ValueError("an empty path is no place for results: name an .npy file, or a folder")
        if path.suffix == ".npy" and not path.is_dir():
            return ToFile(path)
        if path.is_dir() or not path.suffix or os.fspath(given).endswith(("/", os.sep)):
            return ToFolder(path)
        raise ValueError(
            f"{path} is no place for results: name an .npy file, or a folder (with a / behind a name that has a dot)"
        )
    if callable(given):
        return Each(given)
    raise TypeError(
        f"{type(given).__name__} is no sink for results: give a numpy array, a numpy.memmap, the path of an .npy file "
        "or of a folder, a function of (start, stop, items), a pipeline sink, or None to drop them"
    )
