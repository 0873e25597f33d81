"""The blur: borders, corners, images of one row or column, batches, and rejected inputs."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.blur import FAMILY

VARIANTS = [variant.name for variant in FAMILY]
KERNEL = np.outer([1, 2, 1], [1, 2, 1]) / 16


def by_definition(image: np.ndarray, border: str) -> np.ndarray:
    """Sum nine products per pixel; each neighbour is looked up separately."""

    def at(i: int, n: int) -> int | None:
        if 0 <= i < n:
            return i
        if border == "zero":
            return None
        if border == "clamp" or n == 1:
            return min(max(i, 0), n - 1)
        return 1 if i < 0 else n - 2

    rows, cols = image.shape
    result = np.zeros(image.shape)
    for r in range(rows):
        for c in range(cols):
            for dr in (-1, 0, 1):
                for dc in (-1, 0, 1):
                    y, x = at(r + dr, rows), at(c + dc, cols)
                    if y is not None and x is not None:
                        result[r, c] += KERNEL[dr + 1, dc + 1] * image[y, x]
    return result


@pytest.mark.parametrize("variant", [*VARIANTS, "auto"])
@pytest.mark.parametrize("border", ["zero", "clamp", "reflect"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2), (5, 4), (17, 36), (33, 132), (18, 35)])
def test_each_border_is_the_definition(device: cudakit.Device, variant, border, shape) -> None:
    image = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    try:
        got = ops.blur(device.array(image), border=border, variant=variant).numpy()
    except cudakit.UnsupportedVariant:
        assert shape[1] % 4 != 0, "only rows whose length is not a multiple of float4 may be unsupported"
        return
    np.testing.assert_allclose(got, by_definition(image, border), rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bright_corner_reaches_its_diagonal_neighbour_across_tiles(device: cudakit.Device, variant) -> None:
    """A common mistake: no thread loads the corners of the halo. The bright pixel is diagonally across a tile's
    corner."""
    image = np.zeros((64, 64), np.float32)
    image[15, 31] = 16.0
    got = ops.blur(device.array(image), variant=variant).numpy()
    np.testing.assert_array_equal(got[14:17, 30:33], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert got.sum() == 16


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_is_its_images(device: cudakit.Device, variant) -> None:
    images = np.random.default_rng(2).standard_normal((5, 20, 40), dtype=np.float32)
    whole = ops.blur(device.array(images), variant=variant).numpy()
    for image, got in zip(images, whole, strict=True):
        np.testing.assert_allclose(got, by_definition(image, "zero"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_is_one_launch(sim: cudakit.Device, variant) -> None:
    with sim.counters() as counters:
        ops.blur(sim.zeros((5, 20, 40)), variant=variant)
        sim.synchronize()
    assert [counted.launches for counted in counters.values()] == [1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_offsets_past_two_to_the_31(roomy: cudakit.Device, variant) -> None:
    apart = 2**30 + 64
    if roomy.memory_info()[0] < 2 * 4 * 3 * apart:
        pytest.skip("the GPU has too little free memory for images 4 GiB apart")
    images = np.random.default_rng(2).standard_normal((3, 1, 40), dtype=np.float32)
    with roomy.empty((3, 1, apart)) as far_x, roomy.empty((3, 1, apart)) as far_y:
        x = far_x[..., :40].copy_from(images)
        for image, got in zip(images, ops.blur(x, out=far_y[..., :40], variant=variant).numpy(), strict=True):
            np.testing.assert_allclose(got, by_definition(image, "zero"), rtol=0, atol=1e-6)
        down, expected = images.reshape(3, 40), ops.blur(roomy.array(images.reshape(3, 40)), variant=variant).numpy()
        x, y = far_x[:, 0, :40].copy_from(down), far_y[:, 0, :40]
        np.testing.assert_array_equal(ops.blur(x, out=y, variant=variant).numpy(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_more_images_than_a_grid_has_blocks_along_z(gpu: cudakit.Device, variant) -> None:
    images = np.ones((70_000, 4, 8), np.float32)
    got = ops.blur(gpu.array(images), border="clamp", variant=variant).numpy()
    np.testing.assert_array_equal(got, images)


def test_refusals(device: cudakit.Device) -> None:
    x = device.zeros((8, 8), np.float32)
    with pytest.raises(ValueError, match="in place"):
        ops.blur(x, out=x)
    with pytest.raises(ValueError, match=r"border must be one of 'zero', 'clamp', 'reflect', got 'wrap'"):
        ops.blur(x, border="wrap")
    with pytest.raises(ValueError, match="float32 in and out"):
        ops.blur(device.zeros((8, 8), np.float64))
    with pytest.raises(ValueError, match=r"\(rows, cols\)"):
        ops.blur(device.zeros((8,), np.float32))
    assert ops.blur(device.zeros((0, 8), np.float32)).shape == (0, 8)
