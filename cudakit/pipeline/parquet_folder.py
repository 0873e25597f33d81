"""`ToParquet` into a folder: one file per range of items, from which a stopped run continues."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import numpy as np

from cudakit import system
from cudakit.pipeline.file_sinks import expect_disk, expect_folder
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.journal import expect_same_job, read_text, write_aside
from cudakit.pipeline.lock import OutputLock
from cudakit.pipeline.parquet import SUFFIX, FromParquet, is_part, parquet_package
from cudakit.pipeline.parquet_columns import Columns
from cudakit.pipeline.ranges import Range, merged
from cudakit.pipeline.refusals import ContentsRefused, FileOccupied, explained
from cudakit.pipeline.shares_folder import SharesFolder
from cudakit.pipeline.sink import Sink, SinkSpec

_RANGE = re.compile(r"items-(\d+)-(\d+)\.parquet")
_DIGITS = 12  # of an item's number in a file's name, so that the order of names is that of the items


class ParquetFolder(Sink):
    """Writes one file for each range of items that is written. `.pipeline.json` records the job of an unfinished run.

    path: the folder. columns: of the files. compression: as for `pyarrow.parquet.write_table`.
    """

    private = ""

    def __init__(self, path: Path, columns: Columns, compression: str) -> None:
        self.path, self._columns, self._compression = path, columns, compression
        self._lock = OutputLock(self.path / ".pipeline.lock")
        self._record = self.path / ".pipeline.json"
        self._shares = SharesFolder(self._record.with_suffix(".shares"))
        self._spec: SinkSpec | None = None
        self.where = str(self.path)

    def open(self, spec: SinkSpec) -> list[Range]:
        self._columns = self._columns.fitting(spec.item)
        expect_folder(self.path)
        with explained(f"the folder {self.path} for results", "pass another folder"):
            self.path.mkdir(exist_ok=True)
        self._lock.take(None, self.path)
        names = [name for name in os.listdir(self.path) if is_part(name)]
        if spec.overwrite:
            for name in names:
                (self.path / name).unlink()
            names = []
        elif names and not spec.resume:
            raise FileOccupied(
                f"{self.path} already has {len(names):,} Parquet files: pass resume=True to continue, overwrite=True "
                "to replace them, or another folder"
            )
        job = {**spec.job(), "columns": self._columns.selection}
        if names and self._record.exists():
            try:
                before = json.loads(read_text(self._record))
            except ValueError:
                before = None
            expect_same_job(self._record, before, job)
        finished = [self._checked(name, spec) for name in sorted(names)]
        for (_, before_stop), (start, _) in itertools.pairwise(finished):
            if start < before_stop:
                raise ContentsRefused(f"two files in {self.path} have item {start:,}: pass overwrite=True")
        expect_disk(self.path, spec, sum(stop - start for start, stop in finished))
        for left in self.path.glob(f".*{SUFFIX}.part"):  # by a run that was killed
            left.unlink()
        write_aside(self._record, json.dumps(job, sort_keys=True))
        self._spec = spec
        return merged(finished)

    def _checked(self, name: str, spec: SinkSpec) -> Range:
        """Return the range of a finished file. Raises ContentsRefused if it is not a result of this job."""
        path, found = self.path / name, _RANGE.fullmatch(name)
        start, stop = (int(found[1]), int(found[2])) if found else (0, 0)
        if found is None or not (start < stop or start == stop == spec.count == 0) or stop > (spec.count or stop):
            raise ContentsRefused(f"{path} is not a result of this job: pass another folder, or overwrite=True")
        source = FromParquet(path, self._columns.selection)
        same = (source.item.dtype, source.item.nbytes) == (spec.item.dtype, spec.item.nbytes)
        if source.count != stop - start or not same:
            raise ContentsRefused(
                f"{path} has {source.count:,} rows of {source.item}, not {stop - start:,} of {spec.item}: "
                "it has been changed. Restore or remove it, or pass overwrite=True"
            )
        spec.origin.expect_older(None, path, path.stat().st_mtime_ns)
        return start, stop

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._spec is None:
            raise ValueError(f"{self.path} is not open")
        table = self._columns.table(items, self._spec.item)
        name = f"items-{start:0{_DIGITS}}-{stop:0{_DIGITS}}{SUFFIX}"
        aside = self.path / f".{name}.part"
        try:
            group = max(stop - start, 1)
            parquet_package().write_table(table, aside, compression=self._compression, row_group_size=group)
            system.sync_path(aside)
            aside.replace(self.path / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def portion(self, attempt: str) -> Sink:
        return _ParquetPortion(self._shares.new(attempt), self._columns, self._compression)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        aside = self._shares.place(attempt)
        for name in sorted(os.listdir(aside)):
            (aside / name).replace(self.path / name)
        aside.rmdir()

    def discard(self, attempt: str) -> None:
        self._shares.discard(attempt)

    def finish(self, count: int) -> None:
        if not count and self._spec is not None:
            self.write(0, 0, np.empty((0, *self._spec.item.shape), self._spec.item.dtype))
        system.sync_path(self.path)
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        if self._spec is not None:
            self._shares.remove()
            if not any(map(is_part, os.listdir(self.path))):
                self._record.unlink(missing_ok=True)
        self._spec = None
        self._lock.release()


class _ParquetPortion(ParquetFolder):
    """Writes the files of a worker's share to a folder of their own, which must not exist."""

    def open(self, spec: SinkSpec) -> list[Range]:
        with explained(f"{self.path}, the place for a share,", "use a file system that all workers share"):
            self.path.mkdir()
        self._spec = spec
        return []

    def finish(self, count: int) -> None:
        """Each file is on disk when it is written."""
