"""A source that reads a folder or a list of files, one item per file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cudakit import system
from cudakit.pipeline.files import HostArray, is_result, npy_header, read_whole
from cudakit.pipeline.refusals import ContentsRefused, explained
from cudakit.pipeline.sources import Item, Source, file_modified, files_identity
from cudakit.pipeline.tiff import SUFFIXES, FromTIFF


class FromFiles(Source):
    """Items from `.npy` or TIFF files, one per file, such as a set of images. An item's name is the stem of its file.

    Args:
        paths: The files in order; or a folder, for all its `.npy` files in order of names, except hidden files;
            without `.npy` files, for its `.tif` and `.tiff` files.
        dtype: The dtype of the elements, as for `FromFile`; not for TIFF files.

    Raises:
        FileMissing: If a file or folder does not exist.
        ContentsRefused: If a folder has no such file, or the first file cannot be read.
        ImportError: If there are TIFF files and tifffile is not installed.
    """

    def __init__(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], dtype: Any = None) -> None:
        self._dtype = dtype
        if isinstance(paths, (str, os.PathLike)):
            folder = Path(paths)
            with explained(f"the folder {str(folder)!r} of source items", "name a folder of .npy or .tif files"):
                names = sorted(entry.name for entry in os.scandir(folder))
            found = [name for name in names if is_result(name)] or [name for name in names if is_result(name, SUFFIXES)]
            if not found:
                raise ContentsRefused(f"there is no .npy or .tif file in {folder}")
            paths = [folder / name for name in found]
        if not paths:
            raise ValueError("the list of files must have at least 1 path, got 0")
        self._paths = [os.fspath(path) for path in paths]
        self.item = self._file(self._paths[0], decode=True)[0]
        self.count = len(self._paths)
        names = [Path(path).stem for path in self._paths]
        # Results are saved under these names, so equal names would overwrite each other; on Windows A and a are equal.
        twice = len(set(map(os.path.normcase, names))) < len(names)
        self._names = None if twice else names
        self.named = not twice

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_paths": [os.path.abspath(path) for path in self._paths]}

    @property
    def folders(self) -> set[Path]:
        """The folders of the files."""
        return {Path(path).parent.resolve() for path in self._paths}

    def read(self, start: int, stop: int, into: HostArray) -> None:
        for place, path in enumerate(self._paths[start:stop]):
            item, read = self._file(path)
            if item != self.item:
                raise ValueError(
                    f"all files must have the shape and dtype of the first, {self.item}: {path} has {item}"
                )
            read(into[place : place + 1])

    def _file(self, path: str, *, decode: bool = False) -> tuple[Item, Callable[[HostArray], None]]:
        """Return the item of a file, and a function that reads it."""
        if path.endswith(SUFFIXES):
            page = FromTIFF(path, decode=decode)
            if page.count != 1:
                raise ContentsRefused(f"{path} must have 1 page, got {page.count:,}: pass the file alone to FromTIFF")
            return page.item, lambda into: _read_page(page, into)
        shape, dtype, offset = npy_header(Path(path), self._dtype)
        return Item.of(shape, dtype), lambda into: _read_numbers(path, offset, into)

    def identity(self) -> dict[str, Any]:
        return {**files_identity(self._paths), **super().identity()}

    def modified(self, number: int) -> int | None:
        return file_modified(self._paths[number])

    def labels(self, start: int, stop: int) -> list[str] | None:
        return None if self._names is None else self._names[start:stop]


def _read_page(page: FromTIFF, into: HostArray) -> None:
    try:
        page.read(0, 1, into)
    finally:
        page.close()


def _read_numbers(path: str, offset: int, into: HostArray) -> None:
    file = system.open_file(path, os.O_RDONLY)
    try:
        read_whole(file, into, offset, Path(path))
    finally:
        os.close(file)
