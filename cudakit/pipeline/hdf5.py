"""HDF5 datasets as a source and a sink of pipelines. h5py is imported when it is needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.pipeline.file_sinks import expect_disk, expect_folder
from cudakit.pipeline.files import HostArray, read_whole
from cudakit.pipeline.framed import FramedFile
from cudakit.pipeline.objects import has_scheme
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied, explained
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.sources import Item, Source, file_identity, file_modified
from cudakit.pipeline.zarr_sink import default_items

SUFFIXES = (".h5", ".hdf5")
_KINDS = "biufc"  # booleans, integers, real and complex numbers
_ADVICE = "pass an HDF5 file"


def split_address(text: str) -> tuple[str, str | None] | None:
    """Return the file and the dataset of an address such as "scan.h5::entry/data", or of a file alone; None if it is
    not an HDF5 file's. Raises ValueError if the dataset has no name."""
    path, found, dataset = text.partition("::")
    if not path.endswith(SUFFIXES) or has_scheme(path) or os.path.isdir(text):
        return None
    if found and not dataset.strip("/"):
        raise ValueError(f"{text!r} has no dataset after the ::, pass {path + '::entry/data'!r}, or {path!r}")
    return path, dataset or None


def h5py_package() -> Any:
    """Return the module h5py. Raises ImportError with the command that installs it."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need the package h5py: pip install 'cudakit[hdf5]'") from error
    return h5py


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert h5py's errors for another, a truncated or a damaged file to ContentsRefused."""
    with explained(f"the HDF5 file {str(path)!r}", _ADVICE):
        path.stat()
        try:
            yield
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except (OSError, RuntimeError, KeyError) as error:
            raise ContentsRefused(f"{path} is not a readable HDF5 file: {error}. Write it again") from error


class FromHDF5(Source):
    """Items of a dataset in an HDF5 file.

    A dataset without chunks is read straight into the pipeline's buffer, by all reader threads. HDF5 reads a dataset
    with chunks, one thread at a time; a chunk is decoded once if chunks of the pipeline have whole ones.

    Args:
        path: The file.
        dataset: The path of the dataset in the file, such as "entry/data"; None for the only one.

    Raises:
        ImportError: If h5py is not installed.
        FileMissing: If the file does not exist.
        ContentsRefused: If it is not an HDF5 file, is truncated, or has no such dataset of numbers.
    """

    def __init__(self, path: str | os.PathLike[str], dataset: str | None = None) -> None:
        self.path = Path(path)
        self._lock, self._file = threading.Lock(), None
        h5py = h5py_package()
        with _readable(self.path), h5py.File(self.path, "r") as file:
            found = _dataset(file, dataset, self.path)
            self.dataset = str(found.name)
            dtype = np.dtype(found.dtype)
            if dtype.kind not in _KINDS or not found.shape:
                raise ContentsRefused(
                    f"{self.dataset} in {self.path} must be an array of numbers whose first axis counts the items, got "
                    f"shape {found.shape} of {dtype}"
                )
            self.item, self.count = Item.of(found.shape[1:], dtype.newbyteorder("=")), int(found.shape[0])
            self.unit = int(found.chunks[0]) if found.chunks else 1
            plain = not (found.chunks or found.external or found.is_virtual) and dtype.isnative
            self._offset = found.id.get_offset() if plain else None
        due = 0 if self._offset is None else self._offset + self.count * self.item.nbytes
        if self.path.stat().st_size < due:
            raise ContentsRefused(f"{self.path} is truncated: {self.count:,} items need {due:,} bytes")

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"path": self.path.resolve(), "_file": None}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def read(self, start: int, stop: int, into: HostArray) -> None:
        if stop <= start or not into.nbytes:
            return
        if self._offset is None:
            self._opened()[self.dataset].read_direct(into, np.s_[start:stop])
            return
        file = system.open_file(self.path, os.O_RDONLY)
        try:
            read_whole(file, into, self._offset + start * self.item.nbytes, self.path)
        finally:
            os.close(file)

    def _opened(self) -> Any:
        """Return the open file; after `close` it is opened again."""
        with self._lock:
            if self._file is None:
                self._file = h5py_package().File(self.path, "r")
            return self._file

    def identity(self) -> dict[str, Any]:
        return {**file_identity(self.path), "dataset": self.dataset, **super().identity()}

    def modified(self, number: int) -> int | None:
        return file_modified(self.path)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _dataset(file: Any, name: str | None, path: Path) -> Any:
    """Return a dataset of an open file. name: None for the only one."""
    dataset_type, names = h5py_package().Dataset, []
    file.visititems(lambda place, node: names.append(place) if isinstance(node, dataset_type) else None)
    if name is None and len(names) == 1:
        return file[names[0]]
    if name is not None and name in file and isinstance(file[name], dataset_type):
        return file[name]
    wrong = f"has {len(names):,} datasets" if name is None else f"has no dataset {name!r}"
    raise ContentsRefused(f"{path} {wrong}: pass dataset=, one of {', '.join(names[:10]) or '(none)'}")


class ToHDF5(FramedFile):
    """Writes a new HDF5 file with one dataset. Until it is complete it is FILE.part.

    A dataset without chunks is written straight to the file, by all writer threads and by workers of a cluster, with
    its journal FILE.journal, from which `resume=True` continues. HDF5 writes a dataset with chunks: one thread at a
    time, and a stopped run starts again.

    Args:
        path: The file.
        dataset: The path of the dataset in the file; its groups are made.
        chunks: Items per chunk, or the shape of a chunk; None for none, or a default if there is a compression.
        compression: As for `h5py.Group.create_dataset`: "gzip", "lzf", or None.

    Raises:
        ImportError: If h5py is not installed.
        ValueError: If a chunk has no items.
    """

    def __init__(
        self, path: str | os.PathLike[str], dataset: str = "data", chunks: int | tuple[int, ...] | None = None,
        compression: Any = None,
    ) -> None:  # fmt: skip
        h5py_package()
        super().__init__(path)
        self.dataset, self._chunks, self._compression = dataset, chunks, compression
        self._stored = chunks is not None or compression is not None
        self._open: Any = None
        self._writing = threading.Lock()
        self._done = False
        if chunks is not None:
            self.unit = int(chunks if isinstance(chunks, (int, np.integer)) else chunks[0])
            if self.unit < 1:
                raise ValueError(f"chunks must have at least 1 item, got {chunks}")
        if self._stored:
            self.forgets = "HDF5 chunks are damaged if a run is killed: pass no chunks or compression, or use ToZarr"
            self.private = "only one process can write HDF5 chunks: pass no chunks or compression, or use ToZarr"

    # Without chunks ---------------------------------------------------------------------------------------------------

    def _empty(self, path: Path, count: int, item: Item) -> int | None:
        h5py = h5py_package()
        made, linked = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5p.create(h5py.h5p.LINK_CREATE)
        made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        made.set_obj_track_times(False)  # a resumed run compares these bytes
        linked.set_create_intermediate_group(True)
        space = h5py.h5s.create_simple((count, *item.shape))
        with h5py.File(path, "w") as file:
            kind = h5py.h5t.py_create(item.dtype, logical=True)
            offset = h5py.h5d.create(file.id, self.dataset.encode(), kind, space, made, linked).get_offset()
        return None if offset is None else int(offset)

    def _reader(self) -> Source:
        return FromHDF5(self.path, self.dataset)

    # With chunks ------------------------------------------------------------------------------------------------------

    def open(self, spec: SinkSpec) -> list[Range]:
        if spec.item.dtype.kind not in _KINDS:
            raise ValueError(f"HDF5 has no {spec.item.dtype}: store its bits as integers, or float32")
        if not self._stored:
            return super().open(spec)
        expect_folder(self.path)
        self._lock.take(None, self.path)
        for path in (self.path, self._part):
            if path.exists() and not spec.overwrite:
                raise FileOccupied(f"{path} already exists: pass overwrite=True, or another file")
        self._replaces, self._item, self._done = spec.overwrite, spec.item, False
        if self._compression is None:
            expect_disk(self.path.parent, spec, 0)
        chunks = default_items(spec, None) if self._chunks is None else self._chunks
        if isinstance(chunks, (int, np.integer)):
            chunks = (int(chunks), *(max(extent, 1) for extent in spec.item.shape))
        self.unit = chunks[0]
        with explained(f"{self._part}, the place for the results,", "pass another output"):
            self._open = h5py_package().File(self._part, "w")
            self._open.create_dataset(
                self.dataset, (spec.count or 0, *spec.item.shape), spec.item.dtype, chunks=chunks,
                maxshape=(None, *spec.item.shape), compression=self._compression,
            )  # fmt: skip
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._open is None:
            super().write(start, stop, items)
            return
        dataset = self._open[self.dataset]
        with self._writing:  # a resize and the write after it
            if stop > len(dataset):
                dataset.resize(stop, axis=0)
            dataset[start:stop] = items

    def finish(self, count: int) -> None:
        if self._open is None:
            super().finish(count)
            return
        self._open.close()
        system.sync_path(self._part)
        if self.path.exists() and not self._replaces:
            raise FileOccupied(f"{self.path} was made by another program during the run: move it, and run again")
        self._part.replace(self.path)
        self._done = True

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
            if not self._done:  # it cannot be resumed
                self._part.unlink(missing_ok=True)
        super().close()
