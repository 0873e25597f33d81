"""Attention on the host: the float64 reference, the plain algorithm, and what a numpy user would write.

All work through the rows of one head in blocks, with heads in several threads, so that no array of all scores is made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cudakit.compare import steps_of
from cudakit.families.gemm_host import random_walk

# Multiply-adds of one product for which inputs are drawn anew, at two groups of heads at least. In larger ones (2^39
# are usual in a bench) those groups come again, in random order, and the reference of a group is made once.
DRAWN_WORK = 1 << 34
# Scores of a block of rows, and heads at once: what 16 cores are fastest with, whose numpy lets one product of matrices
# run at a time (on all of them).
_BLOCK = 1 << 22
_THREADS = 4
# The rows from which the plain algorithm's error is taken.
PLAIN_ROWS = 512


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
    q, k, v = (part[places].reshape(batches, -1, *part.shape[2:]) for part in parts)
    return q, k, v


def reference(inputs: Sequence[Any], causal: bool = False, scale: float | None = None) -> Any:
    """softmax(q k^T scale) v in float64; 0 for a query that sees no key. What is there twice is computed once."""
    return _attend(inputs, causal, scale, np.float64, once=True)


def baseline(inputs: Sequence[Any], causal: bool = False, scale: float | None = None) -> Any:
    """The same in float32, rounded to the inputs' dtype."""
    with np.errstate(over="ignore"):
        return _attend(inputs, causal, scale, np.float32).astype(inputs[0].dtype)


def plain(inputs: Sequence[Any], causal: bool = False, scale: float | None = None) -> Any:
    """The three-pass algorithm in float32 (scores, softmax, product), its sums taken from left to right and its
    probabilities rounded to the dtype of the inputs, as any kernel on tensor cores must.

    It is run for PLAIN_ROWS rows, spread over the problem: its largest error there, relative to the largest element of
    the row's reference, is then given to one element of every row. It is at least what is usual, since few rows may be
    right by luck: the roundings of a score, a random walk of its products that every exponential has as its error, and
    of 16-bit numbers one step, which a kernel may lose that rounds its probabilities before it divides.
    """
    q, k, v = inputs
    exact = reference(inputs, causal, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        out = exact.astype(q.dtype)
    if not out.size:
        return out
    batches, heads, sq = q.shape[:3]
    error = 2 * steps_of(q.dtype).last
    picks = np.unique(np.linspace(0, batches * heads * sq - 1, PLAIN_ROWS).astype(np.int64))
    for pick in picks:
        batch, rest = divmod(int(pick), heads * sq)
        head, row = divmod(rest, sq)
        last = _last_key(row, sq, k.shape[2], causal)
        key_head = head // (heads // k.shape[1])
        want = exact[batch, head, row]
        error = max(error, _usual(q[batch, head, row], k[batch, key_head, : last + 1], scale))
        got = _plain_row(
            q[batch, head, row], k[batch, key_head, : last + 1], v[batch, key_head, : last + 1], scale, q.dtype
        )
        finite = np.isfinite(want) & np.isfinite(got)
        top = np.abs(want, where=finite, out=np.zeros_like(want)).max()
        if top > 0:
            error = max(error, float(np.abs(np.where(finite, got - want, 0.0)).max() / top))
    sized = np.where(np.isfinite(exact), np.abs(exact), -1.0)
    at = sized.argmax(axis=-1, keepdims=True)
    moved = np.take_along_axis(exact, at, -1) * (1 + error)
    with np.errstate(over="ignore"):
        np.put_along_axis(out, at, moved.astype(q.dtype), -1)
    return out


def _usual(q: Any, k: Any, scale: float | None) -> float:
    """The spread of the rounding of a query's scores, with that of the output."""
    factor = 1 / math.sqrt(len(q)) if scale is None else abs(scale)
    with np.errstate(all="ignore"):
        squares = np.square(k.astype(np.float64)) @ np.square(q.astype(np.float64))
    largest = np.sqrt(np.max(squares, initial=0.0, where=np.isfinite(squares)))
    return float(np.finfo(np.float32).eps * (1 + factor * random_walk(len(q)) * largest))


def _plain_row(q: Any, k: Any, v: Any, scale: float | None, dtype: Any) -> Any:
    """One query's output, in float64 though computed in float32; 0 where it sees no key."""
    factor = np.float32(1 / math.sqrt(len(q)) if scale is None else scale)
    if not len(k):
        return np.zeros(len(q))
    with np.errstate(all="ignore"):
        products = k.astype(np.float32) * q.astype(np.float32)
        scores = np.add.accumulate(products, axis=-1)[:, -1] * factor
        p = np.exp(scores - np.fmax.reduce(scores))
        p = (p / np.add.accumulate(p)[-1]).astype(dtype).astype(np.float32)
        out = np.add.accumulate(p[:, None] * v.astype(np.float32), axis=0)[-1]
        return out.astype(dtype).astype(np.float64)


def _last_key(row: int, sq: int, skv: int, causal: bool) -> int:
    return min(row + skv - sq, skv - 1) if causal else skv - 1


def _attend(inputs: Sequence[Any], causal: bool, scale: float | None, dtype: Any, once: bool = False) -> Any:
    """The output in `dtype`, computed in it. once: heads whose inputs are the same, bit by bit, share their output."""
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
            out[place][rows] = _rows(queries[rows], keys, values, rows, sq, causal)

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


def _rows(q: Any, k: Any, v: Any, rows: slice, sq: int, causal: bool) -> Any:
    """The output of some rows of one head, `q` already scaled."""
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
        result = p @ v[:seen]
        result /= total
        if hidden is not None:
            result[hidden.all(axis=-1)] = 0
        return result
