"""What a kernel variant and a family of variants declare.

A variant is one declaration: its rung in the ladder, the idea it adds, its source and entry, and how it is launched
for a problem. Tests, benches, NVTX names, profiler filters and README rows are made from these declarations; nothing
about a kernel is written down a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from cudakit import nvtx
from cudakit.errors import UnsupportedVariant

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.kernel import Kernel
    from cudakit.memory import DeviceArray
    from cudakit.stream import Stream

P = TypeVar("P")  # a family's problem: shapes, strides in elements, dtype, alignment; frozen and hashable
Dim = int | tuple[int, ...]


@dataclass(frozen=True)
class Config:
    """How one variant is launched for one problem: entry (a C++ name or name expression), blocks, threads, bytes of
    dynamic shared memory."""

    entry: str
    grid: Dim
    block: Dim
    shared: int = 0


@dataclass(frozen=True)
class Variant(Generic[P]):
    """One rung of a family's ladder.

    `configure(problem)` gives the launch; `supports(problem)` is True or a sentence that says why not. `source` is a
    path below `kernels/`. `since` is the first architecture it runs on. `arguments` is for a kernel whose parameters
    are not the family's.
    """

    rung: int
    name: str
    idea: str
    source: str
    configure: Callable[[P], Config]
    supports: Callable[[P], bool | str] = field(default=lambda problem: True)
    since: str = "sm_75"
    arguments: Callable[[P, Sequence[Any], Any], tuple[Any, ...]] | None = None

    def refusal(self, problem: P, arch: str) -> str | None:
        """Why this variant cannot take `problem` on `arch` ("sm_90"), or None where it can."""
        if _arch_number(arch) < _arch_number(self.since):
            return f"it needs {self.since} or later, the device is {arch}"
        answer = self.supports(problem)
        return None if answer is True else str(answer)


@dataclass(frozen=True)
class Family(Generic[P]):
    """A ladder of variants that compute the same thing, with its float64 reference.

    - `make_inputs(shape, dtype, rng)`: host arrays of one problem, drawn anew.
    - `output_like(inputs)`: shape and dtype of the output.
    - `reference(inputs)`: the output in float64 (numpy, on the host).
    - `plain(inputs)`: the plain algorithm in the problem's own precision; tolerances derive from its error.
    - `baseline(inputs)`: what a numpy user would write, in the same precision: the CPU row of a table.
    - `problem(inputs, output)`: what the variants' `supports` and `configure` look at; raises ValueError for arrays the
      family refuses.
    - `arguments(problem, inputs, output)`: the kernel's arguments, where the variant has none of its own.
    - `traffic(problem)`: the fewest bytes that must move through device memory.
    - `flops(problem)`: operations, or 0 where bandwidth is the only measure.
    - `choose(problem, arch)`: the name of the variant that "auto" means.
    - `shapes`: default shapes by device kind ("gpu", "sim"), and the sweep under "sweep".
    """

    name: str
    variants: tuple[Variant[P], ...]
    make_inputs: Callable[[tuple[int, ...], np.dtype[Any], np.random.Generator], tuple[np.ndarray, ...]]
    output_like: Callable[[Sequence[Any]], tuple[tuple[int, ...], np.dtype[Any]]]
    reference: Callable[[Sequence[np.ndarray]], np.ndarray]
    plain: Callable[[Sequence[np.ndarray]], np.ndarray]
    baseline: Callable[[Sequence[np.ndarray]], np.ndarray]
    problem: Callable[[Sequence[Any], Any], P]
    arguments: Callable[[P, Sequence[Any], Any], tuple[Any, ...]]
    traffic: Callable[[P], int]
    flops: Callable[[P], int]
    choose: Callable[[P, str], str]
    empty: Callable[[P], bool]
    shapes: dict[str, tuple[tuple[int, ...], ...]]

    def __iter__(self) -> Iterator[Variant[P]]:
        return iter(self.variants)

    def variant(self, name: str) -> Variant[P]:
        """The variant called `name`."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        known = ", ".join(v.name for v in self.variants)
        raise ValueError(f"{self.name} has no variant {name!r}; it has auto, {known}")

    def pick(self, name: str, problem: P, arch: str) -> Variant[P]:
        """The variant called `name`, or for "auto" the best that supports `problem` on `arch`.

        Raises UnsupportedVariant with the reason where it cannot take the problem.
        """
        variant = self.variant(self.choose(problem, arch) if name == "auto" else name)
        self._expect(variant, problem, arch)
        return variant

    def kernel(self, device: Device, variant: Variant[P], config: Config) -> Kernel:
        """The compiled kernel of `variant`, kept on the device after the first call."""
        key = (variant.source, config.entry)
        found: Kernel | None = device.kept.get(key)
        if found is None:
            expression = "<" in config.entry
            module = device.compile(variant.source, names=(config.entry,) if expression else ())
            found = device.kept[key] = module[config.entry]
        return found

    def launch(
        self,
        device: Device,
        variant: Variant[P],
        inputs: Sequence[DeviceArray],
        output: DeviceArray,
        stream: Stream,
        problem: P | None = None,
    ) -> None:
        """Launches `variant` on the arrays, in its own NVTX range `family.variant`; launches nothing if empty.

        problem: theirs, where the caller has it already and has asked the variant whether it takes it.
        """
        if problem is None:
            problem = self.problem(inputs, output)
            self._expect(variant, problem, device.arch)
        if self.empty(problem):
            return
        config = variant.configure(problem)
        kernel = self.kernel(device, variant, config)
        with self.range(variant):
            kernel.launch(
                stream,
                grid=config.grid,
                block=config.block,
                shared=config.shared,
                args=(variant.arguments or self.arguments)(problem, inputs, output),
            )

    def _expect(self, variant: Variant[P], problem: P, arch: str) -> None:
        refusal = variant.refusal(problem, arch)
        if refusal is not None:
            raise UnsupportedVariant(f"{self.name}/{variant.name} cannot take {problem}: {refusal}")

    def range(self, variant: Variant[P]) -> AbstractContextManager[Any]:
        """The NVTX range of a variant's launches."""
        return nvtx.range(f"{self.name}.{variant.name}")


def _arch_number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up, for a >= 0 and b > 0."""
    return -(-a // b)


def alignment(array: Any) -> int:
    """16 where the first element lies on a 16-byte boundary, else the item's own size (at most 16)."""
    return 16 if array.pointer % 16 == 0 else min(array.itemsize, 16)
