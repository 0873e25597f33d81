"""Integer arithmetic.

Results that PTX leaves undefined are the hardware's: a division by zero returns all ones, and so does ``rem``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.values.lanewise import (
    S32,
    S64,
    SIGNED,
    U32,
    UNSIGNED,
    Array,
    Form,
    Spec,
    builds,
    packed,
    some,
    width,
)

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
PACKED_INTEGERS = ("u16x2", "s16x2")
BITS = ("b16", "b32", "b64")
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def is_integer(spec: Spec) -> bool:
    """Whether the instruction's type (its last modifier) is an integer type."""
    return bool(spec.rest) and spec.rest[-1] in INTEGERS + PACKED_INTEGERS


def signed(value: Array) -> Array:
    """The same bits as two's complement numbers."""
    view: Array = value.view(SIGNED[value.dtype.itemsize * 8])
    return view


def unsigned(value: Array) -> Array:
    view: Array = value.view(UNSIGNED[value.dtype.itemsize * 8])
    return view


def same(kind: str, count: int, function: Callable[..., Array]) -> Form:
    """A form whose destination and ``count`` sources share one type."""
    return Form(function, (kind,), (kind,) * count)


def _numeric(kind: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of bit patterns from a function of numbers with the type's signedness."""
    if kind.startswith("s"):
        return lambda *operands: unsigned(function(*map(signed, operands)))
    return function


# ---- add, subtract, multiply ----


def _sum_saturated(function: Any) -> Callable[..., Array]:
    def run(a: Array, b: Array) -> Array:
        exact = function(a.view(S32).astype(S64), b.view(S32).astype(S64))
        clipped: Array = np.clip(exact, np.int64(-(1 << 31)), np.int64((1 << 31) - 1)).astype(S32).view(U32)
        return clipped

    return run


def build_sum(spec: Spec) -> Form:
    """add, sub, addc, subc of integers."""
    opcode = spec.instruction.opcode
    subtracts = opcode.startswith("sub")
    function: Any = np.subtract if subtracts else np.add
    if spec.rest[-1] in PACKED_INTEGERS:
        kind = spec.kind(*PACKED_INTEGERS)
        spec.finish()
        return same(kind, 2, packed(function))
    kind = spec.kind(*INTEGERS)
    reads, writes, saturates = opcode in ("addc", "subc"), spec.flag("cc"), spec.flag("sat")
    spec.finish()
    if saturates:
        if kind != "s32" or reads or writes:
            spec.refuse("only .s32 saturates")
        return same(kind, 2, _sum_saturated(function))
    if not reads and not writes:
        return same(kind, 2, function)
    if width(kind) == 16:
        spec.refuse("no carry of 16 bits")

    def run(*operands: Any) -> Array | tuple[Array, ...]:
        a, b = operands[0], operands[1]
        # a difference is a + ~b + carry, so the flag means "no borrow"; a later addc can observe it
        flag = operands[2] if reads else np.bool_(subtracts)
        carry = ~flag if subtracts else flag
        result = function(function(a, b), carry.astype(a.dtype))
        if not writes:
            return result  # type: ignore[no-any-return]
        if subtracts:
            return result, ~((a < b) | (carry & (a == b)))
        return result, (result < a) | (carry & (result == a))

    return Form(run, (kind, "pred") if writes else (kind,), (kind, kind, "pred") if reads else (kind, kind))


def high_product(a: Array, b: Array, is_signed: bool) -> Array:
    """The upper half of the full product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = SIGNED[2 * bits] if is_signed else UNSIGNED[2 * bits]
        if is_signed:
            a, b = signed(a), signed(b)
        product = (a.astype(wide) * b.astype(wide)).view(UNSIGNED[2 * bits])
        upper: Array = (product >> product.dtype.type(bits)).astype(UNSIGNED[bits])
        return upper
    a_low, a_high, b_low, b_high = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW)
    high: Array = a_high * b_high + (middle >> _32) + (other >> _32)
    if is_signed:
        zero = np.uint64(0)
        high = high - np.where(signed(a) < 0, b, zero) - np.where(signed(b) < 0, a, zero)
    return high


def _wide_product(kind: str) -> Callable[..., Array]:
    bits = width(kind)
    to = SIGNED[2 * bits] if kind.startswith("s") else UNSIGNED[2 * bits]
    if kind.startswith("s"):
        return lambda a, b: unsigned(signed(a).astype(to) * signed(b).astype(to))
    return lambda a, b: a.astype(to) * b.astype(to)


def _product_24(kind: str, high: bool) -> Callable[..., Array]:
    """The product of the low 24 bits: its bits 0 to 31, or 16 to 47 if ``high``."""

    def extend(value: Array) -> Array:
        extended: Array
        if kind == "s32":
            extended = ((value << np.uint32(8)).view(S32) >> np.int32(8)).astype(S64)
        else:
            extended = (value & np.uint32(0xFFFFFF)).astype(S64)
        return extended

    def run(a: Array, b: Array) -> Array:
        product = extend(a) * extend(b)
        result: Array = (product >> np.int64(16) if high else product).astype(U32)
        return result

    return run


def _product(spec: Spec) -> tuple[str, str, Callable[..., Array]]:
    """The product of mul, mad and their 24-bit forms: type, type of the result, function."""
    opcode = spec.instruction.opcode
    if opcode.endswith("24"):
        kind = spec.kind("u32", "s32")
        half = spec.one_of("lo", "hi")
        if not half:
            spec.refuse("neither .lo nor .hi")
        return kind, kind, _product_24(kind, half == "hi")
    kind = spec.kind(*INTEGERS)
    half = spec.one_of("lo", "hi", "wide")
    if half == "lo":
        return kind, kind, np.multiply
    if half == "hi":
        is_signed = kind.startswith("s")
        return kind, kind, lambda a, b: high_product(a, b, is_signed)
    if half == "wide" and width(kind) < 64:
        return kind, f"{kind[0]}{2 * width(kind)}", _wide_product(kind)
    spec.refuse("neither .lo nor .hi nor .wide")


def build_mul(spec: Spec) -> Form:
    kind, result, function = _product(spec)
    spec.finish()
    return Form(function, (result,), (kind, kind))


def build_mad(spec: Spec) -> Form:
    """mad, madc and mad24 of integers."""
    reads, writes, saturates = spec.instruction.opcode == "madc", spec.flag("cc"), spec.flag("sat")
    kind, result, function = _product(spec)
    spec.finish()
    if saturates and (kind != "s32" or reads or writes or "hi" not in spec.instruction.modifiers):
        spec.refuse("only .hi.sat.s32 saturates")
    if (reads or writes) and (width(kind) == 16 or result != kind):
        spec.refuse("no carry of this type")
    add_saturated = _sum_saturated(np.add)

    def run(*operands: Any) -> Array | tuple[Array, ...]:
        a, b, c = operands[0], operands[1], operands[2]
        product = function(a, b)
        total: Array
        if saturates:
            return add_saturated(product, c)
        if not reads and not writes:
            total = product + c
            return total
        carry = operands[3] if reads else np.bool_(False)
        total = product + c + carry.astype(product.dtype)
        if not writes:
            return total
        return total, (total < product) | (carry & (total == product))

    sources = (kind, kind, result)
    return Form(run, (result, "pred") if writes else (result,), (*sources, "pred") if reads else sources)


builds("addc", "subc")(build_sum)
builds("mul24")(build_mul)
builds("mad24", "madc")(build_mad)


@builds("sad")
def _sad(spec: Spec) -> Form:
    kind = spec.kind(*INTEGERS)
    spec.finish()

    def run(a: Array, b: Array, c: Array) -> Array:
        larger = signed(a) > signed(b) if kind.startswith("s") else a > b
        return c + np.where(larger, a - b, b - a)

    return same(kind, 3, run)


# ---- divide ----


def _magnitude(value: Array) -> Array:
    return unsigned(np.abs(signed(value)))


def _divide(a: Array, b: Array) -> Array:
    quotient: Array = a // b
    zero = b == 0
    return np.where(zero, ~b, quotient) if some(zero) else quotient


def _divide_signed(a: Array, b: Array) -> Array:
    size = _magnitude(a) // _magnitude(b)
    quotient = np.where(signed(a ^ b) < 0, np.negative(size), size)
    zero = b == 0
    return np.where(zero, ~b, quotient) if some(zero) else quotient


def _remainder(a: Array, b: Array) -> Array:
    rest: Array = a % b
    zero = b == 0
    return np.where(zero, ~b, rest) if some(zero) else rest


def _remainder_signed(a: Array, b: Array) -> Array:
    size = _magnitude(a) % _magnitude(b)
    rest = np.where(signed(a) < 0, np.negative(size), size)
    zero = b == 0
    return np.where(zero, ~b, rest) if some(zero) else rest


def build_div(spec: Spec) -> Form:
    kind = spec.kind(*INTEGERS)
    spec.finish()
    return same(kind, 2, _divide_signed if kind.startswith("s") else _divide)


@builds("rem")
def _rem(spec: Spec) -> Form:
    kind = spec.kind(*INTEGERS)
    spec.finish()
    return same(kind, 2, _remainder_signed if kind.startswith("s") else _remainder)


# ---- one operand, minimum and maximum ----


def build_sign(spec: Spec) -> Form:
    """abs and neg of integers."""
    kind = spec.kind("s16", "s32", "s64")
    spec.finish()
    if spec.instruction.opcode == "neg":
        return same(kind, 1, np.negative)
    return same(kind, 1, _magnitude)


def build_extremum(spec: Spec) -> Form:
    """min and max of integers."""
    kind = spec.kind(*INTEGERS, *PACKED_INTEGERS)
    relu = spec.flag("relu")
    spec.finish()
    if relu and kind not in ("s32", "s16x2"):
        spec.refuse("only .s32 and .s16x2 take .relu")
    function: Any = np.minimum if spec.instruction.opcode == "min" else np.maximum
    plain = _numeric(kind, function)

    def run(a: Array, b: Array) -> Array:
        result = plain(a, b)
        return np.where(signed(result) < 0, result.dtype.type(0), result) if relu else result

    return same(kind, 2, packed(run) if kind in PACKED_INTEGERS else run)
