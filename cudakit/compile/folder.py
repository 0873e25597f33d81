"""The folder of the disk cache, and the reasons not to use it."""

from __future__ import annotations

import os
from pathlib import Path

from cudakit.compile import ownership
from cudakit.compile.ownership import NotOurs


def directory() -> Path | None:
    """Return the cache's folder, which need not exist; None if neither a home folder nor a variable names one."""
    named = os.environ.get("CUDAKIT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path("~/.cache").expanduser()) / "cudakit"
    except RuntimeError:  # HOME is unset, and the user is unknown to the system
        return None


def why_bypassed(folder: Path | None) -> str:
    """Return why `folder` is neither read nor written; "" if it is used."""
    if folder is None:
        return "this user's home folder is unknown; set CUDAKIT_CACHE_DIR to a folder"
    try:
        ownership.check(folder, folder.stat())
    except (FileNotFoundError, NotADirectoryError):
        return ""  # it will be made; if that fails, writing reports it
    except (NotOurs, OSError) as error:
        return f"{error}. Set CUDAKIT_CACHE_DIR to use another folder"
    return ""
