"""Declarations: the placeholders of an array and of its tensor map in a kernel's arguments (Slot, TensorMapSlot), the
launch of a kernel (Launch), a variant of a family.

A variant declares its idea, its source and entry, and the function that returns its launch for a problem. Tests,
benches, tuning, NVTX names, profiler filters and tables are derived from these declarations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from cudakit import names
from cudakit.compile import headers
from cudakit.errors import CudakitError, LaunchError, UnsupportedVariant
from cudakit.launch.strides import declared
from cudakit.memory import array as memory
from cudakit.memory import layout
from cudakit.memory.tensor_map import TensorMap
from cudakit.tracebacks import line_in

P = TypeVar("P")  # a family's problem: shapes, strides in elements, dtype, alignment; frozen and hashable
Dim = int | tuple[int, ...]

# The most blocks of a grid along x, and along y and z.
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65535

# The C++ element types of kernels that support several dtypes.
CPP = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}

# Work of a variant that is not only kernels: (device, kernel of a Launch, problem, inputs, output, stream).
Run = Callable[[Any, Callable[["Launch"], Any], Any, Sequence[Any], Any, Any], None]


@dataclass(frozen=True)
class Slot:
    """The placeholder of an array in a kernel's arguments, replaced by the array at the launch.

    Args:
        role: The index of an input; -1 for the first output, -2 for the second; None for the scratch memory.
        offset: Bytes after the array's first element.
        elements: The dtype that the bytes are read as, "" for the array's own. An array with an offset, or with
            elements of another size, must be contiguous, unless its complex numbers are read as their two parts.
    """

    role: int | None
    offset: int = 0
    elements: str = ""

    def at(self, offset: int = 0, dtype: Any = None) -> Slot:
        """Return the part of the array that starts after `offset` bytes, as elements of `dtype`, by default its own."""
        name = self.elements if dtype is None else memory.as_dtype(dtype).name
        return Slot(self.role, self.offset + offset, name)

    def place(self, inputs: int, outputs: int) -> int:
        """Return the array's index in (*inputs, *outputs, scratch), for these numbers of inputs and outputs."""
        if self.role is None:
            return inputs + outputs
        return self.role if self.role >= 0 else inputs - 1 - self.role

    def among(self, arrays: Sequence[Any], inputs: int, outputs: int) -> Any:
        """Return the slot's array; `arrays` are (*inputs, *outputs, scratch)."""
        array = arrays[self.place(inputs, outputs)]
        if not self.offset and not self.elements:
            return array
        own = memory.as_dtype(self.elements) if self.elements else array.dtype
        if not self.offset and own.itemsize == array.itemsize:
            return array.view(own)
        if not self.offset and array.dtype.kind == "c" and 2 * own.itemsize == array.itemsize:
            return array[..., None].view(own)  # any strides: the two parts of each number are adjacent
        return array.reshape(-1).view(np.uint8)[self.offset :].view(own)


#: The inputs by index, the only output, and the scratch memory, as arguments of kernels.
IN = tuple(Slot(number) for number in range(8))
OUT = Slot(-1)
SCRATCH = Slot(None)


@dataclass(frozen=True)
class TensorMapSlot:
    """The placeholder of a tensor map in a kernel's arguments, for a parameter `const __grid_constant__ CUtensorMap`.
    At the launch it is replaced by the `cudakit.TensorMap` of the slot's array.

    Args:
        slot: The array: an input, an output, or a part of the scratch memory, `SCRATCH.at(offset, dtype)`.
        box: Elements per axis that a copy moves; this and all other arguments are as for `cudakit.TensorMap`.
        dims: The extents of the tensor, if not the array's shape. The tensor must be in the array's own bytes.
        strides: Bytes between elements along each axis of `dims`.

    Example:

        Launch(tiles, 128, (TensorMapSlot(p.x, box=(64, 64), swizzle="128B"), p.out, p.cols))
    """

    slot: Slot
    box: int | Sequence[int]
    dims: int | Sequence[int] | None = None
    strides: int | Sequence[int] | None = None
    swizzle: str = "none"
    l2_promotion: str = "none"
    interleave: str = "none"
    fill: str = "zeros"
    element_strides: int | Sequence[int] | None = None
    data_type: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.slot, Slot):
            raise TypeError(
                "a TensorMapSlot is made over a Slot (an array of the problem, IN[0], OUT, or SCRATCH.at(offset, "
                f"dtype)), got {type(self.slot).__name__}; for an array itself, launch with cudakit.TensorMap"
            )

    @property
    def offset(self) -> int:
        """The slot's offset."""
        return self.slot.offset

    def place(self, inputs: int, outputs: int) -> int:
        """Return the index of the slot's array; see Slot."""
        return self.slot.place(inputs, outputs)

    def among(self, arrays: Sequence[Any], inputs: int, outputs: int) -> TensorMap:
        """Return the tensor map of the slot's array; see Slot. Raises ValueError or TypeError if it breaks a rule."""
        if self.slot.role is None and arrays[-1] is None:
            raise ValueError("it is in scratch memory, but no launch requests any; pass scratch=bytes to the Launch")
        array = self.slot.among(arrays, inputs, outputs)
        options = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "slot"}
        made = TensorMap(array, **options)
        # Later calls may pass an array in a smaller allocation, so the allocation's size does not matter.
        first, end = layout.span(array.shape, array.strides, array.itemsize)
        low, high = made.encoding.span
        if low < first or high > end:
            raise ValueError(
                f"the tensor is bytes {low} to {high} of the array, which has bytes {first} to {end}; pass smaller "
                "dims or strides"
            )
        return made


@dataclass(frozen=True)
class Launch:
    """The launch of one kernel for one problem.

    Args:
        grid: Blocks: an int, or up to three.
        block: Threads per block: an int, or up to three.
        args: The kernel's arguments in order, with Slots for arrays (`p.x` of a Problem, or IN, OUT and SCRATCH) and
            TensorMapSlots for their tensor maps. By default the family's `arguments`; without those, each parameter is
            the problem's attribute of its name.
        shared: Bytes of dynamic shared memory.
        entry: A C++ name or name expression ("k<4>"), by default the variant's.
        scratch: Bytes of device memory for SCRATCH, not cleared. The launches of one variant share one allocation of
            the largest size.
        defines: Macros that the source is compiled with.
        cluster: Blocks per cluster.
        cooperative: All blocks are resident at the same time and may synchronise.
        programmatic: The kernel may start before the one launched before it on the stream has ended (sm_90 and later).
            It calls `griddepcontrol.wait` before it accesses memory.
        source: The kernel's file, if it is not the variant's.
    """

    grid: Dim
    block: Dim
    args: tuple[Any, ...] | None = None
    shared: int = 0
    entry: str = ""
    scratch: int = 0
    defines: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    cluster: Dim | None = None
    cooperative: bool = False
    programmatic: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.defines, Mapping):
            object.__setattr__(self, "defines", tuple(self.defines.items()))

    def keywords(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the keywords of Kernel.launch and Kernel.prepare for this launch with the kernel arguments `args`.
        Arrays may have any strides: the family's `problem` rejects those that its kernels do not support."""
        return {
            "grid": self.grid,
            "block": self.block,
            "shared": self.shared,
            "cluster": self.cluster,
            "cooperative": self.cooperative,
            "programmatic": self.programmatic,
            "args": declared(args),
        }

    @property
    def threads(self) -> int:
        """Threads per block."""
        return int(np.prod(self.block))


@dataclass(frozen=True, eq=False)
class Variant(Generic[P]):
    """One version of a family's kernel; the decorator `variant` creates it from a function.

    - `launch(problem, **configuration)`: returns the Launch, a tuple of several that run in this order on the stream,
      or a sentence with the reason why the problem is unsupported.
    - `source`: the `.cu` file, an absolute path or a path below `kernels/`. `entry`: the default kernel of its
      launches.
    - `since`: the oldest architecture that it supports. "sm_90a" is the only one, because later ones lack some of its
      instructions.
    - `run`: queues all work of a variant that also calls a library; `launch` then returns (), or the reason why the
      problem is unsupported. `waits`: whether `run` waits for the device.
    - `rounding`: replaces the family's rounding bound, if the variant's arithmetic differs.
    - `problems`: the kind of problems that cudakit.testing draws for a variant that supports few others: "aligned" for
      one that loads vectors (see cudakit.testing.declared_cases), or a kind of the family's own strategy. By default
      any.
    - `tune`: the values to try for keywords of `launch`. `configuration`: the values that differ from the defaults.
    """

    name: str
    launch: Callable[..., Launch | tuple[Launch, ...] | str]
    source: str
    idea: str = ""
    entry: str = ""
    since: str = "sm_75"
    run: Run | None = None
    waits: bool = False
    rounding: Callable[..., Any] | float | None = None
    problems: str = ""
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.configuration:  # a variant with a configuration was made from one that has been checked
            _expect_tunable(self)

    def answer(self, problem: P) -> tuple[Launch, ...] | str:
        """Return its launches for `problem` in order, or the sentence with the reason why it does not support it."""
        try:
            made = self.launch(problem, **self.configuration)
        except CudakitError:
            raise
        except Exception as error:
            line = line_in(error, getattr(getattr(self.launch, "__code__", None), "co_filename", ""))
            raise LaunchError(
                f"the function of variant {self.name} fails for {problem}: {type(error).__name__}: {error}{line}"
            ) from error
        if isinstance(made, Launch):
            return (made,)
        if isinstance(made, str) and made.strip():
            return made
        if isinstance(made, (tuple, list)) and all(isinstance(one, Launch) for one in made):
            return tuple(made)
        raise LaunchError(
            f"the function of variant {self.name} returns {made!r} for {problem}: return a Launch, a tuple of several, "
            "or a sentence with the reason why it does not support the problem"
        )

    def launches(self, problem: P) -> tuple[Launch, ...]:
        """Return its launches for `problem`, in order. Raise UnsupportedVariant with the reason if it does not support
        it."""
        made = self.answer(problem)
        if isinstance(made, str):
            raise UnsupportedVariant(f"{self.name} does not support {problem}: {made}")
        return made

    def refusal(self, problem: P, arch: str) -> str | None:
        """Return the reason why this variant does not support `problem` on `arch` ("sm_90"), or None if it does."""
        if reason := self.arch_refusal(arch):
            return reason
        made = self.answer(problem)
        return made if isinstance(made, str) else None

    def arch_refusal(self, arch: str) -> str:
        """Return the reason why this variant supports no problem on `arch`, or ""."""
        if self.since.endswith("a"):
            return "" if arch == self.since else f"needs {self.since} itself, the device is {arch}"
        old = _arch_number(arch) < _arch_number(self.since)
        return f"needs {self.since} or later, the device is {arch}" if old else ""

    def configured(self, **configuration: Any) -> Variant[P]:
        """Return the variant with other values of its tuned keywords. Raise ValueError for a keyword that is not
        tuned."""
        unknown = [name for name in configuration if name not in self.tune]
        if unknown:
            known = ", ".join(self.tune) or "none"
            raise ValueError(
                f"variant {self.name} has no tuned keyword {unknown[0]!r}; it has {known}"
                + names.hint(unknown[0], self.tune)
            )
        return replace(self, configuration={**self.configuration, **configuration})

    @property
    def usual(self) -> dict[str, Any]:
        """Its configuration, including defaults."""
        parameters = inspect.signature(self.launch).parameters
        return {name: self.configuration.get(name, parameters[name].default) for name in self.tune}

    def entry_of(self, launch: Launch) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
        """Return the source, entry and macros of one of its launches."""
        return launch.source or self.source, launch.entry or self.entry, tuple(dict(launch.defines).items())


def _expect_tunable(variant: Variant[Any]) -> None:
    """Raise TypeError if a name in `tune` is not a keyword of the variant's function, and ValueError if the keyword's
    default is not one of its values."""
    parameters = inspect.signature(variant.launch).parameters if variant.tune else {}
    for name, values in variant.tune.items():
        if name not in parameters or parameters[name].default is inspect.Parameter.empty:
            raise TypeError(f"variant {variant.name}: tune= needs a keyword {name}= with a default in its function")
        if isinstance(values, str) or not list(values):
            raise ValueError(f"variant {variant.name}: tune={{{name!r}: ...}} needs a sequence of values")
        if parameters[name].default not in values:
            raise ValueError(
                f"variant {variant.name}: the default {name}={parameters[name].default!r} is not among its values "
                f"{tuple(values)}"
            )


def variant(
    source: str,
    *,
    name: str = "",
    idea: str = "",
    entry: str = "",
    since: str = "sm_75",
    run: Run | None = None,
    waits: bool = False,
    rounding: Callable[..., Any] | float | None = None,
    problems: str = "",
    tune: Mapping[str, Sequence[Any]] | None = None,
) -> Callable[[Callable[..., Launch | tuple[Launch, ...] | str]], Variant[Any]]:
    """Declare the decorated function as the launch of a variant.

    The function takes a problem and returns a Launch, a tuple of several, or a sentence with the reason why the variant
    does not support the problem.

    Args:
        source: The `.cu` file: searched next to the function's file, then in the working directory, then among
            cudakit's kernels.
        name: By default the function's name.
        idea: One line for tables, by default the first paragraph of the function's docstring.
        entry: The kernel's name, by default the variant's.
        since: The oldest architecture that it supports.
        run: A function that queues the variant's work, if that is not only kernels (see Variant).
        waits: Whether `run` waits for the device.
        rounding: Replaces the family's rounding bound.
        problems: The kind of problems that cudakit.testing draws for it, by default any.
        tune: The values to try for keywords of the function, by name.

    Returns:
        A decorator that returns the Variant.
    """

    def declare(function: Callable[..., Launch | tuple[Launch, ...] | str]) -> Variant[Any]:
        title = name or function.__name__.strip("_")
        return Variant(
            title,
            function,
            _located(source, function),
            idea or _first_line(function),
            entry or title,
            since,
            run,
            waits,
            rounding,
            problems,
            tune or {},
        )

    return declare


def _located(source: str, function: Callable[..., Any]) -> str:
    """Return the absolute path of the file if it is next to the function's file; otherwise `source` itself if it is
    found elsewhere."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    beside = Path(code.co_filename).parent / source if code is not None else Path(source)
    if not beside.is_file():
        try:
            headers.find_source(source)
        except FileNotFoundError:  # compiling it will raise an error with the expected path
            return str(beside.resolve())
        return source
    return str(beside.resolve())


def _first_line(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    return re.split(r"\n\s*\n", text)[0].replace("\n", " ").rstrip(".")


def _arch_number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


def cpp_bool(value: bool) -> str:
    """Return a bool as a C++ template argument."""
    return "true" if value else "false"


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def alignment(array: Any) -> int:
    """Return the alignment of the array's first element, in bytes, at most 16."""
    return min(array.pointer & -array.pointer, 16) or 16


def scratch_bytes(launches: Sequence[Launch]) -> int:
    """Return the bytes of scratch memory that the launches of one run share, rounded up to a multiple of 16."""
    return -(-max((each.scratch for each in launches), default=0) // 16) * 16


def several(value: Any) -> tuple[Any, ...]:
    """Return a tuple of arrays unchanged, and one array as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def one_or_all(arrays: tuple[Any, ...]) -> Any:
    """Return the only array of a tuple, or the tuple if it has several. The inverse of `several`."""
    return arrays[0] if len(arrays) == 1 else arrays
