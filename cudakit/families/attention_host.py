"""Attention on the host: the float64 reference, its rounding, and a float32 baseline in numpy.

Rows of a head are processed in blocks, and heads in several threads, so that the scores of all rows are never stored.
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

# New inputs are drawn for this many multiply-adds of one product, and for at least two groups of heads. Larger problems
# (2^39 is usual in a bench) repeat these groups in random order, so that the reference of each group is computed once.
DRAWN_WORK = 1 << 34
# Scores per block of rows, and heads processed at a time. These values are the fastest on 16 cores with a numpy that
# runs one matrix product at a time, on all cores.
_BLOCK = 1 << 22
_THREADS = 4


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, padded: bool = False, **options: Any
) -> tuple[np.ndarray, ...]:
    """Return normal numbers for q, k and v of a shape (batches, heads, key heads, queries, keys, d). See DRAWN_WORK.

    padded: also return lengths of the batch entries, in random order: n equal steps up to all queries and keys, for n
    entries.
    """
    if len(shape) != 6:
        raise ValueError("the shape of an attention is BATCHxHEADSxKEY_HEADSxQUERIESxKEYSxD")
    batches, heads, key_heads, sq, skv, d = shape
    group = heads // max(key_heads, 1)
    groups = batches * key_heads
    work = max(group * sq * skv * d, 1)
    drawn = min(groups, max(DRAWN_WORK // work, 2))
    places = np.concatenate([np.arange(drawn), rng.integers(0, max(drawn, 1), groups - drawn)])
    sizes = ((group, sq, d), (1, skv, d), (1, skv, d))
    parts = (rng.standard_normal((drawn, *size), dtype=np.float32).astype(dtype, copy=False) for size in sizes)
    q, k, v = (part[places].reshape(batches, key_heads * part.shape[1], *part.shape[2:]) for part in parts)
    if not padded:
        return q, k, v
    share = (1 + rng.permutation(batches)) / max(batches, 1)
    return q, k, v, np.ceil(share[:, None] * (sq, skv)).astype(np.int32)


def reference(
    q: Any,
    k: Any,
    v: Any,
    lengths: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    padded: bool = False,
) -> Any:
    """Return softmax(q k^T scale) v in float64; 0 for a query that sees no key. Heads with equal inputs are computed
    once."""
    return _attend((q, k, v), lengths, causal, scale, np.float64, once=True)


def baseline(
    q: Any,
    k: Any,
    v: Any,
    lengths: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    padded: bool = False,
) -> Any:
    """Return the output computed in float32 and rounded to the inputs' dtype."""
    return _attend((q, k, v), lengths, causal, scale, np.float32).astype(q.dtype)


def rounding(
    exact: Any,
    q: Any,
    k: Any,
    v: Any,
    lengths: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    padded: bool = False,
) -> Any:
    """Return the rounding error of scores, probabilities and sums, per element.

    Each probability p has its own error: the rounding of its score and, for 16-bit inputs, the rounding of p itself to
    16 bits for the second product. These errors are independent, so together they change sum(p * v) by one relative
    error times the root of the sum of the squares of p * v. Sums on tensor cores are truncated (gemm_half.of_sum);
    float32 sums are chains of fused multiply-adds.
    """
    if not exact.size or not v.size:
        return 0.0
    halves = q.dtype.itemsize == 2
    of_sum = gemm_half.of_sum if halves else of_chain
    d, skv = q.shape[-1], k.shape[2]
    with np.errstate(all="ignore"):
        spread = _attend((q, k, v), lengths, causal, scale, np.float32, once=True, rows_of=_spread)
        size = np.nan_to_num(spread, posinf=0.0)
        factor = 1 / math.sqrt(d) if scale is None else abs(scale)
        norms = [np.linalg.norm(np.where(np.isfinite(x), x, 0).astype(np.float64), axis=-1) for x in (q, k)]
        keys = np.array([own[1] for own in _own(lengths, q.shape, skv)])
        norms[1][np.arange(skv) >= keys[:, None, None] + np.zeros(norms[1].shape)] = 0.0  # keys that are not read
        longest = np.repeat(norms[1].max(axis=-1, initial=0.0), q.shape[1] // k.shape[1], axis=1)[..., None]
        scores = (of_sum(d) + 4 * U) * factor * norms[0] * longest
        each = scores + of_exponential(0.0) + (0.42 * 6 * steps_of(q.dtype).last if halves else 0.0)
        return (each[..., None] + of_sum(skv)) * np.fmax(size, 0.0) + (of_sum(skv) + 6 * U) * np.abs(exact)


def _last_key(row: int, sq: int, skv: int, causal: bool) -> int:
    return min(row + skv - sq, skv - 1) if causal else skv - 1


def _own(lengths: Any, shape: Sequence[int], skv: int) -> list[tuple[int, int]]:
    """Return the queries and keys of each batch entry; shape: of q."""
    batches, sq = shape[0], shape[2]
    if lengths is None:
        return [(sq, skv)] * batches
    pairs = np.broadcast_to(lengths.reshape(batches, -1), (batches, 2)).tolist()
    return [(min(max(queries, 0), sq), min(max(keys, 0), skv)) for queries, keys in pairs]


def _attend(
    inputs: Sequence[Any],
    lengths: Any,
    causal: bool,
    scale: float | None,
    dtype: Any,
    once: bool = False,
    rows_of: Callable[..., Any] | None = None,
) -> Any:
    """Return the output, computed in `dtype`. lengths: of the batch entries, or None. once: compute heads with bitwise
    equal inputs only once. rows_of: computes the output of some rows of one head, by default _rows."""
    rows_of = rows_of or _rows
    q, k, v = inputs
    out = np.zeros(q.shape, dtype)
    if not out.size or not k.shape[2]:
        return out
    factor = dtype(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    group, own = q.shape[1] // k.shape[1], _own(lengths, q.shape, k.shape[2])

    def of(place: tuple[int, int]) -> tuple[Any, Any, Any]:
        batch, head = place
        sq, skv = own[batch]
        return q[batch, head, :sq], k[batch, head // group, :skv], v[batch, head // group, :skv]

    def head(place: tuple[int, int]) -> None:
        queries, keys, values = (x.astype(dtype) for x in of(place))
        queries *= factor
        for rows in _blocks(len(queries), len(keys)):
            out[place][rows] = rows_of(queries[rows], keys, values, rows, len(queries), causal)

    def key(place: tuple[int, int]) -> bytes:
        parts = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in of(place))
        return b"".join(hashlib.sha1(part.data).digest() for part in parts)

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
    step = max(1, _BLOCK // max(skv, 1))
    return (slice(first, min(first + step, sq)) for first in range(0, sq, step))


def _spread(q: Any, k: Any, v: Any, rows: slice, sq: int, causal: bool) -> Any:
    """Return the root of the sum of the squares of p * v, for some rows of one head."""
    return np.sqrt(_rows(q, k, v, rows, sq, causal, squared=True))


def _rows(q: Any, k: Any, v: Any, rows: slice, sq: int, causal: bool, squared: bool = False) -> Any:
    """Return the output of some rows of one head; `q` is already scaled. squared: use the squares of probabilities and
    values."""
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
        scores -= np.fmax.reduce(scores, axis=-1, keepdims=True)  # ignores NaN, which the sum propagates
        p = np.exp(scores, out=scores)
        if hidden is not None:
            p[hidden] = 0  # even in a row that sees no key, or only scores of -inf
        total = p.sum(axis=-1, keepdims=True)
        if squared:
            p, v, total = np.square(p / total), np.square(v), 1.0
        result = p @ v[:seen]
        result /= total
        if hidden is not None:
            result[hidden.all(axis=-1)] = 0
        return result
