"""Copies of the tree in which one file is mutated."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.draw import Mutation

_COPIED = ("cudakit", "tests", "examples", "docs", "profiles")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_clock = itertools.count(2_000_000_000)  # a later time for each write: Python's bytecode caches compare whole seconds
_clock_lock = threading.Lock()


class Tree:
    """A copy of the tree. Its kernels are links to the original's, so that both share compiled kernels."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place
        for name in _COPIED:
            shutil.copytree(root / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        for path in root.iterdir():
            if path.is_file():
                shutil.copy2(path, place / path.name)
        for path in sorted((root / "kernels").rglob("*")):
            if path.is_file():
                self._link(path.relative_to(root).as_posix())

    def _link(self, file: str) -> None:
        own = self.place / file
        own.parent.mkdir(parents=True, exist_ok=True)
        own.unlink(missing_ok=True)
        own.symlink_to(self.root / file)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Apply the mutation, and revert it at the end."""
        # read the copy: the original may be edited during the run
        original = (self.place / mutation.file).read_text(encoding="utf-8")
        # Copy the files that include a mutated header: through a link they would include the original header.
        affected = [mutation.file] if mutation.file.endswith(".py") else includers(self.root, mutation.file)
        for file in affected:
            self._write(file, (self.place / file).read_text(encoding="utf-8"))
        self._write(mutation.file, mutation.applied(original))
        try:
            yield
        finally:
            for file in affected:
                if file.endswith(".py"):
                    self._write(file, original)
                else:
                    self._link(file)

    def _write(self, file: str, text: str) -> None:
        path = self.place / file
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        with _clock_lock:
            now = next(_clock)
        os.utime(path, (now, now))


def includers(root: Path, file: str) -> list[str]:
    """Return `file` and every kernel file that includes it, directly or indirectly."""
    graph = {}
    for path in sorted((root / "kernels").glob("*/*.cu*")):
        names = _INCLUDE.findall(path.read_text(encoding="utf-8"))
        graph[path] = {(path.parent / name).resolve() for name in names}
    found = [(root / file).resolve()]
    for path in found:
        found += [other for other, included in graph.items() if path in included and other.resolve() not in found]
    return [path.relative_to(root.resolve()).as_posix() for path in found]
