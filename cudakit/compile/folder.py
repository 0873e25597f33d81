"""The folder of the disk cache, and why it is left alone."""

from __future__ import annotations

import os
from pathlib import Path

from cudakit.compile import ownership
from cudakit.compile.ownership import NotOurs


def directory() -> Path | None:
    """The cache's folder, which need not exist; None if the user has no home folder and no variable names another."""
    named = os.environ.get("CUDAKIT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path("~/.cache").expanduser()) / "cudakit"
    except RuntimeError:  # HOME is unset, and the user is unknown to the system
        return None


def why_bypassed(folder: Path | None) -> str:
    """Why `folder` is neither read nor written; "" if it is used."""
    if folder is None:
        return "this user's home folder is unknown; name a folder in CUDAKIT_CACHE_DIR"
    try:
        ownership.check(folder, folder.stat())
    except (FileNotFoundError, NotADirectoryError):
        return ""  # to be made; if it cannot be, writing says so
    except (NotOurs, OSError) as error:
        return f"{error}. CUDAKIT_CACHE_DIR can name another folder"
    return ""
