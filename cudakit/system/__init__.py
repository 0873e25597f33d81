"""Differences between operating systems: files, locks, processes and the names of libraries.

`posix` and `windows` define the same names; this package has those of the running system. No other module of cudakit
calls a function that only some systems have.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from cudakit.system.windows import (
        DRIVER_LIBRARY,
        FOLDER_LOCKS,
        LIBRARY_PATH,
        LIBRARY_PLACES,
        NONBLOCK,
        REMOVES_OPEN_FILES,
        TOOLKIT_LIBRARIES,
        TOOLKITS,
        WHEEL_LIBRARIES,
        EventSemaphore,
        available_memory,
        byte_is_locked,
        drop_cached,
        flush_c_streams,
        is_running,
        library_pattern,
        lock_byte,
        lock_folder,
        open_direct,
        open_file,
        peak_memory,
        peak_memory_from_now,
        printable,
        python_library,
        read_at,
        set_length,
        sync_data,
        sync_path,
        unlock_byte,
        usable_cores,
        user_id,
        write_at,
    )

    Semaphore = EventSemaphore
else:
    from cudakit.system.posix import (
        DRIVER_LIBRARY,
        FOLDER_LOCKS,
        LIBRARY_PATH,
        LIBRARY_PLACES,
        NONBLOCK,
        REMOVES_OPEN_FILES,
        TOOLKIT_LIBRARIES,
        TOOLKITS,
        WHEEL_LIBRARIES,
        PosixSemaphore,
        available_memory,
        byte_is_locked,
        drop_cached,
        flush_c_streams,
        is_running,
        library_pattern,
        lock_byte,
        lock_folder,
        open_direct,
        open_file,
        peak_memory,
        peak_memory_from_now,
        printable,
        python_library,
        read_at,
        set_length,
        sync_data,
        sync_path,
        unlock_byte,
        usable_cores,
        user_id,
        write_at,
    )

    Semaphore = PosixSemaphore

__all__ = [
    "DRIVER_LIBRARY",
    "FOLDER_LOCKS",
    "LIBRARY_PATH",
    "LIBRARY_PLACES",
    "NONBLOCK",
    "REMOVES_OPEN_FILES",
    "TOOLKITS",
    "TOOLKIT_LIBRARIES",
    "WHEEL_LIBRARIES",
    "Semaphore",
    "available_memory",
    "byte_is_locked",
    "drop_cached",
    "flush_c_streams",
    "is_running",
    "library_pattern",
    "lock_byte",
    "lock_folder",
    "open_direct",
    "open_file",
    "peak_memory",
    "peak_memory_from_now",
    "printable",
    "python_library",
    "read_at",
    "set_length",
    "sync_data",
    "sync_path",
    "unlock_byte",
    "usable_cores",
    "user_id",
    "write_at",
]
