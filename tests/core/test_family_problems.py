"""Problems drawn for users' families, and the results of fuzzing and benches on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudakit
from cudakit import Family, Launch, ceil_div
from cudakit.errors import Refused
from cudakit.family import CPP, Input
from cudakit.testing import Case, cases, cases_of, check_variant, contiguous, drawing, run_case
from cudakit.testing.declared import Between

SOURCE = r"""
#include <cuda_fp16.h>
#define I int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return
struct Line { float a; int b; };
__global__ void copied(const float* x, float* out, int n) { I; out[i] = x[i]; }
__global__ void forgets_the_last(const float* x, float* out, int n) { I; if (i + 1 < n) out[i] = x[i]; }
__global__ void through_float(const double* x, double* out, int n) { I; out[i] = (float)x[i]; }
__global__ void real_part(const float2* x, float2* out, int n) { I; out[i] = make_float2(x[i].x, 0); }
__global__ void counted(const unsigned char* x, unsigned* out, int n) { I; atomicAdd(&out[x[i]], 1u); }
__global__ void added(const float* x, float* out, int n) { I; atomicAdd(out, x[i]); }
__global__ void raised(float* x, int n) { I; x[i] += 1; }
__global__ void raised_twice(float* x, int n) { I; x[i] += 1; if (i == 40) x[i] += 1; }
__global__ void gathered(const float* table, const int* places, float* out, int n) { I; out[i] = table[places[i]]; }
__global__ void pairs(const float* x, float* low, int* whole, int n) { I; low[i] = x[i]; whole[i] = (int)x[i]; }
__global__ void wrong_pairs(const float* x, float* low, int* whole, int n) { I; low[i] = x[i]; whole[i] = (int)x[0]; }
__global__ void line(const float* x, float* out, int n, Line p) { I; out[i] = p.a * x[i] + p.b; }
__global__ void positive_line(const float* x, float* out, int n, Line p) { I; out[i] = fabsf(p.a) * x[i] + p.b; }
__global__ void scaled(const float* x, float* out, int n, float a, bool negative) {
    I; out[i] = negative ? -a * x[i] : a * x[i];
}
__global__ void never_negative(const float* x, float* out, int n, float a, bool negative) { I; out[i] = a * x[i]; }
struct Particle { float x, y; int id; };
__global__ void heights(const Particle* particles, float* out, int n) { I; out[i] = particles[i].y; }
__global__ void vectors(const float4* x, float4* out, int n) { int i = threadIdx.x; if (4 * i < n) out[i] = x[i]; }
template <class T> __global__ void twice(const T* x, T* out, int n) { I; out[i] = T(2.0f * float(x[i])); }
template <class T> __global__ void thrice_halves(const T* x, T* out, int n) {
    I; out[i] = T((sizeof(T) == 2 ? 3.0f : 2.0f) * float(x[i]));
}
__global__ void largest(const float* x, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float most = x[(size_t)row * cols];
    for (int col = 1; col < cols; ++col) most = fmaxf(most, x[(size_t)row * cols + col]);
    out[row] = most;
}
__global__ void row_sums(const float* x, float* out, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int col = 0; col < 4; ++col) sum += x[4 * row + col];
    out[row] = sum;
}
__global__ void turned(const float* x, float* out, int d, int h, int w) {
    int x_ = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
    if (x_ < w) out[((size_t)x_ * h + y) * d + z] = x[((size_t)z * h + y) * w + x_];
}
__global__ void walks(const float* x, float* out, int rows, int cols,
                      int x_rows, int x_cols, int out_rows, int out_cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) out[i / cols * out_rows + i % cols * out_cols] = x[i / cols * x_rows + i % cols * x_cols];
}
__global__ void product(const float* a, const float* b, float* c, int m, int k, int n) {
    int j = blockIdx.x * 16 + threadIdx.x, i = blockIdx.y * 16 + threadIdx.y;
    if (i >= m || j >= n) return;
    float sum = 0;
    for (int q = 0; q < k; ++q) sum += a[i * k + q] * b[q * n + j];
    c[i * n + j] = sum;
}
"""
LINE = np.dtype([("a", "f4"), ("b", "i4")])
POINT = np.array((2.0, 3), LINE)[()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("problems") / "kernels.cu"
    file.write_text(SOURCE)
    return str(file)


@pytest.fixture(scope="module")
def device() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as device:
        yield device


def usual(p: Any) -> Launch:
    return Launch(ceil_div(p.n, 128), 128)


def rows(p: Any) -> Launch:
    return Launch(ceil_div(p.rows, 128), 128)


def scaling(x: Any, *, a: float = 2.0, negative: bool = False) -> Any:
    return -a * x if negative else a * x


def made(source: str, entry: str, reference: Any, launch: Callable[..., Any] = usual, **fields: Any) -> Family[Any]:
    fields.setdefault("inputs", {"x": "float32[n]"})
    family: Family[Any] = Family("mine", reference=reference, **fields)
    family.variant(source, entry=entry)(launch)
    return family


def of_type(name: str) -> Callable[..., Launch]:
    return lambda p: Launch(ceil_div(p.n, 128), 128, entry=f"{name}<{CPP[p.x.dtype.name]}>")


Fields = tuple[str, Any, Callable[..., Any], dict[str, Any]]
HALVES: dict[str, Any] = {"inputs": None, "dtypes": ("float32", "float16")}
PAIRS: dict[str, Any] = {"outputs": {"low": "", "whole": ""}}
CORRECT: dict[str, Fields] = {
    "one axis": ("copied", lambda x: x, usual, {}),
    "in place": ("raised", lambda x: x + 1, usual, {"in_place": "x"}),
    "added whole numbers": (
        "counted", lambda x: np.bincount(x, minlength=256), usual, {"inputs": {"x": "uint8[n]"}, "initial": 0}
    ),
    "added floats": ("added", lambda x: x.sum(), usual, {"initial": 0}),
    "indices": (
        "gathered", lambda table, places: table[places], usual,
        {"inputs": {"table": "float32[16]", "places": Input("int32[n]", 0, 16)}},
    ),
    "several outputs": ("pairs", lambda x: (x, np.trunc(x).astype(np.int32)), usual, PAIRS),
    "options": ("scaled", scaling, usual, {}),
    "a struct": ("line", lambda x, *, p=POINT: p["a"] * x + p["b"], usual, {}),
    "dtypes": ("twice", lambda x: 2 * x, of_type("twice"), HALVES),
    "a maximum, which no row without elements has": (
        "largest", lambda x: x.max(axis=-1), rows, {"inputs": {"x": "float32[rows, cols]"}}
    ),
    "a fixed extent": ("row_sums", lambda x: x.sum(axis=-1), rows, {"inputs": {"x": "float32[rows, 4]"}}),
    "three axes": (
        "turned", lambda x: x.T, lambda p: Launch((ceil_div(p.w, 32), p.h, p.d), 32),
        {"inputs": {"x": "float32[d, h, w]"}},
    ),
    "strides": (
        "walks", lambda x: x,
        lambda p: Launch(
            ceil_div(p.rows * p.cols, 128), 128, (p.x, p.out, p.rows, p.cols, *p.x.strides, *p.out.strides)
        ),
        {"inputs": {"x": "float32[rows, cols]"}, "strided": True},
    ),
    "two arrays of other extents": (
        "product", lambda a, b: a @ b, lambda p: Launch((ceil_div(p.n, 16), ceil_div(p.m, 16)), (16, 16)),
        {"inputs": {"a": "float32[m, k]", "b": "float32[k, n]"}, "outputs": {"c": "float32[m, n]"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_kernel_passes(source: str, device: cudakit.Device, name: str) -> None:
    entry, reference, launch, fields = CORRECT[name]
    family = made(source, entry, reference, launch, **fields)
    coverage = check_variant(device, family, family.variants[0], cases(family, 300), examples=20)
    assert coverage.refused == 0
    report = cudakit.bench(family, device, dtypes=family.dtypes or None, shapes=[(5,) * len(family.shapes["sim"][0])])
    assert report.ok, [row.verdict.why for row in report.rows]


WRONG: dict[str, tuple[str, Fields]] = {
    "an element that is not written": (
        "still hold the poison", ("forgets_the_last", lambda x: x, usual, {})
    ),
    "float64 through float32": (
        "element", ("through_float", lambda x: x, usual, {"inputs": {"x": "float64[n]"}})
    ),
    "imaginary parts": (
        "element", ("real_part", lambda x: x, usual, {"inputs": {"x": "complex64[n]"}})
    ),
    "no initial value": (
        "declare initial=0", ("added", lambda x: x.sum(), lambda p: Launch(max(1, ceil_div(p.n, 128)), 128), {})
    ),
    "no blocks": (
        "the grid is 0 for mine of x uint8.0., .*: launch the blocks",
        ("counted", lambda x: np.bincount(x, minlength=256), usual, {"inputs": {"x": "uint8[n]"}}),
    ),
    "in place": ("element", ("raised_twice", lambda x: x + 1, usual, {"in_place": "x"})),
    "the second output": (
        "output whole: element", ("wrong_pairs", lambda x: (x, np.trunc(x).astype(np.int32)), usual, PAIRS)
    ),
    "an option": ("negative=True", ("never_negative", scaling, usual, {})),
    "a number of a struct": (
        r"-2\.0", ("positive_line", lambda x, *, p=POINT: p["a"] * x + p["b"], usual, {})
    ),
    "one dtype": (
        "x float16",
        ("thrice_halves", lambda x: 2 * x, of_type("thrice_halves"), HALVES),
    ),
    "a function that fails": (
        r"ZeroDivisionError: .*test_family_problems.py:\d+\)",
        ("copied", lambda x: x, lambda p: Launch(p.n // (p.n < 60), 128), {"outputs": {"out": "float32[n]"}}),
    ),
}  # fmt: skip


def test_vectors_are_tried_on_problems_that_they_take(source: str, device: cudakit.Device) -> None:
    """More than half of the problems of the kind "aligned" are supported, but few of all problems."""
    family: Family[Any] = Family("mine", reference=lambda x: x, inputs={"x": "float32[n]"})

    def vectors(p: Any) -> Launch | str:
        if p.n % 4 or min(p.x.alignment, p.out.alignment) < 16:
            return "it copies 16 bytes at a time"
        return Launch(1, 128)

    named = family.variant(source, problems="aligned")(vectors)
    coverage = check_variant(device, family, named, cases_of(family, named, 500), examples=20)
    assert coverage.refused
    with pytest.raises(AssertionError, match=r'problems were unsupported.*such as "aligned"'):
        check_variant(device, family, named, cases(family, 500), examples=20)
    with pytest.raises(ValueError, match="unknown kind of problems 'even'; known are aligned"):
        cases(family, 500, "even")


def test_structs_are_inputs_that_the_familys_own_function_makes(source: str, device: cudakit.Device) -> None:
    kind = np.dtype([("x", "f4"), ("y", "f4"), ("id", "i4")])

    def inputs(shape: Any, dtype: Any, rng: np.random.Generator) -> tuple[Any, ...]:
        made = np.zeros(shape, kind)
        made["y"] = rng.standard_normal(shape)
        return (made,)

    family = made(
        source, "heights", lambda particles: particles["y"], inputs=inputs, outputs={"out": "float32"}, shapes=(50,)
    )
    check_variant(device, family, family.variants[0], cases(family, 300), examples=20)
    assert cudakit.bench(family, device).ok


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(source: str, device: cudakit.Device, name: str) -> None:
    text, (entry, reference, launch, fields) = WRONG[name]
    family = made(source, entry, reference, launch, **fields)
    with pytest.raises(AssertionError, match=f"(?s)mine, seed.*{text}"):
        check_variant(device, family, family.variants[0], cases_of(family, family.variants[0], 300), examples=40)


def test_a_bench_says_that_a_kernel_adds_to_its_output(source: str, device: cudakit.Device) -> None:
    family = made(
        source, "counted", lambda x: np.bincount(x, minlength=256), inputs={"x": "uint8[n]"}, shapes=(100, 5000)
    )
    for row in cudakit.bench(family, device, once=True).rows:
        assert "correct, so this kernel adds to it: declare initial=0" in str(row.verdict.why)


def test_a_reference_that_fails_is_no_kernels_fault(source: str, device: cudakit.Device) -> None:
    """Not on problems without elements, which are not drawn then; on all others it is the error."""

    def reference(x: Any) -> Any:
        if x.shape[0] > 7:
            raise OSError("no table")
        return x * x.max()

    family = made(source, "copied", reference, outputs=None)
    with pytest.raises(Refused, match=r"family mine fails on float64\[\d+\]: OSError: no table \(.*py:\d+"):
        check_variant(device, family, family.variants[0], cases(family, 300))
    with pytest.raises(Refused, match="OSError: no table"):
        cudakit.bench(family, device)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_float_that_is_the_same_throughout_is_added_without_bias(data: st.DataObject) -> None:
    """Otherwise a correct sequential sum would have as large an error as a wrong one."""
    family: Family[Any] = Family("mine", reference=lambda x: x.sum(), inputs={"x": Input("float32[n]", 0, 1)})
    family.outputs_like = lambda *_, **__: (((), np.dtype(np.float32)),)  # type: ignore[method-assign]
    case = data.draw(cases(family, 4000))
    x = np.asarray(case.values(0), np.float32)
    if x.size:
        assert family.judge(np.cumsum(x, dtype=np.float32)[-1], (x,)).ok


def test_a_repeated_float_is_in_its_range_and_has_few_bits() -> None:
    for low, high in ((0, 1), (-1, 0), (-2.0, 3.0)):
        for seed in range(100):
            one = Between(seed, low, high, whole=False, same=True)((1,))[0]
            assert low <= one < high
            assert (8 * np.frexp(one)[0]).is_integer()


def test_problems_have_odd_extents_and_every_option(source: str) -> None:
    family = made(source, "scaled", scaling, modes={"": {}, "negative": {"negative": True}}, options={"a": (2.0, 3.0)})
    drawn = [one.case for one in itertools.islice(drawing.problems(cases(family, 1000), 0), 200)]
    assert {case.inputs[0].shape[0] % 32 for case in drawn} >= {0, 1, 31}
    assert {case.inputs[0].lead for case in drawn} == {0, 1, 4}
    pairs = {(case.options["a"], case.options["negative"]) for case in drawn}
    assert pairs == {(2.0, False), (2.0, True), (3.0, False), (3.0, True)}


def test_one_case_of_a_users_family(source: str, device: cudakit.Device) -> None:
    family = made(source, "copied", lambda x: x)
    place = contiguous((5,), 3)
    case = Case((place,), lambda shape: np.arange(5.0), place)
    assert run_case(device, family, family.variants[0], case).ok  # type: ignore[union-attr]
    assert run_case(device, family, None, case).ok  # type: ignore[union-attr]
