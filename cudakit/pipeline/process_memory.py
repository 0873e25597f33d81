"""The memory of this process: its peak, counted anew for each run if the system can."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_from_now() -> int:
    """Bytes of memory this process has now; the peak that `peak` reports is counted anew from here if Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, ValueError):
        return peak()


def peak() -> int:
    """The most bytes of memory this process has had, pinned memory included."""
    try:
        return _status("VmHWM")
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    """A size in /proc/self/status, in bytes. ValueError where there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{name} is not told")
