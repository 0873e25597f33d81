"""The idioms: each function is named as its kernel and returns a launch, with the contents of its arguments
afterwards. Sizes are odd, with partial warps and blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from planted.catalogue import Empty, Launch
from planted.shared import integers

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Idiom:
    """A correct kernel. file: its source. launch: makes the launch with the wanted results."""

    name: str
    file: Path
    launch: Callable[[], Launch]


IDIOMS: dict[str, Idiom] = {}


def idiom(file: str) -> Callable[[Callable[[], Launch]], Callable[[], Launch]]:
    def register(function: Callable[[], Launch]) -> Callable[[], Launch]:
        name = function.__name__
        IDIOMS[name] = Idiom(name, FOLDER / file, function)
        return function

    return register


def ints(shape: object, low: int = -20, high: int = 20) -> np.ndarray:
    return integers(shape, low, high, np.int32)


def zeros(*shape: int, dtype: object = np.int32) -> np.ndarray:
    return np.zeros(shape, dtype)


@idiom("atomics.cu")
def double_add() -> Launch:
    x = integers(777, dtype=np.float64)
    return Launch(3, 70, (x, zeros(2, dtype=np.float64), 777), {1: [x[::2].sum(), x[1::2].sum()]})


@idiom("atomics.cu")
def float_max() -> Launch:
    x = integers((3, 333), -1000, 1000)
    x[1] = -1 - abs(x[1])
    return Launch((2, 3), 75, (x, np.full(3, -np.inf, np.float32), 333), {1: x.max(1)})


@idiom("atomics.cu")
def warp_aggregated() -> Launch:
    x = ints(301)
    want = zeros(301)
    want[: (x > 0).sum()] = x[x > 0]
    return Launch(5, 72, (x, zeros(301), zeros(1), 301), {1: want, 2: [(x > 0).sum()]}, unordered=(1,))


@idiom("atomics.cu")
def match_groups() -> Launch:
    keys = ints(315, 0, 7)
    return Launch(4, 88, (keys, zeros(7), 315), {1: np.bincount(keys, minlength=7)})


@idiom("atomics.cu")
def private_histogram() -> Launch:
    x = integers(3001, 0, 256, np.uint8)
    return Launch(3, 100, (x, zeros(256, dtype=np.uint32), x.size), {1: np.bincount(x, minlength=256)})


@idiom("atomics.cu")
def wide_atomics() -> Launch:
    x = np.random.default_rng(3).integers(1 << 30, 1 << 32, 411).astype(np.uint32)
    x[300] = x[17] = x.max()
    first, wide = int(x.argmax()), x.astype(np.uint64)
    best = (wide[first] << np.uint64(32)) | np.uint64(410 - first)
    shifted = wide << np.uint64(20)
    one = np.full(1, 2**64 - 1, np.uint64)
    want = {1: [best], 2: [np.bitwise_or.reduce(shifted)], 3: [np.bitwise_and.reduce(shifted | np.uint64(0xFF))]}
    return Launch(5, 90, (x, zeros(1, dtype=np.uint64), zeros(1, dtype=np.uint64), one, 411), want)


@idiom("atomics.cu")
def short_counters() -> Launch:
    keys = ints(150, 0, 9)
    want = np.bincount(keys, np.arange(150) % 3, minlength=9)
    return Launch(2, 80, (keys, zeros(9, dtype=np.uint16), 150), {1: want})


@idiom("atomics.cu")
def compaction() -> Launch:
    x = integers(333)
    want = np.concatenate([np.flatnonzero(x > 5), np.full((x <= 5).sum(), -1)])
    args = (x, np.full(333, -1, np.int32), Empty(4, np.int32), zeros(1), 5.0, 333)
    return Launch(4, 90, args, {1: want, 3: [(x > 5).sum()]}, unordered=(1,))


@idiom("atomics.cu")
def frontier_step() -> Launch:
    rng = np.random.default_rng(2)
    degrees = rng.integers(0, 70, 60)
    first = np.append(0, degrees.cumsum()).astype(np.int32)
    edges = rng.integers(0, 60, first[-1]).astype(np.int32)
    frontier = np.array([3, 7, 20, 41, 59], np.int32)
    depth = np.full(60, -1, np.int32)
    depth[frontier] = 0
    depth[[1, 2, 11]] = 0
    reached = np.unique(np.concatenate([edges[first[v] : first[v + 1]] for v in frontier]))
    new = reached[depth[reached] == -1]
    after = depth.copy()
    after[new] = 1
    want = np.concatenate([np.full(60 - new.size, -9), new])
    args = (first, edges, depth, frontier, np.full(60, -9, np.int32), zeros(1), 5, 1)
    return Launch(3, 64, args, {2: after, 4: want, 5: [new.size]}, unordered=(4,))


@idiom("atomics.cu")
def work_queue() -> Launch:
    x = ints((11, 75))
    return Launch(3, 64, (x, Empty(11, np.int32), zeros(1), 11, 75), {1: x.sum(1), 2: [14]})


@idiom("atomics.cu")
def spin_lock() -> Launch:
    x = ints((5, 75), -1000, 1000)
    warps = np.concatenate([x[:, k : k + 32].max(1) for k in (0, 32, 64)])
    return Launch(5, 75, (x, np.array([0, 0, -5000], np.int32), zeros(1)), {1: [15, warps.sum(), warps.max()]})


@idiom("atomics.cu")
def lock_per_thread() -> Launch:
    accounts = ints(101, 0, 7)
    sums = np.bincount(accounts, np.arange(101), minlength=7)
    return Launch(3, 40, (accounts, zeros(7), zeros(7), Empty(3, np.int32), 101), {1: sums, 3: [40, 40, 21]})


@idiom("atomics.cu")
def last_block() -> Launch:
    x = ints(999)
    return Launch(7, 50, (x, Empty(1, np.int32), 999), {1: [x.sum()]})


@idiom("atomics.cu")
def packed_atomics() -> Launch:
    x = integers((99, 2), -4, 5, np.float16)
    slots = ints(99)
    parity = np.bitwise_xor.reduce(1 << (np.arange(99) % 31))
    args = (x, zeros(2, dtype=np.float16), zeros(1, dtype=np.uint32), slots, Empty(99, np.int32), 99)
    return Launch(3, 40, args, {1: x.astype(int).sum(0), 2: [parity], 3: -np.arange(99), 4: slots})


@idiom("flags.cu")
def volatile_chain() -> Launch:
    x = ints((5, 40))
    return Launch(5, 40, (x, Empty((5, 40), np.int32), zeros(5)), {1: x.cumsum(0)}, cooperative=True)


@idiom("flags.cu")
def release_chain() -> Launch:
    x = ints((5, 40))
    return Launch(5, 40, (x, Empty((5, 40), np.int32), zeros(5, 40)), {1: x.cumsum(0)}, cooperative=True)


@idiom("flags.cu")
def block_scope() -> Launch:
    value, want = np.arange(1, 4), []
    for warp in range(5):
        value = 2 * value + warp
        want.append(value)
    return Launch(3, 160, (Empty((3, 5), np.int32), zeros(1)), {0: np.stack(want, 1), 1: [15]})


@idiom("flags.cu")
def look_back() -> Launch:
    x = ints(601)
    return Launch(7, 96, (x, Empty(601, np.int32), zeros(1), zeros(7, dtype=np.uint64), 601), {1: x.cumsum()})


@idiom("flags.cu")
def ticket_lock() -> Launch:
    n = np.arange(1, 16)
    args = (zeros(3, dtype=np.int64), zeros(1, dtype=np.uint32), zeros(1, dtype=np.uint32))
    return Launch(5, 75, args, {0: [15, 225, (n * n).sum()], 2: [15]})


@idiom("flags.cu")
def built_once() -> Launch:
    args = (Empty(8, np.int32), zeros(1), zeros(1), zeros(1), Empty(150, np.int32), 150)
    return Launch(3, 56, args, {0: np.arange(8) ** 2 + 1, 3: [1], 4: (np.arange(150) % 8) ** 2 + 1})


@idiom("flags.cu")
def lock_free_stack() -> Launch:
    n = 3 * 11
    nodes, head = Empty(n, np.dtype([("value", "<i4"), ("next", "<i4")])), np.array([0xFFFFFFFF], np.uint64)
    return Launch(3, 11, (nodes, head, Empty(n, np.int32)), {2: 3 * np.arange(n) + 1}, unordered=(2,))


@idiom("flags.cu")
def sequence_lock() -> Launch:
    args = (zeros(2), zeros(1, dtype=np.uint32), Empty(3 * 33, np.int32), 9)
    return Launch(4, 33, args, {0: [9, -9], 1: [18], 2: np.ones(99)}, cooperative=True)


@idiom("flags.cu")
def semaphore() -> Launch:
    return Launch(9, 33, (zeros(1), zeros(1), zeros(1)), {0: [0], 2: [9]})


@idiom("flags.cu")
def counter_barrier() -> Launch:
    x = want = ints(5 * 33)
    for k in range(4):
        want = np.roll(want, -1) + k
    args = (x, Empty(5 * 33, np.int32), zeros(1, dtype=np.uint32), 4)
    return Launch(5, 33, args, {0: want}, cooperative=True)


@idiom("blocks.cu")
def partitioned() -> Launch:
    x = integers((3, 77), 0, 10, np.uint8)
    args = (x, Empty((3, 77), np.uint8), Empty(3, np.float64), 77)
    return Launch(3, 50, args, {1: np.sort(x, 1), 2: x.sum(1) / 77}, shared=8 * 77 + 40 + 77)


@idiom("blocks.cu")
def padded_transpose() -> Launch:
    x = integers((45, 71))
    return Launch((3, 2), (32, 8), (x, Empty((71, 45)), 45, 71), {1: x.T})


@idiom("blocks.cu")
def double_buffered() -> Launch:
    x = integers((3, 401))
    tiles = np.pad(x, ((0, 0), (0, 79))).reshape(3, 5, 96)
    want = (tiles[:, :, ::-1] * np.arange(1, 6)[:, None]).sum(1)
    return Launch(3, 96, (x, Empty((3, 96)), 401), {1: want})


@idiom("blocks.cu")
def pipeline_ring() -> Launch:
    x = ints((3, 5, 70, 4))
    reduced = [f.reduce(x[..., k], axis=1) for k, f in enumerate((np.add, np.bitwise_xor, np.maximum, np.minimum))]
    reduced[2], reduced[3] = np.maximum(reduced[2], 0), np.minimum(reduced[3], 0)
    return Launch(3, 70, (x, Empty((3, 70, 4), np.int32), 5), {1: np.stack(reduced, 2)})


@idiom("blocks.cu")
def barrier_votes() -> Launch:
    x = ints((5, 75))
    want = np.stack([(x > 0).sum(1), (x > -20).all(1), (x == 19).any(1)], 1)
    return Launch(5, 75, (x, Empty((5, 3), np.int32)), {1: want})


@idiom("blocks.cu")
def specialised_warps() -> Launch:
    x = ints((3, 7, 64))
    want = (x[:, :, ::-1] * np.arange(1, 8)[:, None]).sum(1)
    return Launch(3, 96, (x, Empty((3, 64), np.int32), 7), {1: want})


@idiom("blocks.cu")
def volatile_ring() -> Launch:
    x = ints((3, 19))
    return Launch(3, 64, (x, Empty((3, 19), np.int32), 19), {1: 2 * x})


@idiom("blocks.cu")
def sweep_scan() -> Launch:
    x = ints((3, 128))
    return Launch(3, 64, (x, Empty((3, 128), np.int32)), {1: x.cumsum(1) - x})


@idiom("blocks.cu")
def shuffles() -> Launch:
    x = ints((3, 5, 32))
    least = np.broadcast_to(x.min(2, keepdims=True), x.shape)
    third = np.repeat(x[:, :, 3::8], 8, axis=2)
    want = np.stack([x.cumsum(2), least, x[:, :, ::-1], third], 3)
    return Launch(3, 160, (x, Empty((3, 5, 32, 4), np.int32), Empty(3, np.int32)), {1: want, 2: x.sum((1, 2))})


@idiom("blocks.cu")
def warp_reductions() -> Launch:
    x = ints(205)
    want = [
        [w.sum(), w.max(), np.bitwise_xor.reduce(w), (w > -19).all(), (w > 18).any()]
        for w in np.split(x, range(32, 205, 32))
    ]
    return Launch(4, 64, (x, Empty((7, 5), np.int32), 205), {1: want})


@idiom("blocks.cu")
def warp_exchange() -> Launch:
    x = ints((3, 77))
    want = np.concatenate([np.roll(w, -3, axis=1) + 3 for w in np.split(x, (32, 64), axis=1)], 1)
    return Launch(3, 77, (x, Empty((3, 77), np.int32)), {1: want})


@idiom("groups.cu")
def tiles() -> Launch:
    x = ints((3, 80))
    parts = x.reshape(3, 5, 16)
    want = parts.cumsum(2) - parts[:, :, np.arange(16) ^ 5]
    args = (x, Empty((3, 80), np.int32), Empty((3, 5), np.int32), zeros(1))
    return Launch(3, 80, args, {1: want.reshape(3, 80), 2: parts.sum(2), 3: [(x % 2).sum()]})


@idiom("groups.cu")
def grid_rounds() -> Launch:
    x = want = ints(301)
    for _ in range(4):
        want = want + np.roll(want, -1)
    return Launch(3, 70, (x, Empty(301, np.int32), 301, 4), {0: want}, cooperative=True)


@idiom("groups.cu")
def cluster_bins() -> Launch:
    x = ints((3, 555), 0, 64)
    counts = np.stack([np.bincount(row, minlength=64) for row in x])
    want = (counts * (np.arange(64) % 32 + 1)).sum(1)
    return Launch(6, 75, (x, Empty((3, 64), np.int32), Empty(3, np.int32), 555), {1: counts, 2: want}, cluster=2)


@idiom("groups.cu")
def group_copy() -> Launch:
    x = ints((3, 137))
    sums = 2 * np.pad(x[:, ::-1], ((0, 0), (0, 63))).reshape(3, 2, 100).sum(1)
    return Launch(3, 100, (x, Empty((3, 137), np.int32), 137), {1: sums[:, (np.arange(137) + 1) % 100]})


@idiom("groups.cu")
def thread_pipeline() -> Launch:
    x = ints((3, 5, 70))
    want = (x * 3 ** np.arange(4, -1, -1)[:, None]).sum(1)
    return Launch(3, 70, (x, Empty((3, 70), np.int32), 5), {1: want})


@idiom("groups.cu")
def warp_matrices() -> Launch:
    a, b = integers((48, 80), -4, 5, np.float16), integers((80, 32), -4, 5, np.float16)
    want = a.astype(np.float32) @ b.astype(np.float32)
    return Launch((2, 2), 64, (a, b, Empty((48, 32)), 48, 32, 80), {2: want})


@idiom("groups.cu")
def matrix_tiles() -> Launch:
    a, b = integers((2, 3, 16, 16), -4, 5, np.float16), integers((2, 3, 16, 8), -5, 4, np.float16)
    want = a.astype(np.float32) @ b.astype(np.float32)
    return Launch(2, 96, (a, b, Empty((2, 3, 16, 8))), {2: want})


@idiom("arithmetic.cu")
def vector_tail() -> Launch:
    x = integers(1003)
    want = 4 * x
    want[:1000] = (x[:1000].reshape(250, 4) * [1, 2, 1, -1] + [1, 0, -3, 0]).ravel()
    return Launch(3, 70, (x, Empty(1003), 1003), {1: want})


@idiom("arithmetic.cu")
def constant_filter() -> Launch:
    x, weights = integers(201), integers(5)
    want = np.convolve(np.pad(x, 2, "edge"), weights[::-1], "valid")
    return Launch(3, 70, (x, Empty(201), 201), {1: want}, constants={"weights": weights})


@idiom("arithmetic.cu")
def packed_numbers() -> Launch:
    x, z = integers((99, 2), dtype=np.float16), integers((99, 2), dtype=ml_dtypes.bfloat16)
    want = {0: 2 * x + np.array([1, -1], np.float16), 1: np.maximum(z + z, z.dtype.type(-3))}
    return Launch(3, 40, (x, z, 99), want)


@idiom("arithmetic.cu")
def bit_operations() -> Launch:
    a, b = np.random.default_rng(8).integers(0, 1 << 32, (2, 123)).astype(np.uint32)
    want = np.zeros((123, 7), np.uint32)
    for row, u, v in zip(want, a.tolist(), b.tolist(), strict=True):
        bytes_of = [(value >> 8 * k) & 255 for value in (u, v) for k in range(4)]
        number = int(np.float64(u + 0.5).view(np.uint64))
        row[:] = [value % (1 << 32) for value in (
            ((v << 32 | u) << v % 32) >> 32,
            sum(bytes_of[k] << 8 * place for place, k in enumerate((2, 4, 1, 6))),
            sum(bytes_of[k] * bytes_of[4 + k] for k in range(4)) + 7,
            u.bit_count() + 100 * (32 - v.bit_length()) + 10000 * (u & -u).bit_length() + 1000000 * (v & 1),
            number ^ number >> 32,
            u * v + 5 ^ u,
            (u * v >> 32) + abs(u - v) + 1,
        )]  # fmt: skip
    return Launch(3, 50, (a, b, Empty((123, 7), np.uint32), 123), {2: want})


@idiom("arithmetic.cu")
def local_digits() -> Launch:
    x = np.random.default_rng(4).integers(0, 1 << 32, 77).astype(np.uint32)
    want = [int("".join(sorted(str(v), reverse=True))) for v in x]
    return Launch(3, 30, (x, Empty(77, np.uint64), 77), {1: want})


@idiom("arithmetic.cu")
def diagnostics() -> Launch:
    return Launch(3, 40, (Empty(3, np.int32), 3), {0: [4, 4, 4]})
