"""Sinks that keep results in memory, pass them to a function, or drop them; and `as_sink`, which chooses a sink."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.memory.layout import is_contiguous
from cudakit.memory.pinned import is_pinned
from cudakit.pipeline import hdf5, parquet, tiff
from cudakit.pipeline.file_sinks import ToFile, ToMap
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.folder_sink import ToFolder
from cudakit.pipeline.fsspec_sink import ToFSSpec
from cudakit.pipeline.hdf5 import ToHDF5
from cudakit.pipeline.objects import has_scheme
from cudakit.pipeline.parquet_sink import ToParquet
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.sources import Item
from cudakit.pipeline.tiff import ToTIFF
from cudakit.pipeline.zarr_arrays import is_array, is_zarr
from cudakit.pipeline.zarr_sink import ToZarr


class Nowhere(Sink):
    """Drops the results after the copy to the host."""

    forgets = "a null sink keeps no results"
    private = ""

    def write(self, start: int, stop: int, items: HostArray) -> None:
        pass

    def portion(self, attempt: str) -> Sink:
        return Nowhere()

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        pass


class Each(Sink):
    """Passes the results to a function, chunk by chunk and in order.

    Args:
        function: `function(start, stop, items)`. The array `items` is reused after the function returns.
    """

    ordered = True
    forgets = "a function keeps no record of the results it received"
    private = "its function is in the client's process: write to files, and read them afterwards"

    def __init__(self, function: Callable[[int, int, HostArray], Any]) -> None:
        self._function = function

    def write(self, start: int, stop: int, items: HostArray) -> None:
        self._function(start, stop, items)


class ToArray(Sink):
    """Writes to a numpy array with any strides. If it is pinned and contiguous, the device copies directly to it.

    Args:
        array: The array; its first axis counts the items.

    Raises:
        ValueError: If the array has no axes, or is read-only.
    """

    forgets = "an array in memory does not outlive its process"
    private = "the array is in the client's memory: pass the path of an .npy file, and open it afterwards"

    def __init__(self, array: HostArray) -> None:
        if array.ndim == 0:
            raise ValueError("the array for the results must have at least 1 axis, which counts the items, got 0 axes")
        if not array.flags.writeable:
            raise ValueError("the array for the results is read-only: pass a writable one")
        self.array = array
        self._straight: bool | None = None
        self.where = "the array for the results"

    def item(self) -> Item:
        return Item.of(self.array.shape[1:], self.array.dtype)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_same_item(self.item(), spec.item, "the array for the results")
        if spec.count is not None and spec.count != len(self.array):
            raise ValueError(
                f"the array for the results must have room for {spec.count:,} items, got {len(self.array):,}"
            )
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
    """Return the sink for an output of `run`: a Sink, an array or memory map, a path of an `.npy` file, of a Zarr array
    (its name ends in .zarr, or there is one) or of a folder (it exists, or its name has no suffix), the URL of a Zarr
    array or a folder, a function for `Each`, or None. Raises TypeError for anything else."""
    if given is None:
        return Nowhere()
    if isinstance(given, Sink):
        return given
    if isinstance(given, np.memmap):
        return ToMap(given)
    if isinstance(given, np.ndarray):
        return ToArray(given)
    if is_array(given):
        return ToZarr(given)
    if isinstance(given, (str, os.PathLike)):
        address = hdf5.split_address(os.fspath(given))
        if address is not None:
            return ToHDF5(address[0], address[1] or "data")
        if is_zarr(given):
            return ToZarr(given)
        if has_scheme(os.fspath(given)):
            return _at_url(os.fspath(given))
        path = Path(given)
        if not os.fspath(given):
            raise ValueError("the path of a sink is empty: pass an .npy file, or a folder")
        if path.suffix == ".npy" and not path.is_dir():
            return ToFile(path)
        if path.suffix in tiff.SUFFIXES and not path.is_dir():
            return ToTIFF(path)
        if path.suffix == parquet.SUFFIX:
            return ToParquet(given)
        if path.is_dir() or not path.suffix or os.fspath(given).endswith(("/", os.sep)):
            return ToFolder(path)
        raise ValueError(
            f"{path} is neither an .npy file nor a folder, and its name does not end in .zarr, .h5, .hdf5, .tif, "
            ".tiff or .parquet: pass one of these; if a new folder has a dot in its name, add a / at the end"
        )
    if callable(given):
        return Each(given)
    raise TypeError(
        f"{type(given).__name__} is not a sink: pass a numpy array, a numpy.memmap, the path of an .npy file, of a "
        "Zarr array or of a folder, a function of (start, stop, items), a pipeline sink, or None to drop the results"
    )


def _at_url(url: str) -> Sink:
    name = url.rsplit("/", 1)[-1]
    if "." in name:
        raise ValueError(
            f"{url} is a URL of one object, which cannot be written in parts: pass the URL of a Zarr array, which ends "
            "in .zarr, or that of a folder for .npy parts, with a / at the end"
        )
    return ToFSSpec(url)
