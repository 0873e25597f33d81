"""The journal, a file that lists the finished items of an output, and the comparison of two runs' jobs."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cudakit import system
from cudakit.pipeline.ranges import Range, gaps, merged
from cudakit.pipeline.refusals import ContentsRefused, explained


def write_aside(path: Path, text: str) -> None:
    """Write a small file atomically: if the process is killed, the file has its old or its new contents."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, encoding="utf-8", newline="\n")
    aside.replace(path)


def read_text(path: Path) -> str:
    """Read the text of a journal or a record. Raises FileMissing, FileRefused or ContentsRefused."""
    with explained(f"{path}, the record of an unfinished run,", "pass overwrite=True to start again"):
        return path.read_text(encoding="utf-8")


def expect_same_job(path: object, before: Any, now: Mapping[str, Any]) -> None:
    """Raise ContentsRefused if the job that `path` records is not this run's job."""
    if not isinstance(before, dict):
        raise ContentsRefused(f"{path} is not the record of a run, or is damaged: pass overwrite=True to start again")
    changes = _changes("", before, json.loads(json.dumps(now)))
    if changes:
        raise ContentsRefused(
            f"{path} is of another job, or its source has changed: {'; '.join(changes)}. Resume with the earlier "
            "arguments and source, or pass overwrite=True to start again"
        )


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """Describe the differences between two jobs. A hash of None is unknown, and counts as equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [text for key in keys for text in _changes(f"{name} {key}", before.get(key), now.get(key))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for place, (one, other) in pairs for text in _changes(f"{name} {place}", one, other)]
    unknown = name.endswith(" first") and None in (before, now)
    return [] if before == now or unknown else [f"{name.strip()} was {before}, now {now}"]


class Journal:
    """The list of a file's finished ranges: a line with the job, then one line per range.

    A line is written after the data of its range is on disk, so it is also valid after a power failure. A
    thread does this for all ranges added since its last pass, while other threads write. If the process is killed, the
    last line may be incomplete; it is then ignored.

    path: of the journal itself. job: the values that must be the same for a resumed run.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        self.path = path
        self._job = job
        self._file: int | None = None
        self._sync: Callable[[], None] = lambda: None
        self._have: list[Range] = []
        self._pending: list[Range] = []
        self._writing = self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def added(self) -> bool:
        """Whether it has a range."""
        return bool(self._have)

    def began(self) -> bool:
        """Whether an earlier run has finished a range."""
        return read_text(self.path).count("\n") > 1

    def finished(self, count: int | None) -> list[Range]:
        """Return the ranges that an earlier run finished. count: number of items; None if unknown.

        Raises ContentsRefused if the journal is of another job, a source has changed, or a line is damaged.
        """
        job, *lines = read_text(self.path).split("\n")[:-1] or [""]  # drops an incomplete last line
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
            f"{self.path} is damaged: its line {line!r} {why}. Pass overwrite=True to start again, or restore the file"
        )

    def open(self, finished: Sequence[Range]) -> None:
        """Create the journal with the ranges that are already finished."""
        self._have = list(finished)
        lines = [json.dumps(self._job, sort_keys=True), *(f"{start} {stop}" for start, stop in finished)]
        write_aside(self.path, "\n".join(lines) + "\n")
        self._file = system.open_file(self.path, os.O_WRONLY | os.O_APPEND)

    def follow(self, sync: Callable[[], None]) -> None:
        """Start the thread that records ranges. sync: returns when all data that was written before is on disk."""
        self._sync = sync
        self._thread = threading.Thread(target=self._write, name="pipeline journal", daemon=True)
        self._thread.start()

    def add(self, start: int, stop: int) -> None:
        """Record that items start..stop are written; thread-safe. Raises the error of an earlier range, if any."""
        with self._changed:
            if self._error is not None:
                raise self._error
            new = list(gaps(self._have, start, stop))
            self._have = merged([*self._have, *new])
            self._pending += new
            self._changed.notify_all()

    def missing(self, start: int, stop: int) -> list[Range]:
        """Return the parts of start..stop that were not added."""
        with self._changed:
            return list(gaps(self._have, start, stop))

    def flush(self) -> None:
        """Wait until every added range is on disk and recorded. Raises the error that prevented it."""
        with self._changed:
            while (self._pending or self._writing) and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error

    def _write(self) -> None:
        """Sync the data to disk, then write the lines of its ranges. Runs in the journal's thread."""
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
                self._sync()
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
            os.ftruncate(self._file, end)  # the next line would be appended to half a line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self, *, remove: bool = False) -> None:
        """Close it after all added ranges are recorded. remove: delete the journal, as the job is finished."""
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
