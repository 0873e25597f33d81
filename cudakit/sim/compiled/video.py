"""SIMD video instructions as machine code, as ``sim/values/video.py``: two or four small integers in 32 bits."""

from __future__ import annotations

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, function, modifiers_of, writes
from cudakit.sim.ptx.ir import Instruction

_ARITHMETIC = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def _part(packed: Value, place: int, bits: int, signed: bool) -> Value:
    up = packed << (32 - bits * (place + 1))
    return up.sra(32 - bits) if signed else up >> (32 - bits)


def _computed(stem: str, comparison: str, x: Value, y: Value) -> Value:
    if comparison:
        return x.is_(_COMPARISONS[comparison], y).to(x.kind)
    if stem == "vmin" or stem == "vmax":
        return x.is_("slt" if stem == "vmin" else "sgt", y).select(x, y)
    if stem == "vadd":
        return x + y
    difference = x - y
    return difference if stem == "vsub" else difference.is_("slt", 0).select(-difference, difference)


@writes(*(f"{stem}{count}" for stem in (*_ARITHMETIC, "vset") for count in (2, 4)))
def _video(o: Operands, i: Instruction) -> None:
    stem, bits = i.opcode[:-1], 32 // int(i.opcode[-1])
    mods = modifiers_of(i)
    adds, saturates = "add" in mods, "sat" in mods
    comparison = next((one for one in mods if one in _COMPARISONS), "")
    kinds = [one for one in mods if one in ("u32", "s32")]
    if len(kinds) + adds + saturates + bool(comparison) != len(mods):
        raise Unsupported(i.name)
    result, first, second = ("u32", *kinds) if comparison else kinds
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if result == "s32" else (0, (1 << bits) - 1)

    def run(a: Value, b: Value, c: Value) -> Value:
        total = c if adds else a ^ a
        for place in range(32 // bits):
            x, y = _part(a, place, bits, first == "s32"), _part(b, place, bits, second == "s32")
            one = _computed(stem, comparison, x, y)
            if adds:
                total = total + one
                continue
            if saturates:
                one = one.is_("slt", low).select(low, one)
                one = one.is_("sgt", high).select(high, one)
            total = total | ((one & ((1 << bits) - 1)) << bits * place)
        return total

    operands = [o.read(operand, "b32") for operand in i.operands[1:4]]
    o.write(i.operands[0], function(i.name, "i32", run, operands))
