"""The output of a script and of its kernels, as text: whatever the process writes to its stdout and stderr.

The file descriptors 1 and 2 are replaced by pipes, so that output of C code and child processes is read too.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, TextIO

from cudakit import system

# seconds to wait for output that was written before a stop; child processes may hold the pipe open for longer
_PATIENCE = 2.0

Show = Callable[[str, str], None]


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The process's stdin and stdout for the protocol alone: the script's stdin is empty from now on."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    nothing = system.open_file(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return source, sink


class CapturedOutput:
    """Reads stdout and stderr. `show` is called with "stdout" or "stderr", and text."""

    def __init__(self, show: Show) -> None:
        self._pipes = [_Pipe(1, "stdout", show), _Pipe(2, "stderr", show)]
        # new ones, as those of before may be buffered in a way that does not fit a pipe
        sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)

    def sync(self) -> None:
        """Wait until everything that was written has been shown."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        system.flush_c_streams()
        for pipe in self._pipes:
            pipe.sync()


def _text_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


class _Pipe:
    """The pipe that replaces a file descriptor, and the thread that reads it."""

    def __init__(self, descriptor: int, category: str, show: Show) -> None:
        self._descriptor, self._category, self._show = descriptor, category, show
        # ends a part of the output; nothing else that is written has these bytes
        self._mark = secrets.token_bytes(16)
        self._seen = threading.Event()
        self._read, write = os.pipe()
        os.dup2(write, descriptor)
        os.close(write)
        os.set_inheritable(descriptor, True)
        threading.Thread(target=self._follow, name=f"cudakit {category}", daemon=True).start()

    def sync(self) -> None:
        self._seen.clear()
        with contextlib.suppress(OSError):
            os.write(self._descriptor, self._mark)
            self._seen.wait(_PATIENCE)

    def _follow(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = b""
        while data := os.read(self._read, 1 << 16):
            held += data
            while self._mark in held:
                before, held = held.split(self._mark, 1)
                self._tell(decoder.decode(before, final=True))
                self._seen.set()
            # the end may be the start of a mark
            keep = next((n for n in range(len(self._mark) - 1, 0, -1) if held.endswith(self._mark[:n])), 0)
            self._tell(decoder.decode(held[: len(held) - keep]))
            held = held[len(held) - keep :]

    def _tell(self, text: str) -> None:
        if text:
            self._show(self._category, text)
