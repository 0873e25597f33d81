"""The product on tensor cores: common mistakes with 16-bit operands, rejected inputs, and what each variant
improves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.gemm_half import DTYPES, FAMILY, TILES, best, problem
from cudakit.memory import array as memory
from cudakit.show import tables
from cudakit.testing import Case, Unsupported, Values, contiguous, run_case

NAMES = [variant.name for variant in FAMILY]
# without those for at most 8 rows or columns
LARGE = [variant.name for variant in FAMILY if variant.problems != "skinny"]
# those that also multiply matrices without columns and without rows
ANY_K = [variant.name for variant in FAMILY if variant.since != "sm_90a"]


@pytest.fixture(autouse=True)
def needs_architecture(request: pytest.FixtureRequest) -> None:
    """Skip the test of a variant that the device's architecture does not support."""
    if "name" in request.fixturenames and "device" in request.fixturenames:
        refusal = FAMILY[request.getfixturevalue("name")].arch_refusal(request.getfixturevalue("device").arch)
        if refusal:
            pytest.skip(refusal)


def normal(*shape: int, seed: int = 1, dtype: str = "float16") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values.astype(memory.as_dtype(dtype))


def near(result: np.ndarray, a: np.ndarray, b: np.ndarray, digits: float) -> None:
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=digits, atol=digits * a.shape[-1] ** 0.5)


# Common mistakes with 16-bit operands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_fp32(device: cudakit.Device, name: str, dtype: str) -> None:
    """A sum 1 + 1 + ... stops at 2,048 in half precision, and at 256 in bfloat16."""
    ones = device.array(np.ones((8, 2304)).astype(memory.as_dtype(dtype)))
    assert (ops.gemm(ones, ones.T, variant=name).numpy().astype(np.float32) == 2304).all()


@pytest.mark.parametrize("name", LARGE)
def test_a_float32_result_is_not_rounded_on_the_way(device: cudakit.Device, name: str) -> None:
    """300 * 300 exceeds the range of half precision; a half-precision sum of ones stops at 2,048."""
    a = device.array(np.full((16, 8), 300, np.float16))
    assert np.isinf(ops.gemm(a, a.T, variant=name).numpy()).all()
    assert (ops.gemm(a, a.T, dtype="float32", variant=name).numpy() == 8 * 300 * 300).all()
    wide = device.zeros((8, 8), np.float32)
    ops.gemm(device.array(np.full((8, 2056), 1, np.float16)), device.array(np.ones((2056, 8), np.float16)), wide)
    assert (wide.numpy() == 2056).all()


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_that_is_not_square_is_right(device: cudakit.Device, name: str, dtype: str) -> None:
    layouts = (contiguous((40, 24), 0, dtype), contiguous((24, 72), 0, dtype))
    case = Case(layouts, Values(1, 1.0), contiguous((40, 72), 0, dtype))
    verdict = run_case(device, FAMILY, FAMILY[name], case)
    assert not isinstance(verdict, Unsupported)
    assert verdict.ok, verdict.why


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("out", ["rows", "columns"])
def test_operands_lie_either_way(device: cudakit.Device, name: str, left: str, right: str, out: str) -> None:
    """More than one tile in each dimension, and all partial."""
    m, n, k = 136, 72, 88
    a, b = normal(m, k), normal(k, n, seed=2)
    of_a = device.array(a) if left == "rows" else device.array(np.ascontiguousarray(a.T)).T
    of_b = device.array(b) if right == "rows" else device.array(np.ascontiguousarray(b.T)).T
    to = device.zeros((m, n), np.float16) if out == "rows" else device.zeros((n, m), np.float16).T
    ops.gemm(of_a, of_b, to, variant=name)
    near(to.numpy(), a, b, 1e-3)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.bm}x{t.bn}")
@pytest.mark.parametrize(
    "k", [8, pytest.param(64, marks=pytest.mark.long), 200, pytest.param(640, marks=pytest.mark.long)]
)
def test_every_tile_at_every_depth(device: cudakit.Device, monkeypatch: pytest.MonkeyPatch, tile: Any, k: int) -> None:
    """k smaller and larger than the ring of stages; a block that computes several tiles."""
    monkeypatch.setattr("cudakit.families.gemm_half.best", lambda problem: tile)
    a, b = normal(136, k), normal(k, 264, seed=2)
    near(ops.gemm(device.array(a), device.array(b), variant="pipelined").numpy(), a, b, 1e-3)


def test_a_block_makes_several_tiles(device: cudakit.Device) -> None:
    """More tiles than the device can run blocks, in batches that share the second operand."""
    sms = int(device.default_stream.context.attribute("MULTIPROCESSOR_COUNT"))
    count = 2 * 3 * sms // 4 + 5
    a, b = normal(count, 72, 16), normal(16, 72, seed=2)
    out = ops.gemm(device.array(a), device.array(b), variant="pipelined")
    near(out.numpy(), a, b, 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_beta_of_zero_does_not_read_c(device: cudakit.Device, name: str) -> None:
    a, b = normal(16, 24), normal(24, 8, seed=2)
    out = device.full((16, 8), np.nan, dtype=np.float16)
    ops.gemm(device.array(a), device.array(b), out, beta=0.0, variant=name)
    near(out.numpy(), a, b, 1e-3)


@pytest.mark.parametrize("name", ANY_K)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_no_columns_of_a_give_beta_times_c(device: cudakit.Device, name: str, beta: float) -> None:
    c = normal(16, 8)
    out = device.array(c)
    ops.gemm(device.empty((16, 0), np.float16), device.empty((0, 8), np.float16), out, beta=beta, variant=name)
    np.testing.assert_array_equal(out.numpy(), beta * c)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["wmma", "swizzled", "packed"])
def test_more_batches_than_a_grid_has_layers(gpu: cudakit.Device, name: str) -> None:
    """The z extent of a grid is at most 65,535 blocks."""
    k = 3 if name == "packed" else 8
    a, b = normal(65_537, 8, k), normal(65_537, k, 8, seed=2)
    near(ops.gemm(gpu.array(a), gpu.array(b), variant=name).numpy(), a, b, 1e-3)


def test_rows_past_31_bits(roomy: cudakit.Device) -> None:
    """row * stride of the third row is 2^31; in 32 bits it would address another row or another array."""
    needed = 2 * 3 * 2**30 * 2
    if roomy.memory_info()[0] < needed + 2**30:
        pytest.skip(f"{needed >> 30} GiB of device memory are needed")
    a, b = normal(3, 16), normal(16, 8, seed=2)
    far_a, far_d = (roomy.empty((3, 2**30), np.float16)[:, :columns] for columns in (16, 8))
    far_a.copy_from(roomy.array(a))
    for variant in FAMILY:
        if variant.arch_refusal(roomy.arch):
            continue
        far_d.fill(np.nan)
        ops.gemm(far_a, roomy.array(b), far_d, variant=variant.name)
        near(far_d.numpy(), a, b, 1e-3)


# Rejected inputs ------------------------------------------------------------------------------------------------------


def test_rungs_of_16_byte_pieces_say_which_operand_has_none(sim: cudakit.Device) -> None:
    a, b = sim.zeros((8, 24), np.float16), sim.zeros((24, 9), np.float16)
    for name in ("ldmatrix", "swizzled", "pipelined"):
        with pytest.raises(cudakit.UnsupportedVariant, match="B does not consist of 16-byte pieces"):
            ops.gemm(a, b, variant=name)
    ops.gemm(a, b)  # variant="auto" supports it


@pytest.mark.parametrize(
    ("out", "dtype", "words"),
    [
        ("float64", None, "takes an output of float16 or float32, got float64"),
        ("bfloat16", None, "takes an output of float16 or float32, got bfloat16"),
        ("float16", "float32", "dtype=float32 differs from the output's dtype float16"),
    ],
)
def test_results_of_other_dtypes_are_refused(sim: cudakit.Device, out: str, dtype: Any, words: str) -> None:
    a = sim.zeros((8, 8), np.float16)
    with pytest.raises(ValueError, match=words):
        ops.gemm(a, a.T, sim.zeros((8, 8), memory.as_dtype(out)), dtype=dtype)


def test_operands_of_two_dtypes_are_refused(sim: cudakit.Device) -> None:
    half, single = sim.zeros((8, 8), np.float16), sim.zeros((8, 8), np.float32)
    with pytest.raises(ValueError, match="one dtype"):
        ops.gemm(half, sim.zeros((8, 8), memory.as_dtype("bfloat16")))
    with pytest.raises(ValueError, match="float16"):
        ops.gemm(single, half)
    with pytest.raises(ValueError, match="has the dtype float32, got dtype=float16"):
        ops.gemm(single, single.T, dtype="float16")
    with pytest.raises(ValueError, match="C and the output"):
        ops.gemm(half, half.T, dtype="float32", c=half, beta=1.0)


# Improvements per variant -------------------------------------------------------------------------------------------


def test_each_rung_does_away_with_what_the_one_before_names(sim: cudakit.Device) -> None:
    a, b = sim.array(normal(128, 128)), sim.array(normal(128, 128, seed=2))
    out, of = sim.zeros((128, 128), np.float16), {}
    for name in ("wmma", "ldmatrix", "swizzled", "pipelined"):
        with sim.counters() as counters:
            ops.gemm(a, b, out, variant=name)
            sim.synchronize()
        ((of[name]),) = (counted.as_dict() for counted in counters.values())
    assert of["ldmatrix"]["instructions"] < of["wmma"]["instructions"] / 2
    reads = {name: of[name]["shared_load_wavefronts"] / of[name]["shared_load_ideal_wavefronts"] for name in of}
    assert reads["ldmatrix"] > 5
    assert reads["swizzled"] == reads["pipelined"] == 1


def test_a_tile_is_chosen_that_fills_the_device(sim: cudakit.Device) -> None:
    def tile(n: int) -> Any:
        a = sim.empty((n, n), np.float16)
        return best(problem((a, a), sim.empty((n, n), np.float16)))

    assert tile(512).bm * tile(512).bn < tile(4096).bm * tile(4096).bn
    assert tile(4096).shared <= 232_448


def test_the_reference_is_infinite_where_the_result_is() -> None:
    a = np.full((1, 8), 300, np.float16)
    assert np.isinf(FAMILY.exact((a, a.T))).all()
    assert FAMILY.exact((a, a.T), dtype="float32") == 8 * 300 * 300


def test_a_tile_of_k_that_is_left_out_is_missed() -> None:
    """64 of 2,048 products are missing, in rows so long that a tolerance based on the number of columns would pass
    them."""
    a, b = normal(4, 2048, dtype="bfloat16"), normal(2048, 4096, seed=2, dtype="bfloat16")
    assert FAMILY.judge(FAMILY.exact((a, b)).astype(a.dtype), (a, b)).ok
    assert not FAMILY.judge(FAMILY.exact((a[:, 64:], b[64:])).astype(a.dtype), (a, b)).ok


@pytest.mark.parametrize("name", ["wmma", "ldmatrix", "pipelined"])
@pytest.mark.parametrize("sign", ["both", "positive"])
def test_the_tolerance_is_as_wide_as_sums_that_are_cut_and_no_wider(
    device: cudakit.Device, name: str, sign: str
) -> None:
    """Tensor cores truncate partial sums: the error of a float32 result exceeds that of any rounded sum."""
    k = 2048
    a, b = normal(16, k), normal(k, 16, seed=2)
    if sign == "positive":
        a, b = np.abs(a), np.abs(b)
    result = ops.gemm(device.array(a), device.array(b), dtype="float32", variant=name).numpy()
    assert FAMILY.judge(result, (a, b), dtype="float32").ok
    without = FAMILY.exact((a[:, 8:], b[8:]), dtype="float32").astype(np.float32)
    assert not FAMILY.judge(without, (a, b), dtype="float32").ok


@pytest.mark.parametrize(("dtype", "shown"), [("float32", True), ("bfloat16", False)])
def test_tables_show_the_share_of_the_fp32_peak_of_fp32_alone(dtype: str, shown: bool) -> None:
    report = {"device": {"kind": "gpu"}, "ceilings": {"fp32_tflops": 60.0}}
    names = [column.heading for column in tables.columns_of(report, [{"ceiling": "cublas", "dtype": dtype}])]
    assert "TFLOP/s" in names
    assert ("of fp32 peak" in names) is shown
