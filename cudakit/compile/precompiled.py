"""Precompiled headers: NVRTC reads the headers of a source once per process, and later compiles skip them.

NVRTC can use a precompiled header only in the process that made it (it is a copy of NVRTC's memory, at its addresses).
It saves time if one process compiles the same headers again: a notebook, a tuner, a script with several name
expressions. CUDAKIT_PCH sets the policy: "auto" (the default) makes one at the second compile of the same headers if
the first took WORTH_S seconds or more, "always" at the first, "never" not at all. `Compiled.precompiled` reports it.

NVRTC compares headers by their modification time in seconds, so it could use an outdated one. Therefore each
precompiled header has its own folder, whose key covers the content and state of each header except CUDA's own, and it
is removed if a header changed during the compile. The folders are in a temporary folder of this process, which is
removed at its end; the next process removes those of killed processes.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from cudakit import system
from cudakit.compile import headers
from cudakit.compile import options as nvrtc_options
from cudakit.errors import CompileError

WORTH_S = 0.5  # making one costs about this much more than a compile, and each use saves more
_HEAP = 1 << 30  # bytes of address space; memory is used only for the headers read (316 MB for a CUB block reduction)
_KEPT = 3  # folders per process; a file is as large as the memory used
_FREE = 2 << 30  # bytes; none is made if the disk has less free space
_PREFIX = "cudakit-pch-"

# The text before NVRTC's first token that is not a directive: headers are precompiled up to there.
_PREAMBLE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/|#(?:\\\r?\n|[^\n])*)*", re.DOTALL)
_INCLUDE = re.compile(r"^\s*#\s*include\b", re.MULTILINE)
_MESSAGE = re.compile(r"Warning #[\w-]+: .*precompiled header")
_REMARK = re.compile(r"^Remark: The warnings can be suppressed with .*\n?", re.MULTILINE)
_OPTIONS = ("pch", "no-pch", "create-pch", "use-pch", "pch-dir")

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """One run of NVRTC: its result, the status of making a precompiled header, and the bytes of heap needed."""

    result: R
    status: Any
    required: int


@dataclass
class _Process:
    """The state of one process; a forked child starts with an empty one."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.RLock = field(default_factory=threading.RLock)
    root: Path | None = None
    hold: int = -1  # a descriptor of root, locked while the process lives
    took: OrderedDict[str, float] = field(default_factory=OrderedDict)  # seconds of the first compile, by key
    folders: OrderedDict[str, Path] = field(default_factory=OrderedDict)  # by key, most recently used last
    heap: int = 0
    broken: str = ""  # why NVRTC cannot precompile here, after it has failed


_process = _Process()


def _this_process() -> _Process:
    global _process
    if _process.pid != os.getpid():
        _process = _Process()
    return _process


def clear() -> None:
    """Remove this process's precompiled headers and reset its state."""
    global _process
    mine = _this_process()
    with mine.lock:
        if mine.root is not None:
            atexit.unregister(_remove)
            _remove(mine.root, mine.hold, mine.pid)
        _process = _Process()


def policy() -> str:
    """Return the policy in CUDAKIT_PCH: "auto", "always" or "never". Raises CompileError for another value."""
    value = os.environ.get("CUDAKIT_PCH", "") or "auto"
    if value not in ("auto", "always", "never"):
        raise CompileError(f'CUDAKIT_PCH must be "auto", "always" or "never", got {value!r}')
    return value


def unavailable() -> str:
    """Return why no source's headers are precompiled in this process; "" if they may be."""
    if policy() == "never":
        return "CUDAKIT_PCH=never"
    if os.environ.get("NVRTC_DISABLE_PCH"):
        return "NVRTC_DISABLE_PCH is set"
    if not system.FOLDER_LOCKS:
        return "this system cannot lock the folders of precompiled headers"
    place = tempfile.gettempdir()
    if shutil.disk_usage(place).free < _FREE:
        return f"{place} has less than {_FREE >> 30} GiB free (set TMPDIR to use another folder)"
    return _this_process().broken


def summary() -> str:
    """Return a sentence on whether and when headers are precompiled in this process."""
    if reason := unavailable():
        return f"headers are not precompiled: {reason}"
    when = "at the first compile" if policy() == "always" else f"at the second compile, if the first took {WORTH_S} s"
    return f"headers are precompiled once per process, {when} (CUDAKIT_PCH={policy()})"


def run(
    nvrtc: Any,
    source: str,
    depends: Sequence[str],
    options: Sequence[str],
    included: headers.Included,
    scan: Callable[[], headers.Included],
    attempt: Callable[[tuple[str, ...]], Outcome[R]],
) -> tuple[R, str]:
    """Return the result of `attempt(more options)`, with precompiled headers if they save time, and how they were used.

    depends: everything that a compile depends on except its source and headers, as text. options: the user's options.
    included: the source's headers. scan: reads the headers again. Raises the errors of `attempt`.
    """
    if reason := unavailable() or _unsuitable(source, options):
        return attempt(()).result, f"not used: {reason}"
    if included.unknown:
        return attempt(()).result, f"not used: the header of {included.unknown[0]!r} is unknown before preprocessing"
    mine = _this_process()
    key = _key(source, depends, included)
    with mine.lock:
        took = mine.took.get(key)
    if key not in mine.folders and policy() == "auto":
        if took is None:
            start = time.perf_counter()
            result = attempt(()).result
            with mine.lock:
                mine.took[key] = time.perf_counter() - start
                if len(mine.took) > 1000:
                    mine.took.popitem(last=False)
            return result, "not used: the first compile of these headers in this process"
        if took < WORTH_S:
            return attempt(()).result, f"not used: these headers compile in less than {WORTH_S} s"
    with mine.lock:  # NVRTC runs one compile at a time anyway, and none while its heap is replaced
        try:
            folder = _folder(mine, key)
            _make_heap(nvrtc, mine, _HEAP)
            outcome = _with_heap(nvrtc, mine, key, folder, attempt)
        except _NotPrecompiled as error:
            _discard(mine, key)
            return attempt(()).result, f"not used: {error}"
        if scan() != included:
            _discard(mine, key)
    return outcome


class _NotPrecompiled(Exception):
    """The reason why NVRTC could not precompile the headers of this source, which is then compiled without."""


def _with_heap(
    nvrtc: Any, mine: _Process, key: str, folder: Path, attempt: Callable[[tuple[str, ...]], Outcome[R]]
) -> tuple[R, str]:
    """Return the result of `attempt` with the precompiled headers of `folder`; retried if the heap was too small."""
    results = nvrtc.nvrtcResult
    for _ in range(2):
        there = _files(folder)
        try:
            outcome = attempt(("-pch", f"-pch-dir={folder}", "-pch-messages=false"))
        except CompileError as error:
            if _is_of_the_source(error.log):
                raise
            mine.broken = f"NVRTC failed with them ({_message(error.log)})"
            raise _NotPrecompiled(mine.broken) from None
        if outcome.status == results.NVRTC_SUCCESS:
            return outcome.result, "made"
        if outcome.status != results.NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED:
            break
        _make_heap(nvrtc, mine, outcome.required)
        folder = _folder(mine, key)
    if outcome.status == results.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED and there:
        return outcome.result, "used"
    reason = {
        results.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED: "NVRTC found nothing to precompile before the first declaration",
        results.NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED: f"they need {outcome.required >> 20} MB of NVRTC's heap",
    }.get(outcome.status, f"NVRTC could not write them ({getattr(outcome.status, 'name', outcome.status)})")
    return outcome.result, f"not used: {reason}"


def _make_heap(nvrtc: Any, mine: _Process, size: int) -> None:
    """Make NVRTC's heap at least `size` bytes large. Its addresses change, so earlier files become unusable."""
    if mine.heap >= size:
        return
    granule = 64 << 20
    wanted = -(-size // granule) * granule + (granule if mine.heap else 0)
    (result,) = nvrtc.nvrtcSetPCHHeapSize(wanted)
    if result:
        raise _NotPrecompiled(f"NVRTC's heap cannot be {wanted >> 20} MB ({result.name})")
    if mine.heap:
        for key in list(mine.folders):
            _discard(mine, key)
    mine.heap = wanted


def _unsuitable(source: str, options: Sequence[str]) -> str:
    """Return why the headers of a source are not precompiled; "" if they may be."""
    if any(option.lstrip("-").partition("=")[0] in _OPTIONS for option in options):
        return "the options set precompiled headers themselves"
    if not (_INCLUDE.search(_preamble(source)) or nvrtc_options.pre_included(options)):
        return "no header before the first declaration"
    return ""


def _preamble(source: str) -> str:
    match = _PREAMBLE.match(source)
    return match[0] if match else ""


def _key(source: str, depends: Sequence[str], included: headers.Included) -> str:
    """Return the sha256 of everything that precompiled headers depend on."""
    state = (tuple(depends), os.getcwd(), _preamble(source), headers.cuda_version(), included.lookups, included.stamps)
    digest = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape"))
    for path, content in sorted(included.files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def without_messages(log: str) -> str:
    """Return `log` without NVRTC's warnings that a precompiled header was not used."""
    if "precompiled header" not in log:
        return log
    kept = "".join(line for line in log.splitlines(keepends=True) if not _MESSAGE.match(line))
    return kept if re.search(r"^\S.*\bwarning #", kept, re.MULTILINE) else _REMARK.sub("", kept)


def _is_of_the_source(log: str) -> bool:
    """Return whether the errors in `log` are the source's own, not those of precompiling its headers."""
    ours = "catastrophic error: unable to" in log or "Command-line error" in log or "precompiled header" in log
    return not ours


def _message(log: str) -> str:
    return next((line.partition("error: ")[2] for line in log.splitlines() if "error: " in line), "no message")


# Folders --------------------------------------------------------------------------------------------------------------


def _folder(mine: _Process, key: str) -> Path:
    """Return the folder of `key`'s files, made if necessary. The least recently used folders are removed."""
    folder = mine.folders.get(key)
    if folder is None or not folder.is_dir():
        try:
            if mine.root is None or not mine.root.is_dir():
                mine.root, mine.hold = _make_root()
            folder = mine.root / key[:32]
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _NotPrecompiled(f"the temporary folder cannot be made ({error})") from error
        mine.folders[key] = folder
    mine.folders.move_to_end(key)
    while len(mine.folders) > _KEPT:
        _discard(mine, next(iter(mine.folders)))
    return folder


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.pch"))


def _discard(mine: _Process, key: str) -> None:
    if folder := mine.folders.pop(key, None):
        shutil.rmtree(folder, ignore_errors=True)


def _make_root() -> tuple[Path, int]:
    """Return a new temporary folder of this process and a locked descriptor of it; abandoned folders are removed."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            hold = system.lock_folder(root, exclusive=False)
        except FileNotFoundError:  # another process has swept it
            continue
        if root.is_dir():  # another process may have swept it before it was locked
            atexit.register(_remove, root, hold, os.getpid())
            return root, hold
        os.close(hold)


def _remove(root: Path, hold: int, pid: int) -> None:
    if pid == os.getpid():  # a forked child must not remove its parent's folder
        shutil.rmtree(root, ignore_errors=True)
        os.close(hold)


def _sweep(place: Path) -> None:
    """Remove the folders in `place` that killed processes of this user left: they are not locked."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != system.user_id():
                continue
            descriptor = system.lock_folder(folder, exclusive=True)
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
