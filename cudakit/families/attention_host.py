"""Attention on the host: the float64 reference, its rounding, and what a numpy user would write.

All work through the rows of one head in blocks, with heads in several threads, so that no array of all scores is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cudakit.compare import steps_of
from cudakit.families import gemm_half
from cudakit.rounding import U, of_chain, of_exponential

# Multiply-adds of one product for which inputs are drawn anew, at two groups of heads at least. In larger ones (2^39
# are usual in a bench) those groups come again, in random order, and the reference of a group is made once.
DRAWN_WORK = 1 << 34
# Scores of a block of rows, and heads at once: what 16 cores are fastest with, whose numpy lets one product of matrices
# run at a time (on all of them).
_BLOCK = 1 << 22
_THREADS = 4


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, **options: Any
) -> tuple[np.ndarray, ...]:
    """Normal numbers for q, k and v of a shape (batches, heads, key heads, queries, keys, d). See DRAWN_WORK."""
    if len(shape) != 6:
        raise ValueError("an attention is BATCHxHEADSxKEY_HEADSxQUERIESxKEYSxD")
    batches, heads, key_heads, sq, skv, d = shape
    group = heads // max(key_heads, 1)
    groups = batches * key_heads
    work = max(group * sq * skv * d, 1)
    drawn = min(groups, max(DRAWN_WORK // work, 2))
    places = np.concatenate([np.arange(drawn), rng.integers(0, max(drawn, 1), groups - drawn)])
    sizes = ((group, sq, d), (1, skv, d), (1, skv, d))
    parts = (rng.standard_normal((drawn, *size), dtype=np.float32).astype(dtype, copy=False) for size in sizes)
    q, k, v = (part[places].reshape(batches, key_heads * part.shape[1], *part.shape[2:]) for part in parts)
    return q, k, v


def reference(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """softmax(q k^T scale) v in float64; 0 for a query that sees no key. What is there twice is computed once."""
    return _attend((q, k, v), causal, scale, np.float64, once=True)


def baseline(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """The same in float32, rounded to the inputs' dtype."""
    return _attend((q, k, v), causal, scale, np.float32).astype(q.dtype)


def rounding(exact: Any, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """The roundings of scores, probabilities and sums, for each element.

    Every probability p has an error of its own: the rounding of its score, and of 16-bit inputs that of p itself, which
    enters the second product as a 16-bit number. These errors are independent; they move sum(p * v) by as much as they
    are, times the root of the sum of the squares of p * v. Sums on tensor cores are cut (gemm_half.of_sum); sums of
    float32 are chains of fused multiply-adds.
    """
    if not exact.size or not v.size:
        return 0.0
    halves = q.dtype.itemsize == 2
    of_sum = gemm_half.of_sum if halves else of_chain
    d, skv = q.shape[-1], k.shape[2]
    with np.errstate(all="ignore"):
        size = np.nan_to_num(_attend((q, k, v), causal, scale, np.float32, once=True, rows_of=_spread), posinf=0.0)
        factor = 1 / math.sqrt(d) if scale is None else abs(scale)
        lengths = [np.linalg.norm(np.where(np.isfinite(x), x, 0).astype(np.float64), axis=-1) for x in (q, k)]
        longest = np.repeat(lengths[1].max(axis=-1, initial=0.0), q.shape[1] // k.shape[1], axis=1)[..., None]
        scores = (of_sum(d) + 4 * U) * factor * lengths[0] * longest
        each = scores + of_exponential(0.0) + (0.42 * 6 * steps_of(q.dtype).last if halves else 0.0)
        return (each[..., None] + of_sum(skv)) * np.fmax(size, 0.0) + (of_sum(skv) + 6 * U) * np.abs(exact)


def _last_key(row: int, sq: int, skv: int, causal: bool) -> int:
    return min(row + skv - sq, skv - 1) if causal else skv - 1


def _attend(
    inputs: Sequence[Any],
    causal: bool,
    scale: float | None,
    dtype: Any,
    once: bool = False,
    rows_of: Callable[..., Any] | None = None,
) -> Any:
    """The output in `dtype`, computed in it. once: heads whose inputs are the same, bit by bit, share their output.
    rows_of: makes the output of some rows of one head (_rows)."""
    rows_of = rows_of or _rows
    q, k, v = inputs
    out = np.zeros(q.shape, dtype)
    if not out.size or not k.shape[2]:
        return out
    factor = dtype(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    sq, group = q.shape[2], q.shape[1] // k.shape[1]

    def of(place: tuple[int, int]) -> tuple[Any, Any, Any]:
        batch, head = place
        return q[batch, head], k[batch, head // group], v[batch, head // group]

    def head(place: tuple[int, int]) -> None:
        queries, keys, values = (x.astype(dtype) for x in of(place))
        queries *= factor
        for rows in _blocks(sq, k.shape[2]):
            out[place][rows] = rows_of(queries[rows], keys, values, rows, sq, causal)

    def key(place: tuple[int, int]) -> bytes:
        return b"".join(hashlib.sha1(np.ascontiguousarray(x).view(np.uint8).data).digest() for x in of(place))

    places = list(np.ndindex(*q.shape[:2]))
    if len(places) == 1:
        head(places[0])
        return out
    with ThreadPoolExecutor(_THREADS) as pool:
        keys = list(pool.map(key, places)) if once else places
        first = dict(zip(reversed(keys), reversed(places), strict=True))
        list(pool.map(head, first.values()))
    for place, like in zip(places, keys, strict=True):
        if first[like] != place:
            out[place] = out[first[like]]
    return out


def _blocks(sq: int, skv: int) -> Iterator[slice]:
    step = max(1, _BLOCK // skv)
    return (slice(first, min(first + step, sq)) for first in range(0, sq, step))


def _spread(q: Any, k: Any, v: Any, rows: slice, sq: int, causal: bool) -> Any:
    """The root of the sum of the squares of p * v, for some rows of one head."""
    return np.sqrt(_rows(q, k, v, rows, sq, causal, squared=True))


def _rows(q: Any, k: Any, v: Any, rows: slice, sq: int, causal: bool, squared: bool = False) -> Any:
    """The output of some rows of one head, `q` already scaled. squared: that of squared probabilities and values."""
    skv = len(k)
    seen = max(_last_key(rows.stop - 1, sq, skv, causal) + 1, 0)
    if not seen:
        return np.zeros_like(q)
    with np.errstate(all="ignore"):
        scores = q @ k[:seen].T
        hidden = None
        if causal:
            hidden = np.arange(seen) > np.arange(rows.start, rows.stop)[:, None] + (skv - sq)
            scores[hidden] = -np.inf
        scores -= np.fmax.reduce(scores, axis=-1, keepdims=True)  # NaN is passed over, and comes back in by the sum
        p = np.exp(scores, out=scores)
        if hidden is not None:
            p[hidden] = 0  # in a row that sees nothing, or nothing but -inf, too
        total = p.sum(axis=-1, keepdims=True)
        if squared:
            p, v, total = np.square(p / total), np.square(v), 1.0
        result = p @ v[:seen]
        result /= total
        if hidden is not None:
            result[hidden.all(axis=-1)] = 0
        return result
