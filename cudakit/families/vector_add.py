"""Element-wise addition: c = a + b over contiguous float32 arrays of one shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import IN, MAX_GRID_YZ, OUT, Family, Launch, alignment, ceil_div, checks, variant

BLOCK_3D = (16, 8, 8)
# Enough blocks of 256 threads to fill an H200 (132 SMs x 8 blocks) twice; more blocks only add scheduling overhead.
GRID_STRIDE_BLOCKS = 2112
# About the L2 of an H200 (60 MiB); a B200 has 126 MB.
L2_BYTES = 64 << 20

UNALIGNED = "float4 access needs all three arrays to start on a 16-byte boundary"


@dataclass(frozen=True)
class AddProblem:
    """The shape, slowest axis first, and whether all three arrays start on a 16-byte boundary."""

    shape: tuple[int, ...]
    aligned: bool

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def volume(self) -> tuple[int, int, int]:
        """(nx, ny, nz), x fastest; all axes before the last two are merged into z."""
        padded = (1, 1, *self.shape)
        return padded[-1], padded[-2], math.prod(padded[:-2])

    def __str__(self) -> str:
        return f"vector add of {'x'.join(map(str, self.shape))}"


@variant("vector_add/01_vector_add.cu")
def vector_add(problem: AddProblem) -> Launch:
    """one thread per element, blocks of 1024"""
    return Launch(ceil_div(problem.n, 1024), 1024)


@variant("vector_add/02_vector_add_3d.cu")
def vector_add_3d(problem: AddProblem) -> Launch:
    """3-D grid, blocks of 16x8x8"""
    blocks = [ceil_div(n, b) for n, b in zip(problem.volume, BLOCK_3D, strict=True)]
    grid = blocks[0], min(blocks[1], MAX_GRID_YZ), min(blocks[2], MAX_GRID_YZ)
    return Launch(grid, BLOCK_3D, (*IN[:2], OUT, *problem.volume))


@variant("vector_add/03_vector_add_grid_stride.cu")
def vector_add_grid_stride(problem: AddProblem) -> Launch:
    """grid-stride loop, a fixed number of blocks"""
    return Launch(min(ceil_div(problem.n, 256), GRID_STRIDE_BLOCKS), 256)


@variant("vector_add/04_vector_add_vec4.cu", problems="aligned")
def vector_add_vec4(problem: AddProblem) -> Launch | str:
    """16-byte loads and stores per lane"""
    return Launch(ceil_div(ceil_div(problem.n, 4), 256), 256) if problem.aligned else UNALIGNED


@variant("vector_add/05_vector_add_streamed.cu", problems="aligned")
def vector_add_streamed(problem: AddProblem) -> Launch | str:
    """loads and stores marked evict-first in L2"""
    return Launch(ceil_div(ceil_div(problem.n, 4), 1024), 1024) if problem.aligned else UNALIGNED


def problem(inputs: Sequence[Any], output: Any) -> AddProblem:
    """Return the problem of output = a + b. Raise ValueError for unsupported arrays."""
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


def streams(elements: int) -> bool:
    """Return whether a, b and c of this many elements are too large to stay in the L2."""
    return 12 * elements > L2_BYTES


def choose(problem: AddProblem, arch: str) -> str:
    """Return the variant for "auto": the fastest on an H200 among those that support the problem."""
    if not problem.aligned:
        return "vector_add"
    return "vector_add_streamed" if streams(problem.n) else "vector_add_vec4"


FAMILY: Family[AddProblem] = Family(
    name="vector_add",
    reference=lambda a, b: a + b,
    variants=(vector_add, vector_add_3d, vector_add_grid_stride, vector_add_vec4, vector_add_streamed),
    inputs={"a": "float32", "b": "float32"},
    outputs=lambda a, b: (tuple(a.shape), np.dtype(np.float32)),
    problem=problem,
    arguments=lambda problem: (*IN[:2], OUT, problem.n),
    rounding=0.0,
    flops=lambda problem: problem.n,
    choose=choose,
    shapes={
        "gpu": ((10_000_000,), (200, 250, 200)),
        "sim": ((100_003,), (30, 20, 50)),
        "sim sweep": ((1023,), (1 << 14,), (1 << 16,)),
        "sweep": ((1 << 16,), (1 << 20,), (10_000_000,), (1 << 26,), (1 << 28,)),
    },
    problems="cudakit.testing.vector_add:vector_add_cases",
)
