"""Error bounds of approximate instructions: the PTX ISA's bounds, by section, and the reference functions.

References are computed in float64, whose own error is far below every bound here. A result passes if it is within the
bound of the reference, or if both are the same infinity or NaN. With .ftz, subnormal operands count as zeros. Outside
the part of the domain for which PTX states a bound, any result passes: the bound is infinite there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .forms import Form, bits
from .operands import Words

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SMALLEST = {"f16": (2.0**-14, 2.0**-24), "bf16": (2.0**-126, 2.0**-133), "f32": (2.0**-126, 2.0**-149)}
_SMALLEST |= {"f64": (2.0**-1022, 2.0**-1074)}
_PRECISION = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}


@dataclass(frozen=True)
class Bound:
    """section: of the PTX ISA. says: its bound in words. reference: a function of float64 operands. allowed: the
    absolute error permitted for (reference, operands...), infinite if PTX states no bound."""

    section: str
    says: str
    reference: Callable[..., Floats]
    allowed: Callable[..., Floats]


def _ulps(count: float, kind: str = "f32") -> Callable[..., Floats]:
    """Units in the last place of the reference."""

    def allowed(reference: Floats, *operands: Floats) -> Floats:
        _, exponent = np.frexp(np.where(np.isfinite(reference), reference, 1.0))
        unit = np.ldexp(1.0, exponent - 1 - _PRECISION[kind])
        return np.asarray(count * np.maximum(unit, _SMALLEST[kind][1]))

    return allowed


def _relative(size: float) -> Callable[..., Floats]:
    return lambda reference, *operands: np.abs(reference) * size


def _absolute(size: float) -> Callable[..., Floats]:
    return lambda reference, *operands: np.full(reference.shape, size)


def _of_angle(reference: Floats, angle: Floats) -> Floats:
    """sin and cos: 2^-20.5 between -2 pi and 2 pi, 2^-14.7 up to 100 pi, no bound beyond."""
    size = np.abs(angle)
    return np.where(size <= 2 * np.pi, 2**-20.5, np.where(size <= 100 * np.pi, 2**-14.7, np.inf))


def _of_logarithm(reference: Floats, operand: Floats) -> Floats:
    """Absolute between 1/2 and 2, relative elsewhere."""
    near = (operand >= 0.5) & (operand <= 2)
    return np.where(near, 2.0**-22, np.abs(reference) * 2.0**-22)


def _of_quotient(reference: Floats, a: Floats, b: Floats) -> Floats:
    """div.approx: 2 ulp for divisors from 2^-126 to 2^126."""
    size = np.abs(b)
    inside = (size >= 2.0**-126) & (size <= 2.0**126)
    return np.where(inside, _ulps(2)(reference), np.inf)


def _quotient(a: Floats, b: Floats) -> Floats:
    """div.approx is a * (1 / b), and 1 / b flushed beyond 2^126."""
    return np.where((np.abs(b) > 2.0**126) & np.isfinite(b), a * np.copysign(0.0, b), a / b)


def _upper(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """The function of an operand whose lower 32 bits are ignored."""
    return lambda a: function((a.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64))


def _inverse_root(a: Floats) -> Floats:
    return np.asarray(1 / np.sqrt(a))


_FLOATING = "Floating Point Instructions: "
_HALF = "Half Precision Floating Point Instructions: "
BOUNDS: dict[str, Bound] = {
    "ex2.approx.f32": Bound(_FLOATING + "ex2", "2 ulp", np.exp2, _ulps(2)),
    "lg2.approx.f32": Bound(
        _FLOATING + "lg2", "absolute 2^-22 between 0.5 and 2, relative 2^-22 elsewhere", np.log2, _of_logarithm
    ),
    "sin.approx.f32": Bound(
        _FLOATING + "sin", "absolute 2^-20.5 up to 2 pi, 2^-14.7 up to 100 pi", np.sin, _of_angle
    ),
    "cos.approx.f32": Bound(
        _FLOATING + "cos", "absolute 2^-20.5 up to 2 pi, 2^-14.7 up to 100 pi", np.cos, _of_angle
    ),
    "rcp.approx.f32": Bound(_FLOATING + "rcp", "1 ulp", np.reciprocal, _ulps(1)),
    "rsqrt.approx.f32": Bound(_FLOATING + "rsqrt", "relative 2^-22.9", _inverse_root, _relative(2**-22.9)),
    "sqrt.approx.f32": Bound(_FLOATING + "sqrt", "relative 2^-23", np.sqrt, _relative(2.0**-23)),
    "div.approx.f32": Bound(
        _FLOATING + "div", "2 ulp for divisors from 2^-126 to 2^126; 0 or NaN beyond", _quotient, _of_quotient
    ),
    "div.full.f32": Bound(_FLOATING + "div", "2 ulp", np.divide, _ulps(2)),
    "tanh.approx.f32": Bound(_FLOATING + "tanh", "relative 2^-11", np.tanh, _relative(2.0**-11)),
    "rcp.approx.ftz.f64": Bound(
        _FLOATING + "rcp.approx.ftz.f64", "the upper half of a first guess; 2^-20 here", _upper(np.reciprocal),
        _relative(2.0**-20),
    ),
    "rsqrt.approx.ftz.f64": Bound(
        _FLOATING + "rsqrt.approx.ftz.f64", "the upper half of a first guess; 2^-20 here", _upper(_inverse_root),
        _relative(2.0**-20),
    ),
    "rsqrt.approx.f64": Bound(_FLOATING + "rsqrt", "none given; 2 ulp here", _inverse_root, _ulps(2, "f64")),
    "ex2.approx.f16": Bound(_HALF + "ex2", "relative 2^-9.9", np.exp2, _relative(2**-9.9)),
    "ex2.approx.bf16": Bound(_HALF + "ex2", "relative 2^-7", np.exp2, _relative(2.0**-7)),
    "tanh.approx.f16": Bound(_HALF + "tanh", "absolute 2^-10.987", np.tanh, _absolute(2**-10.987)),
    "tanh.approx.bf16": Bound(_HALF + "tanh", "absolute 2^-8", np.tanh, _absolute(2.0**-8)),
}  # fmt: skip


def decode(patterns: Words, kind: str) -> Floats:
    """Return bit patterns of a scalar type as float64."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return _decode(patterns, kind)


def _decode(patterns: Words, kind: str) -> Floats:
    if kind == "bf16":
        return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    size = bits(kind) // 8
    return patterns.astype(f"u{size}").view(f"f{size}").astype(np.float64)


def _scalars(kind: str, patterns: Words) -> tuple[str, list[Words]]:
    if kind.endswith("x2"):
        return kind[:-2], [patterns & np.uint64(0xFFFF), patterns >> np.uint64(16)]
    return kind, [patterns]


def misses(form: Form, operands: Words, results: Words) -> Mask:
    """Return the lanes of an approximate form whose result is further from the reference than PTX permits."""
    if form.bound.startswith("mma"):
        return np.zeros(operands.shape[1], np.bool_)
    bound = BOUNDS[form.bound]
    kind, made = _scalars(form.outputs[0], results[0])
    columns = [_scalars(given, row)[1] for given, row in zip(form.inputs, operands, strict=True)]
    wrong = np.zeros(operands.shape[1], np.bool_)
    for part, result in enumerate(made):
        given = [decode(column[part], kind) for column in columns]
        wrong |= _miss(bound, kind, ".ftz" in form.text, given, decode(result, kind))
    return wrong


def _miss(bound: Bound, kind: str, ftz: bool, given: list[Floats], result: Floats) -> Mask:
    normal, unit = _SMALLEST[kind]
    if ftz:
        given = [np.where(np.abs(x) < normal, np.copysign(0.0, x), x) for x in given]
    with np.errstate(all="ignore"):
        reference = bound.reference(*given)
        allowed = np.maximum(bound.allowed(reference, *given), unit)
        # a result past the range of its format is infinite, one below the normal range may be flushed
        largest = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}.get(kind, np.inf)
        near = np.abs(result - reference) <= allowed
        over = (np.abs(reference) + allowed > largest) & np.isinf(result) & (np.sign(result) == np.sign(reference))
        flushed = (np.abs(reference) - allowed < normal) & (result == 0) if ftz else np.zeros(result.shape, np.bool_)
    same = (result == reference) | ((result != result) & (reference != reference))
    return ~(near | over | flushed | same | np.isinf(allowed))


def classes_differ(form: Form, sim: Words, gpu: Words, operands: Words) -> Mask:
    """Return lanes in which only one device has NaN, or the NaNs differ in their bits."""
    kind, ours = _scalars(form.outputs[0], sim[0])
    _, theirs = _scalars(form.outputs[0], gpu[0])
    wrong = np.zeros(operands.shape[1], np.bool_)
    for a, b in zip(ours, theirs, strict=True):
        x, y = decode(a, kind), decode(b, kind)
        wrong |= ((x != x) | (y != y)) & (a != b)
    return wrong


def rows() -> list[tuple[str, str, str]]:
    """Return (instruction, bound, section) of every bound, for the table."""
    found: list[tuple[str, str, Any]] = [(name, bound.says, bound.section) for name, bound in BOUNDS.items()]
    return found
