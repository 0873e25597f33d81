"""cuTile's kernels, compiled ahead of time without a GPU (the extra `tile`), and run on a GPU only.

    @ct.kernel
    def add(a, b, out, TILE: ct.Constant[int]): ...

    types = dict.fromkeys(("a", "b", "out"), "float32[::1]:16")
    built = frontends.cutile.compile(dev, add, types, {"TILE": 1024})
    built.launch(stream, grid=-(-n // 1024), args=(a, b, out))

A signature gives each array's dtype and dimensions: "float32[:]" with any stride, "float32[:, ::1]" with the last axis
contiguous; ":16" behind it promises that its address and the strides of its other axes are multiples of 16 bytes, by
which copies become wide. A scalar is a dtype alone, "int32". An array is passed as its pointer, shape and strides,
which each launch checks against the signature. Sizes of tiles are powers of two. cuTile makes machine code and no PTX,
so the simulated device cannot run it: `build` still compiles for an architecture, which needs no device.
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
    """One parameter of a cuTile kernel: an array of `ndim` dimensions, or a scalar where that is None.

    contiguous: its last axis is. aligned: its address and other strides are multiples of 16 bytes.
    """

    dtype: str
    ndim: int | None = None
    contiguous: bool = False
    aligned: bool = False

    @property
    def types(self) -> tuple[Type, ...]:
        """What it is passed as: a number, or pointer, shape and strides."""
        element = base.SCALARS[self.dtype]
        if self.ndim is None:
            return (element,)
        return (base.pointer(element, aligned=self.aligned), *(base.SCALARS["int32"],) * (2 * self.ndim))


def parameter(spelled: str) -> TileParameter:
    """The parameter that "float32[:, ::1]:16" spells. Raises ValueError for what spells none."""
    match = _SPELLED.fullmatch(spelled) if isinstance(spelled, str) else None
    if match is None or match[1] not in base.SCALARS:
        raise ValueError(
            f"{spelled!r} is no type of a cuTile parameter: write a dtype ({', '.join(base.SCALARS)}), and for an "
            'array its axes, such as "float32[:, ::1]", with :16 behind them where address and strides are multiples '
            "of 16 bytes"
        )
    if match[2] is None:
        return TileParameter(match[1])
    axes = match[2].split(",")
    return TileParameter(match[1], len(axes), axes[-1].strip() == "::1", bool(match[3]))


class TileKernel(base.Built):
    """A cuTile kernel on a GPU, made by `compile`. `launch(stream, grid, args)` takes the arrays themselves."""

    def _types(self, launch: Mapping[str, Any]) -> tuple[Type, ...]:
        self._names = [name for name, _ in launch["parameters"]]
        self._parameters = [parameter(spelled) for _, spelled in launch["parameters"]]
        self._may_overlap: bool = launch["may_overlap"]
        self._divisible_by: int = launch["divisible_by"]
        self._arrays = [place for place, kind in enumerate(self._parameters) if kind.ndim is not None]
        # The arrays of the last launch by their tags, which no other array has, and what was found for them then.
        self._last: tuple[tuple[Any, ...], list[list[int]]] = ((None,), [])
        return tuple(itertools.chain.from_iterable(given.types for given in self._parameters))

    def arguments(self, args: Any) -> tuple[Any, ...]:
        """Each array's pointer (as the array, whose dtype and device are then checked), shape and strides."""
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
        """What is passed behind each argument: an array's shape and strides."""
        extents = [
            self._extents(name, kind, value) if kind.ndim is not None else []
            for name, kind, value in zip(self._names, self._parameters, given, strict=True)
        ]
        if not self._may_overlap:
            for one, other in itertools.combinations(self._arrays, 2):
                if touch(given[one], given[other]):
                    raise LaunchError(
                        f"{self.name}: {self._names[one]} and {self._names[other]} overlap, and it is compiled for "
                        "arrays that do not; compile it with may_overlap=True, or copy one"
                    )
        return extents

    def _extents(self, name: str, kind: TileParameter, array: Any) -> list[int]:
        """An array's shape and strides in elements, where the kernel was compiled for such."""
        say = f"{self.name}: {name}"
        if not isinstance(array, DeviceArray):
            raise LaunchError(
                f"{say} is a {type(array).__name__}; give a DeviceArray (device.wrap makes one of another library's "
                "array, without a copy)"
            )
        if array.ndim != kind.ndim:
            raise LaunchError(f"{say} has {array.ndim} dimensions, and it is compiled for {kind.ndim}")
        try:
            strides = array.strides_elements
        except ValueError as error:
            raise LaunchError(f"{say}: {error}") from error
        if kind.contiguous and array.shape[-1] > 1 and strides[-1] != 1:
            raise LaunchError(
                f"{say}'s last axis has a stride of {strides[-1]} elements, and it is compiled for 1; copy() the "
                "array, or compile with [:] for that axis"
            )
        if kind.contiguous:
            strides = (*strides[:-1], 1)  # one element has any stride
        if array.shape and array.shape[-1] % self._divisible_by:
            raise LaunchError(
                f"{say}'s last axis has {array.shape[-1]} elements, which were promised to be a multiple of "
                f"{self._divisible_by}; compile it with divisible_by=1"
            )
        if layout.overlaps_itself(array.shape, array.strides, array.itemsize):
            raise LaunchError(f"{say}'s elements overlap each other (strides {array.strides}); copy() the array first")
        if min(strides, default=0) < 0:
            raise LaunchError(f"{say} has a negative stride ({strides}), which cuTile does not take; copy() the array")
        others = strides[:-1] if kind.contiguous else strides
        if kind.aligned and any(stride * array.itemsize % base.ALIGNED for stride in others):
            raise LaunchError(
                f"{say}'s strides ({array.strides} bytes) were promised to be multiples of {base.ALIGNED} bytes; "
                "compile with a signature without :16, or pad the rows"
            )
        extents = [*array.shape, *strides]
        if max(extents, default=0) >= _INDEX_LIMIT:
            raise LaunchError(
                f"{say} has an extent or stride of {max(extents)}, and they are passed as 32-bit integers"
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
    """A `@ct.kernel` function on a GPU, compiled for its architecture; from the cache where that was done before.

    signature: the type of each parameter that a launch passes, by name. constants: the values of the others
    (`ct.Constant`), by name. divisible_by: what every array's last axis is promised to have a multiple of elements of:
    with 16, copies are wide up to the array's end. may_overlap: whether two arrays of a launch may share memory; they
    are refused otherwise, and the compiler may reorder loads and stores.
    Raises CudakitError on the simulated device and where cuTile is not installed, ValueError for a signature that does
    not fit, CompileError for what cuTile refuses.
    """
    _expect_gpu(device, getattr(getattr(kernel, "_pyfunc", None), "__name__", "the kernel"))
    return base.loaded(
        TileKernel,
        device,
        build(device.arch, kernel, signature, constants, divisible_by=divisible_by, may_overlap=may_overlap),
    )


def load(device: Device, compiled: Compiled) -> TileKernel:
    """What `build` gave, on a GPU of its architecture."""
    _expect_gpu(device, compiled.launch["symbol"])
    return base.loaded(TileKernel, device, compiled)


def _expect_gpu(device: Device, name: str) -> None:
    if device.kind != "gpu":
        raise CudakitError(
            f"{name}: cuTile makes machine code for GPUs, and {device.context.spec} runs PTX: open Device('gpu'), or "
            "compile it without running it (cutile.build)"
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
    """What `compile` loads, for an architecture ("sm_90a") and without a device: a cubin, and how it is launched."""
    ct = base.required("cuda.tile", "cuTile", "tile")
    compilation = base.required("cuda.tile.compilation", "cuTile", "tile")
    if not isinstance(kernel, ct.kernel):
        raise ValueError(f"{kernel!r} is no @ct.kernel function")
    if not isinstance(divisible_by, int) or divisible_by < 1:
        raise ValueError(f"divisible_by={divisible_by!r} is no number of elements")
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
        except Exception as error:  # its front end and tileiras each raise their own
            advice = (
                "\nSizes of tiles are powers of two: pad to the next one, and mask or let ct.load pad what is beyond"
            )
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
            source=Path(code.co_filename).read_text() if Path(code.co_filename).is_file() else "",
            launch={
                "compiler": compiler,
                "symbol": name,
                "block": [1, 1, 1],  # the driver puts a tile's threads there
                "shared": 0,
                "parameters": [list(pair) for pair in spelled],
                "constants": [str(given) for given in values],
                "divisible_by": divisible_by,
                "may_overlap": may_overlap,
            },
        )

    # The bytecode has all that the kernel calls, constants and globals in it; tileiras is what takes its time.
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
    """What cuTile is told of a parameter."""
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
    """The identity of tileiras, which makes the machine code."""
    found = base.version("nvidia-cuda-tileiras")
    path = shutil.which("tileiras") if found == "unknown" else None
    return f"tileiras {found}" if path is None else f"{path}:{Path(path).stat().st_size}"
