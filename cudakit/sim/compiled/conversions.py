"""cvt between integers and floats as machine code, as ``sim/values/conversions.py``. Packed and small formats are in
small_formats.py.
"""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, function, intrinsic, modifiers_of, writes
from cudakit.sim.compiled.rounding import (
    MAGNITUDE64,
    NAN16,
    QUIET64,
    bfloat_to_float,
    canonical32,
    directed,
    double,
    flushed32,
    half_to_float,
    is_nan,
    narrow,
    nearest_bfloat,
    nearest_half,
    odd_sum,
    pattern,
    quiet64,
    rectified16,
    saturated,
    saturated16,
    single,
    to_f32,
    to_f32_odd,
    wide,
)
from cudakit.sim.compiled.small_formats import SMALL, pack, to_small
from cudakit.sim.ptx.ir import Instruction, Register
from cudakit.sim.values.lanewise import width
from cudakit.sim.values.rounding import BFLOAT, HALF, two_sum

_INTEGERS = frozenset(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_MODES = ("rn", "rz", "rm", "rp")
_MODIFIERS = frozenset((*_TO_INTEGER, *_MODES, "ftz", "sat", "relu", "satfinite"))


@writes("cvt")
def _cvt(o: Operands, i: Instruction) -> None:
    *others, target, source = modifiers_of(i)
    if "pack" in others:
        return pack(o, i)
    if target in SMALL or source in SMALL:
        return to_small(o, i)
    mods = set(others)
    known = _INTEGERS.union(_FLOATS)
    if not mods <= _MODIFIERS or target not in known or source not in known:
        raise Unsupported(i.name)
    given = o.read(i.operands[1], source)
    if source in _INTEGERS:
        given = given.to(f"i{width_of(source)}")
        convert = _from_integer if target in _FLOATS else _between_integers
    else:
        convert = _to_integer if target in _INTEGERS else _between_floats
    result = convert(i, given, target, source, mods)
    if target in _INTEGERS:
        register = i.operands[0]
        bits = width(register.type) if isinstance(register, Register) else 0
        # the upper bits of a wider register are set too
        result = result.to(f"i{max(bits, 16)}", target[0] == "s")
    o.write(i.operands[0], result)


def width_of(kind: str) -> int:
    """Bits of an integer type."""
    return int(kind[1:])


def _limits(kind: str) -> tuple[int, int]:
    bits = width_of(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _mode(mods: set[str]) -> str:
    return next((one for one in _MODES if one in mods), "rn")


def _whole_of(mods: set[str]) -> str:
    """LLVM's name of the rounding to an integer; "" if there is none."""
    return next((name for one, name in _TO_INTEGER.items() if one in mods), "")


# ---- integers ----


def clipped(value: Value, low: int, high: int, signed: bool) -> Value:
    """Integers within limits of their type."""
    less, more = ("slt", "sgt") if signed else ("ult", "ugt")
    value = value.is_(less, low).select(low, value)
    return value.is_(more, high).select(high, value)


def _between_integers(i: Instruction, given: Value, target: str, source: str, mods: set[str]) -> Value:
    signed = source[0] == "s"
    if "sat" in mods:
        (low, high), (least, most) = _limits(source), _limits(target)
        given = clipped(given, max(low, least), min(high, most), signed)
    return given.to(f"i{width_of(target)}", signed)


def _sides(given: Value, signed: bool) -> tuple[Value, Value]:
    """64-bit integers as a sum of two f64 values."""
    upper = (given.sra(32) if signed else given >> 32).convert("sitofp" if signed else "uitofp", "double")
    return upper * 2.0**32, given.to("i32").convert("uitofp", "double")


def _from_integer(i: Instruction, given: Value, target: str, source: str, mods: set[str]) -> Value:
    mode, signed, is_long = _mode(mods), source[0] == "s", width_of(source) == 64
    op = "sitofp" if signed else "uitofp"
    if target == "f64":
        if "sat" in mods:
            return pattern(clipped(given, 0, 1, signed).convert(op, "double"))
        if mode == "rn" or not is_long:
            return pattern(given.convert(op, "double"))
        return function(i.name, "i64", lambda a: _directed64(a, signed, mode), [given])
    if target == "f32" and mode == "rn":
        value = given.convert(op, "float")
        return pattern(saturated(value) if "sat" in mods else value)

    def run(a: Value) -> Value:
        if is_long:
            value = odd_sum(*_sides(a, signed))
        else:
            value = a.convert(op, "double")
        if target == "f32":
            bits = to_f32(value, mode)
            return pattern(saturated(single(bits))) if "sat" in mods else bits
        bits = narrow(to_f32_odd(value), HALF if target == "f16" else BFLOAT, mode).to("i16")
        return saturated16(bits) if "sat" in mods else bits

    return function(i.name, f"i{width(target)}", run, [given])


def _directed64(given: Value, signed: bool, mode: str) -> Value:
    total, error = two_sum(*_sides(given, signed))
    bits = pattern(total)
    positive = bits.is_("sge", 0)
    above, below = error.is_("ogt", 0.0), error.is_("olt", 0.0)
    less, more = (positive & below) | (~positive & above), (positive & above) | (~positive & below)
    return directed(bits, less, more, mode)


# ---- floats to integers ----


def _value_of(bits: Value, kind: str) -> Value:
    """The f64 value of a pattern."""
    if kind == "f64":
        return double(bits)
    if kind == "f32":
        return wide(single(bits))
    return wide(half_to_float(bits) if kind == "f16" else bfloat_to_float(bits))


def _to_integer(i: Instruction, given: Value, target: str, source: str, mods: set[str]) -> Value:
    name = _whole_of(mods)
    if not name:
        raise Unsupported(i.name)
    bits = width_of(target)
    low, high = _limits(target)
    # 16- and 32-bit results of a NaN are 0, but not those from f64
    undefined = 1 << bits - 1 if source == "f64" or bits == 64 else 0

    def small(a: Value) -> Value:
        value = intrinsic(name, _value_of(flushed32(a) if "ftz" in mods else a, source))
        nan = is_nan(value)
        value = nan.select(0.0, value)
        value = value.is_("olt", float(low)).select(float(low), value)
        value = value.is_("ogt", float(high)).select(float(high), value)
        via = "i64" if target == "u32" else "i32"
        return nan.select(undefined, value.convert("fptosi", via).to(f"i{bits}"))

    def large(a: Value) -> Value:
        value = intrinsic(name, _value_of(flushed32(a) if "ftz" in mods else a, source))
        signed = target == "s64"
        inside = value.is_("oge", -(2.0**63) if signed else 0.0) & value.is_("olt", 2.0**63 if signed else 2.0**64)
        found = inside.select(value, 0.0).convert("fptosi" if signed else "fptoui", "i64")
        outside = value.is_("ogt", 0.0).select(high, found._with(low))
        return is_nan(value).select(undefined, inside.select(found, outside))

    return function(i.name, f"i{bits}", large if bits == 64 else small, [given])


# ---- between floats ----


def _between_floats(i: Instruction, given: Value, target: str, source: str, mods: set[str]) -> Value:
    whole, ftz = _whole_of(mods), "ftz" in mods
    plain = target == source and source != "f16" and not mods
    if plain:
        return given
    encode = _encoder(target, source, _mode(mods), "satfinite" in mods)

    def run(bits: Value) -> Value:
        if whole:
            bits = _rounded(flushed32(bits) if ftz else bits, source, whole)
        # the hardware converts subnormals to f16 regardless
        if ftz and source == "f32" and target != "f16":
            bits = flushed32(bits)
            if target == "f64":
                bits = canonical32(single(bits))
        bits = encode(bits)
        if "relu" in mods:
            bits = rectified16(bits)
        if target == "f32" and ftz:
            bits = flushed32(bits)
        if "sat" not in mods:
            return bits
        if target in ("f32", "f64"):
            return pattern(saturated(single(bits) if target == "f32" else double(bits)))
        return saturated16(bits)

    short_enough = not mods or mods == {"rn"} or (target == "f32" and mods <= {"sat", "ftz"})
    return run(given) if short_enough else function(i.name, f"i{width(target)}", run, [given])


def _rounded(bits: Value, kind: str, name: str) -> Value:
    """Patterns of a format rounded to integers of the same format."""
    if kind == "bf16":
        return (pattern(intrinsic(name, bfloat_to_float(bits))) >> 16).to("i16")
    if kind == "f16":
        return nearest_half(intrinsic(name, half_to_float(bits)))
    value = single(bits) if kind == "f32" else double(bits)
    rounded = pattern(intrinsic(name, value))
    # a NaN keeps its bits until it is made quiet
    return is_nan(value).select(bits, rounded)


def _encoder(target: str, source: str, mode: str, satfinite: bool) -> Callable[[Value], Value]:
    """A function from patterns of one format to patterns of another. A NaN becomes canonical, except that conversions
    from and to f64 keep its sign and payload."""
    if target == source:
        canonical: dict[str, Callable[[Value], Value]] = {
            "f16": lambda bits: (bits & 0x7FFF).gt(HALF.infinity).select(NAN16, bits),
            "bf16": lambda bits: (bits & 0x7FFF).gt(BFLOAT.infinity).select(NAN16, bits),
            "f32": lambda bits: canonical32(single(bits)),
            "f64": lambda bits: quiet64(double(bits), double(bits)),
        }
        return canonical[target]
    if (target, source) == ("f32", "f16"):
        return lambda bits: canonical32(half_to_float(bits))
    if (target, source) == ("f32", "bf16"):
        return lambda bits: pattern(bfloat_to_float(bits))
    if source == "f32" and mode == "rn" and not satfinite and target in ("f16", "bf16"):
        nearest = nearest_half if target == "f16" else nearest_bfloat
        return lambda bits: nearest(single(bits))
    if target == "f64":
        return lambda bits: _quieted(pattern(_value_of(bits, source)))
    if target == "f32":
        return lambda bits: to_f32(double(bits), mode)
    to = HALF if target == "f16" else BFLOAT
    if source == "f64":
        return lambda bits: narrow(to_f32_odd(double(bits)), to, mode, satfinite, keep_nan=True).to("i16")
    if source == "f32":
        return lambda bits: narrow(bits, to, mode, satfinite).to("i16")
    read = half_to_float if source == "f16" else bfloat_to_float
    return lambda bits: narrow(pattern(read(bits)), to, mode, satfinite).to("i16")


def _quieted(bits: Value) -> Value:
    """f64 patterns, a NaN made quiet."""
    nan = (bits & MAGNITUDE64).gt(0x7FF << 52)
    return nan.select(bits | QUIET64, bits)
