"""Shared parts of the frontends: a loaded kernel of another compiler, with the block and shared memory it needs."""

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

#: The scalar types that a signature may name, by their names in numpy and ml_dtypes.
SCALARS: dict[str, Type] = {
    "bool": BUILTIN["b"],
    "int8": BUILTIN["a"], "int16": BUILTIN["s"], "int32": BUILTIN["i"], "int64": BUILTIN["x"],
    "uint8": BUILTIN["h"], "uint16": BUILTIN["t"], "uint32": BUILTIN["j"], "uint64": BUILTIN["y"],
    "float16": KNOWN_CLASSES["__half"], "bfloat16": KNOWN_CLASSES["__nv_bfloat16"],
    "float32": BUILTIN["f"], "float64": BUILTIN["d"],
}  # fmt: skip
NULL = Type("void* (scratch memory)", "pointer", 8, target=VOID)
ALIGNED = 16  # bytes: the widest access of a thread, and the multiple that ":16" promises


def pointer(element: Type, *, const: bool = False, aligned: bool = False) -> Type:
    """The type of a pointer. aligned: a launch raises if an array's address is not a multiple of 16 bytes."""
    text = f"{'const ' if const else ''}{element.text}*"
    if not aligned:
        return Type(text, "pointer", 8, target=replace(element, const=const))
    # Like a pointer to float4: the dtype of a component, the alignment of the whole vector. At least 4 lanes, because
    # two would be read as a complex number.
    lanes = max(4, ALIGNED // element.size)
    vector = Type(text, "vector", element.size * lanes, const=const, target=element, lanes=lanes)
    return Type(f"{text} at a multiple of {ALIGNED} bytes", "pointer", 8, target=vector)


class Built(ABC):
    """A kernel compiled by another compiler, loaded on a device.

    Attributes:
        name: The kernel's name in its machine code.
        kernel: The `Kernel`, as of any module.
        module: The `Module` that holds it.
        block: Threads per block, as the compiler requires.
        shared: Dynamic shared memory per block, in bytes, as the compiler requires.
        compiled: The compiler's result, as kept in the cache.
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
                f"{symbol}: its code takes {len(got)} parameters ({', '.join(kind.text for kind in got)}), but "
                f"{launch['compiler']} reports {len(types)} ({', '.join(kind.text for kind in types)}): this version "
                "of the compiler is not supported; install another one"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.kernel.context.spec!r}, {self.compiled.launch['compiler']})"

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return self.kernel.registers

    @functools.cached_property
    def code(self) -> cubin.Code:
        """Figures of its machine code: registers, instructions, threads per block."""
        return cubin.kernels(self.compiled.cubin)[self.name]

    @property
    def instructions(self) -> int:
        """Instructions in its machine code, without the NOPs that pad it."""
        return self.code.instructions

    @property
    def occupancy(self) -> float:
        """The fraction of a multiprocessor's threads that can be resident, with the block that its code requires."""
        threads = self.code.threads or math.prod(self.block)
        blocks = self.kernel.occupancy(threads, self.shared)
        return blocks * threads / self.kernel.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    @abstractmethod
    def _types(self, launch: Mapping[str, Any]) -> tuple[Type, ...]:
        """Return the types of its code's parameters."""

    @abstractmethod
    def arguments(self, args: Any) -> tuple[Any, ...]:
        """Return the arguments of its code for `args`, the arguments of the Python function.

        Raises:
            LaunchError: If an argument does not fit its parameter.
        """

    def launch(self, stream: Any, grid: Any, args: Any = ()) -> None:
        """Queue a launch, with the same checks as for any kernel.

        Args:
            stream: The stream that the launch is queued on.
            grid: Programs: an int, or up to three.
            args: The arguments of the Python function in order, without the constants.

        Raises:
            LaunchError: If an argument or the grid is wrong; nothing was queued.
        """
        self.kernel.launch(stream, grid=grid, block=self.block, shared=self.shared, args=self.arguments(args))

    def prepare(self, *, grid: Any, args: Any = ()) -> Prepared:
        """Return a prepared launch, as `Kernel.prepare` does: everything except the stream is checked and fixed.

        Args:
            grid: Programs: an int, or up to three.
            args: The arguments of the Python function in order, without the constants.

        Raises:
            LaunchError: If an argument or the grid is wrong.
        """
        return self.kernel.prepare(grid=grid, block=self.block, shared=self.shared, args=self.arguments(args))

    def _counted(self, args: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """Return `args` as a tuple. Raises LaunchError unless it has one argument per name."""
        if not isinstance(args, (tuple, list)):
            raise LaunchError(
                f"{self.name}: args is a {type(args).__name__}; pass the arguments as a tuple, args=(x,) for one"
            )
        if len(args) != len(names):
            constants = ", ".join(self.compiled.launch["constants"])
            compiled_in = f" (constants, not passed: {constants})" if constants else ""
            raise LaunchError(
                f"{self.name}: takes {len(names)} arguments ({', '.join(names)}), got {len(args)}{compiled_in}"
            )
        return tuple(args)


BuiltType = TypeVar("BuiltType", bound=Built)


def loaded(kind: type[BuiltType], device: Device, compiled: Compiled) -> BuiltType:
    """Load `compiled` on a device, or return the kernel that was loaded before."""
    key = ("frontends", id(compiled))
    found: BuiltType | None = device.kept.get(key)
    if found is None or found.module.closed or found.compiled is not compiled:
        found = device.kept[key] = kind(device, compiled)
    return found


def resources(machine_code: bytes, symbol: str) -> dict[str, Resources]:
    """Read the registers of a kernel from its machine code, in the form of `Compiled.resources`."""
    return {symbol: Resources(registers=cubin.kernels(machine_code)[symbol].registers)}


def required(module: str, package: str, extra: str) -> Any:
    """Import a module of an optional package. Raises CudakitError, which says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CudakitError(
            f"{package} is not installed ({error}). Install it: pip install 'cudakit[{extra}]'"
        ) from error


def version(package: str) -> str:
    """The version of an installed package, or "unknown" if it has no metadata."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def refused(compiler: str, name: str, arch: str, error: Exception, advice: str = "") -> CompileError:
    """A CompileError for another compiler's error."""
    text = str(error).strip() or "no reason given"
    return CompileError(f"{compiler} does not compile {name} for {arch} ({type(error).__name__}): {text}{advice}")


def split(name: str, known: Sequence[str], signature: Mapping[str, str], constants: Mapping[str, Any]) -> list[str]:
    """Return the names in `known`, the function's parameters, that a launch passes.

    Raises ValueError unless signature and constants together name each parameter exactly once.
    """
    if isinstance(signature, (str, bytes)) or not isinstance(signature, Mapping):
        raise ValueError(f'{name}: signature is a {type(signature).__name__}; pass a dict such as {{"n": "int32"}}')
    unknown = [given for given in (*signature, *constants) if given not in known]
    if unknown:
        raise ValueError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    twice = [given for given in signature if given in constants]
    if twice:
        raise ValueError(f"{name}: {twice[0]} is in both signature and constants; name it in one of them")
    missing = [wanted for wanted in known if wanted not in signature and wanted not in constants]
    if missing:
        raise ValueError(f"{name}: {missing[0]} has no type; add its type to signature, or its value to constants")
    return [wanted for wanted in known if wanted in signature]
