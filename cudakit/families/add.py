"""c = a + b by numpy's broadcasting rules, float32, any strides: zero, negative, transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import axes, checks, front, rows, vector_add
from cudakit.families.variant import MAX_GRID_YZ, Config, Family, Variant, ceil_div
from cudakit.families.vector_add import GRID_STRIDE_BLOCKS

# 32x32 elements of 03_tiles.cu, by a block of 32x8 threads.
TILE, TILE_ROWS = 32, 8


@dataclass(frozen=True)
class BroadcastProblem:
    """The walk over a, b and c (in the order of c's memory), floats from the last 16-byte boundary to each one's first
    element, and how many elements a and b have.

    `swapped`: what is called a here is the second input, so that b is the one that repeats or lies otherwise than c.
    """

    walk: axes.Walk
    phases: tuple[int, int, int]
    swapped: bool
    sizes: tuple[int, int]

    @property
    def repeats(self) -> bool:
        """Whether b is one value along a row."""
        return self.walk.strides[1][-1] == 0

    @property
    def deal(self) -> rows.Deal:
        walked = (0, 2) if self.repeats else (0, 1, 2)
        outer = [self.walk.strides[k][:-1] for k in walked]
        return rows.deal(self.walk.extents[-1], [self.phases[k] for k in walked], outer)

    def __str__(self) -> str:
        a, b, c = self.walk.strides
        return f"broadcast add over {'x'.join(map(str, self.walk.extents))}, strides {a} and {b} to {c}"


def _strided(problem: BroadcastProblem) -> Config:
    return Config(
        f"broadcast_strided<{problem.walk.number}>", min(ceil_div(problem.walk.size, 256), GRID_STRIDE_BLOCKS), 256
    )


def _rows(problem: BroadcastProblem) -> Config:
    deal = problem.deal
    entry = f"broadcast_rows<{deal.constants}, {0 if problem.repeats else 1}>"
    n0, n1, n2, _ = problem.walk.extents
    return Config(entry, deal.grid(n0 * n1 * n2), rows.BLOCK, arguments=_row_arguments)


def _flat(entry: str, block: int) -> Callable[[BroadcastProblem], Config]:
    def configure(problem: BroadcastProblem) -> Config:
        return Config(entry, ceil_div(ceil_div(problem.walk.size, 4), block), block, arguments=_flat_arguments)

    return configure


def _is_flat(problem: BroadcastProblem) -> bool | str:
    fits = problem.walk.flat and not any(problem.phases)
    return fits or "it takes arrays that lie alike, without gaps, and start on a 16-byte boundary"


def _along_rows(problem: BroadcastProblem) -> bool | str:
    a, b, c = (strides[-1] for strides in problem.walk.strides)
    fits = problem.walk.extents[-1] == 1 or (a == c == 1 and b in (0, 1))
    return fits or "along the output's fastest axis it takes contiguous arrays, or one operand repeated"


def turned(problem: BroadcastProblem) -> tuple[int, bool, bool] | None:
    """(axis, of a, of b): the axis along which the operands that are transposed have their smallest steps, and which
    they are; None where none is, or two are along different axes."""
    extents, last = problem.walk.extents, axes.RANK - 1
    turned_along = []
    for strides in problem.walk.strides[:2]:
        steps = [(abs(strides[k]), k) for k in range(axes.RANK) if extents[k] > 1 and strides[k]]
        least, axis = min(steps, default=(0, last))
        turned_along.append(axis if least < abs(strides[last]) else None)
    across = {axis for axis in turned_along if axis is not None}
    return (across.pop(), turned_along[0] is not None, turned_along[1] is not None) if len(across) == 1 else None


def _is_turned(problem: BroadcastProblem) -> bool | str:
    return turned(problem) is not None or "it takes a transposed operand, or two that are transposed alike"


def _tile_order(problem: BroadcastProblem) -> tuple[int, ...]:
    """The axes as the tiles take them: two that are left, the one across, the last one."""
    across, _, _ = turned(problem) or (axes.RANK - 2, False, False)  # supports() said so before
    return (*(k for k in range(axes.RANK - 1) if k != across), across, axes.RANK - 1)


def _tiles(problem: BroadcastProblem) -> Config:
    _, of_a, of_b = turned(problem) or (0, False, False)
    n0, n1, across, along = (problem.walk.extents[k] for k in _tile_order(problem))
    grid = ceil_div(along, TILE), min(ceil_div(across, TILE), MAX_GRID_YZ), min(n0 * n1, MAX_GRID_YZ)
    entry = f"broadcast_tiles<{TILE}, {TILE_ROWS}, {int(of_a)}, {int(of_b)}>"
    return Config(entry, grid, (TILE, TILE_ROWS), arguments=_tile_arguments)


def _tile_arguments(problem: BroadcastProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    order = _tile_order(problem)
    strides = [walked[k] for walked in problem.walk.strides for k in order]
    return (*_ordered(problem, inputs), output, *strides, *(problem.walk.extents[k] for k in order))


def _dense(problem: BroadcastProblem) -> Config:
    entry = f"broadcast_dense<{problem.walk.number}, {0 if problem.repeats else 1}>"
    return Config(entry, ceil_div(ceil_div(problem.walk.size, 4), 256), 256, arguments=_dense_arguments)


def _is_dense(problem: BroadcastProblem) -> bool | str:
    """Two axes; the output and a are one run of memory."""
    _, _, rows_, cols = problem.walk.extents
    a, b, c = (strides[-2:] for strides in problem.walk.strides)
    two = problem.walk.size == rows_ * cols
    dense = (
        cols > 1
        and rows_ > 1
        and a == c == (cols, 1)
        and b[1] in (0, 1)
        and problem.phases[0] == problem.phases[2] == 0
    )
    return (two and dense) or "it takes rows without gaps from a 16-byte boundary on, and a row or a column to add"


def _dense_arguments(problem: BroadcastProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    a, b = _ordered(problem, inputs)
    return a, b, output, problem.walk.strides[1][-2], problem.walk.size, problem.walk.extents[-1]


def _arguments(problem: BroadcastProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    a, b, c = problem.walk.strides
    return (*_ordered(problem, inputs), output, *a, *b, *c, *problem.walk.extents)


def _row_arguments(problem: BroadcastProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    a, b, c = (strides[:-1] for strides in problem.walk.strides)
    return (*_ordered(problem, inputs), output, *a, *b, *c, *problem.walk.extents, problem.deal.pieces)


def _flat_arguments(problem: BroadcastProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, problem.walk.size)


def _ordered(problem: BroadcastProblem, inputs: Sequence[Any]) -> Sequence[Any]:
    return inputs[::-1] if problem.swapped else inputs


VARIANTS: tuple[Variant[BroadcastProblem], ...] = (
    Variant(
        1,
        "strided",
        "any strides: every element finds its own place",
        "add/01_strided.cu",
        _strided,
    ),
    Variant(
        2,
        "rows",
        "the place once a row, 16 bytes a lane",
        "add/02_rows.cu",
        _rows,
        _along_rows,
        problems="rows",
    ),
    Variant(
        3,
        "tiles",
        "transposed operands turned in shared memory",
        "add/03_tiles.cu",
        _tiles,
        _is_turned,
        problems="transposed",
    ),
    Variant(
        4,
        "dense",
        "rows of any length as one run of memory",
        "add/04_dense.cu",
        _dense,
        _is_dense,
        problems="dense",
    ),
    Variant(
        5,
        "flat",
        "arrays that lie alike as one vector",
        "vector_add/04_vector_add_vec4.cu",
        _flat("vector_add_vec4", 256),
        _is_flat,
        problems="aligned",
    ),
    Variant(
        6,
        "streamed",
        "marked as not to be kept in the L2",
        "vector_add/05_vector_add_streamed.cu",
        _flat("vector_add_streamed", 1024),
        _is_flat,
        problems="aligned",
    ),
)


def result_shape(a: Any, b: Any) -> tuple[int, ...]:
    """The shape that both broadcast to; ValueError where there is none."""
    try:
        return np.broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not broadcast to one shape: counted from the last axis, "
            "extents must be equal, or one of them 1"
        ) from None


def problem(inputs: Sequence[Any], output: Any, **_: Any) -> BroadcastProblem:
    """The problem of a + b = output; ValueError says what it refuses."""
    a, b = inputs
    checks.expect_float32("broadcast add", (("a", a), ("b", b), ("out", output)))
    shape = result_shape(a, b)
    if tuple(output.shape) != shape:
        raise ValueError(f"a + b has shape {shape}, and the output {tuple(output.shape)}: they must be the same")
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
    return BroadcastProblem(walk, phases, swapped, (a.size, b.size))


def _make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, operand: str = "row"
) -> tuple[np.ndarray, ...]:
    """An array of `shape`, and the operand that is added to it: another array of that shape, a row (its last axis), or
    a column (one value per row)."""
    other = {"same": shape, "row": shape[-1:], "column": (*shape[:-1], 1)}[operand]
    return (rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(other, dtype=np.float32))


def _output_like(inputs: Sequence[Any], **_: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return result_shape(*inputs), np.dtype(np.float32)


def choose(problem: BroadcastProblem, arch: str) -> str:
    """The rung that "auto" means: the fastest on an H200 among those that support the problem."""
    if _is_flat(problem) is True:
        return "streamed" if vector_add.streams(problem.walk.size) else "flat"
    if _is_dense(problem) is True:
        return "dense"
    if _along_rows(problem) is True:
        return "rows"
    turn = turned(problem)
    wide = turn is not None and min(problem.walk.extents[turn[0]], problem.walk.extents[-1]) >= TILE // 2
    return "tiles" if wide else "strided"


FAMILY: Family[BroadcastProblem] = Family(
    name="add",
    variants=VARIANTS,
    make_inputs=_make_inputs,
    output_like=_output_like,
    reference=lambda inputs, **_: vector_add.reference(inputs),
    rounding=lambda inputs, exact, **_: 0.0,
    baseline=lambda inputs, **_: vector_add.baseline(inputs),
    problem=problem,
    arguments=_arguments,
    traffic=lambda problem: 4 * (problem.walk.size + sum(problem.sizes)),
    flops=lambda problem: problem.walk.size,
    choose=choose,
    empty=lambda problem: problem.walk.size == 0,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((40, 128), (30, 101)),
        "sim sweep": ((64, 32), (64, 64), (32, 257), (8, 1024)),
        "sweep": ((1024, 1024), (8192, 8192), (8192, 8191), (1 << 24, 3), (64, 1 << 20), (256, 512, 512)),
    },
    modes={"same": {"operand": "same"}, "": {}, "column": {"operand": "column"}},
)


def add(a: Any, b: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """a + b by numpy's broadcasting rules, float32: cudakit's, torch's or CuPy's arrays, and so is the result.

    a, b: any ranks and strides (zero, negative, transposed) whose axes merge into four. out: where to write, which may
    be a or b where it has the result's shape; a new array unless given. variant: a rung of add or of vector_add (which
    take contiguous arrays of one shape) by name, or "auto". stream: the device's default stream, or torch's or CuPy's
    current one, unless given. Returns without waiting. Raises ValueError for arrays it does not take,
    UnsupportedVariant for a rung that does not take them.
    """
    contiguous = variant != "auto" and any(variant == rung.name for rung in vector_add.FAMILY)
    return front.apply(vector_add.FAMILY if contiguous else FAMILY, (a, b), out, variant, stream)
