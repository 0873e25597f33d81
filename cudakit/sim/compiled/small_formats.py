"""cvt of packed pairs, tf32 and 8-bit floats as machine code, as ``sim/values/conversions.py``."""

from __future__ import annotations

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, function, halves_of, joined, modifiers_of
from cudakit.sim.compiled.rounding import (
    NAN16,
    half_to_float,
    narrow,
    nearest_bfloat,
    nearest_half,
    pattern,
    rectified16,
)
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.conversions import TF32
from cudakit.sim.values.rounding import BFLOAT, E4M3, E5M2, HALF, Format

SMALL = frozenset(("f16x2", "bf16x2", "e4m3x2", "e5m2x2", "tf32"))
_BYTES = {"e4m3x2": E4M3, "e5m2x2": E5M2}
_MODES = ("rn", "rz", "rna")


def to_small(o: Operands, i: Instruction) -> None:
    """A conversion from or to one of these formats."""
    *others, target, source = modifiers_of(i)
    mods = set(others)
    if not mods <= {*_MODES, "relu", "satfinite"}:
        raise Unsupported(i.name)
    mode = next((one for one in _MODES if one in mods), "rn")
    if target == "tf32":
        return _tf32(o, i, mode, mods)
    if source == "f32" and target in ("f16x2", "bf16x2"):
        return _pair(o, i, target, mode, mods)
    if target in _BYTES:
        return _to_bytes(o, i, _BYTES[target], source, "relu" in mods)
    if target == "f16x2" and source in _BYTES:
        return _from_bytes(o, i, source, "relu" in mods)
    raise Unsupported(i.name)


def _tf32(o: Operands, i: Instruction, mode: str, mods: set[str]) -> None:
    satfinite = "satfinite" in mods

    def run(bits: Value) -> Value:
        result = narrow(bits, TF32, mode, satfinite) << 13
        if mode == "rna":
            # .satfinite moves every pattern above the largest number one step down, including NaN
            kept = (bits & 0xFFFFE000) - (0x2000 if satfinite else 0)
            result = (bits & 0x7FFFFFFF).gt(0x7F800000).select(kept, result)
        return result.is_("slt", 0).select(0, result) if "relu" in mods else result

    o.write(i.operands[0], function(i.name, "i32", run, [o.read(i.operands[1], "f32")]))


def _pair(o: Operands, i: Instruction, target: str, mode: str, mods: set[str]) -> None:
    """Two f32 values; the first is the upper half."""
    is_half = target == "f16x2"

    def encode(value: Value) -> Value:
        if mode == "rn" and "satfinite" not in mods:
            bits = nearest_half(value) if is_half else nearest_bfloat(value)
        else:
            bits = narrow(pattern(value), HALF if is_half else BFLOAT, mode, "satfinite" in mods).to("i16")
        return (rectified16(bits) if "relu" in mods else bits).to("i32")

    def run(upper: Value, lower: Value) -> Value:
        return encode(lower) | (encode(upper) << 16)

    operands = [o.read_float(operand, "f32") for operand in i.operands[1:3]]
    short = mods == {"rn"} and (o.code.module.halves or not is_half)
    o.write(i.operands[0], run(*operands) if short else function(i.name, "i32", run, operands))


def _to_bytes(o: Operands, i: Instruction, to: Format, source: str, relu: bool) -> None:
    def byte(bits: Value) -> Value:
        code = narrow(bits, to, "rn", satfinite=True)
        # the sign bit of a byte; NaN is positive
        return (code & 0x80).ne(0).select(0, code) if relu else code

    def from_halves(halves: Value) -> Value:
        return byte(pattern(half_to_float(halves))).to("i16")

    def from_floats(upper: Value, lower: Value) -> Value:
        return ((byte(upper) << 8) | byte(lower)).to("i16")

    if source == "f32":
        operands = [o.read(operand, "f32") for operand in i.operands[1:3]]
        return o.write(i.operands[0], function(i.name, "i16", from_floats, operands))
    if source != "f16x2":
        raise Unsupported(i.name)
    packed = o.read(i.operands[1], "f16x2")
    both = joined(function(i.name, "i16", from_halves, [halves_of(packed)]), packed)
    o.write(i.operands[0], (both | (both >> 8)).to("i16"))


def _from_bytes(o: Operands, i: Instruction, source: str, relu: bool) -> None:
    def widen(codes: Value) -> Value:
        """The f16 patterns of bytes."""
        magnitude = codes & 0x7F
        if source == "e5m2x2":
            # the upper half of an f16
            size, top = magnitude << 8, E5M2.infinity
        else:
            # the exponent has another bias, of which the difference is 8
            value = half_to_float(magnitude << (HALF.fraction - E4M3.fraction)) * 2.0 ** (HALF.bias - E4M3.bias)
            size, top = nearest_half(value), E4M3.nan - 1
        result = magnitude.gt(top).select(NAN16, size | ((codes & 0x80) << 8))
        return rectified16(result) if relu else result

    pair = o.read(i.operands[1], source).to("i32")
    spread = (pair & 0xFF) | ((pair & 0xFF00) << 8)
    o.write(i.operands[0], joined(function(i.name, "i16", widen, [halves_of(spread)]), spread))


def pack(o: Operands, i: Instruction) -> None:
    """cvt.pack.sat: two saturated 32-bit integers, packed below the lower bits of a third operand."""
    kinds = [one for one in i.modifiers if one not in ("pack", "sat", "b32")]
    if len(kinds) != 2:
        raise Unsupported(i.name)
    target, source = kinds
    bits = int(target[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)

    def clamp(value: Value) -> Value:
        less, more = ("slt", "sgt") if source[0] == "s" else ("ult", "ugt")
        if source[0] == "s" or low > 0:
            value = value.is_(less, low).select(low, value)
        return value.is_(more, high).select(high, value) & ((1 << bits) - 1)

    first, second, *rest = (o.read(operand, "b32") for operand in i.operands[1:])
    result = (clamp(first) << bits) | clamp(second)
    o.write(i.operands[0], result | (rest[0] << 16) if rest else result)
