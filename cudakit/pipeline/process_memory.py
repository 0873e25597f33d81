"""The peak memory of this process, reset for each run if the system supports it."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_from_now() -> int:
    """Return the bytes of memory of this process, and reset the peak that `peak` returns if Linux supports it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, ValueError):
        return peak()


def peak() -> int:
    """Return the peak memory of this process in bytes, pinned memory included."""
    try:
        return _status("VmHWM")
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    """Return a size in /proc/self/status, in bytes. Raises ValueError if it is missing."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {name}")
