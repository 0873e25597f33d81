"""Values of operands: bit patterns of every type, by kind, from the raw words of a generator whose stream is fixed.

Raw words of numpy's generators do not change between versions, and all else is integer arithmetic: operands are the
same on every machine, and recordings need to keep only the results.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Format:
    """A floating-point format. infinity: whether it has one; ignored: low bits that instructions ignore."""

    exponent: int
    fraction: int
    bits: int
    infinity: bool = True
    ignored: int = 0

    @property
    def bias(self) -> int:
        return (1 << self.exponent - 1) - 1

    @property
    def top(self) -> int:
        """The largest exponent field with only finite values."""
        return (1 << self.exponent) - 2

    @property
    def sign(self) -> int:
        return 1 << self.exponent + self.fraction


FLOATS = {
    "f64": Format(11, 52, 64),
    "f32": Format(8, 23, 32),
    "tf32": Format(8, 23, 32, ignored=13),  # in memory, an f32
    "f16": Format(5, 10, 16),
    "bf16": Format(8, 7, 16),
    "e4m3": Format(4, 3, 8, infinity=False),
    "e5m2": Format(5, 2, 8),
}
KINDS = ("normal", "wide", "cancelling", "subnormal", "tiny", "large", "special", "sparse", "exact", "any")
BITS = {"s8": 8, "u8": 8, "b1": 8, "s32": 32, "u32": 32, "b32": 32, "s64": 64, "u64": 64, "b64": 64}
BITS |= {"u16": 16} | {name: form.bits for name, form in FLOATS.items()}


class Draw:
    """A stream of random words for a name."""

    def __init__(self, name: str) -> None:
        self._generator = np.random.PCG64(zlib.crc32(name.encode()))

    def words(self, count: int) -> Words:
        return np.asarray(self._generator.random_raw(count), np.uint64)

    def below(self, bound: int, count: int) -> Words:
        return (self.words(count) >> np.uint64(11)) % np.uint64(bound)

    def bytes(self, count: int) -> NDArray[np.uint8]:
        return self.words(-(-count // 8)).view(np.uint8)[:count]


def _assemble(form: Format, draw: Draw, exponents: Words, signs: Words) -> Words:
    fraction = draw.words(len(exponents)) >> np.uint64(64 - form.fraction)
    return signs * np.uint64(form.sign) | exponents << np.uint64(form.fraction) | fraction


def _between(form: Format, draw: Draw, low: int, high: int, count: int) -> Words:
    """Return numbers of either sign whose exponents are in low..high, as far as the format has them."""
    first, last = (min(max(form.bias + e, 1), form.top) for e in (low, high))
    exponents = np.uint64(first) + draw.below(last - first + 1, count)
    return _assemble(form, draw, exponents, draw.below(2, count))


def specials(name: str) -> Words:
    """Return zeros, infinities, NaN, and the ends of the subnormal and normal ranges, of both signs."""
    form = FLOATS[name]
    ones, one = (1 << form.fraction) - 1, form.bias << form.fraction
    found = [0, 1, ones, ones + 1, one, one | 1]
    if form.infinity:
        infinity = form.top + 1 << form.fraction
        found += [infinity - 1, infinity, infinity | 1, infinity | ones, infinity | 1 << form.fraction - 1]
    else:
        found += [form.sign - 2, form.sign - 1]  # the largest number, NaN
    return np.array([value | sign for value in found for sign in (0, form.sign)], np.uint64)


def _products(form: Format, kind: str, role: str) -> tuple[int, int]:
    """Return the range of exponents for which the products of a and b, and c, have the property of the kind."""
    wide = form.exponent == 8
    if kind == "wide":
        return (-30, 30) if wide else (-form.bias, form.bias)
    if kind == "tiny":  # results are at the end of the range of f32, or of f16
        return (-76, -60) if wide else (-form.bias, -form.bias + 6)
    if kind == "large":  # sums overflow
        return (60, 66) if wide else (form.bias - 6, form.bias + 1)
    return (-3, 3)


def floats(name: str, kind: str, role: str, draw: Draw, count: int) -> Words:
    """Return bit patterns of a kind for the operand a, b or c of a product."""
    form = FLOATS[name]
    if kind == "any":
        return draw.words(count) >> np.uint64(64 - form.bits)
    if kind == "exact":
        magnitude = draw.below(5, count).astype(np.int64) - 2
        values = np.array([integer(form, number) for number in range(-2, 3)], np.uint64)
        return values[magnitude + 2]
    if kind == "cancelling" and role != "c":
        # neighbours of a differ in sign and in a few last bits; b is positive and nearly constant
        signs = np.arange(count, dtype=np.uint64) & np.uint64(role == "a")
        exponents = np.uint64(form.bias) + draw.below(2, count) * np.uint64(role == "a")
        near = draw.below(4, count) << np.uint64(form.ignored)
        return signs * np.uint64(form.sign) | exponents << np.uint64(form.fraction) | near
    if kind == "subnormal":
        return _subnormal(form, role, draw, count)
    found = _between(form, draw, *_products(form, kind, role), count)
    if kind == "sparse":
        return np.where(draw.below(8, count) == 0, found, draw.below(2, count) * np.uint64(form.sign))
    if kind == "special":
        edges = specials(name)
        return np.where(draw.below(128, count) == 0, edges[draw.below(len(edges), count).astype(np.int64)], found)
    return found


def _subnormal(form: Format, role: str, draw: Draw, count: int) -> Words:
    """Subnormal numbers in a, zeros among them; b is so large that their products are not lost, if that is possible."""
    if role == "b" and form.exponent == 8:
        return _between(form, draw, form.bias - 8, form.bias, count)
    exponents = draw.below(2, count) if role != "c" else draw.below(3, count)
    return _assemble(form, draw, exponents, draw.below(2, count))


def integer(form: Format, number: int) -> int:
    """Return the bit pattern of a small integer, which the format represents exactly."""
    if number == 0:
        return 0
    exponent = abs(number).bit_length() - 1
    fraction = (abs(number) << form.fraction >> exponent) & ((1 << form.fraction) - 1)
    return (form.sign if number < 0 else 0) | form.bias + exponent << form.fraction | fraction


def integers(name: str, kind: str, draw: Draw, count: int) -> Words:
    """Return integers: any, small, or near both ends of the range."""
    bits, found = BITS[name], draw.words(count)
    mask = np.uint64((1 << bits) - 1)
    if kind == "small":
        return (draw.below(9, count) - np.uint64(4 if name.startswith("s") else 0)) & mask
    if kind == "limits":
        end = draw.below(2, count) * np.uint64(1 << bits - 1)
        return (end + draw.below(1 << min(bits // 2, 16), count) - np.uint64(1 << min(bits // 2, 16) - 1)) & mask
    return found & mask


def pack(name: str, words: Words) -> NDArray[np.uint8]:
    """Return bit patterns as bytes in memory."""
    return words.astype(f"<u{BITS[name] // 8}").view(np.uint8)


def elements(name: str, kind: str, role: str, draw: Draw, count: int) -> NDArray[np.uint8]:
    """Return the bytes of `count` elements of a type and kind."""
    if name in FLOATS:
        return pack(name, floats(name, kind, role, draw, count))
    return pack(name, integers(name, kind, draw, count))
