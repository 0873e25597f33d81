"""Matrix addition: C = A + B for one (rows, cols) matrix or a batch of them, float32, any strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import checks, front, vector_add
from cudakit.families.variant import MAX_GRID_YZ, Config, Family, Variant, alignment, ceil_div

TILE = 16


@dataclass(frozen=True)
class MatrixProblem:
    """matrices x rows x cols; strides in elements, in that order, of both inputs and the output; whether all three
    are contiguous and start on 16 bytes."""

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
        """Blocks along x and y; never less than the matrix needs, unless y is at its limit."""
        return ceil_div(self.cols, TILE), min(ceil_div(self.rows, TILE), MAX_GRID_YZ)

    def __str__(self) -> str:
        return f"sum of {self.matrices} matrices {self.rows}x{self.cols}"


def _one_matrix(problem: MatrixProblem) -> bool | str:
    return problem.matrices == 1 or "it adds one matrix a launch; take the rung that has the batch on the grid's z"


def _vectors(problem: MatrixProblem) -> bool | str:
    return problem.vectors or "float4 access needs contiguous arrays that start on a 16-byte boundary"


def _batched(problem: MatrixProblem) -> Config:
    grid = *problem.tiles, min(problem.matrices, MAX_GRID_YZ)
    return Config("batched", grid, (TILE, TILE), arguments=_batch_arguments)


def _flat(problem: MatrixProblem) -> Config:
    return Config("vector_add_vec4", ceil_div(ceil_div(problem.n, 4), 256), 256, arguments=_flat_arguments)


def _matrix_arguments(problem: MatrixProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *problem.a[1:], *problem.b[1:], *problem.c[1:], problem.rows, problem.cols)


def _batch_arguments(problem: MatrixProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *problem.a, *problem.b, *problem.c, problem.matrices, problem.rows, problem.cols)


def _flat_arguments(problem: MatrixProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, problem.n)


VARIANTS: tuple[Variant[MatrixProblem], ...] = (
    Variant(
        1,
        "one_block",
        "one block of 16x16 strides over the matrix",
        "matrix_add/01_one_block.cu",
        lambda problem: Config("one_block", 1, (TILE, TILE)),
        _one_matrix,
        problems="one",
    ),
    Variant(
        2,
        "many_blocks",
        "a 16x16 tile a block, the grid rounded up",
        "matrix_add/02_many_blocks.cu",
        lambda problem: Config("many_blocks", problem.tiles, (TILE, TILE)),
        _one_matrix,
        problems="one",
    ),
    Variant(
        3,
        "batched",
        "a batch in one launch, z of the grid is the matrix",
        "matrix_add/03_batched.cu",
        _batched,
    ),
    Variant(
        4,
        "flat_vec4",
        "contiguous matrices as one vector, 16 bytes a lane",
        "vector_add/04_vector_add_vec4.cu",
        _flat,
        _vectors,
        problems="aligned",
    ),
)


def problem(inputs: Sequence[Any], output: Any) -> MatrixProblem:
    """The problem of a + b = output; ValueError says what it refuses."""
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
    variants=VARIANTS,
    make_inputs=vector_add.make_inputs,
    output_like=lambda inputs: (tuple(inputs[0].shape), np.dtype(np.float32)),
    reference=vector_add.reference,
    rounding=vector_add.FAMILY.rounding,
    baseline=vector_add.baseline,
    problem=problem,
    arguments=_matrix_arguments,
    traffic=lambda problem: 12 * problem.n,
    flops=lambda problem: problem.n,
    choose=lambda problem, arch: "flat_vec4" if problem.vectors else "batched",
    empty=lambda problem: problem.n == 0,
    shapes={
        "gpu": ((256, 256), (4096, 4096), (1000, 256, 256)),
        "sim": ((100, 100), (20, 33, 64)),
        "sim sweep": ((16, 16), (100, 100), (256, 256), (50, 32, 32)),
        "sweep": ((100, 100), (256, 256), (1024, 1024), (4096, 4096), (1000, 256, 256), (4096, 256, 256)),
    },
    read_shape=lambda shape: shape * 2 if len(shape) == 1 else shape,
)


def matrix_add(a: Any, b: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """a + b for a float32 matrix or a batch of them: cudakit's, torch's or CuPy's arrays, and so is the result.

    a, b: (rows, cols) or (matrices, rows, cols), one shape, any strides. out: where to write, which may be a or b; a
    new array unless given. variant: a rung by name, or "auto". stream: the device's default stream, or torch's or
    CuPy's current one, unless given. Returns without waiting. Raises ValueError for arrays it does not take,
    UnsupportedVariant for a rung that does not take them.
    """
    return front.apply(FAMILY, (a, b), out, variant, stream)
