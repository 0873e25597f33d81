"""The journal of a file's finished items, which outlives the process, and the comparison of two runs' jobs."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudakit.pipeline.ranges import Range, gaps, merged
from cudakit.pipeline.refusals import ContentsRefused, explained


def write_aside(path: Path, text: str) -> None:
    """Write a small file so that it has its old contents or all of the new, whenever the process is killed."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def read_text(path: Path) -> str:
    """A journal's or a record's text. Raises FileMissing, FileRefused or ContentsRefused."""
    with explained(f"{path}, the record of an unfinished run,", "pass overwrite=True to begin anew"):
        return path.read_text(encoding="utf-8")


def expect_same_job(path: Path, before: Any, now: Mapping[str, Any]) -> None:
    """Raises ContentsRefused if the job that `path` records is not this run's job."""
    if not isinstance(before, dict):
        raise ContentsRefused(f"{path} is not the record of a run, or is damaged: pass overwrite=True to begin anew")
    changes = _changes("", before, json.loads(json.dumps(now)))
    if changes:
        raise ContentsRefused(
            f"{path} is of another job, or its source was changed: {'; '.join(changes)}. Resume with the arguments "
            "and the source of then, or pass overwrite=True to begin anew"
        )


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """The differences of two jobs, in words. A hash that is None is unknown, and differs from nothing."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [text for key in keys for text in _changes(f"{name} {key}", before.get(key), now.get(key))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for place, (one, other) in pairs for text in _changes(f"{name} {place}", one, other)]
    unknown = name.endswith(" first") and None in (before, now)
    return [] if before == now or unknown else [f"{name.strip()} was {before}, now {now}"]


class Journal:
    """Which ranges of a file are written: a line with the job, then a line for each finished range.

    A line is written after its range's data is on disk (fdatasync), so it holds after a loss of power. A thread does
    that for all ranges that were added since its last time, while others go on writing. A process that is killed leaves
    at most one torn line, which is not read. path: of the journal itself. job: what must be the same for a resumed run.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        self.path = path
        self._job = job
        self._file: int | None = None
        self._data = -1
        self._have: list[Range] = []
        self._pending: list[Range] = []
        self._writing = self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def added(self) -> bool:
        """Whether it has any range."""
        return bool(self._have)

    def began(self) -> bool:
        """Whether an earlier run has finished any."""
        return read_text(self.path).count("\n") > 1

    def finished(self, count: int | None) -> list[Range]:
        """The items that an earlier run finished, of `count` (None: unknown). Raises ContentsRefused for another job's
        journal, a changed source, and lines that no run of this job has written."""
        job, *lines = read_text(self.path).split("\n")[:-1] or [""]  # text after the last line's end is a torn line
        if not lines:
            return []
        try:
            before = json.loads(job)
        except ValueError:
            before = None
        expect_same_job(self.path, before, self._job)
        ranges: list[Range] = []
        for line in lines:
            fields = line.split()
            if len(fields) != 2 or not all(field.isascii() and field.isdigit() and len(field) < 20 for field in fields):
                raise self._damaged(line, "is not a range of items")
            ranges.append((int(fields[0]), int(fields[1])))
        end = 0
        for start, stop in sorted(ranges):
            if start >= stop:
                raise self._damaged(f"{start} {stop}", "is an empty range of items")
            if count is not None and stop > count:
                raise self._damaged(f"{start} {stop}", f"is past the end of {count:,} items")
            if start < end:
                raise self._damaged(f"{start} {stop}", "overlaps another line's items")
            end = stop
        return merged(ranges)

    def _damaged(self, line: str, why: str) -> ContentsRefused:
        return ContentsRefused(
            f"{self.path} is damaged: its line {line!r} {why}. Pass overwrite=True to begin anew, or restore the file"
        )

    def open(self, finished: Sequence[Range]) -> None:
        """Begin the file, with what is finished already."""
        self._have = list(finished)
        lines = [json.dumps(self._job, sort_keys=True), *(f"{start} {stop}" for start, stop in finished)]
        write_aside(self.path, "\n".join(lines) + "\n")
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def follow(self, data: int) -> None:
        """Take ranges of the file that is open as `data` from now on."""
        self._data = data
        self._thread = threading.Thread(target=self._write, name="pipeline journal", daemon=True)
        self._thread.start()

    def add(self, start: int, stop: int) -> None:
        """The items start..stop are written. Safe from several threads. Raises the error of an earlier range's line."""
        with self._changed:
            if self._error is not None:
                raise self._error
            new = list(gaps(self._have, start, stop))
            self._have = merged([*self._have, *new])
            self._pending += new
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until every added range is on disk and has its line. Raises the error that prevented it."""
        with self._changed:
            while (self._pending or self._writing) and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _write(self) -> None:
        """The thread: data to disk, then the lines that claim it."""
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._pending and not self._closing:
                    self._changed.wait()
                if not self._pending:
                    return
                ranges, self._pending, self._writing = self._pending, [], True
            try:
                os.fdatasync(self._data)
                self._append("".join(f"{start} {stop}\n" for start, stop in ranges).encode())
            except BaseException as error:
                with self._changed:
                    self._error, self._writing = error, False
                    self._changed.notify_all()
                return

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            return
        end = os.fstat(self._file).st_size
        if os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, end)  # half a line would be read as another range
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self, *, remove: bool = False) -> None:
        """End it once what was added has its lines. remove: the job is whole, and needs no journal."""
        if self._thread is not None:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()
            self._thread = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if remove:
            self.path.unlink(missing_ok=True)
