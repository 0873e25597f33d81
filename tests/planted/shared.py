"""Races in shared memory, and results of asynchronous copies used before the wait."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, kernel

RACE = "shared memory race"
EARLY = "read before cp.async wait"


def integers(shape: object, low: int = -20, high: int = 20, dtype: object = np.float32) -> np.ndarray:
    """Small integers, whose sums are exact in any order."""
    return np.random.default_rng(5).integers(low, high, shape).astype(dtype)


@kernel(RACE)
def tree_reduce_barrier(wrong: bool) -> Launch:
    """Tree reduction without the barrier between its levels"""
    x = integers((3, 128))
    return Launch(3, 128, (x, Empty(3)), {1: x.sum(1)}, shared=512)


@kernel(RACE)
def transpose_tile(wrong: bool) -> Launch:
    """Transpose through a tile without a barrier between store and read"""
    x = integers((40, 23))
    return Launch((2, 3), (16, 16), (x, Empty((23, 40)), 40, 23), {1: x.T})


@kernel(RACE)
def double_buffer(wrong: bool) -> Launch:
    """Double buffer overwritten while slower threads read it"""
    x = integers((7, 128))
    return Launch(1, 128, (x, Empty(128), 7), {1: (x[:, ::-1] * np.arange(1, 8)[:, None]).sum(0)})


@kernel(RACE)
def matmul_one_barrier(wrong: bool) -> Launch:
    """Tiled matrix product with one barrier per tile instead of two"""
    a, b = integers((2, 48, 48), -5, 5)
    return Launch((3, 3), (16, 16), (a, b, Empty((48, 48)), 48), {2: a @ b})


@kernel(RACE)
def warp_reduce_volatile(wrong: bool) -> Launch:
    """Reduction by one warp with volatile instead of __syncwarp"""
    x = integers((3, 64))
    return Launch(3, 64, (x, Empty(3)), {1: x.sum(1)})


@kernel(RACE)
def warp_scan_volatile(wrong: bool) -> Launch:
    """Prefix sums by one warp with volatile instead of __syncwarp"""
    x = integers((3, 32), dtype=np.int32)
    return Launch(3, 32, (x, Empty((3, 32), np.int32)), {1: x.cumsum(1)})


@kernel(RACE)
def volatile_exchange(wrong: bool) -> Launch:
    """Exchange within each warp through volatile shared memory"""
    x = integers((3, 4, 32), dtype=np.int32)
    return Launch(3, (32, 4), (x, Empty((3, 4, 32), np.int32)), {1: x[..., ::-1]})


@kernel(RACE)
def warp_reduce_plain(wrong: bool) -> Launch:
    """Warp-synchronous reduction without __syncwarp"""
    x = integers((5, 32))
    return Launch(5, 32, (x, Empty(5)), {1: x.sum(1)})


@kernel(RACE)
def warp_scan_order(wrong: bool) -> Launch:
    """Warp scan in shared memory with one __syncwarp per step instead of two"""
    x = integers((4, 32), dtype=np.int32)
    return Launch(4, 32, (x, Empty((4, 32), np.int32)), {1: x.cumsum(1)})


@kernel(RACE)
def syncwarp_half_mask(wrong: bool) -> Launch:
    """__syncwarp whose mask omits the lanes that store"""
    x = integers(32)
    return Launch(1, 32, (x, Empty(16)), {1: x[:16] + x[16:]})


@kernel(RACE)
def shared_histogram(wrong: bool) -> Launch:
    """Histogram in shared memory with counts that are not atomic"""
    x = integers(3000, 0, 256, np.uint8)
    bins = np.zeros(256, np.int32)
    return Launch(4, 96, (x, bins, x.size), {1: np.bincount(x, minlength=256)})


@kernel(RACE)
def pipe_refill(wrong: bool) -> Launch:
    """Warp-specialised pipeline: the producer refills a buffer before it is empty"""
    x = integers((6, 32))
    return Launch(1, 64, (x, Empty(32), 6), {1: 2 * x[:, ::-1].sum(0)})


@kernel(RACE)
def pipe_wrong_barrier(wrong: bool) -> Launch:
    """Consumers wait at the named barrier of another producer"""
    x = integers((2, 32))
    return Launch(1, 128, (x, Empty((2, 32))), {1: x[:, ::-1]})


@kernel(RACE)
def scan_in_place(wrong: bool) -> Launch:
    """In-place block scan with one barrier per step instead of two"""
    x = integers((2, 160), dtype=np.int32)
    return Launch(2, 160, (x, Empty((2, 160), np.int32)), {1: x.cumsum(1)}, shared=640)


@kernel(RACE)
def stencil_no_barrier(wrong: bool) -> Launch:
    """Stencil through a tile without a barrier before the neighbours are read"""
    x = integers(150)
    padded = np.pad(x, 1)
    return Launch(3, 64, (x, Empty(150), 150), {1: padded[:-2] + 2 * x + padded[2:]})


@kernel(RACE)
def scratch_reused(wrong: bool) -> Launch:
    """Two block reductions in one scratch area without a barrier between them"""
    x = integers((3, 128))
    spread = np.abs(x - x.sum(1, keepdims=True) / 128).sum(1)
    return Launch(3, 128, (x, Empty((3, 2))), {1: np.stack([x.sum(1), spread], 1)})


@kernel(RACE)
def pivot_broadcast(wrong: bool) -> Launch:
    """Elimination that publishes the next pivot row while the previous one is in use"""
    a = integers((64, 64), -3, 3).astype(np.float64) + 40 * np.eye(64)
    upper = a.copy()
    for k in range(64):
        upper[k + 1 :, k:] -= upper[k + 1 :, k : k + 1] / upper[k, k] * upper[k, k:]
    return Launch(1, 64, (a.astype(np.float32),), {0: upper})


@kernel(RACE)
def bitonic_sort(wrong: bool) -> Launch:
    """Bitonic sort with its barrier outside the inner loop"""
    x = integers((2, 128), -1000, 1000, np.int32)
    return Launch(2, 128, (x,), {0: np.sort(x, 1)}, shared=512)


@kernel(RACE)
def flag_before_data(wrong: bool) -> Launch:
    """Flag in shared memory set before its data is stored"""
    x = integers(32)
    return Launch(1, 64, (x, Empty(32)), {1: x[::-1]})


@kernel(EARLY)
def copy_no_wait(wrong: bool) -> Launch:
    """cp.async without a wait"""
    x = integers((3, 64))
    return Launch(3, 64, (x, Empty((3, 64))), {1: x[:, ::-1]}, shared=256)


@kernel(EARLY)
def copy_wait_count(wrong: bool) -> Launch:
    """cp.async pipeline of three stages, wait_group one too high"""
    x = integers((6, 64))
    return Launch(1, 64, (x, Empty(64), 6), {1: (x[:, ::-1] * np.arange(1, 7)[:, None]).sum(0)})


@kernel(EARLY)
def copy_last_tile(wrong: bool) -> Launch:
    """cp.async pipeline drained with a wait for the wrong group"""
    x = integers((2, 64))
    return Launch(1, 64, (x, Empty(64)), {1: x[0] + x[1, ::-1]})


@kernel(EARLY)
def copy_overwritten(wrong: bool) -> Launch:
    """Store to the destination of a cp.async in flight"""
    x = integers((2, 256))
    y = x.copy()
    y[:, 3::4] = 0
    return Launch(2, 64, (x, Empty((2, 256))), {1: y})


@kernel(RACE)
def copy_no_barrier(wrong: bool) -> Launch:
    """cp.async waited for, but no barrier before other threads read the data"""
    x = integers(512)
    return Launch(1, 128, (x, Empty(512)), {1: np.roll(x, -4) - x})


@kernel(RACE)
def copy_refill(wrong: bool) -> Launch:
    """cp.async ring of four stages, one refilled while other threads read it"""
    x = integers((9, 128))
    return Launch(1, 128, (x, Empty(128), 9), {1: (x[:, ::-1] / np.arange(1, 10)[:, None]).sum(0)})


@kernel(RACE)
def any_in_block(wrong: bool) -> Launch:
    """Threads that store different values to one shared cell; correct: the same value"""
    x = integers((4, 64), dtype=np.int32)
    x[2] = 1
    return Launch(4, 64, (x, Empty(4, np.int32)), {1: (x < 0).any(1)})


@kernel(RACE)
def cas_shared_product(wrong: bool) -> Launch:
    """Result of an atomicCAS loop in shared memory read without a barrier"""
    x = np.where(integers((3, 64), 0, 8) == 0, 2, 1).astype(np.float32)
    return Launch(3, 64, (x, Empty(3)), {1: x.prod(1)})


@kernel(RACE)
def histogram_zeroing(wrong: bool) -> Launch:
    """Shared-memory counts cleared without a barrier before counting"""
    x = integers(2000, 0, 256, np.uint8)
    return Launch(3, 128, (x, np.zeros(256, np.int32), x.size), {1: np.bincount(x, minlength=256)})


@kernel(RACE)
def warp_results(wrong: bool) -> Launch:
    """Other warps' results read by the first warp without a barrier"""
    x = integers((3, 256))
    return Launch(3, 256, (x, Empty(3)), {1: x.max(1)})


@kernel(RACE)
def loop_flag_reset(wrong: bool) -> Launch:
    """Shared loop flag cleared while other threads still read it"""
    x = integers((2, 64), 0, 1000, np.int32)
    return Launch(2, 64, (x,), {0: np.minimum.accumulate(x, 1)})


@kernel(RACE)
def compaction_base(wrong: bool) -> Launch:
    """Block's offset from an atomic, read without a barrier"""
    x = integers(300, dtype=np.int32)
    want = np.zeros(300, np.int32)
    want[: (x > 0).sum()] = x[x > 0]
    args = (x, np.zeros(300, np.int32), np.zeros(1, np.int32), 300)
    return Launch(5, 64, args, {1: want, 2: [(x > 0).sum()]}, unordered=(1,))


@kernel(RACE)
def tile_sync(wrong: bool) -> Launch:
    """Tile of a cooperative group not synchronized"""
    x = integers((2, 64), dtype=np.int32)
    return Launch(2, 64, (x, Empty((2, 64), np.int32)), {1: x.reshape(2, 8, 8)[:, :, ::-1].reshape(2, 64)})


@kernel(EARLY)
def pipeline_wait_prior(wrong: bool) -> Launch:
    """Pipeline primitives: wait for one stage too few"""
    x = integers((6, 64))
    return Launch(1, 64, (x, Empty((5, 64)), 5), {1: x[:-1] + x[1:, ::-1]})


@kernel(RACE)
def cub_storage_reused(wrong: bool) -> Launch:
    """CUB storage shared by two collectives without a barrier between them"""
    x = integers((2, 256), -1000, 1000, np.int32)
    return Launch(2, 64, (x, Empty((2, 256), np.int32)), {1: np.sort(x, 1)})


@kernel(RACE)
def tile_of_warps(wrong: bool) -> Launch:
    """Tile of two warps not synchronized"""
    x = integers((3, 128), dtype=np.int32)
    groups = x.reshape(3, 2, 64)
    want = groups[:, :, ::-1] - groups.sum(2, keepdims=True) + groups.cumsum(2)
    return Launch(3, 128, (x, Empty((3, 128), np.int32)), {1: want.reshape(3, 128)})
