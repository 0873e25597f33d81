"""The headers bundled with NVRTC (13.3 and later): CUDA's for device code, and CCCL.

They are unpacked once per version into the cache's folder, and searched before the headers of wheels and toolkits,
which then need not be installed. CUDAKIT_HEADERS=installed disables them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import uuid
from pathlib import Path

from cudakit.compile import folder, library, ownership
from cudakit.compile.ownership import NotOurs
from cudakit.errors import CompileError

_PREFIX = "cuda-headers-"
_SINCE = (13, 3)
_MARKER = ".nvrtc_headers_version"  # NVRTC's own, written after all files
BUILDING = ".building-"  # prefix of incomplete folders; the cache removes old ones

_lock = threading.Lock()
_failed: dict[Path, str] = {}


def directories() -> tuple[str, ...]:
    """Return their include folders; () if they are not unpacked or not used. Does not load NVRTC."""
    place = _place()
    if isinstance(place, str):
        return ()
    try:
        ownership.check(place, place.stat())
    except (NotOurs, OSError):
        return ()
    include = place / "include"
    return (str(include), str(include / "cccl")) if (include / _MARKER).is_file() else ()


def is_directory(path: str) -> bool:
    """Return whether `path` is an include folder of bundled headers, of any version or cache."""
    return any(part.startswith(_PREFIX) for part in Path(path).parts)


def unpack() -> str:
    """Unpack them if necessary. Returns why they are not used; "" if they are."""
    place = _place()
    if isinstance(place, str):
        return place
    if directories():
        return ""
    with _lock:
        if place not in _failed and not directories():
            reason = _unpack(place)
            if reason and not directories():  # another process may have unpacked them
                _failed[place] = reason
        return _failed.get(place, "")


def _place() -> Path | str:
    """Return the folder for this NVRTC's headers, which need not exist, or why they are not used."""
    policy = os.environ.get("CUDAKIT_HEADERS", "") or "bundled"
    if policy not in ("bundled", "installed"):
        raise CompileError(f'CUDAKIT_HEADERS must be "bundled" or "installed", got {policy!r}')
    if policy == "installed":
        return "CUDAKIT_HEADERS=installed"
    label = library.label()
    if (known := re.match(r"(\d+)\.(\d+)", label)) and (int(known[1]), int(known[2])) < _SINCE:
        return f"NVRTC {label} bundles no headers (13.3 and later do)"
    base = folder.directory()
    bypassed = folder.why_bypassed(base)
    if bypassed or base is None:
        return f"the cache is not used: {bypassed}"
    # Reports recognise CUDA's headers by these folder names (`cuda...` and `include`).
    return base / f"{_PREFIX}{label}-{hashlib.sha256(library.identity().encode()).hexdigest()[:8]}"


def _unpack(place: Path) -> str:
    """Unpack them into a temporary folder and rename it to `place`. Returns why that failed; "" if it succeeded."""
    nvrtc = library.load()
    try:
        result, info, message = nvrtc.nvrtcGetBundledHeadersInfo()
    except (AttributeError, RuntimeError) as error:  # older bindings, or an older library
        return f"this NVRTC bundles no headers ({error})"
    if result or not info.available:
        return f"this NVRTC bundles no headers ({_text(result, message)})"
    aside = place.parent / f"{BUILDING}{uuid.uuid4().hex}"
    try:
        if place.exists():
            ownership.check(place, place.stat())
            place.rename(place.parent / f"{BUILDING}{uuid.uuid4().hex}")  # some of its files were removed
        Path(os.path.realpath(place.parent)).mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.mkdir(mode=0o700)  # private, so that other users cannot change the files that NVRTC writes
        result, message = nvrtc.nvrtcInstallBundledHeaders(os.fsencode(aside / "include"), 0)
        if result:
            return f"NVRTC could not unpack them ({_text(result, message)})"
        aside.rename(place)
    except NotOurs as error:
        return str(error)
    except OSError as error:
        return f"they could not be written ({error})"
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return "" if (place / "include" / _MARKER).is_file() else f"NVRTC left no {_MARKER}"


def _text(result: object, message: object) -> str:
    name = getattr(result, "name", str(result))
    return f"{name}: {message.decode(errors='replace')}" if isinstance(message, bytes) else name
