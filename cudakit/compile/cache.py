"""Compiled kernels on disk: a folder an entry, built aside and renamed into place.

An entry holds source.cu, kernel.cubin, kernel.ptx and meta.json (lowered names, options, log, resources, and the
digest of each file and of itself). Its key is the sha256 of everything the compile depends on: schema, NVRTC's
identity, arch, ordered options, name expressions, the source's path (line info names it) and text, and path and
content of every header of ours and the user's that NVRTC may open. CUDA's own headers go by their version. A compile
is not stored if these headers cannot be known for certain, or if one changed while NVRTC ran. The output of other
compilers is kept beside it, by the key of `compiled_by`. Any number of processes may share a cache; an entry that is
torn or malformed is a miss that a CacheWarning names, and is built again. A folder or an entry that another user may
have written is left alone, with a CacheWarning.

CUDAKIT_CACHE_DIR moves the cache (default: cudakit under $XDG_CACHE_HOME or ~/.cache). CUDAKIT_COMPILE=never forbids
compiling, which proves a deployment warm: fill its cache as the user who runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cudakit import nvtx
from cudakit.compile import bundled, compiler, folder, headers, ownership
from cudakit.compile import options as nvrtc_options
from cudakit.compile.compiler import Compiled, Request, Resources
from cudakit.compile.ownership import NotOurs
from cudakit.errors import CompileError

directory, why_bypassed = folder.directory, folder.why_bypassed

SCHEMA = 2  # a change of the entry's layout or of what the key covers

_SOURCE, _CUBIN, _PTX, _META = "source.cu", "kernel.cubin", "kernel.ptx", "meta.json"

_BUILDING, _TORN = bundled.BUILDING, ".torn-"
_ABANDONED_S = 60.0  # a folder is built in milliseconds; an older one is of a process that was killed

_memo: dict[tuple[str, str], Compiled] = {}
_said: set[str] = set()  # warnings that are issued once per process
_swept: set[str] = set()  # cache folders that this process has cleaned
_memo_lock = threading.Lock()


class CacheWarning(UserWarning):
    """An entry of the cache was torn or foreign, or the cache could not be used; the kernel was compiled again."""


def clear_memo() -> None:
    """Forget what this process has in memory, so that the next request reads the disk."""
    with _memo_lock:
        _memo.clear()
        _said.clear()
        _swept.clear()


def compiled(request: Request, make: Callable[[Request], Compiled] | None = None) -> Compiled:
    """`request`'s results: from memory, from disk, or compiled now and stored. make: compiles it, as
    `compiler.compile` does unless given.

    Raises CompileError where the source does not compile, or where CUDAKIT_COMPILE=never and nothing is stored.
    """
    included = _scan(request)
    reason = ""
    if option := nvrtc_options.not_covered(request.options):
        reason = f"its option {option!r} keeps it out of the cache (it may read or write files)"
    elif included.unknown:
        # Which file a macro names is only known to the preprocessor, so a stored entry could be stale.
        reason = f"its line {included.unknown[0]!r} keeps it out of the cache (the header is not known by name)"
    if reason:
        _forbid_compiling(request.name, request.arch, request.options, reason)
        return (make or compiler.compile)(request)
    return _kept(
        request.name,
        request.arch,
        request.options,
        key(request, included),
        lambda: (make or compiler.compile)(request),
        lambda: _scan(request) == included,  # NVRTC reads the headers itself, a moment after they were hashed
    )


def _scan(request: Request) -> headers.Included:
    return headers.scan(request.source, request.name, request.directories, request.options, request.names)


def compiled_by(name: str, arch: str, parts: Sequence[str | bytes], make: Callable[[], Compiled]) -> Compiled:
    """What another compiler makes of `parts`: from memory, from disk, or by `make` and then stored.

    name: the source's path. parts: everything that the result depends on beside name and arch, with the compiler's
    identity. Raises what `make` does, and CompileError where CUDAKIT_COMPILE=never and nothing is stored.
    """
    with nvtx.range(f"compile {os.path.basename(name)}"):
        return _kept(name, arch, (), _digest("foreign", str(SCHEMA), name, arch, *parts), make, lambda: True)


def _kept(
    name: str,
    arch: str,
    options: tuple[str, ...],
    digest: str,
    make: Callable[[], Compiled],
    unchanged: Callable[[], bool],
) -> Compiled:
    """The entry stored under `digest`, or the result of `make`, which is kept if `unchanged` returns that `digest` is
    still its key."""
    base = directory()
    memo_key = (str(base), digest)
    with _memo_lock:
        found = _memo.get(memo_key)
    if found is not None:
        nvtx.mark("cache hit (memory)")
        return found
    entry = None
    if bypassed := why_bypassed(base):
        _warn_once(f"not used, and each process compiles for itself: {bypassed}")
    elif base is not None:
        entry = base / _entry_name(name, arch, digest)
        try:
            with nvtx.range("read cache"):
                found = read(entry, digest)
        except NotOurs as error:
            bypassed, entry = str(error), None
            _warn_once(f"{error}. It is left alone, and the kernel is compiled again")
    if found is not None:
        nvtx.mark("cache hit (disk)")
    else:
        reason = f"the cache is not used: {bypassed}" if entry is None else f"it is not in the cache ({entry})"
        _forbid_compiling(name, arch, options, reason)
        found = make()
        if not unchanged():
            return found
        if entry is not None:
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
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def key(request: Request, included: headers.Included) -> str:
    """The sha256 (hex) of everything the compile of `request` depends on."""
    parts: list[str | bytes] = [str(SCHEMA), compiler.nvrtc_identity(), request.arch, request.name, request.source]
    for group in (request.options, request.names, included.lookups):
        parts += [str(len(group)), *group]
    parts.append(headers.cuda_version() if included.uses_cuda else "")
    for path, content in sorted(included.files.items()):
        parts += [path, content]
    return _digest(*parts)


def _entry_name(name: str, arch: str, digest: str) -> str:
    stem = re.sub(r"[^\w.-]", "_", Path(name).stem)[:64]
    return f"{stem}.{arch}.{digest[:32]}"


def read(entry: Path, digest: str) -> Compiled | None:
    """The entry at `entry`, or None if there is none; a torn or foreign one is named by a CacheWarning.

    Raises NotOurs if another user may have written it.
    """
    try:
        ownership.check(entry, entry.stat())
        text = ownership.read(entry / _META).decode()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(entry):
            _warn(f"{entry} holds no {_META}: a torn or foreign entry, compiled again")
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn(f"{entry} cannot be read ({error}): compiled again")
        return None
    try:
        return _parse(entry, json.loads(text), digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _warn(f"{entry} is torn or foreign ({type(error).__name__}: {error}): compiled again")
        return None


def _parse(entry: Path, meta: dict[str, Any], digest: str) -> Compiled:
    """A Compiled from an entry's files. Raises one of read's errors for whatever does not hold."""
    if meta["schema"] != SCHEMA or meta["key"] != digest:
        raise ValueError(f"{_META} is of schema {meta['schema']}, key {meta['key']}")
    if meta.pop("digest") != _digest_of(meta):
        raise ValueError(f"{_META} is not as it was written")
    contents: dict[str, bytes] = {}
    for name in (_SOURCE, _CUBIN, _PTX):
        contents[name] = ownership.read(entry / name)
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


def _digest_of(meta: dict[str, Any]) -> str:
    return _digest(json.dumps(meta, sort_keys=True))


def _store(result: Compiled, entry: Path, digest: str) -> None:
    """Write `result` beside `entry` and rename it into place. A cache that cannot be written costs a warning."""
    contents = {_SOURCE: result.source.encode(), _CUBIN: result.cubin, _PTX: result.ptx.encode()}
    meta: dict[str, Any] = {
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
    meta["digest"] = _digest_of(meta)
    aside = entry.parent / f"{_BUILDING}{uuid.uuid4().hex}"
    try:
        if not entry.parent.is_dir():  # realpath: a dangling link is repaired by making the folder it names
            Path(os.path.realpath(entry.parent)).mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(entry.parent)
        aside.mkdir(mode=0o700)
        for name, data in contents.items():
            ownership.write(aside / name, data)
        ownership.write(aside / _META, json.dumps(meta).encode())
        _put_in_place(aside, entry, digest)
    except (OSError, NotOurs) as error:
        _warn_once(
            f"{entry} could not be written ({error}): this kernel will be compiled again by the next process",
            f"{entry.parent} could not be written",
        )
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the folders that killed processes left in `folder`, once per process."""
    with _memo_lock:
        if str(folder) in _swept:
            return
        _swept.add(str(folder))
    oldest = time.time() - _ABANDONED_S
    for name in os.listdir(folder):
        if name.startswith((_BUILDING, _TORN)):
            path = folder / name
            try:
                if path.lstat().st_mtime < oldest:
                    _remove(path)
            except OSError:
                pass  # another process removed it, or it cannot be: neither keeps this kernel out of the cache


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _put_in_place(aside: Path, entry: Path, digest: str) -> None:
    """Rename `aside` to `entry`. Another process may have been first; a torn entry is moved out of the way."""
    for _ in range(3):
        try:
            aside.rename(entry)
            return
        except OSError:
            if not os.path.lexists(entry):
                raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # already named when it was looked up
            if read(entry, digest) is not None:
                return
        old = entry.parent / f"{_TORN}{uuid.uuid4().hex}"
        try:
            entry.rename(old)
        except FileNotFoundError:
            continue  # another process moved it first
        _remove(old)
    raise OSError(f"{entry} keeps changing under this process")


def _warn(message: str) -> None:
    warnings.warn("cudakit cache: " + message, CacheWarning, stacklevel=3)


def _warn_once(message: str, subject: str = "") -> None:
    """Warn, unless this process was warned of `subject` (the message, unless given) before."""
    with _memo_lock:
        if (subject or message) in _said:
            return
        _said.add(subject or message)
    _warn(message)
