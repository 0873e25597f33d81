"""Bugs of bulk copies, tensor copies, and the barriers that count their bytes."""

from __future__ import annotations

import numpy as np

from ..catalogue import Empty, Launch
from .catalogue import Map, Words, planted


def integers(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact in any order."""
    return np.random.default_rng(7).integers(-20, 20, shape).astype(np.float32)


X = integers(128)
MATRIX = integers(16, 32)
OTHER = -MATRIX
BOX = (16, 32)


def reversing() -> Launch:
    return Launch(1, 128, (X, Empty(128)), {1: X[::-1]})


def adding(tiles: int, threads: int = 128) -> Launch:
    x = integers(tiles, 128)
    return Launch(1, threads, (x, Empty(128)), {1: x.sum(0)})


def doubling(tiles: int) -> Launch:
    x = integers(tiles, 128)
    return Launch(1, 128, (x, Empty(x.shape)), {1: 2 * x})


@planted("early")
def load_no_wait(wrong: bool) -> Launch:
    """Bulk load without a wait for its barrier"""
    return reversing()


@planted("early")
def load_other_barrier(wrong: bool) -> Launch:
    """Bulk load read after a wait for the barrier of another one"""
    return adding(2)


@planted("early")
def parity_kept(wrong: bool) -> Launch:
    """Waits for the same parity in every phase"""
    return adding(4)


@planted("proxy fence")
def store_no_fence(wrong: bool) -> Launch:
    """Bulk store of ordinary stores without fence.proxy.async"""
    return Launch(1, 128, (X, Empty(128)), {1: 2 * X})


@planted("proxy fence")
def store_fence_by_issuer(wrong: bool) -> Launch:
    """fence.proxy.async by the thread that issues a tensor store, not by the writers"""
    x = integers(8, 32)
    return Launch(1, 256, (x, Map(Empty(x.shape), (8, 32))), {1: 2 * x})


@planted("store source")
def store_overwritten(wrong: bool) -> Launch:
    """Source of a bulk store overwritten before wait_group.read"""
    return doubling(3)


@planted("store source")
def store_waited_by_other(wrong: bool) -> Launch:
    """wait_group.read by a thread that has issued no bulk store"""
    return doubling(3)


@planted("store commit")
def store_no_commit(wrong: bool) -> Launch:
    """Bulk store without a commit before wait_group.read"""
    return doubling(3)


@planted("store source")
def reduction_overwritten(wrong: bool) -> Launch:
    """Source of a bulk reduction overwritten before wait_group.read"""
    x = integers(4, 2, 128)
    return Launch(4, 128, (x, np.zeros(128, np.float32)), {1: x.sum((0, 1))})


@planted("bytes")
def expect_elements(wrong: bool) -> Launch:
    """expect_tx of elements instead of bytes"""
    return reversing()


@planted("bytes")
def expect_clipped(wrong: bool) -> Launch:
    """expect_tx of the part of a box that is inside the tensor"""
    x = integers(20, 32)
    return Launch(2, 32, (Map(x, BOX), Empty(20), 20), {1: x.sum(1)})


@planted("overflow")
def expect_too_large(wrong: bool) -> Launch:
    """expect_tx of a megabyte at once"""
    x = np.random.default_rng(7).integers(-2, 3, (64, 4096)).astype(np.float32)
    return Launch(1, 128, (x, Empty(128), 64), {1: x.reshape(-1, 128).sum(0)})


@planted("overflow")
def expect_by_all_lanes(wrong: bool) -> Launch:
    """expect_tx of a large tile by every lane of a warp"""
    x = integers(10240)
    return Launch(1, 32, (x, Empty(32)), {1: x.reshape(-1, 32).sum(0)})


@planted("parity")
def parity_two_phases_ago(wrong: bool) -> Launch:
    """Wait for the parity of a phase after the next one has completed"""
    return adding(2, 160)


@planted("parity")
def parity_slow_consumer(wrong: bool) -> Launch:
    """Waits for two phases that have completed since the last wait"""
    return adding(3, 160)


@planted("hang")
def arrivals_missing(wrong: bool) -> Launch:
    """Barrier that counts threads while one lane per warp arrives"""
    return reversing()


@planted("parity")
def arrivals_of_all_threads(wrong: bool) -> Launch:
    """Arrivals of all threads at a barrier that counts warps"""
    return reversing()


@planted("arrivals")
def arrivals_of_two_producers(wrong: bool) -> Launch:
    """Arrivals of two producers at a barrier that counts one"""
    return adding(2)


@planted("hang")
def buffers_never_empty(wrong: bool) -> Launch:
    """Producer that waits for a parity that an unused empty barrier does not have"""
    x = integers(4, 32)
    return Launch(1, 64, (x, Empty(32)), {1: x.sum(0)})


@planted("initialised")
def init_no_barrier(wrong: bool) -> Launch:
    """mbarrier used by other warps without a barrier after its initialisation"""
    return reversing()


@planted("initialised")
def init_in_other_block(wrong: bool) -> Launch:
    """Another block's mbarrier used without a cluster barrier after its initialisation"""
    x = integers(2, 32)
    return Launch(2, 32, (x, Empty(2)), {1: x.sum(1)[::-1]}, cluster=2)


@planted("initialised again")
def init_each_tile(wrong: bool) -> Launch:
    """mbarrier initialised again without mbarrier.inval"""
    return adding(3)


@planted("overwritten")
def barrier_memory_reused(wrong: bool) -> Launch:
    """Memory of an mbarrier used for data without mbarrier.inval"""
    return Launch(1, 128, (X, Empty(128)), {1: X})


@planted("overwritten")
def barrier_past_end(wrong: bool) -> Launch:
    """Store past the end of an array into the mbarrier after it"""
    x = np.arange(256, dtype=np.float32).reshape(2, 128)
    return Launch(1, 128, (x, Empty(x.shape)), {1: x + np.roll(x, -1, axis=1)})


@planted("exited")
def arrive_at_exited(wrong: bool) -> Launch:
    """Arrival at the mbarrier of a block that has exited"""
    x = np.arange(64, dtype=np.int32).reshape(2, 32)
    return Launch(2, 32, (x, Empty(x.shape, np.int32)), {1: 2 * x}, cluster=2)


@planted("exited")
def multicast_to_exited(wrong: bool) -> Launch:
    """Multicast into a block that has exited"""
    return Launch(2, 32, (Map(MATRIX, BOX), Empty(32)), {1: MATRIX.sum(0)}, cluster=2)


@planted("exited")
def store_async_to_exited(wrong: bool) -> Launch:
    """st.async to a block that has exited"""
    x = integers(4, 32)
    return Launch(4, 32, (x, Empty(1)), {1: [x.sum()]}, cluster=4)


@planted("map memory")
def map_in_local_memory(wrong: bool) -> Launch:
    """Tensor map copied to a local variable"""
    maps = (Map(OTHER, BOX), Map(MATRIX, BOX))
    return Launch(1, 32, (*maps, Empty(32), 1), {2: MATRIX.sum(0)})


@planted("map memory")
def map_in_shared_memory(wrong: bool) -> Launch:
    """Tensor map copied to shared memory"""
    return Launch(1, 32, (Map(MATRIX, BOX), Empty(32)), {1: MATRIX.sum(0)})


@planted("map fence")
def map_overwritten(wrong: bool) -> Launch:
    """Tensor map overwritten in device memory without fence.proxy.tensormap"""
    return Launch(1, 32, (Words((Map(OTHER, BOX), Map(MATRIX, BOX))), Empty(32)), {1: MATRIX.sum(0)})


@planted("map fence")
def map_moved(wrong: bool) -> Launch:
    """tensormap.replace without fence.proxy.tensormap"""
    return Launch(1, 32, (Words((Map(OTHER, BOX),)), MATRIX, Empty(32)), {2: MATRIX.sum(0)})


@planted("map")
def map_of_three_dimensions(wrong: bool) -> Launch:
    """Tensor map of three dimensions in a copy with two coordinates"""
    x = integers(3, 16, 32)
    return Launch(1, 32, (Map(x, (1, 16, 32)), Empty(32)), {1: x[1].sum(0)})


@planted("map")
def map_between_maps(wrong: bool) -> Launch:
    """Address in the middle of a tensor map"""
    return Launch(1, 32, (Words((Map(OTHER, BOX), Map(MATRIX, BOX))), Empty(32)), {1: MATRIX.sum(0)})


@planted("coordinates")
def coordinates_swapped(wrong: bool) -> Launch:
    """Coordinates of a tensor load in the order of rows and columns"""
    x = integers(16, 256)
    return Launch(8, 32, (Map(x, BOX), Empty(256)), {1: x.sum(0)})


@planted("coordinates")
def coordinates_from_one(wrong: bool) -> Launch:
    """Coordinates of a tensor store one box too far"""
    x = integers(64, 32)
    return Launch(4, 128, (x, Map(Empty(x.shape), BOX)), {1: 2 * x})
