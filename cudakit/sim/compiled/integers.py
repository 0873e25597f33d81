"""Integer arithmetic as machine code, as ``sim/values/integers.py``.

An instruction of a type that floats have too is passed on to the writers of floats.
"""

from __future__ import annotations

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import (
    Operands,
    Unsupported,
    expect_integer,
    form,
    halves_of,
    intrinsic,
    joined,
    twice,
    writes,
)
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.lanewise import flatten, width

_PAIRS = ("u16x2", "s16x2")


# ---- add, subtract, multiply ----


def sum_(o: Operands, i: Instruction) -> None:
    """add and sub, and with carry addc and subc."""
    kind, mods = form(i, "cc", "sat")
    destinations, sources = flatten(i)
    subtracts = i.opcode.startswith("sub")
    if kind in _PAIRS:
        a, b = (o.read(operand, kind) for operand in sources)
        x, y = halves_of(a), halves_of(b)
        return o.write(destinations[0], joined(x - y if subtracts else x + y, a))
    expect_integer(i, kind)
    a, b = o.read(sources[0], kind), o.read(sources[1], kind)
    if "sat" in mods:
        return o.write(destinations[0], intrinsic("ssub.sat" if subtracts else "sadd.sat", a, b))
    result = a - b if subtracts else a + b
    if len(sources) < 3:
        if len(destinations) > 1:
            # a difference is a + ~b + 1, so the flag means "no borrow"
            o.write(destinations[1], a.ge(b) if subtracts else result.lt(a))
        return o.write(destinations[0], result)
    flag = o.read(sources[2], "pred")
    carry = (~flag if subtracts else flag).to(a.kind)
    result = result - carry if subtracts else result + carry
    if len(destinations) > 1:
        carried = a.gt(b) | (flag & a.eq(b)) if subtracts else result.lt(a) | (flag & result.eq(a))
        o.write(destinations[1], carried)
    o.write(destinations[0], result)


writes("addc", "subc")(sum_)


def _product(o: Operands, i: Instruction, kind: str, mods: set[str]) -> Value:
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    signed = kind[0] == "s"
    if i.opcode.endswith("24"):
        a, b = ((one << 8).sra(8) if signed else one & 0xFFFFFF for one in (a, b))
        if "lo" in mods:
            return a * b
        return ((a.to("i64", signed) * b.to("i64", signed)) >> 16).to("i32")
    if "lo" in mods:
        return a * b
    bits = width(kind)
    to = f"i{2 * bits}"
    whole = a.to(to, signed) * b.to(to, signed)
    if "wide" in mods:
        return whole
    if "hi" not in mods:
        raise Unsupported(i.name)
    return (whole >> bits).to(f"i{bits}")


@writes("mul24")
def product(o: Operands, i: Instruction) -> None:
    """mul."""
    kind, mods = form(i, "lo", "hi", "wide")
    expect_integer(i, kind)
    o.write(i.operands[0], _product(o, i, kind, mods))


@writes("mad24", "madc")
def product_sum(o: Operands, i: Instruction) -> None:
    """mad, with carry too."""
    kind, mods = form(i, "lo", "hi", "wide", "cc", "sat")
    expect_integer(i, kind)
    destinations, sources = flatten(i)
    addend = o.read(sources[2], twice(kind) if "wide" in mods else kind)
    whole = _product(o, i, kind, mods)
    if "sat" in mods:
        return o.write(destinations[0], intrinsic("sadd.sat", whole, addend))
    total = whole + addend
    carried = None
    if len(sources) > 3:
        flag = o.read(sources[3], "pred")
        total = total + flag.to(total.kind)
        carried = flag & total.eq(whole)
    if len(destinations) > 1:
        over = total.lt(whole)
        o.write(destinations[1], over if carried is None else over | carried)
    o.write(destinations[0], total)


@writes("sad")
def _sad(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    expect_integer(i, kind)
    a, b, c = (o.read(operand, kind) for operand in i.operands[1:4])
    larger = a.is_("sgt" if kind[0] == "s" else "ugt", b)
    o.write(i.operands[0], c + larger.select(a - b, b - a))


# ---- divide ----


@writes("rem")
def quotient(o: Operands, i: Instruction) -> None:
    """div and rem: by zero, the result has all bits set."""
    kind, _ = form(i)
    expect_integer(i, kind)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    zero = b.eq(0)
    divides = i.opcode == "div"
    if kind[0] == "s":
        # the only overflow: the lowest number divided by -1
        minus = b.eq(-1)
        safe = (zero | minus).select(1, b)
        if divides:
            o.write(i.operands[0], zero.select(-1, minus.select(-a, a.sdiv(safe))))
        else:
            o.write(i.operands[0], zero.select(-1, minus.select(0, a.srem(safe))))
        return
    safe = zero.select(1, b)
    o.write(i.operands[0], zero.select(-1, a / safe if divides else a % safe))


# ---- one operand, minimum and maximum ----


def extremum(o: Operands, i: Instruction) -> None:
    """min and max."""
    kind, mods = form(i, "relu")
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    condition = ("s" if kind[0] == "s" else "u") + ("lt" if i.opcode == "min" else "gt")

    def chosen(x: Value, y: Value) -> Value:
        result = x.is_(condition, y).select(x, y)
        return result.is_("slt", 0).select(0, result) if "relu" in mods else result

    if kind in _PAIRS:
        return o.write(i.operands[0], joined(chosen(halves_of(a), halves_of(b)), a))
    expect_integer(i, kind)
    o.write(i.operands[0], chosen(a, b))


def sign(o: Operands, i: Instruction) -> None:
    """abs and neg."""
    kind, _ = form(i)
    if kind not in ("s16", "s32", "s64"):
        raise Unsupported(i.name)
    a = o.read(i.operands[1], kind)
    o.write(i.operands[0], -a if i.opcode == "neg" else a.is_("slt", 0).select(-a, a))
