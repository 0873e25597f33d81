"""Row softmax on the host, for both families of it: inputs, the float64 reference, the plain algorithm, numpy's.

All take the options of softmax_modes: the softmax of scale * x + mask, or its logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.compare import in_range


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, masked: bool = False, **options: Any
) -> tuple[np.ndarray, ...]:
    x = (rng.standard_normal(shape, dtype=np.float32) * 3).astype(dtype, copy=False)
    return (x, rng.random(shape[-1:]) < 0.75) if masked else (x,)


def reference(inputs: Sequence[np.ndarray], log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """The definition in float64, with the scores' own rounding to float32: both kernels and numpy users have it.
    Logarithms may be past the range of float16."""
    exact = _softmax(inputs, log, scale, np.float64, lambda e: e.sum(axis=-1, keepdims=True))
    return in_range(exact, inputs[0].dtype)


def baseline(inputs: Sequence[np.ndarray], log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """The same in float32 as numpy sums, rounded to the dtype of x."""
    return _rounded(_softmax(inputs, log, scale, np.float32, lambda e: e.sum(axis=-1, keepdims=True)), inputs[0].dtype)


def plain(inputs: Sequence[np.ndarray], log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """The textbook loop in float32, its sum from left to right, rounded to the dtype of x at the end."""
    values = _softmax(inputs, log, scale, np.float32, lambda e: np.add.accumulate(e, axis=-1)[..., -1:])
    return _rounded(values, inputs[0].dtype)


def _rounded(values: Any, dtype: Any) -> Any:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(dtype)


def _softmax(inputs: Sequence[np.ndarray], log: bool, scale: float, dtype: Any, sum_of: Callable[[Any], Any]) -> Any:
    x = np.asarray(inputs[0])
    if not x.size:
        return x.astype(dtype)
    with np.errstate(all="ignore"):
        scores = x.astype(np.float32, copy=False)
        if scale != 1.0:
            scores = scores * np.float32(scale)
        seen: Any = True
        if len(inputs) > 1:
            mask = np.asarray(inputs[1])
            if mask.dtype == bool:
                seen = mask
            else:
                seen, scores = mask != -np.inf, scores + mask
            scores = np.where(seen, scores, np.float32(-np.inf))
        scores = scores.astype(dtype, copy=False)
        # fmax passes over NaN as the kernels do; the NaN comes back in through the sum.
        shifted = scores - np.fmax.reduce(scores, axis=-1, keepdims=True)
        exponentials = np.exp(shifted)
        result = shifted - np.log(sum_of(exponentials)) if log else exponentials / sum_of(exponentials)
    if len(inputs) == 1:
        return result
    anything = np.broadcast_to(seen, x.shape).any(axis=-1, keepdims=True)
    return np.where(anything, result, dtype(-np.inf if log else 0.0))
