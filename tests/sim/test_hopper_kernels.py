"""The kernels of kernels/hopper on the simulated device, under all checks: results of many shapes, and with copies that
complete at drawn moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from planted.hopper.real_kernels import example

import cudakit
from cudakit.compare import within
from cudakit.families.softmax import FAMILY as SOFTMAX


def launched(device: cudakit.Device, function: str, inputs: Any, result: Any, *args: Any, **options: Any) -> Any:
    """Run a function of the example on arrays in the device's memory. Returns the contents of the last one, which holds
    NaN before."""
    arrays = [device.array(host) for host in inputs]
    out = device.empty(result.shape, result.dtype)
    out.fill(np.nan)
    example()[function](device, *arrays, out, *args, **options).launch(device.default_stream)
    return out.numpy()


@pytest.mark.parametrize("shape", [(16, 128), (1, 4), (17, 132), (50, 300), (8, 1000)])
@pytest.mark.parametrize("options", [{}, {"blocks": 2, "stages": 2}, {"blocks": 1, "stages": 1}])
def test_a_ring_copies_any_shape(sim: cudakit.Device, shape: tuple[int, int], options: dict[str, int]) -> None:
    x = np.random.default_rng(1).integers(-50, 50, shape).astype(np.float32)
    assert np.array_equal(launched(sim, "copy_ring", (x,), x, 3.0, -1.0, **options), 3 * x - 1)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((128, 128, 64), {"columns": 128, "stages": 2}),
        ((1, 8, 8), {}),
        ((200, 136, 200), {}),
        ((257, 264, 72), {"columns": 128, "stages": 4, "blocks": 2}),
        ((300, 72, 328), {"stages": 2, "blocks": 2}),
    ],
)
def test_a_product_has_every_element(sim: cudakit.Device, shape: tuple[int, int, int], options: dict[str, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-2, 3, size).astype(bfloat16) for size in ((m, k), (n, k)))
    want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16)
    assert np.array_equal(launched(sim, "wgmma_product", (a, b), want, **options), want)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 4), {"threads": 64}),
        ((3, 1000), {"cluster": 2, "threads": 128, "blocks": 2}),
        ((5, 100), {"cluster": 8, "threads": 64, "blocks": 8}),
        ((4, 260), {"cluster": 3, "threads": 64, "blocks": 6}),
    ],
)
def test_a_split_softmax_is_that_of_whole_rows(
    sim: cudakit.Device, shape: tuple[int, int], options: dict[str, int]
) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    x[0, : shape[1] // 2] = -np.inf
    exact = SOFTMAX.exact((x,))
    verdict = within(launched(sim, "split_softmax", (x,), x, **options), exact, SOFTMAX.allowed(exact, (x,)))
    assert verdict.ok, verdict.why


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if seed % 50 else []) for seed in range(100)]
)
def test_the_moments_at_which_copies_complete_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-50, 50, (33, 300)).astype(np.float32)
    a, b = (rng.integers(-2, 3, size).astype(bfloat16) for size in ((130, 200), (136, 200)))
    product = (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16)
    rows = rng.standard_normal((3, 260)).astype(np.float32)
    exact = SOFTMAX.exact((rows,))
    with cudakit.Device("sim", fresh=True, order="random", seed=seed) as device:
        assert np.array_equal(launched(device, "copy_ring", (x,), x, 3.0, -1.0, blocks=2, stages=2), 3 * x - 1)
        options = {"columns": 128, "stages": 2, "blocks": 2}
        assert np.array_equal(launched(device, "wgmma_product", (a, b), product, **options), product)
        got = launched(device, "split_softmax", (rows,), rows, cluster=2, threads=64, blocks=2)
        assert within(got, exact, SOFTMAX.allowed(exact, (rows,))).ok
