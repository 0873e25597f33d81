"""The bounds for results: float32 arithmetic in any usual order is within them; results that lack a term, an element or
half of their digits are not. numpy replaces the kernels, so sizes can be large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudakit import ops
from cudakit.compare import compare, within
from cudakit.memory import array as memory
from cudakit.rounding import U, of_products, of_set_amplitudes, of_tree

FAMILIES = ops.families()
Sum = Callable[[Any], Any]


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(memory.as_dtype(dtype))


# Sums along the last axis, in float32 ---------------------------------------------------------------------------------


def in_order(x: Any) -> Any:
    return np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1]


def in_tree(x: Any) -> Any:
    """Add 32 values at a time, the most that kernels in reduce/ add in order."""
    while x.shape[-1] > 1:
        padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 32)]
        x = in_order(np.pad(x, padding).reshape(*x.shape[:-1], -1, 32))
    return x[..., 0]


def by_block(x: Any) -> Any:
    """Each of 256 threads adds every 256th element; thread 0 adds their sums."""
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 256)]
    shares = np.pad(x, padding).reshape(*x.shape[:-1], -1, 256)
    return in_order(np.add.accumulate(shares, axis=-2, dtype=np.float32)[..., -1, :])


def by_numpy(x: Any) -> Any:
    return x.sum(axis=-1, dtype=np.float32)


def by_shares(x: Any) -> Any:
    """Each of 256 threads adds every 256th element; a tree adds their sums."""
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 256)]
    shares = np.pad(x, padding).reshape(*x.shape[:-1], -1, 256)
    return in_tree(np.add.accumulate(shares, axis=-2, dtype=np.float32)[..., -1, :])


@pytest.mark.parametrize("add", [in_tree, by_numpy, by_shares], ids=lambda add: add.__name__)
@pytest.mark.parametrize("sign", ["both", "positive", "ramp"])
@pytest.mark.parametrize(("rows", "n"), [(3000, 37), (300, 1000), (30, 65_536), (2, 1 << 20)])
def test_a_sum_in_a_tree_is_within_its_bound(add: Sum, sign: str, rows: int, n: int) -> None:
    x = normal(rows, n, seed=n)
    x = {"both": x, "positive": np.abs(x), "ramp": np.sort(x, axis=-1)}[sign]
    error = np.abs(add(x) - x.sum(axis=-1, dtype=np.float64))
    assert (error <= of_tree(x) + U * np.abs(x.sum(axis=-1, dtype=np.float64))).all()


@pytest.mark.parametrize("sign", ["both", "positive"])
@pytest.mark.parametrize("n", [1000, 65_536, 1 << 20])
def test_a_lost_term_of_usual_size_is_seen_in_a_sum_of_a_million(sign: str, n: int) -> None:
    x = normal(n, seed=n)
    x = np.abs(x) if sign == "positive" else x
    exact = x.sum(dtype=np.float64)
    lost = x[np.argmin(np.abs(np.abs(x) - 0.8))]  # 0.8 is the mean of |x|
    assert not within(np.float32(exact - lost).reshape(1), exact.reshape(1), of_tree(x)).ok


def test_nrm2_and_dot_of_a_million_see_a_lost_term() -> None:
    x, y = (normal(1 << 20, seed=seed).astype(np.float64) for seed in (1, 2))
    for terms, lost in ((x * x, 1.0), (x * y, 0.5)):
        exact, allowed = terms.sum(), of_products(terms)
        assert np.abs(in_tree(terms.astype(np.float32)) - exact) <= allowed
        assert lost > allowed + U * np.abs(exact)


# Families -------------------------------------------------------------------------------------------------------------


def float16(x: Any) -> Any:
    return x.astype(np.float16).astype(x.dtype)


def swapped(x: Any) -> Any:
    y, low, high = x.copy(), x.argmin(), x.argmax()
    y.flat[low], y.flat[high] = x.flat[high], x.flat[low]
    return y


def lost(x: Any) -> Any:
    y = x.copy()
    y.flat[-1] = 0
    return y


def next_after(x: Any) -> Any:
    y = x.copy()
    y.flat[0] = np.nextafter(x.flat[0], np.float32(np.inf))
    return y


def one_off(x: Any) -> Any:
    return x + np.array(1).astype(x.dtype)


@pytest.mark.parametrize("name", ["vector_add", "matrix_add", "add", "scale", "threshold"])
@pytest.mark.parametrize("wrong", [float16, swapped, lost, next_after], ids=lambda f: f.__name__)
def test_an_operation_that_is_rounded_once_is_exact(name: str, wrong: Callable[[Any], Any]) -> None:
    family = FAMILIES[name]
    inputs = family.inputs_for((40, 500), np.dtype(np.float32), np.random.default_rng(1))
    inputs[0].flat[[0, -1]] = 1.25  # above the limit of threshold
    right = np.array(family.baseline_of(inputs))
    assert family.judge(right, inputs).ok
    assert not family.judge(wrong(right), inputs).ok


def test_ten_million_sums_rounded_to_float16_are_wrong() -> None:
    a, b = normal(10_000_000), normal(10_000_000, seed=1)
    assert not FAMILIES["vector_add"].judge(float16(a + b), (a, b)).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["scale", "threshold", "cast"])
def test_16_bit_results_have_their_own_rounding_and_no_more(name: str, dtype: str) -> None:
    family, options = FAMILIES[name], {"to": dtype} if name == "cast" else {}
    x = np.concatenate([normal(2000), normal(2000, seed=1) * np.float32(2.0**-24 if dtype == "float16" else 1e-40)])
    x = x.astype(np.float32 if name == "cast" else memory.as_dtype(dtype))
    right = family.baseline_of((x,), **options)
    assert family.judge(right, (x,), **options).ok
    bits = right.view(np.uint16).copy()
    bits[3000] ^= 1  # change a denormal number by one step
    assert not family.judge(bits.view(right.dtype), (x,), **options).ok


@pytest.mark.parametrize("wrong", [float16, swapped, lost], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["add_broadcast", "blur", "uniform", "normal", "sum", "max"])
def test_what_rounds_more_than_once_is_still_float32(name: str, wrong: Callable[[Any], Any]) -> None:
    family = FAMILIES[name]
    shape = (20, 30, 40) if name == "add_broadcast" else (40, 500)
    inputs = family.inputs_for(shape, np.dtype(np.float32), np.random.default_rng(1))
    right = np.array(family.baseline_of(inputs))
    assert family.judge(right, inputs).ok
    assert not family.judge(wrong(right), inputs).ok


def test_the_largest_errors_are_reported_with_and_without_a_nan() -> None:
    reference = np.array([4.0, 10.0, 0.5])
    for first in (4.0, np.nan):
        found = within(np.array([first, 11.0, 0.75]), reference, 0.0)
        assert not found.ok
        assert (found.max_abs_error, found.max_rel_error) == (1.0, 0.5)


def test_whole_numbers_are_exact() -> None:
    x = normal(40, 500)
    for name, options in (("argmax", {}), ("cast", {"to": "int32"})):
        right = FAMILIES[name].baseline_of((x,), **options)
        assert FAMILIES[name].judge(right, (x,), **options).ok
        assert not FAMILIES[name].judge(one_off(right), (x,), **options).ok


# Softmax --------------------------------------------------------------------------------------------------------------


def softmax(x: Any, add: Sum, flush: bool = False) -> Any:
    shifted = x - x.max(axis=-1, keepdims=True)
    powers = np.exp2(shifted * np.float32(1.4426950408889634))  # as __expf computes it
    if flush:
        powers[powers < 2.0**-126] = 0
    return powers * (np.float32(1) / add(powers))[..., None]


ROWS = [(300, 100, 3.0), (20, 4099, 1.0), (8, 65_536, 3.0), (1, 1 << 20, 3.0), (20, 1000, 20.0)]


@pytest.mark.parametrize("add", [in_tree, by_block, by_numpy], ids=lambda add: add.__name__)
@pytest.mark.parametrize(("rows", "cols", "spread"), ROWS)
def test_softmax_by_blocks_is_within_its_bound(add: Sum, rows: int, cols: int, spread: float) -> None:
    x = normal(rows, cols, seed=cols) * np.float32(spread)
    verdict = FAMILIES["softmax"].judge(softmax(x, add, flush=True), (x,))
    assert verdict.ok, verdict.why


@pytest.mark.parametrize(("rows", "cols", "spread"), ROWS)
def test_softmax_in_order_has_the_bound_of_that_order(rows: int, cols: int, spread: float) -> None:
    x = normal(rows, cols, seed=cols) * np.float32(spread)
    x[0, 0] = x[0].max() + 1  # adding in order loses most of the other terms
    family = FAMILIES["softmax"]
    assert family.judge(softmax(x, in_order), (x,), family["thread_per_row"]).ok
    if cols == 65_536:
        assert not family.judge(softmax(x, in_order), (x,), family["tree_reduce"]).ok


@pytest.mark.parametrize("name", ["tree_reduce", "thread_per_row"])
def test_every_element_of_softmax_is_judged_by_itself(name: str) -> None:
    family = FAMILIES["softmax"]
    variant = family[name]
    x = normal(4, 1000)
    x[:, 500] = 30
    right = softmax(x, in_tree)
    assert family.judge(right, (x,), variant).ok
    for columns in (slice(0, None, 2), slice(999, None), slice(1, 2)):
        wrong = right.copy()
        wrong[:, columns] = 0
        assert not family.judge(wrong, (x,), variant).ok
    assert not family.judge(float16(right), (x,), variant).ok
    assert not family.judge(right[:, ::-1], (x,), variant).ok


@pytest.mark.parametrize("where", ["result", "sum"])
def test_a_missing_last_element_of_65536_is_seen(where: str) -> None:
    family = FAMILIES["softmax"]
    x = normal(1, 65_536)
    x[0, -1] = 0.5
    wrong = softmax(x, in_tree)
    if where == "sum":
        wrong = wrong / (1 - wrong[:, -1:])
    else:
        wrong[:, -1] = 0
    assert not family.judge(wrong, (x,)).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("log", [False, True])
def test_16_bit_softmax_is_rounded_once_more(dtype: str, log: bool) -> None:
    family = FAMILIES["softmax_modes"]
    x = normal(20, 3000, dtype=dtype) * memory.as_dtype(dtype).type(3)
    right = np.array(family.baseline_of((x,), log=log))
    assert family.judge(right, (x,), log=log).ok
    bits = right.view(np.uint16).copy()
    bits[7, 2000] += 2
    assert not family.judge(bits.view(right.dtype), (x,), log=log).ok
    if not log:  # float16 has denormal results here
        bits = right.view(np.uint16).copy()
        smallest = np.unravel_index(bits.argmin(), bits.shape)
        bits[smallest] += 2
        assert not family.judge(bits.view(right.dtype), (x,)).ok


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("add", [in_tree, by_block, by_numpy], ids=lambda add: add.__name__)
@pytest.mark.parametrize(("rows", "cols"), [(100, 127), (4, 65_536)])
def test_the_gradient_of_softmax(log: bool, add: Sum, rows: int, cols: int) -> None:
    family = FAMILIES["softmax_backward"]
    grad, y = family.inputs_for((rows, cols), np.dtype(np.float32), np.random.default_rng(cols), log=log)

    def gradient(terms: Any) -> Any:
        total = add(terms)[..., None]
        return grad - np.exp(y) * total if log else y * (grad - total)

    terms = grad if log else grad * y
    right = gradient(terms)
    assert family.judge(right, (grad, y), log=log).ok
    without = terms.copy()
    without[0, np.abs(terms[0]).argmax()] = 0
    wrongs = [gradient(without), float16(right), swapped(right)]
    for wrong in wrongs:
        assert not family.judge(wrong, (grad, y), log=log).ok


# Products -------------------------------------------------------------------------------------------------------------


def product(a: Any, b: Any, add: Sum) -> Any:
    return np.stack([add(a * column) for column in b.T], axis=-1)


@pytest.mark.parametrize("sign", ["both", "positive"])
@pytest.mark.parametrize("add", [in_order, in_tree, by_numpy], ids=lambda add: add.__name__)
@pytest.mark.parametrize(("m", "n", "k"), [(50, 40, 3), (60, 50, 64), (30, 20, 1000), (8, 5, 65_536)])
def test_products_in_float32(sign: str, add: Sum, m: int, n: int, k: int) -> None:
    family = FAMILIES["gemm"]
    a, b = normal(m, k, seed=k), normal(k, n, seed=k + 1)
    if sign == "positive":
        a, b = np.abs(a), np.abs(b)
    right = product(a, b, add)
    assert family.judge(right, (a, b)).ok
    without = a.copy()
    without[0, k // 2] = 0
    wrongs = {
        "a lost term": product(without, b, add),
        "a swapped pair": swapped(right),
        "operands in float16": product(float16(a), float16(b), add),
        "a result in float16": float16(right),
    }
    if sign == "positive" and k > 10_000:  # the roundings of the operands cancel in a sum of one sign
        del wrongs["operands in float16"]
    for what, wrong in wrongs.items():
        assert not family.judge(wrong, (a, b)).ok, what


def test_a_large_product_is_judged_as_closely() -> None:
    a, b = normal(500, 600), normal(600, 700, seed=1)
    family = FAMILIES["gemm"]
    right = a @ b
    assert family.judge(right, (a, b), alpha=1.0).ok
    wrong = right.copy()
    wrong[77, 99] -= a[77, 5] * b[5, 99]
    assert not family.judge(wrong, (a, b)).ok
    assert not family.judge(float16(a) @ float16(b), (a, b)).ok


# Attention ------------------------------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, weights: Any, skip: int | None = None) -> Any:
    """Return attention by the online algorithm in float32, in tiles of 64 keys. Probabilities are rounded to `weights`
    before the division. skip: the key that is left out."""
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    out, total = np.zeros(q.shape, np.float32), np.zeros((*q.shape[:-1], 1), np.float32)
    top = np.full_like(total, -np.inf)
    for first in range(0, k.shape[2], 64):
        keys = [i for i in range(first, min(first + 64, k.shape[2])) if i != skip]
        scores = q @ k[:, :, keys].swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        higher = np.maximum(top, scores.max(axis=-1, keepdims=True))
        p, kept = np.exp(scores - higher), np.exp(top - higher)
        total = total * kept + p.sum(axis=-1, keepdims=True)
        out = out * kept + p.astype(weights).astype(np.float32) @ v[:, :, keys]
        top = higher
    return out / total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("length", "spread"), [(50, 1.0), (300, 3.0), (1000, 1.0)])
def test_attention(dtype: str, length: int, spread: float) -> None:
    family, kind = FAMILIES["attention"], memory.as_dtype(dtype)
    inputs = family.inputs_for((1, 2, 1, 60, length, 64), kind, np.random.default_rng(length))
    inputs = (inputs[0] * kind.type(spread), *inputs[1:])
    right = attention(*inputs, kind)
    assert family.judge(right.astype(kind), inputs).ok
    wrongs = {"a lost key": attention(*inputs, kind, skip=length // 2), "a swapped pair": swapped(right)}
    if dtype == "float32":
        wrongs["probabilities in float16"] = attention(*inputs, np.float16)
        wrongs["a result in float16"] = float16(right)
    for what, wrong in wrongs.items():
        assert not family.judge(wrong.astype(kind), inputs).ok, what


def test_a_rung_may_have_a_rounding_of_its_own() -> None:
    family = FAMILIES["vector_add"]
    (first, *_) = family.variants
    loose = dataclasses.replace(first, rounding=1e-3)
    inputs = (normal(100), normal(100, seed=1))
    result = inputs[0] + inputs[1] + np.float32(1e-4)
    assert family.judge(result, inputs, loose).ok
    assert not family.judge(result, inputs, first).ok


# The comparison itself ------------------------------------------------------------------------------------------------


def test_whole_numbers_past_float64_are_compared_exactly() -> None:
    for dtype, value in (("int64", 2**60), ("uint64", 2**64 - 2), ("int64", -(2**62))):
        right, wrong = np.array([0, value], dtype), np.array([0, value + 1], dtype)
        for verdict in (compare(wrong, right, right), within(wrong, right, 0.0)):
            assert not verdict.ok
            assert verdict.worst_at == (1,)
        assert compare(right, right, right).ok
        assert within(right, right, 0.0).ok
        assert within(wrong, right, 1.0).ok


def test_complex_numbers_are_compared_in_both_parts() -> None:
    exact = normal(2, 8) + 1j * normal(2, 8, seed=1).astype(np.float64)
    result, limits = exact.astype(np.complex64), np.full((2, 1), 1e-6)
    assert within(result, exact, limits).ok
    assert compare(result, exact, result).ok
    for wrong in (result.conj(), result.real.astype(np.float32), result + np.complex64(1e-5j)):
        assert not within(wrong, exact, limits).ok
        assert not compare(wrong, exact, result).ok
    assert not within(result, exact.real, limits).ok


def set_amplitudes(waves: Any, amplitudes: Any, kind: str) -> Any:
    spectra = np.fft.fft2(waves.astype(kind)).astype(kind)
    return np.fft.ifft2(amplitudes.astype(np.float32) * (spectra / np.abs(spectra)).astype(kind)).astype(kind)


@pytest.mark.parametrize(("count", "size"), [(500, 8), (200, 32), (8, 200)])
def test_images_with_new_amplitudes_are_within_their_bound(count: int, size: int) -> None:
    """The second half has spectra with an element close to 0, whose phase float32 does not know."""
    rng = np.random.default_rng(3)
    waves = (1 + rng.standard_normal((count, size, size)) + 1j * rng.standard_normal((count, size, size))) / 2
    waves = waves.astype(np.complex64)
    half = waves[count // 2 :]
    half -= (np.fft.fft2(half)[:, 1:2, 1:2] / size**2 * np.exp(2j * np.pi * np.add.outer(*2 * [np.arange(size)]) / size)
             ).astype(np.complex64)  # fmt: skip
    amplitudes = np.abs(np.fft.fft2(rng.permutation(waves)))
    exact = set_amplitudes(waves, amplitudes, "complex128")
    bounds = of_set_amplitudes(np.fft.fft2(waves.astype(np.complex128)), amplitudes.astype(np.float32))
    errors = np.abs(set_amplitudes(waves, amplitudes, "complex64") - exact).max(axis=(1, 2))
    assert (errors < bounds).all()
    first = slice(count // 2)
    assert (bounds[first] < 1e-4).all()
    assert errors[count // 2 :].max() > 10 * bounds[first].max(), "the zeros do not test the bound"
    lost = exact[first] - (amplitudes[first, 2, 1] / size**2)[:, None, None]  # the amplitude of one element is lost
    assert (np.abs(lost - exact[first]).max(axis=(1, 2)) > bounds[first]).mean() > 0.99
