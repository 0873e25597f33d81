"""Arithmetic of wgmma: products of matrices by the tensor cores of a warpgroup, bit for bit.

Each element of D is one fused sum of all k products and the accumulator, as in tensorcore.py: exact products, aligned
to the largest exponent among them and the accumulator, truncated towards zero ``fraction`` bits below it, and summed
exactly. A float32 sum is then truncated to ``kept`` fraction bits, a float16 sum rounded to nearest even.

=================  ====  ========  =====  ==================================================================
A and B            k     fraction  kept   sums
=================  ====  ========  =====  ==================================================================
f16                16    25        23     f16 or f32
bf16               16    25        23     f32
tf32               8     25        23     f32; the low 13 bits of A and B are not read
e4m3, e5m2         32    13        13     f16 or f32; A and B may differ in type
s8, u8             32    -         -      exact; s32 that wraps or, with .satfinite, saturates
b1                 256   -         -      the number of bits set in both; s32
=================  ====  ========  =====  ==================================================================

Literature: Xie et al., "MMA-Sim" (arXiv 2511.10909).

All matrices here are (units, rows, columns): a unit is a warpgroup (64 rows), or a warp (16 rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cudakit.sim.instructions.tensorcore import FLOOR, NARROW, Numerics, decode, encode, lowest
from cudakit.sim.lockstep.lanes import Array

# elements of D that are computed together: the tables of one k stay in the second-level cache
_CHUNK = 1 << 15
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_SIGNED = {"s8": np.int8, "u8": np.uint8}


def numerics(kind: str) -> Numerics:
    """How wgmma sums products of factors of a type; all products of an instruction are one step."""
    return Numerics(32, 13, 13) if kind in ("e4m3", "e5m2") else Numerics(16, 25)


def multiply(
    kinds: tuple[str, str, str], a: Array, b: Array, c: Array | None, negated: tuple[bool, bool] = (False, False)
) -> Array:
    """D = A * B + C for patterns of the types of A, B and D (f16 or f32): (units, m, k), (units, n, k) and
    (units, m, n). C has the type of D; None is zero. ``negated``: the signs of A and of B are inverted."""
    left, right, kind = kinds
    figures = numerics(left)
    units, m, n = len(a), a.shape[1], b.shape[1]
    x, x_exponent = decode(left, a)
    y, y_exponent = (np.ascontiguousarray(v.transpose(0, 2, 1)) for v in decode(right, b))
    if negated[0] != negated[1]:
        x = -x
    narrow = all(e.max() <= NARROW and lowest(e) >= -NARROW for e in (x_exponent, y_exponent))
    step = _narrow if narrow else _wide
    out = np.empty((units, m, n), np.uint16 if kind == "f16" else np.uint32)
    part = max(1, _CHUNK // (m * n))
    for first in range(0, units, part):
        some = slice(first, first + part)
        added = None if c is None else decode(kind, c[some])
        factors = [
            (x[some, :, k, None], x_exponent[some, :, k, None], y[some, k, None], y_exponent[some, k, None])
            for k in range(a.shape[2])
        ]
        out[some] = encode(kind, _sum(factors, added, figures.fraction, step), figures.kept)
    return out


_Factors = Sequence[tuple[Array, Array, Array, Array]]


def _sum(factors: _Factors, added: tuple[Array, Array] | None, fraction: int, step: Callable[..., Array]) -> Array:
    """The fused sum, exact in float64. ``factors``: the values and exponents of A's column and B's row, for each k."""
    top = np.maximum(factors[0][1] + factors[0][3], FLOOR)
    exponent = np.empty_like(top)
    for _, x_exponent, _, y_exponent in factors[1:]:
        np.add(x_exponent, y_exponent, out=exponent)
        np.maximum(top, exponent, out=top)
    if added is not None:
        np.maximum(top, added[1], out=top)
    shift = top.astype(np.int64)
    total = step(factors, shift, fraction)
    if added is not None:
        up = ((1023 + fraction - shift) << 52).view(_F64)
        up *= added[0]
        total += np.trunc(up, out=up)
    total *= ((1023 - fraction + shift) << 52).view(_F64)
    return total


def _narrow(factors: _Factors, top: Array, fraction: int) -> Array:
    """The sum of the aligned products, for factors whose products fit a float32 before and after the alignment:
    truncated, they are integers below 2**27 (2**15 for 8-bit factors), and their sum fits an int32."""
    up = (np.clip(127 + fraction - top, 1, 253) << 23).astype(np.int32).view(_F32)
    product, integer = np.empty(top.shape, _F32), np.empty(top.shape, np.int32)
    total = np.zeros(top.shape, np.int32)
    for x, _, y, _ in factors:
        np.multiply(x, y, out=product)
        product *= up
        np.copyto(integer, product, casting="unsafe")
        total += integer
    return total.astype(_F64)


def _wide(factors: _Factors, top: Array, fraction: int) -> Array:
    """The sum of the aligned products, for factors of any exponent; infinities and NaN as in IEEE 754."""
    up = ((1023 + fraction - top) << 52).view(_F64)
    product, total = np.empty(top.shape, _F64), np.zeros(top.shape, _F64)
    for x, _, y, _ in factors:
        np.multiply(x, y, out=product, dtype=_F64)
        product *= up
        np.trunc(product, out=product)
        total += product
    return total


def multiply_integers(kinds: tuple[str, str], a: Array, b: Array, c: Array | None, saturate: bool) -> Array:
    """D = A * B + C of 8-bit integers ("s8" or "u8"): (units, m, k), (units, n, k) and patterns (units, m, n)."""
    x, y = (v.view(_SIGNED[kind]).astype(_F32) for v, kind in zip((a, b), kinds, strict=True))
    # below 2**21, so exact
    return _integers(np.matmul(x, y.transpose(0, 2, 1)), c, saturate)


def multiply_bits(a: Array, b: Array, c: Array | None) -> Array:
    """D = the number of bits set in rows of both A and B + C: (units, m, k / 8), (units, n, k / 8) bytes."""
    x, y = (np.unpackbits(v, axis=2).astype(_F32) for v in (a, b))
    return _integers(np.matmul(x, y.transpose(0, 2, 1)), c, False)


def _integers(products: Array, c: Array | None, saturate: bool) -> Array:
    if not saturate:
        wrapped: Array = products.astype(np.int32).view(np.uint32)
        return wrapped if c is None else wrapped + c
    wide: Array = products.astype(np.int64)
    if c is not None:
        wide += c.view(np.int32)
    return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32)
