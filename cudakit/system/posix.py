"""Files, locks, processes and library names on Linux and other POSIX systems."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

assert sys.platform != "win32"

# Names of libraries and their folders ---------------------------------------------------------------------------------

DRIVER_LIBRARY = "libcuda.so.1"
LIBRARY_PATH = "LD_LIBRARY_PATH"
#: Folders of libraries in `site-packages`, in a toolkit, and elsewhere; usual roots of toolkits.
WHEEL_LIBRARIES = ("nvidia/cu13/lib",)
TOOLKIT_LIBRARIES = ("lib64", "lib")
LIBRARY_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
TOOLKITS = ("/usr/local/cuda",)


def library_pattern(stem: str) -> str:
    """Return the pattern of a CUDA library's file names. stem: such as "nvrtc"."""
    return f"lib{stem}.so*"


def python_library() -> ctypes.PyDLL:
    """Return the interpreter's C API, with prototypes of its own: those of `ctypes.pythonapi` are shared by all."""
    return ctypes.PyDLL(None)


# Files ----------------------------------------------------------------------------------------------------------------

#: Whether an open file can be removed, renamed or replaced.
REMOVES_OPEN_FILES = True
#: A flag of `open_file`: do not wait for the other end of a pipe.
NONBLOCK = os.O_NONBLOCK


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a file, open for bytes. Child processes do not inherit it. flags: as in os.open."""
    return os.open(path, flags, mode)


def open_direct(path: str | os.PathLike[str], flags: int) -> int:
    """Return a descriptor of a file that is read and written without the page cache. Raises OSError with EINVAL if the
    system or the file system does not support it."""
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "this system has no O_DIRECT")
    return os.open(path, flags | os.O_DIRECT, 0o666)


def read_at(file: int, into: WriteableBuffer, offset: int) -> int:
    """Read bytes from `offset` on; thread-safe. Returns their number, 0 at the end of the file."""
    return os.preadv(file, [into], offset)


def write_at(file: int, data: ReadableBuffer, offset: int) -> int:
    """Write bytes at `offset`; thread-safe. Returns their number."""
    return os.pwrite(file, data, offset)


def set_length(file: int, length: int) -> None:
    """Make a file `length` bytes long. A longer file is sparse."""
    os.ftruncate(file, length)


def sync_data(file: int) -> None:
    """Wait until all that was written to a file is on disk."""
    os.fdatasync(file)


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def flush_c_streams() -> None:
    """Write what C's stdout and stderr have buffered."""
    ctypes.CDLL(None).fflush(None)


def drop_cached(file: int) -> None:
    """Remove a synced file's pages from the page cache."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def user_id() -> int | None:
    """Return the id of this process's user, which is `st_uid` of its files; None if the system has no such ids."""
    return os.geteuid()


# Locks ----------------------------------------------------------------------------------------------------------------

# Open file description locks: unlike process locks, they also exclude threads of one process, and closing another
# descriptor of the file does not release them.
_FLOCK = "hhqqi0q"  # struct flock: l_type, l_whence, l_start, l_len, l_pid


def lock_byte(file: int, byte: int, *, wait: bool = False) -> None:
    """Lock one byte for a descriptor, until it is closed or its process ends. Raises OSError if another descriptor
    holds the lock and `wait` is False."""
    _set(file, byte, fcntl.F_WRLCK, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK)


def unlock_byte(file: int, byte: int) -> None:
    """Release a descriptor's lock."""
    _set(file, byte, fcntl.F_UNLCK, fcntl.F_OFD_SETLK)


def _set(file: int, byte: int, kind: int, command: int) -> None:
    fcntl.fcntl(file, command, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))


def byte_is_locked(file: int, byte: int) -> bool:
    """Whether another descriptor holds the lock on a byte, which this one must not hold."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


#: Whether `lock_folder` is supported.
FOLDER_LOCKS = True


def lock_folder(folder: Path, *, exclusive: bool) -> int:
    """Return a descriptor of a folder that holds a lock on it. Raises OSError if an exclusive lock was requested and
    another descriptor holds one, or if `folder` is a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


# Processes ------------------------------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    """Whether a process of this host exists; True if it cannot be known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of host memory that can be allocated without swapping."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def peak_memory_from_now() -> int:
    """Return the bytes of memory of this process, and reset the peak that `peak_memory` returns if the system supports
    it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        return _status("VmRSS")
    except (OSError, ValueError):
        return peak_memory()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, pinned memory included."""
    try:
        return _status("VmHWM")
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    """Return a size in /proc/self/status, in bytes. Raises ValueError if it is missing."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {name}")


_SEMAPHORE_BYTES = 64  # of a sem_t, with room to spare


class PosixSemaphore:
    """A semaphore that a thread without Python can raise: by calling the C function at `post` with `address`."""

    _libc = ctypes.CDLL(None)

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(self._memory, 0, 0)
        self.address = ctypes.addressof(self._memory)

    @property
    def post(self) -> int:
        """The address of a C function `void post(void* address)`, which raises the semaphore."""
        return ctypes.cast(self._libc.sem_post, ctypes.c_void_p).value or 0

    def try_wait(self) -> bool:
        """Whether it was raised; of several threads, only one gets True."""
        return not self._libc.sem_trywait(self._memory)


def printable(stream: TextIO) -> None:
    """Let a stream replace characters that its encoding lacks, on systems whose encoding is not UTF-8."""
