"""Lane-wise instructions as machine code: the same functions as those of ``sim/values``, bit for bit.

A writer works on values with one element per lane of a vector, or, if all lanes of the warp have the same operands, on
single values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from cudakit.sim.compiled.ir import Code, Value, like, mangled
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Register, Vector
from cudakit.sim.values.lanewise import width

NAN32, NAN64, QUIET64 = 0x7FFFFFFF, 0xFFF8000000000000, 1 << 51
_INTEGERS = frozenset(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
_BITS = frozenset(("b16", "b32", "b64"))
_EXP2_TERMS = 14


class Unsupported(Exception):
    """The kernel needs something that is not compiled: the interpreter runs it."""


class Operands(Protocol):
    """The registers of the instruction that is being written."""

    code: Code
    # the number of lanes of the values; 0 for single values
    width: int

    def read(self, operand: Operand | None, kind: str) -> Value:
        """An operand as an integer of the type's width (i1 for a predicate)."""

    def read_float(self, operand: Operand | None, kind: str) -> Value:
        """An operand of type f32 or f64. A NaN may have any bits if it is the result of an f32 instruction."""

    def write(self, operand: Operand | None, value: Value) -> None:
        """Set a register to a value of its width."""

    def write_float(self, operand: Operand | None, value: Value) -> None:
        """Set a register to an f32 result. Its NaN becomes the canonical one before anything else can see its bits."""


Writer = Callable[[Operands, Instruction], None]
WRITERS: dict[str, Writer] = {}


def writes(*opcodes: str) -> Callable[[Writer], Writer]:
    def register(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(opcodes, writer))
        return writer

    return register


def _form(instruction: Instruction, *allowed: str) -> tuple[str, set[str]]:
    """The type of an instruction, and its other modifiers, all of which must be ``allowed``."""
    if not instruction.modifiers:
        raise Unsupported(instruction.name)
    *others, kind = instruction.modifiers
    if not set(others) <= set(allowed):
        raise Unsupported(instruction.name)
    return kind, set(others)


def _integer(instruction: Instruction, kind: str) -> None:
    if kind not in _INTEGERS and kind not in _BITS:
        raise Unsupported(instruction.name)


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * width(kind)}"


# ---- integers ----


@writes("add", "sub")
def _sum(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "ftz")
    if kind in ("f32", "f64"):
        return _float_sum(o, i, kind, mods)
    _integer(i, kind)
    if mods:
        raise Unsupported(i.name)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    o.write(i.operands[0], a + b if i.opcode == "add" else a - b)


@writes("mul")
def _mul(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "ftz", "lo", "hi", "wide")
    if kind in ("f32", "f64"):
        return _float_product(o, i, kind, mods)
    _integer(i, kind)
    o.write(i.operands[0], _product(o, i, kind, mods))


def _product(o: Operands, i: Instruction, kind: str, mods: set[str]) -> Value:
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    if mods == {"lo"}:
        return a * b
    bits = width(kind)
    signed = kind[0] == "s"
    if mods == {"wide"} and bits < 64:
        to = f"i{2 * bits}"
        return a.to(to, signed) * b.to(to, signed)
    if mods == {"hi"} and bits == 32:
        return ((a.to("i64", signed) * b.to("i64", signed)) >> 32).to("i32")
    raise Unsupported(i.name)


@writes("mad")
def _mad(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "ftz", "lo", "hi", "wide")
    if kind in ("f32", "f64"):
        return _fma(o, i)
    _integer(i, kind)
    addend = o.read(i.operands[3], _wide(kind) if mods == {"wide"} else kind)
    o.write(i.operands[0], _product(o, i, kind, mods) + addend)


@writes("div", "rem")
def _div(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "full", "approx", "ftz")
    if kind in ("f32", "f64"):
        return _float_div(o, i, kind, mods)
    _integer(i, kind)
    if mods or width(kind) == 16:
        raise Unsupported(i.name)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    # a quotient or remainder by zero has all bits set
    zero = b.eq(0)
    quotient = i.opcode == "div"
    if kind[0] == "s":
        # the only overflow: the lowest number divided by -1
        minus = b.eq(-1)
        safe = (zero | minus).select(1, b)
        if quotient:
            o.write(i.operands[0], zero.select(-1, minus.select(a._with(0) - a, a.sdiv(safe))))
        else:
            o.write(i.operands[0], zero.select(-1, minus.select(0, a.srem(safe))))
        return
    safe = zero.select(1, b)
    o.write(i.operands[0], zero.select(-1, a / safe if quotient else a % safe))


@writes("min", "max")
def _extremum(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "ftz", "NaN")
    if kind == "f32":
        return _float_extremum(o, i, mods)
    _integer(i, kind)
    if mods:
        raise Unsupported(i.name)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    condition = ("s" if kind[0] == "s" else "u") + ("lt" if i.opcode == "min" else "gt")
    o.write(i.operands[0], a.is_(condition, b).select(a, b))


@writes("and", "or", "xor")
def _logic(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    o.write(i.operands[0], _combined(i.opcode, a, b))


def _combined(opcode: str, a: Value, b: Value) -> Value:
    return a & b if opcode == "and" else a | b if opcode == "or" else a ^ b


@writes("not")
def _not(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    o.write(i.operands[0], ~o.read(i.operands[1], kind))


@writes("shl", "shr")
def _shift(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    bits = width(kind)
    a, amount = o.read(i.operands[1], kind), o.read(i.operands[2], "u32")
    arithmetic = i.opcode == "shr" and kind[0] == "s"
    over = amount.gt(bits - 1)
    by = over.select(bits - 1 if arithmetic else 0, amount).to(f"i{bits}")
    shifted = a << by if i.opcode == "shl" else a.sra(by) if arithmetic else a >> by
    o.write(i.operands[0], shifted if arithmetic else over.select(0, shifted))


@writes("shf")
def _funnel(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "l", "r", "clamp", "wrap")
    if kind != "b32":
        raise Unsupported(i.name)
    a, b, amount = (o.read(operand, "u32") for operand in i.operands[1:4])
    by = amount & 31 if "wrap" in mods else amount.gt(32).select(32, amount)
    both = (b.to("i64") << 32) | a.to("i64")
    shifted = (both << by.to("i64")) >> 32 if "l" in mods else both >> by.to("i64")
    o.write(i.operands[0], shifted.to("i32"))


@writes("lop3")
def _lop3(o: Operands, i: Instruction) -> None:
    _, mods = _form(i)
    a, b, c = (o.read(operand, "b32") for operand in i.operands[1:4])
    table = i.operands[4]
    if mods or not isinstance(table, Immediate):
        raise Unsupported(i.name)
    result = a ^ a
    for row in range(8):
        if table.bits >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    o.write(i.operands[0], result)


@writes("popc", "clz", "brev")
def _count(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    if width(kind) not in (32, 64):
        raise Unsupported(i.name)
    a = o.read(i.operands[1], kind)
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[i.opcode]
    more = (o.code.const("i1", 0),) if i.opcode == "clz" else ()
    found = o.code.call(f"llvm.{name}.{mangled(a.kind)}", a.kind, a, *more)
    o.write(i.operands[0], found if i.opcode == "brev" else found.to("i32"))


@writes("abs", "neg")
def _sign(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "ftz")
    negate = i.opcode == "neg"
    if kind in ("f32", "f64"):
        if mods:
            raise Unsupported(i.name)
        a = o.read(i.operands[1], kind)
        bits = width(kind)
        result = a ^ (1 << bits - 1) if negate else a & ((1 << bits - 1) - 1)
        if kind == "f32":
            return o.write_float(i.operands[0], result.bits(like(result.kind, "float")))
        nan = (a & ((1 << 63) - 1)).gt(0x7FF << 52)
        return o.write(i.operands[0], nan.select(a | QUIET64, result))
    if kind not in ("s16", "s32", "s64") or mods:
        raise Unsupported(i.name)
    a = o.read(i.operands[1], kind)
    minus = a._with(0) - a
    o.write(i.operands[0], minus if negate else a.is_("slt", 0).select(minus, a))


# ---- selection and moves ----

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


@writes("setp")
def _setp(o: Operands, i: Instruction) -> None:
    kind = i.modifiers[-1]
    test = i.modifiers[0]
    combine = i.modifiers[1:-1]
    if len(combine) > 1 or not isinstance(i.operands[0], Register):
        raise Unsupported(i.name)
    if kind in ("f32", "f64"):
        a, b = o.read_float(i.operands[1], kind), o.read_float(i.operands[2], kind)
        found = a.is_(_FLOAT_TESTS[test], b)
    elif kind in _INTEGERS or kind in _BITS:
        a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
        found = a.is_(_PLAIN_TESTS.get(test) or ("s" if kind[0] == "s" else "u") + test, b)
    else:
        raise Unsupported(i.name)
    if combine:
        if combine[0] not in ("and", "or", "xor"):
            raise Unsupported(i.name)
        found = _combined(combine[0], found, o.read(i.operands[3], "pred"))
    o.write(i.operands[0], found)


@writes("selp")
def _selp(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    o.write(i.operands[0], o.read(i.operands[3], "pred").select(a, b))


@writes("mov")
def _mov(o: Operands, i: Instruction) -> None:
    kind, _ = _form(i)
    target, source = i.operands
    if isinstance(source, Vector) and isinstance(target, Register):
        part = f"b{width(kind) // len(source.elements)}"
        whole: Value | None = None
        for number, one in enumerate(source.elements):
            value = o.read(one, part).to(f"i{width(kind)}") << number * width(part)
            whole = value if whole is None else whole | value
        if whole is not None:
            o.write(target, whole)
        return
    if isinstance(target, Vector) and not isinstance(source, Vector):
        part = f"b{width(kind) // len(target.elements)}"
        value = o.read(source, kind)
        for number, to in enumerate(target.elements):
            if to is not None:
                o.write(to, (value >> number * width(part)).to(f"i{width(part)}"))
        return
    if isinstance(source, Vector) or isinstance(target, Vector) or width(kind) not in (1, 16, 32, 64):
        raise Unsupported(i.name)
    o.write(target, o.read(source, kind))


@writes("cvta")
def _cvta(o: Operands, i: Instruction) -> None:
    _, mods = _form(i, "to", "global")
    if "global" not in mods:
        raise Unsupported(i.name)
    o.write(i.operands[0], o.read(i.operands[1], "u64"))


@writes("cvt")
def _cvt(o: Operands, i: Instruction) -> None:
    *others, target, kind = i.modifiers
    mods = set(others)
    if kind == target == "f32" and not mods:
        return o.write(i.operands[0], o.read(i.operands[1], kind))
    if kind == target == "f32" and mods == {"sat"}:
        return o.write_float(i.operands[0], _saturated(o.read_float(i.operands[1], kind)))
    if kind in _INTEGERS and target in _INTEGERS and not mods:
        signed = kind[0] == "s"
        value = o.read(i.operands[1], kind).to(f"i{width(target)}", signed)
        return o.write(i.operands[0], _in_register(i, value, target))
    if kind in _INTEGERS and target in ("f32", "f64") and mods == {"rn"}:
        op = "sitofp" if kind[0] == "s" else "uitofp"
        to = "float" if target == "f32" else "double"
        value = o.read(i.operands[1], kind).convert(op, to)
        return o.write(i.operands[0], value.bits(like(value.kind, f"i{width(target)}")))
    # a NaN keeps its sign and payload, so its bits must be exact
    if (target, kind) == ("f64", "f32") and not mods:
        bits = o.read(i.operands[1], "f32")
        wide = bits.bits(like(bits.kind, "float")).convert("fpext", "double")
        return o.write(i.operands[0], wide.bits(like(wide.kind, "i64")))
    if (target, kind) == ("f32", "f64") and mods == {"rn"}:
        narrow = o.read_float(i.operands[1], "f64").convert("fptrunc", "float")
        return o.write(i.operands[0], narrow.bits(like(narrow.kind, "i32")))
    raise Unsupported(i.name)


def _in_register(i: Instruction, value: Value, kind: str) -> Value:
    """A result extended to the width of its register."""
    target = i.operands[0]
    if isinstance(target, Register) and width(target.type) != width(kind):
        return value.to(f"i{width(target.type)}", kind[0] == "s")
    return value


def _saturated(a: Value) -> Value:
    """Clamped to [+0, 1], NaN to +0."""
    low = a.is_("ogt", 0.0).select(a, 0.0)
    return low.is_("olt", 1.0).select(low, 1.0)


# ---- floats ----


def _flushed(a: Value) -> Value:
    """f32 with subnormals replaced by zeros of the same sign."""
    bits = a.bits(like(a.kind, "i32"))
    small = (bits & 0x7F800000).eq(0)
    return small.select(bits & (1 << 31), bits).bits(a.kind)


def _quiet(result: Value, *operands: Value) -> Value:
    """The bits of an f64 result, whose NaN is that of the first operand which has one."""
    bits = result.bits(like(result.kind, "i64"))
    chosen = bits._with(NAN64)
    for operand in reversed(operands):
        own = operand.bits(bits.kind)
        chosen = operand.is_("uno", operand).select(own | QUIET64, chosen)
    return result.is_("uno", result).select(chosen, bits)


def _float_sum(o: Operands, i: Instruction, kind: str, mods: set[str]) -> None:
    if "ftz" in mods:
        raise Unsupported(i.name)
    a, b = o.read_float(i.operands[1], kind), o.read_float(i.operands[2], kind)
    result = a + b if i.opcode == "add" else a - b
    if kind == "f64":
        return o.write(i.operands[0], _quiet(result, b, a))
    o.write_float(i.operands[0], result)


def _float_product(o: Operands, i: Instruction, kind: str, mods: set[str]) -> None:
    if mods - {"rn"}:
        raise Unsupported(i.name)
    a, b = o.read_float(i.operands[1], kind), o.read_float(i.operands[2], kind)
    if kind == "f64":
        return o.write(i.operands[0], _quiet(a * b, b, a))
    o.write_float(i.operands[0], a * b)


def _float_div(o: Operands, i: Instruction, kind: str, mods: set[str]) -> None:
    if i.opcode != "div" or mods not in ({"rn"}, {"full"}) or (kind == "f64" and mods != {"rn"}):
        raise Unsupported(i.name)
    a, b = o.read_float(i.operands[1], kind), o.read_float(i.operands[2], kind)
    if kind == "f64":
        return o.write(i.operands[0], _quiet(a / b, a, b))
    o.write_float(i.operands[0], a / b)


def _fused(o: Operands, a: Value, b: Value, c: Value) -> Value:
    return o.code.call(f"llvm.fma.{mangled(a.kind)}", a.kind, a, b, c)


@writes("fma")
def _fma(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "rm")
    if kind not in ("f32", "f64") or len(mods) != 1 or (kind == "f64" and mods != {"rn"}):
        raise Unsupported(i.name)
    a, b, c = (o.read_float(operand, kind) for operand in i.operands[1:4])
    if kind == "f64":
        return o.write(i.operands[0], _quiet(_fused(o, a, b, c), b, c, a))
    o.write_float(i.operands[0], _fused(o, a, b, c) if mods == {"rn"} else _fused_down(a, b, c))


def _fused_down(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of f32 rounded towards minus infinity, as ``fma32`` of sim/values/rounding.py."""
    product = a.convert("fpext", "double") * b.convert("fpext", "double")
    addend = c.convert("fpext", "double")
    total = product + addend
    nearest = total.convert("fptrunc", "float")
    bits = nearest.bits(like(nearest.kind, "i32"))
    value = nearest.convert("fpext", "double")
    other = total - product
    error = (product - (total - other)) + (addend - other)
    down = value.is_("ogt", total) | (value.is_("oeq", total) & error.is_("olt", 0.0))
    # the next number below is one bit pattern less, or more if it is negative
    step = bits.sra(31) | 1
    moved = down.select(bits - step, bits)
    wide = like(total.kind, "i64")
    negative = (product.bits(wide) | addend.bits(wide)).is_("slt", 0)
    moved = (total.is_("oeq", 0.0) & negative).select(1 << 31, moved)
    return moved.bits(nearest.kind)


@writes("rcp", "sqrt", "rsqrt")
def _root(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "rn", "approx", "ftz")
    if kind != "f32" or (i.opcode == "rsqrt") != ("rn" not in mods and i.opcode == "rsqrt"):
        raise Unsupported(i.name)
    a = o.read_float(i.operands[1], kind)
    if "approx" not in mods:
        if "ftz" in mods:
            raise Unsupported(i.name)
        result = a._with(1.0) / a if i.opcode == "rcp" else _square_root(o, a)
        return o.write_float(i.operands[0], result)
    flush = "ftz" in mods
    value = (_flushed(a) if flush else a).convert("fpext", "double")
    if i.opcode != "rcp":
        value = _square_root(o, value)
    if i.opcode != "sqrt":
        value = value._with(1.0) / value
    result = value.convert("fptrunc", "float")
    o.write_float(i.operands[0], _flushed(result) if flush else result)


def _square_root(o: Operands, a: Value) -> Value:
    return o.code.call(f"llvm.sqrt.{mangled(a.kind)}", a.kind, a)


@writes("ex2")
def _ex2(o: Operands, i: Instruction) -> None:
    kind, mods = _form(i, "approx", "ftz")
    if kind != "f32":
        raise Unsupported(i.name)
    a = o.read_float(i.operands[1], kind)
    flush = "ftz" in mods
    given = (_flushed(a) if flush else a).convert("fpext", "double")
    # beyond these the result in f32 is infinite or zero
    value = given.is_("ogt", 300.0).select(300.0, given)
    value = value.is_("olt", -300.0).select(-300.0, value)
    # adding 1.5 * 2^52 rounds to an integer, which is then in the lowest bits
    magic = 1.5 * 2.0**52
    shifted = value + magic
    rest = value - (shifted - magic)
    power = rest._with(math.log(2) ** (_EXP2_TERMS - 1) / math.factorial(_EXP2_TERMS - 1))
    for number in range(_EXP2_TERMS - 2, -1, -1):
        power = _fused(o, power, rest, rest._with(math.log(2) ** number / math.factorial(number)))
    wide = like(power.kind, "i64")
    scaled = (power.bits(wide) + (shifted.bits(wide) << 52)).bits(power.kind)
    result = given.is_("uno", given).select(given, scaled).convert("fptrunc", "float")
    o.write_float(i.operands[0], _flushed(result) if flush else result)


def _float_extremum(o: Operands, i: Instruction, mods: set[str]) -> None:
    if mods:
        raise Unsupported(i.name)
    a, b = o.read_float(i.operands[1], "f32"), o.read_float(i.operands[2], "f32")
    least = i.opcode == "min"
    # of a number and a NaN, the number
    first = a.is_("olt" if least else "ogt", b) | b.is_("uno", b)
    chosen = first.select(a, b)
    bits = like(a.kind, "i32")
    # equal numbers differ at most in the sign of zero: -0 is smaller
    both = _combined("or" if least else "and", a.bits(bits), b.bits(bits)).bits(a.kind)
    o.write_float(i.operands[0], a.is_("oeq", b).select(both, chosen))
