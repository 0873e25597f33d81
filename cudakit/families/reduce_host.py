"""Reductions on the host: inputs, references, the plain algorithm of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.families.reduce_problem import result_shape


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


def sum_plain(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    """numpy's pairwise float32 sum along contiguous memory, each sum with at least the error that is usual.

    A single sum may be right by luck in one order and not in another. Roundings of a tree's partial sums are a random
    walk: each level of two branches adds eps / 5 of the root of the sum of squares, one of 32 branches (the kernels')
    four times that, and sums of one sign as much of the result. 1.5 * eps * sqrt(log2(2 n)) of the larger of the two is
    four times the spread in either tree or more, and what nine million sums stayed within twice of; from left to right
    the spread is 0.15 * eps * sqrt(n), which is soon more. Whole numbers whose partial sums float32 counts are exact.
    """
    x = inputs[0]
    lines = x.reshape(1, -1) if axis is None or x.ndim == 1 else x.T if axis in (0, -2) else x
    exact = sum_reference((lines,))
    with np.errstate(invalid="ignore", over="ignore"):
        got = np.ascontiguousarray(lines).sum(axis=1, dtype=np.float32)
        error = got - exact
        length = np.sqrt(np.square(lines, dtype=np.float64).sum(axis=1))
        usual = 1.5 * np.finfo(np.float32).eps * np.sqrt(np.log2(2.0 * (lines.shape[1] or 1)))
        usual = usual * np.maximum(length, np.abs(exact))
        counted = (lines == np.floor(lines)).all(axis=1) & (np.abs(lines).sum(axis=1, dtype=np.float64) < 2**24)
        usual = np.where(counted, 0.0, usual)
        held = np.where(np.abs(error) < usual, exact + np.copysign(usual, error), got)
    return held.astype(np.float32).reshape(result_shape("sum", x.shape, axis))


def maximum(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    return np.asarray(inputs[0].max(axis=axis))


def first_maximum(inputs: Sequence[np.ndarray], axis: int | None = -1) -> Any:
    return np.asarray(inputs[0].argmax(axis=axis)).astype(np.int64)
