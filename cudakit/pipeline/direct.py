"""Reads and writes of a file without the page cache (O_DIRECT), and the speed of the disk that they reach.

The kernel requires that file offset, address and length are multiples of the disk's block. Parts that are not, at the
ends of a range, are read into a page of their own, or written through the page cache. Memory that is not aligned to the
file's pages is copied in pieces.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cudakit.pipeline.files import HostArray, as_bytes, write_whole
from cudakit.pipeline.refusals import FileRefused

#: The alignment of direct reads and writes, in bytes: a multiple of the block size of all usual disks.
PAGE = 4096
_PIECE = 1 << 22  # of memory that is not aligned, per copy
_own = threading.local()


class DirectFile:
    """An open file that is read and written without the page cache.

    Args:
        path: The file.
        flags: Flags of os.open, without O_DIRECT.

    Raises:
        FileRefused: If the system or the file system does not support direct I/O.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        direct = getattr(os, "O_DIRECT", 0)
        try:
            if not direct:
                raise OSError(errno.EINVAL, "this system has no O_DIRECT")
            self._file = os.open(path, flags | direct, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise FileRefused(
                f"{path} cannot be opened for direct I/O ({error.strerror}): pass direct=False, or use a file on a disk"
            ) from error
        self.cached = os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))

    def read(self, into: HostArray, offset: int) -> None:
        """Fill a contiguous array with the bytes from `offset` on. Raises EOFError if the file is too short."""
        data = as_bytes(into)
        for place, length, aligned in _parts(data, offset):
            if aligned:
                self._read(data[place : place + length], offset + place)
                continue
            first = (offset + place) // PAGE * PAGE
            page = _aligned_memory(-(-(offset + place + length - first) // PAGE) * PAGE)
            skipped = offset + place - first
            self._read(page, first, skipped + length)
            data[place : place + length] = page[skipped : skipped + length]

    def _read(self, view: memoryview, offset: int, needed: int | None = None) -> None:
        done, due = 0, len(view) if needed is None else needed
        while done < due:
            got = os.preadv(self._file, [view[done:]], offset + done)
            if got == 0 or (got % PAGE and done + got < due):
                raise EOFError(
                    f"{self.path} ends at byte {offset + done + got:,}, {due - done - got:,} bytes too early: write "
                    "the file again"
                )
            done += got

    def write(self, data: HostArray, offset: int) -> None:
        """Write a contiguous array at `offset`."""
        view = as_bytes(data)
        for place, length, aligned in _parts(view, offset):
            part = view[place : place + length]
            if aligned:
                self._write(part, offset + place)
            elif length >= PAGE and (offset + place) % PAGE == 0 and length % PAGE == 0:  # only the memory is not
                page = _aligned_memory(length)
                page[:] = part
                self._write(page, offset + place)
            else:
                write_whole(self.cached, np.frombuffer(part, np.uint8), offset + place)

    def _write(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], offset + done)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        os.close(self.cached)


def _parts(data: memoryview, offset: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the parts of a range of a file: the rest of the first page, the pages, the start of the last page. Each is
    a place in `data`, a length, and whether place in the file, memory and length are aligned."""
    total = len(data)
    head = min(-offset % PAGE, total)
    body = (total - head) // PAGE * PAGE
    if head:
        yield 0, head, False
    if body:
        address = np.frombuffer(data, np.uint8).ctypes.data + head
        step = (1 << 30) if address % PAGE == 0 else _PIECE
        for place in range(head, head + body, step):
            yield place, min(step, head + body - place), address % PAGE == 0
    if total - head - body:
        yield head + body, total - head - body, False


def _aligned_memory(nbytes: int) -> memoryview:
    """Return memory of this thread that starts at a page. Later calls return the same memory."""
    held = getattr(_own, "memory", None)
    if held is None or len(held) < nbytes:
        held = _own.memory = memoryview(mmap.mmap(-1, max(nbytes, PAGE)))
    return held[:nbytes]


@dataclass(frozen=True)
class Disk:
    """Rates of direct reads and writes of one disk, measured without other work.

    Attributes:
        read: Bytes per second of reads alone.
        write: Bytes per second of writes alone.
        both: Bytes per second in each direction while both run.
    """

    read: float
    write: float
    both: float

    def seconds(self, bytes_in: int, bytes_out: int) -> float:
        """Return the least time: both directions at once as far as possible, then the rest alone.

        Args:
            bytes_in: Bytes that are read.
            bytes_out: Bytes that are written.
        """
        rest = bytes_in - bytes_out
        return min(bytes_in, bytes_out) / self.both + abs(rest) / (self.read if rest > 0 else self.write)


def measure_disk(folder: Path, *, nbytes: int, block: int, threads: int) -> Disk:
    """Measure a disk with direct I/O.

    Args:
        folder: A folder on the disk, for two files of `nbytes`, which are removed again.
        nbytes: Size of each file.
        block: Bytes per read and write.
        threads: Threads per direction.

    Returns:
        The rates; a write ends with a sync.

    Raises:
        FileRefused: If the file system does not support direct I/O.
    """
    block = max(block // PAGE * PAGE, PAGE)
    offsets = range(0, max(nbytes, block) - block + 1, block)
    total = len(offsets) * block
    names = folder / "disk_speed.one", folder / "disk_speed.two"

    def reading(file: DirectFile) -> Callable[[int], None]:
        return lambda offset: file.read(np.frombuffer(_aligned_memory(block), np.uint8), offset)

    def writing(file: DirectFile) -> Callable[[int], None]:
        def write(offset: int) -> None:
            data = np.frombuffer(_aligned_memory(block), np.uint8)
            data[:: PAGE // 8] = offset >> 12 & 255
            file.write(data, offset)

        return write

    def timed(*works: tuple[Callable[[int], None], DirectFile]) -> float:
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads * len(works)) as pool:
            futures = [pool.submit(work, offset) for offset in offsets for work, _ in works]
            for future in futures:
                future.result()
        for _, file in works:
            os.fsync(file.cached)
        return total / (time.perf_counter() - begin)

    files: list[Any] = []
    try:
        for name in names:
            files.append(DirectFile(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        one, two = files
        write = timed((writing(one), one))
        read = timed((reading(one), one))
        both = timed((reading(one), one), (writing(two), two))
    finally:
        for file in files:
            file.close()
        for name in names:
            name.unlink(missing_ok=True)
    return Disk(read, write, both)
