"""Softmax variants made of BLAS calls: correct if the element of largest absolute value is not the largest element."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.softmax import FAMILY

VARIANTS = ("blas_read_back", "blas_on_device")


def run(device: cudakit.Device, host: np.ndarray, variant: str) -> np.ndarray:
    return ops.softmax(device.array(host), variant=variant).numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_128_rows_between_minus_ten_and_ten(device: cudakit.Device, variant: str) -> None:
    x = np.random.default_rng(0).uniform(-10, 10, (128, 128)).astype(np.float32)
    y = run(device, x, variant)
    assert np.abs(y - FAMILY.reference(x)).max() < 1e-5
    assert y[0].sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "row",
    [
        [1, 2, -1000, 3],
        [-1, -2, -1000, -3],
        [-1e-45, -1e-40, -3e38, -np.inf],
        [0.0, -0.0, -5, -5],
        [3e38, 3.1e38, -3.4e38, 1],
        [-3.4028235e38, -np.inf, -np.inf, -np.inf],
        [np.nan, 1, -2000, 2],
        [-1, np.nan, -2, -3],
        [np.inf, 1, 2, -np.inf],
        [-np.inf] * 4,
    ],
    ids=str,
)
def test_rows_whose_largest_size_is_not_their_largest_number(device: cudakit.Device, variant: str, row: list) -> None:
    x = np.array([[5, 4, 3, 2], row, [1, 1, 1, 1]], np.float32)
    verdict = FAMILY.judge(run(device, x, variant), [x])
    assert verdict.ok, verdict.why


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_library_does_not_do_is_refused_with_the_reason(device: cudakit.Device, variant: str) -> None:
    x = device.array(np.ones((3, 8), np.float32))
    with pytest.raises(cudakit.UnsupportedVariant, match="only positive strides"):
        ops.softmax(x[:, ::-1], variant=variant)
    many = device.zeros((5000, 1))
    with pytest.raises(cudakit.UnsupportedVariant, match="at most 4096 rows supported"):
        ops.softmax(many, variant=variant)
