"""ex2.approx and rcp.approx of f32 with the bits of an H200, from tables that ``tests/approximations.py`` records.

The hardware's results depend on 23 bits. ex2 truncates the magnitude of its operand to 23 bits after the point, and
takes the one's complement of these for a negative operand; rcp looks at the fraction. A table has the result for each
of the 2^23 values. Its file has a quadratic per interval, and the differences from it.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from cudakit.sim.values.lanewise import F32, F64, U64, Array

BITS = 23
MASK = (1 << BITS) - 1
INTERVALS = 64
# bits after the point of the quadratics' integer coefficients
SHIFT = 40
# below it, ex2 without .ftz is the square of the result for half the operand; from HIGH on it is infinite
LOW, HIGH = np.float32(-126), np.float32(128)


@cache
def table(name: str) -> Array:
    """The bits of the f32 results, uint32 by fraction: "ex2" in [1, 2), "rcp" in (0.5, 1]."""
    data = zlib.decompress(Path(__file__).with_name(f"h200_{name}.zlib").read_bytes())
    head, _, rest = data.partition(b"\n")
    found = np.frombuffer(rest, np.int8).astype(np.int32).reshape(INTERVALS, -1)
    places = np.arange(found.shape[1], dtype=np.int64)
    for row, (first, constant, slope, curve) in zip(found, json.loads(head), strict=True):
        row += (first + ((constant + (slope + curve * places) * places) >> SHIFT)).astype(np.int32)
    return found.reshape(-1).view(np.uint32)


@cache
def corrections() -> Array:
    """The differences of the table "ex2" from the rounded results, plus 1: 2 bits each, 16 in a uint32. It fits into a
    processor's cache, and machine code computes the rounded results quickly."""
    rounded = np.exp2(np.arange(1 << BITS) / (1 << BITS)).astype(F32).view(np.int32)
    found = (table("ex2").view(np.int32) - rounded + 1).astype(np.uint32).reshape(-1, 16)
    packed: Array = (found << np.arange(0, 32, 2, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return packed


def exp2(a: Array) -> Array:
    """ex2.approx of f32 values."""
    low = a < LOW
    if not low.any():
        return _exp2(a)
    result = _exp2(np.where(low, a / 2, a))
    found: Array = np.where(low, result * result, result)
    return found


def _exp2(a: Array) -> Array:
    """The same for values from LOW up."""
    steps = (np.clip(a, LOW, HIGH) * np.float32(1 << BITS)).astype(np.int32)
    # the conversion truncates; the complement is one less, except for integers
    steps = steps - ((a < 0) & (steps & MASK != 0))
    bits = table("ex2").take(steps & MASK).view(np.int32) + (steps & ~np.int32(MASK))
    found: Array = np.where(a != a, a, bits.view(F32))
    return found


def reciprocal(a: Array) -> Array:
    """rcp.approx of f32 values as f64, before it is rounded to f32."""
    bits = a.view(U64)
    exponent = (bits >> np.uint64(52)) & np.uint64(0x7FF)
    fraction = table("rcp")[(bits >> np.uint64(52 - BITS)) & np.uint64(MASK)].view(F32).astype(F64)
    scaled = np.copysign(np.ldexp(fraction, 1023 - exponent.astype(np.int64)), a)
    found: Array = np.where((exponent == 0) | (exponent == 0x7FF), np.float64(1) / a, scaled)
    return found


def quotient(a: Array, b: Array) -> Array:
    """div.approx and div.full of f32 values as f64, before it is rounded to f32: the dividend times the reciprocal."""
    found: Array = a * reciprocal(b)
    return found
