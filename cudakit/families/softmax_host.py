"""Row softmax on the host, for both softmax families: inputs, the reference, its rounding.

All functions take the options of softmax_modes: the softmax of scale * x + mask, or its logarithm.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cudakit.rounding import LEAST_NORMAL, SPREADS, U, of_exponential

_LARGE = 1 << 22  # elements from which on several threads are faster


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, masked: bool = False, **options: Any
) -> tuple[np.ndarray, ...]:
    x = (rng.standard_normal(shape, dtype=np.float32) * 3).astype(dtype, copy=False)
    return (x, rng.random(shape[-1:]) < 0.75) if masked else (x,)


def reference(x: Any, mask: Any = None, *, log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """Return the softmax by its definition, computed in the dtype of x, at least float32. Scores are rounded to
    float32, as in the kernels and in numpy code."""
    kind: Any = np.result_type(x.dtype, np.float32).type
    if not x.size:
        return x
    scores = x.astype(np.float32, copy=False)
    if scale != 1.0:
        scores = scores * np.float32(scale)
    seen: Any = True
    if mask is not None:
        if mask.dtype == bool:
            seen = mask
        else:
            seen, scores = mask != -np.inf, scores + mask.astype(np.float32, copy=False)
        scores = np.where(seen, scores, np.float32(-np.inf))
    scores = scores.astype(kind, copy=False)
    # fmax ignores NaN, as the kernels do; the sum propagates the NaN.
    shifted = scores - np.fmax.reduce(scores, axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=-1, keepdims=True)
    result = shifted - np.log(total) if log else exponentials / total
    if mask is not None:
        anything = np.broadcast_to(seen, x.shape).any(axis=-1, keepdims=True)
        result = np.where(anything, result, kind(-np.inf if log else 0.0))
    return result.astype(x.dtype, copy=False)


def _by_rows(function: Callable[[Any], Any], array: Any) -> Any:
    """Return `function` of an array, computed in several threads for parts of whole rows if the array is large."""
    threads = os.cpu_count() or 1
    if array.ndim != 2 or array.size < _LARGE or len(array) < threads:
        return function(array)
    with ThreadPoolExecutor(threads) as pool:  # numpy releases the interpreter lock
        return np.concatenate(list(pool.map(function, np.array_split(array, 4 * threads))))


def rounding(exact: Any, x: Any, mask: Any = None, *, log: bool = False, **options: Any) -> Any:
    """Return the rounding error of each element: the relative errors of an exponential and of a row's sum, or, for
    logarithms, the error of the subtracted term. Exponentials below the smallest normal number may be 0."""
    return _by_rows(lambda part: _rounding(part, log, _of_sum(part.shape[-1])), exact)


def rounding_in_order(exact: Any, x: Any) -> Any:
    """Return the rounding error of a variant that sums from left to right; for the sum, twice the measured error of
    adding these numbers in that order, plus a random walk. Numbers below half a step of the running sum are lost."""
    return _by_rows(_in_order, exact)


def _in_order(exact: Any) -> Any:
    with np.errstate(all="ignore"):
        powers = exact / exact.max(axis=-1, keepdims=True, initial=0.0)
        total = powers.sum(axis=-1, keepdims=True)
        off = np.abs(np.add.accumulate(powers.astype(np.float32), axis=-1, dtype=np.float32)[..., -1:] / total - 1)
    return _rounding(exact, False, _of_sum(exact.shape[-1]) + SPREADS * np.sqrt(exact.shape[-1] / 3) + 2 * off)


def _of_sum(cols: int) -> float:
    """Return the relative rounding error of a block's sum of exponentials. Each thread adds its share from left to
    right, and at most 256 of these sums are added one by one. A long share loses its smallest numbers."""
    return U * (24 + cols / 2**15)


def _rounding(exact: Any, log: bool, of_sum: Any) -> Any:
    with np.errstate(all="ignore"):
        top = np.fmax.reduce(exact, axis=-1, keepdims=True, initial=-np.inf)
        if log:
            return U * (np.abs(exact - top) + 3 * np.abs(exact) + 3 * np.abs(top) + 12) + of_sum
        relative = of_exponential(np.log(top / exact)) + of_sum
        return np.where(exact > 0, exact * relative, 0.0) + LEAST_NORMAL
