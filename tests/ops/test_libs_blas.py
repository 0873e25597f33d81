"""cuBLAS, or numpy on the simulated device: the same calls on both devices compared with float64, and rejected
calls."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit import libs
from cudakit.libs import blas, calls, host
from cudakit.memory.array import as_dtype

FOUR = ("float32", "float64", "complex64", "complex128")
SIX = (*FOUR, "float16", "bfloat16")
EPS = {
    "float32": 2.0**-23, "complex64": 2.0**-23, "float64": 2.0**-52, "complex128": 2.0**-52,
    "float16": 2.0**-10, "bfloat16": 2.0**-7,
}  # fmt: skip


def numbers(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(as_dtype(dtype))


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def near(got: np.ndarray, exact: np.ndarray, size: np.ndarray, dtype: str, terms: int) -> None:
    """Check that the error is within `terms` roundings of a sum whose absolute terms add up to `size`, and the last
    rounding."""
    error = np.abs(wide(got) - exact)
    sums = min(EPS[dtype], 2.0**-23)
    assert np.all(error <= sums * (terms + 4) * size + EPS[dtype] * np.abs(exact) + 1e-30), error.max()


def placed(device: Any, values: np.ndarray, stream: Any, *, turned: bool = False, pad: int = 0) -> Any:
    """Copy the values to the device, row-major or (if turned) column-major, with `pad` elements after each row or
    column."""
    inner = np.swapaxes(values, -1, -2) if turned else values
    whole = device.full((*inner.shape[:-1], inner.shape[-1] + pad), 99, values.dtype, stream=stream)
    view = whole[..., : inner.shape[-1]]
    view.copy_from(np.ascontiguousarray(inner), stream)
    axes = (*range(inner.ndim - 2), inner.ndim - 1, inner.ndim - 2)
    return view.transpose(*axes) if turned else view


SIZES = st.integers(1, 20)


@st.composite
def products(draw: Any) -> dict[str, Any]:
    batch = draw(st.sampled_from([None, 1, 3]))
    shared = draw(st.sampled_from(["", "a", "b"])) if batch else "ab"
    return {
        "dtype": draw(st.sampled_from(SIX)),
        "sizes": (draw(SIZES), draw(SIZES), draw(SIZES)),
        "batches": ([] if "a" in shared else [batch], [] if "b" in shared else [batch]),
        "turned": draw(st.tuples(*[st.booleans()] * 3)),
        "pads": draw(st.tuples(*[st.integers(0, 3)] * 3)),
        "factors": draw(st.sampled_from([(1, 0), (2, 0), (-1, 1), (0.5, -2), (0, 1), (0, 0)])),
        "wide_out": draw(st.booleans()),
    }


@given(case=products())
def test_products_of_any_order_padding_and_dtype_are_numpys(device: Any, case: dict[str, Any]) -> None:
    dtype, (m, n, k), (of_a, of_b) = case["dtype"], case["sizes"], case["batches"]
    result = "float32" if case["wide_out"] and dtype in ("float16", "bfloat16") else dtype
    alpha, beta = case["factors"]
    a, b = numbers((*of_a, m, k), dtype, 1), numbers((*of_b, k, n), dtype, 2)
    before = numbers((*(of_a or of_b), m, n), result, 3)
    if beta == 0:
        before[...] = np.nan  # must not be read
    stream = device.default_stream
    ours = [
        placed(device, values, stream, turned=turned, pad=pad)
        for values, turned, pad in zip((a, b, before), case["turned"], case["pads"], strict=True)
    ]
    out = blas.gemm(*ours, alpha=alpha, beta=beta)
    assert out is ours[2]
    exact = alpha * (wide(a) @ wide(b)) + (beta * wide(before) if beta else 0)
    size = abs(alpha) * (np.abs(wide(a)) @ np.abs(wide(b))) + (abs(beta * wide(before)) if beta else 0)
    near(out.numpy(), exact, size, result, k)
    whole = out.transpose(*range(out.ndim - 2), out.ndim - 1, out.ndim - 2) if case["turned"][2] else out
    if case["pads"][2]:  # the gaps between rows are unchanged
        last = whole.shape[-1]
        rest = cudakit.memory.array.DeviceArray(
            whole.allocation, whole.allocation.pointer, (*whole.shape[:-1], last + case["pads"][2]), whole.strides,
            whole.dtype,
        )  # fmt: skip
        assert np.all(wide(rest.numpy())[..., last:] == 99)


def test_b_goes_first_and_a_first_is_the_other_product(device: Any) -> None:
    """A common mistake: passing A before B and m before n computes B @ A, without an error, with correct sizes."""
    n, stream = 17, device.default_stream
    a, b = numbers((n, n), "float32", 1), numbers((n, n), "float32", 2)
    x, y = device.array(a), device.array(b)
    naive = device.empty((n, n))
    library = calls.bindings(device, "cublas")
    blas.gemm(x, y)  # creates the stream's handle
    factors = np.array([1, 0], np.float32)
    at = factors.ctypes.data
    device.context.make_current()
    handle = stream.kept["cublas"].number
    library.gemm_ex(
        handle, 0, 0, n, n, n, at, x.pointer, 0, n, y.pointer, 0, n, at + 4, naive.pointer, 0, n, 68, -1
    )  # fmt: skip
    got = naive.numpy()
    np.testing.assert_allclose(got, b @ a, rtol=1e-4, atol=1e-4)
    assert np.abs(got - a @ b).max() > 1
    np.testing.assert_allclose(blas.gemm(x, y).numpy(), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
def test_a_batch_of_lists_lies_anywhere(device: Any, dtype: str) -> None:
    a, b = (numbers((5, 4, 4), dtype, seed) for seed in (1, 2))
    x, y = device.array(a), device.array(b)
    order_x, order_y = [3, 0, 4], [1, 1, 2]
    given_x, given_y = [x[i] for i in order_x], [y[i].T for i in order_y]
    outs = blas.gemm(given_x, given_y)
    again = blas.gemm(given_x, given_y, outs, beta=1)
    assert again[0] is outs[0]
    for i, j, out in zip(order_x, order_y, outs, strict=True):
        exact = wide(a[i]) @ wide(b[j]).T
        near(out.numpy(), 2 * exact, 2 * np.abs(wide(a[i])) @ np.abs(wide(b[j]).T), dtype, 6)
    shared = blas.gemm(given_x, y[0])
    near(shared[2].numpy(), wide(a[4]) @ wide(b[0]), np.abs(wide(a[4])) @ np.abs(wide(b[0])), dtype, 4)


def test_half_sums_in_half_lose_what_float32_sums_keep(device: Any) -> None:
    k = 4096
    a = (np.abs(numbers((8, k), "float32", 1)) / 8).astype(np.float16)
    b = (np.abs(numbers((k, 8), "float32", 2)) / 8).astype(np.float16)
    x, y, exact = device.array(a), device.array(b), wide(a) @ wide(b)
    half = np.abs(wide(blas.gemm(x, y, compute="float16").numpy()) - exact).max() / exact.max()
    single = np.abs(wide(blas.gemm(x, y).numpy()) - exact).max() / exact.max()
    kept = np.abs(wide(blas.gemm(x, y, device.empty((8, 8), np.float32)).numpy()) - exact).max() / exact.max()
    # tensor cores truncate float32 sums instead of rounding: an error of a few 1e-6 if all terms are positive
    assert kept < 3e-5 < single < 2.0**-11 < 2 * single < half < 0.1


def test_tf32_rounds_the_operands_and_is_asked_for(device: Any) -> None:
    a, b = numbers((64, 64), "float32", 1), numbers((64, 64), "float32", 2)
    x, y, size = device.array(a), device.array(b), np.abs(wide(a)) @ np.abs(wide(b))
    errors = {
        compute: (np.abs(wide(blas.gemm(x, y, compute=compute).numpy()) - wide(a) @ wide(b)) / size).max()
        for compute in (None, "float32", "tf32")
    }
    assert errors[None] == errors["float32"] < 2e-6
    assert 2e-5 < errors["tf32"] < 2.0**-10


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_adjoints_are_transposed_views_conjugated(device: Any, dtype: str) -> None:
    a, b = numbers((6, 5), dtype, 1), numbers((6, 4), dtype, 2)
    x, y = device.array(a), device.array(b)
    exact = wide(a).conj().T @ wide(b)
    near(blas.gemm(x.T, y, conj_a=True).numpy(), exact, np.abs(wide(a)).T @ np.abs(wide(b)), dtype, 12)
    turned = blas.gemm(y.T, x, conj_a=True)
    near(turned.numpy(), exact.conj().T, np.abs(wide(b)).T @ np.abs(wide(a)), dtype, 12)
    column = numbers((6, 1), dtype, 3)  # contiguous in both orders
    exact, size = wide(column).conj().T @ wide(b), np.abs(wide(column)).T @ np.abs(wide(b))
    near(blas.gemm(device.array(column).T, y, conj_a=True).numpy(), exact, size, dtype, 12)
    with pytest.raises(ValueError, match="conjugates only a matrix that it also transposes, and a needs"):
        blas.gemm(x, device.array(numbers((5, 2), dtype)), conj_a=True)


def test_empty_products_have_stated_results(device: Any) -> None:
    nothing = blas.gemm(device.empty((3, 0)), device.empty((0, 4)))
    assert np.array_equal(nothing.numpy(), np.zeros((3, 4)))
    out = device.array(np.full((3, 4), 5, np.float32))
    blas.gemm(device.empty((3, 0)), device.empty((0, 4)), out, beta=2)
    assert np.array_equal(out.numpy(), np.full((3, 4), 10))
    blas.gemm(device.empty((3, 0)), device.empty((0, 4)), out, beta=1)
    assert np.array_equal(out.numpy(), np.full((3, 4), 10))
    assert blas.gemm(device.empty((0, 7)), device.empty((7, 4))).shape == (0, 4)
    assert blas.gemm(device.empty((0, 2, 7)), device.empty((7, 4))).shape == (0, 2, 4)
    stack = blas.gemm(device.empty((2, 3, 0)), device.empty((0, 4)))
    assert np.array_equal(stack.numpy(), np.zeros((2, 3, 4)))


def test_c_is_added_and_left_alone(device: Any) -> None:
    a, b, c = (numbers((5, 5), "float32", seed) for seed in (1, 2, 3))
    x, y, z = device.array(a), device.array(b), device.array(c.T.copy()).T
    out = blas.gemm(x, y, c=z, alpha=2, beta=3)
    np.testing.assert_allclose(out.numpy(), 2 * a @ b + 3 * c, rtol=1e-4, atol=1e-4)
    assert np.array_equal(z.numpy(), c)
    assert blas.gemm(x, y, z, c=z, beta=1) is z
    np.testing.assert_allclose(z.numpy(), a @ b + c, rtol=1e-4, atol=1e-4)


# Levels 1 to 3 --------------------------------------------------------------------------------------------------------


def stepped(device: Any, values: np.ndarray, step: int) -> Any:
    """Copy a vector to the device with `step` elements from one value to the next; backwards if negative."""
    whole = device.full((max(len(values), 1) * abs(step),), 99, values.dtype)
    view = whole[:: abs(step)][: len(values)]
    view = view[::-1] if step < 0 else view
    view.copy_from(values)
    return view


STEPS = st.sampled_from([1, 2, 3, -1, -2])


@given(
    n=st.integers(0, 200),
    dtype=st.sampled_from(FOUR),
    steps=st.tuples(STEPS, STEPS),
    alpha=st.sampled_from([2, -0.5, 0]),
)
def test_vectors(device: Any, n: int, dtype: str, steps: tuple[int, int], alpha: float) -> None:
    a, b = numbers(n, dtype, 1), numbers(n, dtype, 2)
    x, y = stepped(device, a, steps[0]), stepped(device, b, steps[1])
    parts = np.abs(wide(a).real) + np.abs(wide(a).imag)
    near(blas.asum(x).numpy(), parts.sum(), parts.sum(), dtype, n)
    near(blas.nrm2(x).numpy(), np.linalg.norm(wide(a)), np.linalg.norm(wide(a)), dtype, n)
    size = np.abs(wide(a)) @ np.abs(wide(b))
    near(blas.dot(x, y).numpy(), np.dot(wide(a), wide(b)), size, dtype, 2 * n)
    near(blas.dot(x, y, conj=True).numpy(), np.vdot(wide(a), wide(b)), size, dtype, 2 * n)
    if steps[0] > 0:
        place = int(blas.amax(x).numpy())
        assert place == (np.argmax(np.abs(a.real) + np.abs(a.imag)) + 1 if n else 0)
    assert blas.axpy(x, y, alpha) is y
    near(y.numpy(), wide(b) + alpha * wide(a), np.abs(wide(b)) + abs(alpha * wide(a)), dtype, 2)
    assert blas.scal(x, alpha) is x
    near(x.numpy(), alpha * wide(a), np.abs(alpha * wide(a)), dtype, 1)


def test_amax_is_the_largest_size_not_the_largest_number(device: Any) -> None:
    x = np.array([1, 3, -100, 100, 2], np.float32)
    assert int(blas.amax(device.array(x)).numpy()) == 3  # counted from 1; the first of equals; 100 is at place 4
    z = np.array([3 + 3j, 5, 4j], np.complex64)
    assert int(blas.amax(device.array(z)).numpy()) == 1  # amax uses |re| + |im|: |3| + |3|, though |3 + 3j| < 5


def test_a_length_does_not_overflow_on_the_way(device: Any) -> None:
    assert blas.nrm2(device.array(np.array([3e30, 4e30], np.float32))).numpy() == pytest.approx(5e30, rel=1e-6)


def test_numbers_stay_on_the_device_until_asked_for(device: Any) -> None:
    x = device.array(numbers(1000, "float32"))
    out = device.empty((), np.float32)
    assert blas.nrm2(x, out) is out
    blas.scal(x, 2)
    again = blas.nrm2(x)
    assert again.shape == ()
    assert again.numpy() == pytest.approx(2 * out.numpy(), rel=1e-6)


ORDERS = st.tuples(st.booleans(), st.booleans())


@given(
    m=SIZES, n=SIZES, dtype=st.sampled_from(FOUR), turned=st.booleans(), pad=st.integers(0, 2),
    steps=st.tuples(STEPS, STEPS), factors=st.sampled_from([(1, 0), (2, -1), (0, 0.5)]),
)  # fmt: skip
def test_a_matrix_and_vectors(
    device: Any, m: int, n: int, dtype: str, turned: bool, pad: int, steps: tuple[int, int], factors: Any
) -> None:
    a, x, y = numbers((m, n), dtype, 1), numbers(n, dtype, 2), numbers(m, dtype, 3)
    alpha, beta = factors
    left = placed(device, a, device.default_stream, turned=turned, pad=pad)
    right, result = stepped(device, x, steps[0]), stepped(device, y, steps[1])
    blas.gemv(left, right, result, alpha=alpha, beta=beta)
    size = abs(alpha) * np.abs(wide(a)) @ np.abs(wide(x)) + np.abs(beta * wide(y))
    near(result.numpy(), alpha * wide(a) @ wide(x) + beta * wide(y), size, dtype, 2 * n)
    result.copy_from(y)
    assert blas.ger(result, right, left, alpha=2) is left
    near(left.numpy(), wide(a) + 2 * np.outer(wide(y), wide(x)), np.abs(wide(a)) + 2 * np.abs(np.outer(y, x)), dtype, 4)


def test_conjugates_of_level_2(device: Any) -> None:
    a, x, y = numbers((4, 3), "complex64", 1), numbers(3, "complex64", 2), numbers(4, "complex64", 3)
    left, right, other = device.array(a), device.array(x), device.array(y)
    np.testing.assert_allclose(blas.gemv(left, right, conj=True).numpy(), a.conj() @ x, rtol=1e-4, atol=1e-4)
    turned = device.array(a.T.copy()).T
    blas.ger(other, right, turned, conj=True)
    np.testing.assert_allclose(turned.numpy(), a + np.outer(y, x.conj()), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="needs a column-major a"):
        blas.ger(other, right, left, conj=True)
    with pytest.raises(ValueError, match="conjugates only"):
        blas.gemv(turned, right, conj=True)


def test_a_matrix_without_columns_scales_what_it_is_added_to(device: Any) -> None:
    assert np.array_equal(blas.gemv(device.empty((3, 0)), device.empty(0)).numpy(), np.zeros(3))
    out = device.array(np.array([1, 2, 3], np.float32))
    blas.gemv(device.empty((3, 0)), device.empty(0), out, beta=2)
    assert np.array_equal(out.numpy(), [2, 4, 6])


@given(
    m=st.integers(1, 12), n=st.integers(1, 12), dtype=st.sampled_from(FOUR), turned=ORDERS,
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)), how=st.tuples(*[st.booleans()] * 3),
)  # fmt: skip
def test_triangles_are_solved(
    device: Any, m: int, n: int, dtype: str, turned: Any, pads: Any, how: tuple[bool, bool, bool]
) -> None:
    lower, right, unit = how
    order = n if right else m
    a = numbers((order, order), dtype, 1) / 8 + 2 * np.eye(order, dtype=dtype)
    half = np.tril(wide(a)) if lower else np.triu(wide(a))
    a = np.where(half != 0, a, np.nan).astype(dtype)  # the other triangle must not be read
    if unit:
        np.fill_diagonal(half, 1)
        np.fill_diagonal(a, np.nan)
    b = numbers((m, n), dtype, 2)
    stream = device.default_stream
    left = placed(device, a, stream, turned=turned[0], pad=pads[0])
    result = placed(device, b, stream, turned=turned[1], pad=pads[1])
    assert blas.trsm(left, result, alpha=2, lower=lower, right=right, unit=unit) is result
    x = wide(result.numpy())
    back = x @ half if right else half @ x
    assert np.abs(back - 2 * wide(b)).max() <= 400 * EPS[dtype] * (np.abs(x).max() * 3 + 1)


def test_a_triangle_is_solved_with_its_conjugate(device: Any) -> None:
    a = numbers((4, 4), "complex64", 1) + 3 * np.eye(4, dtype=np.complex64)
    b = numbers((4, 2), "complex64", 2)
    result = blas.trsm(device.array(a.T.copy()).T, device.array(b), conj=True)
    np.testing.assert_allclose(np.tril(a).conj() @ result.numpy(), b, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="in one order"):
        blas.trsm(device.array(a), device.array(b), conj=True)


@given(
    n=st.integers(1, 12), k=st.integers(0, 12), dtype=st.sampled_from(FOUR), turned=ORDERS, lower=st.booleans(),
    beta=st.sampled_from([0, 2]),
)  # fmt: skip
def test_half_a_symmetric_product(
    device: Any, n: int, k: int, dtype: str, turned: Any, lower: bool, beta: float
) -> None:
    a, before = numbers((n, k), dtype, 1), numbers((n, n), dtype, 2)
    stream = device.default_stream
    rows = placed(device, a, stream, turned=turned[0])
    out = placed(device, before, stream, turned=turned[1], pad=1)
    blas.syrk(rows, out, alpha=3, beta=beta, lower=lower)
    half = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
    got = out.numpy()
    assert np.array_equal(got[~half], before[~half])
    exact = 3 * wide(a) @ wide(a).T + beta * wide(before)
    size = 3 * np.abs(wide(a)) @ np.abs(wide(a)).T + beta * np.abs(wide(before))
    near(got[half], exact[half], size[half], dtype, 2 * k + 2)


# Refusals -------------------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "shapes": (
        lambda d: blas.gemm(d.zeros((2, 3)), d.zeros((4, 5))),
        ValueError,
        "a's columns, 3, are not b's rows, 4",
    ),
    "batches": (lambda d: blas.gemm(d.zeros((2, 3, 3)), d.zeros((4, 3, 3))), ValueError, "2 batches and b has 4"),
    "one dimension": (lambda d: blas.gemm(d.zeros(3), d.zeros((3, 3))), ValueError, "2-D arrays, or 3-D"),
    "two dtypes": (
        lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2), "float16")),
        TypeError,
        "float32 and b is float16",
    ),
    "whole numbers": (lambda d: blas.gemm(d.zeros((2, 2), "int32"), d.zeros((2, 2), "int32")), TypeError, "not int32"),
    "compute": (
        lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), compute="float16"),
        ValueError,
        "'float32' or 'tf32'",
    ),
    "out's dtype": (
        lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), d.zeros((2, 2), "float64")),
        TypeError,
        "float64",
    ),
    "out's shape": (
        lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), d.zeros((2, 3))),
        ValueError,
        r"out must have shape \(2, 2\)",
    ),
    "half sums, wide out": (
        lambda d: blas.gemm(*[d.zeros((2, 2), "float16")] * 2, d.zeros((2, 2)), compute="float16"),
        TypeError,
        "float32",
    ),
    "gaps": (lambda d: blas.gemm(d.zeros((4, 8))[:, ::2], d.zeros((4, 4))), ValueError, r"strides \(8, 2\).*copy\(\)"),
    "backwards": (lambda d: blas.gemm(d.zeros((4, 4))[::-1], d.zeros((4, 4))), ValueError, "copy"),
    "a host array": (lambda d: blas.gemm(np.zeros((2, 2)), d.zeros((2, 2))), TypeError, r"device\.array"),
    "no c": (lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), beta=1), ValueError, "no c"),
    "c's shape": (
        lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), c=d.zeros((2,)), beta=1),
        ValueError,
        "c must have",
    ),
    "complex factor": (lambda d: blas.gemm(d.zeros((2, 2)), d.zeros((2, 2)), alpha=1j), TypeError, "complex factor"),
    "device factor": (lambda d: blas.scal(d.zeros(3), d.zeros(())), TypeError, "must be a host number"),
    "a list of none": (lambda d: blas.gemm([], []), ValueError, "at least one"),
    "lists of two lengths": (lambda d: blas.gemm([d.zeros((2, 2))], [d.zeros((2, 2))] * 2), ValueError, "as many"),
    "a list of two shapes": (
        lambda d: blas.gemm([d.zeros((2, 2)), d.zeros((3, 2))], [d.zeros((2, 2))] * 2),
        ValueError,
        "list a must have one shape",
    ),
    "a matrix for a vector": (lambda d: blas.nrm2(d.zeros((2, 2))), ValueError, "vector"),
    "halves in a vector": (lambda d: blas.nrm2(d.zeros(2, "float16")), TypeError, "only gemm"),
    "one element repeated": (lambda d: blas.asum(repeated(d, 5)), ValueError, "copy"),
    "lengths": (lambda d: blas.dot(d.zeros(3), d.zeros(4)), ValueError, r"y must be float32 \(3,\)"),
    "backwards largest": (lambda d: blas.amax(d.zeros(3)[::-1]), ValueError, "negative stride"),
    "a result's dtype": (lambda d: blas.nrm2(d.zeros(3, "complex64"), d.zeros((), "complex64")), ValueError, "float32"),
    "a triangle's shape": (
        lambda d: blas.trsm(d.zeros((3, 3)), d.zeros((2, 3))),
        ValueError,
        r"a must be float32 \(2, 2\)",
    ),
}


def repeated(device: Any, count: int) -> Any:
    x = device.zeros(1)
    return cudakit.memory.array.DeviceArray(x.allocation, x.pointer, (count,), (0,), x.dtype)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_before_anything_is_queued(device: Any, name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call(device)


def test_what_is_written_is_apart_from_what_is_read(device: Any) -> None:
    x = device.zeros((8, 4))
    with pytest.raises(ValueError, match="operand 3, which is written, overlaps operand 1"):
        blas.gemm(x[:4], x[4:], x[2:6])
    with pytest.raises(ValueError, match="overlaps operand 2"):
        blas.gemm(x[:4], x[4:], x[4:])
    with pytest.raises(ValueError, match="which is written, overlaps"):
        blas.gemm([x[:4], x[4:]], device.zeros((4, 4)), [device.zeros((4, 4)), x[:4]])
    with pytest.raises(ValueError, match="which is written, overlaps"):
        blas.axpy(x[0], x[0])
    with pytest.raises(ValueError, match="which is written, overlaps"):
        blas.gemm([device.zeros((4, 4))] * 2, device.zeros((4, 4)), [x[:4], x[2:6]])
    with pytest.raises(ValueError, match="operand 5, which is written, overlaps operand 1"):
        blas.gemm([x[2:6], x[4:]], device.zeros((4, 4)), [x[:4], device.zeros((4, 4))])
    blas.gemm(x[:4], x[:4], x[4:])  # inputs may share memory


def test_what_is_read_only_is_not_written(device: Any) -> None:
    x, out = device.zeros((4, 4)), device.zeros((4, 4))
    blas.gemm(x, x, out)
    theirs = cudakit.memory.array.DeviceArray(
        out.allocation, out.pointer, out.shape, out.strides, out.dtype, readonly=True
    )
    with pytest.raises(ValueError, match="read-only"):
        blas.gemm(x, x, theirs)
    blas.gemm(theirs, x, device.zeros((4, 4)))


def test_a_batch_of_one_has_no_stride(device: Any) -> None:
    a = numbers((3, 4, 4), "float32")
    x = device.array(a)
    out = blas.gemm(x[::-1][:1], x[:1])
    near(out.numpy(), wide(a[2:]) @ wide(a[:1]), np.abs(wide(a[2:])) @ np.abs(wide(a[:1])), "float32", 4)
    with pytest.raises(ValueError, match="copy"):
        blas.gemm(x[::-1], x)


def test_arrays_and_streams_of_the_device_that_are_open(device: Any) -> None:
    x, y = device.zeros((2, 2)), device.zeros((2, 2))
    with cudakit.Device("sim", fresh=True) as other:
        theirs = other.zeros((2, 2))
        with pytest.raises(cudakit.DeviceMismatch):
            blas.gemm(x, theirs)
        with pytest.raises(cudakit.DeviceMismatch):
            blas.gemm(x, y, stream=other.default_stream)
        theirs.close()
    blas.gemm(x, y)
    y.close()
    with pytest.raises(cudakit.Closed):
        blas.gemm(x, y)
    stream = device.stream()
    stream.wait(device.default_stream)
    blas.gemm(x, x, stream=stream)
    stream.close()
    with pytest.raises(cudakit.Closed):
        blas.gemm(x, x, stream=stream)


def test_a_known_call_still_looks_whether_its_arrays_are_open(device: Any) -> None:
    x, y, out = (device.zeros((2, 2)) for _ in range(3))
    for _ in range(3):
        blas.gemm(x, y, out)
    out.close()
    with pytest.raises(cudakit.Closed, match="was closed"):
        blas.gemm(x, y, out)


# Streams and handles --------------------------------------------------------------------------------------------------


def test_a_stream_has_a_handle_of_its_own_which_ends_with_it(sim: Any) -> None:
    x = sim.array(numbers((4, 4), "float32"))
    library = calls.bindings(sim, "cublas")
    with sim.stream() as one, sim.stream() as two:
        sim.synchronize()
        for stream in (one, one, two):
            blas.gemm(x, x, stream=stream)
        assert len(library._streams) == 2
        blas.nrm2(x.reshape(-1), stream=one)  # another pointer mode needs another handle
        assert len(library._streams) == 3
    assert len(library._streams) == 0


def test_a_stream_that_is_dropped_takes_its_handle_along(sim: Any) -> None:
    library = calls.bindings(sim, "cublas")
    stream = sim.stream()
    x = sim.array(numbers((4, 4), "float32"), stream=stream)
    blas.gemm(x, x, stream=stream)
    sim.synchronize()
    assert len(library._streams) == 1
    del stream, x
    assert len(library._streams) == 0


class Theirs:
    """Another library's stream."""

    def __init__(self, handle: Any) -> None:
        self.handle = int(handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_foreign_streams_share_a_handle_by_their_address(device: Any) -> None:
    a = numbers((4, 4), "float32")
    x = device.array(a)
    device.synchronize()
    handle = device.context.call("cuStreamCreate", 1)
    try:
        for _ in range(3):
            out = device.empty((4, 4), stream=Theirs(handle))
            blas.gemm(x, x, out, stream=Theirs(handle))
            near(out.numpy(Theirs(handle)), wide(a) @ wide(a), np.abs(wide(a)) @ np.abs(wide(a)), "float32", 4)
        assert [*device.kept["foreign streams", "cublas"]] == [int(handle)]
    finally:
        del x, out  # their frees wait for the stream, which must still exist
        device.synchronize()
        device.kept["foreign streams", "cublas"].clear()
        device.context.call("cuStreamDestroy", handle)
    with device.stream() as own:
        x = device.array(a, stream=own)
        blas.gemm(x, x, stream=Theirs(own)).numpy(own)
        assert "cublas" in own.kept  # another library's wrapper of our stream uses our stream


@pytest.mark.parametrize(
    ("shape", "steps", "rows"),
    [
        ((3, 4), (16, 4), [(0, 48, 1, 48)]),
        ((3, 4), (4, 12), [(0, 48, 1, 48)]),
        ((3, 4), (24, 4), [(0, 16, 3, 24)]),
        ((2, 3, 4), (72, 24, 4), [(0, 16, 6, 24)]),
        ((2, 3, 4), (100, 24, 4), [(0, 16, 3, 24), (100, 16, 3, 24)]),
        ((5,), (-8,), [(-32, 4, 5, 8)]),
        ((2, 3), (0, 4), [(0, 12, 1, 12)]),
        ((0, 3), (12, 4), []),
    ],
)
def test_device_operands_name_exactly_the_bytes_they_touch(shape: Any, steps: Any, rows: Any) -> None:
    lines = host.DeviceOperand(None, 1000, "float32", shape, steps).rows()  # type: ignore[arg-type]
    assert [(start - 1000, *rest) for start, *rest in lines] == rows


def test_threads_call_at_once(device: Any) -> None:
    a = numbers((16, 16), "float32")
    x = device.array(a)
    device.synchronize()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        try:
            with device.stream() as own:
                for _ in range(10):
                    out = blas.gemm(x, x, alpha=seed, stream=own)
                    assert np.allclose(out.numpy(own), seed * (a @ a), rtol=1e-3, atol=1e-3)
                    blas.gemm(x, x, device.empty((16, 16)), alpha=seed)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_which_library_ran_is_told(device: Any) -> None:
    said = libs.library(device)
    assert said == f"numpy {np.__version__} (simulated)" if device.kind == "sim" else said.startswith("cuBLAS 1")
    assert libs.library(device, "cufft").startswith("numpy" if device.kind == "sim" else "cuFFT 1")
    with pytest.raises(ValueError, match="cufft"):
        libs.library(device, "cusolver")


def test_where_the_bindings_are_missing_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvmath", "nvmath.bindings", "nvmath.bindings.cublas"):
        monkeypatch.setitem(sys.modules, name, None)
    gpu = types.SimpleNamespace(kind="gpu", kept={})
    with pytest.raises(cudakit.CudakitError, match=r"pip install 'cudakit\[libs\]'"):
        calls.bindings(gpu, "cublas")  # type: ignore[arg-type]


# The simulated device's checks ----------------------------------------------------------------------------------------


def test_work_is_queued_and_runs_when_it_is_waited_for(sim: Any) -> None:
    x = sim.zeros((2, 2))
    out = sim.full((2, 2), 7, "float32")
    sim.synchronize()
    blas.gemm(x, x, out)
    view = sim.context.driver.simHostView(out.pointer, 16).view(np.float32)
    assert np.all(view == 7)
    sim.synchronize()
    assert np.all(view == 0)


def test_an_uninitialised_operand_is_told_with_the_line(sim: Any) -> None:
    x, y = sim.zeros((4, 4)), sim.empty((4, 4))
    y[:2].fill(1)
    blas.gemm(x[:, :2], y[:2], sim.empty((4, 4)))  # only written memory is read
    sim.synchronize()
    blas.gemm(x, y)
    with pytest.raises(
        cudakit.errors.DeviceFault, match="cublasGemmEx reads 32 bytes that were never written"
    ) as raised:
        sim.synchronize()
    report = raised.value.report
    assert report.kind == "uninitialised read"
    assert report.file.endswith("test_libs_blas.py")


def test_a_triangle_may_be_the_only_half_that_was_written(sim: Any) -> None:
    a, b = sim.empty((3, 3)), sim.zeros((3, 3))
    for i in range(3):
        a[i, : i + 1].fill(1)
    blas.trsm(a, b)
    sim.synchronize()
    blas.trsm(a, b, lower=False)
    with pytest.raises(cudakit.errors.DeviceFault, match="Strsm reads 8 bytes"):
        sim.synchronize()


def test_streams_that_do_not_wait_are_told(sim: Any) -> None:
    x, out = sim.zeros((4, 4)), sim.empty((4, 4))
    with sim.stream() as other:
        other.wait(sim.default_stream)
        blas.gemm(x, x, out)
        blas.scal(out.reshape(-1), 2, stream=other)
        with pytest.raises(cudakit.CudaError, match="race between streams") as raised:
            sim.synchronize()
        assert "cublasSscal" in str(raised.value)
        assert "cublasGemmEx" in str(raised.value)
        other.wait(sim.default_stream)
        blas.scal(out.reshape(-1), 2, stream=other)
        sim.synchronize()


def test_padding_of_one_stream_is_free_for_another(sim: Any) -> None:
    """Interleaved rows do not overlap, though their address ranges do."""
    whole = sim.zeros((4, 8))
    sim.synchronize()
    with sim.stream() as one, sim.stream() as two:
        eye = sim.array(np.eye(4, dtype=np.float32))
        sim.synchronize()
        blas.gemm(eye, eye, whole[:, :4], stream=one)
        blas.gemm(eye, eye, whole[:, 4:], stream=two)
        sim.synchronize()
    assert np.array_equal(whole.numpy(), np.hstack([np.eye(4), np.eye(4)]))


def test_memory_freed_without_waiting_is_told(sim: Any) -> None:
    with sim.stream() as other:
        x = sim.zeros((4, 4))
        out = sim.zeros((4, 4))
        sim.synchronize()
        blas.gemm(x, x, out, stream=other)
        sim.context.call("cuMemFreeAsync", x.pointer, sim.default_stream.handle)  # without the array's knowledge
        with pytest.raises(cudakit.CudaError, match="freed while in use"):
            sim.synchronize()
        x.allocation._finalizer.detach()


@pytest.mark.parametrize("which", [0, 1], ids=["read", "written"])
def test_memory_that_is_gone_when_the_work_runs_is_told(which: int) -> None:
    """Without the check of streams, which would report the free itself."""
    with cudakit.Device("sim", fresh=True, checks=("init",)) as device, device.stream() as other:
        x, out = device.zeros((4, 4)), device.zeros((4, 4))
        device.synchronize()
        blas.gemm(x, x, out, stream=other)
        device.context.call("cuMemFreeAsync", (x, out)[which].pointer, device.default_stream.handle)
        with pytest.raises(cudakit.errors.DeviceFault, match="use after free") as raised:
            device.synchronize()
        assert "cublasGemmEx" in str(raised.value)


def test_an_array_dropped_after_the_call_is_freed_after_its_work(sim: Any) -> None:
    with sim.stream() as other:
        x, out = sim.zeros((4, 4)), sim.zeros((4, 4))
        sim.synchronize()
        blas.gemm(x, x, out, stream=other)
        del x
        sim.synchronize()


def test_nothing_of_the_library_counts_as_a_leak() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cudakit.Device("sim", fresh=True) as device, device.stream() as stream, device.zeros((4, 4)) as x:
            stream.wait(device.default_stream)
            blas.gemm(x, x, stream=stream).close()
            blas.nrm2(x[0], stream=stream).close()
