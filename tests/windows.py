"""Emulates Windows on Linux for one process: `become_windows()` changes this interpreter for the rest of its life.

- Modules and functions that Windows lacks are removed (`MODULES`, `ABSENT`).
- `sys.platform` is "win32". `os.name` stays: pathlib would make Windows paths, which this system does not have.
- kernel32 and msvcrt are replaced, with the argument types and results that Microsoft documents.
- A file that is open or mapped in any process cannot be removed, renamed or replaced; a folder cannot be opened.
- cudakit must open files for bytes. Text files are cp1252 and have \\r\\n if the caller names no encoding and newline.
- File names cannot have `<>:"|?*`.

It cannot show what NVRTC, the driver and Python itself do on Windows.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import functools
import importlib
import io
import os
import re
import shutil
import struct
import sys
import threading
from collections.abc import Callable
from ctypes import wintypes
from types import ModuleType
from typing import Any

#: Modules of the standard library that Windows lacks.
MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty")

#: Names that Windows' modules lack, from the availability notes of Python's documentation.
ABSENT = {
    "os": """
        EX_OK F_LOCK GRND_NONBLOCK MFD_CLOEXEC O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY
        O_NOFOLLOW O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE POSIX_FADV_DONTNEED POSIX_FADV_NORMAL
        POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED WCONTINUED WUNTRACED chown chroot confstr copy_file_range
        ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid
        getgrouplist getgroups getloadavg getpgid getpgrp getpriority getrandom getresgid getresuid getsid getuid
        getxattr initgroups killpg lchown listxattr lockf login_tty major makedev memfd_create minor mkfifo mknod nice
        openpty pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite
        pwritev register_at_fork removexattr sched_get_priority_max sched_getaffinity sched_setaffinity sched_yield
        sendfile setegid seteuid setgid setgroups setpgid setpriority setregid setresuid setreuid setsid setuid setxattr
        splice statvfs sync sysconf tcgetpgrp tcsetpgrp timerfd_create ttyname uname unshare wait wait3 wait4 waitid
        writev
    """,
    "signal": """
        SIGALRM SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGVTALRM
        alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait
    """,
    "mmap": "MAP_ANON MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE",
    "time": "clock_gettime clock_settime pthread_getcpuclockid tzset",
}  # fmt: skip

# These choose their code by platform when they are imported, and cudakit would import them later.
_EARLY = (
    "asyncio", "concurrent.futures.process", "mmap", "multiprocessing.connection", "multiprocessing.resource_tracker",
    "platform", "signal", "socket", "subprocess", "tempfile", "time", "numpy", "ml_dtypes", "nvtx", "rich.console",
    "rich.progress", "cuda.bindings.driver", "cuda.bindings.nvrtc", "cuda.bindings.nvfatbin", "cuda.pathfinder",
)  # fmt: skip
_FLOCK = "hhqqi0q"
_BINARY = 1 << 30
_RESERVED = re.compile(r'[<>:"|?*]')
_last_error = 0


def become_windows(preload: tuple[str, ...] = ()) -> None:
    """Emulate Windows from now on. preload: packages to import before, because their files are those of Linux."""
    for name in (*_EARLY, *preload):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "cudakit" not in sys.modules, "cudakit was imported before"
    _emulate_ctypes(_Kernel32())
    _emulate_files()
    for module, names in ABSENT.items():
        for name in names.split():
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    msvcrt = ModuleType("msvcrt")
    msvcrt.get_osfhandle = lambda file: os.fstat(file) and file  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = msvcrt
    sys.platform = "win32"
    sys.dllhandle = ctypes.pythonapi._handle  # type: ignore[attr-defined]


# ctypes ---------------------------------------------------------------------------------------------------------------

# Linux' ctypes.wintypes has them with 8 bytes, the size of `long`.
wintypes.DWORD, wintypes.BOOL = ctypes.c_uint32, ctypes.c_int32  # type: ignore[assignment, misc]


class _Overlapped(ctypes.Structure):
    _fields_ = [
        ("Internal", ctypes.c_size_t), ("InternalHigh", ctypes.c_size_t), ("Offset", wintypes.DWORD),
        ("OffsetHigh", wintypes.DWORD), ("hEvent", wintypes.HANDLE),
    ]  # fmt: skip

    @property
    def place(self) -> int:
        return int(self.Offset | self.OffsetHigh << 32)


class _MemoryCounters(ctypes.Structure):
    _fields_ = [("cb", wintypes.DWORD), ("PageFaultCount", wintypes.DWORD)] + [
        (name, ctypes.c_size_t)
        for name in (
            "PeakWorkingSetSize", "WorkingSetSize", "QuotaPeakPagedPoolUsage", "QuotaPagedPoolUsage",
            "QuotaPeakNonPagedPoolUsage", "QuotaNonPagedPoolUsage", "PagefileUsage", "PeakPagefileUsage",
        )
    ]  # fmt: skip


class _MemoryStatus(ctypes.Structure):
    _fields_ = [("dwLength", wintypes.DWORD), ("dwMemoryLoad", wintypes.DWORD)] + [
        (name, ctypes.c_uint64)
        for name in (
            "ullTotalPhys", "ullAvailPhys", "ullTotalPageFile", "ullAvailPageFile", "ullTotalVirtual",
            "ullAvailVirtual", "ullAvailExtendedVirtual",
        )
    ]  # fmt: skip


def _failed(code: int) -> int:
    global _last_error
    _last_error = code
    return 0


class _Kernel32:
    """kernel32, on the functions of Linux as they were before they were removed. A handle is a descriptor."""

    def __init__(self) -> None:
        import fcntl
        import resource

        preadv, pwrite, fstat, ftruncate = os.preadv, os.pwrite, os.fstat, os.ftruncate
        held: set[tuple[int, int, int]] = set()  # descriptor, byte and inode of each lock
        events: dict[int, Any] = {}
        dword, handle, boolean, void = wintypes.DWORD, wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p
        place = ctypes.POINTER(_Overlapped)

        def view(address: int, size: int) -> memoryview:
            if not size:
                return memoryview(bytearray())
            return memoryview((ctypes.c_char * size).from_address(address)).cast("B")

        def read(file: int, into: int, size: int, done: Any, at: Any) -> int:
            done[0] = preadv(file, [view(into, size)], at[0].place)
            return 1 if done[0] or not size else _failed(38)

        def write(file: int, data: int, size: int, done: Any, at: Any) -> int:
            done[0] = pwrite(file, view(data, size), at[0].place)
            return 1

        def end_of_file(file: int, kind: int, information: int, size: int) -> int:
            assert (kind, size) == (6, 8)
            ftruncate(file, ctypes.c_int64.from_address(information).value)
            return 1

        def lock(file: int, flags: int, reserved: int, low: int, high: int, at: Any) -> int:
            assert (flags | 1, reserved, low, high) == (3, 0, 1, 0), "an exclusive lock of one byte"
            byte, inode = at[0].place, fstat(file).st_ino
            assert byte >= fstat(file).st_size, "other descriptors could not read a byte that is locked"
            if flags & 1 and (file, byte, inode) in held:
                return _failed(33)  # its own lock excludes a second one, too
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, byte, 1, 0)
            try:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK if flags & 1 else fcntl.F_OFD_SETLKW, wanted)
            except BlockingIOError:
                return _failed(33)
            held.add((file, byte, inode))
            return 1

        def unlock(file: int, reserved: int, low: int, high: int, at: Any) -> int:
            byte, inode = at[0].place, fstat(file).st_ino
            if (file, byte, inode) not in held:
                return _failed(158)
            held.remove((file, byte, inode))
            released = struct.pack(_FLOCK, fcntl.F_UNLCK, 0, byte, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, released)
            return 1

        def open_process(access: int, inherit: int, pid: int) -> int:
            assert access == 0x100000
            return pid if pid and os.path.exists(f"/proc/{pid}") else _failed(87)

        def create_event(security: Any, manual: int, raised: int, name: Any) -> int:
            assert (security, manual, raised, name) == (None, 0, 0, None)
            number = 1 << 40 | len(events)
            events[number] = threading.Semaphore(0)
            return number

        def set_event(number: int) -> int:
            if not events[number]._value:  # an event is raised or not; it does not count
                events[number].release()
            return 1

        def wait(number: int, milliseconds: int) -> int:
            assert milliseconds == 0
            if number in events:
                return 0 if events[number].acquire(blocking=False) else 258
            return 258  # a process that runs

        def close(number: int) -> int:
            events.pop(number, None)
            return 1

        def memory_info(process: int, counters: Any, size: int) -> int:
            assert size == counters[0].cb == ctypes.sizeof(_MemoryCounters)
            counters[0].PeakWorkingSetSize = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            return 1

        def memory_status(status: Any) -> int:
            assert status[0].dwLength == ctypes.sizeof(_MemoryStatus)
            status[0].ullTotalPhys, status[0].ullAvailPhys = 16 << 30, 8 << 30
            return 1

        self._functions: dict[str, tuple[Any, Callable[..., Any]]] = {
            "ReadFile": ((boolean, handle, void, dword, ctypes.POINTER(dword), place), read),
            "WriteFile": ((boolean, handle, void, dword, ctypes.POINTER(dword), place), write),
            "SetFileInformationByHandle": ((boolean, handle, ctypes.c_int, void, dword), end_of_file),
            "LockFileEx": ((boolean, handle, dword, dword, dword, dword, place), lock),
            "UnlockFileEx": ((boolean, handle, dword, dword, dword, place), unlock),
            "OpenProcess": ((handle, dword, boolean, dword), open_process),
            "GetCurrentProcess": ((handle,), lambda: ctypes.c_void_p(-1).value),
            "CreateEventW": ((handle, void, boolean, boolean, ctypes.c_wchar_p), create_event),
            "SetEvent": ((boolean, handle), set_event),
            "WaitForSingleObject": ((dword, handle, dword), wait),
            "CloseHandle": ((boolean, handle), close),
            "K32GetProcessMemoryInfo": ((boolean, handle, ctypes.POINTER(_MemoryCounters), dword), memory_info),
            "GlobalMemoryStatusEx": ((boolean, ctypes.POINTER(_MemoryStatus)), memory_status),
        }
        self._callbacks: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        """Return a C function: a call converts its arguments twice, by cudakit's prototype and by this one."""
        prototype, python = self._functions[name]

        @functools.wraps(python)
        def guarded(*given: Any) -> Any:
            try:
                return python(*given)
            except OSError as error:
                return _failed(error.errno or 31)

        callback = ctypes.CFUNCTYPE(*prototype)(guarded)
        self._callbacks.append(callback)
        return ctypes.CFUNCTYPE(*prototype)(ctypes.cast(callback, ctypes.c_void_p).value)


def _emulate_ctypes(kernel: _Kernel32) -> None:
    def no_own_process(library: type[ctypes.CDLL]) -> type[ctypes.CDLL]:
        class Library(library):  # type: ignore[misc, valid-type]
            def __init__(self, name: Any, mode: int = 0, handle: int | None = None, **rest: Any) -> None:
                if name is None:
                    raise TypeError("argument 1 must be str, not None")
                super().__init__(name, mode, handle, **rest)

        return Library

    def windll(name: str, *, use_last_error: bool = False) -> _Kernel32:
        assert (name, use_last_error) == ("kernel32", True)
        return kernel

    made: Any = ctypes
    made.WinDLL = windll
    made.get_last_error = lambda: _last_error
    made.WinError = lambda code: OSError(errno.EACCES, f"[WinError {code}]")
    made.CDLL, made.PyDLL = no_own_process(ctypes.CDLL), no_own_process(ctypes.PyDLL)


# Files ----------------------------------------------------------------------------------------------------------------


def _emulate_files() -> None:
    import fcntl

    changed: Any = os
    real_open, real_text, real_fsync, statvfs = os.open, io.open, os.fsync, os.statvfs
    readlink, listdir = os.readlink, os.listdir

    def of_cudakit() -> bool:
        return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("cudakit")

    def allowed(path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)) and _RESERVED.search(os.fsdecode(path)):
            raise OSError(errno.EINVAL, "The filename, directory name, or volume label syntax is incorrect", str(path))

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        allowed(path)
        assert not of_cudakit() or flags & _BINARY, f"{path} was opened as text: O_BINARY is missing"
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, flags & ~_BINARY, mode, dir_fd=dir_fd)

    def text(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
             newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        allowed(file)
        if "b" not in mode:
            encoding = "cp1252" if encoding in (None, "locale") else encoding
            if newline is None and set(mode) & set("wax+"):
                newline = "\r\n"
        return real_text(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def fsync(file: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & 3 == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(file)

    def kill(pid: int, sign: int) -> None:
        raise AssertionError("os.kill(pid, 0) would interrupt the process, and other signals would end it")

    def checked(function: Callable[..., Any], *, replaces: bool = True) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            paths = [path for path in given if isinstance(path, (str, bytes, os.PathLike))]
            for path in paths:
                allowed(path)
                expect_closed(path)
            if len(paths) == 2 and os.path.exists(paths[1]) and (not replaces or os.path.isdir(paths[1])):
                raise FileExistsError(errno.EEXIST, "The file exists already", os.fsdecode(paths[1]))
            return function(*given, **options)

        return call

    def expect_closed(path: Any) -> None:
        name = os.path.realpath(os.fsdecode(path))
        used = []
        for process in listdir("/proc"):
            if process.isdigit():
                with contextlib.suppress(OSError):
                    for file in listdir(f"/proc/{process}/fd"):
                        with contextlib.suppress(OSError):  # closed since, as that of the folder itself
                            used.append(readlink(f"/proc/{process}/fd/{file}"))
        with contextlib.suppress(OSError), real_text("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            used += [line.split(maxsplit=5)[-1].rstrip("\n") for line in maps]
        if any(one == name or one.startswith(name + "/") for one in used):
            raise PermissionError(errno.EACCES, "The file is being used by another process", os.fsdecode(path))

    changed.O_BINARY = _BINARY
    changed.open, changed.fsync, changed.kill = open_, fsync, kill
    changed.rename = checked(os.rename, replaces=False)
    for name in ("replace", "unlink", "remove", "rmdir"):
        setattr(os, name, checked(getattr(os, name)))
    io.open = builtins.open = text  # type: ignore[assignment]
    tools: Any = shutil
    tools._use_fd_functions = tools._USE_CP_SENDFILE = False
    tools._copyxattr = lambda *paths, **options: None

    def disk_usage(path: Any) -> Any:
        disk = statvfs(path)
        whole, free, available = (disk.f_frsize * blocks for blocks in (disk.f_blocks, disk.f_bfree, disk.f_bavail))
        return tools._ntuple_diskusage(whole, whole - free, available)

    tools.disk_usage = disk_usage
