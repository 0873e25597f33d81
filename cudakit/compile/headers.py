"""Finds kernel sources and headers, and the headers that a source includes.

`find_source` finds a `.cu` file, `cuda_directories` finds CUDA's own headers (wheels or a toolkit), and `scan` lists,
recursively, every header that NVRTC may open for a source, except CUDA's own, so that the cache can hash their content.
A list that is too long only costs a needless compile; one that is too short would cause stale kernels.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudakit.compile import bundled, includes, library
from cudakit.compile import options as nvrtc_options
from cudakit.errors import CompileError

# For each part of CUDA's headers, one header that no other part has: wheels split a toolkit into several folders, and a
# toolkit has CCCL in include/cccl.
_PARTS = {
    "cudart": "cuda_fp16.h",
    "crt": "crt/host_defines.h",
    "mma": "mma.h",
    "cccl": "cuda/std/cstdint",
}

INSTALL = "pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, or a CUDA toolkit"

_VERSION = re.compile(r"^\s*#\s*define\s+(?:CUDART_VERSION|CCCL_VERSION)\s+(\d+)", re.MULTILINE)


# Headers that CUDA's headers include or test for but do not contain; a user's folder may have them.
_FOREIGN_NAMES = """
    assert.h ctype.h cxxabi.h endian.h errno.h features.h limits.h math.h omp.h pthread.h sched.h semaphore.h stddef.h
    stdint.h stdio.h stdlib.h string.h time.h unistd.h algorithm array atomic bit cassert cfloat charconv chrono ciso646
    climits cmath compare complex concepts cstdarg cstddef cstdint cstdio cstdlib cstring exception execution expected
    format functional initializer_list iosfwd iostream istream iterator limits map memory mutex new numbers numeric
    optional ostream ranges ratio set span sstream stdexcept string string_view system_error target thread tuple
    type_traits typeinfo unordered_map utility variant vector version __config nvrtc_device_runtime.h dlpack.h
"""
_FOREIGN_FOLDERS = ("dlpack", "nvtx3")


@dataclass(frozen=True)
class Included:
    """The headers that a source includes: `files` maps each header's path to its content, in the order found.

    If a scan before and one after a compile are equal, no header changed in between.
    """

    files: dict[str, bytes]
    uses_cuda: bool  # some header is CUDA's own, or is left to NVRTC to find
    unknown: tuple[str, ...]  # lines whose header only the preprocessor can determine (#include MACRO)
    lookups: tuple[str, ...] = ()  # name and path of each lookup in turn; the path is "" if not found
    stamps: tuple[tuple[int, ...], ...] = ()  # inode, size and times of each file when it was read


@functools.cache
def kernel_root() -> Path:
    """Return the folder of cudakit's kernels: inside the installed package, or next to it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


def common_directory() -> Path:
    """Return the folder of shared device helpers, which is on every compile's include path."""
    return kernel_root() / "common"


def find_source(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a `.cu` file: from the working directory, then among cudakit's kernels.

    Raises FileNotFoundError, which lists the paths tried.
    """
    asked = Path(path).expanduser()
    places = [asked] if asked.is_absolute() else [Path.cwd() / asked, kernel_root() / asked]
    for place in places:
        if place.is_file():
            return place.resolve()
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"kernel file {str(path)!r} not found; tried {looked}")


def _candidates() -> list[Path]:
    """Return folders that may hold CUDA headers, most likely first."""
    from cuda import pathfinder

    roots: list[Path] = []
    for part in ("cudart", "cccl"):
        # Older releases of pathfinder lack some parts, or this function; the folders below remain.
        with contextlib.suppress(AttributeError, RuntimeError, ValueError):
            directory = pathfinder.find_nvidia_header_directory(part)
            if directory:
                roots.append(Path(directory))
    roots += [Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path if entry]
    found = [place for root in roots for place in (root, root / "cccl")]
    for root in library.toolkits():
        found += [root / "include", root / "include" / "cccl"]
    return found


def cuda_directories() -> tuple[str, ...]:
    """Return the include directories with CUDA's own headers, in search order, without duplicates; may be empty.

    NVRTC's bundled headers come first, if they are unpacked. Installed headers are then used only if the bundled ones
    lack them, because two versions of CCCL cannot be mixed.
    """
    first = bundled.directories()
    return (*first, *(folder for folder in installed_directories() if not first or _has_runtime(folder)))


def is_cuda_directory(folder: str) -> bool:
    """Return whether an include folder, perhaps of an earlier compile, has CUDA's own headers."""
    return folder in installed_directories() or bundled.is_directory(folder)


@functools.cache
def installed_directories() -> tuple[str, ...]:
    """Return the include directories of wheels or a toolkit with CUDA's own headers, without duplicates."""
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
def _has_runtime(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, name)) for name in ("cuda_runtime.h", _PARTS["crt"]))


def cuda_version() -> str:
    """Return the versions in CUDA's headers, for cache keys: "13050,3005000", prefixed with "bundled " if NVRTC's
    bundled headers are used, which have NVRTC's version."""
    return ("bundled " if bundled.directories() else "") + _versions(cuda_directories())


@functools.cache
def _versions(directories: tuple[str, ...]) -> str:
    numbers: list[str] = []
    for name in ("cuda_runtime_api.h", "cuda/std/__cccl/version.h"):
        for directory in directories:
            file = Path(directory) / name
            if file.is_file():
                match = _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
                numbers.append(match[1] if match else "?")
                break
        else:
            numbers.append("absent")
    return ",".join(numbers)


def scan(
    source: str, name: str, directories: Sequence[str], options: Sequence[str] = (), names: Sequence[str] = ()
) -> Included:
    """Return every header that NVRTC may open for `source`, recursively.

    `name` is the source's path, or a label in the working directory. `directories` are the include path, without
    CUDA's, in order. `options` and `names` (name expressions) may name headers too. A quoted name is searched in its
    includer's folder first. CUDA's own headers are not read. A header in the user's folders is read if CUDA's headers
    would include it instead of their own. NVRTC's bundled headers are unpacked when the first CUDA header is found.
    """
    files: dict[str, bytes] = {}
    stamps: list[tuple[int, ...]] = []
    unknown: list[str] = []
    lookups: list[str] = []
    outside = includes.named("\n".join((*options, *names)))
    unknown += [*outside.unknown, *(f"#include {header}" for _, header in outside.headers)]
    found = includes.named(source)
    unknown += found.unknown
    pending = [(found.headers, os.path.dirname(name))]
    pending += [(tuple(('"', header) for header in nvrtc_options.pre_included(options)), "")]
    uses_cuda = False
    while pending:
        wanted, folder = pending.pop()
        for mark, header in wanted:
            path = _resolve(header, (nvrtc_options.absolute(folder), *directories) if mark == '"' else directories)
            lookups += [header, path or ""]
            if path is None:
                if not uses_cuda:
                    uses_cuda = True
                    bundled.unpack()
                    pending += [((("<", shadow),), "") for shadow in _shadows(directories)]
            elif path not in files:
                try:
                    with open(path, "rb") as file:
                        state = os.fstat(file.fileno())
                        content = file.read()
                except OSError as error:
                    unknown.append(f"#include {header} ({error.strerror})")
                    continue
                files[path] = content
                stamps.append((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
                found = includes.named(os.fsdecode(content))
                unknown += found.unknown
                pending.append((found.headers, os.path.dirname(path)))
    return Included(files, uses_cuda, tuple(unknown), tuple(lookups), tuple(stamps))


def _resolve(header: str, directories: Iterable[str]) -> str | None:
    """Return the path that NVRTC opens for `header`, with links and `..` unresolved; None if there is no file."""
    if os.path.isabs(header):
        return header if os.path.isfile(header) else None
    # For a name without a dot, NVRTC also tries this ending.
    endings = ("", ".stdh") if "." not in os.path.basename(header) else ("",)
    for directory in directories:
        for ending in endings:
            path = os.path.join(directory, header + ending)
            if os.path.isfile(path):
                return path
    return None


def _shadows(directories: Sequence[str]) -> Iterator[str]:
    """Yield headers in the user's folders that CUDA's own headers would include, since the user's folders are searched
    first."""
    own = cuda_directories()
    names = {*_FOREIGN_NAMES.split(), *_FOREIGN_FOLDERS}.union(*(_listed(folder) for folder in own))
    for directory in directories:
        if directory in own:
            continue
        for name in sorted(entry for entry in _listed(directory) if entry.removesuffix(".stdh") in names):
            top = os.path.join(directory, name)
            if os.path.isfile(top):
                yield top
            if name not in _FOREIGN_FOLDERS and not _in(own, "", name):
                continue
            for folder, inner, files in os.walk(top, followlinks=True):
                place = os.path.relpath(folder, directory)
                if name not in _FOREIGN_FOLDERS:
                    inner[:] = [sub for sub in inner if _in(own, place, sub)]
                    files = [file for file in files if _in(own, place, file.removesuffix(".stdh"))]
                yield from (os.path.join(folder, file) for file in files)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # an include folder need not exist


def _in(directories: Iterable[str], place: str, name: str) -> bool:
    return any(os.path.exists(os.path.join(directory, place, name)) for directory in directories)


def read_source(path: Path) -> str:
    """Return a source file's text, without a byte order mark. Raises CompileError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CompileError(
            f"{path} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#x}); save it as UTF-8"
        ) from error
