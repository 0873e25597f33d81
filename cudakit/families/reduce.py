"""Sum, maximum and its place over the rows, the columns or all of a float32 array.

`sum(x, axis)`, `max(x, axis)`, `argmax(x, axis)`; SUM, MAX and ARGMAX are the ladders, of the same kernels. Sums are of
fixed trees: the same to the last bit in every run, and as close as pairwise summation. A NaN is the maximum, and of
equal values the first counts, as numpy has it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.families import front
from cudakit.families.reduce_host import first_maximum, make_inputs, maximum, sum_baseline, sum_reference, sum_rounding
from cudakit.families.reduce_problem import ReduceProblem, problem, result_dtype, result_shape
from cudakit.families.variant import MAX_GRID_X, Config, Family, Variant, ceil_div

BLOCK = 256
FINISH_BLOCK = 1024
# 06_columns.cu: warps of a block, blocks that its registers allow a multiprocessor, warps of a block of the second
# launch.
SLAB_ROWS, SLABS_RESIDENT, FINISH_ROWS = 8, 4, 32
# Elements of a chunk of 05_two_step.cu: no fewer and no more.
CHUNK_LEAST, CHUNK_MOST = 8192, 65536
_STATE_BYTES = {"sum": 4, "max": 4, "argmax": 16}


# Launches ------------------------------------------------------------------------------------------------------------


def _thread_a_row(problem: ReduceProblem) -> Config:
    return Config(f"thread_per_row<{problem.operator_and_result}>", ceil_div(problem.kept, 128), 128)


def _block_a_row(name: str) -> Callable[[ReduceProblem], Config]:
    return lambda problem: Config(f"{name}<{problem.operator_and_result}, {BLOCK}>", problem.kept, BLOCK)


def _lanes(problem: ReduceProblem) -> int:
    """Threads a reduction in 04_vec4.cu."""
    for lanes in (4, 8, 16, 32):
        if problem.length <= 16 * lanes:
            return lanes
    return 32 if problem.length <= 1024 else BLOCK


def _vec4(problem: ReduceProblem) -> Config:
    lanes = _lanes(problem)
    entry = f"vec4<{problem.operator_and_result}, {BLOCK}, {lanes}>"
    return Config(entry, ceil_div(problem.kept, BLOCK // lanes), BLOCK)


def chunks(problem: ReduceProblem) -> tuple[int, int]:
    """How many chunks 05_two_step.cu makes of a reduction, and their elements, a multiple of 4."""
    wanted = ceil_div(16 * problem.sms, builtins.max(problem.kept, 1))
    count = builtins.max(1, min(wanted, problem.length // CHUNK_LEAST), ceil_div(problem.length, CHUNK_MOST))
    each = builtins.max(4, ceil_div(ceil_div(problem.length, count), 4) * 4)
    return builtins.max(1, ceil_div(problem.length, each)), each


def _two_step(problem: ReduceProblem) -> tuple[Config, ...]:
    count, each = chunks(problem)
    results = 1 if problem.whole else problem.kept
    states = problem.kept * count // builtins.max(results, 1)

    def first(problem: ReduceProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (inputs[0], scratch, *problem.walk, count, each, problem.length)

    def second(problem: ReduceProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (scratch, output, problem.y_stride, states)

    finish = FINISH_BLOCK if states > BLOCK else 32 if states <= 32 else BLOCK
    return (
        Config(f"reduce_chunks<{problem.operator}, {BLOCK}>", problem.kept * count, BLOCK, arguments=first),
        Config(f"finish_chunks<{problem.operator_and_result}, {finish}>", results, finish, arguments=second),
    )


def slabs(problem: ReduceProblem) -> tuple[int, int]:
    """How many slabs of rows 06_columns.cu makes, and the rows of one: as many blocks as are resident at once, so that
    none waits for another to end."""
    tiles = ceil_div(problem.kept, 32 * (4 if problem.vectors else 1))
    wanted = SLABS_RESIDENT * problem.sms // builtins.max(tiles, 1)
    count = builtins.max(1, min(wanted, problem.length // (8 * SLAB_ROWS)))
    each = builtins.max(1, ceil_div(problem.length, count))
    return builtins.max(1, ceil_div(problem.length, each)), each


def _columns(problem: ReduceProblem) -> tuple[Config, ...]:
    (count, each), vec = slabs(problem), 4 if problem.vectors else 1

    def first(problem: ReduceProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        sizes = (problem.y_stride, count, each, problem.kept, problem.length)
        return (inputs[0], scratch, output, *problem.walk, *sizes)

    def second(problem: ReduceProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (scratch, output, problem.y_stride, count, problem.kept)

    grid, rows = ceil_div(problem.kept, 32 * vec) * count, FINISH_ROWS if count > 8 else 1
    entry = f"column_slabs<{problem.operator_and_result}, {vec}, {SLAB_ROWS}>"
    main = Config(entry, grid, (32, SLAB_ROWS), arguments=first)
    if count == 1:
        return (main,)
    return (
        main,
        Config(
            f"finish_columns<{problem.operator_and_result}, {rows}>",
            ceil_div(problem.kept, 32),
            (32, rows),
            arguments=second,
        ),
    )


def _columns_scratch(problem: ReduceProblem) -> int:
    """Bytes of the slabs' states; one slab is written where it belongs at once."""
    count, _ = slabs(problem)
    return problem.kept * count * _STATE_BYTES[problem.what] if count > 1 else 0


def _one_axis(problem: ReduceProblem) -> bool | str:
    return not problem.whole or "it reduces one axis, and the strides of this array do not merge its axes into one"


def _neighbours(problem: ReduceProblem) -> bool | str:
    if problem.along_stride != 1 and problem.length > 1:
        return "it reads 16 bytes along the axis that it reduces, whose elements are no neighbours here"
    return _one_axis(problem)


def _fits_chunks(problem: ReduceProblem) -> bool | str:
    if problem.kept * chunks(problem)[0] > MAX_GRID_X:
        return f"{problem.kept} reductions of several blocks each are more than a grid has"
    return True


VARIANTS: tuple[Variant[ReduceProblem], ...] = (
    Variant(
        1,
        "thread_per_row",
        "one thread a row",
        "reduce/01_thread_per_row.cu",
        _thread_a_row,
        _one_axis,
        problems="one axis",
    ),
    Variant(
        2,
        "shared_tree",
        "one block a row, a tree in shared memory",
        "reduce/02_shared_tree.cu",
        _block_a_row("shared_tree"),
        _one_axis,
        problems="one axis",
    ),
    Variant(
        3,
        "warp_shuffle",
        "shuffles within warps, one barrier",
        "reduce/03_warp_shuffle.cu",
        _block_a_row("warp_shuffle"),
        _one_axis,
        problems="one axis",
    ),
    Variant(
        4,
        "vec4",
        "16-byte loads, several in flight",
        "reduce/04_vec4.cu",
        _vec4,
        _neighbours,
        problems="neighbours",
    ),
    Variant(
        5,
        "two_step",
        "many blocks share a row, a second launch joins them",
        "reduce/05_two_step.cu",
        _two_step,
        _fits_chunks,
        scratch=lambda problem: problem.kept * chunks(problem)[0] * _STATE_BYTES[problem.what],
    ),
    Variant(
        6,
        "columns",
        "a warp reads neighbouring columns, blocks take slabs of rows",
        "reduce/06_columns.cu",
        _columns,
        _one_axis,
        scratch=_columns_scratch,
        problems="one axis",
    ),
)


def choose(problem: ReduceProblem, arch: str) -> str:
    """The rung that "auto" means."""
    if problem.whole:
        return "two_step"
    if abs(problem.along_stride) > abs(problem.kept_stride) and problem.kept > 1:
        return "columns"
    few = problem.kept < 4 * problem.sms and problem.length >= 2 * CHUNK_LEAST
    if few:
        return "two_step"
    return "vec4" if problem.along_stride == 1 or problem.length <= 1 else "warp_shuffle"


def _arguments(problem: ReduceProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], output, *problem.walk, problem.y_stride, problem.kept, problem.length)


def _family(what: str, baseline: Callable[..., Any], **given: Any) -> Family[ReduceProblem]:
    dtype = result_dtype(what)
    common: dict[str, Any] = {
        "name": what,
        "variants": VARIANTS,
        "make_inputs": make_inputs,
        "output_like": lambda inputs, axis=-1: (result_shape(what, inputs[0].shape, axis), dtype),
        "reference": baseline,
        "rounding": lambda inputs, exact, axis=-1: 0.0,
        "baseline": baseline,
        "problem": lambda inputs, output, axis=-1: problem(what, inputs, output, axis),
        "arguments": _arguments,
        "traffic": lambda problem: 4 * problem.kept * problem.length,
        "flops": lambda problem: 0,
        "choose": choose,
        "empty": lambda problem: problem.kept == 0,
        "shapes": {
            "gpu": ((8192, 8192),),
            "sim": ((32, 500), (7, 1024)),
            "sim sweep": ((64, 64), (32, 127), (8, 1000), (2, 4099)),
            "sweep": ((512, 512), (8192, 8192), (65536, 256), (256, 1048576), (1 << 28,)),
        },
        "modes": {"": {"axis": -1}, "columns": {"axis": 0}, "all": {"axis": None}},
    }
    return Family(**(common | given))


SUM = _family("sum", sum_baseline, reference=sum_reference, rounding=sum_rounding)
MAX = _family("max", maximum, reference=lambda inputs, axis=-1: np.asarray(maximum(inputs, axis), np.float64))
ARGMAX = _family("argmax", first_maximum)


def sum(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """The sum of a 1-D or 2-D float32 array over `axis` (None: all of it), in float32; 0 where there are no elements.

    x: any strides; cudakit's, torch's or CuPy's, and so is the result. out: where to write, apart from x; a new array
    unless given. variant: a rung by name, or "auto". stream: the device's default stream, or torch's or CuPy's current
    one, unless given. Returns without waiting. Sums are added in a fixed tree of at most 32 branches a level, so that
    rounding grows with the logarithm of the number n of elements: by at most 16 * eps * (log32(n) + 2) of the sum of
    their magnitudes, eps being 2^-23. Raises ValueError for arrays it does not take, UnsupportedVariant for a rung that
    does not take them.
    """
    return front.apply(SUM, (x,), out, variant, stream, {"axis": axis})


def max(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """The maximum over `axis`; NaN where there is one. ValueError where there are no elements. The rest is `sum`'s."""
    return front.apply(MAX, (x,), out, variant, stream, {"axis": axis})


def argmax(x: Any, axis: int | None = None, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """The index (int64) of the first maximum over `axis`, or of the first NaN where there is one; over all of a 2-D
    array the index in C order. ValueError where there are no elements. The rest is `sum`'s."""
    return front.apply(ARGMAX, (x,), out, variant, stream, {"axis": axis})
