"""Logic, shifts, bit fields, bytes and dot products as machine code, as ``sim/values/bits.py``."""

from __future__ import annotations

from typing import Any

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, combined, form, function, intrinsic, writes
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand
from cudakit.sim.values.bits import PERMUTATIONS, table_function
from cudakit.sim.values.lanewise import flatten, width


@writes("and", "or", "xor")
def _logic(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    o.write(i.operands[0], combined(i.opcode, a, b))


@writes("not")
def _not(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    o.write(i.operands[0], ~o.read(i.operands[1], kind))


@writes("cnot")
def _cnot(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    a = o.read(i.operands[1], kind)
    o.write(i.operands[0], a.eq(0).to(a.kind))


# ---- shifts ----


@writes("shl", "shr")
def _shift(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    bits = width(kind)
    a, amount = o.read(i.operands[1], kind), o.read(i.operands[2], "u32")
    arithmetic = i.opcode == "shr" and kind[0] == "s"
    over = amount.gt(bits - 1)
    by = over.select(bits - 1 if arithmetic else 0, amount).to(f"i{bits}")
    shifted = a << by if i.opcode == "shl" else a.sra(by) if arithmetic else a >> by
    o.write(i.operands[0], shifted if arithmetic else over.select(0, shifted))


@writes("shf")
def _funnel(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "l", "r", "clamp", "wrap")
    if kind != "b32":
        raise Unsupported(i.name)
    a, b, amount = (o.read(operand, "u32") for operand in i.operands[1:4])
    by = amount & 31 if "wrap" in mods else amount.gt(32).select(32, amount)
    both = (b.to("i64") << 32) | a.to("i64")
    shifted = (both << by.to("i64")) >> 32 if "l" in mods else both >> by.to("i64")
    o.write(i.operands[0], shifted.to("i32"))


def _left(a: Value, amount: Value, bits: int) -> Value:
    """A shift whose amount, a number of the same type, may be the full width or more."""
    over = amount.gt(bits - 1)
    return over.select(0, a << over.select(0, amount))


def _right(a: Value, amount: Value, bits: int) -> Value:
    over = amount.gt(bits - 1)
    return over.select(0, a >> over.select(0, amount))


def _mask(count: Value, bits: int) -> Value:
    """The lowest ``count`` bits set."""
    return ~_left(count._with(-1), count, bits)


# ---- logic of three operands ----


@writes("lop3")
def _lop3(o: Operands, i: Instruction) -> None:
    _, mods = form(i, "or", "and")
    destinations, sources = flatten(i)
    a, b, c = (o.read(operand, "b32") for operand in sources[:3])
    table = sources[3]
    if not isinstance(table, Immediate):
        raise Unsupported(i.name)
    # the interpreter's functions of arrays are functions of values too
    result: Any = table_function(table.bits)(a, b, c)
    if mods:
        o.write(destinations[1], combined(mods.pop(), result.ne(0), o.read(sources[4], "pred")))
    o.write(destinations[0], result)


# ---- bits ----


@writes("popc", "clz", "brev")
def _count(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    if width(kind) not in (32, 64):
        raise Unsupported(i.name)
    a = o.read(i.operands[1], kind)
    if i.opcode == "brev":
        return o.write(i.operands[0], intrinsic("bitreverse", a))
    found = _leading_zeros(o, a) if i.opcode == "clz" else intrinsic("ctpop", a)
    o.write(i.operands[0], found.to("i32"))


def _leading_zeros(o: Operands, a: Value) -> Value:
    return intrinsic("ctlz", a, o.code.const("i1", 0))


@writes("bfind")
def _bfind(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "shiftamt")
    a = o.read(i.operands[1], kind)
    if kind[0] == "s":
        a = a.is_("slt", 0).select(~a, a)
    zeros = _leading_zeros(o, a).to("i32")
    if "shiftamt" in mods:
        return o.write(i.operands[0], zeros.eq(width(kind)).select(-1, zeros))
    o.write(i.operands[0], zeros._with(width(kind) - 1) - zeros)


def _bit_count(count: Value, bits: int) -> Value:
    """A position or length of bfe and bfi: 32-bit forms read its low byte, 64-bit ones all of it."""
    if bits == 32:
        count = count & 255
    return count.gt(bits).select(bits, count).to(f"i{bits}")


def _constant_count(operand: Operand | None, bits: int) -> int | None:
    if not isinstance(operand, Immediate):
        return None
    return min(operand.bits & (255 if bits == 32 else 0xFFFFFFFF), bits)


@writes("bfe")
def _bfe(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    bits = width(kind)
    a = o.read(i.operands[1], kind)
    position, length = (_constant_count(operand, bits) for operand in i.operands[2:4])
    if position is not None and length is not None and position < bits and length:
        # the field is moved to the upper end, then down
        kept = min(length, bits - position)
        up = a << (bits - position - kept)
        return o.write(i.operands[0], up.sra(bits - kept) if kind[0] == "s" else up >> (bits - kept))
    counts = [_bit_count(o.read(operand, "u32"), bits) for operand in i.operands[2:4]]

    def field(a: Value, position: Value, length: Value) -> Value:
        found = _right(a, position, bits) & _mask(length, bits)
        if kind[0] == "u":
            return found
        top = position + length - 1
        top = top.gt(bits - 1).select(bits - 1, top)
        negative = ((a >> top) & 1).ne(0) & length.ne(0)
        room = position._with(bits) - position
        kept = length.lt(room).select(length, room)
        return negative.select(found | ~_mask(kept, bits), found)

    o.write(i.operands[0], function(i.name, f"i{bits}", field, (a, *counts)))


@writes("bfi")
def _bfi(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    bits = width(kind)
    a, b = (o.read(operand, kind) for operand in i.operands[1:3])
    position, length = (_constant_count(operand, bits) for operand in i.operands[3:5])
    if position is not None and length is not None and position < bits:
        mask = ((1 << length) - 1) << position & ((1 << bits) - 1)
        return o.write(i.operands[0], (b & ~mask) | ((a << position) & mask))
    counts = [_bit_count(o.read(operand, "u32"), bits) for operand in i.operands[3:5]]

    def inserted(a: Value, b: Value, position: Value, length: Value) -> Value:
        mask = _left(_mask(length, bits), position, bits)
        return (b & ~mask) | (_left(a, position, bits) & mask)

    o.write(i.operands[0], function(i.name, f"i{bits}", inserted, (a, b, *counts)))


@writes("bmsk")
def _bmsk(o: Operands, i: Instruction) -> None:
    _, mods = form(i, "clamp", "wrap")
    a, b = (o.read(operand, "u32") for operand in i.operands[1:3])
    if "wrap" in mods:
        a, b = a & 31, b & 31
    o.write(i.operands[0], _left(_mask(b, 32), a, 32))


@writes("szext")
def _szext(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "clamp", "wrap")
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], "u32")
    length = b & 31 if "wrap" in mods else b.gt(32).select(32, b)
    # the field is moved to the upper end, then down
    up = length.eq(0).select(0, length._with(32) - length)
    moved = a << up
    found = moved.sra(up) if kind[0] == "s" else moved >> up
    o.write(i.operands[0], length.eq(0).select(0, found))


@writes("fns")
def _fns(o: Operands, i: Instruction) -> None:
    operands = [o.read(operand, "b32") for operand in i.operands[1:4]]
    o.write(i.operands[0], function("fns", "i32", _nth_set, operands))


def _nth_set(mask: Value, base: Value, offset: Value) -> Value:
    """The position of the n-th set bit from ``base`` on, upwards or downwards."""
    code, kind = mask.code, mask.kind
    # all far positions are alike, and adding to them cannot overflow
    base = base.gt(1 << 10).select(1 << 10, base)
    wanted = offset.is_("slt", 0).select(-offset, offset)
    at_base = ((mask >> (base & 31)) & 1).ne(0) & base.lt(32)
    found, seen = code.variable(kind, -1), code.variable(kind, 0)
    found.value = (offset.eq(0) & at_base).select(base, -1)
    place = code.variable(kind, 0)
    place.value = base
    with code.for_(code.const("i32", 32)):
        position = place.value
        set_ = ((mask >> (position & 31)) & 1).ne(0) & position.lt(32)
        count = seen.value + set_.to(kind)
        hit = set_ & count.eq(wanted) & offset.ne(0)
        found.value = hit.select(position, found.value)
        seen.value = count
        place.value = offset.is_("sgt", 0).select(position + 1, position - 1)
    result: Value = found.value
    return result


# ---- bytes ----


@writes("prmt")
def _prmt(o: Operands, i: Instruction) -> None:
    _, mods = form(i, *PERMUTATIONS)
    mode = mods.pop() if mods else ""
    a, b = o.read(i.operands[1], "b32"), o.read(i.operands[2], "b32")
    selector = i.operands[3]
    if isinstance(selector, Immediate):
        value = selector.bits
        if mode:
            value = sum(byte << 4 * place for place, byte in enumerate(PERMUTATIONS[mode][value & 3]))
        return o.write(i.operands[0], _chosen_bytes(a, b, value))
    c = o.read(selector, "b32")

    def permuted(a: Value, b: Value, c: Value) -> Value:
        if mode:
            rows = [sum(byte << 4 * place for place, byte in enumerate(row)) for row in PERMUTATIONS[mode]]
            row = c & 3
            c = row.eq(0).select(rows[0], row.eq(1).select(rows[1], row.eq(2).select(rows[2], row._with(rows[3]))))
        both = (b.to("i64") << 32) | a.to("i64")
        result = a ^ a
        for place in range(4):
            one = c >> 4 * place
            byte = (both >> ((one & 7) << 3).to("i64")).to("i32") & 255
            if not mode:
                byte = (one & 8).ne(0).select(byte.gt(127).select(255, byte ^ byte), byte)
            result = result | (byte << 8 * place)
        return result

    o.write(i.operands[0], function(i.name, "i32", permuted, (a, b, c)))


def _chosen_bytes(a: Value, b: Value, selectors: int) -> Value:
    """Bytes of ``a`` and ``b`` chosen by constant selectors."""
    result: Value | None = None
    place = 0
    while place < 4:
        one = selectors >> 4 * place & 15
        source, start = (b if one & 4 else a), one & 3
        count = 1
        if one & 8:
            # the sign of the byte, in all bits
            part = (source << 8 * (3 - start)).sra(31) & 255
        else:
            # bytes in a row are moved together
            while place + count < 4 and start + count < 4 and selectors >> 4 * (place + count) & 15 == one + count:
                count += 1
            part = source if count == 4 else (source >> 8 * start) & ((1 << 8 * count) - 1)
        if place:
            part = part << 8 * place
        result = part if result is None else result | part
        place += count
    assert result is not None
    return result


@writes("dp4a", "dp2a")
def _dot(o: Operands, i: Instruction) -> None:
    *mods, a_kind, b_kind = i.modifiers
    a, b, total = (o.read(operand, "b32") for operand in i.operands[1:4])
    wide = i.opcode == "dp4a"

    def part(value: Value, place: int, size: int, kind: str) -> Value:
        moved = value << 32 - size * (place + 1)
        return moved.sra(32 - size) if kind == "s32" else moved >> 32 - size

    for place in range(4 if wide else 2):
        other = part(b, place + (2 if "hi" in mods else 0), 8, b_kind)
        total = total + part(a, place, 8 if wide else 16, a_kind) * other
    o.write(i.operands[0], total)
