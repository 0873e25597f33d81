"""Where kernel sources and headers are, and what a source includes.

`find_source` finds a `.cu` file, `cuda_directories` finds CUDA's own headers (wheels or a toolkit), and `scan` lists,
recursively, every header of ours and the user's that a source may include, so that the cache can hash their content.
The scan reads `#include` lines without running the preprocessor: an include inside `#if` counts as included whether
its condition holds or not, which can only cost a needless compile, never a stale kernel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

# A header that each part of CUDA's headers has and no other part has: wheels split one toolkit over several folders,
# a toolkit keeps CCCL under include/cccl.
_PARTS = {
    "cudart": "cuda_fp16.h",
    "crt": "crt/host_defines.h",
    "mma": "mma.h",
    "cccl": "cuda/std/cstdint",
}

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(_next)?\b[ \t]*(?:([\"<])([^\">\n]+)[\">]|.*)", re.MULTILINE)
_HAS_INCLUDE = re.compile(r"__has_include\s*\(\s*([\"<])([^\">\n]+)[\">]")
_VERSION = re.compile(r"^\s*#\s*define\s+(?:CUDART_VERSION|CCCL_VERSION)\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Included:
    """What a source includes: `files` maps each header's path to its content, in the order first met."""

    files: dict[str, bytes]
    uses_cuda: bool  # some header is CUDA's own, or is left to NVRTC
    absent: tuple[str, ...]  # names found nowhere: NVRTC's own, or missing
    unknown: tuple[str, ...]  # lines whose header cannot be told without preprocessing (#include MACRO)


@functools.cache
def kernel_root() -> Path:
    """The folder of cudakit's own kernels: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


def common_directory() -> Path:
    """The folder of shared device helpers, on every compile's include path."""
    return kernel_root() / "common"


def find_source(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a `.cu` file: from the working directory, then among cudakit's kernels.

    Raises FileNotFoundError naming the places looked in.
    """
    asked = Path(path).expanduser()
    places = [asked] if asked.is_absolute() else [Path.cwd() / asked, kernel_root() / asked]
    for place in places:
        if place.is_file():
            return place.resolve()
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"no kernel file {str(path)!r}: looked for {looked}")


def _candidates() -> list[Path]:
    """Folders that may hold CUDA headers, the likeliest first."""
    from cuda import pathfinder

    roots: list[Path] = []
    for part in ("cudart", "cccl"):
        # Older releases of pathfinder know fewer parts, or have no such function; the folders below are left then.
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            directory = pathfinder.find_nvidia_header_directory(part)
            if directory:
                roots.append(Path(directory))
    roots += [Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path if entry]
    found = [place for root in roots for place in (root, root / "cccl")]
    for root in _toolkits():
        found += [root / "include", root / "include" / "cccl"]
    return found


def _toolkits() -> list[Path]:
    """Roots of CUDA toolkits: those the environment names, the usual place, and that of the nvcc on the PATH."""
    nvcc = shutil.which("nvcc")
    named = (
        os.environ.get("CUDA_PATH"),
        os.environ.get("CUDA_HOME"),
        os.environ.get("CONDA_PREFIX"),
        "/usr/local/cuda",
    )
    roots = [Path(root) for root in named if root]
    if nvcc:
        roots.append(Path(nvcc).resolve().parent.parent)
    return roots


@functools.cache
def cuda_directories() -> tuple[str, ...]:
    """Include directories with CUDA's own headers, without doubles; empty where none is installed."""
    chosen: list[str] = []
    candidates = _candidates()
    for marker in _PARTS.values():
        for directory in candidates:
            if (directory / marker).is_file():
                if str(directory) not in chosen:
                    chosen.append(str(directory))
                break
    return tuple(chosen)


@functools.cache
def cuda_version() -> str:
    """The versions that CUDA's headers state of themselves, for cache keys: "13050,3005000"."""
    numbers: list[str] = []
    for name in ("cuda_runtime_api.h", "cuda/std/__cccl/version.h"):
        for directory in cuda_directories():
            file = Path(directory) / name
            if file.is_file():
                match = _VERSION.search(file.read_text(errors="replace"))
                numbers.append(match[1] if match else "?")
                break
        else:
            numbers.append("absent")
    return ",".join(numbers)


def scan(source: str, name: str, directories: tuple[str, ...]) -> Included:
    """Every header that `source` may include, recursively.

    `name` is the source's path; `directories` are the include path (ours and the user's) in order. A quoted name is
    looked for in its includer's folder first. CUDA's own headers are noted, not read.
    """
    files: dict[str, bytes] = {}
    absent: dict[str, None] = {}
    unknown: list[str] = []
    uses_cuda = False
    pending: list[tuple[str, str]] = [(source, os.path.dirname(name))]
    while pending:
        text, folder = pending.pop()
        wanted: list[tuple[str, str]] = []
        for match in _INCLUDE.finditer(text):
            if match[1] or not match[3]:
                unknown.append(match[0].strip())
            else:
                wanted.append((match[2], match[3]))
        wanted += _HAS_INCLUDE.findall(text)
        for mark, header in wanted:
            places = (folder, *directories) if mark == '"' and folder else directories
            path = _resolve(header, places)
            if path is None:
                uses_cuda = True
                if _resolve(header, cuda_directories()) is None:
                    absent[header] = None
            elif path not in files:
                content = Path(path).read_bytes()
                files[path] = content
                pending.append((content.decode(errors="replace"), os.path.dirname(path)))
    return Included(files, uses_cuda, tuple(absent), tuple(unknown))


def _resolve(header: str, directories: tuple[str, ...]) -> str | None:
    for directory in directories:
        path = os.path.normpath(os.path.join(directory, header))
        if os.path.isfile(path):
            return path
    return None


def installed_libraries(stem: str) -> list[Path]:
    """Files named `stem`.so* where CUDA libraries are looked for, the first folder that has any."""
    folders = [Path(entry) / "nvidia" / "cu13" / "lib" for entry in sys.path if entry]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    for root in _toolkits():
        folders += [root / "lib64", root / "lib"]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        found = sorted(folder.glob(f"{stem}.so*"))
        if found:
            return found
    return []
