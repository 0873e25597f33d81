"""cuTile kernels, compiled ahead of time without a GPU (the extra `tile`). They run on a GPU only.

    @ct.kernel
    def add(a, b, out, TILE: ct.Constant[int]): ...

    types = dict.fromkeys(("a", "b", "out"), "float32[::1]:16")
    built = frontends.cutile.compile(dev, add, types, {"TILE": 1024})
    built.launch(stream, grid=-(-n // 1024), args=(a, b, out))

A signature states each array's dtype and axes: "float32[:]" with any stride, "float32[:, ::1]" with a contiguous last
axis. The suffix ":16" promises that the address and the strides of the other axes are multiples of 16 bytes, so that
cuTile can use wide copies. A scalar is a dtype alone: "int32". An array is passed as its pointer, shape and strides,
and each launch checks them against the signature. Tile sizes are powers of two. cuTile generates machine code and no
PTX, so the simulated device cannot run its kernels; `build` compiles for an architecture without any device.
"""

from __future__ import annotations

import io
import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit.compile import cache
from cudakit.compile.compiler import Compiled
from cudakit.errors import CudakitError, LaunchError
from cudakit.frontends import base
from cudakit.launch.cxx import Type
from cudakit.launch.strides import declared, unwrapped
from cudakit.memory import layout
from cudakit.memory.array import DeviceArray, touch

if TYPE_CHECKING:
    from cudakit.device import Device

_SPELLED = re.compile(r"(\w+)(?:\[((?:\s*:\s*,)*\s*(?:::1|:)\s*)\](:16)?)?")
_INDEX_LIMIT = 2**31  # shapes and strides are passed as int32


@dataclass(frozen=True)
class TileParameter:
    """One parameter of a cuTile kernel: an array of `ndim` axes, or a scalar if `ndim` is None.

    contiguous: the last axis is contiguous. aligned: the address and the other strides are multiples of 16 bytes.
    """

    dtype: str
    ndim: int | None = None
    contiguous: bool = False
    aligned: bool = False

    @property
    def types(self) -> tuple[Type, ...]:
        """The types that are passed: of a number; or of a pointer, a shape and strides."""
        element = base.SCALARS[self.dtype]
        if self.ndim is None:
            return (element,)
        return (base.pointer(element, aligned=self.aligned), *(base.SCALARS["int32"],) * (2 * self.ndim))


def parameter(spelled: str) -> TileParameter:
    """Return the parameter that a text such as "float32[:, ::1]:16" describes. Raises ValueError if there is none."""
    match = _SPELLED.fullmatch(spelled) if isinstance(spelled, str) else None
    if match is None or match[1] not in base.SCALARS:
        raise ValueError(
            f"{spelled!r} is not the type of a cuTile parameter: use a dtype ({', '.join(base.SCALARS)}); for an "
            'array add its axes, such as "float32[:, ::1]", and the suffix :16 if address and strides are multiples of '
            "16 bytes"
        )
    if match[2] is None:
        return TileParameter(match[1])
    axes = match[2].split(",")
    return TileParameter(match[1], len(axes), axes[-1].strip() == "::1", bool(match[3]))


class TileKernel(base.Built):
    """A cuTile kernel on a GPU, made by `compile`. `launch(stream, grid, args)` takes arrays and numbers."""

    def _types(self, launch: Mapping[str, Any]) -> tuple[Type, ...]:
        self._names = [name for name, _ in launch["parameters"]]
        self._parameters = [parameter(spelled) for _, spelled in launch["parameters"]]
        self._may_overlap: bool = launch["may_overlap"]
        self._divisible_by: int = launch["divisible_by"]
        self._arrays = [place for place, kind in enumerate(self._parameters) if kind.ndim is not None]
        # Tags (unique per array) of the last launch's arrays, and the shapes and strides that were checked for them.
        self._last: tuple[tuple[Any, ...], list[list[int]]] = ((None,), [])
        return tuple(itertools.chain.from_iterable(given.types for given in self._parameters))

    def arguments(self, args: Any) -> tuple[Any, ...]:
        """Return each array, followed by its shape and strides. The launch itself checks dtype and device."""
        given = tuple(map(unwrapped, self._counted(args, self._names)))
        tags = tuple([getattr(given[place], "tag", None) for place in self._arrays])
        known, extents = self._last
        if tags != known or None in tags:
            extents = self._checked(given)
            self._last = tags, extents
        passed: list[Any] = []
        for value, beside in zip(given, extents, strict=True):
            passed.append(value)
            passed += beside
        return declared(passed)

    def _checked(self, given: Sequence[Any]) -> list[list[int]]:
        """Return the numbers passed after each argument: an array's shape and strides, nothing for a scalar."""
        extents = [
            self._extents(name, kind, value) if kind.ndim is not None else []
            for name, kind, value in zip(self._names, self._parameters, given, strict=True)
        ]
        if not self._may_overlap:
            for one, other in itertools.combinations(self._arrays, 2):
                if touch(given[one], given[other]):
                    raise LaunchError(
                        f"{self.name}: {self._names[one]} and {self._names[other]} overlap, and it was compiled for "
                        "arrays that do not; compile it with may_overlap=True, or copy one"
                    )
        return extents

    def _extents(self, name: str, kind: TileParameter, array: Any) -> list[int]:
        """Return an array's shape and strides, in elements. Raises LaunchError if the kernel does not support them."""
        say = f"{self.name}: {name}"
        if not isinstance(array, DeviceArray):
            raise LaunchError(
                f"{say} is a {type(array).__name__}; pass a DeviceArray (device.wrap(x) makes one from another "
                "library's array, without a copy)"
            )
        if array.ndim != kind.ndim:
            raise LaunchError(f"{say} has {array.ndim} dimensions, and the kernel was compiled for {kind.ndim}")
        try:
            strides = array.strides_elements
        except ValueError as error:
            raise LaunchError(f"{say}: {error}") from error
        if kind.contiguous and array.shape[-1] > 1 and strides[-1] != 1:
            raise LaunchError(
                f"{say}'s last axis has a stride of {strides[-1]} elements, and the kernel was compiled for 1; copy() "
                "the array, or compile with : for that axis"
            )
        if kind.contiguous:
            strides = (*strides[:-1], 1)  # an axis of one element may have any stride
        if array.shape and array.shape[-1] % self._divisible_by:
            raise LaunchError(
                f"{say}'s last axis must be a multiple of {self._divisible_by} elements, got {array.shape[-1]}; pad "
                "it, or compile with divisible_by=1"
            )
        if layout.overlaps_itself(array.shape, array.strides, array.itemsize):
            raise LaunchError(f"{say}'s elements overlap each other (strides {array.strides}); copy() the array first")
        if min(strides, default=0) < 0:
            raise LaunchError(
                f"{say} has a negative stride ({strides}), which cuTile does not support; copy() the array"
            )
        others = strides[:-1] if kind.contiguous else strides
        if kind.aligned and any(stride * array.itemsize % base.ALIGNED for stride in others):
            raise LaunchError(
                f"{say}'s strides must be multiples of {base.ALIGNED} bytes (its type ends in :16), got "
                f"{array.strides}; pad the rows, or compile with a type without :16"
            )
        extents = [*array.shape, *strides]
        if max(extents, default=0) >= _INDEX_LIMIT:
            raise LaunchError(
                f"{say} has an extent or stride of {max(extents)}, and at most {_INDEX_LIMIT - 1} is supported; pass a "
                "part of the array"
            )
        return extents


def compile(
    device: Device,
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    *,
    divisible_by: int = 1,
    may_overlap: bool = False,
) -> TileKernel:
    """Compile a `@ct.kernel` function for a GPU and load it; the result is kept in the disk cache.

    Args:
        device: The GPU to compile for and to load on.
        kernel: The `@ct.kernel` function.
        signature: The type of each parameter that a launch passes, by name.
        constants: The values of all other parameters (`ct.Constant`), by name.
        divisible_by: A number that divides the last extent of every array; with 16, copies are wide up to the end.
        may_overlap: Whether arrays of a launch may share memory. If False, launches reject arrays that do, and the
            compiler may reorder loads and stores.

    Returns:
        The kernel, ready to launch.

    Raises:
        CudakitError: If the device is simulated, or cuTile is not installed.
        ValueError: If the signature does not fit the function.
        CompileError: If cuTile does not compile the function.
    """
    _expect_gpu(device, getattr(getattr(kernel, "_pyfunc", None), "__name__", "the kernel"))
    return base.loaded(
        TileKernel,
        device,
        build(device.arch, kernel, signature, constants, divisible_by=divisible_by, may_overlap=may_overlap),
    )


def load(device: Device, compiled: Compiled) -> TileKernel:
    """Load a result of `build` on a GPU.

    Args:
        device: A GPU of the architecture that it was built for.
        compiled: The result of `build`.

    Raises:
        CudakitError: If the device is simulated.
    """
    _expect_gpu(device, compiled.launch["symbol"])
    return base.loaded(TileKernel, device, compiled)


def _expect_gpu(device: Device, name: str) -> None:
    if device.kind != "gpu":
        raise CudakitError(
            f"{name}: cuTile generates machine code for GPUs, and {device.context.spec} runs PTX: use Device('gpu'), "
            "or compile without running (cutile.build)"
        )


def build(
    arch: str,
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    *,
    divisible_by: int = 1,
    may_overlap: bool = False,
) -> Compiled:
    """Compile for an architecture without a device; `load` loads the result.

    Args:
        arch: The architecture, such as "sm_90a".
        kernel: The `@ct.kernel` function.
        signature: The type of each parameter that a launch passes, by name.
        constants: The values of all other parameters (`ct.Constant`), by name.
        divisible_by: A number that divides the last extent of every array; with 16, copies are wide up to the end.
        may_overlap: Whether arrays of a launch may share memory. If False, launches reject arrays that do, and the
            compiler may reorder loads and stores.

    Returns:
        A cubin, and the parameters of its launch.

    Raises:
        CudakitError: If cuTile or its assembler is not installed.
        ValueError: If the signature does not fit the function.
        CompileError: If cuTile does not compile the function.
    """
    ct = base.required("cuda.tile", "cuTile", "tile")
    compilation = base.required("cuda.tile.compilation", "cuTile", "tile")
    if not isinstance(kernel, ct.kernel):
        raise ValueError(f"{kernel!r} is not a @ct.kernel function; pass one")
    if not isinstance(divisible_by, int) or divisible_by < 1:
        raise ValueError(f"divisible_by must be an int of at least 1, got {divisible_by!r}")
    function = kernel._pyfunc
    name = function.__name__
    values = dict(constants or {})
    code = function.__code__
    known = code.co_varnames[: code.co_argcount]
    passed = base.split(name, known, signature, values)
    spelled = [(given, signature[given]) for given in passed]
    parsed = {given: parameter(signature[given]) for given in passed}
    several = sum(kind.ndim is not None for kind in parsed.values()) > 1
    shared = ("arrays",) if may_overlap and several else ()
    wanted = compilation.KernelSignature(
        [
            _constraint(ct, compilation, parsed[given], shared, divisible_by) if given in parsed else values[given]
            for given in known
        ],
        compilation.CallingConvention.cutile_python_v1(),
        name,
    )
    compiler = f"cuTile {base.version('cuda-tile')}"
    chip = arch.rstrip("a")

    def export(output_format: str) -> bytes:
        made = io.BytesIO()
        try:
            compilation.export_kernel(kernel, [wanted], made, gpu_code=chip, output_format=output_format)
        except Exception as error:  # cuTile's front end and tileiras raise different types
            if isinstance(error, FileNotFoundError) and "tileiras" in str(error):
                raise CudakitError(
                    "tileiras, cuTile's assembler, is not installed. Install it: pip install 'cudakit[tile]'"
                ) from error
            advice = "\nTile sizes must be powers of two: round up, and mask or let ct.load pad the rest"
            raise base.refused(compiler, name, arch, error, advice if "power of two" in str(error) else "") from error
        return made.getvalue()

    def make() -> Compiled:
        machine_code = export("cubin")
        return Compiled(
            cubin=machine_code,
            ptx="",
            lowered={},
            log="",
            options=(options,),
            resources=base.resources(machine_code, name),
            arch=arch,
            nvrtc_version=(0, 0),
            name=code.co_filename,
            source=Path(code.co_filename).read_text(encoding="utf-8") if Path(code.co_filename).is_file() else "",
            launch={
                "compiler": compiler,
                "symbol": name,
                "block": [1, 1, 1],  # the driver replaces it by the threads of a tile
                "shared": 0,
                "parameters": [list(pair) for pair in spelled],
                "constants": [str(given) for given in values],
                "divisible_by": divisible_by,
                "may_overlap": may_overlap,
            },
        )

    # The bytecode includes constants, globals and called functions, so it can be the cache's key; making it is quick,
    # tileiras is slow.
    options = repr(kernel._compiler_options)
    parts: list[str | bytes] = [
        compiler,
        _assembler(),
        options,
        repr(spelled),
        str((divisible_by, may_overlap)),
        export("tileir_bytecode"),
    ]
    return cache.compiled_by(code.co_filename, arch, parts, make)


def _constraint(ct: Any, compilation: Any, kind: TileParameter, groups: tuple[str, ...], divisible_by: int) -> Any:
    """Return cuTile's description of a parameter."""
    dtype = getattr(ct, "bool_" if kind.dtype == "bool" else kind.dtype)
    if kind.ndim is None:
        return compilation.ScalarConstraint(dtype)
    multiple = base.ALIGNED // base.SCALARS[kind.dtype].size if kind.aligned else 1
    outer = kind.ndim - kind.contiguous
    return compilation.ArrayConstraint(
        dtype,
        kind.ndim,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=groups,
        may_alias_internally=False,
        stride_constant=[None] * outer + [1] * kind.contiguous,
        stride_divisible_by=[multiple] * outer + [1] * kind.contiguous,
        shape_divisible_by=[1] * (kind.ndim - 1) + [divisible_by],
        base_addr_divisible_by=base.ALIGNED if kind.aligned else 1,
    )


def _assembler() -> str:
    """The version of tileiras, which generates the machine code."""
    found = base.version("nvidia-cuda-tileiras")
    path = shutil.which("tileiras") if found == "unknown" else None
    return f"tileiras {found}" if path is None else f"{path}:{Path(path).stat().st_size}"
