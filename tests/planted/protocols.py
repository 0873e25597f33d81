"""Bugs of locks, queues and other protocols between threads, of groups and heaps, and of arrays' ends."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, kernel
from .shared import integers

BOUNDS = "out of bounds"
RACE = "global memory race"
SHARED = "shared memory race"


def ints(shape: object, low: int = -20, high: int = 20) -> np.ndarray:
    return integers(shape, low, high, np.int32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


@kernel(RACE)
def sequence_plain_data(wrong: bool) -> Launch:
    """Sequence lock whose reader loads the data by plain loads"""
    return Launch(2, 32, (zeros(2), zeros(1), Empty(32, np.int32)), {2: zeros(32)})


@kernel(BOUNDS)
def ring_not_wrapped(wrong: bool) -> Launch:
    """Position in a ring that is not wrapped"""
    x = ints((3, 32))
    return Launch(3, 32, (x, Empty((3, 32), np.int32), 5), {1: np.roll(x, -5, 1)})


@kernel(BOUNDS)
def row_ends(wrong: bool) -> Launch:
    """End of the last row read past the row starts of a sparse matrix"""
    starts, x = np.arange(0, 250, 5, dtype=np.int32), ints(250)
    return Launch(2, 32, (starts, x, Empty(50, np.int32), 50, 250), {2: x.reshape(50, 5).sum(1)})


@kernel(BOUNDS)
def unsigned_countdown(wrong: bool) -> Launch:
    """Loop down to 0 with an unsigned index"""
    x = ints((40, 9))
    return Launch(2, 32, (x, 40, 9), {0: x[:, ::-1].cumsum(1)[:, ::-1]})


@kernel("misaligned")
def half2_odd_row(wrong: bool) -> Launch:
    """half2 loads of rows with an odd length"""
    x = integers((40, 9), dtype=np.float16)
    return Launch(2, 32, (x, Empty(40), 40, 9), {1: x.astype(np.float32).sum(1)})


@kernel("lanes missing from a warp operation")
def broadcast_in_branch(wrong: bool) -> Launch:
    """Broadcast from lane 0 with __activemask() in a branch that lane 0 does not take"""
    x = ints((3, 32))
    x[:, 0] = -1
    first = np.array([row[row > 0][0] for row in x])[:, None]
    return Launch(3, 32, (x,), {0: np.where(x > 0, x - first, x)})


@kernel(SHARED)
def arrays_overlap(wrong: bool) -> Launch:
    """Two arrays that overlap in dynamic shared memory"""
    x = ints((3, 64))
    return Launch(3, 64, (x, Empty((3, 64), np.int32)), {1: 3 * x[:, ::-1]}, shared=512)


@kernel(BOUNDS)
def block_over_scratch(wrong: bool) -> Launch:
    """Block larger than the shared array of the kernel"""
    x = ints((3, 96))
    return Launch(3, 96, (x, Empty((3, 96), np.int32)), {1: x[:, ::-1]})


@kernel(RACE)
def ticket_lock_no_fence(wrong: bool) -> Launch:
    """Ticket lock without fences"""
    return Launch(7, 1, (zeros(1), zeros(2)), {0: [28]})


@kernel(RACE)
def lane_lock_no_fence(wrong: bool) -> Launch:
    """Lock taken by each lane, without fences"""
    x = ints(40)
    return Launch(1, 64, (x, zeros(1), zeros(1), 40), {1: [x.sum()]})


@kernel(RACE)
def stack_no_release(wrong: bool) -> Launch:
    """Nodes pushed to a lock-free stack without a fence after their values"""
    args = (Empty(31, np.int32), Empty(31, np.int32), np.array([-1, 0], np.int32), Empty(1, np.int32))
    return Launch(2, 31, args, {3: [(np.arange(31) ** 2).sum()]})


@kernel(SHARED)
def private_bins_early(wrong: bool) -> Launch:
    """Block's histogram added to the global one while other warps count"""
    x = ints(999, 0, 64)
    return Launch(3, 96, (x, zeros(64), 999), {1: np.bincount(x, minlength=64)})


@kernel("uninitialised read")
def prefix_total_unset(wrong: bool) -> Launch:
    """Total of running sums that is not stored"""
    x = integers((3, 64))
    want = x.cumsum(1) - x - x.sum(1, keepdims=True)
    return Launch(3, 64, (x, Empty((3, 64))), {1: want})


@kernel("use after free")
def heap_freed_early(wrong: bool) -> Launch:
    """Scratch of a block freed by one thread while others use it"""
    x = ints((3, 64))
    return Launch(3, 64, (x, Empty((3, 64), np.int32)), {1: x.cumsum(1)})


@kernel(BOUNDS)
def heap_null(wrong: bool) -> Launch:
    """Null from malloc() in a kernel not checked"""
    x = ints(50)
    return Launch(2, 32, (x, Empty(50, np.int32), 1 << 40, 50), {1: x})
