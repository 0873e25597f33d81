"""The headers that NVRTC brings with it (13.3 and later): CUDA's for device code, and CCCL.

They are unpacked once per version into the cache's folder, and searched before those of wheels and toolkits, which then
need not be installed. CUDAKIT_HEADERS=installed leaves them alone.
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
_MARKER = ".nvrtc_headers_version"  # NVRTC's own, written when all files are
BUILDING = ".building-"  # a folder that is not complete; the cache removes old ones

_lock = threading.Lock()
_failed: dict[Path, str] = {}


def directories() -> tuple[str, ...]:
    """Their include folders; () if they are not unpacked, or not used. Does not load NVRTC."""
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
    """Whether `path` is an include folder of NVRTC's headers, of this or of another version or cache."""
    return any(part.startswith(_PREFIX) for part in Path(path).parts)


def unpack() -> str:
    """Unpack them if they are not there. Returns why they are not used; "" if they are."""
    place = _place()
    if isinstance(place, str):
        return place
    if directories():
        return ""
    with _lock:
        if place not in _failed and not directories():
            reason = _unpack(place)
            if reason and not directories():  # another process may have been first
                _failed[place] = reason
        return _failed.get(place, "")


def _place() -> Path | str:
    """The folder of this NVRTC's headers, which need not exist, or why they are not used."""
    policy = os.environ.get("CUDAKIT_HEADERS", "") or "bundled"
    if policy not in ("bundled", "installed"):
        raise CompileError(f'CUDAKIT_HEADERS={policy} is not understood: set it to "bundled" or "installed"')
    if policy == "installed":
        return "CUDAKIT_HEADERS=installed"
    label = library.label()
    if (known := re.match(r"(\d+)\.(\d+)", label)) and (int(known[1]), int(known[2])) < _SINCE:
        return f"NVRTC {label} has none (13.3 and later have)"
    base = folder.directory()
    bypassed = folder.why_bypassed(base)
    if bypassed or base is None:
        return f"the cache is not used: {bypassed}"
    # Reports know CUDA's headers by these folder names (`cuda...` and `include`).
    return base / f"{_PREFIX}{label}-{hashlib.sha256(library.identity().encode()).hexdigest()[:8]}"


def _unpack(place: Path) -> str:
    """Unpack them aside and rename them to `place`. Returns why that failed; "" if it did not."""
    nvrtc = library.load()
    try:
        result, info, message = nvrtc.nvrtcGetBundledHeadersInfo()
    except (AttributeError, RuntimeError) as error:  # the bindings, or the library, are older
        return f"this NVRTC has none ({error})"
    if result or not info.available:
        return f"this NVRTC has none ({_text(result, message)})"
    aside = place.parent / f"{BUILDING}{uuid.uuid4().hex}"
    try:
        if place.exists():
            ownership.check(place, place.stat())
            place.rename(place.parent / f"{BUILDING}{uuid.uuid4().hex}")  # some of its files were removed
        Path(os.path.realpath(place.parent)).mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.mkdir(mode=0o700)  # which keeps others out of what NVRTC makes in it
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
