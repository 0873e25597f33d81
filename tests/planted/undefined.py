"""Local variables without a value, and loads through the read-only cache of memory that the launch stores to."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, kernel
from .shared import integers

UNWRITTEN = "uninitialised read"
CACHED = "read-only load of stored memory"


def ints(shape: object, low: int = -20, high: int = 20) -> np.ndarray:
    return integers(shape, low, high, np.int32)


@kernel(UNWRITTEN)
def sum_not_zeroed(wrong: bool) -> Launch:
    """Sum in a local variable that is not set to zero"""
    x = integers((50, 9))
    return Launch(2, 32, (x, Empty(50), 50, 9), {1: x.sum(1)})


@kernel(UNWRITTEN)
def block_sum_not_zeroed(wrong: bool) -> Launch:
    """Sums of a block's threads that are not set to zero, reduced in shared memory"""
    x = integers((3, 150))
    return Launch(3, 64, (x, Empty(3), 150), {1: x.sum(1)})


@kernel(UNWRITTEN)
def search_not_found(wrong: bool) -> Launch:
    """Result of a search that has no value if nothing is found"""
    x, keys = ints((50, 9), 0, 12), ints(50, 0, 12)
    want = [max(np.flatnonzero(row == key), default=-1) for row, key in zip(x, keys, strict=True)]
    return Launch(2, 32, (x, keys, Empty(50, np.int32), 50, 9), {2: want})


@kernel(UNWRITTEN)
def switch_without_default(wrong: bool) -> Launch:
    """Variable set by a switch that has no default"""
    operations, x = ints(100, 0, 4), integers(100)
    factor = np.choose(operations, (np.full(100, x[0]), 2 * x, x - 1, np.ones(100)))
    return Launch(2, 64, (operations, x, Empty(100), 100), {2: factor * x})


@kernel(UNWRITTEN)
def carry_first_round(wrong: bool) -> Launch:
    """Value carried between rounds, undefined in the first"""
    x = ints((3, 96))
    return Launch(3, 32, (x, Empty((3, 96), np.int32)), {1: np.diff(x, axis=1, prepend=0)})


@kernel(CACHED)
def ldg_after_store(wrong: bool) -> Launch:
    """__ldg of values that the block has stored before a barrier"""
    x = integers(64)
    return Launch(1, 64, (x, Empty(64), Empty(64)), {2: np.diff(x * x, prepend=0)})


@kernel(CACHED)
def ldg_of_partner(wrong: bool) -> Launch:
    """__ldg of another lane's value in each step of a butterfly"""
    x = integers((3, 32))
    return Launch(3, 32, (x, Empty((3, 32))), {1: np.broadcast_to(x.mean(1, keepdims=True), (3, 32))})


@kernel(CACHED)
def ldg_table_built(wrong: bool) -> Launch:
    """__ldg of a __device__ table that the launch builds with atomics"""
    x = ints(64, 0, 32)
    return Launch(1, 64, (x, Empty(64, np.int32)), {1: x * x})
