"""c = a + b by numpy's broadcasting rules, float32, any strides: zero, negative, transposed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import axes, rows, vector_add
from cudakit.families.vector_add import GRID_STRIDE_BLOCKS
from cudakit.family import IN, MAX_GRID_YZ, OUT, Family, Launch, Slot, apply, ceil_div, checks, variant

# Tiles of 03_tiles.cu: 32x32 elements per block of 32x8 threads.
TILE, TILE_ROWS = 32, 8


@dataclass(frozen=True)
class BroadcastProblem:
    """The walk over a, b and c in the order of c's memory. `phases`: floats between the last 16-byte boundary and the
    first element of each array.

    `swapped`: true if a and b are exchanged; b is then the operand that is broadcast or whose layout differs from c's.
    """

    walk: axes.Walk
    phases: tuple[int, int, int]
    swapped: bool

    @property
    def arrays(self) -> tuple[Slot, Slot, Slot]:
        """a, b and c."""
        a, b = IN[:2]
        return (b, a, OUT) if self.swapped else (a, b, OUT)

    @property
    def repeats(self) -> bool:
        """Whether b is constant along a row."""
        return self.walk.strides[1][-1] == 0

    @property
    def deal(self) -> rows.Deal:
        walked = (0, 2) if self.repeats else (0, 1, 2)
        outer = [self.walk.strides[k][:-1] for k in walked]
        return rows.deal(self.walk.extents[-1], [self.phases[k] for k in walked], outer)

    def __str__(self) -> str:
        a, b, c = self.walk.strides
        return f"broadcast add over {'x'.join(map(str, self.walk.extents))}, strides {a} and {b} to {c}"


def turned(problem: BroadcastProblem) -> tuple[int, bool, bool] | None:
    """Return (axis, whether a is transposed, whether b is transposed); None if neither operand is transposed, or if
    they are transposed along different axes. The transposed operands have their smallest strides along `axis`."""
    extents, last = problem.walk.extents, axes.RANK - 1
    turned_along = []
    for strides in problem.walk.strides[:2]:
        steps = [(abs(strides[k]), k) for k in range(axes.RANK) if extents[k] > 1 and strides[k]]
        least, axis = min(steps, default=(0, last))
        turned_along.append(axis if least < abs(strides[last]) else None)
    across = {axis for axis in turned_along if axis is not None}
    return (across.pop(), turned_along[0] is not None, turned_along[1] is not None) if len(across) == 1 else None


def _is_flat(problem: BroadcastProblem) -> bool:
    return problem.walk.flat and not any(problem.phases)


def _is_along_rows(problem: BroadcastProblem) -> bool:
    a, b, c = (strides[-1] for strides in problem.walk.strides)
    return problem.walk.extents[-1] == 1 or (a == c == 1 and b in (0, 1))


def _is_dense(problem: BroadcastProblem) -> bool:
    """Whether there are two axes, and the output and a are contiguous."""
    _, _, rows_, cols = problem.walk.extents
    a, b, c = (strides[-2:] for strides in problem.walk.strides)
    two = problem.walk.size == rows_ * cols and rows_ > 1 and cols > 1
    return two and a == c == (cols, 1) and b[1] in (0, 1) and problem.phases[0] == problem.phases[2] == 0


@variant("add/01_strided.cu")
def strided(problem: BroadcastProblem) -> Launch:
    """any strides: addresses computed per element"""
    walk = problem.walk
    a, b, c = walk.strides
    blocks = min(ceil_div(walk.size, 256), GRID_STRIDE_BLOCKS)
    args = (*problem.arrays, *a, *b, *c, *walk.extents)
    return Launch(blocks, 256, args, entry=f"broadcast_strided<{walk.number}>")


@variant("add/02_rows.cu", problems="rows")
def _rows(problem: BroadcastProblem) -> Launch | str:
    """addresses computed once per row, 16 bytes per lane"""
    if not _is_along_rows(problem):
        return "needs inputs that are contiguous, or one of them constant, along the output's fastest axis"
    walk, deal = problem.walk, problem.deal
    a, b, c = (strides[:-1] for strides in walk.strides)
    n0, n1, n2, _ = walk.extents
    return Launch(
        deal.grid(n0 * n1 * n2),
        rows.BLOCK,
        (*problem.arrays, *a, *b, *c, *walk.extents, deal.pieces),
        entry=f"broadcast_rows<{deal.constants}, {0 if problem.repeats else 1}>",
    )


@variant("add/03_tiles.cu", problems="transposed")
def tiles(problem: BroadcastProblem) -> Launch | str:
    """operands transposed in shared memory"""
    turn = turned(problem)
    if turn is None:
        return "needs one transposed operand, or two transposed along the same axis"
    axis, of_a, of_b = turn
    order = (*(k for k in range(axes.RANK - 1) if k != axis), axis, axes.RANK - 1)
    n0, n1, across, along = extents = [problem.walk.extents[k] for k in order]
    strides = [walked[k] for walked in problem.walk.strides for k in order]
    return Launch(
        (ceil_div(along, TILE), min(ceil_div(across, TILE), MAX_GRID_YZ), min(n0 * n1, MAX_GRID_YZ)),
        (TILE, TILE_ROWS),
        (*problem.arrays, *strides, *extents),
        entry=f"broadcast_tiles<{TILE}, {TILE_ROWS}, {int(of_a)}, {int(of_b)}>",
    )


@variant("add/04_dense.cu", problems="dense")
def dense(problem: BroadcastProblem) -> Launch | str:
    """rows of any length as one contiguous array"""
    if not _is_dense(problem):
        return "needs contiguous rows that start on a 16-byte boundary, and a row or a column to add"
    walk = problem.walk
    args = (*problem.arrays, walk.strides[1][-2], walk.size, walk.extents[-1])
    entry = f"broadcast_dense<{walk.number}, {0 if problem.repeats else 1}>"
    return Launch(ceil_div(ceil_div(walk.size, 4), 256), 256, args, entry=entry)


def _as_vector(problem: BroadcastProblem, block: int) -> Launch | str:
    if not _is_flat(problem):
        return "needs contiguous arrays of one layout that start on a 16-byte boundary"
    size = problem.walk.size
    return Launch(ceil_div(ceil_div(size, 4), block), block, (*IN[:2], OUT, size))


@variant("vector_add/04_vector_add_vec4.cu", entry="vector_add_vec4", problems="aligned")
def flat(problem: BroadcastProblem) -> Launch | str:
    """contiguous arrays as one vector"""
    return _as_vector(problem, 256)


@variant("vector_add/05_vector_add_streamed.cu", entry="vector_add_streamed", problems="aligned")
def streamed(problem: BroadcastProblem) -> Launch | str:
    """loads and stores marked evict-first in L2"""
    return _as_vector(problem, 1024)


def result_shape(a: Any, b: Any) -> tuple[int, ...]:
    """Return the shape that both arrays broadcast to. Raise ValueError if they do not broadcast."""
    try:
        return np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not broadcast: counted from the last axis, "
            "extents must be equal, or one of them 1"
        ) from None


def problem(inputs: Sequence[Any], output: Any, **_: Any) -> BroadcastProblem:
    """Return the problem of output = a + b. Raise ValueError for unsupported arrays."""
    a, b = inputs
    checks.expect_float32("broadcast add", (("a", a), ("b", b), ("out", output)))
    shape = result_shape(a, b)
    if tuple(output.shape) != shape:
        raise ValueError(f"a + b has shape {shape}, but the output has {tuple(output.shape)}")
    checks.expect_output("broadcast add", output, (("a", a), ("b", b)))
    walk = axes.walk(
        "broadcast add", shape, (axes.broadcast(a, shape), axes.broadcast(b, shape), output.strides_elements)
    )
    x, y, z = walk.strides
    swapped = (y == z and x != z) or (y[-1] == 1 and x[-1] != 1)
    first, second = (b, a) if swapped else (a, b)
    if swapped:
        walk = axes.Walk(walk.extents, (y, x, z))
    phases = axes.phase(first), axes.phase(second), axes.phase(output)
    return BroadcastProblem(walk, phases, swapped)


def _inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, operand: str = "row"
) -> tuple[np.ndarray, ...]:
    """Return an array of `shape` and the operand to add: an array of the same shape, a row (its last axis), or a column
    (one value per row)."""
    other = {"same": shape, "row": shape[-1:], "column": (*shape[:-1], 1)}[operand]
    return (rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(other, dtype=np.float32))


def choose(problem: BroadcastProblem, arch: str) -> str:
    """Return the variant for "auto": the fastest on an H200 among those that support the problem."""
    if _is_flat(problem):
        return "streamed" if vector_add.streams(problem.walk.size) else "flat"
    if _is_dense(problem):
        return "dense"
    if _is_along_rows(problem):
        return "rows"
    turn = turned(problem)
    wide = turn is not None and min(problem.walk.extents[turn[0]], problem.walk.extents[-1]) >= TILE // 2
    return "tiles" if wide else "strided"


FAMILY: Family[BroadcastProblem] = Family(
    name="add",
    reference=lambda a, b, *, operand="row": a + b,
    variants=(strided, _rows, tiles, dense, flat, streamed),
    inputs=_inputs,
    outputs=lambda a, b, **_: (result_shape(a, b), np.dtype(np.float32)),
    problem=problem,
    rounding=0.0,
    flops=lambda problem: problem.walk.size,
    choose=choose,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((40, 128), (30, 101)),
        "sim sweep": ((64, 32), (64, 64), (32, 257), (8, 1024)),
        "sweep": ((1024, 1024), (8192, 8192), (8192, 8191), (1 << 24, 3), (64, 1 << 20), (256, 512, 512)),
    },
    modes={"same": {"operand": "same"}, "": {}, "column": {"operand": "column"}},
    problems="cudakit.testing.add:add_cases",
)
FAMILY.call = vector_add.FAMILY.call = lambda inputs, out, variant, stream, **_: functools.partial(
    add, inputs[0], inputs[1], out, variant, stream
)


def add(a: Any, b: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return a + b by numpy's broadcasting rules, for float32 arrays of cudakit, torch or CuPy.

    Does not wait for the device.

    Args:
        a: The first operand: any rank and any strides (zero, negative, transposed) whose axes can be merged into four.
        b: The second operand, like `a`.
        out: The output. It may be a or b if that operand has the result's shape. By default a new array.
        variant: The name of a variant of add or of vector_add (for contiguous arrays of one shape), or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    contiguous = variant != "auto" and any(variant == rung.name for rung in vector_add.FAMILY)
    return apply(vector_add.FAMILY if contiguous else FAMILY, (a, b), out, variant, stream)
