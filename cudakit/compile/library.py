"""The installed NVRTC: its files, version and bindings."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from cudakit import system
from cudakit.errors import CompileError, check


def toolkits() -> list[Path]:
    """Return roots of CUDA toolkits: from environment variables, the usual location, and that of nvcc on the PATH."""
    nvcc = shutil.which("nvcc")
    named = (
        os.environ.get("CUDA_PATH"),
        os.environ.get("CUDA_HOME"),
        os.environ.get("CONDA_PREFIX"),
        *system.TOOLKITS,
    )
    roots = [Path(root) for root in named if root]
    if nvcc:
        roots.append(Path(nvcc).resolve().parent.parent)
    return roots


def installed_libraries(stem: str) -> list[Path]:
    """Return the files of the library `stem`, such as "nvrtc", in the first CUDA library folder that has any."""
    folders = [Path(entry, place) for entry in sys.path if entry for place in system.WHEEL_LIBRARIES]
    folders += [Path(entry) for entry in os.environ.get(system.LIBRARY_PATH, "").split(os.pathsep) if entry]
    folders += [root / place for root in toolkits() for place in system.TOOLKIT_LIBRARIES]
    folders += map(Path, system.LIBRARY_PLACES)
    for folder in folders:
        found = sorted(folder.glob(system.library_pattern(stem)))
        if found:
            return found
    return []


@functools.cache
def identity() -> str:
    """Return NVRTC's identity for cache keys; NVRTC is only loaded if its files do not show it."""
    libraries = installed_libraries("nvrtc")
    if libraries and libraries[0].parent.as_posix().endswith(system.WHEEL_LIBRARIES):
        try:
            return "wheel " + importlib.metadata.version("nvidia-cuda-nvrtc")
        except importlib.metadata.PackageNotFoundError:
            pass  # copied without its metadata: names and sizes of the files identify it
    if libraries:
        builtins = installed_libraries("nvrtc-builtins")
        real = sorted({path.resolve() for path in (*libraries, *builtins)})
        return "file " + ",".join(f"{path.name}:{path.stat().st_size}" for path in real)
    major, minor = version(load())
    return f"loaded {major}.{minor}"


def label() -> str:
    """Return NVRTC's version for display ("13.5.37"); NVRTC is only loaded if its files do not show it."""
    match = re.search(r"\d+\.\d+(?:\.\d+)*", identity())
    return match[0] if match else "unknown"


def load() -> Any:
    """Return the NVRTC bindings, loaded. Raises CompileError, with the install command, if NVRTC is missing."""
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings pass on their loader's errors, of several unrelated classes
        raise CompileError(
            f"NVRTC cannot be loaded ({type(error).__name__}: {error}). Install it: pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def version(nvrtc: Any) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


def supported(nvrtc: Any) -> str:
    """Return the architectures that NVRTC supports, in words: "NVRTC 13.5 compiles for sm_75, sm_80, ..."."""
    known = check(nvrtc, "nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs())
    return f"NVRTC {'.'.join(map(str, version(nvrtc)))} compiles for {', '.join(f'sm_{arch}' for arch in known)}"
