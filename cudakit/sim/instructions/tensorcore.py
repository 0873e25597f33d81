"""Tensor-core arithmetic: products of small matrices, bit for bit.

float16, bfloat16, tf32 and 8-bit floats are not summed as in IEEE 754. Each element of D is computed in steps of
``block`` products along k. In a step all products are exact. They and the accumulator are aligned to the largest
exponent among them, truncated (towards zero) ``fraction`` bits below it, and summed exactly. The sum is then rounded:
towards zero to float32, to nearest even to float16. A product's exponent is the sum of its factors' exponents, even if
its significand reaches 2. A subnormal has the exponent of the smallest normal number; zeros do not affect the
alignment. Sums of zero are +0, sums of 2**128 or more are infinite, every NaN is 0x7fff or 0x7fffffff.

====================  ================  =====  ========  ==========================================================
A and B               instructions      block  fraction  sums
====================  ================  =====  ========  ==========================================================
f16                   k of 8, 16        16     25        f16 or f32, whichever C and D are
f16                   wmma, mixed       16     25        f32: a C of f16 is widened first, a D of f16 rounded last
bf16                  k of 8, 16        16     25        f32
tf32                  mma, k of 4, 8    8      25        f32; the low 13 bits of A and B are not read
tf32                  wmma m16n16k8     4      25        f32: made of instructions with a k of 4
e4m3, e5m2            k of 16, 32       16     25        widened to f16; half of k (pairs 0, 1 of each 4), then the
                                                         other, from zero; C is added last, rounded to nearest
f16                   mma m8n8k4        -      -         no tensor core: chains of float32 operations (``_chained``)
f64                   all               1      -         fused multiply-adds, k ascending, rounded to nearest
s8, u8, s4, u4, b1    all               -      -         exact; s32 that wraps or, with .satfinite, saturates
====================  ================  =====  ========  ==========================================================

The table is for sm_90. Every row agrees with an H200 (driver 580) bit for bit, on normal, wide, cancelling, subnormal,
sparse and special operands (tests/data/tensor_h200.npz has some of each). It is unknown whether alignment has a limit
below 2**-130. Other architectures follow the literature and are not verified: sm_70 adds 4 products per step and keeps
23 bits; sm_75 adds 8 and keeps 24; sm_80 to sm_89 add 8 (4 for tf32) and keep 24; sm_100 and sm_120 are like sm_90.
sm_89 and sm_120 multiply 8-bit floats directly: sm_89 adds 16 products and keeps 13 bits, with a float32 result of 13
fraction bits; sm_120 adds 32 and keeps 25. Before sm_80, m8n8k4 runs on tensor cores.

Literature: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ CS 2021) for the
first generations; Xie et al., "MMA-Sim" (arXiv 2511.10909) and Khattak and Mikaitis, "Accurate models of NVIDIA tensor
cores" (arXiv 2512.07004) for all. The instructions that form each product are from the machine code of ptxas.

The last axis of all matrices here is the number of products computed together: (m, k, count), (k, n, count),
(m, n, count).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.values.conversions import byte_table
from cudakit.sim.values.rounding import (
    BFLOAT,
    E4M3,
    E5M2,
    HALF,
    Format,
    bfloat_to_f32,
    canonical16,
    canonical32,
    fma64,
    half_to_f32,
    quiet64,
    to_f32,
)

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
# elements of the table of products per step: half a megabyte of float32
_CHUNK = 1 << 17
# the exponents of zero (below all others) and of infinities and NaN (above all others)
_LEAST, _MOST = np.int16(-1000), np.int16(500)
# below the exponent of any product; sums of only zeros are aligned to it
FLOOR = np.int16(-300)
# products of factors with exponents in this range fit a float32, aligned or not
NARROW = 30
_FP8 = {"e4m3": E4M3, "e5m2": E5M2}


@dataclass(frozen=True)
class Numerics:
    """How a tensor core sums: ``block`` products per step, truncated ``fraction`` bits below the largest exponent, and
    ``kept`` fraction bits of a float32 sum."""

    block: int
    fraction: int
    kept: int = 23


def numerics(number: int, kind: str) -> Numerics:
    """The numerics for a type of factors on an architecture, by its number (such as 90)."""
    if number >= 90:
        return Numerics({"f16": 16, "bf16": 16, "tf32": 8}.get(kind, 32), 25)
    if kind in _FP8:
        return Numerics(16, 13, 13)
    if number >= 80:
        return Numerics(4 if kind == "tf32" else 8, 24)
    return Numerics(8, 24) if number == 75 else Numerics(4, 23)


def _number(arch: str) -> int:
    return int("".join(c for c in arch if c.isdigit()))


# ---- formats ----


def _exponents(to: Format, values: Array) -> Array:
    """The exponent of every pattern of a format, from the patterns' values."""
    codes = np.arange(1 << to.bits)
    field = (codes & ((1 << (to.bits - 1)) - 1)) >> to.fraction
    exponents: Array = (np.maximum(field, 1) - to.bias).astype(np.int16)
    exponents[values == 0] = _LEAST
    exponents[~np.isfinite(values)] = _MOST
    return exponents


def _bytes(to: Format) -> tuple[Array, Array]:
    values = half_to_f32(byte_table(to))
    return values, _exponents(to, values)


_CODES = np.arange(1 << 16, dtype=np.uint16)
_TABLES: dict[str, tuple[Array, Array]] = {
    "f16": (half_to_f32(_CODES), _exponents(HALF, half_to_f32(_CODES))),
    "bf16": (bfloat_to_f32(_CODES), _exponents(BFLOAT, bfloat_to_f32(_CODES))),
    **{kind: _bytes(to) for kind, to in _FP8.items()},
}


def decode(kind: str, patterns: Array) -> tuple[Array, Array]:
    """Patterns of a floating-point type as float32 values and exponents (int16; see the module)."""
    if kind in _TABLES:
        values, exponents = _TABLES[kind]
        return values.take(patterns), exponents.take(patterns)
    if kind == "tf32":
        # the low 13 bits are ignored
        patterns = patterns & np.uint32(0xFFFFE000)
    field = (patterns >> np.uint32(23)).astype(np.int16) & np.int16(255)
    exponents = np.maximum(field, np.int16(1)) - np.int16(127)
    value = patterns.view(_F32)
    exponents[value == 0] = _LEAST
    exponents[field == 255] = _MOST
    return value, exponents


def encode(kind: str, value: Array, kept: int = 23) -> Array:
    """Sums (float64) as patterns of an accumulator: float32 of ``kept`` fraction bits rounded towards zero, float16 to
    nearest even. A zero is positive."""
    if kind == "f16":
        halves = canonical16(value.astype(_F16))
        halves[halves == 0x8000] = 0
        return halves
    # truncated to the kept bits, so that the conversion is exact
    cut = (value.view(np.uint64) & ~np.uint64((1 << (52 - kept)) - 1)).view(_F64)
    small = np.abs(value) < 2.0**-126
    if small.any():
        cut = np.where(small, to_f32(value, "rz").view(_F32), cut)
        cut[cut == 0] = 0.0
    return canonical32(cut.astype(_F32))


# ---- products ----


def multiply(kinds: tuple[str, str, str, str], a: Array, b: Array, c: Array, arch: str, wmma: bool = False) -> Array:
    """D = A * B + C for patterns of the types of A, B, C and D (f16, bf16, tf32, e4m3, e5m2; f16 or f32 sums)."""
    left, right, added, result = kinds
    number, k = _number(arch), a.shape[1]
    if left == "f16" and k == 4 and number >= 80:
        return _chained(a, b, c, added, result)
    figures = numerics(number, left)
    if left in _FP8 and number not in (89, 120):
        halves = np.arange(k).reshape(-1, 2, 2)
        order = [halves[:, 0].ravel(), halves[:, 1].ravel()]
        total = _sum((left, right, result), a, b, np.zeros_like(c), numerics(number, "f16"), order)
        return _added(total, c, result)
    if wmma and left == "tf32":
        figures = replace(figures, block=4)
    # sums have the wider of the types of C and D
    kind = "f32" if "f32" in (added, result) else "f16"
    if added != kind:
        c = half_to_f32(c).view(np.uint32)
    steps = [slice(first, first + figures.block) for first in range(0, k, figures.block)]
    total = _sum((left, right, kind), a, b, c, figures, steps)
    return total if result == kind else canonical16(total.view(_F32).astype(_F16))


def _added(total: Array, c: Array, kind: str) -> Array:
    """Sums of two patterns of float32 or float16, rounded to nearest."""
    if kind == "f16":
        return canonical16(total.view(_F16) + c.view(_F16))
    return canonical32(total.view(_F32) + c.view(_F32))


def _chained(a: Array, b: Array, c: Array, added: str, result: str) -> Array:
    """mma.m8n8k4 of float16 since sm_80: a subroutine without tensor cores, with exact products in float32."""
    x, y = half_to_f32(a)[:, :, None], half_to_f32(b)[None]
    p = [x[:, k] * y[:, k] for k in range(4)]
    start = half_to_f32(c) if added == "f16" else c.view(_F32)
    if result == "f16":
        return canonical16(((start + (p[0] + p[1])) + (p[2] + p[3])).astype(_F16))
    total: Array = np.float32(0) + p[0]
    for product in p[1:]:
        total = total + product
    return canonical32(start + total)


def _sum(
    kinds: tuple[str, str, str],
    a: Array,
    b: Array,
    c: Array,
    figures: Numerics,
    steps: Sequence[slice | Array],
) -> Array:
    """A * B + C; C has the type of the result. Each of ``steps`` takes some of the products along k."""
    left, right, kind = kinds
    chunk = max(1, _CHUNK // (a.shape[0] * b.shape[1] * min(a.shape[1], figures.block)))
    count = a.shape[2]
    out = np.empty_like(c)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        x, y = decode(left, a[:, :, part]), decode(right, b[:, :, part])
        total = c[:, :, part]
        for step in steps:
            factors = x[0][:, step], x[1][:, step], y[0][step], y[1][step]
            total = encode(kind, _step(factors, decode(kind, total), figures.fraction), figures.kept)
        out[:, :, part] = total
    return out


def lowest(exponents: Array) -> int:
    """The smallest exponent of the nonzero values."""
    lowest = int(exponents.min())
    return lowest if lowest > _LEAST else int(exponents.min(initial=_MOST, where=exponents != _LEAST))


def _step(factors: tuple[Array, Array, Array, Array], added: tuple[Array, Array], fraction: int) -> Array:
    """One step's sum, exact in float64."""
    x, x_exponent, y, y_exponent = factors
    c, c_exponent = added
    # infinities and NaN are never narrow; float64 sums them correctly, as in IEEE 754
    narrow = all(e.max() <= NARROW and lowest(e) >= -NARROW for e in (x_exponent, y_exponent))
    # k first: (k, m, n, warps)
    x, x_exponent = x.transpose(1, 0, 2)[:, :, None], x_exponent.transpose(1, 0, 2)[:, :, None]
    y, y_exponent = y[:, None], y_exponent[:, None]
    top = (x_exponent + y_exponent).max(axis=0)
    np.maximum(top, c_exponent, out=top)
    np.maximum(top, FLOOR, out=top)
    shift = top.astype(np.int64)
    up = ((1023 + fraction - shift) << 52).view(_F64)
    down = ((1023 - fraction + shift) << 52).view(_F64)
    c = c.astype(_F64)
    if narrow:
        # aligned and truncated products are integers below 2**27, and the sum of 16 fits an int32
        products = x * y
        products *= np.minimum(up, 2.0**126).astype(_F32)
        wide = np.int32 if len(products) <= 16 else np.int64
        total: Array = products.astype(np.int32).sum(axis=0, dtype=wide).astype(_F64)
    else:
        products = x.astype(_F64) * y.astype(_F64)
        products *= up
        total = np.trunc(products, out=products).sum(axis=0)
    total += np.trunc(c * up)
    total *= down
    return total


def multiply64(a: Array, b: Array, c: Array) -> Array:
    """D = A * B + C of float64 patterns: fused multiply-adds, k ascending. If several operands are NaN, B's NaN has
    precedence over the sum's, and the sum's over A's."""
    total: Array = c
    for k in range(a.shape[1]):
        left, right = (np.ascontiguousarray(v) for v in np.broadcast_arrays(a[:, k, None], b[k][None]))
        total = quiet64(fma64(left.view(_F64), right.view(_F64), total.view(_F64)), right, total, left)
    return total


def multiply_integers(a: Array, b: Array, c: Array, signs: tuple[int, int], saturate: bool, combine: str = "") -> Array:
    """D = A * B + C of integers; ``signs`` is the sign bit of the elements of A and B (0: unsigned). ``combine`` "and"
    or "xor" counts the set bits of the combined rows of A and columns of B."""
    x, y = (_widen(v.transpose(2, 0, 1), sign) for v, sign in zip((a, b), signs, strict=True))
    total = np.matmul(x, y)
    if combine == "xor":
        total = x.sum(axis=2)[:, :, None] + y.sum(axis=1)[:, None, :] - 2 * total
    wide: Array = total.astype(np.int64).transpose(1, 2, 0) + c.view(np.int32)
    if saturate:
        wide = np.clip(wide, -(1 << 31), (1 << 31) - 1)
    patterns: Array = wide.astype(np.uint32)
    return patterns


def _widen(patterns: Array, sign: int) -> Array:
    """Small integers as float64, which holds their sums exactly."""
    value: Array = patterns.astype(_F64)
    if sign:
        value[patterns & sign != 0] -= 2 * sign
    return value
