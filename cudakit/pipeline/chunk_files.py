"""Files below one folder, each written whole under a temporary name, renamed, and synced to disk later."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from cudakit import system
from cudakit.pipeline.files import write_whole

_SYNCS = 8  # threads that sync


class ChunkFiles:
    """Writes files below a folder, from any thread. The folder itself is never made: a missing one is an error.

    folder: the folder, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due: set[Path] = set()  # files that are not synced yet
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkFiles, (self.folder,)

    def put(self, key: str, data: Any) -> None:
        """Write a file. key: its path below the folder. data: a buffer of bytes."""
        place = self.folder / key
        aside = place.with_name(f".{place.name}.part")
        file = self._made(aside)
        try:
            write_whole(file, np.frombuffer(data, np.uint8), 0)
        except BaseException:
            os.close(file)
            aside.unlink(missing_ok=True)
            raise
        os.close(file)
        aside.replace(place)
        self._add(place)

    def move(self, source: Path, key: str) -> None:
        """Move a file of the same file system, which is on disk, to `key`."""
        place = self.folder / key
        self._make_folder(place.parent)
        source.replace(place)
        self._add(place)

    def sync(self) -> None:
        """Wait until all files that were put or moved before are on disk, under their names."""
        with self._lock:
            due, self._due = self._due, set()
        if not due:
            return
        # The folders above may be new, too.
        folders = {above for path in due for above in path.parents if above.is_relative_to(self.folder)}
        with ThreadPoolExecutor(_SYNCS, "pipeline sync") as pool:
            list(pool.map(system.sync_path, due))
            list(pool.map(system.sync_path, folders))

    def _add(self, path: Path) -> None:
        with self._lock:
            self._due.add(path)

    def _made(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return system.open_file(path, flags)
        except FileNotFoundError:
            self._make_folder(path.parent)
            return system.open_file(path, flags)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, but not `self.folder`."""
        if folder == self.folder:
            if not folder.is_dir():
                raise FileNotFoundError(errno.ENOENT, "the folder was removed", str(folder))
            return
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)


def write_synced(path: Path, text: str) -> None:
    """Write a small file atomically: after a power failure too, it has its old or its new contents."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text, encoding="utf-8", newline="\n")
    system.sync_path(aside)
    aside.replace(path)
    system.sync_path(path.parent)
