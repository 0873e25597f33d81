"""A sink that writes a folder of `.npy` or TIFF files, one per item."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.pipeline.file_sinks import expect_disk, expect_folder, npy_header_bytes
from cudakit.pipeline.files import HostArray, is_result, write_whole
from cudakit.pipeline.journal import expect_same_job, read_text, write_aside
from cudakit.pipeline.lock import OutputLock, overlap
from cudakit.pipeline.ranges import Range, merged
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied, explained
from cudakit.pipeline.shares_folder import SharesFolder
from cudakit.pipeline.sink import Sink, SinkSpec
from cudakit.pipeline.tiff import SUFFIXES as TIFF_SUFFIXES
from cudakit.pipeline.tiff import page_header, tifffile_package

_TOGETHER = 32  # files per group that is synced to disk
_SYNCS = 8  # threads that sync


class ToFolder(Sink):
    """Writes one file per item to a folder, `.npy` by default. A file gets its name when it is complete and on disk.

    The names are those of the source's files, or the items' numbers. While the run is unfinished, the file
    `.pipeline….json` records its job. Runs in several processes may share a folder if the items have names from their
    sources, and all names differ.

    Args:
        path: The folder; it is made if it does not exist.
        suffix: The format: ".npy", or ".tif" or ".tiff" for images of one page each.

    Raises:
        ImportError: If tifffile is needed and not installed.
        ValueError: If the suffix has no known format.
    """

    private = ""

    def __init__(self, path: str | os.PathLike[str], *, suffix: str = ".npy") -> None:
        if suffix != ".npy" and suffix not in TIFF_SUFFIXES:
            raise ValueError(f"suffix must be .npy, {' or '.join(TIFF_SUFFIXES)}, got {suffix!r}")
        if suffix != ".npy":
            tifffile_package()
        self.path, self._suffix = Path(path), suffix
        self.where = str(self.path)
        self._lock = OutputLock(self.path / ".pipeline.lock")
        self._spec: SinkSpec | None = None
        self._there: set[str] = set()
        self._record = self.path / ".pipeline.json"
        self._recorded = self._wrote = False
        self._header = b""
        self._syncs: ThreadPoolExecutor | None = None

    def open(self, spec: SinkSpec) -> list[Range]:
        expect_folder(self.path)
        with explained(f"the folder {self.path} for results", "pass another folder"):
            self.path.mkdir(exist_ok=True)
        names, record = None, self.path / ".pipeline.json"
        if spec.origin.named and spec.count is not None:
            names = [spec.label(number) for number in range(spec.count)]
            key = hashlib.sha256(os.fsencode("\0".join(names))).hexdigest()[:16]
            record = self.path / f".pipeline-{key}.json"
        others = self._lock.take(names, self.path)
        self._record = record
        elsewhere = {f"{name}{self._suffix}" for part in others for name in part or ()}
        self._begin(spec)
        results = {entry.name for entry in os.scandir(self.path) if is_result(entry.name, self._suffix)} - elsewhere
        if results and not spec.overwrite and not spec.resume:
            raise FileOccupied(
                f"{self.path} already has {len(results):,} results: pass resume=True to continue, overwrite=True to "
                "replace them, or another folder"
            )
        numbers = _numbers(spec, results, self._suffix)
        described = {**spec.job(), "names": names}
        self._expect_mine(spec, described, [] if spec.overwrite else numbers)
        if spec.overwrite:
            # Removed, because a resumed run would take them for its own results.
            for number in numbers:
                self._place(spec, number).unlink()
            numbers = []
        self._there = {self._place(spec, number).name for number in numbers}
        if not spec.overwrite:
            expect_disk(self.path, spec, len(numbers))
        write_aside(self._record, json.dumps(described, sort_keys=True))
        self._recorded = True
        self._syncs = ThreadPoolExecutor(_SYNCS, "pipeline sync")
        return merged((number, number + 1) for number in numbers)

    def _begin(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._header = npy_header_bytes(None, spec.item) if self._suffix == ".npy" else page_header(spec.item)

    @property
    def _shares(self) -> SharesFolder:
        return SharesFolder(self._record.with_suffix(".shares"))

    def _place(self, spec: SinkSpec, number: int) -> Path:
        return self.path / f"{spec.label(number)}{self._suffix}"

    def _expect_mine(self, spec: SinkSpec, described: dict[str, Any], numbers: list[int]) -> None:
        """Raise ContentsRefused if a resumed run would continue another job's results.

        Any other run removes the records of earlier runs with the same items.
        """
        resumed = spec.resume and not spec.overwrite
        for path in self.path.glob(".pipeline*.json"):
            try:
                before = json.loads(read_text(path))
            except ValueError:
                before = None
            known = isinstance(before, dict) and "names" in before
            if path != self._record and known and not overlap(described["names"], before["names"]):
                continue
            if resumed:
                expect_same_job(path, before, described)
            else:
                path.unlink()
        size = len(self._header) + spec.item.nbytes
        for number in numbers:
            path = self._place(spec, number)
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size != size or file.read(len(self._header)) != self._header:
                    raise ContentsRefused(
                        f"{path} is not a result of this job, whose items are {spec.item}: the folder is of another "
                        "job. Pass another folder, or overwrite=True"
                    )
            spec.origin.expect_older(number, path, status.st_mtime_ns)

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._spec is None:
            raise ValueError(f"{self.path} is not open")
        names = [self._place(self._spec, number).name for number in range(start, stop)]
        due = [place for place, name in enumerate(names) if name not in self._there]
        for at in range(0, len(due), _TOGETHER):
            self._write([(names[place], items[place : place + 1]) for place in due[at : at + _TOGETHER]])

    def _write(self, files: list[tuple[str, HostArray]]) -> None:
        """Write each file under a temporary name, sync all of them to disk, then rename them."""
        open_files: dict[Path, int] = {}
        opened = contextlib.ExitStack()
        try:
            for name, item in files:
                aside = self.path / f".{name}.part"
                file = open_files[aside] = system.open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                opened.callback(os.close, file)
                write_whole(file, np.frombuffer(self._header, np.uint8), 0)
                write_whole(file, item, len(self._header))
            if self._syncs is not None:
                list(self._syncs.map(system.sync_data, open_files.values()))
            opened.close()  # Windows renames no open file
            for (name, _), aside in zip(files, open_files, strict=True):
                aside.replace(self.path / name)
                self._wrote = True
        except BaseException:
            opened.close()
            for aside in open_files:
                with contextlib.suppress(OSError):
                    aside.unlink()
            raise

    def portion(self, attempt: str) -> Sink:
        return _FolderPortion(self._shares.new(attempt), suffix=self._suffix)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        if self._spec is None:
            raise ValueError(f"{self.path} is not open")
        aside = self._shares.place(attempt)
        for number in range(start, stop):
            place = self._place(self._spec, number)
            (aside / place.name).replace(place)
            self._wrote = True
        aside.rmdir()

    def discard(self, attempt: str) -> None:
        self._shares.discard(attempt)

    def finish(self, count: int) -> None:
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        if self._syncs is not None:
            self._syncs.shutdown()
            self._syncs = None
        if self._recorded and not self._wrote and not self._there:
            with contextlib.suppress(OSError):  # no item is finished, so no record is needed
                self._record.unlink()
        self._recorded = False
        if self._spec is not None:  # of this run, or left by one whose process was killed
            self._shares.remove()
        self._spec = None  # its origin holds the sources
        self._lock.release()


class _FolderPortion(ToFolder):
    """Writes the files of a worker's share to a folder of their own, which must not exist. If that is removed, as for a
    worker that was given up, its next write fails."""

    def open(self, spec: SinkSpec) -> list[Range]:
        with explained(f"{self.path}, the place for a share,", "use a file system that all workers share"):
            self.path.mkdir()
        self._begin(spec)
        self._syncs = ThreadPoolExecutor(_SYNCS, "pipeline sync")
        return []

    def finish(self, count: int) -> None:
        """Each file is on disk when it is written."""


def _numbers(spec: SinkSpec, results: set[str], suffix: str) -> list[int]:
    """Return the numbers of the items whose names are among the files."""
    if spec.count is not None:
        return [number for number in range(spec.count) if f"{spec.label(number)}{suffix}" in results]
    stems = (name[: -len(suffix)] for name in results)
    return sorted(int(stem) for stem in stems if stem.isdigit() and spec.label(int(stem)) == stem)
