"""The fused epilogue of a product on the host: D = scale * activation(product + bias) + residual, with product =
alpha * A @ B + beta * C. The float64 reference and the rounding error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.rounding import SMALLEST, U

_erfc = np.frompyfunc(math.erfc, 1, 1)

# The largest slope of an activation (gelu's), and the largest error of x's factor in the kernels: Phi, tanh's form or
# sigmoid.
_STEEPEST, _OWN = 1.13, 8 * U
# The largest relative error of |x| * Phi(-|x|) in the kernels, by the dtype of the result, without a residual, while it
# is more than 1e-5 (bfloat16: 1e-4); the error of smaller ones is a part of _OWN.
_OWN_GELU = {"float16": 1.2e-5, "bfloat16": 8e-5}


def _gelu(x: Any) -> Any:
    return 0.5 * x * _erfc(-x / math.sqrt(2)).astype(x.dtype)


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def activated(x: Any, activation: str) -> Any:
    """Return the activation of an array, in its precision. "" returns the array."""
    if not activation:
        return x
    return np.where(x == -np.inf, x.dtype.type(0), _FUNCTIONS[activation](x))  # the formulas multiply infinity by 0


def applied(product: Any, bias: Any = None, residual: Any = None, *, activation: str = "", scale: float = 1.0) -> Any:
    """Return scale * activation(product + bias) + residual, in the precision of `product`."""
    value = product if bias is None else product + bias
    value = product.dtype.type(scale) * activated(value, activation)
    return value if residual is None else value + residual


def rounding(
    product: Any,
    error: Any,
    bias: Any = None,
    residual: Any = None,
    *,
    dtype: Any,
    activation: str = "",
    scale: float = 1.0,
) -> Any:
    """Return the rounding error of each element of `applied`, from the exact product and its rounding error. dtype: of
    the result, whose own rounding is not part of it."""
    with np.errstate(all="ignore"):
        value = product if bias is None else product + bias
        error = error + 2 * U * (np.abs(product) + np.abs(value))
        if activation:
            error = _STEEPEST * error + (0.0 if activation == "relu" else _OWN) * np.abs(value)
        own = _OWN_GELU.get(np.dtype(dtype).name, 0.0) if activation == "gelu" and residual is None else 0.0
        if own:
            error = error - own * activated(-np.abs(value), activation)
        result = scale * activated(value, activation)
        error = abs(scale) * (error + SMALLEST) + 2 * U * np.abs(result) + SMALLEST
        return error if residual is None else error + 2 * U * np.abs(result + residual)
