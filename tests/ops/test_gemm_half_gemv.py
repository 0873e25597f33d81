"""16-bit products with few columns or rows: any layout of the operands, non-finite numbers at the ends of unaligned
lines, a matrix that is read once, and long sums that the whole device shares."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit.families import gemm_half
from cudakit.families.gemm_half import DTYPES, problem
from cudakit.families.gemm_half_gemv import best_gemv, gemv, gemv_cluster, prefers_gemv
from cudakit.family import Variant, apply
from cudakit.memory import array as memory
from cudakit.testing import Case, Layout, Unsupported, Values, check_variant, contiguous, run_case
from cudakit.testing.gemm_half import gemm_half_cases

VARIANTS = (gemv, gemv_cluster)
FAMILY = replace(gemm_half.FAMILY, variants=VARIANTS)
SMS = 132  # of the simulated H200 and of a GPU H200

variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)


def supported(device: cudakit.Device, variant: Variant[Any]) -> None:
    reason = variant.arch_refusal(device.arch)
    if reason:
        pytest.skip(reason)


def expect(device: cudakit.Device, variant: Variant[Any], case: Case) -> None:
    supported(device, variant)
    verdict = run_case(device, FAMILY, variant, case)
    assert not isinstance(verdict, Unsupported), verdict
    assert verdict.ok, verdict.why


def case_of(m: int, n: int, k: int, kind: str = "bfloat16", *more: Layout, **options: Any) -> Case:
    layouts = (contiguous((m, k), 0, kind), contiguous((k, n), 0, kind), *more)
    return Case(layouts, Values(1, 1.0), contiguous((m, n), 0, options.get("dtype", kind)), options)


def turned(rows: int, cols: int, gap: int = 0, lead: int = 0, dtype: str = "bfloat16") -> Layout:
    """A matrix with contiguous columns."""
    return Layout((rows, cols), (1, rows + gap), lead, dtype)


def plain(rows: int, cols: int, gap: int = 0, lead: int = 0, dtype: str = "bfloat16") -> Layout:
    """A matrix with contiguous rows."""
    return Layout((rows, cols), (cols + gap, 1), lead, dtype)


# Any problem ----------------------------------------------------------------------------------------------------------


@variants
def test_any_skinny_product_is_right(device: cudakit.Device, variant: Variant[Any]) -> None:
    """All layouts, epilogues and dtypes that the family draws."""
    supported(device, variant)
    check_variant(device, FAMILY, variant, gemm_half_cases(kind="skinny"))


@variants
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", range(1, 9))
def test_each_number_of_columns_or_rows(device: cudakit.Device, variant: Variant[Any], few: int, dtype: str) -> None:
    expect(device, variant, case_of(88, few, 264, dtype))
    expect(device, variant, case_of(few, 88, 264, dtype))


@pytest.mark.parametrize("small", [1, 3, 8])
@pytest.mark.parametrize("matrix", [plain, turned])
@pytest.mark.parametrize("columns", [plain, turned])
@pytest.mark.parametrize(("gap", "lead"), [(0, 0), (8, 8), (1, 0), (0, 1), (3, 5), (4, 0), (2, 8)])
@pytest.mark.parametrize("k", [7, 200, pytest.param(333, marks=pytest.mark.long)])
def test_layouts_and_alignments(
    device: cudakit.Device, matrix: Any, columns: Any, small: int, gap: int, lead: int, k: int
) -> None:
    """Both layouts of the matrix: aligned, with an odd pitch, and with a first element off a 16-byte boundary."""
    lines = 80
    operands = (matrix(lines, k, gap, lead), columns(k, small, gap, lead))
    expect(device, gemv, Case(operands, Values(2, 1.0), plain(lines, small, gap, lead)))


@pytest.mark.parametrize("strides", [(2, 160), (600, 2), (-600, -1), (-1, -80), (0, 1), (1, 0), (600, 0)])
def test_strides_of_other_arrays(device: cudakit.Device, strides: tuple[int, int]) -> None:
    operands = (Layout((80, 300), strides, 3, "float16"), plain(300, 2, dtype="float16"))
    expect(device, gemv, Case(operands, Values(3, 1.0), turned(80, 2, dtype="float16")))


@variants
def test_batches_with_one_matrix_for_all(device: cudakit.Device, variant: Variant[Any]) -> None:
    operands = (contiguous((5, 3, 130), 0, "float16"), contiguous((130, 72), 0, "float16"))
    expect(device, variant, Case(operands, Values(4, 1.0), contiguous((5, 3, 72), 0, "float16")))


# Numbers --------------------------------------------------------------------------------------------------------------


def product(device: cudakit.Device, a: np.ndarray, b: np.ndarray, variant: Variant[Any] = gemv, **options: Any) -> Any:
    return apply(FAMILY, (device.array(a), device.array(b)), None, variant.name, None, options).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_fp32(device: cudakit.Device, dtype: str) -> None:
    """A sum 1 + 1 + ... stops at 2,048 in half precision, and at 256 in bfloat16."""
    ones = np.ones((40, 4608)).astype(memory.as_dtype(dtype))
    assert (product(device, ones, ones.T[:, :1]).astype(np.float32) == 4608).all()
    assert (product(device, ones[:1], ones.T).astype(np.float32) == 4608).all()


@pytest.mark.parametrize("start", range(8))
def test_an_infinity_anywhere_in_a_column_is_no_nan(device: cudakit.Device, start: int) -> None:
    """An element that is loaded, but is not part of the line, must not become 0 * infinity."""
    k = 45
    for at, length in itertools.product((0, 1, 7, 8, 36, 44), (k, 8, 9)):
        line = np.ones((3, 64), np.float16)[:, start : start + length]
        column = np.ones((length, 1), np.float16)
        column[at % length] = np.inf
        array = device.array(np.ones((3, 64), np.float16))[:, start : start + length]
        result = apply(FAMILY, (array, device.array(column)), None, "gemv", None, {}).numpy()
        np.testing.assert_array_equal(result, line @ column)


@variants
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_no_k_is_beta_times_c(device: cudakit.Device, variant: Variant[Any], beta: float) -> None:
    expect(device, variant, case_of(24, 3, 0, "float16", plain(24, 3, dtype="float16"), beta=beta))


@variants
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 9000), (3, 0, 9000), (0, 0, 0)])
def test_an_empty_output(device: cudakit.Device, variant: Variant[Any], m: int, n: int, k: int) -> None:
    supported(device, variant)
    assert product(device, np.zeros((m, k), np.float16), np.zeros((k, n), np.float16), variant).shape == (m, n)


@variants
@pytest.mark.parametrize(("m", "n", "k"), [(48, 3, 130), (2, 48, 130), (2, 16, 17000), (16, 2, 17000)])
def test_a_fused_epilogue(device: cudakit.Device, variant: Variant[Any], m: int, n: int, k: int) -> None:
    """Also if several blocks share k: only the sum of all k is activated."""
    more = (plain(1, n), plain(m, n, 3))
    options = {"added": "bias residual", "activation": "gelu", "scale": 0.5, "alpha": 0.25}
    expect(device, variant, case_of(m, n, k, "bfloat16", *more, **options))


# Long sums ------------------------------------------------------------------------------------------------------------


LONG = [(1, 24, 17001), (24, 1, 17001), (8, 8, 17000), (5, 8, 33000)]


@variants
@pytest.mark.parametrize(("m", "n", "k"), LONG)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_blocks_that_share_k(device: cudakit.Device, variant: Variant[Any], m: int, n: int, k: int, dtype: Any) -> None:
    expect(device, variant, case_of(m, n, k, "float16", **({"dtype": dtype} if dtype else {})))


@variants
def test_results_are_the_same_bits_on_every_run(device: cudakit.Device, variant: Variant[Any]) -> None:
    supported(device, variant)
    rng = np.random.default_rng(5)
    for m, n, k in LONG[:3]:
        a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
        first, *others = (product(device, a, b, variant, dtype="float32") for _ in range(3))
        for other in others:
            np.testing.assert_array_equal(first, other)


def problem_of(device: cudakit.Device, m: int, n: int, k: int, *, along_k: bool = False) -> Any:
    """The problem of A row-major and B row-major or, with `along_k`, column-major."""
    a = device.empty((m, k), np.float16)
    b = device.empty((n, k), np.float16).T if along_k else device.empty((k, n), np.float16)
    return problem((a, b), device.empty((m, n), np.float16))


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 8192, 8192), (1, 4096, 4096), (4, 5000, 8192), (1, 64, 1_000_000), (8, 8, 65536)]
)
def test_large_products_fill_the_device(sim: cudakit.Device, m: int, n: int, k: int, along_k: bool) -> None:
    """Enough blocks for nearly all multiprocessors, and more than one launch only if there are few lines."""
    first, *others = gemv.launches(problem_of(sim, m, n, k, along_k=along_k))
    assert np.prod(first.grid) >= 0.9 * SMS
    assert bool(others) == (max(m, n) < 1000)


def test_clusters_are_chosen_if_eight_blocks_are_enough(sim: cudakit.Device) -> None:
    few, fewest, many = (problem_of(sim, 1, n, 65536) for n in (512, 64, 8192))
    assert best_gemv(few, "sm_90") == "gemv_cluster"
    assert best_gemv(few, "sm_80") == "gemv"
    assert best_gemv(fewest, "sm_90") == best_gemv(many, "sm_90") == "gemv"
    (launch,) = gemv_cluster.launches(few)
    assert launch.cluster == (1, launch.grid[1])


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("small", [1, 4, 8])
def test_the_matrix_is_read_once(sim: cudakit.Device, along_k: bool, small: int) -> None:
    lines, k = 512, 1024
    a = sim.zeros((small, k), np.float16)
    b = sim.zeros((lines, k), np.float16).T if along_k else sim.zeros((k, lines), np.float16)
    with sim.counters() as counters:
        apply(FAMILY, (a, b), None, "gemv", None, {})
        sim.synchronize()
    (counted,) = counters.values()
    blocks = counted.as_dict()["blocks"]
    assert counted.global_load_sectors * 32 <= 2 * (lines * k + blocks * small * k) + 2048


@pytest.mark.parametrize("small", [1, 2, 4, 8])
def test_shared_memory_has_no_bank_conflicts(sim: cudakit.Device, small: int) -> None:
    a, b = sim.zeros((small, 1024), np.float16), sim.zeros((1024, 512), np.float16)
    for matrix in (b, sim.zeros((512, 1024), np.float16).T):
        with sim.counters() as counters:
            apply(FAMILY, (a, matrix), None, "gemv", None, {})
            sim.synchronize()
        (counted,) = (each.as_dict() for each in counters.values())
        assert counted["shared_load_wavefronts"] <= 1.1 * counted["shared_load_ideal_wavefronts"]


# Choice ---------------------------------------------------------------------------------------------------------------


def test_more_columns_and_rows_are_refused(sim: cudakit.Device) -> None:
    with pytest.raises(cudakit.UnsupportedVariant, match="at most 8 rows or columns of output supported, got 9 and 10"):
        gemv.launches(problem_of(sim, 9, 10, 16))


def test_products_that_prefer_it(sim: cudakit.Device) -> None:
    """One row or column; up to eight if tensor cores would need an aligned copy of the matrix."""
    assert prefers_gemv(problem_of(sim, 1, 4096, 4096))
    assert prefers_gemv(problem_of(sim, 4096, 2, 4096))
    assert not prefers_gemv(problem_of(sim, 8, 4096, 4096))
    assert prefers_gemv(problem_of(sim, 8, 4095, 4096))
    assert not prefers_gemv(problem_of(sim, 9, 4095, 4096))
