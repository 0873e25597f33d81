"""What the frontends share: a kernel that another compiler made, loaded, with the launch that its compiler says."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cudakit.compile.compiler import Compiled, Resources
from cudakit.errors import CompileError, CudakitError, LaunchError
from cudakit.frontends import cubin
from cudakit.launch.cxx import BUILTIN, KNOWN_CLASSES, VOID, Type
from cudakit.launch.kernel import Kernel, Prepared
from cudakit.launch.module import Module, ObjectCode

if TYPE_CHECKING:
    from cudakit.device import Device

#: The scalar types that a signature may name, by numpy's names and ml_dtypes'.
SCALARS: dict[str, Type] = {
    "bool": BUILTIN["b"],
    "int8": BUILTIN["a"], "int16": BUILTIN["s"], "int32": BUILTIN["i"], "int64": BUILTIN["x"],
    "uint8": BUILTIN["h"], "uint16": BUILTIN["t"], "uint32": BUILTIN["j"], "uint64": BUILTIN["y"],
    "float16": KNOWN_CLASSES["__half"], "bfloat16": KNOWN_CLASSES["__nv_bfloat16"],
    "float32": BUILTIN["f"], "float64": BUILTIN["d"],
}  # fmt: skip
NULL = Type("void* (scratch memory)", "pointer", 8, target=VOID)
ALIGNED = 16  # bytes: the widest access of a thread, and what a ":16" promises


def pointer(element: Type, *, const: bool = False, aligned: bool = False) -> Type:
    """A pointer's type. aligned: launches are refused where an array's address is no multiple of 16 bytes."""
    text = f"{'const ' if const else ''}{element.text}*"
    if not aligned:
        return Type(text, "pointer", 8, target=replace(element, const=const))
    # As a pointer to float4 is: its component's dtype, at multiples of the whole. Two lanes would be a complex number.
    lanes = max(4, ALIGNED // element.size)
    vector = Type(text, "vector", element.size * lanes, const=const, target=element, lanes=lanes)
    return Type(f"{text} at a multiple of {ALIGNED} bytes", "pointer", 8, target=vector)


class Built(ABC):
    """A kernel that another compiler made, loaded on a device.

    kernel, module: as any other's. block, shared: what is passed for a block's threads and its dynamic shared memory
    (bytes), as its compiler says. compiled: what the cache keeps.
    """

    def __init__(self, device: Device, compiled: Compiled) -> None:
        launch = compiled.launch
        symbol = launch["symbol"]
        self.compiled = compiled
        self.name: str = symbol
        self.block: tuple[int, int, int] = tuple(launch["block"])
        self.shared: int = launch["shared"]
        types = self._types(launch)
        made = ObjectCode(
            compiled.name,
            compiled.ptx,
            compiled.cubin,
            source=compiled.source,
            resources=compiled.resources,
            types={symbol: types},
        )
        self.module = Module(device.context, made)
        device.context.own.add(self.module)
        self.kernel: Kernel = self.module[symbol]
        got = [parameter.type for parameter in self.kernel.parameters]
        if got != list(types):
            raise CudakitError(
                f"{symbol}: its code takes {len(got)} parameters ({', '.join(kind.text for kind in got)}), and "
                f"{launch['compiler']} says {len(types)} ({', '.join(kind.text for kind in types)}): this version of "
                "the compiler passes them in a way that is not known here"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.kernel.context.spec!r}, {self.compiled.launch['compiler']})"

    @property
    def registers(self) -> int:
        """Registers a thread."""
        return self.kernel.registers

    @functools.cached_property
    def code(self) -> cubin.Code:
        """What its machine code says: registers, instructions, threads a block."""
        return cubin.kernels(self.compiled.cubin)[self.name]

    @property
    def instructions(self) -> int:
        """Instructions of its machine code, the NOPs that pad it left out."""
        return self.code.instructions

    @property
    def occupancy(self) -> float:
        """The share of a multiprocessor's threads that can be resident: with the threads that its code demands."""
        threads = self.code.threads or math.prod(self.block)
        blocks = self.kernel.occupancy(threads, self.shared)
        return blocks * threads / self.kernel.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    @abstractmethod
    def _types(self, launch: Mapping[str, Any]) -> tuple[Type, ...]:
        """The types of the parameters that its code takes."""

    @abstractmethod
    def arguments(self, args: Any) -> tuple[Any, ...]:
        """What its code takes for `args`, those of the Python function. Raises LaunchError for what does not fit."""

    def launch(self, stream: Any, grid: Any, args: Any = ()) -> None:
        """Queue a launch on `stream`, checked as those of any kernel are.

        grid: programs, an int or up to three. args: those of the Python function in its order, without the constants.
        Raises LaunchError before anything runs.
        """
        self.kernel.launch(stream, grid=grid, block=self.block, shared=self.shared, args=self.arguments(args))

    def prepare(self, *, grid: Any, args: Any = ()) -> Prepared:
        """A launch with everything but the stream fixed and checked, as `Kernel.prepare` gives."""
        return self.kernel.prepare(grid=grid, block=self.block, shared=self.shared, args=self.arguments(args))

    def _counted(self, args: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """`args` as a tuple, where it has one for each of `names`."""
        if not isinstance(args, (tuple, list)):
            raise LaunchError(
                f"{self.name}: args is a {type(args).__name__}; give the arguments as a tuple, args=(x,) for one"
            )
        if len(args) != len(names):
            constants = ", ".join(self.compiled.launch["constants"])
            beside = f" (compiled in: {constants})" if constants else ""
            raise LaunchError(
                f"{self.name}: takes {len(names)} arguments ({', '.join(names)}), and {len(args)} were given{beside}"
            )
        return tuple(args)


BuiltType = TypeVar("BuiltType", bound=Built)


def loaded(kind: type[BuiltType], device: Device, compiled: Compiled) -> BuiltType:
    """`compiled` on a device: the one that is there, or a new one."""
    key = ("frontends", id(compiled))
    found: BuiltType | None = device.kept.get(key)
    if found is None or found.module.closed or found.compiled is not compiled:
        found = device.kept[key] = kind(device, compiled)
    return found


def resources(machine_code: bytes, symbol: str) -> dict[str, Resources]:
    """What the machine code says its kernel needs, as a compile's results have it."""
    return {symbol: Resources(registers=cubin.kernels(machine_code)[symbol].registers)}


def required(module: str, package: str, extra: str) -> Any:
    """An optional package's module. Raises CudakitError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CudakitError(
            f"{package} is not installed ({error}). Install it: pip install 'cudakit[{extra}]'"
        ) from error


def version(package: str) -> str:
    """An installed package's version, or "unknown" where it has no metadata."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def refused(compiler: str, name: str, arch: str, error: Exception, advice: str = "") -> CompileError:
    """What another compiler failed with, as our CompileError."""
    text = str(error).strip() or "it does not say why"
    return CompileError(f"{compiler} does not compile {name} for {arch} ({type(error).__name__}): {text}{advice}")


def split(name: str, known: Sequence[str], signature: Mapping[str, str], constants: Mapping[str, Any]) -> list[str]:
    """The parameters in `known`, the function's own, that a launch passes. Raises ValueError where signature and
    constants together do not name each exactly once."""
    if isinstance(signature, (str, bytes)) or not isinstance(signature, Mapping):
        raise ValueError(f'{name}: signature is a {type(signature).__name__}; give a dict such as {{"n": "int32"}}')
    unknown = [given for given in (*signature, *constants) if given not in known]
    if unknown:
        raise ValueError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    twice = [given for given in signature if given in constants]
    if twice:
        raise ValueError(f"{name}: {twice[0]} is in the signature and among the constants; give it once")
    missing = [wanted for wanted in known if wanted not in signature and wanted not in constants]
    if missing:
        raise ValueError(f"{name}: {missing[0]} has no type; name it in the signature, or its value in constants")
    return [wanted for wanted in known if wanted in signature]
