"""A sink that writes columns of numbers to Parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.parquet import SUFFIX, parquet_package
from cudakit.pipeline.parquet_columns import Columns
from cudakit.pipeline.parquet_file import ParquetFile
from cudakit.pipeline.parquet_folder import ParquetFolder
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.sink import Sink, SinkSpec


class ToParquet(Sink):
    """Writes rows to a folder of Parquet files, or to one file.

    A folder has one file for each range of items that is written (a chunk of the pipeline), named by its first and last
    item. A file gets its name when it is complete and on disk. While the run is unfinished, the file `.pipeline.json`
    records its job. `overwrite=True` removes all Parquet files of the folder.

    A path that ends in `.parquet` is one file, with one row group per chunk, in order; a stopped run starts again. One
    thread writes it; in a cluster pass a folder.

    Args:
        path: The folder, which is made if it does not exist; or the file. An existing folder may have any name.
        columns: The name of one column, for whole items: numbers, or lists of a fixed size for items with axes. Or k
            names, for items of shape (k, ...), one entry of the first axis per column. None for "data0", "data1" and so
            on if items have one axis, else for "data".
        compression: As for `pyarrow.parquet.write_table`: "snappy", "zstd", "none".

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If there is no name, or two are equal.
    """

    def __init__(
        self, path: str | os.PathLike[str], columns: str | Sequence[str] | None = None, *, compression: str = "snappy"
    ) -> None:
        parquet_package()
        self.path = Path(path)
        one = self.path.suffix == SUFFIX and not self.path.is_dir() and not os.fspath(path).endswith(("/", os.sep))
        kind = ParquetFile if one else ParquetFolder
        self._inner: ParquetFile | ParquetFolder = kind(self.path, Columns.of(columns), compression)
        inner = self._inner
        self.ordered, self.forgets, self.private, self.where = inner.ordered, inner.forgets, inner.private, inner.where

    def open(self, spec: SinkSpec) -> list[Range]:
        return self._inner.open(spec)

    def write(self, start: int, stop: int, items: HostArray) -> None:
        self._inner.write(start, stop, items)

    def portion(self, attempt: str) -> Sink:
        return self._inner.portion(attempt)

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        self._inner.adopt(attempt, start, stop)

    def discard(self, attempt: str) -> None:
        self._inner.discard(attempt)

    def finish(self, count: int) -> None:
        self._inner.finish(count)

    def close(self) -> None:
        self._inner.close()
