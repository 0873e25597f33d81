"""NVRTC as it is installed: its files, its version, its bindings."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from cudakit.errors import CompileError, check


def toolkits() -> list[Path]:
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


def installed_libraries(stem: str) -> list[Path]:
    """Files named `stem`.so* where CUDA libraries are looked for, the first folder that has any."""
    folders = [Path(entry) / "nvidia" / "cu13" / "lib" for entry in sys.path if entry]
    folders += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    for root in toolkits():
        folders += [root / "lib64", root / "lib"]
    folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        found = sorted(folder.glob(f"{stem}.so*"))
        if found:
            return found
    return []


@functools.cache
def identity() -> str:
    """NVRTC's identity for cache keys, read without loading it where that can be done."""
    libraries = installed_libraries("libnvrtc")
    if libraries and libraries[0].parent.parts[-3:] == ("nvidia", "cu13", "lib"):
        try:
            return "wheel " + importlib.metadata.version("nvidia-cuda-nvrtc")
        except importlib.metadata.PackageNotFoundError:
            pass  # copied without its metadata: the files' own names and sizes tell them apart
    if libraries:
        builtins = installed_libraries("libnvrtc-builtins")
        real = sorted({path.resolve() for path in (*libraries, *builtins)})
        return "file " + ",".join(f"{path.name}:{path.stat().st_size}" for path in real)
    major, minor = version(load())
    return f"loaded {major}.{minor}"


def label() -> str:
    """NVRTC's version for people ("13.5.37"), read without loading it where that can be done."""
    match = re.search(r"\d+\.\d+(?:\.\d+)*", identity())
    return match[0] if match else "unknown"


def load() -> Any:
    """The NVRTC bindings, loaded; a CompileError says what to install where there are none."""
    from cuda.bindings import nvrtc

    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise what their loader raises: several unrelated classes
        raise CompileError(
            f"NVRTC cannot be loaded ({type(error).__name__}: {error}). Install it: pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def version(nvrtc: Any) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


def supported(nvrtc: Any) -> str:
    """The architectures that NVRTC compiles for, in words: "NVRTC 13.5 compiles for sm_75, sm_80, ..."."""
    known = check(nvrtc, "nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs())
    return f"NVRTC {'.'.join(map(str, version(nvrtc)))} compiles for {', '.join(f'sm_{arch}' for arch in known)}"
