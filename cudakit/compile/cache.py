"""Compiled kernels on disk: a folder an entry, built aside and renamed into place.

An entry holds source.cu, kernel.cubin, kernel.ptx and meta.json (lowered names, options, log, resources, and the
digest of each file). Its key is the sha256 of everything the compile depends on: schema, NVRTC's identity, arch,
ordered options, name expressions, the source's path (line info names it) and text, and path and content of every
header of ours and the user's that it may include. CUDA's own headers go by their version. The output of other
compilers is kept beside it, by the key of `compiled_by`. Any number of processes may share a cache; an entry that is
torn or not ours is a miss that a CacheWarning names, and is built again.

CUDAKIT_CACHE_DIR moves the cache (default: cudakit under $XDG_CACHE_HOME or ~/.cache). CUDAKIT_COMPILE=never forbids
compiling, which proves a deployment warm.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cudakit import nvtx
from cudakit.compile import compiler, headers
from cudakit.compile.compiler import Compiled, Request, Resources
from cudakit.errors import CompileError

SCHEMA = 1  # a change of the entry's layout or of what the key covers

_SOURCE, _CUBIN, _PTX, _META = "source.cu", "kernel.cubin", "kernel.ptx", "meta.json"

_memo: dict[tuple[str, str], Compiled] = {}
_memo_lock = threading.Lock()


class CacheWarning(UserWarning):
    """An entry of the cache was torn or foreign, or the cache could not be written; the kernel was compiled again."""


def directory() -> Path:
    """The cache's folder, which need not exist."""
    named = os.environ.get("CUDAKIT_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cudakit"


def clear_memo() -> None:
    """Forget what this process has in memory, so that the next request reads the disk."""
    with _memo_lock:
        _memo.clear()


def compiled(request: Request) -> Compiled:
    """`request`'s results: from memory, from disk, or compiled now and stored.

    Raises CompileError where the source does not compile, or where CUDAKIT_COMPILE=never and nothing is stored.
    """
    included = headers.scan(request.source, request.name, request.directories)
    if included.unknown:
        # Which file a macro names is only known to the preprocessor, so a stored entry could be stale.
        reason = f"its line {included.unknown[0]!r} keeps it out of the cache (the header is not known by name)"
        _forbid_compiling(request.name, request.arch, request.options, reason)
        return compiler.compile(request)
    return _kept(request.name, request.arch, request.options, key(request, included), lambda: compiler.compile(request))


def compiled_by(name: str, arch: str, parts: Sequence[str | bytes], make: Callable[[], Compiled]) -> Compiled:
    """What another compiler makes of `parts`: from memory, from disk, or by `make` and then stored.

    name: the source's path. parts: everything that the result depends on beside name and arch, with the compiler's
    identity. Raises what `make` does, and CompileError where CUDAKIT_COMPILE=never and nothing is stored.
    """
    with nvtx.range(f"compile {os.path.basename(name)}"):
        return _kept(name, arch, (), _digest("foreign", str(SCHEMA), name, arch, *parts), make)


def _kept(name: str, arch: str, options: tuple[str, ...], digest: str, make: Callable[[], Compiled]) -> Compiled:
    """What is stored under `digest`, or what `make` gives, stored."""
    folder = directory()
    entry = folder / _entry_name(name, arch, digest)
    memo_key = (str(folder), digest)
    with _memo_lock:
        found = _memo.get(memo_key)
    if found is not None:
        nvtx.mark("cache hit (memory)")
        return found
    with nvtx.range("read cache"):
        found = read(entry, digest)
    if found is not None:
        nvtx.mark("cache hit (disk)")
    else:
        _forbid_compiling(name, arch, options, f"it is not in the cache ({entry})")
        found = make()
        with nvtx.range("write cache"):
            _store(found, entry, digest)
    with _memo_lock:
        return _memo.setdefault(memo_key, found)


def _forbid_compiling(name: str, arch: str, options: tuple[str, ...], reason: str) -> None:
    policy = os.environ.get("CUDAKIT_COMPILE", "")
    if policy == "never":
        raise CompileError(
            f"CUDAKIT_COMPILE=never forbids compiling {name} for {arch}, and {reason}. "
            "Run the program once without it to fill the cache",
            options=options,
        )
    if policy not in ("", "auto"):
        raise CompileError(f'CUDAKIT_COMPILE={policy} is not understood: set it to "never", or leave it unset')


def _digest(*parts: str | bytes) -> str:
    """The sha256 (hex) of parts, each with its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def key(request: Request, included: headers.Included) -> str:
    """The sha256 (hex) of everything the compile of `request` depends on."""
    parts: list[str | bytes] = [str(SCHEMA), compiler.nvrtc_identity(), request.arch, request.name, request.source]
    for group in (request.options, request.names, included.absent):
        parts += [str(len(group)), *group]
    parts.append(headers.cuda_version() if included.uses_cuda else "")
    for path, content in sorted(included.files.items()):
        parts += [path, content]
    return _digest(*parts)


def _entry_name(name: str, arch: str, digest: str) -> str:
    stem = re.sub(r"[^\w.-]", "_", Path(name).stem)[:64]
    return f"{stem}.{arch}.{digest[:32]}"


def read(entry: Path, digest: str) -> Compiled | None:
    """The entry at `entry`, or None where there is none; a torn or foreign one is named by a CacheWarning."""
    try:
        text = (entry / _META).read_text()
    except (FileNotFoundError, NotADirectoryError):
        if entry.exists():
            _warn(f"{entry} holds no {_META}: a torn or foreign entry, compiled again")
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn(f"{entry} cannot be read ({error}): compiled again")
        return None
    try:
        return _parse(entry, json.loads(text), digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn(f"{entry} is torn or foreign ({type(error).__name__}: {error}): compiled again")
        return None


def _parse(entry: Path, meta: dict[str, Any], digest: str) -> Compiled:
    """A Compiled from an entry's files. Raises one of read's errors for whatever does not hold."""
    if meta["schema"] != SCHEMA or meta["key"] != digest:
        raise ValueError(f"{_META} is of schema {meta['schema']}, key {meta['key']}")
    contents: dict[str, bytes] = {}
    for name in (_SOURCE, _CUBIN, _PTX):
        contents[name] = (entry / name).read_bytes()
        if hashlib.sha256(contents[name]).hexdigest() != meta["sha256"][name]:
            raise ValueError(f"{name} is not what {_META} says")
    major, minor = meta["nvrtc_version"]
    return Compiled(
        cubin=contents[_CUBIN],
        ptx=contents[_PTX].decode(),
        lowered=dict(meta["lowered"]),
        log=meta["log"],
        options=tuple(meta["options"]),
        resources={name: Resources(**values) for name, values in meta["resources"].items()},
        arch=meta["arch"],
        nvrtc_version=(major, minor),
        name=meta["name"],
        source=contents[_SOURCE].decode(),
        launch=dict(meta.get("launch", {})),
    )


def _store(result: Compiled, entry: Path, digest: str) -> None:
    """Write `result` beside `entry` and rename it into place. A cache that cannot be written costs a warning."""
    contents = {_SOURCE: result.source.encode(), _CUBIN: result.cubin, _PTX: result.ptx.encode()}
    meta = {
        "schema": SCHEMA,
        "key": digest,
        "name": result.name,
        "arch": result.arch,
        "nvrtc_version": result.nvrtc_version,
        "options": result.options,
        "lowered": result.lowered,
        "resources": {name: asdict(values) for name, values in result.resources.items()},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        "log": result.log,
        "launch": result.launch,
    }
    aside = entry.parent / f".building-{uuid.uuid4().hex}"
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.mkdir()
        for name, data in contents.items():
            (aside / name).write_bytes(data)
        (aside / _META).write_text(json.dumps(meta, indent=1))
        _put_in_place(aside, entry, digest)
    except OSError as error:
        _warn(f"{entry} could not be written ({error}): this kernel will be compiled again by the next process")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put_in_place(aside: Path, entry: Path, digest: str) -> None:
    """Rename `aside` to `entry`. Another process may have been first; a torn entry is moved out of the way."""
    for _ in range(3):
        try:
            aside.rename(entry)
            return
        except OSError:
            if not entry.exists():
                raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # already named when it was looked up
            if read(entry, digest) is not None:
                return
        old = entry.parent / f".torn-{uuid.uuid4().hex}"
        try:
            entry.rename(old)
        except FileNotFoundError:
            continue  # another process moved it first
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
    raise OSError(f"{entry} keeps changing under this process")


def _warn(message: str) -> None:
    warnings.warn("cudakit cache: " + message, CacheWarning, stacklevel=3)
