"""Arithmetic of f32 and f64 as machine code, as ``sim/values/floats.py``. 16-bit formats are in halves.py.

An opcode that integers have too is passed on to the writers of integers.
"""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled import halves, integers
from cudakit.sim.compiled.approximations import divide, root
from cudakit.sim.compiled.ir import Value, lanes
from cudakit.sim.compiled.lanewise import Operands, Unsupported, Writer, combined, form, function, rounding, writes
from cudakit.sim.compiled.rounding import (
    INFINITY64,
    MAGNITUDE64,
    NAN32,
    QUIET64,
    double,
    flushed,
    flushed32,
    fused,
    fused32,
    is_nan,
    odd_sum,
    pattern,
    product32,
    quiet64,
    quotient32,
    root32,
    saturated,
    single,
    square_root,
    sum32,
    wide,
)
from cudakit.sim.compiled.rounding64 import fused64, product64, quotient64, root64, sum64
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.floats import BELOW32

_SMALLEST = 0x00800000


def _writes(integer: Writer | None, half: Writer | None, *opcodes: str) -> Callable[[Writer], Writer]:
    """Register the writer of f32 and f64 for opcodes, whose other types have writers of their own."""

    def register(writer: Writer) -> Writer:
        @writes(*opcodes)
        def write(o: Operands, i: Instruction) -> None:
            kinds = [one for one in i.modifiers if one not in ("relu", "NaN")]
            kind = kinds[-1] if kinds else ""
            if kind in ("f32", "f64"):
                return writer(o, i)
            chosen = half if kind in ("f16", "f16x2", "bf16", "bf16x2") else integer
            if chosen is None:
                raise Unsupported(i.name)
            chosen(o, i)

        return writer

    return register


# ---- f32 ----


def _flushed_result(bits: Value, exact: Callable[[], Value], mode: str) -> Value:
    """Patterns of results with subnormals flushed to zero, including those that reached the smallest normal number only
    by rounding to the shorter significand of a subnormal. ``exact`` computes them in f64."""
    code = bits.code
    bits = flushed32(bits)
    smallest = (bits & 0x7FFFFFFF).eq(_SMALLEST)
    result = code.variable(bits.kind, 0)
    result.value = bits
    with code.if_(smallest.reduce("or") if lanes(bits.kind) else smallest, rare=True):
        magnitude = double(pattern(exact()) & MAGNITUDE64)
        if mode in ("rn", "rz"):
            below = magnitude.is_("olt", BELOW32[mode])
        else:
            away = bits.is_("slt", 0) if mode == "rm" else bits.is_("sge", 0)
            below = combined(
                "or",
                away & magnitude.is_("ole", BELOW32["away"]),
                ~away & magnitude.is_("olt", BELOW32["rz"]),
            )
        result.value = (smallest & below).select(bits & (1 << 31), bits)
    found: Value = result.value
    return found


def _write32(
    o: Operands,
    i: Instruction,
    mods: set[str],
    operands: list[Value],
    compute: Callable[..., Value],
    exact: Callable[..., Value] | None = None,
) -> None:
    """Write an f32 result. ``compute`` returns its pattern; ``exact`` computes it in f64: it is needed if results below
    the normal range may be rounded."""
    mode, ftz = rounding(mods), "ftz" in mods

    def run(*given: Value) -> Value:
        values = [flushed(one) for one in given] if ftz else list(given)
        bits = compute(*values)
        if ftz and exact is not None:
            bits = _flushed_result(bits, lambda: exact(*map(wide, values)), mode)
        elif ftz:
            bits = flushed32(bits)
        return saturated(single(bits)) if "sat" in mods else single(bits)

    long = mode != "rn" or (ftz and exact is not None)
    o.write_float(i.operands[0], function(i.name, "float", run, operands) if long else run(*operands))


def _read(o: Operands, i: Instruction, kind: str, count: int) -> list[Value]:
    return [o.read_float(operand, kind) for operand in i.operands[1 : 1 + count]]


_MODIFIERS = ("rn", "rz", "rm", "rp", "ftz", "sat")


@_writes(integers.sum_, halves.arithmetic, "add", "sub")
def _sum(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, *_MODIFIERS)
    a, b = _read(o, i, kind, 2)
    mode, subtracts = rounding(mods), i.opcode == "sub"
    if kind == "f32":
        if mode == "rn":
            return _write32(o, i, mods, [a, b], lambda a, b: pattern(a - b if subtracts else a + b))
        return _write32(o, i, mods, [a, b], lambda a, b: sum32(a, _minus(b) if subtracts else b, mode))
    if mode == "rn":
        return o.write(i.operands[0], quiet64(a - b if subtracts else a + b, b, a))
    _directed64(o, i, lambda b, a: sum64(a, _minus(b) if subtracts else b, mode), b, a)


def _minus(a: Value) -> Value:
    bits = pattern(a)
    return (bits ^ (1 << (31 if "float" in a.kind else 63))).bits(a.kind)


def _directed64(o: Operands, i: Instruction, compute: Callable[..., Value], *preference: Value) -> None:
    """Write an f64 result that is not rounded to nearest. ``preference``: the operands, in the order in which their
    NaNs are kept."""
    run = lambda *given: quiet64(compute(*given), *given)  # noqa: E731
    o.write(i.operands[0], function(i.name, "i64", run, preference))


@_writes(integers.product, halves.arithmetic, "mul")
def _product(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, *_MODIFIERS)
    a, b = _read(o, i, kind, 2)
    mode = rounding(mods)
    if kind == "f32":
        return _write32(o, i, mods, [a, b], lambda a, b: product32(a, b, mode), lambda a, b: a * b)
    if mode != "rn":
        return _directed64(o, i, lambda b, a: product64(a, b, mode), b, a)
    o.write(i.operands[0], quiet64(a * b, b, a))


@_writes(integers.product_sum, halves.arithmetic, "fma", "mad")
def _fused(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, *_MODIFIERS)
    a, b, c = _read(o, i, kind, 3)
    mode = rounding(mods)
    if kind == "f32":
        exact = lambda a, b, c: odd_sum(a * b, c)  # noqa: E731
        return _write32(o, i, mods, [a, b, c], lambda a, b, c: fused32(a, b, c, mode), exact)
    if mode != "rn":
        return _directed64(o, i, lambda b, c, a: fused64(a, b, c, mode), b, c, a)
    o.write(i.operands[0], quiet64(fused(a, b, c), b, c, a))


@_writes(integers.quotient, None, "div")
def _quotient(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, *_MODIFIERS, "approx", "full")
    if not mods.isdisjoint(("approx", "full")):
        return divide(o, i)
    a, b = _read(o, i, kind, 2)
    mode = rounding(mods)
    if kind == "f32":
        return _write32(o, i, mods, [a, b], lambda a, b: quotient32(a, b, mode), lambda a, b: a / b)
    if mode != "rn":
        return _directed64(o, i, lambda a, b: quotient64(a, b, mode), a, b)
    o.write(i.operands[0], quiet64(a / b, a, b))


@writes("rcp", "sqrt")
def _root(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, *_MODIFIERS, "approx")
    if "approx" in mods:
        return root(o, i)
    (a,) = _read(o, i, kind, 1)
    mode, inverts = rounding(mods), i.opcode == "rcp"
    if kind == "f32":
        if inverts:
            compute: Callable[..., Value] = lambda a: quotient32(a._with(1.0), a, mode)  # noqa: E731
            return _write32(o, i, mods, [a], compute, lambda a: a._with(1.0) / a)
        return _write32(o, i, mods, [a], lambda a: root32(a, mode))
    if mode != "rn":
        compute = lambda a: quotient64(a._with(1.0), a, mode) if inverts else root64(a, mode)  # noqa: E731
        return _directed64(o, i, compute, a)
    o.write(i.operands[0], quiet64(a._with(1.0) / a if inverts else square_root(a), a))


# ---- signs, minimum and maximum, tests ----


@_writes(integers.sign, halves.sign, "abs", "neg")
def _sign(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "ftz")
    a = o.read(i.operands[1], kind)
    top = 1 << int(kind[1:]) - 1
    if "ftz" in mods:
        a = flushed32(a)
    result = a ^ top if i.opcode == "neg" else a & (top - 1)
    if kind == "f32":
        return o.write_float(i.operands[0], single(result))
    nan = (a & MAGNITUDE64).gt(INFINITY64)
    o.write(i.operands[0], nan.select(a | QUIET64, result))


@_writes(integers.extremum, halves.extremum, "min", "max")
def _extremum(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "ftz", "NaN", "xorsign", "abs")
    least = i.opcode == "min"
    if kind == "f64":
        a, b = _read(o, i, kind, 2)
        chosen = pattern(_chosen(a, b, least))
        neither = is_nan(a) & is_nan(b)
        return o.write(i.operands[0], neither.select(pattern(b) | QUIET64, chosen))
    sign: Value | None = None
    if "xorsign" in mods:
        # the sign of a NaN counts, so its bits must be exact
        x, y = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
        sign = (x ^ y) & (1 << 31)
        a, b = single(x & 0x7FFFFFFF), single(y & 0x7FFFFFFF)
    else:
        a, b = _read(o, i, kind, 2)
    if "ftz" in mods:
        a, b = flushed(a), flushed(b)
    result = _chosen(a, b, least)
    if sign is not None:
        result = single(pattern(result) | sign)
    if "NaN" in mods:
        result = a.is_("uno", b).select(single(pattern(a)._with(NAN32)), result)
    o.write_float(i.operands[0], result)


def _chosen(a: Value, b: Value, least: bool) -> Value:
    """The smaller or larger of two values; of a number and a NaN, the number."""
    first = a.is_("olt" if least else "ogt", b) | is_nan(b)
    chosen = first.select(a, b)
    # equal numbers differ at most in the sign of zero: -0 is smaller
    both = combined("or" if least else "and", pattern(a), pattern(b)).bits(a.kind)
    return a.is_("oeq", b).select(both, chosen)


@writes("copysign")
def _copysign(o: Operands, i: Instruction) -> None:
    kind, _ = form(i)
    a, b = o.read(i.operands[1], kind), o.read(i.operands[2], kind)
    top = 1 << int(kind[1:]) - 1
    o.write(i.operands[0], (a & top) | (b & (top - 1)))


@writes("testp")
def _testp(o: Operands, i: Instruction) -> None:
    name, kind = i.modifiers
    bits, fraction = int(kind[1:]), 23 if kind == "f32" else 52
    magnitude = o.read(i.operands[1], kind) & ((1 << bits - 1) - 1)
    infinity, normal = ((1 << bits - 1 - fraction) - 1) << fraction, 1 << fraction
    subnormal = magnitude.ne(0) & magnitude.lt(normal)
    tests = {
        "finite": lambda: magnitude.lt(infinity),
        "infinite": lambda: magnitude.eq(infinity),
        "number": lambda: magnitude.le(infinity),
        "notanumber": lambda: magnitude.gt(infinity),
        "normal": lambda: magnitude.lt(infinity) & ~subnormal,
        "subnormal": lambda: subnormal,
    }
    o.write(i.operands[0], tests[name]())
