"""Disk cache of compiled kernels: one folder per entry, written to a temporary folder and renamed.

An entry holds source.cu, kernel.cubin, kernel.ptx and meta.json (lowered names, options, log, resources, and digests of
each file and of itself). Its key is the sha256 of everything that the compile depends on: schema, NVRTC's identity,
arch, ordered options, name expressions, the source's path (line info contains it) and text, and path and content of
every header that NVRTC may open, except CUDA's own headers, which are covered by their version. A compile is not stored
if its headers cannot be determined, or if one changed while NVRTC ran. The output of other compilers is stored too,
under the key of `compiled_by`. Any number of processes may share a cache. A torn or malformed entry is reported by a
CacheWarning and compiled again. A folder or entry that another user may have written is not used, with a CacheWarning.

CUDAKIT_CACHE_DIR moves the cache (default: cudakit under $XDG_CACHE_HOME or ~/.cache). With
CUDAKIT_COMPILE=never a kernel that is not in the cache is an error: use it to check that a deployment's cache is
complete. Run the program once as the same user to fill the cache.
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

SCHEMA = 2  # raised when the entry's layout or the key's contents change

_SOURCE, _CUBIN, _PTX, _META = "source.cu", "kernel.cubin", "kernel.ptx", "meta.json"

_BUILDING, _TORN = bundled.BUILDING, ".torn-"
_ABANDONED_S = 60.0  # entries are written in milliseconds; an older folder is from a killed process

_memo: dict[tuple[str, str], Compiled] = {}
_said: set[str] = set()  # warnings already issued in this process
_swept: set[str] = set()  # cache folders already cleaned by this process
_memo_lock = threading.Lock()


class CacheWarning(UserWarning):
    """A cache entry was torn or foreign, or the cache could not be used; the kernel was compiled again."""


def clear_memo() -> None:
    """Clear the results held in memory, so that the next request reads the disk."""
    with _memo_lock:
        _memo.clear()
        _said.clear()
        _swept.clear()


def compiled(request: Request, make: Callable[[Request], Compiled] | None = None) -> Compiled:
    """Return the results of `request`: from memory, from disk, or compiled now and stored.

    make: compiles it; `compiler.compile` by default. Raises CompileError if the source does not compile, or if
    CUDAKIT_COMPILE=never and nothing is stored.
    """
    included = _scan(request)
    reason = ""
    if option := nvrtc_options.not_covered(request.options):
        reason = f"its option {option!r} cannot be cached (it may read or write files)"
    elif included.unknown:
        # Only the preprocessor can find the file that a macro names, so a stored entry could be stale.
        reason = f"its line {included.unknown[0]!r} cannot be cached (its header is unknown before preprocessing)"
    if reason:
        _forbid_compiling(request.name, request.arch, request.options, reason)
        return (make or compiler.compile)(request)
    return _kept(
        request.name,
        request.arch,
        request.options,
        key(request, included),
        lambda: (make or compiler.compile)(request),
        lambda: _scan(request) == included,  # NVRTC reads the headers after they were hashed
    )


def _scan(request: Request) -> headers.Included:
    return headers.scan(request.source, request.name, request.directories, request.options, request.names)


def compiled_by(name: str, arch: str, parts: Sequence[str | bytes], make: Callable[[], Compiled]) -> Compiled:
    """Return the output of another compiler for `parts`: from memory, from disk, or from `make` and then stored.

    name: the source's path. parts: everything that the result depends on, in addition to name and arch, including the
    compiler's identity. Raises the errors of `make`, and CompileError if CUDAKIT_COMPILE=never and nothing is stored.
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
    """Return the entry stored under `digest`, or the result of `make`, which is stored if `unchanged` confirms that
    `digest` is still its key."""
    base = directory()
    memo_key = (str(base), digest)
    with _memo_lock:
        found = _memo.get(memo_key)
    if found is not None:
        nvtx.mark("cache hit (memory)")
        return found
    entry = None
    if bypassed := why_bypassed(base):
        _warn_once(f"not used, so each process compiles again: {bypassed}")
    elif base is not None:
        entry = base / _entry_name(name, arch, digest)
        try:
            with nvtx.range("read cache"):
                found = read(entry, digest)
        except NotOurs as error:
            bypassed, entry = str(error), None
            _warn_once(f"{error}. The entry is not used, and the kernel is compiled again")
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
            f"CUDAKIT_COMPILE=never forbids compiling {name} for {arch}, but {reason}. "
            "Run the program once without it to fill the cache",
            options=options,
        )
    if policy not in ("", "auto"):
        raise CompileError(f'CUDAKIT_COMPILE must be "never" or unset, got {policy!r}')


def _digest(*parts: str | bytes) -> str:
    """Return the sha256 (hex) of parts, each with its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def key(request: Request, included: headers.Included) -> str:
    """Return the sha256 (hex) of everything that the compile of `request` depends on."""
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
    """Return the entry at `entry`, or None if there is none; a CacheWarning reports a torn or foreign one.

    Raises NotOurs if another user may have written it.
    """
    try:
        ownership.check(entry, entry.stat())
        text = ownership.read(entry / _META).decode()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(entry):
            _warn(f"{entry} has no {_META}: a torn or foreign entry, compiled again")
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
    """Return a Compiled from an entry's files. Raises one of the errors that `read` catches if it is invalid."""
    if meta["schema"] != SCHEMA or meta["key"] != digest:
        raise ValueError(f"{_META} has schema {meta['schema']}, key {meta['key']}")
    if meta.pop("digest") != _digest_of(meta):
        raise ValueError(f"{_META} was changed after it was written")
    contents: dict[str, bytes] = {}
    for name in (_SOURCE, _CUBIN, _PTX):
        contents[name] = ownership.read(entry / name)
        if hashlib.sha256(contents[name]).hexdigest() != meta["sha256"][name]:
            raise ValueError(f"{name} does not match the digest in {_META}")
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
    """Write `result` to a temporary folder and rename the folder to `entry`. Only warns if the cache cannot be
    written."""
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
        if not entry.parent.is_dir():  # realpath: for a dangling link, make the folder that it points to
            Path(os.path.realpath(entry.parent)).mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(entry.parent)
        aside.mkdir(mode=0o700)
        for name, data in contents.items():
            ownership.write(aside / name, data)
        ownership.write(aside / _META, json.dumps(meta).encode())
        _put_in_place(aside, entry, digest)
    except (OSError, NotOurs) as error:
        _warn_once(
            f"{entry} could not be written ({error}): the next process will compile this kernel again",
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
                pass  # another process removed it, or it cannot be removed; the entry can be stored anyway


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _put_in_place(aside: Path, entry: Path, digest: str) -> None:
    """Rename `aside` to `entry`. Another process may have stored it already; a torn entry is moved out of the way."""
    for _ in range(3):
        try:
            aside.rename(entry)
            return
        except OSError:
            if not os.path.lexists(entry):
                raise
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # already issued when the entry was looked up
            if read(entry, digest) is not None:
                return
        old = entry.parent / f"{_TORN}{uuid.uuid4().hex}"
        try:
            entry.rename(old)
        except FileNotFoundError:
            continue  # another process moved it first
        _remove(old)
    raise OSError(f"other processes keep changing {entry}")


def _warn(message: str) -> None:
    warnings.warn("cudakit cache: " + message, CacheWarning, stacklevel=3)


def _warn_once(message: str, subject: str = "") -> None:
    """Warn, unless this process already warned of `subject` (by default the message)."""
    with _memo_lock:
        if (subject or message) in _said:
            return
        _said.add(subject or message)
    _warn(message)
