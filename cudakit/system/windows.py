"""Files, locks, processes and library names on Windows, by the standard library and kernel32.

Tested by emulation (`tests/windows.py`), not yet on Windows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import msvcrt
import os
import sys
from ctypes import wintypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

assert sys.platform == "win32"

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_PIECE = 1 << 30  # bytes per read or write, whose lengths have 32 bits


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_kernel32, name)
    function.restype, function.argtypes = result, arguments
    return function


def _expect(succeeded: object) -> None:
    """Raise the OSError of the last call if it failed."""
    if not succeeded:
        raise ctypes.WinError(ctypes.get_last_error())


# Names of libraries and their folders ---------------------------------------------------------------------------------

DRIVER_LIBRARY = "nvcuda.dll"
LIBRARY_PATH = "PATH"
WHEEL_LIBRARIES = ("nvidia/cu13/bin/x86_64", "nvidia/cu13/bin/arm64")
TOOLKIT_LIBRARIES = ("bin/x64", "bin")
LIBRARY_PLACES: tuple[str, ...] = ()
TOOLKITS: tuple[str, ...] = ()  # the installer sets CUDA_PATH


def library_pattern(stem: str) -> str:
    """Return the pattern of a CUDA library's file names. stem: such as "nvrtc"."""
    return f"{stem}64_*.dll"


def python_library() -> ctypes.PyDLL:
    """Return the interpreter's C API, with prototypes of its own: those of `ctypes.pythonapi` are shared by all."""
    return ctypes.PyDLL("python", handle=sys.dllhandle)


# Files ----------------------------------------------------------------------------------------------------------------

REMOVES_OPEN_FILES = False
NONBLOCK = 0


class _Overlapped(ctypes.Structure):
    _fields_ = [
        ("internal", ctypes.c_void_p),
        ("internal_high", ctypes.c_void_p),
        ("offset", wintypes.DWORD),
        ("offset_high", wintypes.DWORD),
        ("event", wintypes.HANDLE),
    ]

    @classmethod
    def at(cls, offset: int) -> _Overlapped:
        return cls(None, None, offset & 0xFFFFFFFF, offset >> 32, None)


# With a place in an _Overlapped, both are positional, and wait on a file that os.open has opened.
_transfer = (
    wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD, ctypes.POINTER(wintypes.DWORD), ctypes.POINTER(_Overlapped)
)  # fmt: skip
_read_file = _function("ReadFile", wintypes.BOOL, *_transfer)
_write_file = _function("WriteFile", wintypes.BOOL, *_transfer)
_set_information = _function(
    "SetFileInformationByHandle", wintypes.BOOL, wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD
)
_HANDLE_EOF = 38  # ERROR_HANDLE_EOF
_END_OF_FILE_INFO = 6  # FileEndOfFileInfo


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a file, open for bytes. Child processes do not inherit it. flags: as in os.open."""
    return os.open(path, flags | os.O_BINARY, mode)


def open_direct(path: str | os.PathLike[str], flags: int) -> int:
    """Raise OSError with EINVAL: reads and writes without the page cache are not supported on Windows."""
    raise OSError(errno.EINVAL, "cudakit does not support it on Windows")


def read_at(file: int, into: WriteableBuffer, offset: int) -> int:
    """Read bytes from `offset` on; thread-safe. Returns their number, 0 at the end of the file."""
    count, place, handle = wintypes.DWORD(), _Overlapped.at(offset), msvcrt.get_osfhandle(file)
    if not _read_file(handle, *_span(into), ctypes.byref(count), ctypes.byref(place)):
        _expect(ctypes.get_last_error() == _HANDLE_EOF)
    return count.value


def write_at(file: int, data: ReadableBuffer, offset: int) -> int:
    """Write bytes at `offset`; thread-safe. Returns their number."""
    count, place, handle = wintypes.DWORD(), _Overlapped.at(offset), msvcrt.get_osfhandle(file)
    _expect(_write_file(handle, *_span(data), ctypes.byref(count), ctypes.byref(place)))
    return count.value


def _span(data: Any) -> tuple[int, int]:
    """Return the address of a buffer, and the bytes that one call may read or write."""
    data = memoryview(data)
    return np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0, min(data.nbytes, _PIECE)


def set_length(file: int, length: int) -> None:
    """Make a file `length` bytes long. Unlike os.ftruncate, it does not write zeros to a longer one."""
    end = ctypes.c_int64(length)
    handle = msvcrt.get_osfhandle(file)
    _expect(_set_information(handle, _END_OF_FILE_INFO, ctypes.byref(end), ctypes.sizeof(end)))


def sync_data(file: int) -> None:
    """Wait until all that was written to a file is on disk."""
    os.fsync(file)


def sync_path(path: Path) -> None:
    """Wait until a file is on disk. For a folder this does nothing: it cannot be opened."""
    if path.is_dir():
        return
    file = open_file(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def flush_c_streams() -> None:
    """Write what C's stdout and stderr have buffered."""
    ctypes.CDLL("ucrtbase").fflush(None)


def drop_cached(file: int) -> None:
    """Raise OSError: a file's pages cannot be removed from Windows' cache."""
    raise OSError(errno.EINVAL, "Windows cannot remove a file's pages from its cache; restart it to read from the disk")


def user_id() -> int | None:
    """Return None: files have no `st_uid`, and access lists protect the folders of a user."""
    return None


# Locks ----------------------------------------------------------------------------------------------------------------

# A locked byte cannot be read by others, so the locks are on bytes past the end of any file. They belong to the open
# file, as open file description locks do.
_PAST_END = 1 << 61
_WAIT, _NOW = 2, 3  # LOCKFILE_EXCLUSIVE_LOCK, with LOCKFILE_FAIL_IMMEDIATELY
_LOCK_VIOLATION = 33  # ERROR_LOCK_VIOLATION
_lock_file = _function(
    "LockFileEx", wintypes.BOOL, wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD,
    ctypes.POINTER(_Overlapped),
)  # fmt: skip
_unlock_file = _function(
    "UnlockFileEx", wintypes.BOOL, wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD,
    ctypes.POINTER(_Overlapped),
)  # fmt: skip


def lock_byte(file: int, byte: int, *, wait: bool = False) -> None:
    """Lock one byte for a descriptor, until it is closed or its process ends. Raises OSError if another descriptor
    holds the lock and `wait` is False."""
    place, handle = _Overlapped.at(_PAST_END + byte), msvcrt.get_osfhandle(file)
    _expect(_lock_file(handle, _WAIT if wait else _NOW, 0, 1, 0, ctypes.byref(place)))


def unlock_byte(file: int, byte: int) -> None:
    """Release a descriptor's lock."""
    place, handle = _Overlapped.at(_PAST_END + byte), msvcrt.get_osfhandle(file)
    _expect(_unlock_file(handle, 0, 1, 0, ctypes.byref(place)))


def byte_is_locked(file: int, byte: int) -> bool:
    """Whether another descriptor holds the lock on a byte, which this one must not hold."""
    place, handle = _Overlapped.at(_PAST_END + byte), msvcrt.get_osfhandle(file)
    if not _lock_file(handle, _NOW, 0, 1, 0, ctypes.byref(place)):
        _expect(ctypes.get_last_error() == _LOCK_VIOLATION)
        return True
    unlock_byte(file, byte)
    return False


FOLDER_LOCKS = False


def lock_folder(folder: Path, *, exclusive: bool) -> int:
    """Raise OSError: folders cannot be locked."""
    raise OSError(errno.EINVAL, "Windows cannot lock folders", str(folder))


# Processes ------------------------------------------------------------------------------------------------------------


class _MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = [
        ("size", wintypes.DWORD),
        ("page_faults", wintypes.DWORD),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 6),
    ]


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = [
        ("size", wintypes.DWORD),
        ("load", wintypes.DWORD),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    ]


_open_process = _function("OpenProcess", wintypes.HANDLE, wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
_wait = _function("WaitForSingleObject", wintypes.DWORD, wintypes.HANDLE, wintypes.DWORD)
_close_handle = _function("CloseHandle", wintypes.BOOL, wintypes.HANDLE)
_current_process = _function("GetCurrentProcess", wintypes.HANDLE)
_memory_info = _function(
    "K32GetProcessMemoryInfo", wintypes.BOOL, wintypes.HANDLE, ctypes.POINTER(_MemoryCounters), wintypes.DWORD
)
_memory_status = _function("GlobalMemoryStatusEx", wintypes.BOOL, ctypes.POINTER(_MemoryStatus))
_create_event = _function(
    "CreateEventW", wintypes.HANDLE, ctypes.c_void_p, wintypes.BOOL, wintypes.BOOL, wintypes.LPCWSTR
)
_set_event = _function("SetEvent", wintypes.BOOL, wintypes.HANDLE)
_SYNCHRONIZE = 0x100000
_INVALID_PARAMETER = 87  # ERROR_INVALID_PARAMETER: there is no such process
_SIGNALED, _TIMEOUT = 0, 258  # WAIT_OBJECT_0, WAIT_TIMEOUT


def is_running(pid: int) -> bool:
    """Whether a process of this host exists; True if it cannot be known."""
    if pid >> 32:
        return True
    process = _open_process(_SYNCHRONIZE, False, pid)
    if not process:
        return bool(ctypes.get_last_error() != _INVALID_PARAMETER)
    try:
        return bool(_wait(process, 0) == _TIMEOUT)
    finally:
        _close_handle(process)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return os.cpu_count() or 1


def available_memory() -> int:
    """Return the bytes of host memory that can be allocated without swapping."""
    status = _MemoryStatus(size=ctypes.sizeof(_MemoryStatus))
    _expect(_memory_status(ctypes.byref(status)))
    return int(status.available)


def peak_memory_from_now() -> int:
    """Return the peak memory of this process in bytes, which Windows cannot reset."""
    return peak_memory()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, pinned memory included."""
    counters = _MemoryCounters(size=ctypes.sizeof(_MemoryCounters))
    _expect(_memory_info(_current_process(), ctypes.byref(counters), counters.size))
    return int(counters.peak_working_set)


class EventSemaphore:
    """A semaphore that a thread without Python can raise: by calling the C function at `post` with `address`."""

    def __init__(self) -> None:
        handle = _create_event(None, False, False, None)  # reset by the wait that finds it raised
        _expect(handle)
        self.address = int(handle)

    @property
    def post(self) -> int:
        """The address of a C function `void post(void* address)`, which raises the semaphore."""
        return ctypes.cast(_set_event, ctypes.c_void_p).value or 0

    def try_wait(self) -> bool:
        """Whether it was raised; of several threads, only one gets True."""
        return bool(_wait(self.address, 0) == _SIGNALED)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _close_handle(self.address)


def printable(stream: TextIO) -> None:
    """Let a stream replace characters that its encoding lacks, on systems whose encoding is not UTF-8."""
    if isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors="replace")
