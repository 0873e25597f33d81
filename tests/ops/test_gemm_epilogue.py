"""The fused epilogue of 16-bit products: scale * activation(alpha * a @ b + beta * c + bias) + residual."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.gemm_half import FAMILY, problem
from cudakit.memory import array as memory

FUNCTIONS = {
    None: lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + math.exp(min(700, -2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "silu": lambda x: x / (1 + math.exp(min(700, -x))),
}
CURVED = ("gelu", "gelu_tanh", "silu")
FUSED = ("pipelined", "packed")


def normal(*shape: int, seed: int = 1, dtype: str = "float16") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values.astype(memory.as_dtype(dtype))


def formula(activation: str | None, x: np.ndarray) -> np.ndarray:
    return np.vectorize(FUNCTIONS[activation], otypes=[float])(x.astype(np.float64))


def of_bias(device: cudakit.Device, x: np.ndarray, activation: str, dtype: str = "float32") -> np.ndarray:
    """Return the activation of float32 numbers, computed by a kernel: they are the bias of a product without terms."""
    kind = memory.as_dtype("bfloat16" if dtype == "bfloat16" else "float16")
    a, b = (device.empty(shape, kind) for shape in ((len(x), 0), (0, x.shape[1])))
    return ops.gemm(a, b, bias=device.array(x), activation=activation, dtype=dtype).numpy()


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("result", ["operands'", "float32"])
def test_every_part_in_order(
    device: cudakit.Device, name: str, dtype: str, activation: str | None, result: str
) -> None:
    """More than one tile, in each dimension and partial. packed: B has no 16-byte pieces."""
    m, n, k = 136, 72 if name == "pipelined" else 73, 40
    a, b, bias = normal(m, k, dtype=dtype), normal(k, n, seed=2, dtype=dtype), normal(n, seed=3, dtype=dtype)
    out_dtype = dtype if result == "operands'" else result
    c, residual = normal(m, n, seed=4, dtype=out_dtype), normal(m, n, seed=5, dtype=out_dtype)
    made = ops.gemm(
        *map(device.array, (a, b)),
        c=device.array(c),
        alpha=0.25,
        beta=-2.0,
        bias=device.array(bias),
        activation=activation,
        scale=1.5,
        residual=device.array(residual),
        dtype=out_dtype,
        variant=name,
    ).numpy()
    a, b, c, bias, residual = (x.astype(np.float64) for x in (a, b, c, bias, residual))
    exact = 1.5 * formula(activation, 0.25 * a @ b - 2 * c + bias) + residual
    digits = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-18}[out_dtype]
    np.testing.assert_allclose(made.astype(np.float64), exact, rtol=digits, atol=2.0**-18)


@pytest.mark.parametrize("activation", CURVED)
def test_activations_have_the_precision_of_float32(device: cudakit.Device, activation: str) -> None:
    rng = np.random.default_rng(1)
    large = 10.0 ** rng.uniform(-30, 37, 2000)
    x = np.concatenate([rng.uniform(-15, 15, 8000), rng.standard_normal(4240), large, -large]).astype(np.float32)
    made = of_bias(device, x.reshape(40, -1), activation).ravel().astype(np.float64)
    exact, size = formula(activation, x), np.abs(x).astype(np.float64)
    assert (np.abs(made - exact) <= 2.0**-22 * size).all()
    seen = np.abs(exact) > 1e-3  # within a twentieth of half a step of float16, in the tails too
    assert (np.abs(made - exact) <= 1.2e-5 * np.abs(exact))[seen].all()


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_gelu_is_rounded_like_the_exact_value(device: cudakit.Device, dtype: str, bits: int) -> None:
    """Within 1.05 half steps of the result's type; in the far tails within 1e-8 and a half step. For results
    of 16 bits the kernels have shorter polynomials, unless there is a residual."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-16, 16, 12_000), rng.standard_normal(8_000)]).astype(np.float32)
    made = of_bias(device, x.reshape(40, -1), "gelu", dtype).ravel().astype(np.float64)
    exact = formula("gelu", x)
    half_step = 2.0 ** (np.floor(np.log2(np.abs(exact))) - bits)
    error = np.abs(made - exact)
    seen = np.abs(exact) > 1e-4
    assert (error <= 1.05 * half_step)[seen].all()
    smallest = 2.0**-25 if dtype == "float16" else 0.0
    assert (error <= 1e-8 + np.maximum(half_step, smallest))[~seen].all()


@pytest.mark.parametrize("activation", ["relu", *CURVED])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_activations_of_infinities_and_nan(device: cudakit.Device, activation: str, dtype: str) -> None:
    x = np.array([[np.inf, -np.inf, np.nan, 3.3e38, -3.3e38, -0.0, -100.0, -1e4]], np.float32)
    made = of_bias(device, x, activation, dtype)[0].astype(np.float32)
    with np.errstate(over="ignore"):
        largest = np.float32(3.3e38).astype(memory.as_dtype(dtype)).astype(np.float32)
    np.testing.assert_array_equal(made, np.array([np.inf, 0, np.nan, largest, 0, 0, 0, 0], np.float32))


def test_the_result_is_rounded_once(device: cudakit.Device) -> None:
    """Steps of half precision are 2 from 2,048 on: 2048 + 1, rounded, is 2048 again, and so is that plus 1."""
    a, b = device.array(np.full((8, 8), 16, np.float16)), device.array(np.full((8, 8), 16, np.float16))
    one = device.array(np.ones((8, 8), np.float16))
    assert (ops.gemm(a, b, bias=one[0], residual=one).numpy() == 2050).all()
    assert (ops.gemm(a, b, bias=one[0], scale=3.0, activation="relu").numpy() == np.float16(3 * 2049)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "shape", [(24,), (1, 24), (16, 1), (16, 24), (1,), (1, 1, 24), (3, 1, 1), (3, 16, 1), (3, 1, 24), (3, 16, 24)]
)
@pytest.mark.parametrize("out", ["rows", "columns"])
def test_a_bias_is_broadcast(device: cudakit.Device, dtype: str, shape: tuple[int, ...], out: str) -> None:
    """As numpy broadcasts it, also if the kernel computes the transposed product."""
    a, b = normal(3, 16, 8), normal(3, 8, 24, seed=2)
    bias = normal(*shape, seed=3, dtype=dtype)
    to = device.zeros((3, 16, 24), np.float16)
    if out == "columns":
        to = device.zeros((3, 24, 16), np.float16).transpose(0, 2, 1)
    ops.gemm(device.array(a), device.array(b), to, bias=device.array(bias))
    exact = a.astype(np.float64) @ b + bias
    np.testing.assert_allclose(to.numpy(), exact, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("layout", ["transposed", "reversed", "every other column"])
def test_a_residual_has_any_strides(device: cudakit.Device, layout: str) -> None:
    a, b = normal(16, 8), normal(8, 24, seed=2)
    residual, of = {
        "transposed": (normal(24, 16, seed=3), lambda x: x.T),
        "reversed": (normal(16, 24, seed=3), lambda x: x[::-1, ::-1]),
        "every other column": (normal(16, 48, seed=3), lambda x: x[:, ::2]),
    }[layout]
    made = ops.gemm(device.array(a), device.array(b), residual=of(device.array(residual))).numpy()
    np.testing.assert_allclose(made, a.astype(np.float64) @ b + of(residual), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
def test_the_residual_may_be_the_output(device: cudakit.Device, name: str) -> None:
    a, b, x = normal(136, 16), normal(16, 72, seed=2), normal(136, 72, seed=3)
    out = device.array(x)
    made = ops.gemm(device.array(a), device.array(b), out, residual=out, activation="relu", variant=name)
    assert made is out
    exact = np.maximum(a.astype(np.float64) @ b, 0) + x
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-3, atol=1e-5)


def test_each_batch_has_its_own_residual(device: cudakit.Device) -> None:
    a, b, residual = normal(3, 16, 8), normal(8, 24, seed=2), normal(3, 24, 16, seed=3)
    placed = device.array(residual).transpose(0, 2, 1)
    made = ops.gemm(device.array(a), device.array(b), residual=placed, activation="relu").numpy()
    exact = np.maximum(a.astype(np.float64) @ b, 0) + residual.transpose(0, 2, 1)
    np.testing.assert_allclose(made, exact, rtol=1e-3, atol=1e-5)


def test_later_calls_use_their_own_arrays_and_numbers(device: cudakit.Device) -> None:
    """The second and later calls of a kind reuse the first one's launch."""
    a, b = device.array(normal(8, 8)), device.array(normal(8, 8, seed=2))
    product = ops.gemm(a, b, dtype="float32").numpy()
    for scale, seed, activation in ((2.0, 3, None), (2.0, 4, None), (-0.5, 4, None), (1.0, 4, None), (2.0, 4, "relu")):
        bias = normal(8, seed=seed, dtype="float32")
        made = ops.gemm(a, b, bias=device.array(bias), scale=scale, activation=activation, dtype="float32").numpy()
        np.testing.assert_allclose(made, scale * formula(activation, product + bias), rtol=1e-5, atol=1e-6)
    x = normal(8, 8, seed=5, dtype="float32")
    relu = {"activation": "relu", "dtype": "float32"}
    for name, exact in (("bias", np.maximum(product + x, 0)), ("residual", np.maximum(product, 0) + x)):
        made = ops.gemm(a, b, **{name: device.array(x)}, **relu).numpy()
        np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-6)
    for scale in (1.0, 3.0, 1.0):
        assert np.array_equal(ops.gemm(a, b, scale=scale, dtype="float32").numpy(), np.float32(scale) * product)


def test_a_later_call_may_pass_arrays_at_odd_addresses(device: cudakit.Device) -> None:
    """Two elements are loaded at once only if their address is a multiple of their size."""
    a, b, numbers = normal(136, 16), normal(16, 72, seed=2), normal(137 * 72, seed=3)
    of_a, of_b, held = map(device.array, (a, b, numbers))
    for start in (0, 2, 1, 0, 3):
        host, ours = numbers[start:][: 136 * 72].reshape(136, 72), held[start:][: 136 * 72].reshape(136, 72)
        exact = {"residual": host, "bias": host[0]}
        for names in (("residual",), ("bias",), ("residual", "bias")):
            given = {name: ours if name == "residual" else ours[0] for name in names}
            made = ops.gemm(of_a, of_b, **given).numpy()
            expected = a.astype(np.float64) @ b + sum(exact[name] for name in names)
            np.testing.assert_allclose(made, expected, rtol=1e-3, atol=2e-3)


def test_the_check_of_results_detects_wrong_epilogues() -> None:
    a, b, bias = normal(16, 64), normal(64, 16, seed=2), normal(16, seed=3)
    arrays, options = (a, b, bias), {"added": "bias", "activation": "gelu", "dtype": "float32"}
    right = FAMILY.exact(arrays, **options).astype(np.float32)
    assert FAMILY.judge(right, arrays, **options).ok
    for wrong in ({"activation": "gelu_tanh"}, {"activation": "relu"}, {"scale": 1.00001}):
        other = FAMILY.exact(arrays, **{**options, **wrong}).astype(np.float32)
        assert not FAMILY.judge(other, arrays, **options).ok, wrong
    without = FAMILY.exact((a, b), **{**options, "added": ""}).astype(np.float32)
    assert not FAMILY.judge(without, arrays, **options).ok


def test_traffic_counts_bias_and_residual(sim: cudakit.Device) -> None:
    a, b, out = (sim.zeros(shape, np.float16) for shape in ((16, 8), (8, 24), (16, 24)))
    row, col = sim.zeros((16, 1), np.float32), sim.zeros((24,), np.float16)
    plain = FAMILY.traffic_of(problem((a, b), out), (a, b), out)
    for arrays, added, extra in (((row,), "bias", 16 * 4), ((col, out), "bias residual", 24 * 2 + 16 * 24 * 2)):
        inputs = (a, b, *arrays)
        assert FAMILY.traffic_of(problem(inputs, out, added=added), inputs, out) == plain + extra


# Refused calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"activation": "relu"}, {"scale": 2.0}, {"bias": (8,)}, {"residual": (8, 8)}])
def test_simple_variants_and_float32_refuse_an_epilogue(sim: cudakit.Device, given: dict[str, Any]) -> None:
    def called(dtype: str, variant: str) -> None:
        a = sim.zeros((8, 8), memory.as_dtype(dtype))
        arrays = {name: sim.zeros(x, a.dtype) if isinstance(x, tuple) else x for name, x in given.items()}
        ops.gemm(a, a, variant=variant, **arrays)

    for name in ("wmma", "ldmatrix", "swizzled"):
        with pytest.raises(cudakit.UnsupportedVariant, match="has no fused epilogue"):
            called("float16", name)
    with pytest.raises(ValueError, match="a product of float32 has no bias, activation, residual or scale"):
        called("float32", "auto")
    called("float16", "auto")


def test_a_later_call_with_a_scale_is_refused_too(sim: cudakit.Device) -> None:
    """A call with another number reuses the launch of an earlier one, unless the variant does not support it."""
    a = sim.array(normal(8, 8))
    FAMILY(a, a, scale=1.0, variant="wmma")
    with pytest.raises(cudakit.UnsupportedVariant, match="has no fused epilogue"):
        FAMILY(a, a, scale=2.0, variant="wmma")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "gelo"}, r"must be None or one of 'relu', .*, got 'gelo'. Did you mean 'gelu'\?"),
        ({"bias": ((16,), "float16")}, r"bias has shape \(16,\), which does not broadcast .* \(16, 24\): pass \(24,\)"),
        ({"bias": ((1, 16, 24), "float16")}, "does not broadcast"),
        ({"bias": ((24,), "bfloat16")}, "bias of a product of float16 must be float16 or float32, got bfloat16"),
        ({"residual": ((24,), "float16")}, r"has shape \(16, 24\), but the residual has \(24,\)"),
        ({"residual": ((16, 24), "float32")}, "must have one dtype, got residual float32 and output float16"),
    ],
)
def test_wrong_arrays_are_refused(sim: cudakit.Device, options: dict[str, Any], words: str) -> None:
    a, b = sim.zeros((16, 8), np.float16), sim.zeros((8, 24), np.float16)
    given = {name: sim.zeros(x[0], memory.as_dtype(x[1])) if isinstance(x, tuple) else x for name, x in options.items()}
    with pytest.raises(ValueError, match=words):
        ops.gemm(a, b, **given)


def test_an_output_over_a_part_of_its_operands_is_refused(sim: cudakit.Device) -> None:
    a = sim.zeros((8, 8), np.float16)
    rows = sim.zeros((12, 8), np.float16)
    out = rows[:8]
    ops.gemm(a, a, out, residual=out)
    with pytest.raises(ValueError, match="the residual and the output overlap without being the same array"):
        ops.gemm(a, a, out, residual=rows[4:])
    with pytest.raises(ValueError, match="the output of a product overlaps the bias"):
        ops.gemm(a, a, out, bias=rows[7])
    other = cudakit.Device("sim")
    try:
        with pytest.raises(cudakit.DeviceMismatch):
            ops.gemm(a, a, bias=other.zeros((8,), np.float16))
    finally:
        other.close()


@pytest.mark.parametrize(
    ("arrays", "added", "words"),
    [
        (1, "c bias", "names 2 arrays after A and B, got 1"),
        (1, "offset", "must name each array once, of c, bias, residual"),
        (2, "c c", "must name each array once"),
    ],
)
def test_names_of_the_added_arrays_are_checked(sim: cudakit.Device, arrays: int, added: str, words: str) -> None:
    a = sim.zeros((8, 8), np.float16)
    with pytest.raises(ValueError, match=words):
        problem((a, a, *[a] * arrays), sim.zeros((8, 8), np.float16), added=added)
