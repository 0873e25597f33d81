"""Out-of-bounds and misaligned accesses, and reads of uninitialised memory."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, Pitched, kernel
from .shared import integers

BOUNDS = "out of bounds"
MISALIGNED = "misaligned"
UNSET = "uninitialised read"


@kernel(BOUNDS)
def guard_store(wrong: bool) -> Launch:
    """Off-by-one guard on a store"""
    x = integers(1000)
    return Launch(4, 256, (x, Empty(1000), 0.5, 1000), {1: 0.5 * x})


@kernel(BOUNDS)
def guard_load(wrong: bool) -> Launch:
    """Off-by-one on a load"""
    x = integers(300)
    return Launch(3, 128, (x, Empty(300), 300), {1: np.append(np.diff(x), 0)})


@kernel(BOUNDS)
def negative_index(wrong: bool) -> Launch:
    """Index -1 at the left edge"""
    x = integers(100, dtype=np.float64)
    edge = np.pad(x, 1, "edge")
    return Launch(1, 128, (x, Empty(100, np.float64), 100), {1: (edge[:-2] + x + edge[2:]) / 3})


@kernel(BOUNDS)
def float4_tail(wrong: bool) -> Launch:
    """float4 groups rounded up past the end"""
    x = integers(1001)
    return Launch(2, 128, (x, Empty(1001), 1001), {1: 2 * x})


@kernel(BOUNDS)
def rows_for_columns(wrong: bool) -> Launch:
    """Row stride taken from the wrong extent"""
    x, bias = integers((30, 20)), integers(20)
    return Launch((3, 4), (8, 8), (x, bias, Empty((30, 20)), 30, 20), {2: x + bias})


@kernel(BOUNDS)
def bytes_for_elements(wrong: bool) -> Launch:
    """Size in bytes taken as a number of elements"""
    return Launch(1, 64, (integers(77, dtype=np.float64), 77), {0: np.zeros(77)})


@kernel(BOUNDS)
def gather_index(wrong: bool) -> Launch:
    """Gather by the index -1 of a missing row"""
    table, index = integers((10, 4)), integers(50, -1, 10, np.int32)
    want = np.where(index[:, None] >= 0, table[index], 0)
    return Launch(2, 32, (table, index, Empty((50, 4)), 50), {2: want})


@kernel(BOUNDS)
def index_overflow(wrong: bool) -> Launch:
    """Index arithmetic past 2^31"""
    n = 50_000
    x = np.arange(n, dtype=np.float32)
    return Launch(-(-n // 256), 256, (x, Empty(n), n), {1: x[np.arange(n) * 48271 % n]})


@kernel(BOUNDS)
def constant_overrun(wrong: bool) -> Launch:
    """Read past the end of constant memory"""
    x, weights = integers(108), integers(9)
    want = np.convolve(x, weights[::-1], "valid")
    return Launch(1, 128, (x, Empty(100), 9, 100), {1: want}, constants={"weights": weights})


@kernel(BOUNDS)
def shared_too_small(wrong: bool) -> Launch:
    """Dynamic shared memory without room for the halo"""
    x = integers(256, dtype=np.int32)
    return Launch(4, 64, (x, Empty(256, np.int32)), {1: x + np.roll(x, -1) + np.roll(x, -2)}, shared=256)


@kernel(BOUNDS)
def shared_overrun(wrong: bool) -> Launch:
    """Shared tile without room for the halo"""
    x = integers((32, 32), dtype=np.int32)
    right = x + np.roll(x, -1, 1)
    return Launch((2, 2), (16, 16), (x, Empty((32, 32), np.int32), 32), {1: right + np.roll(right, -1, 0)})


@kernel(BOUNDS)
def shared_bin_range(wrong: bool) -> Launch:
    """Histogram whose largest value has no bin"""
    x = np.append(np.random.default_rng(1).random(400), 1).astype(np.float32)
    want = np.bincount(np.minimum((16 * x).astype(int), 15), minlength=16)
    return Launch(1, 128, (x, np.zeros(16, np.int32), x.size), {1: want})


@kernel(BOUNDS)
def local_overrun(wrong: bool) -> Launch:
    """Insertion past the end of a local array"""
    x = integers((40, 30), 0, 1000, np.int32)
    return Launch(2, 32, (x, Empty((40, 4), np.int32), 40, 30, 4), {1: -np.sort(-x, 1)[:, :4]})


@kernel(BOUNDS)
def null_table(wrong: bool) -> Launch:
    """Null pointer for an optional table"""
    x = integers(100)
    return Launch(1, 128, (x, None, Empty(100), 8, 100), {2: x})


@kernel(MISALIGNED)
def float4_odd_stride(wrong: bool) -> Launch:
    """float4 loads of rows with an odd stride"""
    x = integers((20, 9))
    return Launch(1, 32, (x, Empty(20), 20, 9), {1: x[:, :8].sum(1)})


@kernel(MISALIGNED)
def packed_record(wrong: bool) -> Launch:
    """double read from a packed record of bytes"""
    records = np.zeros(50, np.dtype([("tag", "<i4"), ("value", "<f8")]))
    records["value"] = integers(50)
    return Launch(1, 64, (records.view(np.uint8), Empty(50, np.float64), 50), {1: records["value"]})


@kernel(MISALIGNED)
def shared_vector(wrong: bool) -> Launch:
    """float4 loads of padded rows in shared memory"""
    x = integers((32, 32))
    return Launch(1, 32, (x, Empty(32)), {1: x.sum(1)})


@kernel(MISALIGNED)
def copy_misaligned(wrong: bool) -> Launch:
    """16-byte cp.async from an unaligned element"""
    x = integers(300)
    return Launch(1, 32, (x, Empty(128), 37), {1: x[37:165]})


@kernel(MISALIGNED)
def atomic_misaligned(wrong: bool) -> Launch:
    """8-byte atomic in a packed slot"""
    keys, values = integers(100, 0, 5, np.int32), integers(100, 0, 9, np.int32)
    want = np.zeros((5, 3), np.int32)
    want[:, 0] = np.bincount(keys, minlength=5)
    want[:, 1] = np.bincount(keys, values, minlength=5)
    return Launch(1, 128, (keys, values, np.zeros((5, 3), np.int32), 100), {2: want})


@kernel(UNSET)
def shared_tail(wrong: bool) -> Launch:
    """Tree reduction over shared cells that no thread has set"""
    x = integers((3, 100))
    return Launch(3, 128, (x, Empty(3), 100), {1: x.sum(1)})


@kernel(UNSET)
def shared_counts_unset(wrong: bool) -> Launch:
    """Dynamic shared memory assumed to be zero"""
    keys, values = integers(300, 0, 20, np.int32), integers(300, dtype=np.int32)
    want = np.bincount(keys, values, minlength=20)
    return Launch(2, 64, (keys, values, np.zeros(20, np.int32), 300, 20), {2: want}, shared=80)


@kernel(UNSET)
def local_unset(wrong: bool) -> Launch:
    """Local array only partly cleared"""
    x = integers((40, 25), 0, 8, np.int32)
    counts = (x[:, :, None] == np.arange(8)).sum(1)
    return Launch(2, 32, (x, Empty(40, np.int32), 40, 25), {1: counts.argmax(1)})


@kernel(UNSET)
def output_accumulated(wrong: bool) -> Launch:
    """Sum added to an output that was not zeroed"""
    a, x = integers((50, 40), -5, 5), integers(40, -5, 5)
    return Launch(1, 64, (a, x, Empty(50), 50, 40), {2: a @ x})


@kernel(UNSET)
def atomic_on_fresh(wrong: bool) -> Launch:
    """Atomic counter in uninitialised memory"""
    x = integers(500, 0, 1 << 31, np.uint32)
    bits = int(np.unpackbits(x.view(np.uint8)).sum())
    want = {1: np.array([bits])}
    return Launch(1, 128, (x, Empty(1, np.int32), 500), want)


@kernel(BOUNDS)
def local_of_partner(wrong: bool) -> Launch:
    """Local array of another thread, read by a pointer in shared memory"""
    x = integers((3, 64, 4), dtype=np.int32)
    return Launch(
        3, 64, (x, Empty((3, 64), np.int32), 4), {1: 2 * x.sum(2).reshape(3, 32, 2)[..., ::-1].reshape(3, 64)}
    )


@kernel("use after free")
def local_returned(wrong: bool) -> Launch:
    """Address of a local variable returned by its function"""
    x = integers((40, 9), dtype=np.int32)
    return Launch(2, 32, (x, Empty((40, 2), np.int32), 40, 9), {1: np.stack([x.max(1), x.argmax(1)], 1)})


@kernel(UNSET)
def halo_unset(wrong: bool) -> Launch:
    """Halo cells at the end of the line not set"""
    x = integers(150)
    want = np.convolve(np.pad(x, 2), np.ones(5), "valid")
    return Launch(3, 64, (x, Empty(150), 150), {1: want})


@kernel(UNSET)
def halo_corners(wrong: bool) -> Launch:
    """Corners of a tile's halo not set"""
    x = integers((32, 32), dtype=np.int32)
    want = sum(np.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1))
    return Launch((2, 2), (16, 16), (x, Empty((32, 32), np.int32), 32), {1: want})


@kernel(UNSET)
def padding_read(wrong: bool) -> Launch:
    """Loop that also reads the padding of pitched rows"""
    x = integers((30, 21))
    return Launch(1, 32, (Pitched(x, 24), Empty(30), 30, 21, 24), {1: x.max(1)})


@kernel(UNSET)
def tree_uneven(wrong: bool) -> Launch:
    """Tree reduction that treats 96 threads as a power of two"""
    x = integers((4, 96), dtype=np.int32)
    return Launch(4, 96, (x, Empty(4, np.int32)), {1: x.max(1)})


@kernel(UNSET)
def aligned_record(wrong: bool) -> Launch:
    """Field of a padded record not set"""
    x, flat = integers((2, 64, 3)), integers((2, 64), 0, 2, np.int32)
    points = x.copy()
    points[flat == 1, 2] = 0
    return Launch(2, 64, (x, flat, Empty((2, 64))), {2: ((points - points[:, ::-1]) ** 2).sum(2)})
