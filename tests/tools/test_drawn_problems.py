"""The problems drawn for a declared family find kernels that are wrong in rare cases, without false positives."""

from __future__ import annotations

import numpy as np
import pytest

from cudakit.device import Device
from cudakit.errors import Refused
from cudakit.family import Family, Input, Launch, ceil_div
from cudakit.testing import drawing
from cudakit.testing.coverage import Coverage
from cudakit.testing.search import Workbench, Wrong, search
from cudakit.testing.strategies import cases, cases_of

KERNELS = """
__global__ void row_of_one_block(const float* x, float* out, int rows, int cols) {
    const int r = blockIdx.x;
    for (int c = threadIdx.x; c < cols && c < 1024; c += 32) out[r * cols + c] = x[r * cols + c];
}
__global__ void rows_of_one_block(const float* x, float* out, int rows, int cols) {
    const int r = blockIdx.x;
    for (int c = threadIdx.x; c < cols && r < 1024; c += 32) out[r * cols + c] = x[r * cols + c];
}
__global__ void one_tile(const float* x, float* out, int rows, int cols) {
    const int r = blockIdx.x;
    const bool second = r >= 32 && cols > 32;
    for (int c = threadIdx.x; c < cols; c += 32) out[r * cols + c] = second ? 0.0f : x[r * cols + c];
}
__global__ void last_maximum(const float* x, int* out, int rows, int cols) {
    int best = 0;
    for (int c = 1; c < cols; ++c) if (x[blockIdx.x * cols + c] >= x[blockIdx.x * cols + best]) best = c;
    out[blockIdx.x] = best;
}
__global__ void sixteen_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = blockIdx.x < 16 ? x[i] : 0.0f;
}
__global__ void through_float(const int* x, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (int)((float)x[i] + 1.0f);
}
__global__ void through_int(const long long* x, long long* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (int)x[i];
}
__global__ void sum_of_squares(const int* x, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out, x[i] * x[i]);
}
__global__ void product(const int* start, const int* column, const float* value, const float* x, float* out, int rows) {
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0;
    for (int i = start[r]; i < start[r + 1]; ++i) sum += value[i] * x[column[i]];
    out[r] = sum;
}
"""


def plain(p):
    return Launch(ceil_div(p.n, 128), 128)


def by_row(p):
    return Launch(p.rows, 32)


def first_maximum(x):
    return x.argmax(axis=1) if x.shape[1] else np.zeros(len(x), np.int64)


MATRIX, SHAPES = {"x": "float32[rows, cols]"}, ((40, 40),)
COPY = Family("copy", reference=lambda x: x, inputs=MATRIX, shapes=SHAPES)
VECTOR = Family("vector", reference=lambda x: x, inputs={"x": "float32[n]"}, shapes=((64,),))
ARGMAX = Family("argmax", reference=first_maximum, inputs=MATRIX, shapes=SHAPES)
ONE_MORE = Family("one_more", reference=lambda x: x + 1, inputs={"x": "int32[n]"}, shapes=((64,),))
LONG = Family("long", reference=lambda x: x, inputs={"x": "int64[n]"}, shapes=((64,),))
SQUARES = Family("squares", reference=lambda x: (x * x).sum(), inputs={"x": "int32[n]"}, initial=0, shapes=((64,),))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("drawn") / "drawn.cu"
    path.write_text(KERNELS)
    return str(path)


def verdict(family, source, kernel, launch):
    """Run the search of kernel_test with its usual number of examples. Return the error of the failure it finds, or
    None."""
    variant = family.variant(source, entry=kernel, name=kernel)(launch)
    coverage = Coverage()
    with Workbench(Device("sim", fresh=True)) as bench:
        try:
            search(bench, family, variant, cases_of(family, variant, 4000), coverage, examples=20, seed=0)
        except Wrong as wrong:
            return wrong
    assert coverage.shortfall() is None
    return None


@pytest.mark.parametrize(
    ("family", "kernel", "launch"),
    [
        (COPY, "row_of_one_block", by_row),
        (COPY, "rows_of_one_block", by_row),
        (COPY, "one_tile", by_row),
        (ARGMAX, "last_maximum", by_row),
        (VECTOR, "sixteen_blocks", plain),
        (ONE_MORE, "through_float", plain),
        (LONG, "through_int", plain),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_that_is_wrong_on_few_problems_is_found(source, family, kernel, launch):
    wrong = verdict(family, source, kernel, launch)
    assert wrong is not None
    assert wrong.verdict is not None, wrong


def test_whole_numbers_that_wrap_around_are_right(source):
    assert verdict(SQUARES, source, "sum_of_squares", plain) is None


def test_the_smallest_problem_is_small_whichever_kind_found_it(source):
    wrong = verdict(Family("copy", lambda x: x, inputs=MATRIX, shapes=SHAPES), source, "one_tile", by_row)
    assert wrong.case.inputs[0].shape == (33, 33)


def test_indices_are_below_the_extent_that_bounds_them():
    inputs = {"table": "float32[n, cols]", "index": Input("int32[m]", low=0, high="n")}
    outputs = {"out": "float32[m, cols]"}
    family = Family("gather", reference=lambda table, index: table[index], inputs=inputs, outputs=outputs)
    drawn = [one.case for one, _ in zip(drawing.problems(cases(family, 200), 0), range(100), strict=False)]
    seen = [(case.inputs[0].shape[0], case.values(1)) for case in drawn]
    assert all(n > 0 and (index < n).all() and (index >= 0).all() for n, index in seen)
    assert any((index == n - 1).any() for n, index in seen if n > 1)
    assert set(family.inputs_for((3, 2, 50), None, np.random.default_rng(0))[1]) == {0, 1, 2}
    assert family.inputs_for((0, 2, 0), None, np.random.default_rng(0))[1].shape == (0,)
    with pytest.raises(ValueError, match="no values between low=0"):
        family.inputs_for((0, 2, 5), None, np.random.default_rng(0))


def test_values_are_below_the_option_that_bounds_them():
    def counts(x, *, bins=4):
        return np.bincount(x, minlength=bins)

    inputs = {"x": Input("int32[n]", low=0, high="bins")}
    family = Family("counts", reference=counts, inputs=inputs, options={"bins": (4, 2)}, initial=0)
    for options, values in (({}, {0, 1, 2, 3}), ({"bins": 2}, {0, 1})):
        assert set(family.inputs_for((200,), None, np.random.default_rng(0), **options)[0]) == values
    with pytest.raises(ValueError, match=r"high='bin' of input x is neither an extent nor an option; .* mean 'bins'"):
        Family("counts", reference=counts, inputs={"x": Input("int32[n]", low=0, high="bin")})


def sparse(shape, dtype, rng, **options):
    rows, cols = shape
    counts = rng.integers(0, min(cols, 9) + 1, rows)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    column = rng.integers(0, max(cols, 1), start[-1]).astype(np.int32)
    value, x = (rng.standard_normal(n).astype(np.float32) for n in (start[-1], cols))
    return start, column, value, x


def rows_of(start, *others, **options):
    return (start.shape[0] - 1,), np.dtype(np.float32)


def multiplied(start, column, value, x, *, alpha=1.0):
    row = np.repeat(np.arange(len(start) - 1), np.diff(start))
    return alpha * np.bincount(row, weights=value * x[column], minlength=len(start) - 1)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_a_function_makes_inputs_of_shapes_of_their_own(source, alpha):
    def launch(p):
        rows = p.out.shape[0]
        return Launch(ceil_div(rows, 64), 64, args=(p.start, p.column, p.value, p.x, p.out, rows))

    options, shapes = {"alpha": (alpha, alpha)}, ((30, 20),)
    family = Family("sparse", multiplied, inputs=sparse, outputs=rows_of, options=options, shapes=shapes)
    assert (verdict(family, source, "product", launch) is None) == (alpha == 1.0)


def test_a_function_of_inputs_that_fails_is_named():
    def inputs(shape, dtype, rng):
        return (np.zeros(shape, dtype),)

    family = Family("failing", lambda x, *, alpha=1.0: alpha * x, inputs=inputs)
    with pytest.raises(Refused, match=r"failing: inputs\(shape, dtype, rng, \*\*options\) fails for 5: TypeError"):
        family.inputs_for((5,), "float32", np.random.default_rng(0), alpha=1.0)
