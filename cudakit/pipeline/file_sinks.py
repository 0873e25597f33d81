"""Sinks that write one file: a memory map, or an `.npy` file.

An `.npy` file gets its own name only when it is complete. A stopped run leaves its finished items and their journal
next to it, and `resume=True` continues from there. While a run writes, it holds the output's lock.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.memory.layout import is_contiguous
from cudakit.pipeline.direct import PAGE, DiskFile
from cudakit.pipeline.files import HostArray, file_of, npy_header, place_in_file, write_whole
from cudakit.pipeline.journal import Journal
from cudakit.pipeline.lock import OutputLock
from cudakit.pipeline.ranges import Range, merged
from cudakit.pipeline.refusals import ContentsRefused, FileMissing, FileOccupied, FileRefused, explained
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.sources import Item


class _FilePortion(Sink):
    """Writes a worker's share to its place in the file, which the client's process has opened and keeps."""

    def __init__(self, path: Path, offset: int, direct: bool) -> None:
        self.path, self._offset, self._unbuffered = path.resolve(), offset, direct
        self._item: Item | None = None
        self._file: DiskFile | None = None

    def open(self, spec: SinkSpec) -> list[Range]:
        self._item = spec.item
        with explained(f"{self.path}, the place for the results,", "use a file system that all workers share"):
            self._file = DiskFile(self.path, os.O_RDWR, direct=self._unbuffered)
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._file is None or self._item is None:
            raise ValueError(f"{self.path} is not open")
        self._file.write(items, self._offset + start * self._item.nbytes)

    def finish(self, count: int) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class JournaledSink(Sink):
    """Writes to local files, with a journal of the items that are written, under a lock. Here: at the items' offsets in
    one file.

    path: the output. lock: the lock's file.
    """

    private = ""
    promise = (
        "the results of a share go straight to their place in the file: they can be written twice, if a worker that "
        "the cluster lost is still running, with the same bytes if the function is deterministic"
    )

    def __init__(self, path: Path, lock: Path) -> None:
        self.path = path
        self._lock = OutputLock(lock)
        self._file: int | None = None
        self._direct: DiskFile | None = None
        self._offset = 0
        self._item: Item | None = None
        self._journal: Journal | None = None
        self._whole = False

    @property
    def _record(self) -> Path:
        return self.path.with_name(self.path.name + ".journal")

    def _discard(self) -> None:
        """Remove this run's file of results, which has no finished item."""

    def _begin(self, spec: SinkSpec, what: dict[str, Any]) -> tuple[Journal, list[Range]]:
        """Return the journal, and the ranges that it records of an earlier run."""
        journal = Journal(self._record, {**spec.job(), **what})
        self._item, self._whole = spec.item, False
        if not self._record.exists() or spec.overwrite:
            return journal, []
        if not spec.resume and journal.began():
            raise FileOccupied(
                f"{self.where} has the results of an unfinished run, recorded in {self._record}: pass resume=True to "
                "continue it, or overwrite=True to start again"
            )
        return journal, journal.finished(spec.count) if spec.resume else []

    def _follow(self, journal: Journal, finished: list[Range], file: Path, flags: int) -> None:
        """Create the journal, then open its file, in this order: a file without a journal belongs to no run."""
        with explained(f"{file}, the place for the results,", "pass another output, or free disk space"):
            self._journal = journal
            journal.open(finished)
            self._file = system.open_file(file, flags)
            journal.follow(functools.partial(system.sync_data, self._file))

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._file is None or self._item is None or self._journal is None:
            raise ValueError(f"{self.path} is not open")
        offset = self._offset + start * self._item.nbytes
        if self._direct is not None:
            self._direct.write(items, offset)
        else:
            write_whole(self._file, items, offset)
        self._journal.add(start, stop)

    @property
    def _place(self) -> Path:
        """The file that the results are written to."""
        return self.path

    def portion(self, attempt: str) -> Sink:
        return _FilePortion(self._place, self._offset, self._direct is not None)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        if self._journal is not None:  # it is None if an earlier run finished all items
            self._journal.add(start, stop)

    def finish(self, count: int) -> None:
        if self._journal is not None:
            self._journal.flush()
        self._whole = True

    def close(self) -> None:
        journal, self._journal = self._journal, None
        opened = self._file is not None
        try:
            nothing = journal is not None and not journal.added and not self._whole
            if journal is not None:
                journal.close(remove=nothing or self._whole)
            self._close_file()
            if nothing and opened:
                self._discard()
        finally:
            self._close_file()
            self._lock.release()

    def _close_file(self) -> None:
        """Close the file of the results, which is on disk. Idempotent."""
        file, self._file = self._file, None
        direct, self._direct = self._direct, None
        try:
            if file is not None:
                os.close(file)
        finally:
            if direct is not None:
                direct.close()


class ToMap(JournaledSink):
    """Writes to the file of a memory map, so that the map shows the results.

    If the disk is full, this raises an error, whereas a write to the map would end the process with SIGBUS. Runs in
    several processes may write slices of one map.

    Args:
        array: The memory map, of mode "r+" or "w+" and without gaps; its first axis counts the items.

    Raises:
        ValueError: If the map is read-only or has gaps.
    """

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        path = file_of(array)
        if array.mode not in ("r+", "w+") or path is None:
            raise ValueError(f"the memory map must have mode 'r+' or 'w+', got {array.mode!r}: open it with 'r+'")
        if array.ndim == 0 or not is_contiguous(array.shape, array.strides, array.itemsize):
            raise ValueError(
                f"the memory map has gaps (shape {array.shape}, strides {array.strides}): pass a contiguous part, or "
                "the whole map"
            )
        real = path.resolve()
        super().__init__(path, real.with_name(real.name + ".lock"))
        self._offset = place_in_file(array)
        self.array = array
        self.where = str(self.path)

    def item(self) -> Item:
        return Item.of(self.array.shape[1:], self.array.dtype)

    @property
    def _record(self) -> Path:
        # named by offset: several maps of one file have a journal each
        return self.path.with_name(f"{self.path.name}.{self._offset}.journal")

    def write(self, start: int, stop: int, items: HostArray) -> None:
        expect_room(stop, len(self.array), self.where)
        super().write(start, stop, items)

    def finish(self, count: int) -> None:
        expect_full(count, len(self.array), self.where)
        super().finish(count)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_same_item(self.item(), spec.item, f"the memory map of {self.path}")
        if spec.count is not None and spec.count != len(self.array):
            raise ValueError(f"{self.path} must have room for {spec.count:,} items, got {len(self.array):,}")
        end = self._offset + self.array.nbytes
        self._lock.take((self._offset, end), self.path)
        journal, finished = self._begin(spec, {"offset": self._offset})
        if finished:
            expect_size(self.path, self._record, end, exact=False)
        self._follow(journal, finished, self.path, os.O_WRONLY)
        return finished


class ToFile(JournaledSink):
    """Writes all items to one `.npy` file. Until it is complete it is FILE.part, with its journal FILE.journal.

    Args:
        path: The file.
        direct: Whether to write without the page cache. The header is then a page long, so that items of whole pages
            are written without a copy.

    Raises:
        FileRefused: If the file system does not support direct I/O.
    """

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = False) -> None:
        path = Path(path)
        super().__init__(path, path.with_name(path.name + ".lock"))
        self._unbuffered = direct
        self._part = self.path.with_name(self.path.name + ".part")
        self._replaces = False
        self.where = str(self._part)

    @property
    def _place(self) -> Path:
        return self._part

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_folder(self.path)
        self._lock.take(None, self.path)
        there, begun = self.path.exists(), self._record.exists()
        if there and not spec.overwrite and not (spec.resume and begun and self._part.exists()):
            count = self._count_of_finished(spec) if spec.resume else None
            if count is None:
                raise FileOccupied(f"{self.path} already exists: pass overwrite=True, or another file")
            if count:
                spec.origin.expect_older(None, self.path, self.path.stat().st_mtime_ns)
            self._record.unlink(missing_ok=True)  # left by a run that was killed at its end
            return merged([(0, count)])
        if self._part.exists() and not begun and not spec.overwrite:
            raise FileOccupied(
                f"{self._part}, the place for unfinished results, exists without a journal, so it is not from a "
                "pipeline: remove it, pass overwrite=True, or pass another file"
            )
        if not spec.overwrite and not begun:
            expect_disk(self.path.parent, spec, 0)
        journal, finished = self._begin(spec, {"direct": True} if self._unbuffered else {})
        header, trailer = self._frame(spec.count, spec.item)
        self._offset = len(header)
        if finished:
            items = finished[-1][1] if spec.count is None else spec.count
            due = self._offset + items * spec.item.nbytes + (len(trailer) if spec.count is not None else 0)
            expect_size(self._part, self._record, due, exact=spec.count is not None)
        if not spec.overwrite:
            expect_disk(self.path.parent, spec, sum(stop - start for start, stop in finished))
        self._replaces = spec.overwrite or there
        self._follow(journal, finished, self._part, os.O_RDWR | os.O_CREAT | (0 if finished else os.O_TRUNC))
        if self._file is not None:
            with explained(f"{self._part}, the place for the results,", "pass another output, or free disk space"):
                write_whole(self._file, np.frombuffer(header, np.uint8), 0)
                if spec.count is not None:
                    system.set_length(self._file, self._offset + spec.count * spec.item.nbytes + len(trailer))
            if self._unbuffered:
                self._direct = DiskFile(self._part, os.O_RDWR, direct=True)
        return finished

    def _frame(self, count: int | None, item: Item) -> tuple[bytes, bytes]:
        """Return the bytes before and after the items. count: None if it is unknown; the length of the first part does
        not depend on it."""
        return npy_header_bytes(count or 0, item, length=PAGE if self._unbuffered else 0), b""

    def _count_of_finished(self, spec: SinkSpec) -> int | None:
        """Return the number of items in the finished file; None if the file does not fit this job."""
        shape, _, offset = npy_header(self.path)
        count = shape[0] if shape else 0
        if not shape or (spec.count is not None and count != spec.count):
            return None
        with self.path.open("rb") as file:
            mine = file.read(offset) in (npy_header_bytes(count, spec.item, length=length) for length in (0, PAGE))
        return count if mine and self.path.stat().st_size == offset + count * spec.item.nbytes else None

    def finish(self, count: int) -> None:
        if self._file is None or self._item is None:
            return  # an earlier run finished it
        super().finish(count)
        self._whole = False
        header, trailer = self._frame(count, self._item)
        write_whole(self._file, np.frombuffer(header, np.uint8), 0)
        write_whole(self._file, np.frombuffer(trailer, np.uint8), self._offset + count * self._item.nbytes)
        # Synced before it is renamed, so that the file is complete under its name even after a power failure.
        os.fsync(self._file)
        if self.path.exists() and not self._replaces:
            raise FileOccupied(
                f"{self.path} was made by another program during the run: move it, and pass resume=True to save the "
                "results"
            )
        self._close_file()  # Windows renames no open file
        with explained(f"{self.path}, the place for the results,", "close it in other programs, and pass resume=True"):
            self._part.replace(self.path)
        self._whole = True


def npy_header_bytes(count: int | None, item: Item, *, length: int = 0) -> bytes:
    """Return an `.npy` header for `count` items, or for one item if None; its length does not depend on `count`. It is
    padded to `length` bytes if it is shorter."""
    text = io.BytesIO()
    shape = item.shape if count is None else (count, *item.shape)
    described = {"descr": np.lib.format.dtype_to_descr(item.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    header = text.getvalue()
    if len(header) >= length:
        return header
    # Magic and version, 8 bytes; the length of the rest, 2 bytes; the description, which ends with blanks and a newline
    return header[:8] + (length - 10).to_bytes(2, "little") + header[10:-1].ljust(length - 11) + b"\n"


def expect_folder(path: Path) -> None:
    """Raise FileMissing if the folder for a result does not exist."""
    with explained(f"{path}, the place for the results,", "pass another path"):
        there = path.parent.is_dir()
    if not there:
        raise FileMissing(f"there is no folder {path.parent} for {path.name}: make it first, or pass another path")


def expect_size(path: Path, record: Path, due: int, *, exact: bool) -> None:
    """Raise ContentsRefused if unfinished results have fewer bytes than their journal requires (or, with `exact`,
    more)."""
    there = path.stat().st_size if path.exists() else 0
    if there < due or (exact and there != due):
        raise ContentsRefused(
            f"{path} has {there:,} bytes, and its record {record} requires {due:,}: it has been changed. Restore it, "
            "or pass overwrite=True to start again"
        )


def expect_disk(folder: Path, spec: SinkSpec, finished: int) -> None:
    """Raise FileRefused if the disk has no room for the remaining results."""
    if spec.count is None:
        return
    free, due = shutil.disk_usage(folder).free, (spec.count - finished) * spec.item.nbytes
    if due > free:
        raise FileRefused(
            f"the results need {due / 1e9:,.1f} GB in {folder}, and {free / 1e9:,.1f} GB are free there: free disk "
            "space, pass another path, or drop the results (None as sink)"
        )
