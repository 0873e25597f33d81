"""Sum, maximum and index of the maximum over the rows, the columns or all of a float32 array.

`sum(x, axis)`, `max(x, axis)`, `argmax(x, axis)`; SUM, MAX and ARGMAX are their ladders, which share the kernels. Sums
are added in a fixed tree: bitwise reproducible, and as accurate as pairwise summation. As in numpy, NaN counts as the
maximum, and the first of equal values is chosen.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.families.reduce_problem import ReduceProblem, problem, result_dtype, result_shape
from cudakit.family import IN, MAX_GRID_X, OUT, SCRATCH, Family, Launch, apply, ceil_div, variant
from cudakit.rounding import of_tree

BLOCK = 256
FINISH_BLOCK = 1024
# 06_columns.cu: warps per block, blocks per multiprocessor that its registers allow, warps per block of the second
# launch.
SLAB_ROWS, SLABS_RESIDENT, FINISH_ROWS = 8, 4, 32
# The fewest and the most elements per chunk of 05_two_step.cu.
CHUNK_LEAST, CHUNK_MOST = 8192, 65536
_STATE_BYTES = {"sum": 4, "max": 4, "argmax": 16}


# Launches ------------------------------------------------------------------------------------------------------------

_WHOLE = "one reduced axis supported; the strides of this array do not merge its axes into one"


@variant("reduce/01_thread_per_row.cu", problems="one axis")
def thread_per_row(problem: ReduceProblem) -> Launch | str:
    """one thread per row"""
    if problem.whole:
        return _WHOLE
    return Launch(ceil_div(problem.kept, 128), 128, entry=f"thread_per_row<{problem.operator_and_result}>")


def _block_a_row(problem: ReduceProblem, name: str) -> Launch | str:
    if problem.whole:
        return _WHOLE
    return Launch(problem.kept, BLOCK, entry=f"{name}<{problem.operator_and_result}, {BLOCK}>")


@variant("reduce/02_shared_tree.cu", problems="one axis")
def shared_tree(problem: ReduceProblem) -> Launch | str:
    """one block per row, a tree in shared memory"""
    return _block_a_row(problem, "shared_tree")


@variant("reduce/03_warp_shuffle.cu", problems="one axis")
def warp_shuffle(problem: ReduceProblem) -> Launch | str:
    """shuffles within warps, one barrier"""
    return _block_a_row(problem, "warp_shuffle")


def _lanes(problem: ReduceProblem) -> int:
    """Return the threads per reduction in 04_vec4.cu."""
    for lanes in (4, 8, 16, 32):
        if problem.length <= 16 * lanes:
            return lanes
    return 32 if problem.length <= 1024 else BLOCK


@variant("reduce/04_vec4.cu", problems="neighbours")
def vec4(problem: ReduceProblem) -> Launch | str:
    """16-byte loads, several in flight"""
    if problem.along_stride != 1 and problem.length > 1:
        return "16-byte loads need a reduced axis that is contiguous"
    if problem.whole:
        return _WHOLE
    lanes = _lanes(problem)
    entry = f"vec4<{problem.operator_and_result}, {BLOCK}, {lanes}>"
    return Launch(ceil_div(problem.kept, BLOCK // lanes), BLOCK, entry=entry)


def chunks(problem: ReduceProblem) -> tuple[int, int]:
    """Return the number of chunks per reduction in 05_two_step.cu, and the elements per chunk, a multiple of 4."""
    wanted = ceil_div(16 * problem.sms, builtins.max(problem.kept, 1))
    count = builtins.max(1, min(wanted, problem.length // CHUNK_LEAST), ceil_div(problem.length, CHUNK_MOST))
    each = builtins.max(4, ceil_div(ceil_div(problem.length, count), 4) * 4)
    return builtins.max(1, ceil_div(problem.length, each)), each


@variant("reduce/05_two_step.cu")
def two_step(problem: ReduceProblem) -> tuple[Launch, ...] | str:
    """many blocks share a row, a second launch combines them"""
    p, (count, each) = problem, chunks(problem)
    if p.kept * count > MAX_GRID_X:
        return f"at most {MAX_GRID_X} blocks supported, got {p.kept} reductions of {count} blocks each"
    results = 1 if p.whole else p.kept
    states = p.kept * count // builtins.max(results, 1)
    finish = FINISH_BLOCK if states > BLOCK else 32 if states <= 32 else BLOCK
    first, second = (IN[0], SCRATCH, *p.walk, count, each, p.length), (SCRATCH, OUT, p.y_stride, states)
    scratch = p.kept * count * _STATE_BYTES[p.what]
    return (
        Launch(p.kept * count, BLOCK, first, entry=f"reduce_chunks<{p.operator}, {BLOCK}>", scratch=scratch),
        Launch(results, finish, second, entry=f"finish_chunks<{p.operator_and_result}, {finish}>"),
    )


def slabs(problem: ReduceProblem) -> tuple[int, int]:
    """Return the number of slabs of rows in 06_columns.cu, and the rows per slab: as many blocks as are resident at the
    same time, so that no block waits for another to finish."""
    tiles = ceil_div(problem.kept, 32 * (4 if problem.vectors else 1))
    wanted = SLABS_RESIDENT * problem.sms // builtins.max(tiles, 1)
    count = builtins.max(1, min(wanted, problem.length // (8 * SLAB_ROWS)))
    each = builtins.max(1, ceil_div(problem.length, count))
    return builtins.max(1, ceil_div(problem.length, each)), each


@variant("reduce/06_columns.cu", problems="one axis")
def columns(problem: ReduceProblem) -> tuple[Launch, ...] | str:
    """a warp reads adjacent columns, each block takes a slab of rows"""
    if problem.whole:
        return _WHOLE
    p, (count, each), vec = problem, slabs(problem), 4 if problem.vectors else 1
    states = SCRATCH if count > 1 else None
    main = Launch(
        ceil_div(p.kept, 32 * vec) * count,
        (32, SLAB_ROWS),
        (IN[0], states, OUT, *p.walk, p.y_stride, count, each, p.kept, p.length),
        entry=f"column_slabs<{p.operator_and_result}, {vec}, {SLAB_ROWS}>",
        scratch=p.kept * count * _STATE_BYTES[p.what] if count > 1 else 0,
    )
    if count == 1:
        return (main,)
    rows = FINISH_ROWS if count > 8 else 1
    entry = f"finish_columns<{p.operator_and_result}, {rows}>"
    args = (SCRATCH, OUT, p.y_stride, count, p.kept)
    return main, Launch(ceil_div(p.kept, 32), (32, rows), args, entry=entry)


VARIANTS = (thread_per_row, shared_tree, warp_shuffle, vec4, two_step, columns)


def choose(problem: ReduceProblem, arch: str) -> str:
    """Return the variant for "auto"."""
    if problem.whole:
        return "two_step"
    if abs(problem.along_stride) > abs(problem.kept_stride) and problem.kept > 1:
        return "columns"
    few = problem.kept < 4 * problem.sms and problem.length >= 2 * CHUNK_LEAST
    if few:
        return "two_step"
    return "vec4" if problem.along_stride == 1 or problem.length <= 1 else "warp_shuffle"


# On the host ---------------------------------------------------------------------------------------------------------


def _sum_baseline(x: Any, axis: int | None = -1) -> Any:
    """Return numpy's sum; sums down the columns are computed in float64, because numpy adds columns in order."""
    down = x.ndim == 2 and axis in (0, -2)
    return np.asarray(x.sum(axis=axis, dtype=np.float64 if down else np.float32), np.float32)


def _sum_rounding(exact: Any, x: Any, axis: int | None = -1) -> Any:
    """Return the rounding error of a sum in a tree, as all variants add; a long sum from left to right has a larger
    error."""
    lines = x.reshape(1, -1) if axis is None or x.ndim == 1 else x.T if axis in (0, -2) else x
    return of_tree(lines).reshape(result_shape("sum", x.shape, axis))


def _family(what: str, function: Callable[..., Any], **given: Any) -> Family[ReduceProblem]:
    dtype = result_dtype(what)
    common: dict[str, Any] = {
        "variants": VARIANTS,
        "inputs": {"x": "float32"},
        "outputs": lambda x, axis=-1: (result_shape(what, x.shape, axis), dtype),
        "problem": lambda inputs, output, axis=-1: problem(what, inputs, output, axis),
        "arguments": lambda p: (IN[0], OUT, *p.walk, p.y_stride, p.kept, p.length),
        "rounding": 0.0,
        "traffic": lambda problem: 4 * problem.kept * problem.length,
        "choose": choose,
        "shapes": {
            "gpu": ((8192, 8192),),
            "sim": ((32, 500), (7, 1024)),
            "sim sweep": ((64, 64), (32, 127), (8, 1000), (2, 4099)),
            "sweep": ((512, 512), (8192, 8192), (65536, 256), (256, 1048576), (1 << 28,)),
        },
        "modes": {"": {"axis": -1}, "columns": {"axis": 0}, "all": {"axis": None}},
        "problems": f"cudakit.testing.reduce:{what}_cases",
    }
    family: Family[ReduceProblem] = Family(name=what, **(common | given))
    family.call = lambda inputs, out, variant, stream, axis=-1: functools.partial(
        function, inputs[0], axis, out, variant, stream
    )
    return family


def sum(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return the sum of a 1-D or 2-D float32 array over `axis`, in float32; 0 if there are no elements.

    Sums are added in a fixed tree of at most 32 branches per level, so the rounding error grows with the logarithm of
    the number n of elements: it is at most 16 * eps * (log32(n) + 2) times the sum of their magnitudes, with eps =
    2^-23.

    Does not wait for the device.

    Args:
        x: An array of cudakit, torch or CuPy, any strides.
        axis: The axis that is summed; None for all axes.
        out: The output, separate from `x`. By default a new array.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays or the axis are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(SUM, (x,), out, variant, stream, {"axis": axis})


def max(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return the maximum over `axis`; NaN if an element is NaN.

    Takes the arguments of `sum`. Raises ValueError if there are no elements.
    """
    return apply(MAX, (x,), out, variant, stream, {"axis": axis})


def argmax(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return the index (int64) of the first maximum over `axis`, or of the first NaN if there is one.

    Over all of a 2-D array the index is in C order. Takes the arguments of `sum`. Raises ValueError if there are no
    elements.
    """
    return apply(ARGMAX, (x,), out, variant, stream, {"axis": axis})


SUM = _family(
    "sum",
    sum,
    reference=lambda x, *, axis=-1: np.asarray(x.sum(axis=axis)),
    baseline=_sum_baseline,
    rounding=_sum_rounding,
)
MAX = _family("max", max, reference=lambda x, *, axis=-1: np.asarray(x.max(axis=axis)))
ARGMAX = _family("argmax", argmax, reference=lambda x, *, axis=-1: np.asarray(x.argmax(axis=axis), np.int64))
