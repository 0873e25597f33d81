"""Checks that only this user can have written a file: a cache entry of another user would run that user's code."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cudakit import system


class NotOurs(Exception):
    """A file or folder belongs to another user, or others may write to it; the message names it and the remedy."""


def check(path: str | os.PathLike[str], state: os.stat_result) -> None:
    """Raise NotOurs if another user can have written to `path`, whose stat result is `state`.

    On Windows it does not look: the access list of a user's own folders keeps other users out.
    """
    user = system.user_id()
    if user is None:
        return
    if state.st_uid != user:
        raise NotOurs(f"{path} belongs to user {state.st_uid}, but this process runs as user {user}")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOurs(
            f"other users may write to {path} (mode {stat.S_IMODE(state.st_mode):o}); remove it, "
            f"or if you trust its content: chmod -R go-w {path}"
        )


def read(path: Path) -> bytes:
    """Return the content of a regular file. Raises NotOurs, and OSError if there is no such file."""
    descriptor = system.open_file(path, os.O_RDONLY | system.NONBLOCK)  # a pipe would block without NONBLOCK
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        check(path, state)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read()


def write(path: Path, data: bytes) -> None:
    """Create the file `path`, readable and writable by this user only, whatever the umask is."""
    with os.fdopen(system.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
