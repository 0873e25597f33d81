"""Values of operands: combinations of each type's edge values, and random words of several distributions.

All values come from a counter hashed with the form's text, in integer arithmetic only. So operands are the same on
every machine and with every version of numpy, and recordings need to keep only the results.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .forms import Form, bits

Words = NDArray[np.uint64]

_FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Draw:
    """A stream of random words: splitmix64 of a seed and a counter."""

    def __init__(self, seed: str | int) -> None:
        number = zlib.crc32(seed.encode()) | len(seed) << 32 if isinstance(seed, str) else seed
        self.state = np.uint64(number & (1 << 64) - 1)

    def words(self, count: int) -> Words:
        with np.errstate(over="ignore"):
            z = self.state + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
            self.state = z[-1] if count else self.state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return z ^ (z >> np.uint64(31))

    def below(self, bound: int, count: int) -> Words:
        return (self.words(count) >> np.uint64(11)) % np.uint64(bound)

    def choice(self, values: Words, count: int) -> Words:
        return values[self.below(len(values), count)]


def _signed_ints(width: int) -> Words:
    near = [0, 1, 2, 3, 7, 10, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 0x7FFFFF, 0x800000, 0xFFFFFF, 1 << 24]
    near += [(1 << 24) + 1, (1 << 25) + 3, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 54) + 3]
    near += [0x55555555, 0x12345678, 0x80808080, 0x00FF00FF, 1 << (width - 1), (1 << (width - 1)) + 1]
    mask = (1 << width) - 1
    return np.array(sorted({v & mask for n in near for v in (n, -n, ~n)}), dtype=np.uint64)


def _float_edges(kind: str) -> Words:
    exponent, fraction = _FORMATS[kind]
    bias, top = (1 << exponent - 1) - 1, (1 << exponent) - 1
    ones = (1 << fraction) - 1
    one = bias << fraction
    infinity = top << fraction
    quiet = 1 << fraction - 1
    values = [0, 1, 2, ones, ones + 1, ones + 2, one, one - 1, one + 1, one + quiet, (bias - 1) << fraction]
    values += [infinity - 1, infinity, infinity | quiet, infinity | ones, infinity | 1, infinity | quiet | 5]
    values += [(bias + e) << fraction | m for e in (-2, 1, 2, 3) for m in (0, quiet)]
    # limits of integer types, and rounding to them
    for power in (7, 8, 10, 15, 16, fraction - 1, fraction, fraction + 1, 31, 32, 62, 63, 64):
        if bias + power < top:
            values += [(bias + power) << fraction, ((bias + power) << fraction) - 1, (bias + power) << fraction | 1]
    # limits of other formats: f16, bf16, 8-bit floats, f32
    for power in (-9, -10, -14, -15, -24, -25, -126, -127, -133, -134, -149, -150, 127, 128):
        if 0 < bias + power < top:
            values += [(bias + power) << fraction, ((bias + power) << fraction) - 1, (bias + power) << fraction | 1]
    if kind in ("f32", "f64"):
        shift = fraction - 10  # the largest values of f16 and of e4m3, and half a unit above
        for power, head in ((15, 0x3FF), (8, 0x300), (8, 0x340), (15, 0x300), (15, 0x340)):
            whole = (bias + power) << fraction | head << shift
            values += [whole, whole | 1 << shift - 1, whole | (1 << shift - 1) - 1]
    sign = 1 << exponent + fraction
    return np.array([v | s for v in dict.fromkeys(values) for s in (0, sign)], dtype=np.uint64)


def edges(kind: str) -> Words:
    """Return the edge values of a type, at which behaviour changes."""
    base = kind.partition(":")[0]
    if base == "pred":
        return np.array([0, 1], dtype=np.uint64)
    if base in _FORMATS:
        return _float_edges(base)
    return _signed_ints(bits(base))


def _random_floats(base: str, draw: Draw, count: int) -> Words:
    """Return floats near 1, with any exponent, and with few significant bits (for ties in rounding)."""
    exponent, fraction = _FORMATS[base]
    bias, sign = (1 << exponent - 1) - 1, np.uint64(exponent + fraction)
    signs = draw.below(2, count) << sign
    mantissa = draw.words(count) >> np.uint64(64 - fraction)
    near = np.uint64(bias - 6) + draw.below(12, count)
    anywhere = draw.below(1 << exponent, count)
    keep = np.uint64(1) + draw.below(fraction, count)
    short = mantissa & ~((np.uint64(1) << (np.uint64(fraction) - keep)) - np.uint64(1))
    which = draw.below(3, count)
    chosen = np.where(which == 0, anywhere, near)
    return signs | chosen << np.uint64(fraction) | np.where(which == 2, short, mantissa)


def _special(base: str, how: str, draw: Draw, count: int) -> Words:
    """Return values of the kind that a form names after a colon."""
    width = bits(base)
    mask = np.uint64((1 << width) - 1)
    if how == "shift":  # mostly in range or just past it
        small, large = draw.below(70, count), draw.words(count) & mask
        return np.where(draw.below(8, count) == 0, large, small)
    if how.startswith("below"):
        return draw.below(int(how[5:]), count)
    if how == "offset":
        return (draw.below(67, count) - np.uint64(33)) & mask
    if how == "few":
        return np.array([5, 0xFFFFFFFF, 7, 1 << 32 | 5], dtype=np.uint64)[draw.below(4, count)] & mask
    if how == "small":  # sums of products are exact in any order
        return _small(base, draw, count)
    if how == "any":
        return draw.words(count) & mask
    raise ValueError(f"{base}:{how} is not a kind of operand")


def _small(base: str, draw: Draw, count: int) -> Words:
    """Return integers from -8 to 8 in a format; for a pair, in both halves."""
    number = draw.below(17, count).astype(np.int64) - 8
    if base.endswith("x2"):
        low, high = _small(base[:-2], draw, count), _small(base[:-2], draw, count)
        return low | high << np.uint64(16)
    values: Any
    if base == "bf16":
        values = number.astype(np.float32).view(np.uint32) >> np.uint32(16)
    else:
        size = int(base[1:]) // 8
        values = number.astype(f"f{size}").view(f"u{size}")
    return np.asarray(values).astype(np.uint64)


def sample(kind: str, draw: Draw, count: int) -> Words:
    """Return random values of a type: edge values, moderate values, and any bits."""
    base, _, how = kind.partition(":")
    if how:
        return _special(base, how, draw, count)
    if base == "pred":
        return draw.below(2, count)
    if base in ("f16x2", "bf16x2"):
        return sample(base[:-2], draw, count) | sample(base[:-2], draw, count) << np.uint64(16)
    if base in ("e4m3x2", "e5m2x2"):
        return draw.words(count) & np.uint64(0xFFFF)
    mask = np.uint64((1 << bits(base)) - 1)
    anything = draw.words(count) & mask
    edge = draw.choice(edges(base), count)
    if base in _FORMATS:
        near = _random_floats(base, draw, count)
    else:
        near = (draw.words(count) >> (np.uint64(64 - bits(base)) + draw.below(bits(base), count))) & mask
    which = draw.below(10, count)
    return np.where(which < 4, edge, np.where(which < 8, near, anything))


def vectors(form: Form, count: int, seed: int = 0) -> Words:
    """Return (operands, count) words. Up to a third are combinations of edge values, the rest is random; a single
    16-bit operand takes all of its values if the count allows it."""
    inputs = form.inputs
    draw = Draw(f"{seed} {form.name}" if seed else form.name)
    if not inputs:
        return np.zeros((0, count), dtype=np.uint64)
    if len(inputs) == 1 and bits(inputs[0]) == 16 and ":" not in inputs[0] and count >= 1 << 16:
        every = np.arange(1 << 16, dtype=np.uint64)
        return np.resize(every, (1, count))
    rows = np.stack([sample(kind, draw, count) for kind in inputs])
    if any(":small" in kind or ":few" in kind for kind in inputs):
        return rows
    crossed = count // 3
    plain = [k for k, kind in enumerate(inputs) if ":" not in kind and kind not in ("e4m3x2", "e5m2x2")]
    for k in plain:
        kind = inputs[k]
        if kind in ("f16x2", "bf16x2"):
            rows[k, :crossed] = draw.choice(edges(kind[:-2]), crossed) | draw.choice(edges(kind[:-2]), crossed) << (
                np.uint64(16)
            )
        elif len(plain) == 1:
            rows[k, :crossed] = np.resize(draw.choice(edges(kind), 4096) if crossed < 256 else edges(kind), crossed)
        else:
            rows[k, :crossed] = draw.choice(edges(kind), crossed)
    _arrange(form, rows, draw)
    return rows


def _arrange(form: Form, rows: Words, draw: Draw) -> None:
    """Set some lanes of float forms so that results cancel, tie, or are at the end of the normal range."""
    kinds, count = form.inputs, rows.shape[1]
    kind = kinds[0]
    if kind not in ("f32", "f64") or any(k != kind for k in kinds) or not 2 <= len(kinds) <= 3:
        return
    exponent, fraction = _FORMATS[kind]
    bias = (1 << exponent - 1) - 1
    number = np.dtype(f"f{bits(kind) // 8}")
    word = np.dtype(f"u{number.itemsize}")
    part = slice(count // 3, count // 2)
    size = part.stop - part.start
    if not size:
        return
    mantissas = [draw.words(size) >> np.uint64(64 - fraction) for _ in kinds]
    divides = "div" in form.text
    # the product or quotient is about the smallest normal number
    first = np.uint64(1) + draw.below(2 * bias - 1, size)
    shift = draw.below(5, size).astype(np.int64) - 2
    exponents = first.astype(np.int64)
    other = np.clip((exponents + bias - 1 if divides else bias + 1 - exponents) + shift, 1, 2 * bias)
    rows[0, part] = first << np.uint64(fraction) | mantissas[0]
    rows[1, part] = other.astype(np.uint64) << np.uint64(fraction) | mantissas[1]
    part = slice(count // 2, count // 2 + count // 8)
    if len(kinds) == 3:  # c is -a * b, plus or minus one unit
        with np.errstate(all="ignore"):
            a, b = (rows[k, part].astype(word).view(number) for k in (0, 1))
            nearly = (-(a * b)).view(word).astype(np.uint64) + draw.below(3, part.stop - part.start) - np.uint64(1)
        rows[2, part] = nearly & np.uint64((1 << bits(kind)) - 1)
    else:  # b is nearly -a
        rows[1, part] = rows[0, part] ^ np.uint64(1 << bits(kind) - 1)
        rows[1, part] ^= draw.below(4, part.stop - part.start)
