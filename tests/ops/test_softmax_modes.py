"""Softmax with a logarithm, a scale and a mask, in three dtypes: special rows and rejected inputs. Kernels on drawn
problems are in test_kernels.py."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.softmax_modes import FAMILY, register_tile
from cudakit.memory import array as memory

NAMES = [variant.name for variant in FAMILY]


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_a_row_hidden_altogether_is_zero_and_not_nan(device: cudakit.Device, variant, additive, log) -> None:
    host = np.ones((3, 40), np.float32)
    host[1] = np.nan
    kept = np.ones((3, 40), bool)
    kept[1] = False
    mask = np.where(kept, 0.0, -np.inf).astype(np.float32) if additive else kept
    y = ops.softmax(device.array(host), variant=variant, mask=device.array(mask), log=log).numpy()
    assert (y[1] == (-np.inf if log else 0.0)).all()
    np.testing.assert_allclose(y[[0, 2]], np.log(1 / 40) if log else 1 / 40, rtol=1e-6)


@pytest.mark.parametrize("variant", NAMES)
def test_what_a_mask_hides_has_no_say_even_where_it_is_nan_or_infinite(device: cudakit.Device, variant) -> None:
    host = np.zeros((1, 64), np.float32)
    host[0, :3] = np.nan, np.inf, 3e38
    mask = np.arange(64) >= 4
    y = ops.softmax(device.array(host), variant=variant, mask=device.array(mask)).numpy()
    np.testing.assert_allclose(y[0], mask / 60, rtol=1e-6)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_of_no_meaning_are_nan_throughout(device: cudakit.Device, variant, value) -> None:
    host = np.full((2, 33), value, np.float16)
    host[1] = 1
    y = ops.softmax(device.array(host), variant=variant).numpy()
    assert np.isnan(y[0]).all()
    assert (y[1] == np.float16(1 / 33)).all()


@pytest.mark.parametrize("variant", NAMES)
def test_log_is_finite_where_the_probability_underflows(device: cudakit.Device, variant) -> None:
    host = np.zeros((1, 8), np.float32)
    host[0, 1:] = -500
    y = ops.softmax(device.array(host), variant=variant, log=True).numpy()
    np.testing.assert_allclose(y, host, atol=1e-5)  # log(softmax(x)) would be -inf


@pytest.mark.parametrize("variant", NAMES)
def test_a_logarithm_past_the_range_of_float16_is_minus_infinity(device: cudakit.Device, variant) -> None:
    host = np.zeros((1, 64), np.float16)
    host[0, :3] = 6016, -60000, -58976  # logarithms of -66016 and -64992; only the latter is in float16's range
    y = ops.softmax(device.array(host), variant=variant, log=True).numpy()
    assert (y[0, 1], y[0, 2]) == (-np.inf, np.float16(-64992))
    compared = FAMILY.judge(y, (host,), log=True)
    assert compared.ok, compared


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_kept_in_float32(device: cudakit.Device, variant, dtype) -> None:
    host = np.zeros((1, 4096), memory.as_dtype(dtype))  # a sum in float16 would stop at 2,048, in bfloat16 at 256
    y = ops.softmax(device.array(host), variant=variant).numpy()
    assert (y.astype(np.float32) == 1 / 4096).all()


def test_plain_float32_goes_to_the_ladder(device: cudakit.Device) -> None:
    y = ops.softmax(device.array(np.zeros((2, 4), np.float32)), variant="tree_reduce").numpy()
    assert (y == 0.25).all()


def test_pieces_of_eight_where_the_mask_allows(device: cudakit.Device) -> None:
    x = device.array(np.zeros((4, 64), np.float16))
    out = device.empty((4, 64), np.float16)
    column = device.array(np.ones((4, 1), bool))
    assert FAMILY.problem_of((x,), out).vector == 8
    assert FAMILY.problem_of((x, device.array(np.ones(64, bool))), out).vector == 8
    assert FAMILY.problem_of((x, column), out).vector == 1
    assert FAMILY.problem_of((x[:, 1:57],), out[:, :56]).vector == 1


def test_every_tile_holds_its_row(device: cudakit.Device) -> None:
    from dataclasses import replace

    base = FAMILY.problem_of((x := device.array(np.zeros((1, 8), np.float32)),), x)
    for vector, mask, most in ((1, "", 32768), (4, "", 32768), (8, "bool", 32768), (8, "", 65536)):
        given = replace(base, vector=vector, mask=mask)
        for cols in (1, 8, 9, 64, 65, 513, 4096, 4097, 8192, 16384, 32768, most):
            tile = register_tile(replace(given, cols=cols))
            assert tile is not None
            assert tile.lanes * tile.held * tile.vec >= cols
            assert tile.block <= 1024
        assert register_tile(replace(given, cols=most + 9)) is None


@pytest.mark.parametrize(
    ("x", "options", "why"),
    [
        (np.zeros((2, 3), np.float64), {}, "bfloat16, float16 or float32 in and out, got float64"),
        (np.zeros((2, 3, 4), np.float16), {}, "1-D"),
        (np.zeros((2, 3), np.float16), {"scale": np.inf}, "finite"),
        (np.zeros((2, 3), np.float16), {"scale": 1e39}, "finite"),
        (np.zeros((2, 3), np.float16), {"mask": np.zeros((2, 1, 3), bool)}, "broadcasts"),
        (np.zeros((2, 3), np.float16), {"mask": np.zeros(2, bool)}, "broadcasts"),
        (np.zeros((2, 3), np.float16), {"mask": np.zeros(3, np.int32)}, "bool or float32"),
    ],
)
def test_refuses(device: cudakit.Device, x, options, why) -> None:
    given = {name: device.array(v) if name == "mask" else v for name, v in options.items()}
    with pytest.raises(ValueError, match=why):
        ops.softmax(device.array(x), **given)


def test_in_place_and_outputs_that_are_refused(device: cudakit.Device) -> None:
    x = device.array(np.zeros((2, 9), np.float16))
    mask = device.array(np.ones((2, 8), np.float32))
    with pytest.raises(ValueError, match="overlap"):
        ops.softmax(x[:, 1:], out=x[:, :8])
    with pytest.raises(ValueError, match="overlaps the mask"):
        ops.softmax(mask, out=mask, mask=mask)
    assert ops.softmax(x, out=x) is x
    assert (x.numpy() == np.float16(1 / 9)).all()


@pytest.mark.parametrize("variant", NAMES)
def test_offsets_past_two_to_the_31(roomy: cudakit.Device, variant) -> None:
    apart = 2**30 + 64  # row * x_row would overflow 32 bits in the last row
    if roomy.memory_info()[0] < 2 * 3 * apart:
        pytest.skip("the GPU has too little free memory for rows 2 GiB apart")
    with roomy.empty((3, apart), np.float16) as buffer:
        spread = buffer[:, :1000]
        spread.copy_from(np.zeros((3, 1000), np.float16))
        ops.softmax(spread, out=spread, variant=variant)
        assert (spread.numpy() == np.float16(1 / 1000)).all()


def test_empty_problems_launch_nothing(device: cudakit.Device) -> None:
    assert ops.softmax(device.array(np.zeros((0, 5), np.float16)), log=True).numpy().shape == (0, 5)
    assert ops.softmax(device.array(np.zeros((5, 0), np.float16))).numpy().shape == (5, 0)
