"""Races between blocks in global memory."""

from __future__ import annotations

import numpy as np

from .catalogue import Empty, Launch, kernel
from .shared import integers

RACE = "global memory race"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


@kernel(RACE)
def counter_plain(wrong: bool) -> Launch:
    """Blocks add to a counter without atomics"""
    x = integers(1000)
    return Launch(8, 128, (x, zeros(1), 1000), {1: [(x > 0).sum()]})


@kernel(RACE)
def global_histogram(wrong: bool) -> Launch:
    """Histogram in global memory with counts that are not atomic"""
    x = integers(500, 0, 64, np.int32)
    return Launch(100, 1, (x, zeros(64), 500), {1: np.bincount(x, minlength=64)})


@kernel(RACE)
def last_block_fence(wrong: bool) -> Launch:
    """Last-block reduction without __threadfence before the count"""
    x = integers(1000, dtype=np.int32)
    args = (x, Empty(16, np.int32), np.zeros(1, np.uint32), Empty(1, np.int32), 1000)
    return Launch(16, 64, args, {3: [x.sum()]})


@kernel(RACE)
def best_in_halves(wrong: bool) -> Launch:
    """Two loads of the halves of a pair that other blocks update by a 64-bit atomic"""
    x = integers(500, 1, 1000, np.int32)
    want = int(x.max()) << 32 | 500 - int(x.argmax())
    return Launch(8, 64, (x, np.zeros(1, np.uint64), 500), {1: np.array([want], np.uint64)})


@kernel(RACE)
def neighbour_output(wrong: bool) -> Launch:
    """Read of an element that the neighbouring block writes"""
    x = integers(200)
    squares = x * x
    return Launch(4, 64, (x, Empty(200), Empty(200), 200), {1: squares, 2: squares - np.append(squares[1:], 0)})


@kernel(RACE)
def stencil_in_place(wrong: bool) -> Launch:
    """Stencil in place across blocks"""
    x = integers(200)
    padded = np.pad(x, 1)
    return Launch(4, 64, (x, Empty(200), 200), {1: padded[:-2] + 2 * x + padded[2:]})


@kernel(RACE)
def chunk_overlap(wrong: bool) -> Launch:
    """Chunks of neighbouring blocks that overlap in one cell"""
    x = np.arange(8 * 50, dtype=np.float32) ** 2
    return Launch(8, 32, (x, Empty(400), 50), {1: x - np.repeat(x[::50], 50)})


@kernel(RACE)
def best_plain_read(wrong: bool) -> Launch:
    """Plain read of a value that other blocks change by atomic operations"""
    x = integers(500, -1000, 1000, np.int32)
    return Launch(8, 64, (x, np.full(1, -(2**31), np.int32), 500), {1: [x.max()]})


@kernel(RACE)
def lock_no_fence(wrong: bool) -> Launch:
    """Spin lock without fences"""
    x = integers((12, 32), dtype=np.int32)
    return Launch(12, 32, (x, zeros(2), zeros(1)), {1: [12, x.max(1).sum()]})


@kernel(RACE)
def lock_forgotten(wrong: bool) -> Launch:
    """Update under a lock on one path, without it on another"""
    x = integers(10, 1, 50, np.int32)
    return Launch(10, 32, (x, zeros(2), zeros(1)), {1: [x[::2].sum() - x[1::2].sum(), x[1::2].sum()]})


@kernel(RACE)
def flag_no_fence(wrong: bool) -> Launch:
    """Flag between blocks without a fence"""
    x = integers(32)
    return Launch(2, 32, (x, Empty(32), zeros(1), Empty(32)), {3: 3 * x[::-1]})


@kernel(RACE)
def flag_block_fence(wrong: bool) -> Launch:
    """Flag between blocks with a fence of block scope"""
    x = integers(64)
    return Launch(2, 64, (x, Empty(64), zeros(1), Empty(64)), {3: x[::-1] - 1})


@kernel(RACE)
def flag_plain_store(wrong: bool) -> Launch:
    """Flag between blocks set by a plain store"""
    x = integers(32, dtype=np.int32)
    return Launch(2, 32, (x, Empty(32, np.int32), zeros(1), Empty(32, np.int32)), {3: x + 5})


@kernel(RACE)
def lookback_scan(wrong: bool) -> Launch:
    """Decoupled look-back scan without fences"""
    x = integers((7, 64), dtype=np.int32)
    args = (x, Empty((7, 64), np.int32), zeros(1), zeros(7), Empty(7, np.int32), Empty(7, np.int32))
    return Launch(7, 64, args, {1: x.ravel().cumsum().reshape(7, 64)})


@kernel(RACE)
def grid_phases(wrong: bool) -> Launch:
    """Block barrier between the phases of a cooperative grid"""
    x = integers(6 * 64)
    want = {2: x * x - (x * x)[::-1]}
    return Launch(6, 64, (x, Empty(6 * 64), Empty(6 * 64)), want, cooperative=True)


@kernel(RACE)
def grid_barrier_fence(wrong: bool) -> Launch:
    """Hand-written grid barrier without fences"""
    a = integers(5 * 32)
    want = a
    for _ in range(4):
        want = np.roll(want, 1) + np.roll(want, -1)
    return Launch(5, 32, (a, Empty(5 * 32), np.zeros(1, np.uint32)), {0: want}, cooperative=True)


@kernel(RACE)
def zeroed_in_launch(wrong: bool) -> Launch:
    """Bins cleared by one block while other blocks count"""
    x = integers(500, 0, 32, np.int32)
    return Launch(8, 64, (x, zeros(32), 500), {1: np.bincount(x, minlength=32)})


@kernel(RACE)
def result_of_all(wrong: bool) -> Launch:
    """All blocks' results read after a block barrier"""
    x = integers(200, 0, 50)
    return Launch(4, 64, (x, np.zeros(4, np.float32), Empty(200), 200), {2: x / x.max()})


@kernel(RACE)
def any_in_grid(wrong: bool) -> Launch:
    """Blocks that store different values to one cell; correct: the same value"""
    return Launch(4, 64, (integers(250, dtype=np.int32), zeros(1), 250), {1: [1]})


@kernel(RACE)
def flag_relaxed(wrong: bool) -> Launch:
    """Flag between blocks with relaxed accesses; correct: release and acquire"""
    x = integers(32, dtype=np.int32)
    return Launch(2, 32, (x, Empty(32, np.int32), zeros(1), Empty(32, np.int32)), {3: 2 * x[::-1]})


@kernel(RACE)
def last_block_relaxed(wrong: bool) -> Launch:
    """Last-block reduction with a relaxed count; correct: an acquire-release count"""
    x = integers((40, 32), -1000, 1000, np.int32)
    args = (x, Empty(40, np.int32), np.zeros(1, np.uint32), Empty(1, np.int32))
    return Launch(40, 32, args, {3: [x.max()]})


@kernel(RACE)
def cas_plain_store(wrong: bool) -> Launch:
    """Plain store to a sum that other threads change by atomicCAS"""
    x = np.arange(300, dtype=np.float64)
    return Launch(5, 64, (x, np.zeros(1), 300), {1: [x.sum()]})


@kernel(RACE)
def cas_value_before(wrong: bool) -> Launch:
    """Result taken from the first read of an atomicCAS loop, not from the atomic"""
    return Launch(5, 64, (Empty(300, np.int32), zeros(1), 300), {0: np.arange(300), 1: [300]}, unordered=(0,))


def _edges() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ends of 600 edges between 50 vertices, and the vertices visited."""
    ends = integers((2, 600), 0, 50, np.int32)
    return ends[0], ends[1], (np.arange(50) % 3 == 0).astype(np.int32)


@kernel(RACE)
def search_parents(wrong: bool) -> Launch:
    """Breadth-first search that stores the edge's origin; correct: the same value per vertex"""
    start, end, frontier = _edges()
    reached = np.isin(np.arange(50), end[frontier[start] == 1])
    return Launch(10, 64, (start, end, frontier, zeros(50), zeros(1), 600), {3: reached, 4: [1]})


@kernel(RACE)
def search_visited(wrong: bool) -> Launch:
    """Breadth-first search that reads the marks that other threads store"""
    start, end, visited = _edges()
    crossing = (visited[start] == 1) & (visited[end] == 0)
    reached = np.isin(np.arange(50), end[crossing])
    return Launch(10, 64, (start, end, visited, zeros(50), zeros(1), 600), {3: reached, 4: [crossing.sum()]})
