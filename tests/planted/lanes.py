"""Divergent barriers and warp operations, kernels that hang, trap or assert, and clusters."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, kernel
from .shared import integers

BARRIER = "divergent barrier"
WARP = "lanes missing from a warp operation"
MASK = "wrong member mask"
ENDLESS = "endless loop"


def ints(shape: object, low: int = -20, high: int = 20) -> np.ndarray:
    return integers(shape, low, high, np.int32)


@kernel(BARRIER)
def barrier_in_branch(wrong: bool) -> Launch:
    """__syncthreads in a branch that part of a warp takes"""
    x = ints((3, 50))
    return Launch(3, 64, (x, Empty((3, 50), np.int32), 50), {1: x[:, ::-1]}, shared=256)


@kernel(BARRIER)
def barrier_part_of_block(wrong: bool) -> Launch:
    """__syncthreads reached by two of four warps"""
    x = ints(64)
    return Launch(1, 128, (x, Empty(128, np.int32)), {1: np.tile(x + x[::-1], 2)})


@kernel(BARRIER)
def barrier_uneven_loop(wrong: bool) -> Launch:
    """__syncthreads in a loop that threads leave at different steps"""
    x = ints((2, 150))
    return Launch(2, 64, (x, Empty(2, np.int32), 150), {1: x.sum(1)})


@kernel(BARRIER)
def barrier_vote_in_branch(wrong: bool) -> Launch:
    """__syncthreads_or in a branch"""
    x = ints((3, 40), 0, 20)
    x[1, 7] = -1
    return Launch(3, 64, (x, Empty(3, np.int32), 40), {1: (x < 0).any(1)})


@kernel(BARRIER)
def barrier_per_branch(wrong: bool) -> Launch:
    """A __syncthreads in each of two branches, taken by different warps"""
    x = ints((2, 64))
    y = np.roll(x, 32, 1)
    return Launch(2, 64, (x, Empty((2, 64), np.int32)), {1: np.where(np.arange(64) < 32, 2 * y, y + 1)})


@kernel("deadlock")
def named_barrier_count(wrong: bool) -> Launch:
    """Named barrier that waits for more threads than arrive"""
    x = ints(64)
    return Launch(1, 128, (x, Empty(64, np.int32)), {1: x[::-1]})


@kernel(BARRIER)
def named_barrier_shared(wrong: bool) -> Launch:
    """Named barrier that two groups of warps use at once"""
    x = ints((2, 64))
    return Launch(1, 128, (x, Empty((2, 64), np.int32)), {1: x[:, ::-1] * [[1], [2]]})


@kernel("deadlock")
def arrive_missing(wrong: bool) -> Launch:
    """Producer that exits without arriving at the barrier"""
    x = ints(32)
    return Launch(1, 64, (x, Empty(32, np.int32), 0), {1: np.full(32, -1)})


@kernel(WARP)
def shuffle_in_branch(wrong: bool) -> Launch:
    """Shuffle of all lanes in a divergent branch"""
    x = ints((3, 32))
    following = np.concatenate([x[:, 1:], x[:, -1:]], 1)
    return Launch(3, 32, (x, Empty((3, 32), np.int32)), {1: x + np.where(x > 0, following, 0)})


@kernel(WARP)
def shuffle_half_warp(wrong: bool) -> Launch:
    """Shuffle of half a warp with a mask of 24 lanes"""
    x = ints((3, 32))
    return Launch(3, 32, (x, Empty(3, np.int32)), {1: x[:, :16].sum(1)})


@kernel(WARP)
def ballot_in_branch(wrong: bool) -> Launch:
    """Ballot of all lanes in a divergent branch"""
    x = ints((3, 32))
    packed = np.zeros((3, 32), np.int32)
    for row, values in zip(packed, x, strict=True):
        row[: (values > 0).sum()] = values[values > 0]
    return Launch(3, 32, (x, np.zeros((3, 32), np.int32), Empty(3, np.int32)), {1: packed, 2: (x > 0).sum(1)})


@kernel(WARP)
def match_in_branch(wrong: bool) -> Launch:
    """Match of all lanes, although some are past the end"""
    keys = ints(150, 0, 8)
    return Launch(3, 64, (keys, np.zeros(8, np.int32), 150), {1: np.bincount(keys, minlength=8)})


@kernel(WARP)
def reduce_uneven_loop(wrong: bool) -> Launch:
    """Warp reduction in a loop that lanes leave at different steps"""
    x = ints((3, 75))
    return Launch(3, 32, (x, Empty(3, np.int32), 75), {1: x.max(1)})


@kernel(WARP)
def syncwarp_in_branch(wrong: bool) -> Launch:
    """__syncwarp of all lanes in a branch that half of them take"""
    x = ints(32)
    return Launch(1, 32, (x, Empty(16, np.int32)), {1: x[:15:-1]})


@kernel(WARP)
def aggregated_atomic(wrong: bool) -> Launch:
    """Aggregated atomic whose result is broadcast by a shuffle of all lanes"""
    x = ints(300)
    want = np.zeros(300, np.int32)
    want[: (x > 0).sum()] = x[x > 0]
    args = (x, np.zeros(300, np.int32), np.zeros(1, np.int32), 300)
    return Launch(5, 64, args, {1: want, 2: [(x > 0).sum()]}, unordered=(1,))


@kernel(WARP)
def reduce_exited_lanes(wrong: bool) -> Launch:
    """Warp reduction after the threads past the end have returned"""
    x = ints(150)
    return Launch(3, 64, (x, np.zeros(1, np.int32), 150), {1: [x.sum()]})


@kernel(WARP)
def broadcast_from_exited(wrong: bool) -> Launch:
    """Broadcast from a lane that has returned"""
    x = ints((3, 32))
    x[:, 0] = -1
    first = np.array([row[row >= 0][0] for row in x])[:, None]
    return Launch(3, 32, (x,), {0: np.where(x < 0, x, x - first)})


@kernel(MASK)
def mask_of_other_half(wrong: bool) -> Launch:
    """Reduction by half warps that both pass the lower half's mask"""
    x = ints((3, 32))
    return Launch(3, 32, (x, Empty((3, 2), np.int32)), {1: x.reshape(3, 2, 16).sum(2)})


@kernel(MASK)
def masks_differ(wrong: bool) -> Launch:
    """Vote in which lanes pass different, overlapping masks"""
    x = ints((3, 32))
    return Launch(3, 32, (x, Empty((3, 32), np.int32)), {1: np.cumsum(x > 0, 1) - (x > 0)})


@kernel(MASK)
def syncwarp_left_out(wrong: bool) -> Launch:
    """__syncwarp of groups whose mask leaves out a lane"""
    x = ints((3, 32))
    want = x.reshape(3, 4, 8)[..., ::-1].reshape(3, 32)
    return Launch(3, 32, (x, Empty((3, 32), np.int32)), {1: want})


@kernel(MASK)
def redux_stale_mask(wrong: bool) -> Launch:
    """Reduction of each key's lanes with the mask of the first key"""
    keys, x = ints((3, 32), 0, 4), integers((3, 32), -99, 99, np.int32)
    want = [[x[r][keys[r] == k].max() for k in keys[r]] for r in range(3)]
    return Launch(3, 32, (keys, x, Empty((3, 32), np.int32)), {2: want})


@kernel(ENDLESS)
def loop_without_step(wrong: bool) -> Launch:
    """Loop that stores and does not advance"""
    x = ints(100).astype(np.float32)
    return Launch(2, 32, (x, Empty(100), 100), {1: x})


@kernel(ENDLESS)
def queue_never_empty(wrong: bool) -> Launch:
    """Loop that ends at an exact value of a counter, which threads pass"""
    x = ints(100)
    return Launch(2, 64, (x, Empty(100, np.int32), np.zeros(1, np.int32), 100), {1: x * x})


@kernel(ENDLESS)
def compare_and_swap_stale(wrong: bool) -> Launch:
    """Compare-and-swap that does not read the old value again"""
    x = ints(50, 1, 9).astype(np.float32)
    args = (x, np.zeros(1, np.float32), np.zeros(1, np.int32), 50)
    return Launch(2, 32, args, {1: [x.sum()]})


@kernel(ENDLESS)
def list_with_cycle(wrong: bool) -> Launch:
    """Walk along a linked list with a cycle that marks its elements"""
    following = np.full(64, -1, np.int32)
    following[:30] = np.arange(1, 31)
    following[30] = 12
    marks = np.zeros(64, np.int32)
    marks[:32] = 1
    return Launch(1, 32, (following, np.zeros(64, np.int32), np.arange(32, dtype=np.int32)), {1: marks})


@kernel("hang")
def spin_unset_flag(wrong: bool) -> Launch:
    """Spin on a flag that is never set"""
    return Launch(2, 1, (np.array([0], np.int32), np.zeros(1, np.int32), Empty(1, np.int32)), {2: [0]})


@kernel("hang")
def lock_kept(wrong: bool) -> Launch:
    """Lock that is not released on one path"""
    zero = np.zeros(1, np.int32)
    return Launch(6, 1, (np.zeros(4, np.int32), zero, zero, 4), {0: [7] * 4, 1: [4]})


@kernel("hang")
def grid_barrier_count(wrong: bool) -> Launch:
    """Grid barrier that waits for one block too many"""
    x = ints(5)
    args = (x, Empty(5, np.int32), np.zeros(1, np.uint32), Empty(5, np.int32))
    return Launch(5, 1, args, {3: x[::-1] + 1}, cooperative=True)


@kernel("trap")
def grid_sync_plain_launch(wrong: bool) -> Launch:
    """Grid barrier in a launch that is not cooperative"""
    x = ints(128)
    args = (x, Empty(128, np.int32), Empty(128, np.int32))
    return Launch(4, 32, args, {2: 2 * x[::-1]}, cooperative=not wrong)


@kernel("assertion")
def assert_sorted(wrong: bool) -> Launch:
    """assert() that fails"""
    table, keys = np.arange(0, 100, 3, dtype=np.int32), ints(50, 0, 110)
    want = np.where((keys % 3 == 0) & (keys < 100), keys // 3, -1)
    return Launch(1, 64, (table, keys, Empty(50, np.int32), table.size, 50), {2: want})


@kernel("trap")
def trap_on_overflow(wrong: bool) -> Launch:
    """__trap in a check that is wrong for negative numbers"""
    a, b = ints((2, 100), -1000, 1000)
    return Launch(1, 128, (a, b, Empty(100, np.int32), 100), {2: a * b})


@kernel("stack overflow")
def deep_recursion(wrong: bool) -> Launch:
    """Recursion over links with a cycle"""
    parent = np.array([-1, 0, 1, 2, 5, 6, 4, 3], np.int32)
    return Launch(1, 32, (parent, Empty(8, np.int32), 8), {1: [0, 1, 2, 3, 16, 16, 16, 4]})


@kernel("shared memory race")
def cluster_no_sync(wrong: bool) -> Launch:
    """Distributed shared memory read without the cluster's barrier"""
    x = ints((4, 32))
    return Launch(4, 32, (x, Empty((4, 32), np.int32)), {1: x[[1, 0, 3, 2], ::-1]}, cluster=2)


@kernel("shared memory race")
def cluster_histogram(wrong: bool) -> Launch:
    """Counts in distributed shared memory that are not atomic"""
    x = ints((4, 64), 0, 64)
    want = np.stack([np.bincount(pair.ravel(), minlength=64) for pair in x.reshape(2, 2, 64)])
    return Launch(4, 64, (x, Empty((2, 64), np.int32)), {1: want}, cluster=2)


@kernel("use after free")
def cluster_left_early(wrong: bool) -> Launch:
    """Distributed shared memory read after its block has ended"""
    x, steps = ints((2, 2, 32)), np.arange(5000)
    want = (x[:, 0, :, None] ^ x[:, 1, :, None] ^ steps).sum((1, 2))
    return Launch(4, 32, (x, Empty(2, np.int32)), {1: want}, cluster=2)


@kernel(BARRIER)
def cluster_arrive_twice(wrong: bool) -> Launch:
    """Two arrivals at a cluster barrier without a wait between them"""
    x = ints((4, 32))
    return Launch(4, 32, (x, Empty((4, 32), np.int32)), {1: x[[1, 0, 3, 2]] + abs(x)}, cluster=2)
