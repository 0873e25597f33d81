"""Locks of outputs: a run holds a lock on the results that it writes.

The lock file is next to the output while a run writes there. Each writing run has a line in it, its claim, with its
process id and the part of the output it writes. The run holds a lock of the operating system on that line's first byte,
which is released when the process ends, even if it is killed. Runs in several processes may share one output if their
parts are disjoint: slices of one memory map, or files of one folder with different names.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudakit import system
from cudakit.pipeline.refusals import OutputBusy, explained

#: The part of an output that a run writes: (first byte, byte after the last), names of files, or None for everything.
Part = Sequence[int] | Sequence[str] | None

_TURN = 1 << 62  # the byte that is locked while claims are read or changed


def overlap(one: Part, other: Part) -> bool:
    """Whether two parts of an output overlap."""
    if one is None or other is None:
        return True
    if not one or not other:
        return False
    if isinstance(one[0], int) and isinstance(other[0], int):
        return max(one[0], other[0]) < min(int(one[1]), int(other[1]))
    return not set(map(str, one)).isdisjoint(map(str, other))


class OutputLock:
    """Exclusive use of a part of one output. path: the lock file, which the last run that holds it removes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._claim = 0  # offset of this lock's line
        _made.add(self)

    def take(self, part: Part, output: Path) -> list[Part]:
        """Claim `part` of `output`, and return the parts that other runs are writing. Raises OutputBusy if one of them
        overlaps."""
        with explained(f"the lock file {self.path} of the output {output}", "pass another output"):
            while True:
                file = system.open_file(self.path, os.O_RDWR | os.O_CREAT)
                try:
                    with _turn(file):
                        if self._named(file):
                            others = self._take(file, part, output)
                            self._file = file
                            return others
                finally:
                    if self._file != file:
                        os.close(file)

    def _named(self, file: int) -> bool:
        """Whether the open file still has its name; its last holder may have removed it after it was opened."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _take(self, file: int, part: Part, output: Path) -> list[Part]:
        others = list(_claims(file))
        for claim in others:
            if overlap(part, claim["part"]):
                pid = int(claim["pid"])
                here = "this process, in another run or for another output" if pid == os.getpid() else "another process"
                raise OutputBusy(
                    f"{output} is being written by process {pid} ({here}): wait until it has finished, stop it, or "
                    "pass another output",
                    pid,
                )
        if not others:
            os.ftruncate(file, 0)
        end = os.fstat(file).st_size
        self._claim = end + 1  # on a new line, even if a killed process left an incomplete one
        system.write_at(file, ("\n" + json.dumps({"pid": os.getpid(), "part": part}) + "\n").encode(), end)
        system.lock_byte(file, self._claim)
        return [claim["part"] for claim in others]

    def release(self) -> None:
        """Release the claim. Idempotent."""
        if self._file is None:
            return
        unused = False
        with contextlib.suppress(OSError), _turn(self._file):
            system.unlock_byte(self._file, self._claim)
            unused = next(_claims(self._file), None) is None
            if unused and system.REMOVES_OPEN_FILES:
                self.path.unlink(missing_ok=True)
        self._drop()
        if unused and not system.REMOVES_OPEN_FILES:
            with contextlib.suppress(OSError):  # another run has opened it since
                self.path.unlink()

    def _drop(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _claims(file: int) -> Iterator[dict[str, Any]]:
    """Yield the claims of active runs in a lock file, except the claim held by this descriptor."""
    text = bytearray(os.fstat(file).st_size)
    del text[system.read_at(file, text, 0) :]
    begin = 0
    for line in text.split(b"\n"):
        if line and system.byte_is_locked(file, begin):
            yield json.loads(line)
        begin += len(line) + 1


@contextlib.contextmanager
def _turn(file: int) -> Iterator[None]:
    """Exclusive access to the claims of a lock file, among all processes and threads."""
    system.lock_byte(file, _TURN, wait=True)
    try:
        yield
    finally:
        system.unlock_byte(file, _TURN)


# A forked child has copies of the descriptors, which would keep a lock after the run's process has ended.

_made: weakref.WeakSet[OutputLock] = weakref.WeakSet()


def _forget() -> None:
    for lock in list(_made):
        lock._drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
