"""What tensor cores compute: products of small matrices, as far as is known to the last bit.

Integers are exact and wrap (or saturate where asked). float64 is a chain of fused multiply-adds in ascending k, each
rounded to nearest (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021).

The shorter floating-point types are not IEEE 754 arithmetic. Each result is made in steps of ``block`` products. In a
step all products are exact; they and the accumulator are aligned to the largest exponent among them, cut off
(towards zero) ``fraction`` bits below it, and summed exactly; the sum is then rounded, towards zero to float32 and to
nearest even to float16. A product's exponent is the sum of its factors' exponents, whether or not its significand
reaches 2. The lengths and widths: Fasi et al. for the first three generations; Xie et al., "MMA-Sim" (arXiv 2511.10909)
and Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (arXiv 2512.07004) for all.

Matrices here have the products that are computed together as their last axis: (m, k, n), (k, n, n), (m, n, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.sim.lanes import Array
from cudakit.sim.rounding import (
    E4M3,
    E5M2,
    Format,
    bfloat_to_f32,
    canonical16,
    canonical32,
    fma64,
    half_to_f32,
    quiet64,
    to_f32,
)

F64 = np.dtype(np.float64)
# elements of the table of products that one step handles at a time: some megabyte of float64
_CHUNK = 1 << 17
# the exponent of a zero: below any other
_LEAST = np.int16(-1000)
# the least exponent that sums are aligned to
_FLOOR = np.int16(-126)


@dataclass(frozen=True)
class Numerics:
    """How one generation adds up: ``block`` products a step, cut ``fraction`` bits below the largest exponent."""

    block: int
    fraction: int


def numerics(arch: str, kind: str, k: int) -> Numerics:
    """The figures for a type of factors and the k of one instruction, on an architecture such as "sm_90".

    8-bit floats go through the 16-bit units on sm_90 (mma.sync has no units of its own there)."""
    number = int("".join(c for c in arch if c.isdigit()) or 90)
    wide = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 16, "e5m2": 16}[kind]
    if number >= 90:
        return Numerics(wide, 25)
    if number == 89 and kind in ("e4m3", "e5m2"):
        return Numerics(wide, 13)
    if number >= 80:
        return Numerics(wide // 2, 24)
    return Numerics(8 if number == 75 else 4, 24 if number == 75 else 23)


# ---- formats ----


def _bytes(to: Format) -> tuple[Array, Array]:
    """Values and exponents of the 256 patterns of an 8-bit format."""
    codes = np.arange(256)
    size = codes & 0x7F
    field, fraction = size >> to.fraction, size & ((1 << to.fraction) - 1)
    exponent = np.maximum(field, 1) - to.bias
    value = np.ldexp((fraction + np.where(field > 0, 1 << to.fraction, 0)).astype(F64), exponent - to.fraction)
    if to.has_infinity:
        value = np.where(size == to.infinity, np.inf, np.where(size > to.infinity, np.nan, value))
    else:
        value = np.where(size == to.nan, np.nan, value)
    return np.where(codes > 127, -value, value), np.where(value == 0, _LEAST, exponent).astype(np.int16)


_BYTES = {"e4m3": _bytes(E4M3), "e5m2": _bytes(E5M2)}


def decode(kind: str, patterns: Array) -> tuple[Array, Array]:
    """Patterns of a floating-point type as float64 values and exponents (int16; subnormals have the least normal one,
    zeros one below all others)."""
    if kind in _BYTES:
        values, exponents = _BYTES[kind]
        return values[patterns], exponents[patterns]
    if kind == "f16":
        value = half_to_f32(patterns)
        field = (patterns >> np.uint16(10)) & np.uint16(31)
        least, bias = 1, 15
    elif kind == "bf16":
        value = bfloat_to_f32(patterns)
        field = (patterns >> np.uint16(7)) & np.uint16(255)
        least, bias = 1, 127
    else:
        if kind == "tf32":
            # the low 13 bits are not read
            patterns = patterns & np.uint32(0xFFFFE000)
        value = patterns.view(np.float32)
        field = (patterns >> np.uint32(23)) & np.uint32(255)
        least, bias = 1, 127
    exponent = np.maximum(field.astype(np.int16), np.int16(least)) - np.int16(bias)
    exponent[value == 0] = _LEAST
    return value.astype(F64), exponent


def encode(kind: str, value: Array) -> Array:
    """float64 values as patterns of an accumulator: float32 rounded towards zero, float16 to nearest even."""
    if kind == "f16":
        return canonical16(value.astype(np.float16))
    return canonical32(to_f32(value, "rz").view(np.float32))


# ---- products ----


def multiply(kinds: tuple[str, str, str, str], a: Array, b: Array, c: Array, arch: str) -> Array:
    """D = A * B + C for patterns of the types of A, B, C and D (f16, bf16, tf32, e4m3, e5m2; f16 or f32 sums)."""
    left, right, added, result = kinds
    k = a.shape[1]
    figures = numerics(arch, left, k)
    block = min(figures.block, k)
    chunk = max(1, _CHUNK // (a.shape[0] * b.shape[1] * block))
    count = a.shape[2]
    out = np.empty(c.shape, np.uint16 if result == "f16" else np.uint32)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        x, x_exponent = decode(left, a[:, :, part])
        y, y_exponent = decode(right, b[:, :, part])
        total, kind = c[:, :, part], added
        for first in range(0, k, block):
            ks = slice(first, first + block)
            factors = x[:, ks], x_exponent[:, ks], y[ks], y_exponent[ks]
            total = encode(result, _step(factors, decode(kind, total), figures.fraction))
            kind = result
        out[:, :, part] = total
    return out


def _step(factors: tuple[Array, Array, Array, Array], added: tuple[Array, Array], fraction: int) -> Array:
    """One step's sum, exact in float64."""
    x, x_exponent, y, y_exponent = factors
    c, c_exponent = added
    x, y = x.transpose(1, 0, 2)[:, :, None], y[:, None]
    top: Any = (x_exponent.transpose(1, 0, 2)[:, :, None] + y_exponent[:, None]).max(axis=0)
    np.maximum(top, c_exponent, out=top)
    np.maximum(top, _FLOOR, out=top)
    shift = top.astype(np.int64)
    up = ((1023 + fraction - shift) << 52).view(F64)
    down = ((1023 - fraction + shift) << 52).view(F64)
    products = x * y
    plain = None
    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(c).all()):
        # infinities and NaN take over; all that is finite here is far from overflowing float64
        plain = products.sum(axis=0) + c
        products[~np.isfinite(products)] = 0
        c = np.where(np.isfinite(c), c, 0.0)
    products *= up
    np.trunc(products, out=products)
    total: Array = products.sum(axis=0)
    total += np.trunc(c * up)
    total *= down
    return total if plain is None else np.where(np.isfinite(plain), total, plain)


def multiply64(a: Array, b: Array, c: Array) -> Array:
    """D = A * B + C of float64 patterns: fused multiply-adds, k ascending."""
    x, y = a.view(F64), b.view(F64)
    total = c.view(F64)
    for k in range(x.shape[1]):
        left, right = np.broadcast_arrays(x[:, k, None], y[k][None])
        total = fma64(left, right, total)
    return quiet64(total)


def multiply_integers(a: Array, b: Array, c: Array, signs: tuple[int, int], saturate: bool, combine: str = "") -> Array:
    """D = A * B + C of integers; ``signs`` is the sign bit of the elements of A and B (0: unsigned). ``combine`` "and"
    or "xor" counts the bits that are set in the combination of rows of A and columns of B."""
    x, y = (_widen(v.transpose(2, 0, 1), sign) for v, sign in zip((a, b), signs, strict=True))
    total = np.matmul(x, y)
    if combine == "xor":
        total = x.sum(axis=2)[:, :, None] + y.sum(axis=1)[:, None, :] - 2 * total
    wide = total.astype(np.int64).transpose(1, 2, 0) + c.view(np.int32)
    if saturate:
        wide = np.clip(wide, -(1 << 31), (1 << 31) - 1)
    return wide.astype(np.uint32)


def _widen(patterns: Array, sign: int) -> Array:
    """Small integers as float64, which holds their sums exactly."""
    value = patterns.astype(F64)
    if sign:
        value[patterns & sign != 0] -= 2 * sign
    return value
