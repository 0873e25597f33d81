"""Declarations: an array among a kernel's arguments (Slot), the launch of a kernel (Launch), a variant of a family.

A variant is one declaration: the idea it adds, its source and entry, and the function that launches it for a problem.
Tests, benches, tuning, NVTX names, profiler filters and tables follow from these declarations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from cudakit import names
from cudakit.compile import headers
from cudakit.errors import CudakitError, LaunchError, UnsupportedVariant
from cudakit.launch.strides import declared
from cudakit.memory import array as memory
from cudakit.tracebacks import line_in

P = TypeVar("P")  # a family's problem: shapes, strides in elements, dtype, alignment; frozen and hashable
Dim = int | tuple[int, ...]

# The most blocks of a grid along x, and along y and z.
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65535

# The element types of kernels that take several.
CPP = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}

# The work of a variant that is more than kernels: (device, kernel of a Launch, problem, inputs, output, stream).
Run = Callable[[Any, Callable[["Launch"], Any], Any, Sequence[Any], Any, Any], None]


@dataclass(frozen=True)
class Slot:
    """An array among a kernel's arguments, which stands for it until the launch.

    role: the number of an input; -1 for the first output, -2 for the second; None for the scratch memory. offset: bytes
    from its first element on; elements: the dtype that its bytes are taken as, its own if "". An array with an offset,
    or with elements of another size, must be contiguous.
    """

    role: int | None
    offset: int = 0
    elements: str = ""

    def at(self, offset: int = 0, dtype: Any = None) -> Slot:
        """The part of the array from `offset` bytes on, as elements of `dtype` (its own unless given)."""
        name = self.elements if dtype is None else memory.as_dtype(dtype).name
        return Slot(self.role, self.offset + offset, name)

    def place(self, inputs: int, outputs: int) -> int:
        """Its place in (*inputs, *outputs, scratch)."""
        if self.role is None:
            return inputs + outputs
        return self.role if self.role >= 0 else inputs - 1 - self.role

    def among(self, arrays: Sequence[Any], inputs: int, outputs: int) -> Any:
        """The array among (*inputs, *outputs, scratch) that it stands for."""
        array = arrays[self.place(inputs, outputs)]
        if not self.offset and not self.elements:
            return array
        own = memory.as_dtype(self.elements) if self.elements else array.dtype
        if not self.offset and own.itemsize == array.itemsize:
            return array.view(own)
        return array.reshape(-1).view(np.uint8)[self.offset :].view(own)


#: Every input by number, the only output, and the scratch memory, as arguments of kernels.
IN = tuple(Slot(number) for number in range(8))
OUT = Slot(-1)
SCRATCH = Slot(None)


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched for one problem.

    grid, block: an int, or up to three. args: the kernel's arguments in order, arrays as Slots (`p.x` of a Problem, or
    IN, OUT and SCRATCH); None: the family's `arguments`, or, if it has none, each parameter by its name in the problem.
    shared: bytes of dynamic shared memory. entry: a C++ name or name expression ("k<4>"), the variant's unless given.
    scratch: bytes of device memory (not cleared) that SCRATCH stands for; the launches of one variant share the most of
    them. defines: macros that the source is compiled with. cluster: blocks per cluster. cooperative: all blocks are
    resident at once and may synchronise. source: the kernel's file, if it is not the variant's.
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
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.defines, Mapping):
            object.__setattr__(self, "defines", tuple(self.defines.items()))

    def keywords(self, args: Sequence[Any]) -> dict[str, Any]:
        """The keywords of Kernel.launch and Kernel.prepare for this launch with the kernel arguments `args`, of which
        arrays may have any strides: the family's `problem` refuses those that its kernels do not take."""
        return {
            "grid": self.grid,
            "block": self.block,
            "shared": self.shared,
            "cluster": self.cluster,
            "cooperative": self.cooperative,
            "args": declared(args),
        }

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(np.prod(self.block))


@dataclass(frozen=True, eq=False)
class Variant(Generic[P]):
    """One rung of a family's ladder; `variant` makes one of a function.

    - `launch(problem, **configuration)`: the Launch, or a tuple of several that follow each other on the stream, or a
      sentence that says why the variant does not take the problem.
    - `source`: its file, by an absolute path or by one below `kernels/`. `entry`: the kernel that its launches name,
      unless they name another.
    - `since`: the first architecture that it runs on.
    - `run`: for a variant that is more than kernels, with a library's calls between them: it queues all of its work
      itself, and its `launch` returns (), or the reason. `waits`: it waits for the device meanwhile.
    - `rounding`: replaces the family's, if its arithmetic differs.
    - `problems`: the kind of problems that cudakit.testing draws for a variant that supports few others: "aligned" for
      one that loads vectors (see cudakit.testing.declared_cases), or one of the family's own strategy; any unless
      given.
    - `tune`: the values that keywords of `launch` may have; `configuration`: those that differ from its defaults.
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
        if not self.configuration:  # one that has a configuration was made of one that has not
            _expect_tunable(self)

    def answer(self, problem: P) -> tuple[Launch, ...] | str:
        """Its launches for `problem` in order, or the sentence that says why it does not take it."""
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
            "or a sentence that says why it does not take the problem"
        )

    def launches(self, problem: P) -> tuple[Launch, ...]:
        """Its launches for `problem`, in order. Raises UnsupportedVariant with the reason if it does not take it."""
        made = self.answer(problem)
        if isinstance(made, str):
            raise UnsupportedVariant(f"{self.name} cannot take {problem}: {made}")
        return made

    def refusal(self, problem: P, arch: str) -> str | None:
        """Why this variant cannot take `problem` on `arch` ("sm_90"), or None if it can."""
        if _arch_number(arch) < _arch_number(self.since):
            return f"it needs {self.since} or later, the device is {arch}"
        made = self.answer(problem)
        return made if isinstance(made, str) else None

    def configured(self, **configuration: Any) -> Variant[P]:
        """The variant at other values of what it is tuned by. Raises ValueError for a name that is not one of them."""
        unknown = [name for name in configuration if name not in self.tune]
        if unknown:
            known = ", ".join(self.tune) or "nothing"
            raise ValueError(
                f"variant {self.name} is not tuned by {unknown[0]!r}, but by {known}{names.hint(unknown[0], self.tune)}"
            )
        return replace(self, configuration={**self.configuration, **configuration})

    @property
    def usual(self) -> dict[str, Any]:
        """The configuration that it has, defaults included."""
        parameters = inspect.signature(self.launch).parameters
        return {name: self.configuration.get(name, parameters[name].default) for name in self.tune}

    def entry_of(self, launch: Launch) -> tuple[str, str, tuple[tuple[str, Any], ...]]:
        """The source, entry and macros of one of its launches."""
        return launch.source or self.source, launch.entry or self.entry, tuple(dict(launch.defines).items())


def _expect_tunable(variant: Variant[Any]) -> None:
    """Raise TypeError if a name that the variant is tuned by is not a keyword of its function, and ValueError if the
    keyword's default is not one of the values."""
    parameters = inspect.signature(variant.launch).parameters if variant.tune else {}
    for name, values in variant.tune.items():
        if name not in parameters or parameters[name].default is inspect.Parameter.empty:
            raise TypeError(f"variant {variant.name} is tuned by {name!r}: its function needs a keyword {name}=")
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
    """Declares the function under it as the launch of a variant (see Variant for the parameters).

    The function takes a problem and returns a Launch, a tuple of several, or a sentence that says why the variant does
    not take the problem. The variant's name is the function's, its entry the same, its idea the first line of the
    docstring, unless given. source: the `.cu` file, looked for next to the function's file, then in the working
    directory, then among cudakit's kernels.
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
    """The absolute path of a file next to the function's own; else `source` itself if it is found elsewhere."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    beside = Path(code.co_filename).parent / source if code is not None else Path(source)
    if not beside.is_file():
        try:
            headers.find_source(source)
        except FileNotFoundError:  # the error of its compile names the place where it is expected
            return str(beside.resolve())
        return source
    return str(beside.resolve())


def _first_line(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    return re.split(r"\n\s*\n", text)[0].replace("\n", " ").rstrip(".")


def _arch_number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


def cpp_bool(value: bool) -> str:
    """`value` as a template argument."""
    return "true" if value else "false"


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def alignment(array: Any) -> int:
    """16 if the first element is on a 16-byte boundary, else the item's own size (at most 16)."""
    return 16 if array.pointer % 16 == 0 else min(array.itemsize, 16)


def scratch_bytes(launches: Sequence[Launch]) -> int:
    """Bytes of the scratch memory that the launches of one run share, in whole pieces of 16 bytes."""
    return -(-max((each.scratch for each in launches), default=0) // 16) * 16


def several(value: Any) -> tuple[Any, ...]:
    """The arrays of one output or of several."""
    return value if isinstance(value, tuple) else (value,)


def one_or_all(arrays: tuple[Any, ...]) -> Any:
    """The only array of a tuple, or the tuple: how callers pass one output or several. The inverse of `several`."""
    return arrays[0] if len(arrays) == 1 else arrays
