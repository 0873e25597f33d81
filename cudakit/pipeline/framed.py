"""A sink for one file of another format, in which all items are contiguous: only the bytes around them differ."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from cudakit.pipeline.file_sinks import ToFile
from cudakit.pipeline.refusals import PipelineRefused
from cudakit.pipeline.sink import SinkSpec
from cudakit.pipeline.sources import Item, Source


class FramedFile(ToFile):
    """Writes items to their place in a file whose other bytes a library makes, in an empty file of the same shape.

    A subclass has `_empty` and `_reader`.
    """

    def _empty(self, path: Path, count: int, item: Item) -> int | None:
        """Write a file with room for `count` items, and return the offset of the first; None if there are none."""
        raise NotImplementedError

    def _reader(self) -> Source:
        """Return a source that reads the finished file."""
        raise NotImplementedError

    def _frame(self, count: int | None, item: Item) -> tuple[bytes, bytes]:
        count = 1 if count is None else count
        with tempfile.TemporaryDirectory(prefix=f".{self.path.name}.", dir=self.path.parent) as folder:
            path = Path(folder) / self.path.name
            offset = self._empty(path, count, item)  # a sparse file, which needs no disk space
            with path.open("rb") as file:
                header = file.read(-1 if offset is None else offset)
                file.seek(len(header) + count * item.nbytes)
                return header, file.read()

    def _count_of_finished(self, spec: SinkSpec) -> int | None:
        with contextlib.suppress(PipelineRefused, ValueError):
            count = self._reader().count
            header, trailer = self._frame(count, spec.item)
            end = len(header) + count * spec.item.nbytes
            if spec.count not in (None, count) or self.path.stat().st_size != end + len(trailer):
                return None
            with self.path.open("rb") as file:
                same = file.read(len(header)) == header
                file.seek(end, os.SEEK_SET)
                return count if same and file.read() == trailer else None
        return None
