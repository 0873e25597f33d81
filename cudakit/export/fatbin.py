"""Fat binaries: machine code for several architectures, and PTX for later architectures, in one file for the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudakit.compile.compiler import Compiled
from cudakit.errors import CudakitError


def make(name: str, cubins: Mapping[str, bytes], jit: str | None, compiled: Mapping[str, Compiled]) -> bytes:
    """Return a fat binary with `cubins`, a dict by architecture ("sm_90a"), and the PTX for the architecture `jit`, if
    any.

    It is not compressed, so that every driver of CUDA 13 can read it. The same input makes the same bytes. Raises
    CudakitError if nvFatbin is not installed, or rejects an image.
    """
    nvfatbin = _nvfatbin()
    options = ["-64", "-compress=false"]
    try:
        handle = nvfatbin.create(options, len(options))
        try:
            for arch, cubin in cubins.items():
                nvfatbin.add_cubin(handle, cubin, len(cubin), arch.removeprefix("sm_"), name)
            if jit is not None:
                text = compiled[jit].ptx.encode() + b"\0"
                nvfatbin.add_ptx(handle, text, len(text), jit.removeprefix("sm_"), name, "")
            binary = bytearray(nvfatbin.size(handle))
            nvfatbin.get(handle, binary)
        finally:
            nvfatbin.destroy(handle)
    except nvfatbin.nvFatbinError as error:
        raise CudakitError(f"nvFatbin failed for {name} and {', '.join(cubins)}: {error}") from error
    return bytes(binary)


def _nvfatbin() -> Any:
    """Import and load the bindings of nvFatbin."""
    try:
        from cuda.bindings import nvfatbin

        nvfatbin.version()
    except Exception as error:  # the bindings' loader raises several unrelated exception classes
        raise CudakitError(
            f"nvFatbin cannot be loaded ({type(error).__name__}: {error}). Install it: "
            "pip install nvidia-nvfatbin 'cuda-bindings>=13.1'"
        ) from error
    return nvfatbin
