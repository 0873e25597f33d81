"""Sinks that write one file: a memory map, or an `.npy` file.

A file appears under its own name only when it is whole; what a stopped run has finished stays beside it, with a journal
of it, and `resume=True` goes on from there. While a run writes, it holds the output's lock.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.memory.layout import is_contiguous
from cudakit.pipeline.files import HostArray, file_of, npy_header, place_in_file, write_whole
from cudakit.pipeline.journal import Journal
from cudakit.pipeline.lock import OutputLock
from cudakit.pipeline.ranges import Range, merged
from cudakit.pipeline.refusals import ContentsRefused, FileMissing, FileOccupied, FileRefused, explained
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.sources import Item


class _JournaledSink(Sink):
    """Items at their places in a file, with a journal of those that are there."""

    def __init__(self, path: Path, lock: Path) -> None:
        self.path = path
        self._lock = OutputLock(lock)
        self._file: int | None = None
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
        """The journal, and the ranges that it records of an earlier run."""
        journal = Journal(self._record, {**spec.job(), **what})
        self._item = spec.item
        if not self._record.exists() or spec.overwrite:
            return journal, []
        if not spec.resume and journal.began():
            raise FileOccupied(
                f"an unfinished run's results are at {self.where}, by its record {self._record}: pass resume=True to "
                "go on from there, or overwrite=True to begin anew"
            )
        return journal, journal.finished(spec.count) if spec.resume else []

    def _follow(self, journal: Journal, finished: list[Range], file: Path, flags: int) -> None:
        """Begin the journal, then open the file it is about: a file without a journal is not this run's."""
        with explained(f"{file}, the place for the results,", "name another output, or make room"):
            self._journal = journal
            journal.open(finished)
            self._file = os.open(file, flags, 0o666)
            journal.follow(self._file)

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._file is None or self._item is None or self._journal is None:
            raise ValueError(f"{self.path} is not open")
        write_whole(self._file, items, self._offset + start * self._item.nbytes)
        self._journal.add(start, stop)

    def finish(self, count: int) -> None:
        if self._journal is not None:
            self._journal.flush()
        self._whole = True

    def close(self) -> None:
        journal, self._journal = self._journal, None
        file, self._file = self._file, None
        try:
            if journal is not None:
                nothing = not journal.added and not self._whole
                journal.close(remove=nothing or self._whole)
                if nothing and file is not None:
                    self._discard()
            if file is not None:
                os.close(file)
        finally:
            self._lock.release()


class ToMap(_JournaledSink):
    """The items of a memory map that can be written. They are written to its file, which the map shows: a disk that is
    full is then an error; a write to the map would end the process with SIGBUS. Runs in several processes may each
    write a slice of one map."""

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        path = file_of(array)
        if array.mode not in ("r+", "w+") or path is None:
            raise ValueError(f"a memory map of mode {array.mode!r} cannot be written to: open it with 'r+'")
        if array.ndim == 0 or not is_contiguous(array.shape, array.strides, array.itemsize):
            raise ValueError(
                f"a memory map of shape {array.shape} and strides {array.strides} has gaps: give all of it"
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
        # by its place: two maps of one file have a journal each
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
            raise ValueError(f"{spec.count:,} items were asked for, and {self.path} holds {len(self.array):,}")
        end = self._offset + self.array.nbytes
        self._lock.take((self._offset, end), self.path)
        journal, finished = self._begin(spec, {"offset": self._offset})
        if finished:
            expect_size(self.path, self._record, end, exact=False)
        self._follow(journal, finished, self.path, os.O_WRONLY)
        return finished


class ToFile(_JournaledSink):
    """One `.npy` file of all items. Until it is whole it is FILE.part, with its journal FILE.journal beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = Path(path)
        super().__init__(path, path.with_name(path.name + ".lock"))
        self._part = self.path.with_name(self.path.name + ".part")
        self._replaces = False
        self.where = str(self._part)

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_folder(self.path)
        self._lock.take(None, self.path)
        there, begun = self.path.exists(), self._record.exists()
        if there and not spec.overwrite and not (spec.resume and begun and self._part.exists()):
            count = _whole(self.path, spec) if spec.resume else None
            if count is None:
                raise FileOccupied(f"{self.path} is there already: pass overwrite=True, or name another file")
            if count:
                spec.origin.expect_older(None, self.path, self.path.stat().st_mtime_ns)
            self._record.unlink(missing_ok=True)  # of a run that was killed as it ended
            return merged([(0, count)])
        if self._part.exists() and not begun and not spec.overwrite:
            raise FileOccupied(
                f"{self._part}, the place for unfinished results, exists without a journal, so no run of a pipeline "
                "left it there: remove it, pass overwrite=True, or name another file"
            )
        if not spec.overwrite and not begun:
            expect_disk(self.path.parent, spec, 0)
        journal, finished = self._begin(spec, {})
        header = npy_header_bytes(spec.count or 0, spec.item)
        self._offset = len(header)
        if finished:
            items = finished[-1][1] if spec.count is None else spec.count
            expect_size(self._part, self._record, self._offset + items * spec.item.nbytes, exact=spec.count is not None)
        if not spec.overwrite:
            expect_disk(self.path.parent, spec, sum(stop - start for start, stop in finished))
        self._replaces = spec.overwrite or there
        self._follow(journal, finished, self._part, os.O_RDWR | os.O_CREAT | (0 if finished else os.O_TRUNC))
        if self._file is not None:
            with explained(f"{self._part}, the place for the results,", "name another output, or make room"):
                write_whole(self._file, np.frombuffer(header, np.uint8), 0)
                if spec.count is not None:
                    os.ftruncate(self._file, self._offset + spec.count * spec.item.nbytes)
        return finished

    def finish(self, count: int) -> None:
        if self._file is None or self._item is None:
            return  # an earlier run finished it
        super().finish(count)
        self._whole = False
        os.pwrite(self._file, npy_header_bytes(count, self._item), 0)
        # A reader that finds the file under its name finds all of it, after a loss of power too.
        os.fsync(self._file)
        if self.path.exists() and not self._replaces:
            raise FileOccupied(
                f"{self.path} was made by another program during the run: move it, and pass resume=True to put the "
                "results there"
            )
        self._part.replace(self.path)
        self._whole = True


def npy_header_bytes(count: int | None, item: Item) -> bytes:
    """An `.npy` file's header for `count` items, or for one alone; as long for any count."""
    text = io.BytesIO()
    shape = item.shape if count is None else (count, *item.shape)
    described = {"descr": np.lib.format.dtype_to_descr(item.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()


def expect_folder(path: Path) -> None:
    """Raises FileMissing if the folder for a result does not exist."""
    with explained(f"{path}, the place for the results,", "name another place"):
        there = path.parent.is_dir()
    if not there:
        raise FileMissing(f"there is no folder {path.parent} for {path.name}: make it first, or name another place")


def expect_size(path: Path, record: Path, due: int, *, exact: bool) -> None:
    """Raises ContentsRefused if unfinished results have fewer bytes than their journal requires (or, with `exact`,
    more)."""
    there = path.stat().st_size if path.exists() else 0
    if there < due or (exact and there != due):
        raise ContentsRefused(
            f"{path} has {there:,} bytes, and by its record {record} it should have {due:,}: it was changed since. Put "
            "it back, or pass overwrite=True to begin anew"
        )


def expect_disk(folder: Path, spec: SinkSpec, finished: int) -> None:
    """Raises FileRefused if the disk has no room for the results that are left, before any work is done."""
    if spec.count is None:
        return
    disk = os.statvfs(folder)
    free, due = disk.f_bavail * disk.f_frsize, (spec.count - finished) * spec.item.nbytes
    if due > free:
        raise FileRefused(
            f"{due / 1e9:,.1f} GB of results are to go to {folder}, and {free / 1e9:,.1f} GB are free there: make "
            "room, name another place, or drop the results (a null sink)"
        )


def _whole(path: Path, spec: SinkSpec) -> int | None:
    """How many items a finished file holds; None where it is no file of this job's."""
    shape, _, offset = npy_header(path)
    count = shape[0] if shape else 0
    if not shape or (spec.count is not None and count != spec.count):
        return None
    with path.open("rb") as file:
        mine = file.read(offset) == npy_header_bytes(count, spec.item)
    return count if mine and path.stat().st_size == offset + count * spec.item.nbytes else None
