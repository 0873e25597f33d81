"""Ranges of items: which are finished, which are left, and the record of them that outlives the process."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Range = tuple[int, int]  # the first item and the one after the last


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same items in as few ranges as they take, in order."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def common(a: Iterable[Range], b: Iterable[Range]) -> list[Range]:
    """The items that are in both."""
    b = list(b)
    return merged((max(s, other), min(e, end)) for s, e in a for other, end in b)


def covers(ranges: Iterable[Range], start: int, stop: int) -> bool:
    """Whether all of start..stop lies in the merged `ranges`."""
    return start >= stop or any(s <= start and stop <= e for s, e in ranges)


def left(finished: Iterable[Range], count: int, chunk: int, periods: Iterable[int] = ()) -> Iterator[Range]:
    """The chunks, of `chunk` items at most, that 0..count has outside the merged ranges `finished`. None of them goes
    on over a multiple of one of `periods`."""
    periods, start = tuple(periods), 0
    for done, after in [*finished, (count, count)]:
        while start < min(done, count):
            stop = min(start + chunk, done, count, *(start - start % period + period for period in periods))
            yield start, stop
            start = stop
        start = max(start, after)


def write_aside(path: Path, text: str) -> None:
    """Write a small file so that it has its old contents or all of the new, whenever the process is killed."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.replace(path)


class Journal:
    """Which ranges of a file are written: a line of what the job is, then a line for each finished range.

    A line is added with one write after its range has been written, so a process that is killed leaves at most one torn
    line, which is not read. path: of the journal itself. job: what must be the same for a resumed run.
    """

    def __init__(self, path: Path, job: Mapping[str, Any]) -> None:
        self.path = path
        self._job = json.dumps(job, sort_keys=True)
        self._file: int | None = None
        self._lock = threading.Lock()
        self.added = False  # whether it has any range

    def began(self) -> bool:
        """Whether an earlier run has finished any."""
        return self.path.read_text().count("\n") > 1

    def finished(self) -> list[Range]:
        """What an earlier run finished. Raises ValueError where it was another job's."""
        if not self.began():
            return []
        lines = self.path.read_text().split("\n")[:-1]  # what follows the last line's end is a torn line
        if lines[0] != self._job:
            raise ValueError(
                f"{self.path} is of another job: it says {lines[0]}, and this one is {self._job}. Resume with the "
                "arguments of then, or pass overwrite=True to begin anew"
            )
        ranges = []
        for line in lines[1:]:
            fields = line.split()
            if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[0]) >= int(fields[1]):
                raise ValueError(f"{self.path} has a line that is no range of items, {line!r}: pass overwrite=True")
            ranges.append((int(fields[0]), int(fields[1])))
        return merged(ranges)

    def open(self, finished: Sequence[Range]) -> None:
        """Begin the record, or begin it anew with what is finished already."""
        write_aside(self.path, "".join([self._job + "\n", *(f"{start} {stop}\n" for start, stop in finished)]))
        self.added = bool(finished)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def add(self, start: int, stop: int) -> None:
        """The items start..stop are written. Safe from several threads. OSError where the disk has no room for it."""
        line = f"{start} {stop}\n".encode()
        with self._lock:
            if self._file is None:
                return
            end = os.fstat(self._file).st_size
            if os.write(self._file, line) < len(line):
                os.ftruncate(self._file, end)  # half a line would be read as another range
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self.added = True

    def close(self, *, remove: bool = False) -> None:
        """remove: the job is whole, and needs no record."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if remove:
            self.path.unlink(missing_ok=True)
