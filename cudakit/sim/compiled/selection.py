"""Moves, comparisons and selections as machine code, as ``sim/values/selection.py``."""

from __future__ import annotations

from cudakit.sim.compiled.ir import Value, like
from cudakit.sim.compiled.lanewise import (
    BITS,
    INTEGERS,
    Operands,
    Unsupported,
    combined,
    form,
    halves_of,
    modifiers_of,
    writes,
)
from cudakit.sim.compiled.rounding import bfloat_to_float, flushed, flushed16, half_to_float
from cudakit.sim.ptx.ir import Instruction, Register, Vector
from cudakit.sim.values.lanewise import flatten, width

_FLOAT_TESTS = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "num": "ord",
    "nan": "uno",
}
_FLOAT_TESTS |= {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge"}
_PLAIN_TESTS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_ONES = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}


def _compared(o: Operands, i: Instruction, name: str, kind: str, ftz: bool) -> Value:
    """The comparison ``name`` of an instruction's first two sources; of a packed type, a condition per half."""
    first, second = i.operands[1:3]
    if kind in ("f32", "f64"):
        a, b = o.read_float(first, kind), o.read_float(second, kind)
        if ftz:
            a, b = flushed(a), flushed(b)
        return a.is_(_FLOAT_TESTS[name], b)
    a, b = o.read(first, kind), o.read(second, kind)
    if kind in INTEGERS or kind in BITS:
        return a.is_(_PLAIN_TESTS.get(name) or ("s" if kind[0] == "s" else "u") + name, b)
    if kind not in ("f16", "bf16", "f16x2", "bf16x2"):
        raise Unsupported(i.name)
    if kind.endswith("x2"):
        a, b = halves_of(a), halves_of(b)
    if kind.startswith("bf16"):
        x, y = bfloat_to_float(a), bfloat_to_float(b)
    else:
        x, y = (half_to_float(flushed16(one) if ftz else one) for one in (a, b))
    return x.is_(_FLOAT_TESTS[name], y)


def _split(both: Value, count: int) -> tuple[Value, ...]:
    """The conditions of the low and of the high halves; ``count``: lanes, 0 for single values."""
    if not count:
        return both[0], both[1]
    return both.shuffle(list(range(0, 2 * count, 2))), both.shuffle(list(range(1, 2 * count, 2)))


def _comparison(i: Instruction, types: int) -> tuple[str, str, bool]:
    """The name of a comparison, the operation that combines it with a predicate, and whether it flushes subnormals."""
    name, *others = modifiers_of(i)[:-types]
    combine = next((one for one in others if one in ("and", "or", "xor")), "")
    if not set(others) <= {combine, "ftz"}:
        raise Unsupported(i.name)
    return name, combine, "ftz" in others


@writes("setp")
def _setp(o: Operands, i: Instruction) -> None:
    kind = i.modifiers[-1]
    name, combine, ftz = _comparison(i, 1)
    destinations, sources = flatten(i)
    found = _compared(o, i, name, kind, ftz)
    results = _split(found, o.width) if kind.endswith("x2") else (found, ~found)[: len(destinations)]
    if combine:
        other = o.read(sources[2], "pred")
        results = tuple(combined(combine, one, other) for one in results)
    for destination, result in zip(destinations, results, strict=True):
        o.write(destination, result)


@writes("set")
def _set(o: Operands, i: Instruction) -> None:
    result, kind = i.modifiers[-2:]
    name, combine, ftz = _comparison(i, 2)
    found = _compared(o, i, name, kind, ftz)
    if kind.endswith("x2"):
        sides = _split(found, o.width)
        true, element = (0xFFFF, "i16") if result in ("u32", "s32") else (_ONES[result.removesuffix("x2")], "i16")
    else:
        sides, true, element = (found,), _ONES.get(result, -1), f"i{width(result)}"
    if combine:
        other = o.read(i.operands[3], "pred")
        sides = tuple(combined(combine, one, other) for one in sides)
    parts = []
    for side in sides:
        yes = o.code.const(like(side.kind, element), true)
        parts.append(side.select(yes, 0))
    if len(parts) == 1:
        return o.write(i.operands[0], _in_register(i, parts[0]))
    o.write(i.operands[0], parts[0].to("i32") | (parts[1].to("i32") << 16))


def _in_register(i: Instruction, value: Value) -> Value:
    """A result in the width of its register, of which the upper bits are zero."""
    target = i.operands[0]
    return value.to(f"i{width(target.type)}") if isinstance(target, Register) else value


@writes("selp")
def _selp(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    o.write(i.operands[0], o.read(i.operands[3], "pred").select(a, b))


@writes("slct")
def _slct(o: Operands, i: Instruction) -> None:
    *mods, kind, by = i.modifiers
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    if by == "s32":
        first = o.read(i.operands[3], by).is_("sge", 0)
    else:
        # flushing changes no comparison with zero but that of a negative subnormal
        value = o.read_float(i.operands[3], by)
        first = (flushed(value) if "ftz" in mods else value).is_("oge", 0.0)
    o.write(i.operands[0], first.select(a, b))


@writes("mov")
def _mov(o: Operands, i: Instruction) -> None:
    kind = i.modifiers[-1]
    target, source = i.operands
    if isinstance(source, Vector) and isinstance(target, Vector):
        values = [o.read(one, kind) for one in source.elements]
        for to, value in zip(target.elements, values, strict=True):
            if to is not None:
                o.write(to, value)
        return
    if isinstance(source, Vector):
        bits = width(kind) // len(source.elements)
        whole: Value | None = None
        for number, one in enumerate(source.elements):
            value = o.read(one, f"b{bits}").to(f"i{width(kind)}")
            if bits == 8:
                value = value & 255
            value = value << number * bits
            whole = value if whole is None else whole | value
        if whole is not None:
            o.write(target, whole)
        return
    if isinstance(target, Vector):
        bits = width(kind) // len(target.elements)
        value = o.read(source, kind)
        for number, to in enumerate(target.elements):
            if to is not None:
                part = value >> number * bits
                o.write(to, (part & 255).to("i16") if bits == 8 else part.to(f"i{bits}"))
        return
    if width(kind) not in (1, 16, 32, 64):
        raise Unsupported(i.name)
    o.write(target, o.read(source, kind))


@writes("cvta")
def _cvta(o: Operands, i: Instruction) -> None:
    _, mods = form(i, "to", "global")
    if "global" not in mods:
        raise Unsupported(i.name)
    o.write(i.operands[0], o.read(i.operands[1], "u64"))
