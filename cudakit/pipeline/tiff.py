"""TIFF files as sources and sinks of pipelines. tifffile is imported when it is needed."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.pipeline.files import HostArray, read_whole
from cudakit.pipeline.framed import FramedFile
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.refusals import ContentsRefused, FileRefused, explained
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.sources import Item, Source, file_identity, file_modified

SUFFIXES = (".tif", ".tiff")
_KINDS = "iufc"  # integers, real and complex numbers
_LARGE = (1 << 32) - (1 << 25)  # bytes of items from which a file is a BigTIFF
_PER_PAGE = 512  # at most the bytes of one page's description


def tifffile_package() -> Any:
    """Return the module tifffile. Raises ImportError with the command that installs it."""
    try:
        import tifffile
    except ImportError as error:
        raise ImportError("TIFF files need the package tifffile: pip install 'cudakit[tiff]'") from error
    return tifffile


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert tifffile's errors for another file, a damaged one or an unknown codec to ContentsRefused."""
    with explained(f"the TIFF file {str(path)!r}", "pass a TIFF file"):
        try:
            yield
        except (OSError, ContentsRefused):
            raise
        except Exception as error:  # tifffile raises errors of many types for damaged files
            raise ContentsRefused(f"{path} is not a readable TIFF file: {type(error).__name__}: {error}") from error


class FromTIFF(Source):
    """Pages of a TIFF or BigTIFF file. For a folder or a list of files with one page each, pass it to `FromFiles`.

    Pages without compression are read straight into the pipeline's buffer, all others are decoded by tifffile.

    Args:
        path: The file. All its pages must have the same shape and dtype.
        decode: Whether to decode the first page now, so that a missing codec is an error before the run.

    Raises:
        ImportError: If tifffile is not installed.
        FileMissing: If the file does not exist.
        FileRefused: If it is a folder.
        ContentsRefused: If it is not a TIFF file, is truncated, has pages of several shapes, or a compression that
            tifffile cannot decode (most need the package imagecodecs).
    """

    def __init__(self, path: str | os.PathLike[str], *, decode: bool = True) -> None:
        self.path = Path(path)
        self._local, self._files = threading.local(), []  # type: tuple[threading.local, list[Any]]
        tifffile = tifffile_package()
        if self.path.is_dir():
            raise FileRefused(f"{self.path} is a folder: pass it to FromFiles, or as it is")
        with _readable(self.path), tifffile.TiffFile(self.path) as file:
            self.item, self.count, self._offsets = self._inspected(file)
            if self._offsets is None and decode:
                file.pages[0].asarray()

    def _inspected(self, file: Any) -> tuple[Item, int, list[int] | None]:
        """Return a page's shape and dtype, the number of pages, and their places if they are not encoded."""
        there, first = self.path.stat().st_size, file.pages[0]
        if first.dtype is None or first.dtype.kind not in _KINDS:
            raise ContentsRefused(f"the pages of {self.path} must have whole bytes per number, got {first.dtype}")
        item, native = Item.of(first.shape, first.dtype), file.byteorder == "<" or first.dtype.itemsize == 1
        series = file.series[0]
        if series.dataoffset is not None and len(file.series) == 1 and native:  # one description for several pages
            count = series.size // max(first.size, 1)
            offsets: list[int] | None = [series.dataoffset + number * item.nbytes for number in range(count)]
            ends = [series.dataoffset + count * item.nbytes]
        else:
            count, offsets, ends = len(file.pages), [], []
            for number, page in enumerate(file.pages):
                if page.shape != first.shape or page.dtype != first.dtype:
                    raise ContentsRefused(
                        f"page {number} of {self.path} has {page.dtype}{list(page.shape)}, and the first has {item}: "
                        "save pages of one shape and dtype in a file of their own"
                    )
                ends += [at + size for at, size in zip(page.dataoffsets, page.databytecounts, strict=True)]
                if offsets is not None and page.is_contiguous and native:
                    offsets.append(page.dataoffsets[0])
                else:
                    offsets = None
        if not _is_last(file, file.pages[-1]):  # tifffile logs it, and leaves out the pages after it
            raise ContentsRefused(f"{self.path} is truncated: page {len(file.pages)} is missing")
        if max(ends, default=0) > there:
            raise ContentsRefused(f"{self.path} is truncated: it has {there:,} bytes, its pages need {max(ends):,}")
        return item, count, offsets

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"path": self.path.resolve(), "_files": []}
        del state["_local"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def read(self, start: int, stop: int, into: HostArray) -> None:
        if self._offsets is None:
            pages = self._opened().pages
            for number in range(start, stop):
                into[number - start] = pages[number].asarray()
            return
        file = system.open_file(self.path, os.O_RDONLY)
        try:
            while start < stop:
                end = start + 1
                while end < stop and self._offsets[end] == self._offsets[end - 1] + self.item.nbytes:
                    end += 1
                part = into[len(into) - (stop - start) : len(into) - (stop - end)]
                read_whole(file, part, self._offsets[start], self.path)
                start = end
        finally:
            os.close(file)

    def _opened(self) -> Any:
        """Return this thread's open file; after `close` it is opened again."""
        file = getattr(self._local, "file", None)
        if file is None:
            file = self._local.file = tifffile_package().TiffFile(self.path)
            self._files.append(file)
        return file

    def identity(self) -> dict[str, Any]:
        return {**file_identity(self.path), **super().identity()}

    def modified(self, number: int) -> int | None:
        return file_modified(self.path)

    def close(self) -> None:
        self._local = threading.local()
        while self._files:
            self._files.pop().close()


def _is_last(file: Any, page: Any) -> bool:
    """Whether no page follows: the description of a page ends with the offset of the next one, or 0."""
    wide, handle = file.is_bigtiff, file.filehandle
    order: Any = "little" if file.byteorder == "<" else "big"
    handle.seek(page.offset)
    tags = int.from_bytes(handle.read(8 if wide else 2), order)
    handle.seek(tags * (20 if wide else 12), os.SEEK_CUR)
    following = handle.read(8 if wide else 4)
    return len(following) == (8 if wide else 4) and not any(following)


class ToTIFF(FramedFile):
    """Writes all items as the pages of one TIFF file, without compression; a BigTIFF if it has 4 GB or an unknown
    number of items. Until it is complete it is FILE.part, with its journal FILE.journal. For one file per item, use
    `ToFolder(folder, suffix=".tif")`.

    An item is an image of (height, width), or of (height, width, 3 or 4) 8-bit or 16-bit integers for colours.

    Args:
        path: The file.

    Raises:
        ImportError: If tifffile is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        tifffile_package()
        super().__init__(path)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_page(spec.item)
        if spec.count == 0:
            raise ValueError(f"a TIFF file must have at least 1 page, got 0 items for {self.path}")
        self._big = spec.count is None or spec.count * (spec.item.nbytes + _PER_PAGE) > _LARGE
        return super().open(spec)

    def _empty(self, path: Path, count: int, item: Item) -> int | None:
        return write_empty(path, count, item, big=self._big)

    def _reader(self) -> Source:
        return FromTIFF(self.path)


def expect_page(item: Item) -> None:
    """Raise ValueError if items cannot be pages of a TIFF file."""
    if item.dtype.kind not in _KINDS or not (len(item.shape) == 2 or _coloured(item)) or not item.nbytes:
        raise ValueError(
            "a page of a TIFF file must be an image of (height, width) numbers, or of (height, width, 3 or 4) 8-bit or "
            f"16-bit integers, got {item}"
        )


def _coloured(item: Item) -> bool:
    return len(item.shape) == 3 and item.shape[2] in (3, 4) and item.dtype in (np.uint8, np.uint16)


def write_empty(path: Path, count: int, item: Item, *, big: bool) -> int:
    """Write a TIFF file with room for `count` pages, one after the other, and return the offset of the first."""
    with tifffile_package().TiffWriter(path, bigtiff=big, byteorder="<") as file:
        place = file.write(
            None, shape=(count, *item.shape), dtype=item.dtype, photometric="rgb" if _coloured(item) else "minisblack",
            metadata=None, software=False, contiguous=True, returnoffset=True,
        )  # fmt: skip
    return int(place[0])


def page_header(item: Item) -> bytes:
    """Return the bytes before the numbers in a TIFF file of one page."""
    expect_page(item)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.tif"
        offset = write_empty(path, 1, item, big=item.nbytes > _LARGE)
        with path.open("rb") as file:
            return file.read(offset)
