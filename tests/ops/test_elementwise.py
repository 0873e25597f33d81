"""The element-wise families: common mistakes, rejected inputs, and results compared with numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from paths import TESTS

import cudakit
from cudakit import ops
from cudakit.families import axes, rows
from cudakit.families.add_broadcast import FAMILY as ADD_BROADCAST
from cudakit.families.matrix_add import FAMILY as MATRIX_ADD
from cudakit.families.matrix_add import MatrixProblem
from cudakit.families.vector_add import FAMILY as VECTOR_ADD
from cudakit.family import Launch, Variant
from cudakit.family import variant as declared
from cudakit.testing import Case, Values, contiguous, run_case

WRONG = TESTS / "wrong"


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def case_of(*shape: int) -> Case:
    place = contiguous(shape)
    return Case((place, place), Values(1, 1.0), place)


def wrong(name: str, launch: Launch) -> Variant[Any]:
    return declared(str(WRONG / f"{name}.cu"), name=name, entry="wrong")(lambda problem: launch)


# Common mistakes ------------------------------------------------------------------------------------------------------


def test_one_block_of_one_element_a_thread_ends_at_its_threads(device: cudakit.Device) -> None:
    one_block = declared("vector_add/01_vector_add.cu", name="vector_add")(lambda problem: Launch(1, 1024))
    assert run_case(device, VECTOR_ADD, one_block, case_of(1024)).ok
    verdict = run_case(device, VECTOR_ADD, one_block, case_of(1025))
    assert "element (1024,) is nan" in verdict.why
    assert run_case(device, VECTOR_ADD, VECTOR_ADD["vector_add"], case_of(1025)).ok


def test_without_the_guard_the_last_block_writes_behind_the_vector(device: cudakit.Device) -> None:
    unguarded = wrong("unguarded_add", Launch(2, 512))
    assert run_case(device, VECTOR_ADD, unguarded, case_of(1024)).ok
    if device.kind == "gpu":
        assert "wrote outside its output" in run_case(device, VECTOR_ADD, unguarded, case_of(1000)).why
        return
    with cudakit.Device("sim", fresh=True) as lost, pytest.raises(cudakit.DeviceFault) as caught:
        run_case(lost, VECTOR_ADD, unguarded, case_of(1000))
    assert "0 bytes past the end of the array of 4000 bytes" in str(caught.value)
    assert "unguarded_add.cu:" in str(caught.value)


@pytest.mark.parametrize("shape", [(17, 16), (16, 17), (100, 100)])
def test_one_tile_leaves_what_lies_past_it(device: cudakit.Device, shape: tuple[int, int]) -> None:
    family, one_tile = MATRIX_ADD, wrong("one_tile", Launch(1, (16, 16)))
    assert run_case(device, family, one_tile, case_of(16, 16)).ok
    assert "is nan" in run_case(device, family, one_tile, case_of(*shape)).why
    assert run_case(device, family, family["one_block"], case_of(*shape)).ok


def test_a_grid_rounded_down_leaves_the_last_rows(device: cudakit.Device) -> None:
    family = MATRIX_ADD
    right = family["many_blocks"]
    down = replace(right, launch=lambda p: Launch((p.cols // 16, p.rows // 16), (16, 16)))
    assert run_case(device, family, down, case_of(96, 96)).ok
    assert "is nan" in run_case(device, family, down, case_of(100, 100)).why
    assert run_case(device, family, right, case_of(100, 100)).ok


def test_more_matrices_than_a_grid_has_blocks_along_z(device: cudakit.Device) -> None:
    family, limit, right = MATRIX_ADD, 65535, MATRIX_ADD["batched"]

    def small(problem: MatrixProblem) -> Launch:
        return replace(right.launches(problem)[0], grid=(1, 1, limit), block=(2, 1))

    batch = case_of(limit + 3, 1, 2)
    verdict = run_case(device, family, declared(str(WRONG / "no_batch_loop.cu"), entry="wrong")(small), batch)
    assert f"element ({limit}, 0, 0) is nan" in verdict.why
    assert run_case(device, family, replace(right, launch=small), batch).ok
    problem = MatrixProblem(limit + 3, 2_000_000, 3, (6, 3, 1), (6, 3, 1), (6, 3, 1), False)
    assert right.launches(problem)[0].grid == (1, 65535, 65535)


def test_the_slow_axis_costs_sectors(sim: cudakit.Device) -> None:
    inputs = [sim.array(normal(*(32, 32, 32)[:rank])) for rank in (3, 2, 1)]
    sectors = {}
    for variant in ADD_BROADCAST:
        with sim.counters() as counters:
            ops.add_broadcast(*inputs, variant=variant.name)
        (counted,) = counters.values()
        sectors[variant.name] = counted.as_dict()
    # Sectors per request. A warp of 4x4x2: volume and out 16, plane 4, line 1. A warp of 32 in z: 4, 4, 1, 1.
    assert sectors["slow_axis"]["sectors_per_request"] == pytest.approx((16 + 16 + 4 + 1) / 4)
    assert sectors["coalesced"]["sectors_per_request"] == pytest.approx((4 + 4 + 1 + 1) / 4)
    assert sectors["rows"]["instructions"] < sectors["coalesced"]["instructions"] / 3
    moved = {name: counted["global_sector_bytes"] for name, counted in sectors.items()}
    assert moved["rows"] < moved["coalesced"] < moved["slow_axis"] / 3


@pytest.mark.parametrize("variant", [variant.name for variant in ADD_BROADCAST])
@pytest.mark.parametrize("shape", [(5, 5, 5), (3, 4, 3), (7, 2, 1), (2, 3, 101), (9, 1, 2), (1, 1, 6)])
def test_plane_and_line_belong_to_the_first_axes(
    device: cudakit.Device, variant: str, shape: tuple[int, int, int]
) -> None:
    volume, plane, line = normal(*shape), normal(*shape[:2], seed=2), normal(shape[0], seed=3)
    got = ops.add_broadcast(*map(device.array, (volume, plane, line)), variant=variant).numpy()
    np.testing.assert_array_equal(got, (volume + plane[:, :, None]) + line[:, None, None])


# Broadcasting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), ()),
        ((), (7,)),
        ((1,), (3, 1)),
        ((300, 70), (70,)),
        ((300, 70), (300, 1)),
        ((30, 1), (1, 200)),
        ((4, 1, 6, 1), (5, 1, 128)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((1, 1, 1, 1, 9), (8, 1)),
        ((0, 3), (1, 3)),
    ],
)
def test_add_broadcasts_as_numpy_does(device: cudakit.Device, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a, seed=1) if a else np.float32(0.5).reshape(()), normal(*b, seed=2) if b else np.full((), 2, "f")
    for one, other in ((x, y), (y, x)):
        got = ops.add(device.array(one), device.array(other)).numpy()
        np.testing.assert_array_equal(got, one + other)


@pytest.mark.parametrize("variant", ["strided", "rows", "dense"])
@pytest.mark.parametrize("cols", [2, 3, 4, 5, 7, 101, 256])
@pytest.mark.parametrize("rows", [2, 9])
def test_rows_and_columns_of_odd_lengths(device: cudakit.Device, variant: str, rows: int, cols: int) -> None:
    host, row, column = normal(rows, cols), normal(cols, seed=2), normal(rows, 1, seed=3)
    spread = device.array(normal(rows, cols + 3, seed=4))[:, 1 : cols + 1]  # a gap after each row
    x = device.array(host)
    for one, other in ((x, device.array(row)), (device.array(row), x)):
        np.testing.assert_array_equal(ops.add(one, other, variant=variant).numpy(), host + row)
    np.testing.assert_array_equal(ops.add(device.array(column), x, variant=variant).numpy(), column + host)
    np.testing.assert_array_equal(ops.add(x, spread, variant=variant).numpy(), host + spread.numpy())


def test_add_takes_views(device: cudakit.Device) -> None:
    host = normal(40, 50)
    x = device.array(host)
    views = [(x.T, host.T), (x[::-1].T, host[::-1].T), (x.T[::2, ::-3], host.T[::2, ::-3])]
    for view, expected in views:
        np.testing.assert_array_equal(ops.add(view, view).numpy(), expected + expected)
        np.testing.assert_array_equal(ops.add(view, view[:1]).numpy(), expected + expected[:1])
    out = device.zeros((50, 40)).T
    np.testing.assert_array_equal(ops.add(x, x[:, :1], out=out).numpy(), host + host[:, :1])


def test_a_transposed_operand_is_read_along_its_own_rows(sim: cudakit.Device) -> None:
    host = normal(64, 96)
    x, y = sim.array(host), sim.array(np.ascontiguousarray(host.T))
    sectors = {}
    for variant in ("strided", "tiles"):
        with sim.counters() as counters:
            got = ops.add(x, y.T, variant=variant)
        np.testing.assert_array_equal(got.numpy(), host + host)
        (counted,) = counters.values()
        sectors[variant] = counted.as_dict()
    assert sectors["tiles"]["sectors_per_request"] == pytest.approx(4)
    assert sectors["tiles"]["bank_conflicts"] == 0
    assert sectors["strided"]["sectors_per_request"] == pytest.approx((4 + 32 + 4) / 3)


def test_add_works_in_place_over_the_input_that_is_not_repeated(device: cudakit.Device) -> None:
    host = normal(33, 64)
    x, row = device.array(host), device.array(host[0])
    assert ops.add(x, row, out=x) is x
    np.testing.assert_array_equal(x.numpy(), host + host[0])
    with pytest.raises(ValueError, match=r"b and the output overlap .* without being the same array"):
        ops.add(x, x[0], out=x)
    with pytest.raises(ValueError, match="a and the output overlap"):
        ops.add(x[1:], x[1:], out=x[:-1])
    with pytest.raises(ValueError, match="may store two elements at one address"):
        ops.add(x[0], row, out=overlapping(x))


def overlapping(x: cudakit.DeviceArray) -> cudakit.DeviceArray:
    """Return 64 elements in memory for 32, with a stride that makes pairs of them overlap."""
    return cudakit.memory.makers.over(x.context, x.stream, x.pointer, (64,), x.dtype, strides=(2,), owner=x)


def test_axes_are_merged_and_put_in_the_order_of_the_output() -> None:
    flat = axes.walk("it", (4, 5, 6), [(30, 6, 1), (30, 6, 1)])
    assert (flat.extents, flat.flat) == ((1, 1, 1, 120), True)
    transposed = axes.walk("it", (4, 5), [(1, 4), (1, 4)])
    assert (transposed.extents, transposed.flat) == ((1, 1, 1, 20), True)
    bias = axes.walk("it", (2, 3, 7), [(21, 7, 1), (0, 0, 1), (21, 7, 1)])
    assert bias.extents == (1, 1, 6, 7)
    assert bias.strides == ((0, 0, 7, 1), (0, 0, 0, 1), (0, 0, 7, 1))
    scattered = [(2**k for k in range(0, 10, 2))]
    with pytest.raises(ValueError, match=r"merged into at most 4.*leaves 5.*copy\(\) the arrays"):
        axes.walk("it", (2,) * 5, [tuple(scattered[0])])


@pytest.mark.parametrize(
    ("cols", "phases", "outer", "dealt"),
    [
        (512, (0, 0), ((512,), (512,)), (4, 16, 2, 4)),
        (516, (0, 0), ((516,), (516,)), (4, 16, 2, 5)),
        (511, (0, 0), ((511,), (511,)), (4, 16, 2, 4)),
        (511, (1, 0), ((511,), (511,)), (1, 32, 8, 2)),
        (8, (0, 0), ((8,), (8,)), (4, 2, 1, 1)),
        (3, (0, 0), ((3,), (3,)), (1, 4, 1, 1)),
        (100, (0, 0), ((101,), (100,)), (1, 32, 4, 1)),
        (512, (0, 0), ((512,), (514,)), (1, 32, 8, 2)),
    ],
)
def test_rows_are_dealt_in_vectors_where_all_lie_alike(
    cols: int, phases: Any, outer: Any, dealt: tuple[int, int, int, int]
) -> None:
    assert rows.deal(cols, phases, outer) == rows.Deal(*dealt)


# Maps of one array ----------------------------------------------------------------------------------------------------


def test_threshold_keeps_what_is_equal_and_what_is_nan(device: cudakit.Device) -> None:
    x = np.array([0.29, 0.3, 0.31, -1.0, np.nan, np.inf, -np.inf, -0.0], np.float32)
    for variant in ("strided", "vectors"):
        got = ops.threshold(device.array(x), 0.3, variant=variant).numpy()
        np.testing.assert_array_equal(got, np.array([0, 0.3, 0.31, 0, np.nan, np.inf, 0, 0], np.float32))


@pytest.mark.parametrize("variant", ["strided", "vectors"])
def test_casts_round_to_nearest_even_once(device: cudakit.Device, variant: str) -> None:
    def cast(values: list[float], dtype: str, to: str) -> list[float]:
        array = device.array(np.array(values).astype(cudakit.memory.array.as_dtype(dtype)))
        return ops.cast(array, to, variant=variant).numpy().astype(np.float64).tolist()

    assert cast([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998], "float32", "int32") == [0, 2, 2, 0, -2, 2]
    assert cast([3e9, -3e9, np.inf, -np.inf, np.nan], "float32", "int32") == [2**31 - 1, -(2**31)] * 2 + [0]
    assert cast([2049, 2051, 65519, 65520, -1e9], "float32", "float16") == [2048, 2052, 65504, np.inf, -np.inf]
    assert cast([257, 259, 3.4e38], "float32", "bfloat16") == [256, 260, np.inf]
    # A conversion through float32 would lose the last bit and then see a tie.
    assert cast([2**30 + 2**22 + 1, 2**30 + 2**22, -(2**30) - 2**22 - 1], "int32", "bfloat16") == [
        2**30 + 2**23, 2**30, -(2**30) - 2**23,
    ]  # fmt: skip
    assert cast([2**24 + 1, 2**24 + 3, 2**31 - 1], "int32", "float32") == [2**24, 2**24 + 4, 2**31]
    assert cast([1.25, -7.0], "bfloat16", "float16") == [1.25, -7.0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "float64"])
def test_fill_writes_every_element_and_no_other(device: cudakit.Device, dtype: str) -> None:
    kind = cudakit.memory.array.as_dtype(dtype)
    for cut in (np.s_[:], np.s_[1:], np.s_[::-3], np.s_[:0]):
        host = np.zeros(4099, kind)
        x = device.array(host)
        ops.fill(x[cut], 7)
        host[cut] = 7
        np.testing.assert_array_equal(x.numpy().astype(np.float64), host.astype(np.float64))


def test_scale_keeps_a_half_that_float16_products_would_lose(device: cudakit.Device) -> None:
    x = np.array([60000.0, 1e-4], np.float16)
    np.testing.assert_array_equal(
        ops.scale(device.array(x), 0.1).numpy(), (x.astype("f") * np.float32(0.1)).astype("e")
    )
    y = device.array(normal(30, 20))
    assert ops.scale(y, 2.0, out=y) is y


# Rejected and empty inputs --------------------------------------------------------------------------------------------


def test_refusals_say_what_was_wrong(device: cudakit.Device) -> None:
    x, volume = device.zeros((4, 8)), device.zeros((2, 3, 4))
    half = device.zeros((4, 8), np.float16)
    refused = [
        (lambda: ops.add(x, device.zeros((3, 8))), r"shapes \(4, 8\) and \(3, 8\) do not broadcast: counted from"),
        (lambda: ops.add(x, half), "broadcast add takes float32, b is float16"),
        (lambda: ops.add(x, x, out=device.zeros((8, 4))), r"a \+ b has shape \(4, 8\), but the output has \(8, 4\)"),
        (lambda: ops.add(x, x, variant="nosuch"), "has no variant 'nosuch'; it has auto, strided, rows"),
        (lambda: ops.add(x.T, x.T, variant="vector_add"), "vector add takes contiguous arrays"),
        (lambda: ops.matrix_add(x, volume), "matrix add takes arrays of one shape"),
        (lambda: ops.matrix_add(x[0], x[0]), r"\(rows, cols\) or \(matrices, rows, cols\), got shape \(8,\)"),
        (lambda: ops.matrix_add(half, half), "matrix add takes float32, a is float16"),
        (lambda: ops.add_broadcast(x, x, x), r"takes a volume \(X, Y, Z\), got"),
        (lambda: ops.add_broadcast(volume, device.zeros((3, 4)), device.zeros((2,))), r"plane of shape \(2, 3\), got"),
        (lambda: ops.scale(device.zeros((4,), np.int32), 2.0), "scale takes float32, float16, bfloat16, one dtype in"),
        (lambda: ops.threshold(x, 0.3, out=half), "one dtype in and out; got float32 in and float16 out"),
        (lambda: ops.cast(x, "float64"), "cast supports float32, float16, bfloat16, int32"),
        (lambda: ops.cast(x, "float16", out=x), "cast to float16 takes an output of that dtype, got float32"),
        (lambda: ops.fill(device.zeros((4,), np.int32), 1.5), "int32 cannot hold 1.5 exactly"),
        (lambda: ops.fill(x, np.zeros(3)), "fill takes one value"),
        (lambda: ops.fill(device.zeros((4,), np.complex128), 1), "elements of 1, 2, 4 or 8 bytes"),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(cudakit.UnsupportedVariant, match="one matrix per launch supported"):
        ops.matrix_add(volume, volume, variant="many_blocks")
    with pytest.raises(cudakit.UnsupportedVariant, match="start on a 16-byte boundary"):
        ops.scale(device.zeros((9,))[1:], 2.0, variant="vectors")
    with pytest.raises(cudakit.UnsupportedVariant, match="last axis is contiguous"):
        ops.add_broadcast(volume.T, device.zeros((4, 3)), device.zeros((4,)), variant="rows")


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_empty_problems_launch_nothing(device: cudakit.Device, shape: tuple[int, int, int]) -> None:
    x = device.empty(shape)
    for result in (
        ops.add(x, x),
        ops.matrix_add(x, x),
        ops.add_broadcast(x, device.empty(shape[:2]), device.empty(shape[:1])),
        ops.scale(x, 2.0),
        ops.threshold(x, 0.3),
        ops.cast(x, "float16"),
        ops.fill(x, 1),
    ):
        assert result.shape == shape


# Sizes that need a GPU ------------------------------------------------------------------------------------------------


def test_offsets_past_two_to_the_31(roomy: cudakit.Device) -> None:
    apart = 2**30 + 64
    if roomy.memory_info()[0] < 4 * 3 * apart:
        pytest.skip("the GPU has too little free memory for matrices 4 GiB apart")
    with roomy.empty((3 * apart,)) as buffer:
        spread = buffer.reshape(3, 1, apart)[:, :, :1000]
        host = normal(3, 1, 1000)

        def fresh() -> cudakit.DeviceArray:
            return spread.copy_from(host)

        other = roomy.array(host)
        for variant in ("batched", "auto"):
            np.testing.assert_array_equal(ops.matrix_add(fresh(), other, out=spread, variant=variant).numpy(), host * 2)
        rows = fresh()[:, 0]
        for variant in ("one_block", "many_blocks"):
            got = ops.matrix_add(rows.copy_from(host[:, 0]), other[:, 0], out=rows, variant=variant).numpy()
            np.testing.assert_array_equal(got, host[:, 0] * 2)
        for variant in ("strided", "rows"):
            np.testing.assert_array_equal(ops.add(other, fresh(), out=spread, variant=variant).numpy(), host * 2)
        turned = roomy.array(np.ascontiguousarray(host[:, 0].T)).T
        got = ops.add(turned, rows.copy_from(host[:, 0]), out=rows, variant="tiles").numpy()
        np.testing.assert_array_equal(got, host[:, 0] * 2)
        plane, line = roomy.zeros((3, 1)), roomy.zeros((3,))
        for variant in ("slow_axis", "coalesced", "rows"):
            got = ops.add_broadcast(fresh(), plane, line, out=spread, variant=variant).numpy()
            np.testing.assert_array_equal(got, host)
        np.testing.assert_array_equal(ops.scale(fresh(), 2.0, out=spread).numpy(), host * 2)
        np.testing.assert_array_equal(ops.fill(spread, 3.0).numpy(), np.full_like(host, 3))


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements_in_one_array(gpu: cudakit.Device) -> None:
    apart = 2**30 + 64
    if gpu.memory_info()[0] < 4 * 3 * apart:
        pytest.skip("the GPU has too little free memory for 12 GiB")
    with gpu.empty((3 * apart,)) as buffer:
        ops.fill(buffer, 1.0)
        ops.add(buffer, buffer, out=buffer)
        ops.scale(buffer, 3.0, out=buffer)
        for place in (0, 2**31 - 1, 2**31, 3 * apart - 1):
            assert buffer[place : place + 1].numpy()[0] == 6
        assert ops.matrix_add(buffer.reshape(1, 3, apart), buffer.reshape(1, 3, apart), out=buffer.reshape(1, 3, apart))
        assert buffer[-1:].numpy()[0] == 12


@pytest.mark.gpu
def test_torch_tensors_broadcast(gpu: cudakit.Device) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = torch.randn(64, 1, 129, device="cuda"), torch.randn(33, 1, device="cuda")
    torch.testing.assert_close(ops.add(a, b), a + b, rtol=0, atol=0)
    torch.testing.assert_close(ops.add(a.transpose(0, 2), b), a.transpose(0, 2) + b, rtol=0, atol=0)
    torch.testing.assert_close(ops.cast(a, "bfloat16"), a.bfloat16(), rtol=0, atol=0)
