"""clangd for sources that NVRTC compiles: clang's arguments for a compile request, and the section of a `.clangd` file.

clang reads CUDA's own headers in their form for NVRTC (`__CUDACC_RTC__`), for the device only and without the host's
headers. `clang_include/nvrtc.h` declares the names that are built into NVRTC.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cudakit.compile import bundled, headers, library
from cudakit.compile import options as nvrtc_options
from cudakit.compile.compiler import Request
from cudakit.errors import CompileError

_BEGIN, _END = "# cudakit clangd: begin", "# cudakit clangd: end"
_SECTION = f"""\
{_BEGIN}
# clangd reads the .cu and .cuh files below this folder as NVRTC does. The paths are those of this machine: do not
# commit them, and run `cudakit clangd` again after the Python environment has changed.
If:
  PathMatch: '.*\\.cuh?'
CompileFlags:
  CompilationDatabase: None
  Add:
%s
Diagnostics:
  Suppress: shared_var_init # a __shared__ cuda::barrier has a constructor, but it does not run
{_END}
"""
_WRITTEN = re.compile(rf"^{_BEGIN}\n.*?^{_END}\n?", re.MULTILINE | re.DOTALL)
_OWN = Path(__file__).with_name("clang_include")
_NEEDED = ("crt/host_config.h", "cuda_runtime.h", "nv/target")
_ARCH = re.compile(r"sm_(\d+)([af]?)")
_MACRO = re.compile(r"-[DU].+", re.DOTALL)


def arguments(request: Request) -> list[str]:
    """Return the arguments with which clang accepts the sources that NVRTC compiles for `request`. NVRTC's own options
    for code generation are left out.

    Raises CompileError if NVRTC does not support the architecture, or if CUDA's headers are not installed.
    """
    bundled.unpack()
    cuda = headers.cuda_directories()
    for name in _NEEDED:
        if not any(os.path.isfile(os.path.join(folder, name)) for folder in cuda):
            raise CompileError(f"clangd needs CUDA's {name}, which is not installed: {headers.INSTALL}")
    return [
        "-xcuda",
        "--cuda-device-only",
        *_architecture(request.arch),
        *(option[1:] for option in request.options if option.startswith("--std=")),
        *("-nocudainc", "-nocudalib"),  # clang's own wrapper of the CUDA runtime
        *("-nostdinc", "-nostdinc++"),
        *("-Xclang", "-fno-cuda-host-device-constexpr"),  # for NVRTC, an unmarked constexpr function is a host function
        "-Wno-error=c++11-narrowing",  # only a warning in NVRTC
        "-Wno-unknown-pragmas",
        "-Wno-reserved-user-defined-literal",  # in CUDA's headers
        *_version(),
        *(option for option in request.options if _MACRO.fullmatch(option)),
        *(f"-I{folder}" for folder in request.directories),
        *(f"-isystem{folder}" for folder in (_OWN, *cuda)),
        f"-include{_OWN / 'nvrtc.h'}",
        *(f"-include{header}" for header in nvrtc_options.pre_included(request.options)),
    ]


def _architecture(arch: str) -> list[str]:
    """Return the architecture, and the macros of its variant: sm_90a has chip-specific instructions, sm_100f family's.

    Raises CompileError if NVRTC does not support it.
    """
    match = _ARCH.fullmatch(arch)
    supported = library.supported(library.load())
    number, variant = match.groups() if match else ("0", "")
    if f"sm_{number}" not in re.findall(r"sm_\d+", supported) or int(number) < {"a": 90, "f": 100}.get(variant, 0):
        raise CompileError(f"{supported} (with a from sm_90, and f from sm_100 on), not for {arch!r}")
    if not variant:
        return [f"--cuda-gpu-arch={arch}"]
    chip, feature = "__CUDA_ARCH_SPECIFIC__", f"__CUDA_ARCH_FEAT_SM{number}_ALL"
    # clang does not support families: it compiles for the chip, without the chip-specific macros.
    own = [f"-D{chip}={number}0", f"-D{feature}=1"] if variant == "a" else [f"-U{chip}", f"-U{feature}"]
    return [f"--cuda-gpu-arch=sm_{number}a", f"-D__CUDA_ARCH_FAMILY_SPECIFIC__={number}0", *own]


def _version() -> list[str]:
    """Return the macros of NVRTC's version."""
    numbers = [*re.findall(r"\d+", library.label()), "0", "0", "0"]
    return [
        f"-D__CUDACC_VER_{part}__={number}"
        for part, number in zip(("MAJOR", "MINOR", "BUILD"), numbers[:3], strict=True)
    ]


def merged(text: str, given: Sequence[str], *, add: bool = False) -> str | None:
    """Return the `.clangd` file `text` with a section of the arguments `given` for `.cu` and `.cuh` files.

    The section of an earlier run is replaced. If `text` has no such section and is not empty, the section is appended
    if `add` is true; otherwise None is returned.
    """
    # JSON strings are valid YAML strings.
    section = _SECTION % "\n".join(f"    - {json.dumps(argument)}" for argument in given)
    if found := _WRITTEN.search(text):
        return text[: found.start()] + section + text[found.end() :]
    if not text.strip():
        return section
    return f"{text.rstrip()}\n---\n{section}" if add else None
