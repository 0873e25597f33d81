"""Reads and writes of a file without the page cache (O_DIRECT), and the speed of the disk that they reach.

The kernel requires that file offset, address and length are multiples of the disk's block. Parts that are not, at the
ends of a range, are read into a page of their own, or written through the page cache. Memory that is not aligned to the
file's pages is copied in pieces.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudakit import system
from cudakit.pipeline.files import HostArray, as_bytes, read_whole, write_whole
from cudakit.pipeline.refusals import FileRefused, explained

#: The alignment of direct reads and writes, in bytes: a multiple of the block size of all usual disks.
PAGE = 4096
_PIECE = 1 << 22  # of memory that is not aligned, per copy
_own = threading.local()


class DiskFile:
    """An open file that is read and written without the page cache, or with it.

    Args:
        path: The file.
        flags: Flags of os.open, without O_DIRECT.
        direct: Whether to read and write without the page cache.

    Raises:
        FileRefused: If direct I/O was requested, and the system or the file system does not support it.
    """

    def __init__(self, path: Path, flags: int, *, direct: bool) -> None:
        self.path = path
        self._file = _open_direct(path, flags) if direct else None
        self._cached = system.open_file(path, flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL) if direct else flags)

    def read(self, into: HostArray, offset: int) -> None:
        """Fill a contiguous array with the bytes from `offset` on.

        Args:
            into: The array.
            offset: The place in the file, in bytes.

        Raises:
            EOFError: If the file is too short.
        """
        if self._file is None:
            read_whole(self._cached, into, offset, self.path)
            return
        data = np.frombuffer(as_bytes(into), np.uint8) if into.nbytes else np.empty(0, np.uint8)
        for place, length, aligned in _parts(data, offset):
            if aligned:
                self._read(self._file, data[place : place + length], offset + place)
                continue
            first = (offset + place) // PAGE * PAGE
            skipped = offset + place - first
            pages = _aligned_memory(-(-(skipped + length) // PAGE) * PAGE)
            self._read(self._file, pages, first, skipped + length)
            np.copyto(data[place : place + length], pages[skipped : skipped + length])

    def _read(self, file: int, pages: HostArray, offset: int, needed: int | None = None) -> None:
        """Read whole pages. needed: bytes after which the file may end; all if None."""
        view, done, due = as_bytes(pages), 0, len(pages) if needed is None else needed
        while done < due:
            got = system.read_at(file, view[done:], offset + done)
            if got == 0 or (got % PAGE and done + got < due):
                raise EOFError(
                    f"{self.path} ends at byte {offset + done + got:,}, {due - done - got:,} bytes too early: write "
                    "the file again"
                )
            done += got

    def write(self, data: HostArray, offset: int) -> None:
        """Write a contiguous array.

        Args:
            data: The array.
            offset: The place in the file, in bytes.
        """
        if self._file is None:
            write_whole(self._cached, data, offset)
            return
        flat = np.frombuffer(as_bytes(data), np.uint8) if data.nbytes else np.empty(0, np.uint8)
        for place, length, aligned in _parts(flat, offset):
            part = flat[place : place + length]
            if aligned:
                write_whole(self._file, part, offset + place)
            elif (offset + place) % PAGE == 0 and length % PAGE == 0:  # only the memory is not aligned
                pages = _aligned_memory(length)
                np.copyto(pages, part)
                write_whole(self._file, pages, offset + place)
            else:
                # Other threads may write the rest of this page at the same time: the page cache merges both.
                write_whole(self._cached, part, offset + place)

    def sync(self) -> None:
        """Wait until all that was written is on disk."""
        os.fsync(self._cached)

    def drop(self) -> None:
        """Write the file's pages in the page cache to disk, and remove them from the cache."""
        self.sync()
        with explained(f"the page cache of {self.path}", "measure with direct=True on a system that supports it"):
            system.drop_cached(self._cached)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
        os.close(self._cached)


def _open_direct(path: Path, flags: int) -> int:
    there = path.exists()
    try:
        return system.open_direct(path, flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        if not there:
            path.unlink(missing_ok=True)  # Linux creates the file before it finds that O_DIRECT is unsupported
        raise FileRefused(
            f"{path} cannot be opened for direct I/O ({error.strerror}): pass direct=False, or use a file on a disk"
        ) from error


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder, such as "ext4"; "" if the system does not report it.

    Args:
        folder: The folder.
    """
    folder, place, kind = folder.resolve(), Path("/"), ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, at, found, *_ = line.split()
        mounted = Path(at.replace("\\040", " "))
        if folder.is_relative_to(mounted) and mounted.is_relative_to(place):
            place, kind = mounted, found
    return kind


def why_unsupported(folder: Path) -> str:
    """Return the reason why files in a folder cannot be read or written directly; "" if they can.

    Args:
        folder: A folder, for a file of one page, which is removed again.
    """
    with tempfile.TemporaryDirectory(dir=folder) as own:
        pages = _aligned_memory(PAGE)
        try:
            file = DiskFile(Path(own) / "page", os.O_RDWR | os.O_CREAT, direct=True)
            try:
                file.write(pages, 0)
                file.read(pages, 0)
            finally:
                file.close()
        except OSError as error:
            return str(error)
    return ""


def _parts(data: HostArray, offset: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the parts of a range of a file: the rest of the first page, the pages, the start of the last page. Each is
    a place in `data`, a length, and whether place in the file, memory and length are aligned."""
    total = len(data)
    head = min(-offset % PAGE, total)
    body = (total - head) // PAGE * PAGE
    if head:
        yield 0, head, False
    if body:
        aligned = (data.ctypes.data + head) % PAGE == 0
        step = (1 << 30) if aligned else _PIECE
        for place in range(head, head + body, step):
            yield place, min(step, head + body - place), aligned
    if total - head - body:
        yield head + body, total - head - body, False


def _aligned_memory(nbytes: int) -> HostArray:
    """Return bytes of this thread that start at a page. Later calls return the same memory."""
    held: HostArray | None = getattr(_own, "memory", None)
    if held is None or len(held) < nbytes:
        held = _own.memory = np.frombuffer(mmap.mmap(-1, max(nbytes, PAGE)), np.uint8)
    return held[:nbytes]


@dataclass(frozen=True)
class Disk:
    """Rates of one disk, measured without other work.

    Attributes:
        read: Bytes per second of reads alone.
        write: Bytes per second of writes alone, with a sync at the end.
        both: Bytes per second in each direction while both run.
    """

    read: float
    write: float
    both: float

    def seconds(self, bytes_in: int, bytes_out: int) -> float:
        """Return the least time: both directions at once as far as possible and then the rest alone, or one direction
        after the other if that is faster, as on disks whose directions slow each other down.

        Args:
            bytes_in: Bytes that are read.
            bytes_out: Bytes that are written.
        """
        rest = bytes_in - bytes_out
        at_once = min(bytes_in, bytes_out) / self.both + abs(rest) / (self.read if rest > 0 else self.write)
        return min(at_once, bytes_in / self.read + bytes_out / self.write)


def measure_disk(folder: Path, *, nbytes: int, block: int, threads: int, direct: bool = True) -> Disk:
    """Measure the disk of a folder.

    Args:
        folder: A folder, for two files of `nbytes`, which are removed again.
        nbytes: Size of each file.
        block: Bytes per read and write.
        threads: Threads per direction.
        direct: Whether to read and write without the page cache; otherwise it is empty before each read, and synced
            after each write.

    Raises:
        FileRefused: If direct I/O was requested, and the file system does not support it.
    """
    block = max(block // PAGE * PAGE, PAGE)
    offsets = range(0, max(nbytes, block) - block + 1, block)

    def read(file: DiskFile, offset: int) -> None:
        file.read(_aligned_memory(block), offset)

    def write(file: DiskFile, offset: int) -> None:
        pages = _aligned_memory(block)
        pages[:: PAGE // 8] = offset >> 12 & 255
        file.write(pages, offset)

    def work(
        step: Callable[[DiskFile, int], None], file: DiskFile, left: Iterator[int], start: threading.Barrier
    ) -> None:
        _aligned_memory(block)[:] = 0  # the system provides the memory before the clock starts
        start.wait()
        for offset in left:
            step(file, offset)

    def timed(*steps: tuple[Callable[[DiskFile, int], None], DiskFile]) -> float:
        """Return bytes per second of each step, while all run."""
        start = threading.Barrier(threads * len(steps) + 1, timeout=60)
        with ThreadPoolExecutor(threads * len(steps)) as pool:
            futures = []
            for step, file in steps:
                left = _Shared(iter(offsets))
                futures += [pool.submit(work, step, file, left, start) for _ in range(threads)]
            start.wait()
            begin = time.perf_counter()
            for future in futures:
                future.result()
            for _, file in steps:
                file.sync()
            return len(offsets) * block / (time.perf_counter() - begin)

    files: list[DiskFile] = []
    with tempfile.TemporaryDirectory(dir=folder) as own:
        try:
            for name in ("one", "two"):
                files.append(DiskFile(Path(own) / name, os.O_RDWR | os.O_CREAT, direct=direct))
                # As in ToFile: ext4 serialises direct writes that make a file longer.
                os.truncate(Path(own) / name, len(offsets) * block)
            one, two = files
            written = timed((write, one))
            one.drop()
            alone = timed((read, one))
            one.drop()
            both = timed((read, one), (write, two))
        finally:
            for file in files:
                file.close()
    return Disk(alone, written, both)


class _Shared(Iterator[int]):
    """An iterator that several threads may use."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers, self._lock = numbers, threading.Lock()

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)
