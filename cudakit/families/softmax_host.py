"""Row softmax on the host, for both families of it: inputs, the float64 reference, its rounding, numpy's way.

All take the options of softmax_modes: the softmax of scale * x + mask, or its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.compare import in_range
from cudakit.rounding import LEAST_NORMAL, SPREADS, U, of_exponential


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, masked: bool = False, **options: Any
) -> tuple[np.ndarray, ...]:
    x = (rng.standard_normal(shape, dtype=np.float32) * 3).astype(dtype, copy=False)
    return (x, rng.random(shape[-1:]) < 0.75) if masked else (x,)


def reference(inputs: Sequence[np.ndarray], log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """The definition in float64, with the scores' own rounding to float32: both kernels and numpy users have it.
    Logarithms may be past the range of float16."""
    exact = _softmax(inputs, log, scale, np.float64)
    return in_range(exact, inputs[0].dtype)


def baseline(inputs: Sequence[np.ndarray], log: bool = False, scale: float = 1.0, masked: bool = False) -> Any:
    """The same in float32 as numpy sums, rounded to the dtype of x."""
    return _rounded(_softmax(inputs, log, scale, np.float32), inputs[0].dtype)


def rounding(inputs: Sequence[np.ndarray], exact: Any, log: bool = False, **options: Any) -> Any:
    """The rounding of an exponential and of a row's sum, relative to each element; for logarithms, of the term that is
    subtracted. Exponentials below the least normal number may be 0."""
    return _rounding(exact, log, _of_sum(exact.shape[-1]))


def rounding_in_order(inputs: Sequence[np.ndarray], exact: Any) -> Any:
    """The same for a rung whose sum goes from left to right: twice what such a sum of these numbers is off by, and no
    less than its random walk. Numbers below half a step of the sum so far are lost."""
    with np.errstate(all="ignore"):
        powers = exact / exact.max(axis=-1, keepdims=True, initial=0.0)
        total = powers.sum(axis=-1, keepdims=True)
        off = np.abs(np.add.accumulate(powers.astype(np.float32), axis=-1, dtype=np.float32)[..., -1:] / total - 1)
    return _rounding(exact, False, _of_sum(exact.shape[-1]) + SPREADS * np.sqrt(exact.shape[-1] / 3) + 2 * off)


def _of_sum(cols: int) -> float:
    """Relative, of a sum of exponentials by a block: threads add a share each from left to right, and at most 256 of
    these sums are added one by one. A long share loses its smallest numbers."""
    return U * (24 + cols / 2**15)


def _rounding(exact: Any, log: bool, of_sum: Any) -> Any:
    with np.errstate(all="ignore"):
        top = np.fmax.reduce(exact, axis=-1, keepdims=True, initial=-np.inf)
        if log:
            return U * (np.abs(exact - top) + 3 * np.abs(exact) + 3 * np.abs(top) + 12) + of_sum
        relative = of_exponential(np.log(top / exact)) + of_sum
        return np.where(exact > 0, exact * relative, 0.0) + LEAST_NORMAL


def _rounded(values: Any, dtype: Any) -> Any:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(dtype)


def _softmax(inputs: Sequence[np.ndarray], log: bool, scale: float, dtype: Any) -> Any:
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
        total = exponentials.sum(axis=-1, keepdims=True)
        result = shifted - np.log(total) if log else exponentials / total
    if len(inputs) == 1:
        return result
    anything = np.broadcast_to(seen, x.shape).any(axis=-1, keepdims=True)
    return np.where(anything, result, dtype(-np.inf if log else 0.0))
