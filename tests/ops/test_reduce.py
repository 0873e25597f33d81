"""Sum, max and argmax: numpy's results in special cases, sums of many elements, and rejected inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.reduce import ARGMAX, MAX, SUM, VARIANTS

NAMES = [variant.name for variant in VARIANTS]
AXES: tuple[int | None, ...] = (-1, 0, None)


def call(operation: Any, x: Any, axis: int | None, variant: str) -> np.ndarray | None:
    """Return the result, or None if the variant does not support the array."""
    try:
        return np.asarray(operation(x, axis=axis, variant=variant).numpy())
    except cudakit.UnsupportedVariant:
        return None


@pytest.mark.parametrize("name", NAMES)
def test_the_first_of_equal_maxima_wins_and_a_nan_is_the_maximum(device: cudakit.Device, name: str) -> None:
    host = np.zeros((9, 700), np.float32)
    host[1] = -np.inf  # in a row of -inf only, the first element wins
    host[2, [300, 690]] = np.nan
    host[3, [5, 650]] = np.inf
    host[4, 300] = np.nan
    host[4, 2] = np.inf
    x = device.array(host)
    for axis in AXES:
        found = call(ops.argmax, x, axis, name)
        largest = call(ops.max, x, axis, name)
        if found is not None and largest is not None:
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, host.argmax(axis))
            np.testing.assert_array_equal(largest, host.max(axis))


@pytest.mark.parametrize("name", NAMES)
def test_sums_do_not_stop_where_float32_counts_no_further(device: cudakit.Device, name: str) -> None:
    """2^24 followed by ones: added from left to right, every one is lost."""
    host = np.ones(40_000, np.float32)
    host[0] = 2.0**24
    assert np.add.accumulate(host)[-1] == 2**24
    got = call(ops.sum, device.array(host), None, name)
    assert got is not None
    # Terms added to 2^24 directly are lost: at most one branch of the tree, 32 additions or 32 float4.
    assert abs(float(got) - (2**24 + 39_999)) <= 128


@pytest.mark.parametrize("name", NAMES)
def test_large_terms_that_cancel_leave_an_error_within_the_bound(device: cudakit.Device, name: str) -> None:
    """1e8 - 1e8 with small numbers between: adding to a partial sum of 1e8 rounds to a multiple of 8."""
    n = 30_000
    host = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    host[::3], host[1::3] = 1e8, -1e8
    got = call(ops.sum, device.array(host), None, name)
    assert got is not None
    bound = 16 * 2.0**-23 * (np.log2(n) / 5 + 2) * np.abs(host).sum(dtype=np.float64)
    assert abs(float(got) - host.sum(dtype=np.float64)) <= bound


@pytest.mark.parametrize("n", [8192, 100_000, 2**20, 2**24])
@pytest.mark.parametrize("dropped", [1, 4, 256])
def test_elements_that_are_left_out_of_a_long_sum_are_missed(n: int, dropped: int) -> None:
    x = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    without = np.asarray(np.float32(x[:-dropped].sum(dtype=np.float64)))
    assert not SUM.judge(without, (x,)).ok


def test_a_sum_of_whole_numbers_is_exact_and_one_less_is_wrong() -> None:
    x = np.random.default_rng(2).integers(0, 3, 2**22).astype(np.float32)
    reference = SUM.exact((x,))
    assert SUM.judge(np.asarray(np.float32(reference)), (x,)).ok
    assert not SUM.judge(np.asarray(np.float32(reference - 1)), (x,)).ok


@pytest.mark.parametrize("values", ["normal", "positive"])
def test_a_long_sum_from_left_to_right_is_not_right(values: str) -> None:
    x = np.random.default_rng(5).standard_normal(2**21, dtype=np.float32)
    x = np.abs(x) if values == "positive" else x
    assert not SUM.judge(np.add.accumulate(x)[-1:].reshape(()), (x,)).ok
    assert SUM.judge(np.asarray(x.sum(dtype=np.float32)), (x,)).ok


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_two_to_the_25_ones(gpu: cudakit.Device, name: str) -> None:
    got = call(ops.sum, gpu.full((2**25,), 1.0, np.float32), None, name)
    assert got == 2**25


def test_sums_are_the_same_in_every_run(device: cudakit.Device) -> None:
    x = device.array(np.random.default_rng(3).standard_normal((64, 2000), dtype=np.float32))
    for axis in AXES:
        runs = {ops.sum(x, axis).numpy().tobytes() for _ in range(3)}
        assert len(runs) == 1


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (0, 0)])
def test_nothing_has_the_sum_zero_and_no_maximum(
    device: cudakit.Device, shape: tuple[int, ...], axis: int | None
) -> None:
    host = np.zeros(shape, np.float32)
    x = device.array(host)
    np.testing.assert_array_equal(ops.sum(x, axis).numpy(), host.sum(axis))
    for ours, theirs in ((ops.max, np.max), (ops.argmax, np.argmax)):
        try:
            expected = theirs(host, axis)
        except ValueError:
            with pytest.raises(ValueError, match="of no elements"):
                ours(x, axis)
        else:
            np.testing.assert_array_equal(ours(x, axis).numpy(), expected)


def test_an_array_whose_axes_do_not_merge_is_one_reduction_by_two_steps_alone(device: cudakit.Device) -> None:
    host = np.random.default_rng(1).integers(0, 50, (40, 60)).astype(np.float32)
    for view, own in ((lambda a: a[:, :50], np.s_[:, :50]), (lambda a: a.T, np.s_[:]), (lambda a: a[::-2], None)):
        x, expected = view(device.array(host)), view(host)
        assert own is None or expected.size
        assert ops.argmax(x).numpy() == expected.argmax()
        assert ops.sum(x).numpy() == expected.sum()
    with pytest.raises(cudakit.UnsupportedVariant, match="do not merge its axes"):
        ops.sum(device.array(host).T, variant="warp_shuffle")
    with pytest.raises(cudakit.UnsupportedVariant, match="reduced axis that is contiguous"):
        ops.sum(device.array(host), 0, variant="vec4")


def test_refusals_say_what_was_wrong(device: cudakit.Device) -> None:
    x = device.zeros((4, 8))
    refused = [
        (lambda: ops.sum(x, 2), "takes axis None or -2 to 1, got 2"),
        (lambda: ops.sum(x, 1.0), "got 1.0"),
        (lambda: ops.sum(device.zeros((2, 2, 2))), "1-D and 2-D arrays, got one of 3 axes"),
        (lambda: ops.sum(device.zeros((4,), np.float16)), "takes float32 and returns float32, got float16 in"),
        (lambda: ops.argmax(x, 0, out=device.zeros((8,))), "returns int64"),
        (lambda: ops.max(x, 0, out=device.zeros((4,))), r"has shape \(8,\), not \(4,\)"),
        (lambda: ops.sum(x, 0, out=x[0]), "the input and the output overlap"),
        (lambda: ops.sum(x, variant="nosuch"), "has no variant 'nosuch'"),
    ]
    for attempt, words in refused:
        with pytest.raises(ValueError, match=words):
            attempt()


def test_the_hosts_row_adds_down_columns_in_double() -> None:
    """numpy adds a column from left to right; in float32 that is too inaccurate for a baseline."""
    x = np.full((200_000, 2), 0.1, np.float32)
    exact = SUM.exact((x,), axis=0)
    in_order = np.add.accumulate(x[:, 0], dtype=np.float32)[-1]
    got = SUM.baseline_of((x,), axis=0)
    assert np.abs(got - exact).max() < np.abs(in_order - exact).max() / 100
    assert SUM.baseline_of((x[:, 0],), axis=0).dtype == np.float32


def test_the_three_families_share_their_rungs() -> None:
    assert SUM.variants is MAX.variants is ARGMAX.variants


def test_rows_past_31_bits(roomy: cudakit.Device) -> None:
    apart = 2**30 + 64
    if roomy.memory_info()[0] < 4 * 3 * apart:
        pytest.skip("the GPU has too little free memory for rows 4 GiB apart")
    host = np.arange(3 * 200, dtype=np.float32).reshape(3, 200)
    with roomy.empty((3, apart)) as buffer:
        x = buffer[:, :200].copy_from(host)
        for name in ("thread_per_row", "shared_tree", "warp_shuffle", "vec4", "two_step"):
            np.testing.assert_array_equal(ops.sum(x, 1, variant=name).numpy(), host.sum(axis=1))
        for name in ("thread_per_row", "shared_tree", "warp_shuffle", "columns"):
            np.testing.assert_array_equal(ops.sum(x, 0, variant=name).numpy(), host.sum(axis=0))


@pytest.mark.gpu
def test_offsets_past_two_to_the_31(gpu: cudakit.Device) -> None:
    count = 2**31 + 1000
    if gpu.memory_info()[0] < 4 * count + 2**30:
        pytest.skip("the GPU has too little free memory for 2^31 floats")
    with gpu.zeros((count,)) as x:
        ops.fill(x[-3:-1], 2.0)
        for variant in ("vec4", "two_step"):
            assert ops.argmax(x, variant=variant).numpy() == count - 3
            assert ops.sum(x, variant=variant).numpy() == 4
        tall = x[: 2**31].reshape(2**20, 2**11)
        ops.fill(tall[-1:], 3.0)
        for axis in (0, -1):
            assert ops.argmax(tall, axis).numpy()[-1] == (2**20 - 1 if axis == 0 else 0)
            assert ops.max(tall, axis).numpy()[-1] == 3
