"""Reductions on the host: inputs, references, the rounding of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.families.reduce_problem import result_shape
from cudakit.rounding import of_tree


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, axis: int | None = -1
) -> tuple[np.ndarray, ...]:
    return (rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False),)


def sum_baseline(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    """numpy's sum; in float64 down the columns, which numpy adds from left to right."""
    down = inputs[0].ndim == 2 and axis in (0, -2)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(inputs[0].sum(axis=axis, dtype=np.float64 if down else np.float32), np.float32)


def sum_reference(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    with np.errstate(invalid="ignore"):
        return np.asarray(inputs[0].sum(axis=axis, dtype=np.float64))


def sum_rounding(inputs: Sequence[np.ndarray], exact: Any, axis: int | None = -1) -> Any:
    """The rounding of a sum in a tree, which is how every rung adds: a long sum from left to right is further off."""
    x = inputs[0]
    lines = x.reshape(1, -1) if axis is None or x.ndim == 1 else x.T if axis in (0, -2) else x
    return of_tree(lines).reshape(result_shape("sum", x.shape, axis))


def maximum(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    return np.asarray(inputs[0].max(axis=axis))


def first_maximum(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    return np.asarray(inputs[0].argmax(axis=axis)).astype(np.int64)
