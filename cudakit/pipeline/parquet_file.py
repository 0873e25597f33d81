"""`ToParquet` into one file: one row group per chunk of the pipeline, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudakit import system
from cudakit.pipeline.file_sinks import expect_disk, expect_folder
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.lock import OutputLock
from cudakit.pipeline.parquet import parquet_package
from cudakit.pipeline.parquet_columns import Columns
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.refusals import FileOccupied, explained
from cudakit.pipeline.sink import Sink, SinkSpec


class ParquetFile(Sink):
    """Appends row groups to FILE.part, which is renamed when it is complete.

    path: the file. columns: of the file. compression: as for `pyarrow.parquet.ParquetWriter`.
    """

    ordered = True
    forgets = "a Parquet file can be read only when it is complete: pass a folder, whose name has no suffix"
    private = "one process writes a Parquet file: pass a folder, whose name has no suffix"

    def __init__(self, path: Path, columns: Columns, compression: str) -> None:
        self.path, self._columns, self._compression = path, columns, compression
        self._part = path.with_name(path.name + ".part")
        self._lock = OutputLock(path.with_name(path.name + ".lock"))
        self._spec: SinkSpec | None = None
        self._writer: Any = None

    def open(self, spec: SinkSpec) -> list[Range]:
        columns = self._columns.fitting(spec.item)
        expect_folder(self.path)
        self._lock.take(None, self.path)
        for path in (self.path, self._part):
            if path.exists() and not spec.overwrite:
                raise FileOccupied(f"{path} already exists: pass overwrite=True, or another file")
        if self._compression == "none":
            expect_disk(self.path.parent, spec, 0)
        with explained(f"{self._part}, the place for the results,", "pass another output"):
            writer = parquet_package().ParquetWriter
            self._writer = writer(self._part, columns.schema(spec.item), compression=self._compression)
        self._columns, self._spec = columns, spec
        return []

    def write(self, start: int, stop: int, items: HostArray) -> None:
        if self._writer is None or self._spec is None:
            raise ValueError(f"{self.path} is not open")
        self._writer.write_table(self._columns.table(items, self._spec.item), row_group_size=max(stop - start, 1))

    def finish(self, count: int) -> None:
        if self._writer is None or self._spec is None:
            raise ValueError(f"{self.path} is not open")
        self._writer.close()
        system.sync_path(self._part)
        if self.path.exists() and not self._spec.overwrite:
            raise FileOccupied(f"{self.path} was made by another program during the run: move it, and run again")
        self._part.replace(self.path)
        system.sync_path(self.path.parent)
        self._writer = None

    def close(self) -> None:
        writer, self._writer, self._spec = self._writer, None, None
        if writer is not None:  # the file is not complete, and cannot be resumed
            try:
                writer.close()
            finally:
                self._part.unlink(missing_ok=True)
        self._lock.release()
