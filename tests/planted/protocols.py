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


@kernel(RACE)
def stack_pop_no_fence(wrong: bool) -> Launch:
    """Nodes popped from a lock-free stack without a fence before their values are read"""
    args = (Empty(32, np.int32), Empty(32, np.int32), np.array([-1], np.int32), Empty(32, np.int32))
    return Launch(2, 32, args, {3: np.arange(32) ** 2}, unordered=(3,))


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


@kernel(RACE)
def double_checked_lock(wrong: bool) -> Launch:
    """Double-checked lock without a fence after the first check"""
    rows = ints((6, 5, 32))
    rows[:, :, 0] = -1
    for block in range(6):
        rows[block, block % 5, 0] = 1
    want = np.where(rows[:, :, :1] > 0, rows * np.arange(32) ** 2, rows)
    return Launch(6, 32, (rows, Empty(32, np.int32), zeros(1), zeros(1), 5), {0: want})


@kernel(RACE)
def hash_value_late(wrong: bool) -> Launch:
    """Hash table whose value is read as soon as its key is found"""
    keys = ints(40, 0, 15)
    args = (keys, np.full(64, -1, np.int32), Empty(64, np.int32), zeros(64), Empty(40, np.int32))
    return Launch(40, 1, args, {4: keys * keys})


@kernel(RACE)
def queue_slot_reserved(wrong: bool) -> Launch:
    """Queue whose consumer reads slots that are reserved and not yet stored"""
    x = ints(20)
    return Launch(2, 1, (x, Empty(20, np.int32), zeros(2), Empty(20, np.int32), 20), {3: 3 * x})


@kernel(RACE)
def node_linked_early(wrong: bool) -> Launch:
    """List node linked before its value is stored"""
    args = (Empty(9, np.int32), Empty(9, np.int32), np.full(1, -1, np.int32), Empty(9, np.int32))
    return Launch(9, 32, args, {3: np.zeros(9)})


@kernel(SHARED)
def pipeline_release_early(wrong: bool) -> Launch:
    """Pipeline stage released before its last read"""
    x = ints((7, 32))
    return Launch(1, 64, (x, Empty(32, np.int32), 7), {1: x[:, ::-1].sum(0)})


@kernel("read before cp.async wait")
def group_copy_no_wait(wrong: bool) -> Launch:
    """memcpy_async of a cooperative group without the group's wait"""
    x = ints((3, 64))
    return Launch(3, 64, (x, Empty((3, 64), np.int32)), {1: x[:, ::-1]})


@kernel(SHARED)
def wmma_no_barrier(wrong: bool) -> Launch:
    """Tile loaded by wmma without a barrier after other warps' stores"""
    x = integers((16, 16), -4, 5, np.float16)
    wide = x.astype(np.float32)
    return Launch(1, 64, (x, Empty((16, 16))), {1: wide @ wide})


@kernel(SHARED)
def bits_of_a_word(wrong: bool) -> Launch:
    """Bits of one word set by different threads without atomics"""
    x = ints((3, 64))
    bits = np.packbits(x > 0, axis=1, bitorder="little").view(np.uint32)
    return Launch(3, 64, (x, Empty((3, 2), np.uint32)), {1: bits})


@kernel(SHARED)
def pointer_jumping(wrong: bool) -> Launch:
    """Pointer jumping in place"""
    parent = np.maximum(np.arange(64) - 1 - np.arange(64) % 3, 0).astype(np.int32)
    return Launch(1, 64, (parent, Empty(64, np.int32)), {1: np.zeros(64)})


@kernel("misaligned")
def ldmatrix_row_pitch(wrong: bool) -> Launch:
    """ldmatrix of rows that are not multiples of 16 bytes"""
    x = integers((8, 8), dtype=np.float16)
    return Launch(1, 32, (x, Empty(32, np.uint32)), {1: x.view(np.uint32).ravel()})


@kernel(BOUNDS)
def signed_bins(wrong: bool) -> Launch:
    """Signed byte as the number of a bin"""
    x = integers(700, 0, 256, np.uint8)
    return Launch(1, 128, (x, Empty(256, np.int32), 700), {1: np.bincount(x, minlength=256)})


@kernel("misaligned")
def shared_parts_alignment(wrong: bool) -> Launch:
    """Doubles in dynamic shared memory after an odd number of floats"""
    x = integers(45)
    return Launch(1, 64, (x, Empty(45, np.float64), 45), {1: x.astype(np.float64) / 3}, shared=12 * 45 + 4)


@kernel("wrong member mask")
def activemask_kept(wrong: bool) -> Launch:
    """Mask from __activemask() in a branch, used after the branch"""
    x, y = ints((3, 32)), ints((3, 32))
    own, positive = abs(x) + y, x > 0
    sums = [np.where(p, o[p].sum(), o[~p].sum()) for o, p in zip(own, positive, strict=True)]
    return Launch(3, 32, (x, y), {1: sums})


@kernel(BOUNDS)
def cluster_rank_past_end(wrong: bool) -> Launch:
    """Distributed shared memory of a block past the cluster's end"""
    x = ints((4, 32))
    return Launch(4, 32, (x, Empty((4, 32), np.int32)), {1: x[[1, 0, 3, 2]]}, cluster=2)


@kernel(BOUNDS)
def shared_for_half_block(wrong: bool) -> Launch:
    """Dynamic shared memory of a launch sized for another block size"""
    x = ints((3, 96))
    return Launch(3, 96, (x, Empty((3, 96), np.int32)), {1: x[:, ::-1]}, shared=192 if wrong else 384)


@kernel(RACE)
def block_scope_counter(wrong: bool) -> Launch:
    """Atomics of block scope on a counter that blocks share"""
    x = ints(500)
    return Launch(8, 64, (x, zeros(1), 500), {1: [(x > 0).sum()]})
