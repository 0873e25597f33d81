"""Files of this user's own: an entry of the disk cache that another user may have written is code of theirs."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotOurs(Exception):
    """A file or folder belongs to another user, or others may write to it; the message says which and what to do."""


def check(path: str | os.PathLike[str], state: os.stat_result) -> None:
    """Raise NotOurs if anyone but this user can have written to `path`, whose state is `state`."""
    user = os.geteuid()
    if state.st_uid != user:
        raise NotOurs(f"{path} belongs to user {state.st_uid}, and this process runs as user {user}")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOurs(
            f"others may write to {path} (mode {stat.S_IMODE(state.st_mode):o}); remove it, "
            f"or if you trust its content: chmod -R go-w {path}"
        )


def read(path: Path) -> bytes:
    """The content of a regular file. Raises NotOurs, and OSError if there is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # NONBLOCK: a pipe would wait for a writer
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        check(path, state)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read()


def write(path: Path, data: bytes) -> None:
    """Make the file `path`, which only this user may read and write, whatever the umask is."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
