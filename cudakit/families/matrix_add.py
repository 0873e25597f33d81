"""Matrix addition: C = A + B for one (rows, cols) matrix or a batch of them, float32, any strides."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import IN, MAX_GRID_YZ, OUT, Dim, Family, Launch, alignment, ceil_div, checks, variant

TILE = 16


@dataclass(frozen=True)
class MatrixProblem:
    """Extents (matrices, rows, cols); strides in that order, in elements, of both inputs and the output; `vectors`,
    whether all three are contiguous and start on a 16-byte boundary."""

    matrices: int
    rows: int
    cols: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    vectors: bool

    @property
    def n(self) -> int:
        return self.matrices * self.rows * self.cols

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks along x and y: enough to cover the matrix, unless y is at its limit."""
        return ceil_div(self.cols, TILE), min(ceil_div(self.rows, TILE), MAX_GRID_YZ)

    def __str__(self) -> str:
        return f"sum of {self.matrices} matrices {self.rows}x{self.cols}"


_BATCH = "one matrix per launch supported; use 'batched', which has the batch on the grid's z"


def _one_matrix(problem: MatrixProblem, grid: Dim) -> Launch | str:
    return Launch(grid, (TILE, TILE)) if problem.matrices == 1 else _BATCH


@variant("matrix_add/01_one_block.cu", problems="one")
def one_block(problem: MatrixProblem) -> Launch | str:
    """one block of 16x16 threads strides over the matrix"""
    return _one_matrix(problem, 1)


@variant("matrix_add/02_many_blocks.cu", problems="one")
def many_blocks(problem: MatrixProblem) -> Launch | str:
    """one 16x16 tile per block, the grid rounded up"""
    return _one_matrix(problem, problem.tiles)


@variant("matrix_add/03_batched.cu")
def batched(problem: MatrixProblem) -> Launch:
    """a batch in one launch, the grid's z indexes matrices"""
    p = problem
    grid = *p.tiles, min(p.matrices, MAX_GRID_YZ)
    return Launch(grid, (TILE, TILE), (*IN[:2], OUT, *p.a, *p.b, *p.c, p.matrices, p.rows, p.cols))


@variant("vector_add/04_vector_add_vec4.cu", entry="vector_add_vec4", problems="aligned")
def flat_vec4(problem: MatrixProblem) -> Launch | str:
    """contiguous matrices as one vector, 16 bytes per lane"""
    if not problem.vectors:
        return "float4 access needs contiguous arrays that start on a 16-byte boundary"
    return Launch(ceil_div(ceil_div(problem.n, 4), 256), 256, (*IN[:2], OUT, problem.n))


def problem(inputs: Sequence[Any], output: Any) -> MatrixProblem:
    """Return the problem of output = a + b. Raise ValueError for unsupported arrays."""
    arrays = (("a", inputs[0]), ("b", inputs[1]), ("out", output))
    shape = tuple(inputs[0].shape)
    checks.expect_float32("matrix add", arrays)
    checks.expect_one_shape("matrix add", arrays)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"matrix add takes (rows, cols) or (matrices, rows, cols), got shape {shape}: reshape it first"
        )
    checks.expect_output("matrix add", output, arrays[:2])
    strides = [(0,) * (3 - len(shape)) + array.strides_elements for _, array in arrays]
    vectors = all(array.is_contiguous and alignment(array) == 16 for _, array in arrays)
    matrices, rows, cols = (1, *shape) if len(shape) == 2 else shape
    return MatrixProblem(matrices, rows, cols, strides[0], strides[1], strides[2], vectors)


FAMILY: Family[MatrixProblem] = Family(
    name="matrix_add",
    reference=lambda a, b: a + b,
    variants=(one_block, many_blocks, batched, flat_vec4),
    inputs={"a": "float32", "b": "float32"},
    outputs=lambda a, b: (tuple(a.shape), np.dtype(np.float32)),
    problem=problem,
    arguments=lambda p: (*IN[:2], OUT, *p.a[1:], *p.b[1:], *p.c[1:], p.rows, p.cols),
    rounding=0.0,
    flops=lambda problem: problem.n,
    choose=lambda problem, arch: "flat_vec4" if problem.vectors else "batched",
    shapes={
        "gpu": ((256, 256), (4096, 4096), (1000, 256, 256)),
        "sim": ((100, 100), (20, 33, 64)),
        "sim sweep": ((16, 16), (100, 100), (256, 256), (50, 32, 32)),
        "sweep": ((100, 100), (256, 256), (1024, 1024), (4096, 4096), (1000, 256, 256), (4096, 256, 256)),
    },
    read_shape=lambda shape: shape * 2 if len(shape) == 1 else shape,
    problems="cudakit.testing.matrix_add:matrix_add_cases",
)
FAMILY.call = lambda inputs, out, variant, stream: functools.partial(
    matrix_add, inputs[0], inputs[1], out, variant, stream
)


def matrix_add(a: Any, b: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return a + b for float32 matrices or batches of matrices, for arrays of cudakit, torch or CuPy.

    Does not wait for the device.

    Args:
        a: Shape (rows, cols) or (matrices, rows, cols), any strides.
        b: The shape of `a`, any strides.
        out: The output, which may be a or b. By default a new array.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return FAMILY(a, b, out=out, variant=variant, stream=stream)
