"""Triton kernels, compiled ahead of time without torch or a GPU (the extra `triton`).

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr): ...

    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    built = frontends.triton.compile(dev, add, types, {"BLOCK": 1024})
    built.launch(stream, grid=-(-n // 1024), args=(x, y, out, n))

A signature uses Triton's names of types: "*fp32" is a pointer, "*kfp32" a pointer that is only read, "i32" an integer.
The suffix ":16" promises that an address or an integer is a multiple of 16, so that Triton can use wide loads; each
launch checks it. The simulated device runs the PTX; a GPU runs the machine code that Triton's ptxas made from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.compile import cache
from cudakit.compile.compiler import Compiled
from cudakit.errors import CudakitError, LaunchError
from cudakit.frontends import base
from cudakit.launch.cxx import Type
from cudakit.launch.signature import ptx_entries

if TYPE_CHECKING:
    from cudakit.device import Device

_DTYPES = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
}  # fmt: skip
_SPELLED = re.compile(r"(\*k?)?(\w+?)(:16)?")
_MOST_WARPS = 32  # per block
_SCRATCH = 2  # scratch pointers that Triton may append to the parameters; supported kernels do not use them


def parameter(spelled: str) -> tuple[Type, bool]:
    """Return the type that a text such as "*fp32:16" names, and whether it promises a multiple of 16.

    Raises ValueError if the text names no type.
    """
    match = _SPELLED.fullmatch(spelled) if isinstance(spelled, str) else None
    if match is None or match[2] not in _DTYPES:
        raise ValueError(
            f"{spelled!r} is not the type of a Triton parameter: use one of {', '.join(_DTYPES)}, with the prefix * "
            "for a pointer (*k if it is only read) and the suffix :16 for a multiple of 16"
        )
    element = base.SCALARS[_DTYPES[match[2]]]
    if match[1]:
        return base.pointer(element, const=match[1] == "*k", aligned=bool(match[3])), bool(match[3])
    if match[3] and element.kind != "int":
        raise ValueError(f"{spelled!r}: only pointers and integers can be multiples of 16; remove the :16")
    return element, bool(match[3])


class TritonKernel(base.Built):
    """A Triton kernel on a device, made by `compile`.

    `launch(stream, grid, args)` fills in the block and the shared memory.
    """

    def _types(self, launch: Mapping[str, Any]) -> tuple[Type, ...]:
        self._names = [name for name, _ in launch["parameters"]]
        parsed = [parameter(spelled) for _, spelled in launch["parameters"]]
        self._multiples = [
            (index, name)
            for index, (name, (kind, promised)) in enumerate(zip(self._names, parsed, strict=True))
            if promised and kind.kind == "int"
        ]
        scratch = launch["scratch"]
        self._scratch = (None,) * scratch
        return (*(kind for kind, _ in parsed), *(base.NULL,) * scratch)

    def arguments(self, args: Any) -> tuple[Any, ...]:
        """Return `args`, followed by null for Triton's scratch pointers."""
        given = self._counted(args, self._names)
        for index, name in self._multiples:
            if isinstance(given[index], (int, np.integer)) and given[index] % base.ALIGNED:
                raise LaunchError(
                    f"{self.name}: {name} must be a multiple of 16 (its type ends in :16), got {given[index]}; pass a "
                    "multiple, or compile with a type without :16"
                )
        return (*given, *self._scratch)


def compile(
    device: Device,
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    fmad: bool = True,
) -> TritonKernel:
    """Compile a `@triton.jit` function for a device and load it; the result is kept in the disk cache.

    Args:
        device: The device to compile for and to load on.
        kernel: The `@triton.jit` function.
        signature: The type of each parameter that a launch passes, by name.
        constants: The values of all other parameters (`tl.constexpr`), by name; those with a default are optional.
        num_warps: Warps per program, a power of two.
        num_stages: Stages of pipelined loads in a loop.
        fmad: Whether a*b+c may be contracted to one instruction.

    Returns:
        The kernel, ready to launch.

    Raises:
        ValueError: If the signature does not fit the function.
        CompileError: If Triton does not compile the function.
        CudakitError: If Triton is not installed, or the kernel needs scratch memory or clusters, which are unsupported.
    """
    return base.loaded(
        TritonKernel,
        device,
        build(device.arch, kernel, signature, constants, num_warps=num_warps, num_stages=num_stages, fmad=fmad),
    )


def load(device: Device, compiled: Compiled) -> TritonKernel:
    """Load a result of `build` on a device.

    Args:
        device: A device of the architecture that it was built for.
        compiled: The result of `build`.
    """
    return base.loaded(TritonKernel, device, compiled)


def build(
    arch: str,
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    fmad: bool = True,
) -> Compiled:
    """Compile for an architecture without a device; `load` loads the result.

    Args:
        arch: The architecture, such as "sm_90a".
        kernel: The `@triton.jit` function.
        signature: The type of each parameter that a launch passes, by name.
        constants: The values of all other parameters (`tl.constexpr`), by name; those with a default are optional.
        num_warps: Warps per program, a power of two.
        num_stages: Stages of pipelined loads in a loop.
        fmad: Whether a*b+c may be contracted to one instruction.

    Returns:
        PTX, cubin, and the block and shared memory of a launch.

    Raises:
        ValueError: If the signature does not fit the function.
        CompileError: If Triton does not compile the function.
        CudakitError: If Triton is not installed, or the kernel needs scratch memory or clusters, which are unsupported.
    """
    triton = base.required("triton", "Triton", "triton")
    if not isinstance(kernel, triton.runtime.JITFunction):
        raise ValueError(
            f"{kernel!r} is not a @triton.jit function; if it is autotuned, pass its .fn and one set of constants"
        )
    name = kernel.__name__
    if num_warps not in (1, 2, 4, 8, 16, _MOST_WARPS):
        raise ValueError(f"{name}: num_warps must be a power of two of at most {_MOST_WARPS}, got {num_warps!r}")
    if not isinstance(num_stages, int) or num_stages < 0:
        raise ValueError(f"{name}: num_stages must be an int of at least 0, got {num_stages!r}")
    known = {given.name: given for given in kernel.params}
    values = dict(constants or {})
    for given in kernel.params:
        if given.is_constexpr and given.has_default and given.name not in signature:
            values.setdefault(given.name, given.default)
    passed = base.split(name, list(known), signature, values)
    for given in passed:
        parameter(signature[given])
        if known[given].is_constexpr:
            raise ValueError(f"{name}: {given} is a tl.constexpr; pass its value in constants, not in signature")
    compiler = f"Triton {triton.__version__}"
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fmad}
    spelled = [(given, signature[given]) for given in passed]
    path = kernel.fn.__code__.co_filename
    fixed = sorted((given, getattr(value, "cache_key", repr(value))) for given, value in values.items())
    parts = [compiler, *_environment(), kernel.cache_key, repr(spelled), repr(fixed), repr(options)]

    def make() -> Compiled:
        try:
            return _compiled(triton, arch, kernel, spelled, values, options)
        except CudakitError:
            raise
        except Exception as error:  # Triton's front end, its passes and ptxas raise different types
            raise base.refused(compiler, name, arch, error) from error

    return cache.compiled_by(path, arch, parts, make)


def _environment() -> list[str]:
    """Return the environment variables that change the code Triton generates."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    taken = {key: value for key, value in os.environ.items() if key.startswith("TRITON_PTXAS")}
    return [repr(sorted(taken.items())), repr(sorted(get_cache_invalidating_env_vars().items()))]


def _compiled(
    triton: Any,
    arch: str,
    kernel: Any,
    spelled: list[tuple[str, str]],
    values: Mapping[str, Any],
    options: dict[str, Any],
) -> Compiled:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    order = list(kernel.arg_names)
    types = dict(spelled)
    signature = {name: types[name].removesuffix(":16") if name in types else "constexpr" for name in order}
    promised = {(order.index(name),): [["tt.divisibility", 16]] for name, kind in spelled if kind.endswith(":16")}
    source = ASTSource(kernel, signature, {(order.index(name),): value for name, value in values.items()}, promised)
    digits = re.match(r"sm_(\d+)", arch)
    if digits is None:
        raise ValueError(f"{arch!r} is not an architecture; pass one such as sm_90a")
    made = triton.compile(source, target=GPUTarget("cuda", int(digits[1]), 32), options=options)
    meta, ptx, machine_code = made.metadata, made.asm["ptx"], made.asm["cubin"]
    needed = max(int(getattr(meta, "global_scratch_size", 0) or 0), int(getattr(meta, "profile_scratch_size", 0) or 0))
    if needed:
        raise CudakitError(
            f"{kernel.__name__}: Triton requires {needed} bytes of scratch memory per program, which is unsupported; "
            "pass descriptors as arguments instead of making them in the kernel, and turn Triton's profiler off"
        )
    if meta.num_ctas != 1:
        raise CudakitError(
            f"{kernel.__name__}: compiled for clusters of {meta.num_ctas} blocks, which is unsupported; compile for 1"
        )
    scratch = len(ptx_entries(ptx)[meta.name]) - len(spelled)
    if not 0 <= scratch <= _SCRATCH:
        raise CudakitError(
            f"{kernel.__name__}: Triton {triton.__version__} compiled {len(spelled)} parameters to "
            f"{scratch + len(spelled)}; at most {_SCRATCH} more are supported: install another version of Triton"
        )
    return Compiled(
        cubin=machine_code,
        ptx=ptx,
        lowered={},
        log="",
        options=tuple(f"{key}={value}" for key, value in options.items()),
        resources=base.resources(machine_code, meta.name),
        arch=arch,
        nvrtc_version=(0, 0),
        name=kernel.fn.__code__.co_filename,
        source=kernel.src,
        launch={
            "compiler": f"Triton {triton.__version__}",
            "symbol": meta.name,
            "block": [32 * meta.num_warps, 1, 1],
            "shared": meta.shared,
            "parameters": [list(pair) for pair in spelled],
            "constants": [str(name) for name in values],
            "scratch": scratch,
        },
    )
