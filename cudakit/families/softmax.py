"""Row softmax: y[r, c] = exp(x[r, c] - max_r) / sum_c exp(x[r, c] - max_r).

`softmax(x)` picks the best rung of the ladder that takes its arrays and options. `FAMILY` is the ladder of float32
without options; softmax_modes has that of float16 and bfloat16, of the logarithm, of a scale and of masks. Rows that
hold NaN or +inf, and rows of -inf alone, come out as NaN throughout, as the definition has it in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.families import front, softmax_modes
from cudakit.families.softmax_host import baseline, make_inputs, reference, rounding
from cudakit.families.softmax_ladder import LADDER
from cudakit.families.softmax_problem import RowProblem, problem
from cudakit.families.variant import Family


def _arguments(problem: RowProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], output, *problem.x_strides, *problem.y_strides, problem.rows, problem.cols)


def choose(problem: RowProblem, arch: str) -> str:
    """The rung that "auto" means: the fastest on an H200 among those that support the problem."""
    few = problem.rows < problem.sms
    order = ("registers", "split_row", "on_chip") if problem.vectors else ("span", "registers")
    supported = (name for name in order if FAMILY.variant(name).refusal(problem, arch) is None)
    return next(supported, "two_launches" if few else "warp_shuffle")


FAMILY: Family[RowProblem] = Family(
    name="softmax",
    variants=LADDER,
    make_inputs=make_inputs,
    output_like=lambda inputs: (tuple(inputs[0].shape), np.dtype(np.float32)),
    reference=reference,
    rounding=rounding,
    baseline=baseline,
    problem=problem,
    arguments=_arguments,
    traffic=lambda problem: 8 * problem.rows * problem.cols,
    flops=lambda problem: 0,
    choose=choose,
    instead=lambda dtype: None if dtype in ("float32", "") else softmax_modes.FAMILY,
    empty=lambda problem: problem.rows == 0 or problem.cols == 0,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((32, 512), (16, 1001)),
        "sim sweep": ((64, 64), (32, 127), (32, 256), (16, 1000), (8, 2048), (4, 4099)),
        "sweep": (
            (512, 512),
            (1024, 1024),
            (2048, 2048),
            (8192, 8192),
            (4096, 12672),
            (4096, 16384),
            (4096, 32768),
            (32768, 1000),
            (65536, 256),
            (131072, 127),
            (1024, 131072),
            (16, 1048576),
        ),
    },
)


def softmax(
    x: Any,
    out: Any = None,
    variant: str = "auto",
    stream: Any = None,
    *,
    log: bool = False,
    scale: float = 1.0,
    mask: Any = None,
) -> Any:
    """Softmax along the last axis of a 1-D or 2-D array: cudakit's, torch's or CuPy's, and so is the result.

    x: (rows, cols) or (cols,), any strides, float32, float16 or bfloat16. out: where to write, or x itself; a new array
    unless given. log: its natural logarithm instead. scale: a factor on x, rounded to float32. mask: an array that
    broadcasts to x, bool (True takes part) or float32 (added; -inf hides); a row that is hidden altogether gives 0, and
    -inf with log. variant: a rung by name, of the family softmax for float32 without options, else of softmax_modes.
    stream: the device's default stream, or torch's or CuPy's current one, unless given. Returns without waiting. Raises
    ValueError for arrays it does not take, UnsupportedVariant for a rung that does not take them.
    """
    if not log and scale == 1.0 and mask is None:
        return front.apply(FAMILY, (x,), out, variant, stream)
    inputs = (x,) if mask is None else (x, mask)
    return front.apply(softmax_modes.FAMILY, inputs, out, variant, stream, options={"log": log, "scale": scale})
