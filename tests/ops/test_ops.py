"""The front functions: accepted and rejected arguments, and special rows of softmax."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.softmax import FAMILY
from cudakit.families.softmax_ladder import register_tile
from cudakit.families.softmax_problem import RowProblem

SOFTMAX_VARIANTS = [variant.name for variant in FAMILY]
INF, NAN = np.inf, np.nan


def softmax64(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(x.astype(np.float64) - np.fmax.reduce(x.astype(np.float64), axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


def test_softmax_of_a_matrix_sums_to_one(device: cudakit.Device) -> None:
    host = np.random.default_rng(1).uniform(-10, 10, (128, 128)).astype(np.float32)
    y = ops.softmax(device.array(host)).numpy()
    np.testing.assert_allclose(y, softmax64(host), rtol=0, atol=1e-6)
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-5)


def test_softmax_of_one_dimension_is_one_row(device: cudakit.Device) -> None:
    host = np.arange(37, dtype=np.float32)
    np.testing.assert_allclose(ops.softmax(device.array(host)).numpy(), softmax64(host), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("variant", SOFTMAX_VARIANTS)
@pytest.mark.parametrize(
    ("row", "nan"),
    [
        ([-INF, -INF, -INF, -INF], True),
        ([-INF, -INF, 1.0, 2.0], False),
        ([1.0, 2.0, -INF, -INF], False),
        ([INF, 0.0, 1.0, 2.0], True),
        ([0.0, 1.0, 2.0, INF], True),
        ([NAN, 0.0, 1.0, 2.0], True),
        ([0.0, 1.0, 2.0, NAN], True),
        ([-INF, NAN, -INF, -INF], True),
        ([3.4e38, -3.4e38, 0.0, 3.4e38], False),
        ([-1e30, -1e30, -1e30, -1e30], False),
    ],
)
def test_hard_rows(device: cudakit.Device, variant: str, row: list[float], nan: bool) -> None:
    host = np.array([row * 9, [0.5] * 36], np.float32)  # the NaN of the first row must not affect the second
    if variant == "span":
        host = np.ascontiguousarray(host[:, :35])
    y = ops.softmax(device.array(host), variant=variant).numpy()
    np.testing.assert_allclose(y, softmax64(host), rtol=1e-5, atol=1e-7)
    assert np.isnan(y[0]).all() == nan
    assert not np.isnan(y[1]).any()


def test_softmax_in_place_and_into_an_output(device: cudakit.Device) -> None:
    host = np.random.default_rng(2).standard_normal((5, 300), dtype=np.float32)
    x = device.array(host)
    out = device.full(host.shape, 7.0, dtype=np.float32)
    assert ops.softmax(x, out=out) is out
    assert ops.softmax(x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), out.numpy())


def test_in_place_of_one_row_whatever_its_unused_stride(device: cudakit.Device) -> None:
    x = device.array(np.arange(8, dtype=np.float32)[None])
    ops.softmax(x, out=x[::2])
    np.testing.assert_allclose(x.numpy()[0], softmax64(np.arange(8)), rtol=1e-5)


@pytest.mark.parametrize("block", [32, 96, 384, 1000])
@pytest.mark.parametrize(("name", "bytes_a_thread"), [("05_tree_reduce", 4), ("06_online_fused", 8)])
def test_trees_take_blocks_that_are_no_power_of_two(
    device: cudakit.Device, name: str, bytes_a_thread: int, block: int
) -> None:
    host = np.random.default_rng(7).standard_normal((3, 1500), dtype=np.float32)
    x, y = device.array(host), device.empty((3, 1500))
    kernel = device.compile(f"softmax/{name}.cu")[name[3:]]
    args = (x, y, 1500, 1, 1500, 1, 3, 1500)
    kernel.launch(device.default_stream, grid=3, block=block, shared=block * bytes_a_thread, args=args)
    np.testing.assert_allclose(y.numpy(), softmax64(host), rtol=1e-5, atol=1e-8)


def test_a_block_past_the_shared_array_is_refused_and_a_smaller_one_is_right(device: cudakit.Device) -> None:
    host = np.random.default_rng(8).standard_normal((3, 1500), dtype=np.float32)
    x, y = device.array(host), device.empty((3, 1500))
    entry = "block_serial_reduce<256>"
    kernel = device.compile("softmax/04_block_serial_reduce.cu", names=(entry,))[entry]
    args = (x, y, 1500, 1, 1500, 1, 3, 1500)
    with pytest.raises(cudakit.LaunchError, match="512 threads, but this kernel supports at most 256"):
        kernel.launch(device.default_stream, grid=3, block=512, args=args)
    kernel.launch(device.default_stream, grid=3, block=128, args=args)
    np.testing.assert_allclose(y.numpy(), softmax64(host), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("variant", ["vec4", "warp_shuffle", "registers"])
@pytest.mark.parametrize("lead", [0, 1, 2, 3])
@pytest.mark.parametrize("gap", [0, 1, 4])
def test_rows_off_a_16_byte_boundary(device: cudakit.Device, variant: str, lead: int, gap: int) -> None:
    host = np.random.default_rng(9).standard_normal((5, 128 + gap), dtype=np.float32)
    x = device.array(np.pad(host, ((0, 0), (lead, 0))))[:, lead : lead + 128]
    out = device.zeros((5, 136))[:, 4 - lead : 132 - lead]
    np.testing.assert_allclose(
        ops.softmax(x, out=out, variant=variant).numpy(), softmax64(host[:, :128]), rtol=1e-5, atol=1e-8
    )


def test_a_volume_of_more_blocks_along_y_than_a_grid_has(device: cudakit.Device) -> None:
    host = np.arange(65536 * 8 + 3, dtype=np.float32).reshape(1, -1, 1)
    a = device.array(host)
    np.testing.assert_array_equal(ops.add(a, a, variant="vector_add_3d").numpy(), host * 2)


@pytest.mark.parametrize("variant", SOFTMAX_VARIANTS)
def test_offsets_past_two_to_the_31(roomy: cudakit.Device, variant: str) -> None:
    if variant == "span":
        pytest.skip("only contiguous rows are supported, with 64-bit row offsets")
    apart = 2**30 + 64
    if roomy.memory_info()[0] < 4 * 3 * apart:
        pytest.skip("the GPU has too little free memory for rows 4 GiB apart")
    buffer = roomy.empty((2 * apart + apart,), np.float32)
    host = np.random.default_rng(10).standard_normal((3, 1000), dtype=np.float32)
    x = buffer.reshape(3, apart)[:, :1000]
    x.copy_from(host)
    np.testing.assert_allclose(ops.softmax(x, out=x, variant=variant).numpy(), softmax64(host), rtol=1e-5, atol=1e-8)
    buffer.close()


def test_an_array_outlives_the_name_of_its_device(device: cudakit.Device) -> None:
    host = np.random.default_rng(6).standard_normal((4, 1000), dtype=np.float32)

    def make() -> cudakit.DeviceArray:
        own = cudakit.Device("sim", fresh=True) if device.kind == "sim" else cudakit.Device("gpu")
        return own.array(host)

    np.testing.assert_allclose(ops.softmax(make()).numpy(), softmax64(host), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (0, 0)])
def test_empty_problems_give_empty_results(device: cudakit.Device, shape: tuple[int, ...]) -> None:
    x = device.empty(shape, np.float32)
    for variant in ("auto", "tree_reduce"):
        assert ops.softmax(x, variant=variant).shape == shape


def test_add_takes_any_alignment_and_in_place(device: cudakit.Device) -> None:
    a, b = (np.random.default_rng(seed).standard_normal(1001, dtype=np.float32) for seed in (3, 4))
    x, y = device.array(a), device.array(b)
    np.testing.assert_array_equal(ops.add(x, y).numpy(), a + b)
    np.testing.assert_array_equal(ops.add(x[1:], y[:-1]).numpy(), a[1:] + b[:-1])
    ops.add(x, y, out=x)
    np.testing.assert_array_equal(x.numpy(), a + b)


def test_refusals_name_what_was_wrong(device: cudakit.Device) -> None:
    x = device.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match="float32 in and out, got float64"):
        ops.softmax(device.zeros((4, 8), np.float64))
    with pytest.raises(ValueError, match=r"1-D \(one row\) or 2-D"):
        ops.softmax(device.zeros((2, 2, 2), np.float32))
    with pytest.raises(ValueError, match=r"shape \(4, 8\), got \(8, 4\)"):
        ops.softmax(x, out=device.zeros((8, 4), np.float32))
    base = device.zeros((5, 8), np.float32)
    with pytest.raises(ValueError, match="overlap or are interleaved"):
        ops.softmax(base[:4], out=base[1:])
    with pytest.raises(ValueError, match="overlap or are interleaved"):
        ops.softmax(base[:, ::2], out=base[:, 1::2])
    with pytest.raises(ValueError, match="no variant 'nosuch'; it has auto, thread_per_row"):
        ops.softmax(x, variant="nosuch")
    with pytest.raises(cudakit.UnsupportedVariant, match="start on a 16-byte boundary"):
        ops.softmax(device.zeros((4, 9), np.float32)[:, 1:], variant="span")
    with pytest.raises(TypeError, match=r"device\.array"):
        ops.softmax(np.zeros((4, 8), np.float32))
    with pytest.raises(ValueError, match="do not broadcast"):
        ops.add(x, x[:2])


def test_a_row_past_registers_and_shared_memory_goes_to_another_rung(sim: cudakit.Device) -> None:
    x = sim.zeros((1, 100_000), np.float32)
    with pytest.raises(cudakit.UnsupportedVariant, match="does not fit in a block's registers"):
        ops.softmax(x, variant="registers")
    np.testing.assert_allclose(ops.softmax(x).numpy(), 1e-5, rtol=1e-4)


def test_a_copy_of_a_family_is_called_with_its_own_variants(sim: cudakit.Device) -> None:
    """The family's front function does not know these variants."""
    mine = replace(FAMILY, variants=(replace(FAMILY["tree_reduce"], name="mine"),))
    x, y = sim.zeros((2, 4)), sim.zeros((2, 4))
    call = mine.call_of(mine["mine"], (x,), y)
    assert call is not None
    call()
    assert (y.numpy() == 0.25).all()
    assert FAMILY.call_of(mine["mine"], (x,), y) is None
    assert getattr(FAMILY.call_of(FAMILY["vec4"], (x,), y), "func", None) is ops.softmax


@pytest.mark.parametrize("cols", [1, 7, 8, 9, 64, 256, 257, 1000, 2048, 4099, 8192, 12672, 32768, 40000, 57344])
@pytest.mark.parametrize("aligned", [True, False])
def test_register_tiles_cover_the_row(cols: int, aligned: bool) -> None:
    tile = register_tile(RowProblem(3, cols, (cols, 1), (cols, 1), 16 if aligned else 4, 16))
    assert tile is not None
    assert tile.lanes * (tile.held + tile.parked) * tile.vec >= cols
    assert tile.held * tile.vec <= 32
    assert tile.block <= 1024


def test_parked_rows_are_right(device: cudakit.Device) -> None:
    host = np.random.default_rng(5).standard_normal((2, 40_000), dtype=np.float32)
    for columns in (slice(None), slice(1, None)):
        x = device.array(host)[:, columns]
        y = ops.softmax(x, variant="registers").numpy()
        np.testing.assert_allclose(y, softmax64(host[:, columns]), rtol=1e-4, atol=1e-10)


@pytest.mark.gpu
def test_torch_tensors_come_in_and_go_out_on_their_own_stream(gpu: cudakit.Device) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(257, 1001, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # later work is wrong unless it waits for this stream
        doubled = x * 2
        y = ops.softmax(doubled)
        z = y + 0
    stream.synchronize()
    torch.testing.assert_close(z, torch.softmax(x * 2, -1))
    assert isinstance(y, torch.Tensor)
    strided = torch.randn(300, 129, device="cuda", requires_grad=True).T
    torch.testing.assert_close(ops.softmax(strided), torch.softmax(strided.detach(), -1))


@pytest.mark.gpu
def test_cupy_arrays_come_in_and_go_out(gpu: cudakit.Device) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    x = cupy.random.standard_normal((33, 515), dtype=cupy.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        y = ops.softmax(x)
        stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(y), softmax64(cupy.asnumpy(x)), rtol=1e-5, atol=1e-9)
    assert isinstance(y, cupy.ndarray)
