"""The folder of a cluster run with the temporary places that its workers write their shares to."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path


class SharesFolder:
    """A folder with a place for each share, which the worker that writes the share makes.

    A worker that was given up may still write to its place. A place is therefore renamed before it is removed: the
    worker's next file then fails, instead of appearing in a folder that is being removed.

    path: the folder, which `new` makes. It belongs to one run at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def new(self, attempt: str) -> Path:
        """Return the place of a new share, which its worker makes. attempt: its name, unique in the run."""
        self.path.mkdir(exist_ok=True)
        return self.place(attempt).resolve()

    def place(self, attempt: str) -> Path:
        """Return the place of a share."""
        return self.path / attempt

    def discard(self, attempt: str) -> None:
        """Remove the place of a share, if it exists."""
        _remove(self.place(attempt))

    def remove(self) -> None:
        """Remove all places, those of a killed run too, and the folder."""
        _remove(self.path)


def _remove(folder: Path) -> None:
    aside = folder.with_name(f"{folder.name}.removed")
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed here
    with contextlib.suppress(OSError):  # not there; or Windows, if one of its files is open
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
