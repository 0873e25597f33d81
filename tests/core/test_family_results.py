"""Results of users' families: permitted results of references, and the rounding bound derived from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cudakit import Family
from cudakit.errors import Refused

Array = np.ndarray[Any, Any]
F = np.float32


def family(reference: Any, *inputs: str, **fields: Any) -> Family[Any]:
    """Return a family with a reference and inputs such as "float32[n]", named a, b and so on."""
    named = dict(zip("abcd", inputs, strict=False))
    return Family("mine", reference=reference, inputs=named, shapes=(tuple(8 for _ in _dims(inputs)),), **fields)


def _dims(inputs: tuple[str, ...]) -> list[str]:
    found = [text.partition("[")[2].rstrip("]").split(",") for text in inputs]
    return list(dict.fromkeys(dim.strip() for dims in found for dim in dims))


# References -----------------------------------------------------------------------------------------------------------


def fails(a: Any) -> Any:
    raise KeyError("table")


def writes(a: Any) -> Any:
    a += 1
    return a


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (fails, r"mine fails on float64\[4\]: KeyError: 'table' \(.*test_family_results.py:\d+\)"),
        (writes, r"read-only \(.*test_family_results.py:\d+\)\. Work on a copy: x = x.copy\(\)"),
        (lambda a: None, "mine returns None: return the output"),
        (lambda a: "text", "mine returns a str of <U4: return an array of numbers"),
        (lambda a: [a, a[1:]], "mine returns a list that is not an array"),
        (lambda a: (a, a), "returns 2 outputs, expected 1: return a tuple of all"),
        (lambda a: a + 1j, r"returns complex128, the output is float32: declare outputs=\{"),
    ],
)
def test_a_reference_that_cannot_be_judged_by(reference: Any, text: str) -> None:
    mine = family(reference, "float32[n]")
    host = np.zeros(4, F)
    with pytest.raises(Refused, match=f"family {text}" if text.startswith("mine") else text):
        mine.judge(host, (host,))
    assert not host.any()


def test_a_shape_that_is_not_the_outputs_is_refused() -> None:
    mine = family(lambda a: a.sum(), "float32[n]")
    with pytest.raises(Refused, match=r"family mine: output out has shape \(4,\), the reference returns \(\)"):
        mine.judge(np.zeros(4, F), (np.zeros(4, F),))


def test_a_reference_never_changes_what_the_kernels_are_given() -> None:
    """Integers are neither widened nor copied."""
    mine = family(writes, "int32[n]")
    host = np.zeros(4, np.int32)
    with pytest.raises(Refused, match="read-only"):
        mine.exact((host,), [host.dtype])
    assert not host.any()


def test_results_of_any_kind_of_number_are_arrays() -> None:
    host = np.arange(4, dtype=F)
    for reference in (lambda a: float(a.sum()), lambda a: np.float64(6), lambda a: 6):
        assert family(reference, "float32[n]").judge(np.asarray(6, F), (host,)).ok
    assert family(lambda a: [float(v) for v in a], "float32[n]").judge(host, (host,)).ok
    assert family(lambda a: a > 1, "float32[n]").judge(host > 1, (host,)).ok
    assert family(lambda a: a.astype(np.float32), "float32[n]").judge(host, (host,)).ok


def test_a_reference_that_widens_its_inputs_itself_gets_them_as_they_are() -> None:
    seen = []
    reference = lambda a: seen.append(a.dtype) or a.astype(np.float64)  # noqa: E731
    for widened, dtype in ((True, np.float64), (False, np.float16)):
        mine = family(reference, "float16[n]", widened=widened)
        mine.exact((np.ones(4, np.float16),), [np.dtype(np.float16)])
        assert seen.pop() == dtype


# The bound ------------------------------------------------------------------------------------------------------------


def in_order(terms: Array) -> Array:
    """The sums along the last axis from left to right, in the terms' precision."""
    return np.cumsum(terms, axis=-1, dtype=terms.dtype)[..., -1]


def in_tree(terms: Array) -> Array:
    """The sums along the last axis by halves."""
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate([terms, np.zeros((*terms.shape[:-1], 1), terms.dtype)], -1)
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=F)


def spread(low: float, high: float, count: int = 5000) -> Array:
    return np.random.default_rng(1).uniform(low, high, count).astype(F)


SUM = family(lambda a: a.sum(axis=-1), "float32[rows, cols]")
PREFIX = family(lambda a: np.cumsum(a, axis=-1), "float32[n]")
PRODUCT = family(lambda a, b: a @ b, "float32[m, k]", "float32[k, n]")
SOFTMAX = family(
    lambda a: np.exp(a - a.max(-1, keepdims=True)) / np.exp(a - a.max(-1, keepdims=True)).sum(-1, keepdims=True),
    "float32[rows, cols]",
)
NORM = family(
    lambda a: (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5), "float32[rows, cols]"
)


def _laplacian(a: Array) -> Array:
    return 4 * a[1:-1, 1:-1] - a[:-2, 1:-1] - a[2:, 1:-1] - a[1:-1, :-2] - a[1:-1, 2:]


STENCIL = family(_laplacian, "float32[rows, cols]")
HALVES = family(lambda a: a.mean(axis=-1), "float16[rows, cols]")


def softmax(x: Array, add: Callable[[Array], Array] = in_order, scaled: bool = False) -> Array:
    """scaled: by powers of two of inputs that are multiplied first, as kernels do that call exp2f."""
    if scaled:
        x = x * F(1.4426950408889634)
        powers = np.exp2(x - x.max(-1, keepdims=True))
    else:
        powers = np.exp(x - x.max(-1, keepdims=True))
    return powers * (1 / add(powers)[:, None])


def layer_norm(x: Array, add: Callable[[Array], Array], one_pass: bool = False) -> Array:
    count = F(x.shape[-1])
    mean = (add(x) / count)[:, None]
    variance = (add(x * x) / count)[:, None] - mean * mean if one_pass else (add((x - mean) ** 2) / count)[:, None]
    return (x - mean) * (1 / np.sqrt(variance + F(1e-5)))


def chain(a: Array, b: Array) -> Array:
    """A product of matrices, one term after another."""
    made = np.zeros((a.shape[0], b.shape[1]), F)
    for k in range(a.shape[1]):
        made = made + a[:, k : k + 1].astype(F) * b[k : k + 1].astype(F)
    return made


def in_blocks(x: Array, size: int = 256) -> Array:
    """Prefix sums of blocks, and the sums of the blocks before each."""
    parts = np.cumsum(x.reshape(-1, size), axis=-1, dtype=F)
    before = np.concatenate([[0], np.cumsum(parts[:, -1], dtype=F)[:-1]]).astype(F)
    return (parts + before[:, None]).ravel()


def _correct() -> dict[str, tuple[Family[Any], tuple[Array, ...], Array]]:
    found: dict[str, tuple[Family[Any], tuple[Array, ...], Array]] = {}
    for count in (1000, 1_000_000):
        signed = normal(1, count)
        cancelling = np.concatenate([signed[:, ::2], -signed[:, ::2][:, ::-1]], -1)
        for kind, x in (("signed", signed), ("positive", abs(signed)), ("cancelling", cancelling)):
            found[f"sum of {count} {kind} numbers in order"] = SUM, (x,), in_order(x)
            found[f"sum of {count} {kind} numbers in a tree"] = SUM, (x,), in_tree(x)
    for scale in (1, 10, 1000):
        x = F(scale) * normal(16, 1000)
        found[f"softmax, scale {scale}"] = SOFTMAX, (x,), softmax(x)
        found[f"softmax by exp2, scale {scale}"] = SOFTMAX, (x,), softmax(x, scaled=True)
    x = normal(4, 10_000)
    found["softmax of long rows in order"] = SOFTMAX, (x,), softmax(x)
    found["layer norm of long rows in order"] = NORM, (x,), layer_norm(x, in_order)
    x = normal(16, 1000) + F(3)
    found["layer norm"] = NORM, (x,), layer_norm(x, in_tree)
    found["layer norm in one pass"] = NORM, (x,), layer_norm(x, in_tree, one_pass=True)
    a, b = normal(32, 1000), normal(1000, 24, seed=1)
    found["product of matrices"] = PRODUCT, (a, b), chain(a, b)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        c, d = a[:, :256].astype(dtype), b[:256].astype(dtype)
        halves = family(lambda a, b: a @ b, f"{np.dtype(dtype).name}[m, k]", f"{np.dtype(dtype).name}[k, n]")
        found[f"product of {np.dtype(dtype).name}, in float32"] = halves, (c, d), chain(c, d).astype(dtype)
    x = normal(64, 65) + F(100)
    around = (x[:-2, 1:-1] + x[2:, 1:-1]) + (x[1:-1, :-2] + x[1:-1, 2:])
    found["differences of neighbours in another order"] = STENCIL, (x,), F(4) * x[1:-1, 1:-1] - around
    for kind, x in (("signed", normal(25_600)), ("positive", spread(0, 1, 25_600))):
        found[f"prefix sums of {kind} numbers in order"] = PREFIX, (x,), np.cumsum(x, dtype=F)
        found[f"prefix sums of {kind} numbers in blocks"] = PREFIX, (x,), in_blocks(x)
    x = abs(normal(8, 4096)).astype(np.float16)
    found["means of float16, in float32"] = HALVES, (x,), (in_tree(x.astype(F)) / F(4096)).astype(np.float16)
    x = normal(100_000)
    rounded = family(lambda a: np.round(a * 127) / 127, "float32[n]")
    found["rounding to steps"] = rounded, (x,), np.round(x * F(127)) / F(127)
    for kind, function, x in POINTWISE:
        exact = function(x.astype(np.float64)).astype(F)
        steps = np.random.default_rng(2).integers(-2, 3, x.shape) * np.spacing(abs(exact))
        found[f"{kind}, off by two units in the last place"] = (
            family(function, "float32[n]"),
            (x,),
            exact + F(1) * steps,
        )
    return {name: (mine, inputs, np.asarray(made, made.dtype)) for name, (mine, inputs, made) in found.items()}


def gelu(a: Array) -> Array:
    return 0.5 * a * (1 + np.tanh(0.7978845608 * (a + 0.044715 * a**3)))


POINTWISE: list[tuple[str, Callable[..., Any], Array]] = [
    ("exp", lambda a: np.exp(a), spread(-80, 80)),
    ("log", lambda a: np.log(a), spread(1e-6, 100)),
    ("tanh", lambda a: np.tanh(a), spread(-5, 5)),
    ("gelu", gelu, spread(-5, 5)),
    ("sine", lambda a: np.sin(a), spread(-30, 30)),
]
CORRECT = _correct()


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_algorithm_is_accepted(name: str) -> None:
    mine, inputs, result = CORRECT[name]
    verdict = mine.judge(result, inputs)
    assert verdict.ok, verdict.why


def changed(result: Array, place: Any, value: Any) -> Array:
    made = result.copy()
    made[place] = value
    return made


def _wrong() -> dict[str, tuple[Family[Any], tuple[Array, ...], Array]]:
    found: dict[str, tuple[Family[Any], tuple[Array, ...], Array]] = {}
    for kind, x in (("signed", normal(64, 1000)), ("positive", abs(normal(64, 1000)))):
        sums = in_tree(x)
        found[f"sum without one term of 1000, {kind}"] = SUM, (x,), changed(sums, 63, sums[63] - x[63, 999])
        found[f"sum with a row swapped, {kind}"] = SUM, (x,), changed(sums, [0, 1], sums[[1, 0]])
        found[f"sum off by 1e-4, {kind}"] = SUM, (x,), sums * F(1.0001) if kind == "positive" else sums + F(0.01)
    x = normal(16, 1000)
    y = softmax(x)
    found["softmax without one term"] = SOFTMAX, (x,), softmax(x, lambda powers: in_order(powers) - powers[:, 500])
    found["softmax without its last element"] = SOFTMAX, (x,), changed(y, (15, 999), 0)
    found["softmax off by 1e-4"] = SOFTMAX, (x,), y * F(1.0001)
    found["softmax off by 1e-4 in one element"] = SOFTMAX, (x,), changed(y, (3, 3), y[3, 3] * F(1.0001))
    wide = normal(4, 10_000)
    found["softmax of long rows without one term"] = (
        SOFTMAX, (wide,), softmax(wide, lambda powers: in_order(powers) - powers[:, 500])
    )  # fmt: skip
    found["layer norm by the variance of a sample"] = NORM, (x,), layer_norm(x, in_tree) * F(np.sqrt(999 / 1000))
    found["layer norm whose mean lacks a term"] = (
        NORM, (x,), layer_norm(x, lambda terms: in_tree(terms) - terms[:, 500] * (terms[0, 0] == x[0, 0]))
    )  # fmt: skip
    a, b = normal(32, 1000), normal(1000, 24, seed=1)
    c = chain(a, b)
    found["product without the last term"] = PRODUCT, (a, b), c - a[:, -1:] * b[-1:]
    found["product whose last row lacks a term"] = PRODUCT, (a, b), changed(c, 31, c[31] - a[31, 999] * b[999])
    cut = [(one.view(np.uint32) & 0xFFFFE000).view(F) for one in (a, b)]
    found["product of inputs cut to tf32"] = PRODUCT, (a, b), cut[0] @ cut[1]
    square = normal(33, 33)
    transposed = family(lambda a: a.T, "float32[rows, cols]")
    found["transpose that is none"] = transposed, (square,), square
    found["transpose with a wrong edge"] = transposed, (square,), changed(square.T, (32, 32), square[31, 32])
    found["transpose that rounds"] = transposed, (square,), changed(square.T, (3, 3), square[3, 3] * F(1 + 4e-6))
    x = normal(64, 65)
    y = _laplacian(x)
    found["stencil without a neighbour at the edge"] = STENCIL, (x,), changed(y, (..., -1), y[:, -1] + x[1:-1, -1])
    found["stencil off by 1e-4"] = STENCIL, (x,), y * F(1.0001)
    for kind, x in (("signed", normal(2560)), ("positive", spread(0, 1, 2560))):
        y = in_blocks(x)
        found[f"prefix sums without one term, {kind}"] = PREFIX, (x,), changed(y, slice(1280, None), y[1280:] - x[700])
        found[f"prefix sums off by one, {kind}"] = PREFIX, (x,), np.concatenate([np.zeros(1, F), y[:-1]])
    x = abs(normal(8, 4096)).astype(np.float16)
    found["means of float16 summed in float16"] = HALVES, (x,), in_order(x) / np.float16(4096)
    x = normal(100_000)
    y = np.round(x * F(127)) / F(127)
    rounded = family(lambda a: np.round(a * 127) / 127, "float32[n]")
    found["one of many steps off by one"] = rounded, (x,), changed(y, 7, y[7] + F(1 / 127))
    table, places = normal(10_000), np.random.default_rng(3).integers(0, 10_000, 50)
    gathered = family(lambda a, b: a[b], "float32[k]", "int64[n]")
    off = changed(table[places], 3, table[places][3] * F(1.00001))
    found["one gathered element off by 1e-5"] = gathered, (table, places), off
    rows, weights = normal(1000, 64), normal(64)
    scaled = family(lambda a, b: a * b, "float32[rows, cols]", "float32[cols]")
    off = changed(rows * weights, (5, 5), rows[5, 5] * weights[5] * F(1.00001))
    found["one scaled element off by 1e-5"] = scaled, (rows, weights), off
    for kind, function, x in POINTWISE:
        y = function(x.astype(np.float64)).astype(F)
        middle = int(np.argsort(abs(y))[len(y) // 2])
        found[f"{kind} off by 1e-4"] = family(function, "float32[n]"), (x,), y * F(1.0001)
        off = changed(y, middle, y[middle] * F(1.0001))
        found[f"{kind} off by 1e-4 in one element"] = family(function, "float32[n]"), (x,), off
    doubles = normal(1000).astype(np.float64)
    found["float64 summed in float32"] = (
        family(lambda a: a.sum(), "float64[n]"), (doubles,), np.asarray(in_tree(doubles.astype(F)), np.float64)
    )  # fmt: skip
    return found


WRONG = _wrong()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_rejected(name: str) -> None:
    mine, inputs, result = WRONG[name]
    assert not mine.judge(result, inputs).ok
