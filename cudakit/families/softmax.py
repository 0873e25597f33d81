"""Row softmax: y[r, c] = exp(x[r, c] - max_r) / sum_c exp(x[r, c] - max_r).

`softmax(x)` picks the fastest variant that supports its arrays and options. `FAMILY` is the ladder of float32 without
options; softmax_modes has the ladder for float16 and bfloat16, the logarithm, a scale and masks. If a row contains NaN
or +inf, or only -inf, every element of its result is NaN, as by the definition in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from cudakit.families import softmax_modes
from cudakit.families.softmax_host import make_inputs, reference, rounding
from cudakit.families.softmax_ladder import LADDER
from cudakit.families.softmax_problem import RowProblem, problem
from cudakit.family import IN, OUT, Family, apply


def choose(problem: RowProblem, arch: str) -> str:
    """Return the variant for "auto": the fastest on an H200 among those that support the problem."""
    few = problem.rows < problem.sms
    order = ("registers", "split_row", "on_chip") if problem.vectors else ("span", "registers")
    supported = (name for name in order if FAMILY[name].refusal(problem, arch) is None)
    return next(supported, "two_launches" if few else "warp_shuffle")


FAMILY: Family[RowProblem] = Family(
    name="softmax",
    reference=lambda x: reference(x),
    variants=LADDER,
    inputs=make_inputs,
    outputs={"out": "float32"},
    problem=problem,
    arguments=lambda p: (IN[0], OUT, *p.x_strides, *p.y_strides, p.rows, p.cols),
    rounding=rounding,
    choose=choose,
    instead=lambda dtype: None if dtype in ("float32", "") else softmax_modes.FAMILY,
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
    problems="cudakit.testing.softmax:softmax_cases",
)
FAMILY.call = lambda inputs, out, variant, stream: functools.partial(softmax, inputs[0], out, variant, stream)


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
    """Return the softmax along the last axis of a 1-D or 2-D array of cudakit, torch or CuPy.

    Does not wait for the device.

    Args:
        x: Shape (rows, cols) or (cols,), any strides; float32, float16 or bfloat16.
        out: The output, which may be `x` itself. By default a new array.
        variant: The name of a variant, or "auto". Variants are of the family softmax for float32 without options,
            otherwise of softmax_modes.
        stream: By default the device's default stream, or the current stream of torch or CuPy.
        log: If true, return the natural logarithm of the softmax.
        scale: A factor on `x`, rounded to float32.
        mask: An array that broadcasts to `x`: bool (False hides an element) or float32 (added to `x`; -inf hides). The
            result for a row of only hidden elements is 0, or -inf with `log`.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    if not log and scale == 1.0 and mask is None:
        return apply(FAMILY, (x,), out, variant, stream)
    inputs = (x,) if mask is None else (x, mask)
    return apply(softmax_modes.FAMILY, inputs, out, variant, stream, {"log": log, "scale": scale})


def _call_modes(
    inputs: Sequence[Any],
    out: Any,
    variant: str,
    stream: Any,
    log: bool = False,
    scale: float = 1.0,
    masked: bool = False,
) -> Callable[[], Any] | None:
    x, mask = inputs[0], inputs[1] if masked else None
    if str(x.dtype).endswith("float32") and not log and scale == 1.0 and not masked:
        return None  # softmax() would use the family softmax
    return functools.partial(softmax, x, out, variant, stream, log=log, scale=scale, mask=mask)


softmax_modes.FAMILY.call = _call_modes
