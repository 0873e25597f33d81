"""The gradient of softmax and log-softmax: finite differences, torch, special values, and rejected inputs. Kernels on
drawn problems are in test_kernels.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.softmax_backward import FAMILY, cluster_tile, register_tile
from cudakit.memory import array as memory
from cudakit.testing import Layout

NAMES = [variant.name for variant in FAMILY]
DTYPES = ["float32", "float16", "bfloat16"]


def drawn(shape: tuple[int, ...], dtype: str = "float32", log: bool = False) -> tuple[np.ndarray, np.ndarray]:
    grad, y = FAMILY.inputs_for(shape, memory.as_dtype(dtype), np.random.default_rng(3), log=log)
    return grad, y


def expect_right(result: np.ndarray, *inputs: np.ndarray, **options) -> None:
    compared = FAMILY.judge(result, inputs, **options)
    assert compared.ok, compared


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.3])
def test_is_the_derivative_of_the_forward_op(device: cudakit.Device, log: bool, scale: float) -> None:
    rng = np.random.default_rng(5)
    x, weights = rng.standard_normal((3, 21)), rng.standard_normal((3, 21)).astype(np.float32)

    def loss(at: np.ndarray) -> np.ndarray:
        e = np.exp(scale * at - (scale * at).max(axis=1, keepdims=True))
        y = e / e.sum(axis=1, keepdims=True)
        return (weights * (np.log(y) if log else y)).sum()

    step = 1e-5
    steps = (step * unit.reshape(x.shape) for unit in np.eye(x.size))
    slopes = np.reshape([(loss(x + by) - loss(x - by)) / (2 * step) for by in steps], x.shape)
    y = ops.softmax(device.array(x.astype(np.float32)), log=log, scale=scale)
    result = ops.softmax_backward(device.array(weights), y, log=log, scale=scale).numpy()
    np.testing.assert_allclose(result, slopes, rtol=0, atol=2e-6)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 8), (5, 40), (2, 264), (9, 1024), (2, 8192), (1, 33), (4, 129), (7, 1001), (2, 1)]
)
def test_odd_and_even_rows(device: cudakit.Device, variant: str, log: bool, dtype: str, shape: tuple[int, int]) -> None:
    if variant == "split_row" and shape[1] % (16 // memory.as_dtype(dtype).itemsize):
        pytest.skip("split_row needs rows of a multiple of 16 bytes")
    grad, y = drawn(shape, dtype, log)
    result = ops.softmax_backward(device.array(grad), device.array(y), variant=variant, log=log, scale=0.5)
    expect_right(result.numpy(), grad, y, log=log, scale=0.5)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("log", [False, True])
def test_gradients_repeated_by_strides_of_zero(device: cudakit.Device, variant: str, axes, log: bool) -> None:
    if variant == "split_row" and 1 in axes:
        pytest.skip("split_row needs contiguous rows")
    grad, y = drawn((6, 256), log=log)
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(grad.shape))
    values = np.ascontiguousarray(grad[: shape[0], : shape[1]])
    strides = tuple(0 if axis in axes else step // 4 for axis, step in enumerate(values.strides))
    place = Layout(grad.shape, strides)
    buffer = place.buffer()
    place.of(buffer)[...] = values
    stream = device.default_stream
    spread = place.on(device.array(buffer, stream=stream), stream)
    assert [step == 0 for step in spread.strides] == [axis in axes for axis in (0, 1)]
    result = ops.softmax_backward(spread, device.array(y), variant=variant, log=log)
    expect_right(result.numpy(), np.broadcast_to(values, grad.shape), y, log=log)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_and_unaligned_arrays(device: cudakit.Device, dtype: str) -> None:
    grad, y = drawn((48, 40), dtype)
    turned = device.array(np.ascontiguousarray(grad.T)).T
    expect_right(ops.softmax_backward(turned, device.array(y)).numpy(), grad, y)
    expect_right(
        ops.softmax_backward(device.array(grad)[:, 1:33], device.array(y)[:, 3:35]).numpy(), grad[:, 1:33], y[:, 3:35]
    )


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("over", ["grad", "y"])
def test_in_place(device: cudakit.Device, variant: str, over: str) -> None:
    grad, y = drawn((5, 1024))
    given = {"grad": device.array(grad), "y": device.array(y)}
    assert ops.softmax_backward(given["grad"], given["y"], out=given[over], variant=variant) is given[over]
    expect_right(given[over].numpy(), grad, y)
    other = "y" if over == "grad" else "grad"
    np.testing.assert_array_equal(given[other].numpy(), {"grad": grad, "y": y}[other])


@pytest.mark.parametrize("variant", NAMES)
def test_hidden_elements_get_no_gradient(device: cudakit.Device, variant: str) -> None:
    rng = np.random.default_rng(4)
    x, grad = rng.standard_normal((2, 4, 64), dtype=np.float32)
    kept = rng.random((4, 64)) < 0.5
    kept[2] = False
    y = ops.softmax(device.array(x), mask=device.array(kept))
    result = ops.softmax_backward(device.array(grad), y, variant=variant).numpy()
    assert (result[~kept] == 0).all()
    assert (result[[0, 1, 3]][kept[[0, 1, 3]]] != 0).all()


@pytest.mark.parametrize("variant", NAMES)
def test_hidden_elements_of_a_logarithm_keep_their_own_gradient(device: cudakit.Device, variant: str) -> None:
    grad = np.ones((2, 32), np.float32)
    y = np.full((2, 32), -np.inf, np.float32)
    y[0, :16] = np.log(1 / 16)
    result = ops.softmax_backward(device.array(grad), device.array(y), variant=variant, log=True, scale=2.0).numpy()
    np.testing.assert_allclose(result[0, :16], 2 * (1 - 32 / 16), rtol=1e-6)
    assert (result[0, 16:] == 2).all()
    assert (result[1] == 2).all()


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("log", [False, True])
def test_nan_in_a_gradient_stays_in_its_row(device: cudakit.Device, variant: str, log: bool) -> None:
    grad, y = drawn((3, 96), log=log)
    grad[1, 7] = np.nan
    result = ops.softmax_backward(device.array(grad), device.array(y), variant=variant, log=log).numpy()
    assert np.isnan(result).all(axis=1).tolist() == [False, True, False]
    assert not np.isnan(result[[0, 2]]).any()


@pytest.mark.parametrize("variant", NAMES)
def test_an_infinite_gradient(device: cudakit.Device, variant: str) -> None:
    y = np.full((3, 32), 1 / 32, np.float32)
    y[1, 3] = 0
    grad = np.ones((3, 32), np.float32)
    grad[0, 5] = grad[1, 3] = np.inf
    result = ops.softmax_backward(device.array(grad), device.array(y), variant=variant).numpy()
    assert np.isnan(result[0, 5])
    assert (np.delete(result[0], 5) == -np.inf).all()
    assert np.isnan(result[1]).all()
    assert (result[2] == 0).all()


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_kept_in_float32(device: cudakit.Device, variant: str, dtype: str) -> None:
    kind = memory.as_dtype(dtype)
    grad, y = np.ones((1, 4096), kind), np.full((1, 4096), -1000, kind)
    y[0, 0] = 0  # probabilities 1, 0, 0, ...: a sum in float16 would stop at 2,048, in bfloat16 at 256
    result = ops.softmax_backward(device.array(grad), device.array(y), variant=variant, log=True).numpy()
    assert float(result[0, 0]) == float(np.float32(1 - 4096).astype(kind))
    assert (result[0, 1:] == 1).all()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("variant", "reads"), [("two_reads", 2), ("registers", 1), ("split_row", 1)])
def test_every_access_is_of_whole_sectors(sim: cudakit.Device, variant: str, reads: int, dtype: str, log: bool) -> None:
    grad, y = (sim.array(host) for host in drawn((2, 8192), dtype, log))
    out = sim.empty(grad.shape, grad.dtype)
    with sim.counters() as counted:
        ops.softmax_backward(grad, y, out=out, variant=variant, log=log)
        sim.synchronize()
    (kernel,) = counted.values()
    assert kernel.global_store_sectors * 32 == grad.nbytes
    assert kernel.global_store_requests * 16 * 32 == grad.nbytes
    arrays = reads + 1 if log else 2 * reads  # the gradient of log-softmax needs no y for the sum of a row
    assert kernel.global_load_sectors * 32 == arrays * grad.nbytes


@pytest.mark.parametrize(
    ("cols", "dtype", "vector", "expected"),
    [
        (8192, "float32", 4, "registers"),
        (16384, "float32", 4, "registers"),
        (16388, "float32", 4, "split_row"),
        (262144, "float32", 4, "split_row"),
        (262148, "float32", 4, "two_reads"),
        (32768, "float16", 8, "registers"),
        (32776, "bfloat16", 8, "split_row"),
        (16384, "float16", 1, "registers"),
        (16385, "float16", 1, "two_reads"),
    ],
)
def test_auto_reads_once_if_a_block_or_a_cluster_holds_the_row(
    device: cudakit.Device, cols: int, dtype: str, vector: int, expected: str
) -> None:
    x = device.array(np.zeros((1, 8), np.float32))
    given = replace(FAMILY.problem_of((x, x), x), rows=64, cols=cols, dtype=dtype, vector=vector)
    assert FAMILY.choose(given, "sm_90") == expected
    assert FAMILY.choose(given, "sm_80") == ("registers" if expected == "registers" else "two_reads")


def test_every_tile_holds_its_row(device: cudakit.Device) -> None:
    x = device.array(np.zeros((1, 8), np.float32))
    base = FAMILY.problem_of((x, x), x)
    for vector in (1, 4, 8):
        for pieces in (1, 2, 16, 17, 129, 256, 257, 1000, 4096, 8000, 16384):
            given = replace(base, vector=vector, cols=pieces * vector)
            tile = register_tile(given)
            if tile is not None:
                assert tile.lanes * tile.held >= pieces
                assert tile.block <= 1024
            shared = cluster_tile(given)
            assert shared is not None
            assert shared.cluster * shared.block * shared.held >= pieces


def test_pieces_of_16_bytes_need_all_three_arrays_aligned(device: cudakit.Device) -> None:
    x = device.array(np.zeros((4, 72), np.float16))
    whole, off, odd = x[:, :64], x[:, 1:65], device.array(np.zeros((4, 65), np.float16))[:, :64]
    assert FAMILY.problem_of((whole, whole), whole).vector == 8
    other = device.empty((4, 64), np.float16)
    assert FAMILY.problem_of((off, whole), other).vector == 1
    assert FAMILY.problem_of((whole, off), other).vector == 1
    assert FAMILY.problem_of((other, other), off).vector == 1
    assert FAMILY.problem_of((odd, whole), other).vector == 1


@pytest.mark.parametrize(
    ("grad", "y", "options", "why"),
    [
        (np.zeros((2, 3), np.float64), np.zeros((2, 3), np.float64), {}, "got grad float64, y float64"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float16), {}, "one dtype for all arrays"),
        (np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.float32), {}, "1-D"),
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), {}, r"grad is \(2, 3\), y is \(3, 2\)"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), {"scale": np.inf}, "finite"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), {"scale": np.nan}, "finite"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), {"scale": 3.4028236e38}, "finite"),
    ],
)
def test_refuses(device: cudakit.Device, grad, y, options, why) -> None:
    with pytest.raises(ValueError, match=why):
        ops.softmax_backward(device.array(grad), device.array(y), **options)


def test_outputs_that_are_refused(device: cudakit.Device) -> None:
    x, y = device.array(np.zeros((2, 9), np.float32)), device.array(np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match="grad and the output overlap"):
        ops.softmax_backward(x[:, 1:], y, out=x[:, :8])
    with pytest.raises(ValueError, match="y and the output overlap"):
        ops.softmax_backward(y, x[:, 1:], out=x[:, :8])
    with pytest.raises(ValueError, match=r"the output is \(8,\)"):
        ops.softmax_backward(y, y, out=device.empty((8,), np.float32))
    with pytest.raises(ValueError, match="output float16"):
        ops.softmax_backward(y, y, out=device.empty((2, 8), np.float16))


@pytest.mark.parametrize("log", [False, True])
def test_empty_problems_launch_nothing(device: cudakit.Device, log: bool) -> None:
    for shape in ((0, 5), (5, 0), (0,)):
        x = device.array(np.zeros(shape, np.float16))
        assert ops.softmax_backward(x, x, log=log).numpy().shape == shape


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_torchs_gradient(device: cudakit.Device, log: bool, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(6)
    x, grad = rng.standard_normal((2, 7, 100), dtype=np.float32)
    wide = torch.from_numpy(x).to(getattr(torch, dtype)).requires_grad_()
    y = (torch.log_softmax if log else torch.softmax)(wide, -1)
    weights = torch.from_numpy(grad).to(y.dtype)
    y.backward(weights)
    kind = memory.as_dtype(dtype)
    host = [tensor.detach().float().numpy().astype(kind) for tensor in (weights, y)]
    result = ops.softmax_backward(*map(device.array, host), log=log).numpy().astype(np.float32)
    step = {"float32": 2**-22, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(result, wide.grad.float().numpy(), rtol=step, atol=step * np.abs(grad).max() / 4)


@pytest.mark.parametrize("variant", NAMES)
def test_offsets_past_two_to_the_31(roomy: cudakit.Device, variant: str) -> None:
    apart = 2**30 + 64  # row * grad_row would overflow 32 bits in the last row
    if roomy.memory_info()[0] < 2 * 3 * apart:
        pytest.skip("the GPU has too little free memory for rows 2 GiB apart")
    grad, y = drawn((3, 1000), "float16")
    with roomy.empty((3, apart), np.float16) as buffer:
        spread = buffer[:, :1000]
        spread.copy_from(grad)
        ops.softmax_backward(spread, roomy.array(y), out=spread, variant=variant)
        expect_right(spread.numpy(), grad, y)
