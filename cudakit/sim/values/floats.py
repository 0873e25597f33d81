"""Floating-point arithmetic with exact rounding: add, sub, mul, fma, mad, div, rcp, sqrt, abs, neg, min, max, copysign
and testp of f32, f64, f16, bf16 and the packed pairs. Their ``.approx`` forms are in ``approximations``.

NaN results are the hardware's (an H200's if PTX leaves them open): 0x7fffffff for f32, 0x7fff for f16 and bf16. f64
keeps an operand's NaN, made quiet; an invalid operation returns 0xfff8000000000000. ``.ftz`` flushes a result to zero
if, rounded with an unlimited exponent range, it would be below the normal range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.values.approximations import build_divide_approximate, build_reciprocal, build_root
from cudakit.sim.values.integers import (
    build_div,
    build_extremum,
    build_mad,
    build_mul,
    build_sign,
    build_sum,
    is_integer,
    same,
)
from cudakit.sim.values.lanewise import (
    F16,
    F32,
    F64,
    U16,
    U32,
    Array,
    Form,
    Run,
    Spec,
    blocked,
    builds,
    packed,
    some,
)
from cudakit.sim.values.rounding import (
    INFINITY64,
    NAN16,
    NAN32,
    QUIET64,
    add32,
    bfloat_to_f32,
    canonical16,
    canonical32,
    div32,
    exact64,
    flush16,
    flush32,
    fma32,
    fma64,
    half_to_f32,
    mul32,
    odd_sum,
    odd_to_bfloat,
    odd_to_half,
    quiet64,
    sqrt32,
)
from cudakit.sim.values.selection import reader

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_SIGN: dict[str, Any] = {
    "f16": np.uint16(0x8000),
    "bf16": np.uint16(0x8000),
    "f32": np.uint32(1 << 31),
    "f64": np.uint64(1 << 63),
}
_INFINITY: dict[str, Any] = {
    "f16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
    "f32": np.uint32(0x7F800000),
    "f64": INFINITY64,
}
_NAN: dict[str, Any] = {"f16": NAN16, "bf16": NAN16, "f32": NAN32}


def saturate32(bits: Array) -> Array:
    """float32 patterns clamped to [+0, 1], NaN to +0."""
    # adding +0 turns -0 into +0
    clamped: Array = np.minimum(np.fmax(bits.view(F32), np.float32(0)), np.float32(1)) + np.float32(0)
    return clamped.view(U32)


def saturate16(bits: Array) -> Array:
    value = bits.view(F16)
    clamped: Array = np.where(value > 0, np.minimum(value, np.float16(1)), np.float16(0)).view(U16)
    return clamped


def rectify16(bits: Array) -> Array:
    """16-bit float patterns with negative ones replaced by +0. NaN must be canonical (positive)."""
    return np.where((bits & np.uint16(0x8000)) != 0, np.uint16(0), bits)


# a smaller result rounds, with an unlimited exponent range, to less than the smallest normal number
_NORMAL32, _NORMAL16 = 2.0**-126, 2.0**-14
_ZERO = np.zeros((), np.float32)
BELOW32 = {"rn": _NORMAL32 * (1 - 2.0**-25), "rz": _NORMAL32, "away": _NORMAL32 * (1 - 2.0**-24)}
BELOW16 = _NORMAL16 * (1 - 2.0**-12)


def _flush_result32(bits: Array, exact: Callable[[], Array], mode: str) -> Array:
    """Results with subnormals flushed to zero, including those that reached the smallest normal number only by rounding
    to the shorter significand of a subnormal. ``exact`` returns the results in float64, far more precise than
    float32."""
    bits = flush32(bits)
    smallest = (bits & np.uint32(0x7FFFFFFF)) == np.uint32(0x00800000)
    if not some(smallest):
        return bits
    size = np.abs(exact())
    if mode in ("rn", "rz"):
        below = size < BELOW32[mode]
    else:
        away = (bits >> np.uint32(31)) == (np.uint32(1) if mode == "rm" else np.uint32(0))
        below = np.where(away, size <= BELOW32["away"], size < BELOW32["rz"])
    return np.where(smallest & below, bits & np.uint32(0x80000000), bits)


def _form32(
    spec: Spec,
    count: int,
    function: Callable[..., Array],
    mode: str = "rn",
    exact: Callable[..., Array] | None = None,
) -> Form:
    """A form of f32 from a function of float32 arrays to patterns; ftz and sat are read here. ``exact`` computes the
    results in float64; it is needed if results below the normal range may be rounded."""
    ftz, sat = spec.flag("ftz"), spec.flag("sat")
    spec.finish()

    plain: Run
    if count == 2:
        plain = lambda a, b: canonical32(function(a.view(F32), b.view(F32)).view(F32))  # noqa: E731
    else:
        plain = lambda *operands: canonical32(function(*[o.view(F32) for o in operands]).view(F32))  # noqa: E731

    def modified(*operands: Any) -> Array:
        values = [(flush32(operand) if ftz else operand).view(F32) for operand in operands]
        bits = canonical32(function(*values).view(F32))
        if ftz and exact is not None:
            bits = _flush_result32(bits, lambda: exact(*[value.astype(F64) for value in values]), mode)
        elif ftz:
            bits = flush32(bits)
        return saturate32(bits) if sat else bits

    return Form(modified if ftz or sat else plain, ("f32",), ("f32",) * count)


def _form64(spec: Spec, preference: tuple[int, ...], function: Callable[..., Array]) -> Form:
    """A form of f64 from a function of float64 arrays; ``preference``: the order in which operands' NaNs are kept."""
    spec.finish()

    def run(*operands: Any) -> Array:
        result = function(*[operand.view(F64) for operand in operands])
        return quiet64(result, *[operands[place] for place in preference])

    return Form(run, ("f64",), ("f64",) * len(preference))


def _form16(
    spec: Spec,
    kind: str,
    count: int,
    function: Callable[..., Array],
    exact: Callable[..., Array] | None = None,
) -> Form:
    """A form of f16, bf16 or their pairs, from a function of float32 arrays to canonical 16-bit patterns. ``exact`` is
    as for ``_form32``."""
    is_bfloat = kind.startswith("bf16")
    ftz, sat, relu = spec.flag("ftz"), spec.flag("sat"), spec.flag("relu")
    spec.finish()
    if is_bfloat and (ftz or sat):
        spec.refuse("bf16 takes neither .ftz nor .sat")
    read = bfloat_to_f32 if is_bfloat else half_to_f32

    def run(*operands: Array) -> Array:
        values = [read(flush16(operand) if ftz else operand) for operand in operands]
        bits = function(*values)
        if ftz:
            bits = flush16(bits)
            smallest = (bits & np.uint16(0x7FFF)) == np.uint16(0x0400)
            if exact is not None and some(smallest):
                below = np.abs(exact(*[value.astype(F64) for value in values])) < BELOW16
                bits = np.where(smallest & below, bits & np.uint16(0x8000), bits)
        if relu:
            bits = rectify16(bits)
        return saturate16(bits) if sat else bits

    return Form(packed(run) if kind.endswith("x2") else run, (kind,), (kind,) * count)


def _nearest_only(spec: Spec) -> None:
    if spec.rounding() != "rn":
        spec.refuse("16-bit formats round to nearest")


@builds("add", "sub")
def _sum(spec: Spec) -> Form:
    if is_integer(spec):
        return build_sum(spec)
    kind = spec.kind(*FLOATS)
    subtract = spec.instruction.opcode == "sub"
    if kind == "f32":
        mode = spec.rounding()
        if mode == "rn":
            function: Any = np.subtract if subtract else np.add
            return _form32(spec, 2, function)
        return _form32(spec, 2, lambda a, b: add32(a, -b if subtract else b, mode))
    if kind == "f64":
        mode = spec.rounding()
        if mode == "rn":
            return _form64(spec, (1, 0), np.subtract if subtract else np.add)
        return _form64(spec, (1, 0), lambda a, b: exact64("add", mode, a, -b if subtract else b))
    _nearest_only(spec)
    if kind.startswith("bf16"):
        return _form16(
            spec,
            kind,
            2,
            lambda a, b: odd_to_bfloat(odd_sum(a.astype(F64), -b.astype(F64) if subtract else b.astype(F64))),
        )
    # float32 has more than 2 * 11 + 2 significand bits, so rounding twice is correct
    return _form16(spec, kind, 2, lambda a, b: canonical16((a - b if subtract else a + b).astype(F16)))


@builds("mul")
def _mul(spec: Spec) -> Form:
    if is_integer(spec):
        return build_mul(spec)
    kind = spec.kind(*FLOATS)
    if kind == "f32":
        mode = spec.rounding()
        if mode == "rn":
            return _form32(spec, 2, np.multiply, mode, np.multiply)
        return _form32(spec, 2, lambda a, b: mul32(a, b, mode), mode, np.multiply)
    if kind == "f64":
        mode = spec.rounding()
        if mode == "rn":
            return _form64(spec, (1, 0), np.multiply)
        return _form64(spec, (1, 0), lambda a, b: exact64("mul", mode, a, b))
    _nearest_only(spec)
    if kind.startswith("bf16"):
        return _form16(spec, kind, 2, lambda a, b: odd_to_bfloat(a.astype(F64) * b.astype(F64)))
    return _form16(spec, kind, 2, lambda a, b: canonical16((a * b).astype(F16)), np.multiply)


@builds("fma", "mad")
def _fma(spec: Spec) -> Form:
    if is_integer(spec):
        return build_mad(spec)
    kind = spec.kind(*FLOATS)
    if kind == "f32":
        mode = spec.required_rounding()
        rounded = blocked(lambda a, b, c: fma32(a, b, c, mode), U32)
        return _form32(spec, 3, rounded, mode, lambda a, b, c: odd_sum(a * b, c))
    if kind == "f64":
        mode = spec.required_rounding()
        if mode == "rn":
            return _form64(spec, (1, 2, 0), blocked(fma64, F64))
        return _form64(spec, (1, 2, 0), lambda a, b, c: exact64("fma", mode, a, b, c))
    if spec.instruction.opcode == "mad":
        spec.refuse()
    if spec.required_rounding() != "rn":
        spec.refuse("16-bit formats round to nearest")
    to = odd_to_bfloat if kind.startswith("bf16") else odd_to_half

    def exact(a: Array, b: Array, c: Array) -> Array:
        return odd_sum(a.astype(F64) * b.astype(F64), c.astype(F64))

    return _form16(spec, kind, 3, blocked(lambda a, b, c: to(exact(a, b, c)), U16), exact)


@builds("div")
def _div(spec: Spec) -> Form:
    if is_integer(spec):
        return build_div(spec)
    if "approx" in spec.rest or "full" in spec.rest:
        return build_divide_approximate(spec)
    kind = spec.kind("f32", "f64")
    mode = spec.required_rounding()
    if kind == "f32":
        return _form32(spec, 2, lambda a, b: div32(a, b, mode), mode, np.divide)
    if mode == "rn":
        return _form64(spec, (0, 1), np.divide)
    return _form64(spec, (0, 1), lambda a, b: exact64("div", mode, a, b))


@builds("rcp")
def _rcp(spec: Spec) -> Form:
    if "approx" in spec.rest:
        return build_reciprocal(spec)
    kind = spec.kind("f32", "f64")
    mode = spec.required_rounding()
    one: Any = np.float32(1)
    if kind == "f32":
        return _form32(spec, 1, lambda a: div32(one, a, mode), mode, lambda a: np.float64(1) / a)
    if mode == "rn":
        return _form64(spec, (0,), lambda a: np.float64(1) / a)
    return _form64(spec, (0,), lambda a: exact64("div", mode, np.asarray(np.float64(1)), a))


@builds("sqrt")
def _sqrt(spec: Spec) -> Form:
    if "approx" in spec.rest:
        return build_root(spec)
    kind = spec.kind("f32", "f64")
    mode = spec.required_rounding()
    if kind == "f32":
        return _form32(spec, 1, lambda a: sqrt32(a, mode))
    if mode == "rn":
        return _form64(spec, (0,), np.sqrt)
    return _form64(spec, (0,), lambda a: exact64("sqrt", mode, a))


def _base(kind: str) -> str:
    return kind.removesuffix("x2")


@builds("abs", "neg")
def _sign(spec: Spec) -> Form:
    if is_integer(spec):
        return build_sign(spec)
    kind = spec.kind(*FLOATS)
    ftz = spec.flag("ftz")
    spec.finish()
    if ftz and kind not in ("f32", "f16", "f16x2"):
        spec.refuse(f".{kind} takes no .ftz")
    bit = _SIGN[_base(kind)]
    flush = flush32 if kind == "f32" else flush16
    negate = spec.instruction.opcode == "neg"
    infinity = _INFINITY[_base(kind)]

    def run(a: Array) -> Array:
        if ftz:
            a = flush(a)
        result: Array = a ^ bit if negate else a & ~bit
        nan = (a & ~bit) > infinity
        if not some(nan):
            return result
        return np.where(nan, a | QUIET64 if kind == "f64" else _NAN[_base(kind)], result)

    return same(kind, 1, packed(run) if kind.endswith("x2") else run)


@builds("copysign")
def _copysign(spec: Spec) -> Form:
    kind = spec.kind("f32", "f64")
    spec.finish()
    bit = _SIGN[kind]
    return same(kind, 2, lambda a, b: (a & bit) | (b & ~bit))


@builds("min", "max")
def _extremum(spec: Spec) -> Form:
    if is_integer(spec):
        return build_extremum(spec)
    kind = spec.kind(*FLOATS)
    ftz, nan, signs = spec.flag("ftz"), spec.flag("NaN"), spec.flag("xorsign")
    if signs != spec.flag("abs"):
        spec.refuse(".xorsign and .abs go together")
    spec.finish()
    base = _base(kind)
    if kind == "f64" and (ftz or nan or signs):
        spec.refuse(".f64 takes no modifier")
    is_min = spec.instruction.opcode == "min"
    bit = _SIGN[base]
    read = reader(base, False)
    flush = flush32 if base == "f32" else flush16
    propagating: Any = np.minimum if is_min else np.maximum
    ignoring: Any = np.fmin if is_min else np.fmax
    native = base in ("f32", "f64")

    def run(a: Array, b: Array) -> Array:
        if ftz:
            a, b = flush(a), flush(b)
        if signs:
            sign = (a ^ b) & bit
            a, b = a & ~bit, b & ~bit
        x, y = read(a), read(b)
        if native:
            value = (propagating if nan else ignoring)(x, y)
            chosen: Array = value.view(a.dtype)
            if not signs and np.count_nonzero(np.abs(value) > _ZERO) == value.size:
                return chosen  # neither zero nor NaN
            if not nan:
                # for a signalling NaN and a number, numpy's loops differ: some return the NaN, some the number
                chosen = np.where(x != x, b, np.where(y != y, a, chosen))
        else:
            first = (x < y if is_min else x > y) | (y != y)
            chosen = np.where(first, a, b)
        # equal values differ at most in the sign of zero: -0 is smaller
        result = np.where(x == y, a | b if is_min else a & b, chosen)
        undefined = (x != x) | (y != y) if nan else (x != x) & (y != y)
        if signs:
            result = result | sign
        if not some(undefined):
            return result
        return np.where(undefined, b | QUIET64 if kind == "f64" else _NAN[base], result)

    return same(kind, 2, packed(run) if kind.endswith("x2") else run)


def _fields(a: Array) -> tuple[Array, Array]:
    """Exponent field (-1 if it is all ones) and fraction of f32 or f64 patterns."""
    if a.dtype == U32:
        exponent = ((a >> np.uint32(23)) & np.uint32(255)).astype(np.int32)
        fraction: Array = a & np.uint32(0x7FFFFF)
        return np.where(exponent == 255, np.int32(-1), exponent), fraction
    exponent = ((a >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int32)
    return np.where(exponent == 0x7FF, np.int32(-1), exponent), a & np.uint64((1 << 52) - 1)


_TESTS: dict[str, Callable[[Array, Array], Array]] = {
    "finite": lambda exponent, fraction: exponent >= 0,
    "infinite": lambda exponent, fraction: (exponent < 0) & (fraction == 0),
    "number": lambda exponent, fraction: (exponent >= 0) | (fraction == 0),
    "notanumber": lambda exponent, fraction: (exponent < 0) & (fraction != 0),
    "normal": lambda exponent, fraction: (exponent > 0) | ((exponent == 0) & (fraction == 0)),  # zero too
    "subnormal": lambda exponent, fraction: (exponent == 0) & (fraction != 0),
}


@builds("testp")
def _testp(spec: Spec) -> Form:
    kind = spec.kind("f32", "f64")
    name = spec.one_of(*_TESTS)
    spec.finish()
    if not name:
        spec.refuse("no test")
    test = _TESTS[name]
    return Form(lambda a: test(*_fields(a)), ("pred",), (kind,))
