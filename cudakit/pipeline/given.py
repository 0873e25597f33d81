"""The choice of a source for an input of `run`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.pipeline import hdf5, parquet, tiff
from cudakit.pipeline.folder_source import FromFiles
from cudakit.pipeline.fsspec_source import FromFSSpec
from cudakit.pipeline.hdf5 import FromHDF5
from cudakit.pipeline.objects import has_scheme
from cudakit.pipeline.parquet import FromParquet
from cudakit.pipeline.sources import Blocks, FromArray, FromFile, Source
from cudakit.pipeline.tiff import FromTIFF
from cudakit.pipeline.zarr_arrays import is_array, is_zarr
from cudakit.pipeline.zarr_source import FromZarr


def as_source(given: Any) -> Source | Blocks:
    """Return the source for an input of `run`: a Source, an array or memory map, a path or URL of an `.npy` file, a
    folder or a Zarr array, the path of another format's file (for HDF5 with or without its dataset), a list of paths,
    or a generator of blocks. Raises TypeError for anything else."""
    if isinstance(given, (Source, Blocks)):
        return given
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError("masked arrays are unsupported, as the mask would be lost: pass array.filled(...)")
    if isinstance(given, np.memmap):
        return FromFile.of_map(given) or FromArray(given)
    if isinstance(given, np.ndarray):
        return FromArray(given)
    if is_array(given):
        return FromZarr(given)
    if isinstance(given, (str, os.PathLike)):
        address = hdf5.split_address(os.fspath(given))
        if address is not None:
            return FromHDF5(*address)
        if is_zarr(given):
            return FromZarr(given)
        if has_scheme(os.fspath(given)):
            return FromFSSpec(given)
        suffix = Path(given).suffix
        if suffix == parquet.SUFFIX:
            return FromParquet(given)
        if Path(given).is_dir():
            return FromFiles(given)
        return FromTIFF(given) if suffix in tiff.SUFFIXES else FromFile(given)
    if isinstance(given, list) and given and all(isinstance(path, (str, os.PathLike)) for path in given):
        return FromFiles(given)
    if isinstance(given, Iterator):
        return Blocks(given)
    if isinstance(given, list):
        raise TypeError("a list must contain paths of files with one item each: pass several sources as a tuple")
    raise TypeError(
        f"{type(given).__name__} is not a source: pass a numpy array, a numpy.memmap, the path of an .npy file, of a "
        "folder of them or of a Zarr array, a list of paths, a generator of blocks, or a pipeline source such as Filled"
    )
