"""Sinks that write files: a memory map, one `.npy` file, or a folder of them.

A file appears under its own name only when it is whole; what a stopped run has finished stays beside it, with a record
of it, and `resume=True` goes on from there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.memory.layout import is_contiguous
from cudakit.pipeline.ranges import Journal, Range, merged, write_aside
from cudakit.pipeline.sink import Sink, SinkSpec, expect_full, expect_room, expect_same_item
from cudakit.pipeline.sources import (
    HostArray,
    Item,
    file_of,
    is_result,
    npy_header,
    place_in_file,
    write_whole,
)


class _JournaledSink(Sink):
    """Items at their places in a file, with a journal of those that are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._offset = 0
        self._item: Item | None = None
        self._journal: Journal | None = None
        self._whole = False

    @property
    def _record(self) -> Path:
        return self.path.with_name(self.path.name + ".journal")

    def _discard(self) -> None:
        """Remove what stands there for results, of which there are none."""

    def _begin(self, spec: SinkSpec, what: dict[str, Any]) -> tuple[Journal, list[Range]]:
        """The journal, and what it says of an earlier run."""
        journal = Journal(self._record, {"item": str(spec.item), "count": spec.count, **what})
        self._item = spec.item
        if not self._record.exists() or spec.overwrite:
            return journal, []
        if not spec.resume and journal.began():
            raise FileExistsError(
                f"an unfinished run's results are at {self.where}, by its record {self._record}: pass resume=True to "
                "go on from there, or overwrite=True to begin anew"
            )
        return journal, journal.finished() if spec.resume else []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._file is None or self._item is None or self._journal is None:
            raise ValueError(f"{self.path} is not open")
        write_whole(self._file, items, self._offset + start * self._item.nbytes)
        self._journal.add(start, stop)

    def finish(self, count: int) -> None:
        self._whole = True
        journal = self._journal
        self.close()
        if journal is not None:
            journal.close(remove=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._journal is not None:
            nothing = not self._journal.added and not self._whole
            self._journal.close(remove=nothing)
            if nothing:
                self._discard()
            self._journal = None


class ToMap(_JournaledSink):
    """The items of a memory map that can be written. They are written to its file, which the map shows: a disk that is
    full is then an error, where a write to the map ends the process with SIGBUS."""

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        path = file_of(array)
        if array.mode not in ("r+", "w+") or path is None:
            raise ValueError(f"a memory map of mode {array.mode!r} cannot be written to: open it with 'r+'")
        if array.ndim == 0 or not is_contiguous(array.shape, array.strides, array.itemsize):
            raise ValueError(
                f"a memory map of shape {array.shape} and strides {array.strides} has gaps: give all of it"
            )
        super().__init__(path)
        self._offset = place_in_file(array)
        self._array = array
        self.where = str(self.path)

    def item(self) -> Item:
        return Item.of(self._array.shape[1:], self._array.dtype)

    @property
    def _record(self) -> Path:
        # by its place: two maps of one file have a journal each
        return self.path.with_name(f"{self.path.name}.{self._offset}.journal")

    def write(self, start: int, stop: int, items: HostArray) -> None:
        expect_room(stop, len(self._array), self.where)
        super().write(start, stop, items)

    def finish(self, count: int) -> None:
        expect_full(count, len(self._array), self.where)
        super().finish(count)

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_same_item(self.item(), spec.item, f"the memory map of {self.path}")
        if spec.count is not None and spec.count != len(self._array):
            raise ValueError(f"{spec.count:,} items were asked for, and {self.path} holds {len(self._array):,}")
        journal, finished = self._begin(spec, {"offset": self._offset})
        self._file = os.open(self.path, os.O_WRONLY)
        journal.open(finished)
        self._journal = journal
        return finished


class ToFile(_JournaledSink):
    """One `.npy` file of all items. Until it is whole it is FILE.part, with its record FILE.journal beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(Path(path))
        self._part = self.path.with_name(self.path.name + ".part")
        self.where = str(self._part)

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)

    def open(self, spec: SinkSpec) -> list[Range]:
        _parent(self.path)
        begun = self._record.exists() and self._part.exists()
        if self.path.exists() and not spec.overwrite and not (spec.resume and begun):
            count = _whole(self.path, spec) if spec.resume else None
            if count is None:
                raise FileExistsError(f"{self.path} is there already: pass overwrite=True, or name another file")
            self._record.unlink(missing_ok=True)  # of a run that was killed as it ended
            return merged([(0, count)])
        journal, finished = self._begin(spec, {})
        if not begun:
            finished = []
        header = npy_header_bytes(spec.count or 0, spec.item)
        self._offset = len(header)
        if not spec.overwrite:
            _room(self.path.parent, spec, sum(stop - start for start, stop in finished))
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | (0 if finished else os.O_TRUNC), 0o666)
        os.pwrite(self._file, header, 0)
        if spec.count is not None:
            os.ftruncate(self._file, self._offset + spec.count * spec.item.nbytes)
        journal.open(finished)
        self._journal = journal
        return finished

    def finish(self, count: int) -> None:
        if self._file is None or self._item is None:
            return  # it was whole before
        os.pwrite(self._file, npy_header_bytes(count, self._item), 0)
        # A reader that finds the file under its name finds all of it, after a loss of power too.
        os.fsync(self._file)
        self._part.replace(self.path)
        super().finish(count)


class ToFolder(Sink):
    """A folder with one `.npy` file an item, under the item's own name. A file appears when it is whole.

    The names are those of the source's files, or the items' numbers. While the run is unfinished a record,
    `.pipeline.json`, says what job the folder is for.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = str(self.path)
        self._spec: SinkSpec | None = None
        self._there: set[str] = set()
        self._header = b""

    @property
    def _record(self) -> Path:
        return self.path / ".pipeline.json"

    def open(self, spec: SinkSpec) -> list[Range]:
        _parent(self.path)
        self.path.mkdir(exist_ok=True)
        self._spec, self._header = spec, npy_header_bytes(None, spec.item)
        described = json.dumps({"item": str(spec.item), "count": spec.count}, sort_keys=True)
        names = {entry.name for entry in os.scandir(self.path)}
        for torn in (name for name in names if name.startswith(".") and name.endswith(".npy.part")):
            (self.path / torn).unlink()
        results = {name for name in names if is_result(name)}
        if results and not spec.overwrite and not spec.resume:
            raise FileExistsError(
                f"{self.path} has {len(results):,} results already: pass resume=True to go on from there, "
                "overwrite=True to write over them, or name another folder"
            )
        if self._record.exists() and spec.resume and self._record.read_text() != described:
            raise ValueError(
                f"{self.path} is of another job: it says {self._record.read_text()}, and this one is {described}. "
                "Resume with the arguments of then, or name another folder"
            )
        numbers = _numbers(spec, results)
        if spec.overwrite:
            # Left there, they would pass for this run's results where it is stopped and resumed.
            for number in numbers:
                (self.path / f"{spec.label(number)}.npy").unlink()
            numbers = []
        for number in numbers:
            self._expect_mine(spec, self.path / f"{spec.label(number)}.npy")
        self._there = {f"{spec.label(number)}.npy" for number in numbers}
        finished = merged((number, number + 1) for number in numbers)
        if not spec.overwrite:
            _room(self.path, spec, len(numbers))
        write_aside(self._record, described)
        return finished

    def _expect_mine(self, spec: SinkSpec, path: Path) -> None:
        """Raises ValueError where a file with an item's name is no result of this job."""
        size = len(self._header) + spec.item.nbytes
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size or file.read(len(self._header)) != self._header:
                raise ValueError(
                    f"{path} is no result of this job, whose items are {spec.item}: the folder is of another job. Name "
                    "another one, or pass overwrite=True"
                )

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._spec is None:
            raise ValueError(f"{self.path} is not open")
        for place, number in enumerate(range(start, stop)):
            name = f"{self._spec.label(number)}.npy"
            if name in self._there:
                continue
            aside = self.path / f".{name}.part"
            try:
                file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
                try:
                    os.pwrite(file, self._header, 0)
                    write_whole(file, items[place : place + 1], len(self._header))
                finally:
                    os.close(file)
                aside.replace(self.path / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise

    def finish(self, count: int) -> None:
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        if self._spec is not None and self._record.exists() and not any(map(is_result, os.listdir(self.path))):
            self._record.unlink()  # nothing is finished that it would be the record of
        self._spec = None  # its label holds the sources


def npy_header_bytes(count: int | None, item: Item) -> bytes:
    """An `.npy` file's header for `count` items, or for one alone; as long for any count."""
    text = io.BytesIO()
    shape = item.shape if count is None else (count, *item.shape)
    described = {"descr": np.lib.format.dtype_to_descr(item.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()


def _parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {path.parent} for {path.name}: make it first, or name another place"
        )


def _numbers(spec: SinkSpec, results: set[str]) -> list[int]:
    """The items of a job whose names are among the files."""
    if spec.count is not None:
        return [number for number in range(spec.count) if f"{spec.label(number)}.npy" in results]
    stems = (name[: -len(".npy")] for name in results)
    return sorted(int(stem) for stem in stems if stem.isdigit() and spec.label(int(stem)) == stem)


def _whole(path: Path, spec: SinkSpec) -> int | None:
    """How many items a finished file holds; None where it is no file of this job's."""
    shape, _, offset = npy_header(path)
    count = shape[0] if shape else 0
    if not shape or (spec.count is not None and count != spec.count):
        return None
    with path.open("rb") as file:
        mine = file.read(offset) == npy_header_bytes(count, spec.item)
    return count if mine and path.stat().st_size == offset + count * spec.item.nbytes else None


def _room(folder: Path, spec: SinkSpec, finished: int) -> None:
    """Raises OSError where the disk has no room for what is left: better now than in the middle."""
    if spec.count is None:
        return
    disk = os.statvfs(folder)
    free, due = disk.f_bavail * disk.f_frsize, (spec.count - finished) * spec.item.nbytes
    if due > free:
        raise OSError(
            f"{due / 1e9:,.1f} GB of results are to go to {folder}, and {free / 1e9:,.1f} GB are free there: make "
            "room, name another place, or drop the results (a null sink)"
        )
