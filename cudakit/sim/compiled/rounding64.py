"""f64 results rounded towards zero, up or down, as machine code. The interpreter computes them with Python integers, by
``exact64`` of sim/values/rounding.py.

The result is rounded to nearest first. Whether the exact one is above or below it is the sign of a sum of a few f64
numbers, which is found without rounding.
"""

from __future__ import annotations

from functools import reduce

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.rounding import (
    INFINITY64,
    MAGNITUDE64,
    directed,
    double,
    fused,
    pattern,
    size,
    square_root,
)
from cudakit.sim.values.rounding import two_sum

_ONE = 1023 << 52
# a term that is smaller than another by this factor changes the sign of a sum only if the others cancel
_FAR = 2.0**200


def _finite(*values: Value) -> Value:
    return reduce(lambda a, b: a & b, [(pattern(one) & MAGNITUDE64).lt(INFINITY64) for one in values])


def _normal(value: Value) -> tuple[Value, Value]:
    """The significand, from 1 to 2, and the exponent of finite numbers other than zero."""
    small = size(value).is_("olt", 2.0**-1022)
    bits = pattern(small.select(value * 2.0**54, value))
    exponent = ((bits & INFINITY64) >> 52) - small.select(bits._with(1023 + 54), 1023)
    return double((bits & ~INFINITY64 & (1 << 64) - 1) | _ONE), exponent


def _scaled(value: Value, exponent: Value) -> Value:
    """A number times a power of two, from 2^-3000 to 2^3000."""
    for _ in range(3):
        step = exponent.is_("slt", -1000).select(-1000, exponent)
        step = step.is_("sgt", 1000).select(1000, step)
        value = value * double((step + 1023) << 52)
        exponent = exponent - step
    return value


def _sign_of_sum(terms: list[Value]) -> Value:
    """A number with the sign of the exact sum of terms."""
    parts: list[Value] = []
    for term in terms:
        rest, smaller = term, []
        for part in parts:
            rest, error = two_sum(rest, part)
            smaller.append(error)
        parts = [*smaller, rest]
    # they do not overlap: the largest one that is not zero has the sign
    found = parts[0]
    for part in parts[1:]:
        found = part.is_("oeq", 0.0).select(found, part)
    return found


def _excess(a: Value, b: Value, c: Value, nearest: Value) -> Value:
    """A number with the sign of a * b + c - nearest, all of which are finite."""
    (x, x_exponent), (y, y_exponent) = _normal(a), _normal(b)
    down = -(x_exponent + y_exponent)
    addend, result = _scaled(c, down), _scaled(nearest, down)
    product = x * y
    minus = result * -1.0
    exact = _sign_of_sum([product, fused(x, y, product * -1.0), addend, minus])
    # a result that was rounded up to the smallest number can be far above the product
    exact = size(result).is_("oeq", float("inf")).select(minus, exact)
    rest = fused(x, y, minus)
    far_below = rest.is_("oeq", 0.0).select(c, rest)
    difference = c - nearest
    far_above = difference.is_("oeq", 0.0).select(product, difference)
    magnitude = size(addend)
    exact = magnitude.is_("olt", 1 / _FAR).select(far_below, exact)
    exact = magnitude.is_("ogt", _FAR).select(far_above, exact)
    none = a.is_("oeq", 0.0) | b.is_("oeq", 0.0)
    return none.select(difference, exact)


def _moved(nearest: Value, excess: Value, finite: Value, mode: str) -> Value:
    """The pattern of a result rounded by ``mode``; ``finite``: whether its operands are finite."""
    bits = pattern(nearest)
    positive = bits.is_("sge", 0)
    above, below = excess.is_("ogt", 0.0), excess.is_("olt", 0.0)
    # a result that overflowed is above the exact one
    over = (bits & MAGNITUDE64).eq(INFINITY64)
    more = finite & ~over & ((positive & above) | (~positive & below))
    less = finite & (over | (positive & below) | (~positive & above))
    return directed(bits, less, more, mode)


def _either_zero(bits: Value, excess: Value, signs: Value, mode: str) -> Value:
    """The pattern of a sum rounded down: if it is exactly zero, it is -0 unless both terms are +0."""
    if mode != "rm":
        return bits
    zero = (bits & MAGNITUDE64).eq(0) & excess.is_("oeq", 0.0)
    return (zero & signs.is_("slt", 0)).select(1 << 63, bits)


def fused64(a: Value, b: Value, c: Value, mode: str) -> Value:
    """The f64 value of a * b + c rounded by ``mode`` (rz, rm or rp); NaN as that of the result rounded to nearest."""
    nearest = fused(a, b, c)
    excess = _excess(a, b, c, nearest)
    finite = _finite(a, b, c)
    moved = _moved(nearest, excess, finite, mode)
    signs = (pattern(a) ^ pattern(b)) | pattern(c)
    return double(finite.select(_either_zero(moved, excess, signs, mode), moved))


def sum64(a: Value, b: Value, mode: str) -> Value:
    total, error = two_sum(a, b)
    moved = _moved(total, error, _finite(a, b), mode)
    return double(_either_zero(moved, error, pattern(a) | pattern(b), mode))


def product64(a: Value, b: Value, mode: str) -> Value:
    nearest = a * b
    return double(_moved(nearest, _excess(a, b, a._with(0.0), nearest), _finite(a, b), mode))


def quotient64(a: Value, b: Value, mode: str) -> Value:
    nearest = a / b
    # the sign of a - nearest * b, seen from the divisor
    rest = _excess(nearest * -1.0, b, a, a._with(0.0))
    rest = pattern(b).is_("slt", 0).select(rest * -1.0, rest)
    return double(_moved(nearest, rest, _finite(a, b) & b.is_("one", 0.0), mode))


def root64(a: Value, mode: str) -> Value:
    nearest = square_root(a)
    rest = _excess(nearest * -1.0, nearest, a, a._with(0.0))
    return double(_moved(nearest, rest, _finite(a) & a.is_("oge", 0.0), mode))
