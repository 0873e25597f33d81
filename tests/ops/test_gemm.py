"""The float32 product: common mistakes, rejected inputs, and results that fuzzing does not reach."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from paths import ROOT, TESTS

import cudakit
from cudakit import nvtx, ops
from cudakit.commands import ladder
from cudakit.families import gemm_host, gemm_ladder
from cudakit.families.gemm import FAMILY
from cudakit.families.gemm_problem import problem
from cudakit.family import Launch, Variant
from cudakit.measure.bench import Bench
from cudakit.measure.peers import with_cublas
from cudakit.measure.peers.installed import peers_of
from cudakit.testing import Case, Layout, Unsupported, Values, contiguous, run_case

WRONG = TESTS / "wrong"
NAMES = [variant.name for variant in FAMILY]


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def case_of(m: int, n: int, k: int, **options: Any) -> Case:
    return Case((contiguous((m, k)), contiguous((k, n))), Values(1, 1.0), contiguous((m, n)), options)


def near(result: np.ndarray, expected: np.ndarray, k: int) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=4e-7 * max(k, 1))


# Common mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_product_that_is_not_square_is_right(device: cudakit.Device, name: str) -> None:
    """Square matrices hide a leading dimension taken from the wrong operand; with n = m = k, B @ A raises no error."""
    small = 5 if name == "gemv" else 20
    verdict = run_case(device, FAMILY, FAMILY[name], case_of(37, small, 30))
    assert not isinstance(verdict, Unsupported)
    assert verdict.ok, verdict.why


def test_leading_dimensions_of_a_square_product_are_not_its_size(device: cudakit.Device) -> None:
    """A kernel for contiguous square matrices uses n as every leading dimension."""
    square = Variant("square_only", lambda p: Launch(4, (16, 16)), str(WRONG / "square_only.cu"), entry="wrong")
    assert run_case(device, FAMILY, square, case_of(32, 32, 32)).ok
    gap = Case((Layout((32, 32), (40, 1)), contiguous((32, 32))), Values(1, 1.0), contiguous((32, 32)))
    if device.kind == "gpu":
        assert not run_case(device, FAMILY, square, gap).ok
    else:
        lost = cudakit.Device("sim", fresh=True)
        with pytest.raises(cudakit.DeviceFault, match=r"global load of 4 bytes at .* in a gap between elements"):
            run_case(lost, FAMILY, square, gap)
    assert run_case(device, FAMILY, FAMILY["naive"], gap).ok


@pytest.mark.parametrize("name", NAMES)
def test_beta_of_zero_does_not_read_c(device: cudakit.Device, name: str) -> None:
    """0 * NaN is NaN: if beta is 0, C must not be multiplied at all."""
    a, b = normal(9, 12), normal(12, 8, seed=2)
    out = device.full((9, 8), np.nan, dtype=np.float32)
    ops.gemm(device.array(a), device.array(b), out, beta=0.0, variant=name)
    near(out.numpy(), a @ b, 12)


@pytest.mark.parametrize("name", NAMES)
def test_beta_of_zero_does_not_read_uninitialised_memory(sim: cudakit.Device, name: str) -> None:
    a, b = sim.array(normal(9, 12)), sim.array(normal(12, 8))
    ops.gemm(a, b, sim.empty((9, 8), np.float32), variant=name).numpy()  # an uninitialised read would be reported


@pytest.mark.parametrize(("m", "n", "k"), [(4, 4, 4), (2, 5, 3)])
def test_b_first_is_another_product(sim: cudakit.Device, m: int, n: int, k: int) -> None:
    """Passing A before B to a column-major library computes B @ A; with square matrices no call fails."""
    a, b = normal(m, k), normal(k, n, seed=2)
    x, y = sim.array(a), sim.array(b)
    near(ops.gemm(x, y, variant="naive").numpy(), a @ b, k)
    out = sim.full((m, n), np.nan, dtype=np.float32)
    (peer,) = with_cublas.peers(FAMILY, {})
    peer.call(((x, y), out), sim.default_stream)()
    near(out.numpy(), a @ b, k)
    if m == n == k:
        assert not np.allclose(out.numpy(), b @ a)


# Patterns for names of strides and extents, and for types of 32 bits or fewer.
STRIDE, EXTENT = r"\w+_(?:row|col|batch|stride)", r"(?:rows|cols|batches|count|m|n|k)"
NARROW = r"(?:unsigned(?:\s+int)?|u?int(?:32(?:_t)?)?|short)"
IN_32_BITS = (
    re.compile(rf"[(,]\s*(?:const\s+)?{NARROW}(?:\s+const)?\s+{STRIDE}\s*(?=[,)])"),  # a stride as a parameter
    re.compile(rf"\b{NARROW}(?:\s+const)?\s+\w+\s*=[^;{{]*\*\s*{STRIDE}\b"),  # a product with a stride in a variable
    re.compile(rf"(?:static_cast<{NARROW}>|\({NARROW}\))\s*\([^;]*\b{STRIDE}\b"),  # a cast product
    # extents in kernels only: device functions use the same names for extents of a tile
    re.compile(rf"__global__[^{{;]*[(,]\s*(?:const\s+)?{NARROW}(?:\s+const)?\s+{EXTENT}\s*(?=[,)])"),
)


def in_32_bits(source: str) -> list[str]:
    """Return the places in a kernel that keep a stride, an extent of the problem or an offset in 32 bits."""
    code = re.sub(r"//[^\n]*", "", source)
    return [" ".join(match[0].split()) for pattern in IN_32_BITS for match in pattern.finditer(code)]


@pytest.mark.parametrize("name", NAMES)
def test_no_index_is_32_bits_where_it_can_pass_them(name: str) -> None:
    file = ROOT / "kernels" / FAMILY[name].source
    source = file.read_text(encoding="utf-8")
    headers = [file.parent / header for header in re.findall(r'#include "([^"]+)"', source)]
    for text in (source, *(header.read_text(encoding="utf-8") for header in headers)):
        assert not in_32_bits(text)
    assert re.search(r"__global__[^{]*\bint64 a_row\b[^{]*\bint64 m\b[^{]*\{", source) or "a_row" not in source


@pytest.mark.parametrize(
    "wrong",
    [
        "__global__ void f(const float* a, int a_row)",
        "__global__ void f(const float* a, const int m, int64 n)",
        "__global__ void f(const float* a,\n    int b_batch, int64 n)",
        "__global__ void f(int64 m, unsigned n)",
        "__global__ void f(int64 m, unsigned int k, float alpha)",
        "__global__ void f(int64 m, uint32 d_col)",
        "__global__ void f(int64 m, int32_t n)",
        "__global__ void f(int64 m, int const rows)",
        "const int offset = row * a_row + i;",
        "uint32 at = tile.batch * a_batch;",
        "x += static_cast<int>(row * a_row);",
        "x += (int)(row * a_row);",
    ],
)
def test_an_index_in_32_bits_is_seen(wrong: str) -> None:
    assert in_32_bits(wrong)
    assert not in_32_bits(re.sub(r"\bu?int(?:32(?:_t)?)?\b|\bunsigned(?: int)?\b", "int64", wrong))


def test_rows_past_31_bits(roomy: cudakit.Device) -> None:
    """row * stride of the third row is 2^31; in 32 bits it would address another row or another array."""
    needed = 2 * 3 * 2**30 * 4
    if roomy.memory_info()[0] < needed + 2**30:
        pytest.skip(f"{needed >> 30} GiB of device memory are needed")
    a, b = normal(3, 16), normal(16, 8, seed=2)
    far_a, far_d = (roomy.empty((3, 2**30), np.float32)[:, :columns] for columns in (16, 8))
    far_a.copy_from(roomy.array(a))
    for variant in FAMILY:
        far_d.fill(np.nan)
        ops.gemm(far_a, roomy.array(b), far_d, variant=variant.name)
        near(far_d.numpy(), a @ b, 16)


def test_64_by_64_threads_cannot_be_launched(device: cudakit.Device) -> None:
    """One thread per output allows tiles of at most 32 x 32: the launch check rejects larger blocks before the driver
    does."""
    entry = "tiled<64>"
    kernel = device.compile("gemm/03_tiled.cu", names=(entry,))[entry]
    a = device.array(normal(64, 64))
    args = (a, a, a, a, *(64, 1, 0) * 4, 64, 64, 64, 1, 1.0, 0.0)
    with pytest.raises(cudakit.LaunchError, match=r"4,?096 threads.*1,?024"):
        kernel.launch(device.default_stream, grid=1, block=(64, 64), args=args)


def test_a_sum_from_left_to_right_is_within_its_bound_at_the_greatest_depth_that_is_tried() -> None:
    """Each small number is half a rounding step of the sum so far, so adding in order loses all of them."""
    k = gemm_host.IN_ORDER_TERMS
    a, b = np.full((1, k), 2.0**-25, np.float32), np.ones((k, 1), np.float32)
    a[0, 0] = 1
    exact = a.astype(np.float64) @ b
    assert np.add.accumulate(a[0], dtype=np.float32)[-1] == 1
    assert np.abs(1 - exact) <= FAMILY.allowed(exact, (a, b))


# Edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_no_columns_of_a_give_beta_times_c(device: cudakit.Device, name: str, beta: float) -> None:
    c = normal(7, 6)
    out = device.array(c)
    ops.gemm(device.empty((7, 0), np.float32), device.empty((0, 6), np.float32), out, beta=beta, variant=name)
    np.testing.assert_array_equal(out.numpy(), beta * c)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 0), (0, 40, 5000)])
def test_an_empty_product_launches_nothing(sim: cudakit.Device, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    with sim.counters() as counters:
        out = ops.gemm(sim.empty((m, k), np.float32), sim.empty((k, n), np.float32))
        sim.synchronize()
    assert out.shape == (m, n)
    assert not counters


@pytest.mark.parametrize("name", NAMES)
def test_in_place_over_c_and_transposed(device: cudakit.Device, name: str) -> None:
    a, b, c = normal(12, 24), normal(8, 12, seed=2), normal(24, 8, seed=3)
    out = device.array(c)
    ops.gemm(device.array(a).T, device.array(b).T, out, alpha=-0.5, beta=0.25, variant=name)
    near(out.numpy(), -0.5 * (a.T @ b.T) + 0.25 * c, 12)


def test_batches_and_an_operand_for_all_of_them(device: cudakit.Device) -> None:
    a, b = normal(3, 10, 6), normal(6, 4, seed=2)
    inputs, out = [device.array(a), device.array(b)], device.empty((3, 10, 4), np.float32)
    for variant in FAMILY:
        if variant.refusal(problem(inputs, out), device.arch) is None:
            near(ops.gemm(*inputs, out, variant=variant.name).numpy(), a @ b, 6)


@pytest.mark.parametrize("name", ["naive", "gemv"])
def test_more_batches_than_a_grid_has_layers(device: cudakit.Device, name: str) -> None:
    """The z extent of a grid is at most 65,535 blocks."""
    a, b = normal(65_537, 1, 2), normal(65_537, 2, 1, seed=2)
    near(ops.gemm(device.array(a), device.array(b), variant=name).numpy(), a @ b, 2)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((3, 4), (5, 6), "A's columns, 4, are not B's rows, 5"),
        ((4,), (4, 5), "needs 2-D arrays"),
        ((2, 3, 4), (3, 4, 5), "A has 2 batches and B has 3"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(sim: cudakit.Device, a: Any, b: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ops.gemm(sim.zeros(a, np.float32), sim.zeros(b, np.float32))


def test_outputs_that_race_are_refused(sim: cudakit.Device) -> None:
    a, b = sim.zeros((4, 4), np.float32), sim.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="overlaps A"):
        ops.gemm(a, b, a)
    big = sim.zeros((8, 4), np.float32)
    with pytest.raises(ValueError, match="overlap without being the same"):
        ops.gemm(a, b, big[1:5], c=big[0:4], beta=1.0)
    ops.gemm(a, b, big[1:5], c=big[0:4], beta=0.0)  # C is not read
    with pytest.raises(ValueError, match="there is nothing to add"):
        ops.gemm(a, b, beta=1.0)


def test_gemv_refuses_a_product_of_many_rows_and_columns(sim: cudakit.Device) -> None:
    with pytest.raises(cudakit.UnsupportedVariant, match="at most 8 rows or columns"):
        ops.gemm(sim.zeros((9, 4), np.float32), sim.zeros((4, 9), np.float32), variant="gemv")


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("turned", [False, True])
def test_gemv_takes_few_rows_as_few_columns(device: cudakit.Device, n: int, turned: bool) -> None:
    """As a product with a matrix of few columns or of few rows; contiguous along k or along the rows."""
    tall, few = normal(70, 36), normal(36, n, seed=2)
    for a in (device.array(tall), device.array(np.ascontiguousarray(tall.T)).T):
        b = device.array(few)
        inputs = (b.T, a.T) if turned else (a, b)
        expected = few.T @ tall.T if turned else tall @ few
        near(ops.gemm(*inputs, variant="gemv").numpy(), expected, 36)


def test_auto_takes_operands_without_neighbours(device: cudakit.Device) -> None:
    a, b = normal(20, 40), normal(40, 60, seed=2)
    result = ops.gemm(device.array(a)[:, ::2], device.array(b)[::2, ::2])
    near(result.numpy(), a[:, ::2] @ b[::2, ::2], 20)


# The ladder -----------------------------------------------------------------------------------------------------------


def test_each_rung_does_away_with_what_the_one_before_names(sim: cudakit.Device) -> None:
    a, b = sim.array(normal(128, 64)), sim.array(normal(64, 128))
    out = sim.zeros((128, 128), np.float32)
    counted = {}
    for variant in gemm_ladder.LADDER:
        with sim.counters() as counters:
            ops.gemm(a, b, out, variant=variant.name)
            sim.synchronize()
        (counted[variant.name],) = counters.values()
    of = {name: counters.as_dict() for name, counters in counted.items()}
    assert of["naive_uncoalesced"]["sectors_per_request"] > 4 * of["naive"]["sectors_per_request"]
    moved = [of[name]["global_sector_bytes"] for name in ("naive_uncoalesced", "naive", "tiled16", "tiled32")]
    assert moved == sorted(moved, reverse=True)
    assert moved[2] == 2 * 128 * 128 * 64 * 4 // 16 + 128 * 128 * 4  # each float of A and B is loaded for 16 uses
    assert of["register_1d"]["instructions"] < of["tiled32"]["instructions"]
    assert of["register_2d"]["instructions"] < of["register_1d"]["instructions"]
    assert of["vec4"]["global_load_requests"] == of["register_2d"]["global_load_requests"] / 4
    assert min(of[name]["bank_conflicts"] for name in ("register_2d", "vec4")) > of["warp_tile"]["bank_conflicts"] == 0


# Tolerance ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 500), (3, 2, 33), (500, 1, 64), (2, 70, 40)])
def test_every_sum_may_be_wrong_by_what_is_usual(m: int, n: int, k: int) -> None:
    """One order of adding can be exact by luck, so the tolerance is above 0 for every element."""
    a, b = normal(m, k), normal(k, n, seed=2)
    allowed = FAMILY.allowed(FAMILY.exact((a, b)), (a, b))
    size = np.sqrt(np.square(a) @ np.square(b))
    assert (allowed > 1e-8 * size).all()
    assert (allowed < 1e-6 * k**0.5 * size).all()


# cuBLAS ---------------------------------------------------------------------------------------------------------------


def test_cublas_is_rung_0_and_says_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (peer,) = peers_of(FAMILY, 0, {})
    assert (peer.name, peer.rung) == ("cublas", 0) == (FAMILY.ceiling, 0)
    assert "cudakit[libs]" in (peer.refusal((4, 4, 4), "float32") or "")
    assert peers_of(ops.families()["softmax"], 0, {}) == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(33, 20, 50), (3, 33, 20, 50)])
def test_cublas_multiplies_a_by_b(gpu: cudakit.Device, dtype: Any, shape: tuple[int, ...]) -> None:
    pytest.importorskip("nvmath")
    *batch, m, n, k = shape
    a, b = normal(*batch, m, k).astype(dtype), normal(*batch, k, n, seed=2).astype(dtype)
    for transposed in (False, True):
        left = gpu.array(np.ascontiguousarray(np.swapaxes(a, -1, -2))) if transposed else gpu.array(a)
        left = left.transpose(*range(len(batch)), len(batch) + 1, len(batch)) if transposed else left
        inputs, out = [left, gpu.array(b)], gpu.empty((*batch, m, n), dtype)
        gpu.synchronize()  # the launch below uses another stream
        peer = with_cublas.CublasPeer({})
        with gpu.stream() as stream, peer.on(stream):
            (launch,) = peer.bind([(inputs, out)], stream, lambda launches: 0.0)
            launch()
            stream.synchronize()
        expected = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=2e-5 if dtype == np.float32 else 2e-2)


# The example ----------------------------------------------------------------------------------------------------------


def test_once_launches_each_rung_and_shape_once() -> None:
    """A full profile launches each variant of the ladder once."""
    command = [
        sys.executable,
        str(ROOT / "examples" / "gemm.py"),
        "--device",
        "sim",
        "--once",
        "--json",
        "-",
        "--quiet",
    ]
    done = subprocess.run([*command, "--shapes", "40,33x8x20"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["variant"] for row in rows] == NAMES * 2
    for row in rows:
        if row["ok"] is not None and row["rung"] <= len(gemm_ladder.LADDER):
            assert row["counters"]["launches"] == 1


def test_a_profile_launches_nothing_but_the_rungs(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, ranges = [], []
    launch = cudakit.Kernel.launch

    def watched(kernel: Any, *arguments: Any, **named: Any) -> Any:
        launched.append((ranges[-1], kernel.name.partition("<")[0]))
        return launch(kernel, *arguments, **named)

    def noted(name: str) -> Any:
        if name.startswith("gemm."):  # without the nested ranges of loading and launching
            ranges.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(cudakit.Kernel, "launch", watched)
    monkeypatch.setattr(nvtx, "range", noted)
    monkeypatch.setattr(cudakit.Kernel, "prepare", lambda *_, **__: pytest.fail("nothing is timed"))
    Bench(sim, once=True).run(FAMILY, [(40,)])
    rungs = [f"gemm.{name}" for name in NAMES if name != "gemv"]
    assert [rung for rung, _ in itertools.groupby(launched, lambda pair: pair[0])] == rungs
    once = {f"gemm.{variant.name}" for variant in gemm_ladder.LADDER}
    assert sum(rung in once for rung, _ in launched) == len(once)


def test_a_profile_takes_fewer_shapes() -> None:
    """Profiles leave out 8192: about 40 passes over a product that takes a second would be too slow."""
    asked = argparse.Namespace(shapes=None, sweep=False)
    assert ladder._shapes(FAMILY, "gpu", asked, True) == ((1024,), (2048,))
    assert (8192,) in ladder._shapes(FAMILY, "gpu", asked, False)


def test_a_profile_of_the_example_sees_ranges() -> None:
    """ncu records NVTX only with `--nvtx`; the file sets it for each ncu started in the repository's root."""
    lines = (ROOT / "config.ncu-cfg").read_text().splitlines()
    options = [line for line in lines if line and not line.startswith("#")]
    assert options == ["[Launch-and-attach]", "--nvtx"]


def test_the_problem_says_what_it_is(sim: cudakit.Device) -> None:
    found = problem((sim.zeros((2, 3), np.float32), sim.zeros((3, 4), np.float32)), sim.zeros((2, 4), np.float32))
    assert (found.m, found.n, found.k, found.batch) == (2, 4, 3, 1)
    assert "2x4x3 float32 product" in str(found)


def test_a_zero_factor_keeps_its_sign(device: cudakit.Device) -> None:
    """0.0 equals -0.0, but data kept for one problem must not determine the sign of the next result."""
    a, b = device.array(np.ones((33, 35), np.float32)), device.array(np.ones((35, 37), np.float32))
    for alpha in (0.0, -0.0, 0.0):
        result = ops.gemm(a, b, alpha=alpha, variant="packed").numpy()
        assert (result == 0).all()
        assert (np.signbit(result) == np.signbit(alpha)).all()
