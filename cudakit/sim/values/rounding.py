"""Correct rounding: sums and fused products rounded once, in each IEEE direction, to any of the formats.

An exact result is first rounded *to odd* in float64: truncated, with the last bit set if the result was inexact. A
second rounding, to a format at least two bits shorter, is then correct in every direction. Only float64 itself needs
more: ``fma64`` rounds to nearest, ``exact64`` (Python integers) in the other directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cudakit.sim.values.lanewise import F16, F32, F64, S64, U16, U32, U64, Array, some

# arrays, or values of machine code (compiled/ir.py)
Numbers = TypeVar("Numbers", bound=Any)

NAN16, NAN32, NAN64 = np.uint16(0x7FFF), np.uint32(0x7FFFFFFF), np.uint64(0xFFF8000000000000)
MAGNITUDE64, INFINITY64 = np.uint64((1 << 63) - 1), np.uint64(0x7FF << 52)
QUIET64 = np.uint64(1 << 51)
_ONE64 = np.int64(1)
# arrays without dimensions: with them numpy computes faster than with its scalars if the lanes are few
_TIE, _TIE_MASK = np.array(0x10000000, U64), np.array(0x1FFFFFFF, U64)
_SIZE32, _NORMAL = np.array(0x7FFFFFFF, U32), np.array(0x00800000, U32)


def canonical32(value: Array) -> Array:
    """float32 values as bit patterns, with every NaN replaced by the hardware's canonical NaN."""
    bits: Array = value.view(U32)
    nan = value != value
    return np.where(nan, NAN32, bits) if some(nan) else bits


def quiet64(value: Array, *operands: Array) -> Array:
    """float64 results as bit patterns. A NaN result becomes the first NaN among the operands (patterns, in the
    hardware's order of preference), made quiet, or the hardware's own NaN if the operation was invalid."""
    bits: Array = value.view(U64)
    nan = value != value
    if not some(nan):
        return bits
    chosen: Array = np.full(nan.shape, NAN64)
    for operand in reversed(operands):
        chosen = np.where((operand & MAGNITUDE64) > INFINITY64, operand | QUIET64, chosen)
    return np.where(nan, chosen, bits)


def canonical16(value: Array) -> Array:
    """float16 values as bit patterns, NaN canonical."""
    bits: Array = value.view(U16)
    nan = value != value
    return np.where(nan, NAN16, bits) if some(nan) else bits


def flush32(bits: Array) -> Array:
    """float32 patterns with subnormals replaced by zeros of the same sign."""
    small = (bits & np.uint32(0x7F800000)) == 0
    return np.where(small, bits & np.uint32(0x80000000), bits) if some(small) else bits


def flush16(bits: Array) -> Array:
    small = (bits & np.uint16(0x7C00)) == 0
    return np.where(small, bits & np.uint16(0x8000), bits) if some(small) else bits


def two_sum(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """The rounded float64 sum and its exact error (NaN if the sum is not finite)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd."""
    total, error = two_sum(a, b)
    bits = total.view(S64)
    inexact = (error < 0) | (error > 0)
    step = np.where((error > 0) == (total > 0), _ONE64, -_ONE64)
    odd: Array = np.where(inexact & ((bits & _ONE64) == 0), bits + step, bits).view(F64)
    return odd


def directed(nearest: Array, excess: Array, mode: str) -> Array:
    """Results rounded by ``mode`` (``rz``, ``rm`` or ``rp``) as patterns, from results rounded to nearest. ``nearest``
    are patterns (uint32 or uint64) of floats; ``excess`` is the sign of |exact| - |nearest|."""
    one = nearest.dtype.type(1)
    negative = (nearest >> nearest.dtype.type(nearest.dtype.itemsize * 8 - 1)) != 0
    if mode == "rz":
        return np.where(excess < 0, nearest - one, nearest)
    away = negative if mode == "rm" else ~negative
    return np.where(away & (excess > 0), nearest + one, np.where(~away & (excess < 0), nearest - one, nearest))


def to_f32(value: Array, mode: str) -> Array:
    """float64 values (exact, or rounded to odd) to float32 patterns; NaN not made canonical."""
    nearest = value.astype(F32)
    bits: Array = nearest.view(U32)
    if mode == "rn":
        return bits
    return directed(bits, np.sign(np.abs(value) - np.abs(nearest.astype(F64))), mode)


def to_f32_odd(value: Array) -> Array:
    """float64 values to float32 patterns, rounded to odd."""
    toward_zero = to_f32(value, "rz")
    exact = toward_zero.view(F32).astype(F64) == value
    return np.where(exact | (value != value), toward_zero, toward_zero | np.uint32(1))


def sum_zero(result: Array, a: Array, b: Array) -> Array:
    """Sums rounded down: a sum that is exactly zero becomes -0 unless both terms are +0. ``result`` is float64."""
    return np.where((result == 0) & (np.signbit(a) | np.signbit(b)), np.float64(-0.0), result)


def fma32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a * b + c of float32, rounded once, as patterns; NaN not canonical."""
    product = a.astype(F64) * b.astype(F64)  # exact: 48 bits
    addend = c.astype(F64)
    total = product + addend
    nearest = total.astype(F32)
    patterns: Array = nearest.view(U32)
    if mode != "rn":
        return _moved(patterns, nearest.astype(F64), total, product, addend, mode)
    # rounding twice can be wrong only if the first rounding makes a tie or the result is below the normal range
    hard = (total.view(U64) & _TIE_MASK) == _TIE
    small = (patterns & _SIZE32) <= _NORMAL
    if some(hard | small) and some(hard | (small & (total != 0))):
        patterns = odd_sum(product, addend).astype(F32).view(U32)
    return patterns


def _moved(nearest: Array, value: Array, total: Array, product: Array, addend: Array, mode: str) -> Array:
    """Sums rounded by ``mode``, from the nearest float32 (``nearest`` as patterns, ``value`` in float64). ``total`` is
    the sum in float64; if it is not exactly a float32, every float32 that is below (above) it is below (above) the
    exact sum too."""
    one = nearest.dtype.type(1)
    negative = nearest >> np.uint32(31)
    same = value == total
    error = two_sum(product, addend)[1] if some(same) else np.float64(0)
    if mode == "rz":
        inward = ((error < 0) & (total > 0)) | ((error > 0) & (total < 0))
        moved: Array = nearest - ((np.abs(value) > np.abs(total)) | (same & inward))
        return moved
    if mode == "rp":
        moved = nearest + ((value < total) | (same & (error > 0))) * (one - (negative << one))
        return moved
    moved = nearest + ((value > total) | (same & (error < 0))) * ((negative << one) - one)
    zero = total == 0
    if not some(zero):
        return moved
    # a sum that is exactly zero is -0 unless both terms are +0
    return np.where(zero & (np.signbit(product) | np.signbit(addend)), np.uint32(1 << 31), moved)


def add32(a: Array, b: Array, mode: str) -> Array:
    if mode == "rn":
        patterns: Array = (a + b).view(U32)
        return patterns
    wide, other = a.astype(F64), b.astype(F64)
    total = odd_sum(wide, other)
    return to_f32(sum_zero(total, wide, other) if mode == "rm" else total, mode)


def mul32(a: Array, b: Array, mode: str) -> Array:
    if mode == "rn":
        patterns: Array = (a * b).view(U32)
        return patterns
    return to_f32(a.astype(F64) * b.astype(F64), mode)


def div32(a: Array, b: Array, mode: str) -> Array:
    nearest = a / b
    bits: Array = nearest.view(U32)
    if mode == "rn":
        return bits
    # |a| - |q||b| is exact in float64; its sign shows on which side of the quotient q is
    remainder = np.abs(a.astype(F64)) - np.abs(nearest.astype(F64)) * np.abs(b.astype(F64))
    return directed(bits, np.sign(remainder), mode)


def sqrt32(a: Array, mode: str) -> Array:
    nearest = np.sqrt(a)
    bits: Array = nearest.view(U32)
    if mode == "rn":
        return bits
    root = nearest.astype(F64)
    return directed(bits, np.sign(a.astype(F64) - root * root), mode)


def _split(a: Array) -> tuple[Array, Array]:
    scaled = a * np.float64(134217729.0)
    high = scaled - (scaled - a)
    return high, a - high


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64 rounded once to nearest (Boldo and Melquiond), as float64; NaN not canonical. If operands
    are so large or small that the product's error is not a float64, the lane is computed with Python integers."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    upper, lower = two_sum(c, error)
    total, rest = two_sum(product, upper)
    result: Array = total + odd_sum(rest, lower)
    # an intermediate overflow makes the result infinite or NaN; an error term underflows only for a small product
    unsafe = ~(np.abs(result) < 2.0**1000)
    small = np.abs(product) < 2.0**-900
    if some(small):
        # a sum of zeros has the sign of plain arithmetic
        result = np.where(result == 0, product + c, result)
        unsafe |= small & (a != 0) & (b != 0)
    if not some(unsafe):
        return result
    finite = np.isfinite(a) & np.isfinite(b)
    result = np.where(unsafe, np.where(finite & ~np.isfinite(c), c, product + c), result)
    return _patch(result, unsafe & finite & np.isfinite(c), _exact_fma, (a, b, c), "rn")


# ---- float64 in every direction, with Python integers ----


def _parts(bits: int) -> tuple[int, int]:
    """Signed significand and exponent of a finite float64 pattern."""
    exponent, fraction = bits >> 52 & 0x7FF, bits & ((1 << 52) - 1)
    significand = fraction | (1 << 52) if exponent else fraction
    return (-significand if bits >> 63 else significand), max(exponent, 1) - 1075


def encode64(negative: bool, magnitude: int, exponent: int, mode: str) -> int:
    """The float64 pattern of magnitude * 2**exponent, rounded. The last bit of ``magnitude`` is sticky: it is set if
    any bit cut off below it was set."""
    sign = int(negative) << 63
    if magnitude == 0:
        return sign
    shift = max(magnitude.bit_length() - 53, -1074 - exponent)
    if shift <= 0:
        quotient, rest, half = magnitude << -shift, 0, 1
    else:
        quotient, rest, half = magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << (shift - 1)
    if mode == "rn":
        up = rest > half or (rest == half and quotient & 1 == 1)
    else:
        up = rest != 0 and mode == ("rm" if negative else "rp")
    quotient += up
    exponent += shift
    if quotient == 1 << 53:
        quotient, exponent = quotient >> 1, exponent + 1
    if exponent + 52 > 1023:
        return sign | (
            0x7FF0000000000000 if mode == "rn" or mode == ("rm" if negative else "rp") else (0x7FF << 52) - 1
        )
    if quotient < 1 << 52:
        return sign | quotient
    return sign | ((exponent + 1075) << 52) + quotient - (1 << 52)


def _exact_fma(a: int, b: int, c: int, mode: str) -> int:
    (ma, ea), (mb, eb), (mc, ec) = _parts(a), _parts(b), _parts(c)
    exponent = min(ea + eb, ec)
    total = (ma * mb << (ea + eb - exponent)) + (mc << (ec - exponent))
    if total == 0:
        product_sign, addend_sign = (a ^ b) >> 63, c >> 63
        return ((product_sign | addend_sign) if mode == "rm" else (product_sign & addend_sign)) << 63
    return encode64(total < 0, abs(total), exponent, mode)


def _exact_div(a: int, b: int, mode: str) -> int:
    (ma, ea), (mb, eb) = _parts(a), _parts(b)
    shift = 120
    quotient, rest = divmod(abs(ma) << shift, abs(mb))
    return encode64((a ^ b) >> 63 == 1, quotient << 1 | (rest != 0), ea - eb - shift - 1, mode)


def _exact_sqrt(a: int, mode: str) -> int:
    significand, exponent = _parts(a)
    shift = 120 + (exponent & 1)
    root = math.isqrt(significand << shift)
    inexact = root * root != significand << shift
    return encode64(a >> 63 == 1, root << 1 | inexact, (exponent - shift) // 2 - 1, mode)


def _patch(result: Array, lanes: Array, exact: Callable[..., int], operands: tuple[Array, ...], mode: str) -> Array:
    """Put the exact results of some lanes into a float64 array."""
    if not some(lanes):
        return result
    shape = np.broadcast_shapes(result.shape, lanes.shape)
    bits = np.broadcast_to(result, shape).astype(F64).view(U64).reshape(-1)
    chosen = np.flatnonzero(np.broadcast_to(lanes, shape))
    columns = [np.broadcast_to(operand, shape).reshape(-1)[chosen].view(U64).tolist() for operand in operands]
    bits[chosen] = np.array([exact(*row, mode) for row in zip(*columns, strict=True)], dtype=U64)
    patched: Array = bits.view(F64).reshape(shape)
    return patched


def exact64(name: str, mode: str, *operands: Array) -> Array:
    """ "fma", "add", "mul", "div" or "sqrt" of float64 in any direction, as float64; NaN not canonical."""
    finite: Any = np.isfinite(operands[0])
    for operand in operands[1:]:
        finite = finite & np.isfinite(operand)
    if name == "fma":
        a, b, c = operands
        plain = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
        return _patch(plain, finite, _exact_fma, operands, mode)
    if name == "add":
        one = np.float64(1.0)
        return _patch(operands[0] + operands[1], finite, _exact_fma, (operands[0], np.asarray(one), operands[1]), mode)
    if name == "mul":
        a, b = operands
        # the addend is a zero with the product's sign, which does not change the result
        zero = np.where(np.signbit(a) ^ np.signbit(b), -0.0, 0.0)
        return _patch(a * b, finite, _exact_fma, (a, b, zero), mode)
    if name == "div":
        return _patch(operands[0] / operands[1], finite & (operands[1] != 0), _exact_div, operands, mode)
    return _patch(np.sqrt(operands[0]), finite & (operands[0] >= 0), _exact_sqrt, operands, mode)


# ---- formats shorter than float32 ----


@dataclass(slots=True, frozen=True)
class Format:
    """A binary format of ``bits`` bits: sign, exponent, fraction."""

    bits: int
    fraction: int
    bias: int
    infinity: int  # the pattern of infinity, or one above the largest finite pattern
    nan: int

    @property
    def has_infinity(self) -> bool:
        return self.infinity & ((1 << self.fraction) - 1) == 0


HALF = Format(16, 10, 15, 0x7C00, 0x7FFF)
BFLOAT = Format(16, 7, 127, 0x7F80, 0x7FFF)
E4M3 = Format(8, 3, 7, 0x7F, 0x7F)
E5M2 = Format(8, 2, 15, 0x7C, 0x7F)


def narrow(bits: Array, to: Format, mode: str, satfinite: bool = False, keep_nan: bool = False) -> Array:
    """float32 patterns (exact, or rounded to odd) to patterns of a shorter format, as uint32. Modes: rn, rna (ties
    away), rz, rm, rp. ``satfinite`` replaces infinity by the largest finite value. A NaN becomes the format's canonical
    NaN; with ``keep_nan`` it keeps its sign and the upper bits of its payload, and becomes quiet."""
    u = np.uint32
    negative = (bits >> u(31)) != 0
    size = bits & u(0x7FFFFFFF)
    exponent = (size >> u(23)).astype(np.int32)
    significand = np.where(exponent > 0, (size & u(0x7FFFFF)) | u(0x800000), size)
    target = np.maximum(exponent, np.int32(1)) + np.int32(to.bias - 127)
    below = np.maximum(np.int32(1) - target, np.int32(0))
    shift = np.minimum(below + np.int32(23 - to.fraction), np.int32(26)).astype(U32)
    quotient = significand >> shift
    rest = significand & ((u(1) << shift) - u(1))
    half = u(1) << (shift - u(1))
    if mode == "rn":
        up = (rest > half) | ((rest == half) & ((quotient & u(1)) != 0))
    elif mode == "rna":
        up = rest >= half
    else:
        up = (rest != 0) & (negative if mode == "rm" else ~negative if mode == "rp" else False)
    base = (np.maximum(target, np.int32(1)) - np.int32(1)).astype(U32) << u(to.fraction)
    result = base + quotient + up.astype(U32)
    over = result >= u(to.infinity)
    largest = u(to.infinity - 1)
    if satfinite:
        result = np.where(over, largest, result)
    else:
        finite = size < u(0x7F800000)
        inward = mode == "rz" or (mode in ("rm", "rp") and (~negative if mode == "rm" else negative))
        result = np.where(over, np.where(finite & inward, largest, u(to.infinity)), result)
    result = result | (negative.astype(U32) << u(to.bits - 1))
    nan: Any = u(to.nan)
    if keep_nan:
        payload = (size >> u(23 - to.fraction)) & u((1 << to.fraction) - 1)
        nan = u(to.infinity | 1 << (to.fraction - 1)) | payload | (negative.astype(U32) << u(to.bits - 1))
    patterns: Array = np.where(size > u(0x7F800000), nan, result)
    return patterns


_HALVES = np.arange(1 << 16, dtype=U16).view(F16).astype(F32)


def half_to_f32(bits: Array) -> Array:
    value: Array = _HALVES[bits]
    return value


def bfloat_to_f32(bits: Array) -> Array:
    value: Array = (bits.astype(U32) << np.uint32(16)).view(F32)
    return value


def odd_to_half(value: Array) -> Array:
    """float64 values (exact, or rounded to odd) as the nearest float16 patterns, NaN canonical."""
    return canonical16(value.astype(F16))


def odd_to_bfloat(value: Array) -> Array:
    return narrow(to_f32_odd(value), BFLOAT, "rn").astype(U16)
