"""The gradient of row softmax and log-softmax of scale * x, from the forward result and its gradient.

Softmax: scale * y * (grad - sum(grad * y)) per row. Log-softmax: scale * (grad - exp(y) * sum(grad)). Arrays are
float32, float16 or bfloat16; arithmetic is float32. NaN and infinities follow IEEE arithmetic: with softmax, a NaN in a
row, or an infinite gradient at y = 0, makes the whole row NaN. For y = 0 the gradient is 0 if the row's gradients are
finite.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families.softmax_modes import read_scale
from cudakit.families.softmax_problem import piece, row_and_column
from cudakit.family import CPP, IN, MAX_GRID_X, OUT, Family, Launch, Scalar, apply, ceil_div, checks, cpp_bool, variant
from cudakit.rounding import LEAST_NORMAL, SMALLEST, U, of_exponential, of_products, of_tree

# The most threads per block, and the most pieces of both arrays that a thread holds: pieces of 16 bytes, and of one
# element.
MOST_THREADS = 1024
HELD_PIECES, HELD_ELEMENTS = 4, 16


@dataclass(frozen=True)
class BackwardProblem:
    """Extents; (row, column) strides of grad, y and out, in elements; vector: the elements per 16-byte piece if all
    three arrays consist of such pieces, else 1; the name of the dtype."""

    rows: int
    cols: int
    strides: tuple[int, int, int, int, int, int]
    vector: int
    dtype: str
    log: bool
    scale: float

    def __str__(self) -> str:
        return f"gradient of {'log-' if self.log else ''}softmax of {self.rows}x{self.cols} {self.dtype}"

    @property
    def pieces(self) -> int:
        """Pieces per row; 1 for an empty row."""
        return max(ceil_div(self.cols, self.vector), 1)

    @property
    def template(self) -> str:
        """The first template arguments of every kernel."""
        return f"{CPP[self.dtype]}, {cpp_bool(self.log)}"


def problem(inputs: Sequence[Any], output: Any, log: bool = False, scale: float = 1.0) -> BackwardProblem:
    """Return the problem of grad, y and the output. Raise ValueError for unsupported arrays."""
    grad, y = inputs
    dtype = y.dtype
    if dtype.name not in CPP or grad.dtype != dtype or output.dtype != dtype:
        raise ValueError(
            "softmax_backward takes bfloat16, float16 or float32, one dtype for all arrays; "
            f"got grad {grad.dtype}, y {dtype}, output {output.dtype}: convert them first"
        )
    shape = tuple(y.shape)
    if len(shape) not in (1, 2):
        raise ValueError(f"softmax_backward takes 1-D (one row) or 2-D arrays, got shape {shape}: reshape them first")
    named = (("grad", grad), ("y", y))
    checks.expect_one_shape("softmax_backward", (*named, ("the output", output)))
    rows, cols = (1, *shape) if len(shape) == 1 else shape
    if rows > MAX_GRID_X:
        raise ValueError(f"softmax_backward takes at most {MAX_GRID_X} rows, got {rows}: split them")
    factor = read_scale(scale)
    checks.expect_output("softmax_backward", output, named)
    arrays = (grad, y, output)
    steps = [row_and_column(array.strides_elements) for array in arrays]
    vector = piece(rows, cols, arrays)
    return BackwardProblem(rows, cols, (*steps[0], *steps[1], *steps[2]), vector, dtype.name, bool(log), factor)


@variant("softmax_backward/01_two_reads.cu", since="sm_80")
def two_reads(problem: BackwardProblem) -> Launch:
    """one block per row, inputs read twice: for the sum, then for the result"""
    block = min(MOST_THREADS, max(64, ceil_div(ceil_div(problem.pieces, 2), 32) * 32))
    return Launch(problem.rows, block, entry=f"two_reads<{problem.template}, {problem.vector}>")


@dataclass(frozen=True)
class BackwardTile:
    """Template constants of 02_registers.cu."""

    block: int
    lanes: int
    held: int


def register_tile(problem: BackwardProblem) -> BackwardTile | None:
    """Return the tile for a problem, or None if a row does not fit in a block's registers.

    A thread holds at most 32 registers of both arrays, so that 1,024 threads fit on a multiprocessor.
    """
    most = HELD_PIECES if problem.vector > 1 else HELD_ELEMENTS
    for lanes in (4, 8, 16, 32):
        held = ceil_div(problem.pieces, lanes)
        if held <= (most if lanes == 32 else HELD_PIECES):
            return BackwardTile(128, lanes, held)
    block = ceil_div(ceil_div(problem.pieces, most), 64) * 64
    return BackwardTile(block, block, most) if block <= MOST_THREADS else None


@variant("softmax_backward/02_registers.cu", since="sm_80")
def registers(problem: BackwardProblem) -> Launch | str:
    """each element read once, 16 bytes at a time, both arrays kept in registers"""
    tile = register_tile(problem)
    if tile is None:
        return f"a row of {problem.cols} elements does not fit in a block's registers"
    entry = f"registers<{problem.template}, {tile.block}, {tile.lanes}, {tile.held}, {problem.vector}>"
    return Launch(ceil_div(problem.rows, tile.block // tile.lanes), tile.block, entry=entry)


@dataclass(frozen=True)
class BackwardClusterTile:
    """Template constants of 03_split_row.cu."""

    block: int
    cluster: int
    held: int


def cluster_tile(problem: BackwardProblem) -> BackwardClusterTile | None:
    """Return the tile for a row, or None if it does not fit in 16 blocks.

    Blocks stay small while the cluster can grow, so that a multiprocessor has several blocks, and reads of one row
    overlap writes of another.
    """
    for cluster, block in ((2, 256), (4, 256), (8, 256), (16, 256), (16, 512), (16, 1024)):
        held = ceil_div(problem.pieces, cluster * block)
        if held <= HELD_PIECES:
            return BackwardClusterTile(block, cluster, held)
    return None


@variant("softmax_backward/03_split_row.cu", since="sm_90", problems="vectors")
def split_row(problem: BackwardProblem) -> Launch | str:
    """the blocks of a cluster share a long row"""
    if problem.vector == 1:
        return "needs contiguous rows that start on a 16-byte boundary and have a multiple of 16 bytes"
    tile = cluster_tile(problem)
    if tile is None:
        return f"a row of {problem.cols} elements does not fit in the registers of 16 blocks"
    blocks = problem.rows * tile.cluster
    if blocks > MAX_GRID_X:
        return f"at most {MAX_GRID_X} blocks supported, {problem.rows} rows need {blocks}"
    entry = f"split_row<{problem.template}, {tile.block}, {tile.cluster}, {tile.held}, {problem.vector}>"
    return Launch(blocks, tile.block, entry=entry, cluster=tile.cluster)


def choose(problem: BackwardProblem, arch: str) -> str:
    """Return the variant for "auto": one that reads each element once, if the row fits in a block or a cluster."""
    supported = (name for name in ("registers", "split_row") if FAMILY[name].refusal(problem, arch) is None)
    return next(supported, "two_reads")


# On the host ----------------------------------------------------------------------------------------------------------


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, log: bool = False, scale: float = 1.0
) -> tuple[np.ndarray, ...]:
    """Return normal numbers for grad, and the softmax (or log-softmax) of other normal numbers for y."""
    grad = rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
    x = rng.standard_normal(shape, dtype=np.float32) * 3
    logarithms = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return grad, (logarithms if log else np.exp(logarithms)).astype(dtype, copy=False)


def reference(grad: Any, y: Any, *, log: bool = False, scale: float = 1.0) -> Any:
    """Return the gradient by its definition, computed in the dtype of y, at least float32."""
    kind: Any = np.result_type(y.dtype, np.float32).type
    dtype, grad, y = y.dtype, grad.astype(kind, copy=False), y.astype(kind, copy=False)
    if log:
        unscaled = grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)
    else:
        unscaled = y * (grad - (grad * y).sum(axis=-1, keepdims=True))
    return (kind(np.float32(scale)) * unscaled).astype(dtype, copy=False)


def rounding(exact: Any, grad: Any, y: Any, *, log: bool = False, scale: float = 1.0) -> Any:
    """Return the rounding error. The errors of the row's sum and of the term subtracted from grad are multiplied by
    each element's factor y (or by exp(y), which is rounded too); the two products that follow add their own."""
    if not exact.size:
        return 0.0
    with np.errstate(all="ignore"):
        grad, y = grad.astype(np.float64), y.astype(np.float64)
        terms = grad if log else grad * y
        total = np.abs(terms.sum(axis=-1, keepdims=True))
        of_sum = (of_tree(np.broadcast_to(terms, y.shape)) if log else of_products(terms))[..., None]
        factor = np.exp(y) if log else np.abs(y)
        if log:
            subtracted = factor * (of_sum + total * of_exponential(np.abs(y))) + LEAST_NORMAL * total
            before = subtracted + U * (np.abs(grad) + factor * total)
        else:
            before = factor * (of_sum + U * (np.abs(grad) + total))
        return abs(scale) * (before + SMALLEST) + 3 * U * np.abs(exact) + SMALLEST


FAMILY: Family[BackwardProblem] = Family(
    name="softmax_backward",
    reference=reference,
    variants=(two_reads, registers, split_row),
    inputs=make_inputs,
    outputs=lambda grad, y, **options: (tuple(y.shape), y.dtype),
    problem=problem,
    arguments=lambda p: (*IN[:2], OUT, *p.strides, p.rows, p.cols, p.scale),
    rounding=rounding,
    choose=choose,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((32, 512), (16, 1001)),
        "sim sweep": ((64, 64), (32, 127), (16, 1000), (4, 20000)),
        "sweep": (
            (1024, 1024),
            (8192, 8192),
            (4096, 16384),
            (4096, 32768),
            (1024, 131072),
            (32768, 1000),
            (65536, 256),
        ),
    },
    dtypes=("float32", "float16", "bfloat16"),
    modes={"": {}, "log": {"log": True}, "scaled": {"scale": 0.125}},
    scalars={"scale": Scalar("scale", read_scale)},
    problems="cudakit.testing.softmax_backward:softmax_backward_cases",
)
FAMILY.call = lambda inputs, out, variant, stream, **options: functools.partial(
    softmax_backward, inputs[0], inputs[1], out, variant, stream, **options
)


def softmax_backward(
    grad: Any,
    y: Any,
    out: Any = None,
    variant: str = "auto",
    stream: Any = None,
    *,
    log: bool = False,
    scale: float = 1.0,
) -> Any:
    """Return the gradient of x from `grad`, the gradient of y = softmax(scale * x) along the last axis.

    An element hidden by a mask in the forward call has y = 0 and a gradient of 0. With `log` it has y = -inf and the
    gradient scale * grad: set that to 0 after the call. NaN and infinities follow IEEE arithmetic: a NaN in grad, or
    without `log` an infinite gradient at y = 0, makes the whole row NaN.

    Does not wait for the device.

    Args:
        grad: An array of cudakit, torch or CuPy, of shape (rows, cols) or (cols,), any strides (also 0); float32,
            float16 or bfloat16.
        y: The result of the forward call; the shape and dtype of `grad`, any strides.
        out: The output, which may be `grad` or `y`. By default a new array.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.
        log: If true, y is the log-softmax of scale * x.
        scale: The scale of the forward call, rounded to float32.

    Returns:
        The gradient, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(FAMILY, (grad, y), out, variant, stream, {"log": log, "scale": scale})
