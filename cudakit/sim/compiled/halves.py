"""Arithmetic of f16, bf16 and their packed pairs as machine code, as ``sim/values/floats.py``.

A packed pair of all lanes is a vector of twice as many 16-bit values.
"""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, combined, form, function, halves_of, joined, rounding
from cudakit.sim.compiled.rounding import (
    NAN16,
    bfloat_to_float,
    flushed16,
    half_to_float,
    is_nan,
    nearest_bfloat,
    nearest_half,
    odd_sum,
    odd_to_bfloat,
    odd_to_half,
    rectified16,
    saturated16,
    size,
    wide,
)
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.floats import BELOW16

_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80}
_SMALLEST = 0x0400


def write16(o: Operands, i: Instruction, kind: str, count: int, compute: Callable[..., Value]) -> None:
    """Write a result of a 16-bit or packed type. ``compute`` takes and returns 16-bit patterns."""
    operands = [o.read(operand, kind) for operand in i.operands[1 : 1 + count]]
    if not kind.endswith("x2"):
        return o.write(i.operands[0], function(i.name, "i16", compute, operands))
    result = function(i.name, "i16", compute, [halves_of(operand) for operand in operands])
    o.write(i.operands[0], joined(result, operands[0]))


def _rounded(opcode: str, is_bfloat: bool, values: list[Value]) -> Value:
    """The pattern of a sum, difference, product or fused product of f32 values that have few significant bits."""
    if opcode == "fma":
        return (odd_to_bfloat if is_bfloat else odd_to_half)(_exact(opcode, values))
    if opcode == "mul":
        # the product of two bf16 may be below the range of f32
        return odd_to_bfloat(_exact(opcode, values)) if is_bfloat else nearest_half(values[0] * values[1])
    # f32 has more than twice as many significant bits and two more, so rounding twice is correct
    total = values[0] - values[1] if opcode == "sub" else values[0] + values[1]
    return nearest_bfloat(total) if is_bfloat else nearest_half(total)


def _exact(opcode: str, values: list[Value]) -> Value:
    """A product or fused product in f64: exact, or rounded to odd."""
    a, b, *rest = map(wide, values)
    return odd_sum(a * b, rest[0]) if opcode == "fma" else a * b


def arithmetic(o: Operands, i: Instruction) -> None:
    """add, sub, mul and fma."""
    kind, mods = form(i, "rn", "ftz", "sat", "relu")
    if i.opcode == "mad" or rounding(mods) != "rn":
        raise Unsupported(i.name)
    is_bfloat = kind.startswith("bf16")
    read = bfloat_to_float if is_bfloat else half_to_float

    def compute(*operands: Value) -> Value:
        values = [read(flushed16(one) if "ftz" in mods else one) for one in operands]
        bits = _rounded(i.opcode, is_bfloat, values)
        if "ftz" in mods:
            bits = flushed16(bits)
            if i.opcode in ("mul", "fma"):
                # what reached the smallest normal number only by rounding is flushed too
                smallest = (bits & 0x7FFF).eq(_SMALLEST)
                below = size(_exact(i.opcode, values)).is_("olt", BELOW16)
                bits = (smallest & below).select(bits & 0x8000, bits)
        if "relu" in mods:
            bits = rectified16(bits)
        return saturated16(bits) if "sat" in mods else bits

    write16(o, i, kind, 3 if i.opcode == "fma" else 2, compute)


def sign(o: Operands, i: Instruction) -> None:
    """abs and neg."""
    kind, mods = form(i, "ftz")
    infinity = _INFINITY[kind.removesuffix("x2")]

    def compute(a: Value) -> Value:
        if "ftz" in mods:
            a = flushed16(a)
        magnitude = a & 0x7FFF
        result = a ^ 0x8000 if i.opcode == "neg" else magnitude
        return magnitude.gt(infinity).select(NAN16, result)

    write16(o, i, kind, 1, compute)


def extremum(o: Operands, i: Instruction) -> None:
    """min and max."""
    kind, mods = form(i, "ftz", "NaN", "xorsign", "abs")
    least = i.opcode == "min"
    read = bfloat_to_float if kind.startswith("bf16") else half_to_float

    def compute(a: Value, b: Value) -> Value:
        if "ftz" in mods:
            a, b = flushed16(a), flushed16(b)
        sign = (a ^ b) & 0x8000
        if "xorsign" in mods:
            a, b = a & 0x7FFF, b & 0x7FFF
        x, y = read(a), read(b)
        first = x.is_("olt" if least else "ogt", y) | is_nan(y)
        chosen = first.select(a, b)
        # equal values differ at most in the sign of zero: -0 is smaller
        result = x.is_("oeq", y).select(combined("or" if least else "and", a, b), chosen)
        if "xorsign" in mods:
            result = result | sign
        undefined = x.is_("uno", y) if "NaN" in mods else is_nan(x) & is_nan(y)
        return undefined.select(NAN16, result)

    write16(o, i, kind, 2, compute)
