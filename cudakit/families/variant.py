"""Declarations: the launch of a kernel (Config), a kernel variant, a family of variants.

A variant is one declaration: its rung in the ladder, the idea it adds, its source and entry, and how it is launched
for a problem. Tests, benches, NVTX names, profiler filters and README rows follow from these declarations; nothing
about a kernel is written a second time.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from cudakit import names, nvtx
from cudakit.compare import Comparison, within
from cudakit.errors import UnsupportedVariant
from cudakit.families.scalars import Scalar
from cudakit.launch.strides import declared

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.launch.kernel import Kernel
    from cudakit.memory.array import DeviceArray

P = TypeVar("P")  # a family's problem: shapes, strides in elements, dtype, alignment; frozen and hashable
Dim = int | tuple[int, ...]


# The most blocks of a grid along x, and along y and z.
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65535

# The element types of kernels that take several.
CPP = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}

# The arguments of a kernel: (problem, inputs, output, scratch); scratch is None if a variant needs none.
Arguments = Callable[[Any, Sequence[Any], Any, Any], tuple[Any, ...]]

# The work of a rung that is more than kernels: (device, kernel of a Config, problem, inputs, output, stream).
Run = Callable[[Any, Callable[["Config"], Any], Any, Sequence[Any], Any, Any], None]


@dataclass(frozen=True)
class Config:
    """How one kernel is launched for one problem: entry (a C++ name or name expression), blocks, threads, bytes of
    dynamic shared memory, blocks per cluster. `arguments` is for a kernel whose parameters are not its family's.
    `cooperative`: all blocks are resident at once and may synchronise. `source`: the kernel's file, if it is not the
    variant's."""

    entry: str
    grid: Dim
    block: Dim
    shared: int = 0
    cluster: Dim | None = None
    arguments: Arguments | None = None
    cooperative: bool = False
    source: str | None = None

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


@dataclass(frozen=True)
class Variant(Generic[P]):
    """One rung of a family's ladder.

    `configure(problem)` returns the launch, or several that follow each other on the stream; `supports(problem)` is
    True or a sentence that says why not. `source` is a path below `kernels/`. `since` is the first architecture it runs
    on. `scratch(problem)` is the bytes of device memory (not cleared) that its kernels share for one run. `run` is for
    a rung that is more than kernels, with a library's calls between them: it queues all of its work itself, and there
    are no configs; `waits` means that it waits for the device meanwhile. `rounding` replaces the family's, if its
    arithmetic differs. `problems` is the kind of problems that cudakit.testing draws for a variant that supports
    few others; any unless given.
    """

    rung: int
    name: str
    idea: str
    source: str
    configure: Callable[[P], Config | tuple[Config, ...]]
    supports: Callable[[P], bool | str] = field(default=lambda problem: True)
    since: str = "sm_75"
    scratch: Callable[[P], int] = field(default=lambda problem: 0)
    run: Run | None = None
    waits: bool = False
    rounding: Callable[..., Any] | None = None
    problems: str = ""

    def configs(self, problem: P) -> tuple[Config, ...]:
        """Its launches for `problem`, in order."""
        configs = self.configure(problem)
        return configs if isinstance(configs, tuple) else (configs,)

    def refusal(self, problem: P, arch: str) -> str | None:
        """Why this variant cannot take `problem` on `arch` ("sm_90"), or None if it can."""
        if _arch_number(arch) < _arch_number(self.since):
            return f"it needs {self.since} or later, the device is {arch}"
        answer = self.supports(problem)
        return None if answer is True else str(answer)


def _none() -> None:
    return None


class Recent(threading.local):
    """One thread's last calls of a family: weak references to guards of resolved calls, which their devices keep.

    last(): the guard of the very last one, or None. by_shape: those of others, by the shape of the first input.
    """

    MOST = 256

    def __init__(self) -> None:
        self.last: Callable[[], Any] = _none
        self.by_shape: dict[Any, weakref.ref[Any]] = {}

    def keep(self, shape: Any, guard: Any) -> None:
        """Have `guard` tried first at the next call."""
        if len(self.by_shape) >= self.MOST:
            self.by_shape.clear()
        self.last = self.by_shape[shape] = weakref.ref(guard)

    def of_shape(self, array: Any) -> Any:
        """The guard of the last call with a first input of this shape, which becomes `last`; None if it is `last`."""
        try:
            found = self.by_shape.get(array.shape)
        except (AttributeError, TypeError):  # not an array: the rules say so
            return None
        if found is None or found is self.last:
            return None
        self.last = found
        return found()


@dataclass(frozen=True)
class Family(Generic[P]):
    """A ladder of variants that compute the same thing, with its float64 reference.

    The functions of a family that has options (a scale, a mask, a causal limit) take them by name after the arguments
    listed here; `modes` are the settings of them that benches and checks go through.

    - `make_inputs(shape, dtype, rng)`: new random host arrays for one problem.
    - `output_like(inputs)`: shape and dtype of the output.
    - `reference(inputs)`: the output in float64 (numpy, on the host), or in whole numbers.
    - `rounding(inputs, exact)`: how far rounding may move each element of a correct result from `exact`, which is the
      reference, before it is rounded to its dtype; float64, broadcasts to the output. 0 if that is the only rounding.
    - `baseline(inputs)`: a numpy user's code, in the same precision: the CPU row of a table.
    - `problem(inputs, output)`: the argument of the variants' `supports` and `configure`; raises ValueError for arrays
      that the family refuses.
    - `arguments(problem, inputs, output, scratch)`: the kernel's arguments, if its Config has none of its own.
    - `traffic(problem)`: the fewest bytes that must move through device memory.
    - `flops(problem)`: operations, or 0 if bandwidth is the only measure.
    - `choose(problem, arch)`: the name of the variant that "auto" means.
    - `empty(problem)`: whether there is nothing to launch.
    - `instead(dtype)`: the family that the front function takes for inputs of a dtype, if it is another one.
    - `recent`: the last calls, which the front door tries first.
    - `scalars`: the options that are plain numbers among the kernels' arguments, by name.
    - `shapes`: default shapes by device kind ("gpu", "sim"); "gpu once": those of a profile, if it should take fewer;
      "sweep" and "sim sweep": the whole list.
    - `dtypes`: the dtypes of inputs that it takes, the usual one first.
    - `modes`: named options; the unnamed mode is the usual one.
    - `ceiling`: the row that is 100 %: "copy" (a copy of the same bytes) or the name of a peer's row ("cublas").
    - `read_shape(shape)`: the full shape for one that a user wrote short (1024 for a square product).
    """

    name: str
    variants: tuple[Variant[P], ...]
    make_inputs: Callable[..., tuple[np.ndarray, ...]]
    output_like: Callable[..., tuple[tuple[int, ...], np.dtype[Any]]]
    reference: Callable[..., np.ndarray]
    rounding: Callable[..., Any]
    baseline: Callable[..., np.ndarray]
    problem: Callable[..., P]
    arguments: Arguments
    traffic: Callable[[P], int]
    flops: Callable[[P], int]
    choose: Callable[[P, str], str]
    empty: Callable[[P], bool]
    shapes: dict[str, tuple[tuple[int, ...], ...]]
    dtypes: tuple[str, ...] = ("float32",)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    instead: Callable[[str], Family[Any] | None] = field(default=lambda dtype: None)
    recent: Recent = field(default_factory=Recent, init=False, compare=False, repr=False)
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    ceiling: str = "copy"
    read_shape: Callable[[tuple[int, ...]], tuple[int, ...]] = field(default=lambda shape: shape)

    def __iter__(self) -> Iterator[Variant[P]]:
        return iter(self.variants)

    def variant(self, name: str) -> Variant[P]:
        """The variant called `name`."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = [v.name for v in self.variants]
        meant = names.hint(name, known)
        raise ValueError(f"{self.name} has no variant {name!r}; it has auto, {', '.join(known)}{meant}")

    def pick(self, name: str, problem: P, arch: str) -> Variant[P]:
        """The variant called `name`, or for "auto" the best that supports `problem` on `arch`.

        Raises UnsupportedVariant with the reason if it cannot take the problem.
        """
        variant = self.variant(self.choose(problem, arch) if name == "auto" else name)
        self._expect(variant, problem, arch)
        return variant

    def judge(
        self, result: np.ndarray, inputs: Sequence[np.ndarray], variant: Variant[P] | None = None, **options: Any
    ) -> Comparison:
        """Compares a result on the host, of `variant` if given, with the reference."""
        exact = self.reference(inputs, **options)
        return within(result, exact, self.rounding_of(variant)(inputs, exact, **options))

    def rounding_of(self, variant: Variant[P] | None) -> Callable[..., Any]:
        """The function `rounding` that results of `variant` are judged by."""
        return self.rounding if variant is None or variant.rounding is None else variant.rounding

    def kernel(self, device: Device, variant: Variant[P], config: Config) -> Kernel:
        """The compiled kernel of `variant`, kept on the device after the first call."""
        source = config.source or variant.source
        key = (source, config.entry)
        kernel: Kernel | None = device.kept.get(key)
        if kernel is None:
            expression = "<" in config.entry
            module = device.compile(source, names=(config.entry,) if expression else ())
            kernel = device.kept[key] = module[config.entry]
        return kernel

    def launch(
        self,
        device: Device,
        variant: Variant[P],
        inputs: Sequence[DeviceArray],
        output: DeviceArray,
        stream: Stream,
        problem: P | None = None,
        **options: Any,
    ) -> None:
        """Launches `variant` on the arrays, in its own NVTX range `family.variant`; launches nothing if empty.

        problem: theirs, if the caller has it already and has checked that the variant supports it.
        """
        if problem is None:
            problem = self.problem(inputs, output, **options)
            self._expect(variant, problem, device.arch)
        if self.empty(problem):
            return
        if variant.run is not None:
            kernel_of = functools.partial(self.kernel, device, variant)
            with self.range(variant):
                variant.run(device, kernel_of, problem, inputs, output, stream)
            return
        configs = variant.configs(problem)
        kernels = [self.kernel(device, variant, config) for config in configs]
        scratch = self.scratch(device, variant, problem, stream)
        try:
            with self.range(variant):
                for kernel, config in zip(kernels, configs, strict=True):
                    args = (config.arguments or self.arguments)(problem, inputs, output, scratch)
                    kernel.launch(stream, **config.keywords(args))
        finally:
            if scratch is not None:
                scratch.close()  # in stream order: after the kernels

    def scratch(self, device: Device, variant: Variant[P], problem: P, stream: Stream) -> DeviceArray | None:
        """The scratch memory that `variant` needs on `problem`, or None if it needs none."""
        count = variant.scratch(problem)
        return device.empty((count,), np.uint8, stream=stream) if count else None

    def _expect(self, variant: Variant[P], problem: P, arch: str) -> None:
        refusal = variant.refusal(problem, arch)
        if refusal is not None:
            raise UnsupportedVariant(f"{self.name}/{variant.name} cannot take {problem}: {refusal}")

    def range(self, variant: Variant[P]) -> AbstractContextManager[Any]:
        """The NVTX range of a variant's launches."""
        return nvtx.range(f"{self.name}.{variant.name}")


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
