"""A source that reads columns of numbers from Parquet files. pyarrow is imported when it is needed."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.refusals import ContentsRefused, explained
from cudakit.pipeline.sources import Item, Source, file_modified, files_identity

SUFFIX = ".parquet"
KINDS = "iuf"  # integers and real numbers


def parquet_package() -> Any:
    """Return the module pyarrow.parquet. Raises ImportError with the command that installs it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need the package pyarrow: pip install 'cudakit[parquet]'") from error
    return pyarrow.parquet


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors for another file or a damaged one to ContentsRefused."""
    with explained(f"the Parquet file {str(path)!r}", "pass a Parquet file, or a folder of them"):
        path.stat()
        import pyarrow

        try:
            yield
        except (FileNotFoundError, PermissionError):
            raise
        except (pyarrow.ArrowException, OSError) as error:
            raise ContentsRefused(f"{path} is not a readable Parquet file: {error}") from error


class FromParquet(Source):
    """Rows of one or several columns of numbers, or of lists of numbers with a fixed size.

    An item has the shape of a column's entry: () for numbers, (8,) for `FixedSizeList<float, 8>`, (6, 8) for such lists
    of 6 of them. For k > 1 columns it has shape (k, ...).

    A row group is decoded once if chunks of the pipeline have whole ones.

    Args:
        path: The file; or a folder, for all its `.parquet` files in order of names, except hidden files.
        columns: A name, or names of columns with the same dtype. None for all columns.

    Raises:
        ImportError: If pyarrow is not installed.
        FileMissing: If the file or folder does not exist.
        ContentsRefused: If a file is not a Parquet file, is damaged, or does not have the columns as integers or real
            numbers of one dtype and shape, without nulls. A null that the file's statistics do not show fails its
            chunk.
    """

    def __init__(self, path: str | os.PathLike[str], columns: str | Sequence[str] | None = None) -> None:
        pq = parquet_package()
        self.path = Path(path)
        self._paths = [self.path]
        if self.path.is_dir():
            self._paths = [self.path / name for name in sorted(os.listdir(self.path)) if is_part(name)]
            if not self._paths:
                raise ContentsRefused(f"there is no .parquet file in {self.path}")
        self.columns: list[str] = [columns] if isinstance(columns, str) else list(columns or ())
        self._starts = [0]  # the first row of each row group, and the number of rows
        self._groups: list[tuple[Path, int]] = []
        entries: set[Item] = set()
        for file in self._paths:
            with _readable(file), pq.ParquetFile(file) as opened:
                schema, metadata = opened.schema_arrow, opened.metadata
                self.columns = self.columns or list(schema.names)
                entries |= {_entry_of(schema, name, file) for name in self.columns}
                for group in range(metadata.num_row_groups):
                    self._expect_no_nulls(metadata.row_group(group), file)
                    self._groups.append((file, group))
                    self._starts.append(self._starts[-1] + metadata.row_group(group).num_rows)
        if len(entries) != 1:
            raise ContentsRefused(
                f"columns must have one dtype and shape, got {', '.join(sorted(map(str, entries)))} in {self.path}: "
                "pass columns=, or a source for each dtype"
            )
        entry = entries.pop()
        self.count = self._starts[-1]
        width = () if isinstance(columns, str) or len(self.columns) == 1 else (len(self.columns),)
        self._entry, self.item = entry.shape, Item.of((*width, *entry.shape), entry.dtype)
        rows = np.diff(self._starts)
        if len(rows) > 1 and rows[0] and (rows[:-1] == rows[0]).all() and rows[-1] <= rows[0]:
            self.unit = int(rows[0])

    def _expect_no_nulls(self, group: Any, file: Path) -> None:
        for number in range(group.num_columns):
            column = group.column(number)
            statistics = column.statistics
            path = column.path_in_schema  # that of a list column goes on with .list.element
            name = next((name for name in self.columns if path == name or path.startswith(f"{name}.list.")), None)
            if name is not None and statistics is not None and statistics.null_count:
                raise self._null(name, f"{statistics.null_count:,} nulls", self._starts[-1], file)

    def _null(self, column: str, what: str, row: int, file: Path) -> ContentsRefused:
        return ContentsRefused(
            f"column {column!r} of {file} has {what} in the row group that starts at item {row:,}: fill them first, "
            "such as with pyarrow.compute.fill_null"
        )

    def __getstate__(self) -> dict[str, Any]:
        groups = [(path.absolute(), group) for path, group in self._groups]
        return self.__dict__ | {"_paths": [path.absolute() for path in self._paths], "_groups": groups}

    def read(self, start: int, stop: int, into: HostArray) -> None:
        at = start
        while at < stop:
            number = bisect.bisect_right(self._starts, at) - 1
            first, path = self._starts[number], self._groups[number][0]
            end = min(stop, self._starts[number + 1])
            with _readable(path), parquet_package().ParquetFile(path) as file:
                table = file.read_row_group(self._groups[number][1], columns=self.columns)
            for place, name in enumerate(self.columns):
                target = into[at - start : end - start]
                if len(self.columns) > 1:
                    target = target[:, place]
                row = _fill(target, table.column(name).slice(at - first, end - at), self._entry)
                if row is not None:
                    raise self._null(name, f"a null at item {at + row:,},", first, path)
            at = end

    def identity(self) -> dict[str, Any]:
        return {**files_identity(self._paths), "columns": self.columns, **super().identity()}

    def modified(self, number: int) -> int | None:
        return file_modified(self._groups[bisect.bisect_right(self._starts, number) - 1][0])


def is_part(name: str) -> bool:
    """Whether a file of this name in a folder has rows."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def _fill(target: HostArray, column: Any, shape: tuple[int, ...]) -> int | None:
    """Write a column, whose entries have that shape, to an array. Returns the row of its first null, if it has one."""
    at = 0
    for values in column.chunks:
        rows, per_row = len(values), 1
        for extent in (*shape, None):
            if values.null_count:
                return at + int(values.is_null().to_pylist().index(True)) // per_row
            if extent is not None:
                values, per_row = values.flatten(), per_row * extent
        target[at : at + rows] = values.to_numpy(zero_copy_only=False).reshape(rows, *shape)
        at += rows
    return None


def _entry_of(schema: Any, name: str, path: Path) -> Item:
    """Return the shape and dtype of a column's entries. Raises ContentsRefused if they have no fixed width."""
    import pyarrow

    if schema.names.count(name) != 1:
        raise ContentsRefused(f"{path} has no column {name!r}: pass columns=, some of {', '.join(schema.names[:10])}")
    kind = numbers = schema.field(name).type
    shape = []
    while pyarrow.types.is_fixed_size_list(numbers):
        shape.append(numbers.list_size)
        numbers = numbers.value_type
    with contextlib.suppress(NotImplementedError):
        dtype: np.dtype[Any] = np.dtype(numbers.to_pandas_dtype())
        if dtype.kind in KINDS and str(numbers).startswith(("int", "uint", "float", "double", "halffloat")):
            return Item.of(tuple(shape), dtype)
    advice = "; lists must have a fixed size, as pyarrow.list_(pyarrow.float32(), 8)" if "list" in str(kind) else ""
    raise ContentsRefused(
        f"column {name!r} of {path} must have integers or real numbers, got {kind}: pass columns={advice}"
    )
