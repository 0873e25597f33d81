"""The approximate functions: ex2, lg2, sin, cos, tanh, rsqrt, and rcp, sqrt and div with ``.approx`` or ``.full``.

ex2, rcp and div of f32 have the bits of an H200 (``measured``). Each other one is computed in float64 and rounded once,
so it stays within every error bound of the PTX ISA (2 ulp for rsqrt and sqrt; 2^-20.5 absolute for sin and cos between
-pi and pi, 2^-22 for lg2, 2^-11 relative for tanh), but its bits can differ from a GPU's: an H200 differs by at most
2 ulp for rsqrt and sqrt. Its sin of an argument below about 2^-24 is 0, and its sin and cos of large arguments are
inaccurate.
``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` read the upper 32 bits of their operand and return 20 bits of
fraction, like the hardware, which uses them to start Newton's iteration.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudakit.sim.values import measured
from cudakit.sim.values.lanewise import F16, F32, F64, U32, U64, Array, Form, Spec, blocked, builds, packed
from cudakit.sim.values.rounding import (
    bfloat_to_f32,
    canonical16,
    canonical32,
    flush16,
    flush32,
    half_to_f32,
    odd_to_bfloat,
    quiet64,
)

UPPER = np.uint64(0xFFFFFFFF00000000)
SEED_NAN = np.uint64(0x7FFFFFFF00000000)


def _form32(spec: Spec, count: int, function: Callable[..., Array]) -> Form:
    """A form of f32 from a function of float64 arrays."""
    ftz = spec.flag("ftz")
    spec.finish()

    def run(*operands: Array) -> Array:
        values = [(flush32(operand) if ftz else operand).view(F32).astype(F64) for operand in operands]
        bits = canonical32(function(*values).astype(F32))
        return flush32(bits) if ftz else bits

    return Form(blocked(run, U32), ("f32",), ("f32",) * count)


def _form16(spec: Spec, kind: str, function: Callable[[Array], Array]) -> Form:
    ftz = spec.flag("ftz")
    spec.finish()
    is_bfloat = kind.startswith("bf16")

    def run(a: Array) -> Array:
        if is_bfloat:
            if ftz:
                a = np.where((a & np.uint16(0x7F80)) == 0, a & np.uint16(0x8000), a)
            bits = odd_to_bfloat(function(bfloat_to_f32(a).astype(F64)))
            return np.where((bits & np.uint16(0x7F80)) == 0, bits & np.uint16(0x8000), bits) if ftz else bits
        value = function(half_to_f32(flush16(a) if ftz else a).astype(F64))
        bits = canonical16(value.astype(F16))
        return flush16(bits) if ftz else bits

    return Form(packed(run) if kind.endswith("x2") else run, (kind,), (kind,))


def _reciprocal_root(a: Array) -> Array:
    root: Array = np.float64(1) / np.sqrt(a)
    return root


FUNCTIONS: dict[str, tuple[np.ufunc, tuple[str, ...]]] = {
    "ex2": (np.exp2, ("f32", "f16", "f16x2", "bf16", "bf16x2")),
    "lg2": (np.log2, ("f32",)),
    "sin": (np.sin, ("f32",)),
    "cos": (np.cos, ("f32",)),
    "tanh": (np.tanh, ("f32", "f16", "f16x2", "bf16", "bf16x2")),
}


@builds(*FUNCTIONS)
def _function(spec: Spec) -> Form:
    function, kinds = FUNCTIONS[spec.instruction.opcode]
    kind = spec.kind(*kinds)
    if not spec.flag("approx"):
        spec.refuse("only .approx is PTX")
    if kind == "f32" and function is np.exp2:
        return _power_of_two(spec)
    return _form32(spec, 1, function) if kind == "f32" else _form16(spec, kind, function)


def _power_of_two(spec: Spec) -> Form:
    ftz = spec.flag("ftz")
    spec.finish()

    def run(a: Array) -> Array:
        bits = canonical32(measured.exp2((flush32(a) if ftz else a).view(F32)))
        return flush32(bits) if ftz else bits

    return Form(blocked(run, U32), ("f32",), ("f32",))


def _seed64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A form of f64 with 20 bits of fraction from the upper word, subnormals flushed, like the hardware's."""

    def run(a: Array) -> Array:
        upper = a & UPPER
        upper = np.where((upper & np.uint64(0x7FF << 52)) == 0, upper & np.uint64(1 << 63), upper)
        value = function(upper.view(F64))
        bits = np.where(value != value, SEED_NAN, value.view(U64))
        rounded = np.where(
            (bits & np.uint64(0x7FF << 52)) == np.uint64(0x7FF << 52), bits, (bits + np.uint64(1 << 31)) & UPPER
        )
        return np.where((rounded & np.uint64(0x7FF << 52)) == 0, rounded & np.uint64(1 << 63), rounded)

    return run


def _inverse(a: Array) -> Array:
    inverse: Array = np.float64(1) / a
    return inverse


def build_reciprocal(spec: Spec) -> Form:
    """rcp.approx."""
    kind = spec.kind("f32", "f64")
    spec.flag("approx")
    if kind == "f32":
        return _form32(spec, 1, measured.reciprocal)
    if not spec.flag("ftz"):
        spec.refuse("rcp.approx of .f64 is .ftz")
    spec.finish()
    return Form(_seed64(_inverse), ("f64",), ("f64",))


@builds("rsqrt")
def _rsqrt(spec: Spec) -> Form:
    kind = spec.kind("f32", "f64")
    if not spec.flag("approx"):
        spec.refuse("only .approx is PTX")
    if kind == "f32":
        return _form32(spec, 1, _reciprocal_root)
    seed = spec.flag("ftz")
    spec.finish()
    if seed:
        return Form(_seed64(_reciprocal_root), ("f64",), ("f64",))
    return Form(lambda a: quiet64(_reciprocal_root(a.view(F64)), a), ("f64",), ("f64",))


def build_root(spec: Spec) -> Form:
    """sqrt.approx.f32."""
    spec.kind("f32")
    spec.flag("approx")
    return _form32(spec, 1, np.sqrt)


def build_divide_approximate(spec: Spec) -> Form:
    """div.approx.f32 and div.full.f32."""
    spec.kind("f32")
    if spec.flag("full"):
        return _form32(spec, 2, measured.quotient)
    spec.flag("approx")

    def run(a: Array, b: Array) -> Array:
        # 1 / b is subnormal and flushed: the result is a * 0
        flushed = (np.abs(b) > 2.0**126) & np.isfinite(b)
        return np.where(flushed, a * np.copysign(np.float64(0), b), measured.quotient(a, b))

    return _form32(spec, 2, run)
