"""One run per output: the lock that a run holds on the results it writes.

The lock file is beside the output while a run writes there. Each run that writes has a line in it, its claim: its
process id and the part of the output it writes. It holds a lock of the operating system on that line's first byte,
which ends with the process, however it dies. Runs in several processes may share one output if their parts are
disjoint: slices of one memory map, or differently named files of one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudakit.pipeline.refusals import OutputBusy, explained

#: What a run writes of an output: (first byte, byte after the last), names of files, or None for everything.
Part = Sequence[int] | Sequence[str] | None

_TURN = 1 << 62  # the byte whose lock a process holds while it reads or changes the claims
_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, process id


def overlap(one: Part, other: Part) -> bool:
    """Whether two parts of an output share anything."""
    if one is None or other is None:
        return True
    if not one or not other:
        return False
    if isinstance(one[0], int) and isinstance(other[0], int):
        return max(one[0], other[0]) < min(int(one[1]), int(other[1]))
    return not set(map(str, one)).isdisjoint(map(str, other))


class OutputLock:
    """Exclusive use of a part of one output. path: the lock file. It is removed by the last run that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._claim = 0  # offset of the own line
        _made.add(self)

    def take(self, part: Part, output: Path) -> list[Part]:
        """Claim `part` of `output`. Returns the parts of other runs that are writing now. Raises OutputBusy if one of
        them overlaps."""
        with explained(f"the lock file {self.path}, by which a run has {output} to itself,", "name another output"):
            while True:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
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
        """Whether the open file still has its name: its last holder may have removed it since it was opened."""
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
                    f"{output} is being written by process {pid} ({here}): wait until it has finished or stop it, or "
                    "name another output",
                    pid,
                )
        if not others:
            os.ftruncate(file, 0)
        end = os.fstat(file).st_size
        self._claim = end + 1  # on a line of its own, even if a process died within the last one
        os.pwrite(file, ("\n" + json.dumps({"pid": os.getpid(), "part": part}) + "\n").encode(), end)
        _set(file, self._claim, held=True)
        return [claim["part"] for claim in others]

    def release(self) -> None:
        """End the claim. Idempotent."""
        if self._file is None:
            return
        with contextlib.suppress(OSError), _turn(self._file):
            _set(self._file, self._claim, held=False)
            if next(_claims(self._file), None) is None:
                self.path.unlink(missing_ok=True)
        self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _claims(file: int) -> Iterator[dict[str, Any]]:
    """The claims in a lock file whose runs live. One that the file's descriptor itself holds is not seen."""
    size = os.fstat(file).st_size
    begin = 0
    for line in os.pread(file, size, 0).split(b"\n"):
        if line and _held(file, begin):
            yield json.loads(line)
        begin += len(line) + 1


@contextlib.contextmanager
def _turn(file: int) -> Iterator[None]:
    """Alone with the claims of a lock file, among all processes and threads."""
    _set(file, _TURN, held=True, wait=True)
    try:
        yield
    finally:
        _set(file, _TURN, held=False)


# Locks of an open file description: unlike those of a process they exclude threads of one process too, and closing
# another descriptor of the file does not drop them.


def _set(file: int, byte: int, *, held: bool, wait: bool = False) -> None:
    import fcntl  # not on Windows

    kind = fcntl.F_WRLCK if held else fcntl.F_UNLCK
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    fcntl.fcntl(file, command, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))


def _held(file: int, byte: int) -> bool:
    """Whether another descriptor has the byte locked."""
    import fcntl

    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


# A forked child has copies of the descriptors, which would keep a lock after its run's process has died.

_made: weakref.WeakSet[OutputLock] = weakref.WeakSet()


def _forget() -> None:
    for lock in list(_made):
        lock._drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
