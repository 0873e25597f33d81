"""Rounding in machine code, operation by operation as ``sim/values/rounding.py``.

Patterns are integers, values are floats. Names that end in 16 are of patterns of f16 or bf16.
"""

from __future__ import annotations

from cudakit.sim.compiled.ir import Value, element, like
from cudakit.sim.compiled.lanewise import intrinsic
from cudakit.sim.values.rounding import HALF, Format, two_sum

NAN16, NAN32, NAN64, QUIET64 = 0x7FFF, 0x7FFFFFFF, 0xFFF8000000000000, 1 << 51
MAGNITUDE64, INFINITY64 = (1 << 63) - 1, 0x7FF << 52
_PATTERNS = {"half": "i16", "float": "i32", "double": "i64"}


def pattern(value: Value) -> Value:
    """The bits of a float."""
    return value.bits(like(value.kind, _PATTERNS[element(value.kind)]))


def single(bits: Value) -> Value:
    """The f32 with these bits."""
    return bits.bits(like(bits.kind, "float"))


def double(bits: Value) -> Value:
    return bits.bits(like(bits.kind, "double"))


def wide(value: Value) -> Value:
    """An f32 value as f64."""
    return value.convert("fpext", "double")


def short(value: Value) -> Value:
    """The f32 nearest to an f64 value."""
    return value.convert("fptrunc", "float")


def size(value: Value) -> Value:
    return intrinsic("fabs", value)


def is_nan(value: Value) -> Value:
    return value.is_("uno", value)


def fused(a: Value, b: Value, c: Value) -> Value:
    return intrinsic("fma", a, b, c)


def square_root(a: Value) -> Value:
    return intrinsic("sqrt", a)


# ---- NaN, subnormals, saturation ----


def canonical32(value: Value) -> Value:
    """The patterns of f32 values, every NaN the canonical one."""
    return is_nan(value).select(NAN32, pattern(value))


def quiet64(result: Value, *operands: Value) -> Value:
    """The patterns of f64 results; a NaN is that of the first operand which has one."""
    bits = pattern(result)
    chosen = bits._with(NAN64)
    for operand in reversed(operands):
        chosen = is_nan(operand).select(pattern(operand) | QUIET64, chosen)
    return is_nan(result).select(chosen, bits)


def flushed(a: Value) -> Value:
    """f32 values with subnormals replaced by zeros of the same sign."""
    return single(flushed32(pattern(a)))


def flushed32(bits: Value) -> Value:
    return (bits & 0x7F800000).eq(0).select(bits & (1 << 31), bits)


def flushed16(bits: Value) -> Value:
    """f16 patterns with subnormals replaced by zeros of the same sign."""
    return (bits & 0x7C00).eq(0).select(bits & 0x8000, bits)


def saturated(a: Value) -> Value:
    """f32 or f64 values clamped to [+0, 1], NaN to +0."""
    low = a.is_("ogt", 0.0).select(a, 0.0)
    return low.is_("olt", 1.0).select(low, 1.0)


def saturated16(bits: Value) -> Value:
    """f16 patterns clamped to [+0, 1], NaN to +0."""
    positive = bits.is_("sgt", 0) & bits.is_("sle", HALF.infinity)
    return positive.select(bits.lt(0x3C00).select(bits, 0x3C00), 0)


def rectified16(bits: Value) -> Value:
    """16-bit patterns, negative ones replaced by +0. NaN must be canonical (positive)."""
    return bits.is_("slt", 0).select(0, bits)


# ---- sums, and rounding of f64 to f32 ----


def odd_sum(a: Value, b: Value) -> Value:
    """a + b in f64, rounded to odd."""
    total, error = two_sum(a, b)
    bits = pattern(total)
    away = ~(error.is_("ogt", 0.0) ^ total.is_("ogt", 0.0))
    move = error.is_("one", 0.0) & (bits & 1).eq(0)
    return double(move.select(bits + away.select(1, bits._with(-1)), bits))


def directed(nearest: Value, less: Value, more: Value, mode: str) -> Value:
    """Patterns rounded by ``mode`` (rz, rm or rp) from those rounded to nearest. ``less`` (``more``): whether the exact
    magnitude is below (above) that of ``nearest``."""
    if mode == "rz":
        return less.select(nearest - 1, nearest)
    negative = nearest.is_("slt", 0)
    away = negative if mode == "rm" else ~negative
    return (away & more).select(nearest + 1, (~away & less).select(nearest - 1, nearest))


def to_f32(value: Value, mode: str) -> Value:
    """f64 values (exact, or rounded to odd) as f32 patterns; NaN not made canonical."""
    nearest = short(value)
    if mode == "rn":
        return pattern(nearest)
    have, want = size(wide(nearest)), size(value)
    return directed(pattern(nearest), want.is_("olt", have), want.is_("ogt", have), mode)


def to_f32_odd(value: Value) -> Value:
    """f64 values as f32 patterns, rounded to odd."""
    toward_zero = to_f32(value, "rz")
    same = wide(single(toward_zero)).is_("ueq", value)
    return same.select(toward_zero, toward_zero | 1)


def signed_either(a: Value, b: Value) -> Value:
    """Whether the sign of one of two values is set."""
    return (pattern(a) | pattern(b)).is_("slt", 0)


# ---- f32 in every direction ----


def sum32(a: Value, b: Value, mode: str) -> Value:
    """The pattern of a + b; NaN not canonical."""
    if mode == "rn":
        return pattern(a + b)
    x, y = wide(a), wide(b)
    total = odd_sum(x, y)
    if mode == "rm":
        # a sum that is exactly zero is -0 unless both terms are +0
        total = (total.is_("oeq", 0.0) & signed_either(x, y)).select(-0.0, total)
    return to_f32(total, mode)


def product32(a: Value, b: Value, mode: str) -> Value:
    if mode == "rn":
        return pattern(a * b)
    return to_f32(wide(a) * wide(b), mode)


def quotient32(a: Value, b: Value, mode: str) -> Value:
    nearest = a / b
    if mode == "rn":
        return pattern(nearest)
    # |q||b| is exact in f64: whether it is above or below |a| shows on which side of the quotient q is
    given, got = size(wide(a)), size(wide(nearest)) * size(wide(b))
    return directed(pattern(nearest), given.is_("olt", got), given.is_("ogt", got), mode)


def root32(a: Value, mode: str) -> Value:
    nearest = square_root(a)
    if mode == "rn":
        return pattern(nearest)
    root = wide(nearest)
    given, got = wide(a), root * root
    return directed(pattern(nearest), given.is_("olt", got), given.is_("ogt", got), mode)


def fused32(a: Value, b: Value, c: Value, mode: str) -> Value:
    """The pattern of a * b + c, rounded once; NaN not canonical."""
    if mode == "rn":
        return pattern(fused(a, b, c))
    product, addend = wide(a) * wide(b), wide(c)
    total, error = two_sum(product, addend)
    nearest = short(total)
    bits, value = pattern(nearest), wide(nearest)
    same = value.is_("oeq", total)
    # the next number towards plus infinity is one bit pattern more, or less if it is negative
    step = bits.sra(31) | 1
    if mode == "rz":
        below, above = error.is_("olt", 0.0), error.is_("ogt", 0.0)
        inward = (below & total.is_("ogt", 0.0)) | (above & total.is_("olt", 0.0))
        return (size(value).is_("ogt", size(total)) | (same & inward)).select(bits - 1, bits)
    if mode == "rp":
        return (value.is_("olt", total) | (same & error.is_("ogt", 0.0))).select(bits + step, bits)
    moved = (value.is_("ogt", total) | (same & error.is_("olt", 0.0))).select(bits - step, bits)
    return (total.is_("oeq", 0.0) & signed_either(product, addend)).select(1 << 31, moved)


# ---- 16 bits and less ----


def narrow(bits: Value, to: Format, mode: str, satfinite: bool = False, keep_nan: bool = False) -> Value:
    """f32 patterns (exact, or rounded to odd) as patterns of a shorter format, in i32, as ``narrow``
    of sim/values/rounding.py."""
    negative = bits.is_("slt", 0)
    magnitude = bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    normal = exponent.ne(0)
    significand = normal.select((magnitude & 0x7FFFFF) | 0x800000, magnitude)
    target = normal.select(exponent, 1) + (to.bias - 127)
    low = target.is_("slt", 1)
    shift = low.select(target._with(24 - to.fraction) - target, 23 - to.fraction)
    shift = shift.gt(26).select(26, shift)
    quotient = significand >> shift
    rest = significand - (quotient << shift)
    half = shift._with(1) << (shift - 1)
    if mode == "rn":
        up = (rest + (quotient & 1)).gt(half)
    elif mode == "rna":
        up = rest.ge(half)
    else:
        up = rest.ne(0)
        if mode != "rz":
            up = up & (negative if mode == "rm" else ~negative)
    base = low.select(0, (target - 1) << to.fraction)
    result = base + quotient
    if mode != "rz":
        result = result + up.to(result.kind)
    over = result.ge(to.infinity)
    largest = to.infinity - 1
    if satfinite:
        result = over.select(largest, result)
    elif mode in ("rn", "rna"):
        result = over.select(to.infinity, result)
    else:
        inward = magnitude.lt(0x7F800000)
        if mode != "rz":
            inward = inward & (~negative if mode == "rm" else negative)
        result = over.select(inward.select(largest, result._with(to.infinity)), result)
    sign = (bits >> 31) << (to.bits - 1)
    result = result | sign
    nan: Value | int = to.nan
    if keep_nan:
        payload = (magnitude >> (23 - to.fraction)) & ((1 << to.fraction) - 1)
        nan = payload | (to.infinity | 1 << (to.fraction - 1)) | sign
    return magnitude.gt(0x7F800000).select(nan, result)


def bfloat_to_float(bits: Value) -> Value:
    return single(bits.to("i32") << 16)


def half_to_float(bits: Value) -> Value:
    """f16 patterns as f32 values."""
    if bits.code.module.halves:
        return bits.bits(like(bits.kind, "half")).convert("fpext", "float")
    whole = bits.to("i32")
    magnitude = whole & 0x7FFF
    # subnormals are small multiples of 2^-24
    small = pattern(magnitude.convert("uitofp", "float") * 2.0**-24)
    moved = magnitude << 13
    large = magnitude.ge(HALF.infinity).select(moved | 0x7F800000, moved + ((127 - HALF.bias) << 23))
    size_bits = magnitude.lt(1 << HALF.fraction).select(small, large)
    return single(size_bits | ((whole & 0x8000) << 16))


def nearest_half(value: Value) -> Value:
    """The f16 patterns nearest to f32 values, NaN canonical."""
    if value.code.module.halves:
        return is_nan(value).select(NAN16, pattern(value.convert("fptrunc", "half")))
    return narrow(pattern(value), HALF, "rn").to("i16")


def nearest_bfloat(value: Value) -> Value:
    """The bf16 patterns nearest to f32 values, NaN canonical."""
    bits = pattern(value)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return is_nan(value).select(NAN16, rounded).to("i16")


def odd_to_half(value: Value) -> Value:
    """The f16 patterns nearest to f64 values that are exact or rounded to odd."""
    return nearest_half(single(to_f32_odd(value)))


def odd_to_bfloat(value: Value) -> Value:
    return nearest_bfloat(single(to_f32_odd(value)))
