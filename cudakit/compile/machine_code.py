"""The simulated device's machine code on disk: files in the folder of the cache, each written aside and renamed.

A file that another user may have written is not used, like the entries of compiled kernels, whose cache warns of such a
folder. Without the file the kernel is compiled again.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from cudakit.compile import folder, ownership
from cudakit.compile.ownership import NotOurs

_FOLDER = "machine-code"


class MachineCode:
    """The files in the folder of the cache, which $CUDAKIT_CACHE_DIR moves."""

    def _place(self, name: str) -> Path | None:
        """The path of a file; None if the cache is not used."""
        base = folder.directory()
        if base is None or folder.why_bypassed(base) or folder.why_bypassed(base / _FOLDER):
            return None
        return base / _FOLDER / name

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        place = self._place(name)
        return place is not None and place.exists()

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none, or if another user may have written it."""
        place = self._place(name)
        try:
            return None if place is None else ownership.read(place)
        except (OSError, NotOurs):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, or not at all if the folder cannot be written."""
        place = self._place(name)
        if place is None:
            return
        aside = place.with_name(f".{uuid.uuid4().hex}")
        try:
            Path(os.path.realpath(place.parent)).mkdir(mode=0o700, parents=True, exist_ok=True)
            ownership.write(aside, content)
            os.replace(aside, place)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
