"""Matrix products on the host, for both families: inputs, the float64 reference, its rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.rounding import SMALLEST, U, of_chain

# The most multiply-adds, and terms per sum, of a product that is also summed from left to right.
IN_ORDER_WORK, IN_ORDER_TERMS = 1 << 22, 1 << 14
# In products of more than MANY_SUMS sums, some sums have intermediate values several times as large as their result.
# The largest error of 4096 x 4096 sums of 4,096 products of normal numbers is 2.3 times the bound for one sum (cuBLAS
# and our kernels that add in order, on an H200); that of 1000 x 1000 sums of 1,000 products is 1.9 times.
MANY_SUMS, PASSING = 1 << 16, 3.0


def read_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of a bench's shape: (n,) is a square product, (m, n, k) one product, (batch, m, n, k)
    several."""
    if len(shape) == 1:
        return shape * 3
    return shape


def make_inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return normal numbers for A and B of a bench's (m, n, k) or (batch, m, n, k). Raise ValueError for other
    shapes."""
    if len(shape) not in (3, 4):
        raise ValueError("the shape of a product is N, MxNxK or BATCHxMxNxK")
    *batch, m, n, k = shape
    shapes = ((*batch, m, k), (*batch, k, n))
    return tuple(rng.standard_normal(each, dtype=np.float32).astype(dtype, copy=False) for each in shapes)


def reference(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    """Return alpha * A @ B + beta * C. C is not read if beta is 0."""
    product = alpha * (a @ b)
    return product + beta * c if beta else product


def rounding(
    exact: Any,
    *inputs: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    of_sum: Callable[[int], float] = of_chain,
) -> Any:
    """Return the rounding error of each output: of_sum(k) times the size of its sum of k products, and the rounding of
    alpha and beta.

    The size is the root of the sum of the products' squares, or the sum itself if that is larger. For a small product
    the bound is at least twice the measured error of summing from left to right; that error is larger if the order of
    the numbers produces large partial sums.
    """
    a, b, *rest = (np.asarray(x).astype(np.float64) for x in inputs)
    k = a.shape[-1]
    with np.errstate(all="ignore"):
        added = np.abs(beta * rest[0]) if beta else 0.0
        if not alpha or not k:
            return 2 * U * (added + np.abs(exact))
        total = (exact - (beta * rest[0] if beta else 0.0)) / alpha
        size = _root_of_squares(a, b) * (PASSING if exact.size > MANY_SUMS else 1.0)
        off = of_sum(k) * np.fmax(size, np.abs(total))
        if k <= IN_ORDER_TERMS and exact.size * k <= IN_ORDER_WORK:
            single = _left_to_right(*(np.asarray(x).astype(np.float32) for x in inputs[:2]))
            off = np.fmax(off, 2 * np.abs(single - total))
        return abs(alpha) * off + 2 * U * (np.abs(alpha * total) + added) + SMALLEST


def _root_of_squares(a: Any, b: Any) -> Any:
    """Return the root of a^2 @ b^2. Large products are computed in float32, which is faster and accurate enough for a
    bound."""
    if a.shape[-2] * a.shape[-1] * b.shape[-1] <= 1 << 24:
        return np.sqrt(np.square(a) @ np.square(b))
    rows, cols = (np.abs(x).max(axis=axis, keepdims=True, initial=0.0) for x, axis in ((a, -1), (b, -2)))
    rows, cols = (np.where(np.isfinite(x) & (x > 0), x, 1.0) for x in (rows, cols))
    squares = np.square((a / rows).astype(np.float32)) @ np.square((b / cols).astype(np.float32))
    return np.sqrt(squares, dtype=np.float64) * rows * cols


def _left_to_right(a: Any, b: Any) -> Any:
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for i in range(a.shape[-1]):
        total += a[..., :, i, None] * b[..., i, None, :]
    return total
