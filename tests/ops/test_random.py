"""Random numbers: the generator's published values, the same numbers from any launch, and statistics."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.random import BLOCK, EACH, NORMAL, UNIFORM, philox

VARIANTS = [variant.name for variant in UNIFORM]
TILE = 4 * BLOCK * EACH  # numbers that one block of counter_per_thread writes


def test_the_reference_gives_the_published_words() -> None:
    """The values that the generator's authors published for counter 0 and key 0."""
    assert [f"{word:08x}" for word in philox(np.array([0]), 0)[0]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("n", "seed", "offset"),
    [
        (1, 0, 0),
        (1001, 7, 0),
        (999, 2**64 - 1, 3),
        (5000, 1, 2**34 - 2),
        (2 * TILE, 3, 0),  # whole tiles
        (TILE + 1, 3, 8),  # a tile with one number
        (2 * TILE - 1, 3, 2**34 - TILE),  # the counter passes 2^32 between two tiles
        (TILE, 3, 2**34 - 40),  # the counter passes 2^32 within a tile
        (8, 9, 2**64 - 8),  # the end of the stream
    ],
)
def test_uniform_equals_the_reference_bit_for_bit(device: cudakit.Device, variant, n, seed, offset) -> None:
    got = ops.uniform(n, seed=seed, offset=offset, device=device, variant=variant).numpy()
    counters = np.arange((offset % 4 + n + 3) // 4, dtype=np.uint64) + np.uint64(offset // 4)
    words = philox(counters, seed).ravel()
    expected = (words[offset % 4 :][:n] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("make", [ops.uniform, ops.normal])
def test_parts_are_the_whole(device: cudakit.Device, make) -> None:
    """Element i depends only on the seed and on i, for parts of any length and alignment, in any variant."""
    whole = make(1000, seed=5, device=device).numpy()
    out = device.zeros((1000,), np.float32)
    for begin, end, variant in ((0, 3, "auto"), (3, 500, "word_per_thread"), (500, 1000, "counter_per_thread")):
        make(out=out[begin:end], seed=5, offset=begin, variant=variant)
    assert out.numpy().tobytes() == whole.tobytes()


def test_they_look_random(device: cudakit.Device) -> None:
    n = 1 << 16
    u = ops.uniform(n, seed=11, device=device).numpy().astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert 25 < chi2 < 115, "chi-squared with 63 degrees of freedom: outside with a probability below 1 in 10,000"
    z = ops.normal(n, seed=11, device=device).numpy().astype(np.float64)
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs(np.mean(z[:-1] * z[1:])) < 5 / np.sqrt(n)
    assert abs((np.abs(z) < 1).mean() - 0.6827) < 0.01


def test_different_seeds_are_different_streams(device: cudakit.Device) -> None:
    one, other = (ops.uniform(4096, seed=seed, device=device).numpy() for seed in (1, 1 + 2**32))
    assert not (one == other).any()


def test_refusals(device: cudakit.Device) -> None:
    with pytest.raises(ValueError, match=r"float32, the output is float64"):
        ops.uniform(out=device.zeros((4,), np.float64))
    with pytest.raises(ValueError, match="contiguous"):
        ops.normal(out=device.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(ValueError, match=r"seed must be from 0 to 2\*\*64 - 1, got -1"):
        ops.uniform(4, seed=-1, device=device)
    with pytest.raises(ValueError, match="either the shape"):
        ops.uniform()
    assert ops.uniform((0, 3), device=device).shape == (0, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("family", [UNIFORM, NORMAL], ids=lambda family: family.name)
def test_more_than_two_to_the_31(gpu: cudakit.Device, family) -> None:
    n = 2**31 + 10
    if gpu.memory_info()[0] < 4 * n + (1 << 30):
        pytest.skip("the GPU has too little free memory for 2^31 numbers")
    out = gpu.empty((n,), np.float32)
    make = ops.uniform if family is UNIFORM else ops.normal
    make(out=out, seed=3)
    tail = make(10, seed=3, offset=n - 10, device=gpu).numpy()
    np.testing.assert_array_equal(out[n - 10 :].numpy(), tail)
    out.close()
