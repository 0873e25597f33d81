"""Element-wise addition: c = a + b over contiguous float32 arrays of one shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.compare import in_range
from cudakit.families import checks
from cudakit.families.variant import MAX_GRID_YZ, Config, Family, Variant, alignment, ceil_div

BLOCK_3D = (16, 8, 8)
# Enough blocks of 256 to fill the largest chip we know (132 SMs x 8 blocks) twice; more only adds scheduling.
GRID_STRIDE_BLOCKS = 2112
# The L2 of the largest chip we know (an H200's 60 MiB; a B200 has 126 MB).
L2_BYTES = 64 << 20


@dataclass(frozen=True)
class AddProblem:
    """The shape that is added, slowest axis first, and whether all three arrays start on 16 bytes."""

    shape: tuple[int, ...]
    aligned: bool

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def volume(self) -> tuple[int, int, int]:
        """(nx, ny, nz), x fastest: axes before the last two fold into z."""
        padded = (1, 1, *self.shape)
        return padded[-1], padded[-2], math.prod(padded[:-2])

    def __str__(self) -> str:
        return f"vector add of {'x'.join(map(str, self.shape))}"


def _flat(entry: str, per_thread: int, block: int) -> Any:
    def configure(problem: AddProblem) -> Config:
        return Config(entry, ceil_div(ceil_div(problem.n, per_thread), block), block)

    return configure


def _volume(problem: AddProblem) -> Config:
    blocks = [ceil_div(n, b) for n, b in zip(problem.volume, BLOCK_3D, strict=True)]
    grid = blocks[0], min(blocks[1], MAX_GRID_YZ), min(blocks[2], MAX_GRID_YZ)
    return Config("vector_add_3d", grid, BLOCK_3D, arguments=_volume_arguments)


def _grid_stride(problem: AddProblem) -> Config:
    return Config("vector_add_grid_stride", min(ceil_div(problem.n, 256), GRID_STRIDE_BLOCKS), 256)


def _aligned(problem: AddProblem) -> bool | str:
    return problem.aligned or "float4 access needs all three arrays to start on a 16-byte boundary"


def _arguments(problem: AddProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, problem.n)


def _volume_arguments(problem: AddProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *problem.volume)


VARIANTS: tuple[Variant[AddProblem], ...] = (
    Variant(
        1,
        "vector_add",
        "one thread an element, blocks of 1024",
        "vector_add/01_vector_add.cu",
        _flat("vector_add", 1, 1024),
    ),
    Variant(
        2,
        "vector_add_3d",
        "a volume in blocks of 16x8x8",
        "vector_add/02_vector_add_3d.cu",
        _volume,
    ),
    Variant(
        3,
        "vector_add_grid_stride",
        "a fixed grid strides over the vector",
        "vector_add/03_vector_add_grid_stride.cu",
        _grid_stride,
    ),
    Variant(
        4,
        "vector_add_vec4",
        "16 bytes a lane a load",
        "vector_add/04_vector_add_vec4.cu",
        _flat("vector_add_vec4", 4, 256),
        _aligned,
        problems="aligned",
    ),
    Variant(
        5,
        "vector_add_streamed",
        "marked as not to be kept in the L2",
        "vector_add/05_vector_add_streamed.cu",
        _flat("vector_add_streamed", 4, 1024),
        _aligned,
        problems="aligned",
    ),
)


def problem(inputs: Sequence[Any], output: Any) -> AddProblem:
    """The problem of a + b = output; ValueError says what it refuses."""
    a, b = inputs
    arrays = (("a", a), ("b", b), ("out", output))
    checks.expect_float32("vector add", arrays)
    checks.expect_one_shape("vector add", arrays)
    for name, array in arrays:
        if not array.is_contiguous:
            raise ValueError(f"vector add takes contiguous arrays, {name} has strides {tuple(array.strides)} bytes")
    checks.expect_output("vector add", output, arrays[:2])
    shape = tuple(a.shape) or (1,)
    return AddProblem(shape, all(alignment(array) == 16 for array in (a, b, output)))


def make_inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(shape, dtype=np.float32))


def reference(inputs: Sequence[np.ndarray]) -> Any:
    """a + b in float64; infinite where the sum is past float32's range, as a float32 sum must be."""
    with np.errstate(over="ignore", invalid="ignore"):
        return in_range(np.add(inputs[0], inputs[1], dtype=np.float64), np.dtype(np.float32))


def baseline(inputs: Sequence[np.ndarray]) -> Any:
    """a + b in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.add(inputs[0], inputs[1])


def streams(elements: int) -> bool:
    """Whether a, b and c of so many elements are too large for the L2, so that keeping them there is no use."""
    return 12 * elements > L2_BYTES


def choose(problem: AddProblem, arch: str) -> str:
    """The rung that "auto" means: the fastest on an H200 among those that support the problem."""
    if not problem.aligned:
        return "vector_add"
    return "vector_add_streamed" if streams(problem.n) else "vector_add_vec4"


FAMILY: Family[AddProblem] = Family(
    name="vector_add",
    variants=VARIANTS,
    make_inputs=make_inputs,
    output_like=lambda inputs: (tuple(inputs[0].shape), np.dtype(np.float32)),
    reference=reference,
    rounding=lambda inputs, exact: 0.0,
    baseline=baseline,
    problem=problem,
    arguments=_arguments,
    traffic=lambda problem: 12 * problem.n,
    flops=lambda problem: problem.n,
    choose=choose,
    empty=lambda problem: problem.n == 0,
    shapes={
        "gpu": ((10_000_000,), (200, 250, 200)),
        "sim": ((100_003,), (30, 20, 50)),
        "sim sweep": ((1023,), (1 << 14,), (1 << 16,)),
        "sweep": ((1 << 16,), (1 << 20,), (10_000_000,), (1 << 26,), (1 << 28,)),
    },
)
