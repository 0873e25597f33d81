"""Matrix products on the host, for both families: inputs, the float64 reference, the plain algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.compare import in_range

# Host work that a check may take: multiply-adds of the plain sum from left to right.
PLAIN_WORK = 1 << 26


def read_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(n,) is a square product, (m, n, k) one product, (batch, m, n, k) several."""
    if len(shape) == 1:
        return shape * 3
    return shape


def make_inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Normal numbers for A and B of a bench's (m, n, k) or (batch, m, n, k); ValueError for other shapes."""
    if len(shape) not in (3, 4):
        raise ValueError("write n, MxNxK or BATCHxMxNxK")
    *batch, m, n, k = shape
    shapes = ((*batch, m, k), (*batch, k, n))
    return tuple(rng.standard_normal(each, dtype=np.float32).astype(dtype, copy=False) for each in shapes)


def reference(inputs: Sequence[Any], alpha: float = 1.0, beta: float = 0.0, limit: Any = np.float32) -> Any:
    """alpha * A @ B + beta * C in float64; infinite where it is past the range of dtype `limit`. C is not looked at
    where beta is 0."""
    a, b, *rest = (np.asarray(x, dtype=np.float64) for x in inputs)
    with np.errstate(all="ignore"):
        exact = alpha * (a @ b)
        if beta:
            exact = exact + beta * rest[0]
    return in_range(exact, limit)


def random_walk(k: int) -> float:
    """The spread of a sum of k products in float32, in eps times its size: the root of the sum of their squares, or the
    sum itself where it is larger."""
    return float(np.sqrt(k)) / 5


def plain(
    inputs: Sequence[Any],
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = np.float32,
    usual: Callable[[int], float] = random_walk,
) -> Any:
    """The textbook sum in float32, from left to right, rounded to `dtype`.

    A sum may be right by luck, where its terms cancel or its roundings do, and no other order of it would be. So each
    is given at least the error that is usual: eps * usual(k) times its size (as in random_walk). Of a large product
    only some rows are made, and the largest error among them, in units of the row of A's length, is carried to each.
    """
    a, b, *rest = (np.asarray(x).astype(np.float32) for x in inputs)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    with np.errstate(all="ignore"):
        if a.ndim == b.ndim == 2 and m * n * k > PLAIN_WORK:
            return _plain_of_sample(a, b, rest, alpha, beta, dtype, usual)
        exact, error = _exact_and_error(a, b, usual)
        return _finish(exact + error, [r.astype(np.float64) for r in rest], alpha, beta).astype(dtype)


def _exact_and_error(a: Any, b: Any, usual: Callable[[int], float]) -> tuple[Any, Any]:
    """a @ b in float64, and what the sums from left to right are off by, no less than is usual."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b
    error = _left_to_right(a, b) - exact
    size = np.maximum(np.sqrt(np.square(wide_a) @ np.square(wide_b)), np.abs(exact))
    least = np.finfo(np.float32).eps * usual(a.shape[-1]) * size
    return exact, np.where(np.abs(error) < least, np.copysign(least, error), error)


def _left_to_right(a: Any, b: Any) -> Any:
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for i in range(a.shape[-1]):
        total += a[..., :, i, None] * b[..., i, None, :]
    return total


def _plain_of_sample(
    a: Any, b: Any, rest: Any, alpha: float, beta: float, dtype: Any, usual: Callable[[int], float]
) -> Any:
    (m, k), n = a.shape, b.shape[1]
    rows = np.random.default_rng(0).choice(m, size=max(1, min(m, PLAIN_WORK // (n * k))), replace=False)
    _, error = _exact_and_error(a[rows], b[:, : max(1, PLAIN_WORK // k)], usual)
    lengths = np.linalg.norm(a.astype(np.float64), axis=1)
    result = _finish(a.astype(np.float64) @ b.astype(np.float64), [r.astype(np.float64) for r in rest], alpha, beta)
    result += (abs(alpha) * _worst_ratio(np.abs(error), lengths[rows]) * lengths)[:, None]
    return result.astype(dtype)


def _worst_ratio(error: Any, lengths: Any) -> float:
    """The largest error (..., row, column) over its row's length. A row next to nothing beside the others is not asked:
    its numbers may be denormal."""
    finite = np.where(np.isfinite(lengths), lengths, 0.0)
    usual = (finite > 1e-3 * finite.max(initial=0.0))[..., None]
    return float(np.max(error / lengths[..., None], initial=0.0, where=usual & np.isfinite(error)))


def _finish(total: Any, rest: Any, alpha: float, beta: float) -> Any:
    kind = total.dtype.type
    return kind(alpha) * total + (kind(beta) * rest[0] if beta else kind(0))
