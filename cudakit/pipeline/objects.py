"""Objects in a store that fsspec opens: byte ranges, exclusive creation, and the lock of an output. fsspec is imported
when it is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cudakit import system
from cudakit.errors import CudakitError
from cudakit.pipeline.refusals import FileRefused, OutputBusy, explained

LOCAL = ("file", "local")


def has_scheme(text: str) -> bool:
    """Whether a text is a URL, also of a local file, such as "s3://bucket/key"."""
    return "://" in text


def absolute(url: str | os.PathLike[str]) -> str:
    """Return a URL that means the same in every folder. A path without a scheme is that of a local file."""
    text = os.fspath(url)
    scheme, found, rest = text.partition("://")
    if found and scheme not in LOCAL:
        return text
    path = os.path.abspath(rest if found else text)
    return f"file://{path}/" if text.endswith("/") else f"file://{path}"


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, such as "s3"; the outermost of a chain."""
    return url.split("://")[0].split("::")[0]


@contextlib.contextmanager
def reachable(what: str, advice: str) -> Iterator[None]:
    """Convert the errors of a store, which may be its package's own, to FileMissing or FileRefused (`explained`)."""
    with explained(what, advice):
        try:
            yield
        except (OSError, ImportError, ValueError, TypeError, CudakitError):
            raise
        except Exception as error:
            raise FileRefused(f"{what} cannot be used ({type(error).__name__}: {error}): {advice}") from error


class Objects:
    """The object at a URL, and those below it.

    url: absolute. options: of fsspec.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ImportError(f"{url} needs the package fsspec: pip install 'cudakit[fsspec]'") from error
        self._local = scheme_of(url) in LOCAL
        given = {"auto_mkdir": True} if self._local else {}
        self._fs, self.root = url_to_fs(url, **{**given, **(options or {})})

    def at(self, key: str) -> str:
        """Return the path of an object below the URL."""
        return f"{self.root.rstrip('/')}/{key}"

    def create(self, path: str, text: str) -> bool:
        """Create an object; return False if it exists."""
        try:
            if self._local:  # fsspec looks first, and then writes
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "x", encoding="utf-8") as file:
                    file.write(text)
            else:
                self._fs.pipe_file(path, text.encode(), mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, objects: dict[str, Any]) -> None:
        """Write objects."""
        self._fs.pipe({path: bytes(data) for path, data in objects.items()})

    def get(self, path: str) -> bytes | None:
        """Return an object's contents; None if it does not exist."""
        try:
            data: bytes = self._fs.cat_file(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return data

    def ranges(self, parts: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return byte ranges of objects, each a path, its first byte and the byte after its last. Many stores send them
        at the same time. Raises EOFError if an object is too short."""
        paths, starts, stops = ([*column] for column in zip(*parts, strict=True))
        data: list[Any] = self._fs.cat_ranges(paths, starts, stops, on_error="raise")
        for (path, start, stop), got in zip(parts, data, strict=True):
            if isinstance(got, BaseException):  # fsspec before 2025
                raise got
            if len(got) < stop - start:
                raise EOFError(
                    f"{path} ends at byte {start + len(got):,}, {stop - start - len(got):,} bytes too early: write it "
                    "again"
                )
            if len(got) > stop - start:
                raise OSError(f"the server of {path} sends whole files only, no byte ranges: copy the file first")
        return data

    def info(self, path: str) -> dict[str, Any]:
        """Return what the store knows of an object: its size, and the time or the tag of its last change."""
        self._fs.invalidate_cache()
        found: dict[str, Any] = self._fs.info(path)
        return found

    def infos(self, path: str) -> dict[str, dict[str, Any]]:
        """Return `info` of the objects below a path, by their paths from there."""
        self._fs.invalidate_cache()
        found = self._fs.find(path, detail=True)
        below = path.strip("/")
        return {name[name.index(below) + len(below) + 1 :]: info for name, info in found.items()}

    def below(self, path: str) -> dict[str, int]:
        """Return the sizes of the objects below a path, by their paths from there."""
        return {name: info["size"] for name, info in self.infos(path).items()}

    def remove(self, path: str, *, below: bool = False) -> None:
        """Remove an object, or all below a path."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(path, recursive=below)

    def prune(self, path: str) -> None:
        """Remove a local folder if it is empty. Other stores have no folders."""
        if self._local:
            with contextlib.suppress(OSError):
                os.rmdir(path)


class ObjectLock:
    """The lock of an output in an object store: of several objects lock-0, lock-1, ... the last counts. A run whose
    process has ended is followed by the next object, which only one run can create.

    objects: the store. path: of the lock objects, without their numbers.
    """

    def __init__(self, objects: Objects, path: str) -> None:
        self._objects, self._path = objects, path
        self._held: int | None = None

    def _numbers(self) -> list[int]:
        folder, name = self._path.rsplit("/", 1)
        found = (re.fullmatch(re.escape(name) + r"-(\d+)", key) for key in self._objects.below(folder))
        return sorted(int(match[1]) for match in found if match)

    def take(self, output: str) -> None:
        """Take the lock. Raises OutputBusy, or FileRefused if the store cannot create objects exclusively."""
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 0
        if numbers:
            self._expect_ended(f"{self._path}-{numbers[-1]}", output)
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "run": uuid.uuid4().hex}
        path = f"{self._path}-{number}"
        try:
            made = self._objects.create(path, json.dumps(mine))
            again = made and self._objects.create(path, json.dumps(mine))
        except (NotImplementedError, TypeError, ValueError) as error:
            raise FileRefused(_no_create(output, f"{type(error).__name__}: {error}")) from error
        if not made:
            self._expect_ended(path, output)
            raise OutputBusy(f"{output} is being written by another run: wait until it has finished", 0)
        if again:
            self._objects.remove(path)
            raise FileRefused(_no_create(output, "it replaced an object that exists"))
        self._held = number

    def _expect_ended(self, path: str, output: str) -> None:
        """Raise OutputBusy unless the run that made a lock object is known to have ended."""
        try:
            held = json.loads(self._objects.get(path) or b"{}")
            host, pid = str(held.get("host", "?")), int(held.get("pid", 0))
        except (ValueError, AttributeError):
            host, pid = "?", 0
        if host == socket.gethostname() and not system.is_running(pid):
            return
        raise OutputBusy(
            f"{output} is being written by process {pid} on {host}: wait until it has finished, stop it, or pass "
            f"another output. If that run has ended, remove the object {path}",
            pid,
        )

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._held is not None:
            for number in [number for number in self._numbers() if number <= self._held]:
                self._objects.remove(f"{self._path}-{number}")
            self._objects.prune(self._path.rsplit("/", 1)[0])
            self._held = None


def _no_create(output: str, why: str) -> str:
    return (
        f"the store of {output} cannot create an object only if it does not exist ({why}), so two runs could write "
        "to it at once: write to a local folder, and copy it"
    )
