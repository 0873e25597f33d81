"""The functions of the kernel families, and the families by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.families.add import FAMILY as _ADD
from cudakit.families.add import add
from cudakit.families.add_broadcast import FAMILY as _ADD_BROADCAST
from cudakit.families.add_broadcast import add_broadcast
from cudakit.families.attention import FAMILY as _ATTENTION
from cudakit.families.attention import attention
from cudakit.families.blur import FAMILY as _BLUR
from cudakit.families.blur import blur
from cudakit.families.gemm import FAMILY as _GEMM
from cudakit.families.gemm import gemm
from cudakit.families.gemm_half import FAMILY as _GEMM_HALF
from cudakit.families.matrix_add import FAMILY as _MATRIX_ADD
from cudakit.families.matrix_add import matrix_add
from cudakit.families.random import NORMAL as _NORMAL
from cudakit.families.random import UNIFORM as _UNIFORM
from cudakit.families.random import normal, uniform
from cudakit.families.reduce import ARGMAX as _ARGMAX
from cudakit.families.reduce import MAX as _MAX
from cudakit.families.reduce import SUM as _SUM
from cudakit.families.reduce import argmax, max, sum
from cudakit.families.softmax import FAMILY as _SOFTMAX
from cudakit.families.softmax import softmax
from cudakit.families.softmax_backward import FAMILY as _SOFTMAX_BACKWARD
from cudakit.families.softmax_backward import softmax_backward
from cudakit.families.softmax_modes import FAMILY as _SOFTMAX_MODES
from cudakit.families.unary import CAST as _CAST
from cudakit.families.unary import FACTOR as _FACTOR
from cudakit.families.unary import FILL as _FILL
from cudakit.families.unary import LIMIT as _LIMIT
from cudakit.families.unary import SCALE as _SCALE
from cudakit.families.unary import THRESHOLD as _THRESHOLD
from cudakit.families.unary import cast, fill, scale, threshold
from cudakit.families.vector_add import FAMILY as _VECTOR_ADD

if TYPE_CHECKING:
    from cudakit.families.variant import Family, Variant

__all__ = [
    "add", "add_broadcast", "argmax", "attention",
    "blur", "call_of", "cast", "families", "fill", "gemm", "matrix_add", "max", "normal", "scale",
    "softmax", "softmax_backward", "sum", "threshold", "uniform",
]  # fmt: skip


def families() -> dict[str, Family[Any]]:
    """Every family by name."""
    return {
        family.name: family
        for family in (
            _VECTOR_ADD,
            _MATRIX_ADD,
            _ADD_BROADCAST,
            _ADD,
            _SCALE,
            _THRESHOLD,
            _CAST,
            _FILL,
            _SUM,
            _MAX,
            _ARGMAX,
            _SOFTMAX,
            _SOFTMAX_MODES,
            _SOFTMAX_BACKWARD,
            _ATTENTION,
            _GEMM,
            _GEMM_HALF,
            _BLUR,
            _UNIFORM,
            _NORMAL,
        )
    }


_Call = Callable[[], Any]


def call_of(
    family: str, variant: Variant[Any], inputs: Sequence[Any], out: Any, stream: Any = None, **options: Any
) -> _Call | None:
    """A user's call of the function of `family` that runs `variant`: the returned function makes it, without arguments.

    inputs, out: the arrays of one problem, of one library. stream: as for every op. options: one of the family's modes.
    None if no call of the function runs `variant`: if it is not one of the family's in `families`, or the function
    takes another family's kernels for these arrays.
    """
    known = families().get(family)
    if known is None or not any(variant is rung for rung in known):
        return None
    return _CALLS[family](inputs, out, variant.name, stream, **options)


def _positional(function: Callable[..., Any]) -> Callable[..., _Call]:
    """Calls of a function of the inputs alone; `options` only shaped them."""

    def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> _Call:
        return functools.partial(function, *inputs, out, variant, stream)

    return call


def _with_parameter(function: Callable[..., Any], name: str, usual: Any) -> Callable[..., _Call]:
    """Calls of a function of one array and one parameter."""

    def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> _Call:
        return functools.partial(function, inputs[0], options.get(name, usual), out, variant, stream)

    return call


def _with_options(function: Callable[..., Any]) -> Callable[..., _Call]:
    """Calls of a function that takes a family's options by the same names."""

    def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> _Call:
        return functools.partial(function, *inputs, out, variant=variant, stream=stream, **options)

    return call


def _call_fill(inputs: Sequence[Any], out: Any, variant: str, stream: Any, value: Any = 1.0) -> _Call:
    return functools.partial(fill, out, value, variant, stream)


def _random(function: Callable[..., Any]) -> Callable[..., _Call]:
    def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> _Call:
        return lambda: function(out=out, variant=variant, stream=stream, **options)

    return call


def _call_softmax_modes(
    inputs: Sequence[Any],
    out: Any,
    variant: str,
    stream: Any,
    log: bool = False,
    scale: float = 1.0,
    masked: bool = False,
) -> _Call | None:
    x, mask = inputs[0], inputs[1] if masked else None
    if str(x.dtype).endswith("float32") and not log and scale == 1.0 and not masked:
        return None  # the function takes the family softmax
    return lambda: softmax(x, out, variant, stream, log=log, scale=scale, mask=mask)


def _call_gemm(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> _Call:
    a, b, *rest = inputs
    given = {**options, **({"c": rest[0]} if rest else {})}
    return lambda: gemm(a, b, out, variant=variant, stream=stream, **given)


_CALLS: dict[str, Callable[..., _Call | None]] = {
    "vector_add": _positional(add),
    "matrix_add": _positional(matrix_add),
    "add_broadcast": _positional(add_broadcast),
    "add": _positional(add),
    "scale": _with_parameter(scale, "factor", _FACTOR),
    "threshold": _with_parameter(threshold, "limit", _LIMIT),
    "cast": _with_parameter(cast, "to", "float16"),
    "fill": _call_fill,
    "sum": _with_parameter(sum, "axis", -1),
    "max": _with_parameter(max, "axis", -1),
    "argmax": _with_parameter(argmax, "axis", -1),
    "softmax": _positional(softmax),
    "softmax_modes": _call_softmax_modes,
    "softmax_backward": _with_options(softmax_backward),
    "attention": _with_options(attention),
    "gemm": _call_gemm,
    "gemm_half": _call_gemm,
    "blur": _with_options(blur),
    "uniform": _random(uniform),
    "normal": _random(normal),
}
