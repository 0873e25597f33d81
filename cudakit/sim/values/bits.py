"""Logic, shift, bit-field and byte instructions, and the dot products of bytes.

Positions and lengths that PTX leaves undefined behave as in hardware: bfe and bfi of 64 bits read all their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.ptx.ir import Immediate
from cudakit.sim.values.integers import BITS, INTEGERS, same, signed, unsigned
from cudakit.sim.values.lanewise import S32, S64, U32, U64, UNSIGNED, Array, Form, Spec, builds, width

_32 = np.uint64(32)


@builds("and", "or", "xor")
def _logic(spec: Spec) -> Form:
    kind = spec.kind("pred", *BITS)
    spec.finish()
    functions: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    return same(kind, 2, functions[spec.instruction.opcode])


@builds("not")
def _not(spec: Spec) -> Form:
    kind = spec.kind("pred", *BITS)
    spec.finish()
    return same(kind, 1, np.logical_not if kind == "pred" else np.invert)


@builds("cnot")
def _cnot(spec: Spec) -> Form:
    kind = spec.kind(*BITS)
    spec.finish()
    return same(kind, 1, lambda a: (a == 0).astype(a.dtype))


def _amount(amount: Array, bits: int) -> Array:
    """A 32-bit shift amount in the shifted value's dtype. numpy shifts by the full width or more as PTX does."""
    if bits == 32:
        return amount
    if bits == 16:
        amount = np.minimum(amount, np.uint32(16))
    converted: Array = amount.astype(UNSIGNED[bits])
    return converted


@builds("shl", "shr")
def _shift(spec: Spec) -> Form:
    left = spec.instruction.opcode == "shl"
    kind = spec.kind(*BITS) if left else spec.kind(*BITS, *INTEGERS)
    spec.finish()
    bits = width(kind)
    function: Any = np.left_shift if left else np.right_shift

    def run(a: Array, amount: Array) -> Array:
        return function(a, _amount(amount, bits))  # type: ignore[no-any-return]

    def arithmetic(a: Array, amount: Array) -> Array:
        amount = np.minimum(amount, np.uint32(bits - 1))
        return unsigned(np.right_shift(signed(a), signed(_amount(amount, bits))))

    return Form(arithmetic if kind.startswith("s") else run, (kind,), (kind, "u32"))


@builds("shf")
def _funnel(spec: Spec) -> Form:
    kind = spec.kind("b32")
    side, mode = spec.one_of("l", "r"), spec.one_of("clamp", "wrap")
    spec.finish()
    if not side or not mode:
        spec.refuse("shf takes .l or .r and .clamp or .wrap")

    def run(a: Array, b: Array, c: Array) -> Array:
        amount = c & np.uint32(31) if mode == "wrap" else np.minimum(c, _32.astype(U32))
        both = (b.astype(U64) << _32) | a.astype(U64)
        shifted = (both << amount.astype(U64)) >> _32 if side == "l" else both >> amount.astype(U64)
        result: Array = shifted.astype(U32)
        return result

    return Form(run, (kind,), (kind, kind, "u32"))


_TABLES: dict[int, Callable[..., Array]] = {
    0x00: lambda a, b, c: (a ^ a) | (b ^ b) | (c ^ c),
    0x80: lambda a, b, c: a & b & c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xC0: lambda a, b, c: (a & b) | (c ^ c),
    0xE8: lambda a, b, c: (a & b) | (c & (a | b)),
    0xEA: lambda a, b, c: (a & b) | c,
    0xF8: lambda a, b, c: a | (b & c),
    0xFE: lambda a, b, c: a | b | c,
    0x6A: lambda a, b, c: (a & b) ^ c,
    0x78: lambda a, b, c: a ^ (b & c),
    0xCA: lambda a, b, c: c ^ (a & (b ^ c)),
}


def table_function(table: int) -> Callable[..., Array]:
    """The bitwise function of three operands for a lop3 table."""
    known = _TABLES.get(table)
    if known is not None:
        return known

    def run(a: Array, b: Array, c: Array) -> Array:
        result: Any = None
        for row in range(8):
            if table >> row & 1:
                term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                result = term if result is None else result | term
        return result  # type: ignore[no-any-return]

    return run


@builds("lop3")
def _lop3(spec: Spec) -> Form:
    kind = spec.kind("b32")
    combine = spec.one_of("or", "and")
    spec.finish()
    table = spec.sources[3] if len(spec.sources) > 3 else None
    if not isinstance(table, Immediate) or not 0 <= table.bits < 256:
        spec.refuse("its table is not a constant from 0 to 255")
    function = table_function(table.bits)
    if not combine:
        return Form(lambda a, b, c, table: function(a, b, c), (kind,), (kind,) * 4)
    join: Any = np.logical_or if combine == "or" else np.logical_and

    def run(*operands: Any) -> tuple[Array, ...]:
        result = function(*operands[:3])
        return result, join(result != 0, operands[4])

    return Form(run, (kind, "pred"), (kind, kind, kind, kind, "pred"))


# ---- bits ----


def popcount(value: Array) -> Array:
    """The number of set bits, as uint32."""
    return np.bitwise_count(value).astype(U32)


def highest_bit(value: Array) -> Array:
    """The position of the highest set bit as uint32, all ones for 0."""
    if value.dtype.itemsize == 8:
        high, low = (value >> _32).astype(U32), value.astype(U32)
        return np.where(high != 0, highest_bit(high) + np.uint32(32), highest_bit(low))
    exponent = (value.astype(np.float64).view(U64) >> np.uint64(52)).astype(U32) - np.uint32(1023)
    position: Array = np.where(value == 0, np.uint32(0xFFFFFFFF), exponent)
    return position


def reverse_bits(value: Array) -> Array:
    kind, bits = value.dtype.type, value.dtype.itemsize * 8
    step, full = bits // 2, (1 << bits) - 1
    mask = full
    while step:
        mask ^= mask << step & full
        value = ((value >> kind(step)) & kind(mask)) | ((value & kind(mask)) << kind(step))
        step //= 2
    return value


@builds("popc", "clz")
def _counts(spec: Spec) -> Form:
    kind = spec.kind("b32", "b64")
    spec.finish()
    if spec.instruction.opcode == "popc":
        return Form(popcount, ("u32",), (kind,))
    last = np.uint32(width(kind) - 1)
    return Form(lambda a: last - highest_bit(a), ("u32",), (kind,))


@builds("brev")
def _brev(spec: Spec) -> Form:
    kind = spec.kind("b32", "b64")
    spec.finish()
    return same(kind, 1, reverse_bits)


@builds("bfind")
def _bfind(spec: Spec) -> Form:
    kind = spec.kind("u32", "s32", "u64", "s64")
    shift = spec.flag("shiftamt")
    spec.finish()
    last, none = np.uint32(width(kind) - 1), np.uint32(0xFFFFFFFF)

    def run(a: Array) -> Array:
        found = highest_bit(np.where(signed(a) < 0, ~a, a) if kind.startswith("s") else a)
        return np.where(found == none, none, last - found) if shift else found

    return Form(run, ("u32",), (kind,))


def _mask(count: Array, kind: np.dtype[Any]) -> Array:
    """Patterns whose lowest ``count`` bits (0 or more) are set."""
    mask: Array = ~(~kind.type(0) << _amount(count, kind.itemsize * 8))
    return mask


def _bit_count(count: Array, bits: int) -> Array:
    """A position or length of bfe and bfi: 32-bit forms read its low byte, 64-bit ones (in hardware) all of it."""
    counted: Array = np.minimum(count & np.uint32(255) if bits == 32 else count, np.uint32(bits))
    return counted


@builds("bfe")
def _bfe(spec: Spec) -> Form:
    kind = spec.kind("u32", "s32", "u64", "s64")
    spec.finish()
    bits, dtype = width(kind), UNSIGNED[width(kind)]

    def run(a: Array, b: Array, c: Array) -> Array:
        position, length = _bit_count(b, bits), _bit_count(c, bits)
        field = (a >> _amount(position, bits)) & _mask(length, dtype)
        if kind.startswith("u"):
            return field
        top = np.minimum(position + length - np.uint32(1), np.uint32(bits - 1))
        negative = ((a >> _amount(top, bits)) & dtype.type(1)) != 0
        kept = np.minimum(length, np.uint32(bits) - position)
        return np.where(negative & (length != 0), field | ~_mask(kept, dtype), field)

    return Form(run, (kind,), (kind, "u32", "u32"))


@builds("bfi")
def _bfi(spec: Spec) -> Form:
    kind = spec.kind("b32", "b64")
    spec.finish()
    bits = width(kind)

    def run(a: Array, b: Array, c: Array, d: Array) -> Array:
        position = _amount(_bit_count(c, bits), bits)
        mask = _mask(_bit_count(d, bits), UNSIGNED[bits]) << position
        return (b & ~mask) | ((a << position) & mask)

    return Form(run, (kind,), (kind, kind, "u32", "u32"))


@builds("bmsk")
def _bmsk(spec: Spec) -> Form:
    spec.kind("b32")
    mode = spec.one_of("clamp", "wrap")
    spec.finish()
    if not mode:
        spec.refuse("neither .clamp nor .wrap")

    def run(a: Array, b: Array) -> Array:
        if mode == "wrap":
            a, b = a & np.uint32(31), b & np.uint32(31)
        return _mask(b, U32) << a

    return same("u32", 2, run)


@builds("szext")
def _szext(spec: Spec) -> Form:
    kind = spec.kind("u32", "s32")
    mode = spec.one_of("clamp", "wrap")
    spec.finish()
    if not mode:
        spec.refuse("neither .clamp nor .wrap")

    def run(a: Array, b: Array) -> Array:
        length = b & np.uint32(31) if mode == "wrap" else np.minimum(b, np.uint32(32))
        field = a & _mask(length, U32)
        if kind == "u32":
            return field
        negative = ((a >> ((length - np.uint32(1)) & np.uint32(31))) & np.uint32(1)) != 0
        return np.where(negative & (length != 0), field | ~_mask(length, U32), field)

    return Form(run, (kind,), (kind, "u32"))


@builds("fns")
def _fns(spec: Spec) -> Form:
    kind = spec.kind("b32")
    spec.finish()

    def run(mask: Array, base: Array, offset: Array) -> Array:
        count = offset.view(S32).astype(S64)
        start = base.astype(S64)
        found = np.full(np.broadcast_shapes(mask.shape, base.shape, offset.shape), 0xFFFFFFFF, dtype=U32)
        seen = np.zeros(found.shape, dtype=S64)
        at_base = (mask >> base) & np.uint32(1)
        found = np.where((count == 0) & (at_base == 1), base, found)
        for step in range(32):
            position = np.where(count > 0, start + step, start - step)
            inside = (position >= 0) & (position < 32)
            bit = (mask >> np.clip(position, 0, 31).astype(U32)) & np.uint32(1)
            seen = seen + np.where(inside, bit, 0)
            hit = inside & (bit == 1) & (seen == np.abs(count)) & (count != 0)
            found = np.where(hit, position.astype(U32), found)
        return found

    return Form(run, (kind,), ("b32", "b32", "s32"))


# ---- bytes ----

# for each of the four result bytes, which of the eight source bytes it is, by mode and selector
PERMUTATIONS: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": tuple(tuple(i + k for k in range(4)) for i in range(4)),
    "b4e": tuple(tuple((i - k) % 8 for k in range(4)) for i in range(4)),
    "rc8": tuple((i,) * 4 for i in range(4)),
    "ecl": tuple(tuple(max(i, k) for k in range(4)) for i in range(4)),
    "ecr": tuple(tuple(min(i, k) for k in range(4)) for i in range(4)),
    "rc16": tuple((0, 1, 0, 1) if i % 2 == 0 else (2, 3, 2, 3) for i in range(4)),
}


@builds("prmt")
def _prmt(spec: Spec) -> Form:
    kind = spec.kind("b32")
    mode = spec.one_of(*PERMUTATIONS)
    spec.finish()
    selectors = np.array(
        [sum(byte << 4 * place for place, byte in enumerate(row)) for row in PERMUTATIONS.get(mode, ())], dtype=U32
    )

    def run(a: Array, b: Array, c: Array) -> Array:
        if mode:
            c = selectors[c & np.uint32(3)]
        both = (b.astype(U64) << _32) | a.astype(U64)
        result: Any = np.uint32(0)
        for place in range(4):
            selector = c >> np.uint32(4 * place)
            byte = (both >> ((selector & np.uint32(7)) << np.uint32(3)).astype(U64)).astype(U32) & np.uint32(255)
            if not mode:
                sign = np.where(byte > np.uint32(127), np.uint32(255), np.uint32(0))
                byte = np.where((selector & np.uint32(8)) != 0, sign, byte)
            result = result | (byte << np.uint32(8 * place))
        return result  # type: ignore[no-any-return]

    return same(kind, 3, run)


@builds("dp4a", "dp2a")
def _dot(spec: Spec) -> Form:
    types = [spec.kind("u32", "s32"), spec.kind("u32", "s32")]
    b_kind, a_kind = types
    wide = spec.instruction.opcode == "dp4a"
    half = "" if wide else spec.one_of("lo", "hi")
    spec.finish()
    if not wide and not half:
        spec.refuse("neither .lo nor .hi")

    def part(value: Array, place: int, size: int, kind: str) -> Array:
        moved = value << np.uint32(32 - size * (place + 1))
        taken: Array
        if kind == "s32":
            taken = (moved.view(S32) >> np.int32(32 - size)).view(U32)
        else:
            taken = moved >> np.uint32(32 - size)
        return taken

    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for place in range(4 if wide else 2):
            other = part(b, place + (2 if half == "hi" else 0), 8, b_kind)
            total = total + part(a, place, 8 if wide else 16, a_kind) * other
        return total

    result = "s32" if "s32" in types else "u32"
    return Form(run, (result,), (a_kind, b_kind, result))
