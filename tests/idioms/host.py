"""Idioms of host code: graphs, streams with events, pinned memory, and grids sized by occupancy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from planted.shared import integers

import cudakit

from .cases import FOLDER

HOST: dict[str, Callable[[cudakit.Device], None]] = {}


def host(function: Callable[[cudakit.Device], None]) -> Callable[[cudakit.Device], None]:
    HOST[function.__name__] = function
    return function


@host
def copies_overlap_kernels(device: cudakit.Device) -> None:
    """Chunks on two streams from and to pinned memory, each buffer reused after its stream's event."""
    kernel = device.compile(FOLDER / "arithmetic.cu")["vector_tail"]
    chunks = integers((5, 333))
    given, taken = device.pinned((2, 333)), device.pinned((2, 333))
    results = []
    with device.stream() as one, device.stream() as two:
        streams = (one, two)
        x, y = ([device.empty(333, stream=stream) for stream in streams] for _ in range(2))
        done = [device.event(), device.event()]
        for k in range(7):
            side = k % 2
            if k >= 2:
                done[side].synchronize()
                results.append(taken[side].copy())
            if k < 5:
                given[side] = chunks[k]
                x[side].copy_from(given[side], streams[side])
                kernel.launch(streams[side], grid=3, block=50, args=(x[side], y[side], 333))
                y[side].copy_to(taken[side], streams[side])
                done[side].record(streams[side])
    want = 4 * chunks
    factor, offset = np.tile([1, 2, 1, -1], 83), np.tile([1, 0, -3, 0], 83)
    want[:, :332] = chunks[:, :332] * factor + offset
    np.testing.assert_array_equal(results, want)


@host
def fork_and_join(device: cudakit.Device) -> None:
    """A second stream starts after an event of the first, which waits for it at the end."""
    kernel = device.compile(FOLDER / "atomics.cu")["last_block"]
    x = integers(501, dtype=np.int32)
    with device.stream() as one, device.stream() as two:
        a, b = device.array(x, stream=one), device.empty(1, np.int32, stream=one)
        c = device.empty(501, np.int32, stream=one)
        two.wait(one.record())
        kernel.launch(one, grid=3, block=50, args=(a, b, 501))
        c.copy_from(a, two)
        one.wait(two.record())
        a.fill(0, one)
        np.testing.assert_array_equal(c.numpy(one), x)
        np.testing.assert_array_equal(b.numpy(one), [x.sum()])


@host
def graph_replays(device: cudakit.Device) -> None:
    """A graph of a fill and two kernels, replayed on new data."""
    module = device.compile(FOLDER / "atomics.cu")
    stream = device.default_stream
    x, counts, total = device.empty(301, np.int32), device.empty(40, np.int32), device.empty(1, np.int32)
    stream.synchronize()
    with device.stream() as side:
        with device.capture(side) as graph:
            counts.fill(0, side)
            module["match_groups"].launch(side, grid=4, block=88, args=(x, counts, 301))
            module["last_block"].launch(side, grid=2, block=33, args=(counts, total, 40))
        replay = graph.instantiate()
        for seed in range(3):
            values = np.random.default_rng(seed).integers(0, 40, 301).astype(np.int32)
            x.copy_from(values, side)
            replay.launch(side)
            np.testing.assert_array_equal(counts.numpy(side), np.bincount(values, minlength=40))
            np.testing.assert_array_equal(total.numpy(side), [301])


@host
def grid_by_occupancy(device: cudakit.Device) -> None:
    """As many blocks as fit on the device, at most one per block of work."""
    kernel = device.compile(FOLDER / "atomics.cu")["private_histogram"]
    n, block = 2001, 96
    x = integers(n, 0, 256, np.uint8)
    grid = min(kernel.occupancy(block) * device.multiprocessors, -(-n // block))
    counts = device.zeros(256, np.uint32)
    kernel.launch(device.default_stream, grid=grid, block=block, args=(device.array(x), counts, n))
    np.testing.assert_array_equal(counts.numpy(), np.bincount(x, minlength=256))
