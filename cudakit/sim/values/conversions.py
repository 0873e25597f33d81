"""cvt in every form: between integers, floats of all formats, rounded to integers, saturated, and packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.ptx.ir import PtxError, Register
from cudakit.sim.values.floats import rectify16, saturate16, saturate32
from cudakit.sim.values.lanewise import (
    F16,
    F32,
    F64,
    S64,
    SIGNED,
    U16,
    U32,
    U64,
    UNSIGNED,
    Array,
    Form,
    Spec,
    blocked,
    builds,
    halves,
    join,
    some,
    width,
)
from cudakit.sim.values.rounding import (
    BFLOAT,
    E4M3,
    E5M2,
    HALF,
    QUIET64,
    Format,
    bfloat_to_f32,
    canonical16,
    canonical32,
    encode64,
    flush32,
    half_to_f32,
    narrow,
    quiet64,
    to_f32,
    to_f32_odd,
)

_INTEGERS: dict[str, np.dtype[Any]] = {
    f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}") for sign in "us" for bits in (8, 16, 32, 64)
}
_FLOATS = ("f16", "bf16", "f32", "f64")
_PAIRS = ("f16x2", "bf16x2", "e4m3x2", "e5m2x2")
_TO_INTEGER: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_MODES = ("rn", "rz", "rm", "rp", "rna")
TF32 = Format(19, 10, 127, 0xFF << 10, 0x3FFFF)


@builds("cvt")
def _cvt(spec: Spec) -> Form:
    if spec.rest[0] == "pack":
        return _build_pack(spec)
    source = spec.kind(*_INTEGERS, *_FLOATS, *_PAIRS)
    target = spec.kind(*_INTEGERS, *_FLOATS, *_PAIRS, "tf32")
    if target == "tf32" or target in _PAIRS or source in _PAIRS:
        return _packed(spec, target, source)
    _check_rounding(spec, target, source)
    # registers may be wider than the types: a source's upper bits are ignored, a destination's are extended
    into = _register_kind(spec.destinations[0], target)
    taken = _register_kind(spec.sources[0], source)
    if source in _INTEGERS:
        run = (
            _integer_to_integer(spec, target, source)
            if target in _INTEGERS
            else _integer_to_float(spec, target, source)
        )
    else:
        run = _float_to_integer(spec, target, source) if target in _INTEGERS else _float_to_float(spec, target, source)
    spec.finish()
    narrower = width(taken) > width(source) and source in _FLOATS
    wider = width(into) > width(target) and target in _FLOATS
    register = UNSIGNED[width(into)]
    if narrower or wider:
        spec.refuse("a float in a wider register")
    run = blocked(run, _INTEGERS.get(target, register))
    if target in _INTEGERS:
        extended = SIGNED[width(into) if width(into) > 8 else 16] if target.startswith("s") else register
        return Form(lambda a: run(a).astype(extended).view(register), (into,), (taken,))
    return Form(run, (into,), (taken,))


def _check_rounding(spec: Spec, target: str, source: str) -> None:
    """Raise if a conversion that may be inexact has no rounding, or one that is exact has one."""
    rounded = bool({*_MODES} & {*spec.rest})
    if source in _INTEGERS:
        needed = target not in _INTEGERS
    elif target in _INTEGERS or (target, source) in (("bf16", "f16"), ("f16", "bf16"), ("f32", "bf16")):
        # integers have roundings of their own; these pairs may have one
        return
    else:
        needed = width(target) < width(source)
    if rounded != needed:
        raise PtxError(f"{spec.instruction.name} {'needs a rounding such as .rn' if needed else 'is not rounded'}")


def _register_kind(operand: Any, kind: str) -> str:
    """The type of an operand: that of the instruction, in the register's width."""
    if not isinstance(operand, Register) or width(operand.type) <= width(kind):
        return kind
    return f"{kind[0]}{width(operand.type)}"


def _reader(kind: str) -> Callable[[Array], Array]:
    """A function from registers to numbers of an integer type."""
    dtype = _INTEGERS[kind]
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def read(bits: Array) -> Array:
        numbers: Array = (bits if bits.dtype == unsigned else bits.astype(unsigned)).view(dtype)
        return numbers

    return read


def _float_reader(kind: str, ftz: bool) -> Callable[[Array], Array]:
    """A function from patterns to float64 values."""
    if kind == "f16":
        return lambda bits: half_to_f32(bits).astype(F64)
    if kind == "bf16":
        return lambda bits: bfloat_to_f32(bits).astype(F64)
    if kind == "f64":
        return lambda bits: bits.view(F64)
    if ftz:
        return lambda bits: flush32(bits).view(F32).astype(F64)
    return lambda bits: bits.view(F32).astype(F64)


# ---- scalar forms ----


def _integer_to_integer(spec: Spec, target: str, source: str) -> Callable[[Array], Array]:
    read, dtype, from_type = _reader(source), _INTEGERS[target], _INTEGERS[source]
    if not spec.flag("sat"):
        return lambda bits: read(bits).astype(dtype)
    here, there = np.iinfo(from_type), np.iinfo(dtype)
    low = from_type.type(max(int(here.min), int(there.min)))
    high = from_type.type(min(int(here.max), int(there.max)))
    return lambda bits: np.clip(read(bits), low, high).astype(dtype)


def _odd_of_integers(value: Array) -> Array:
    """64-bit integers as float64, rounded to odd far below the last bit of a 24-bit significand."""
    negative = value < 0 if value.dtype == S64 else np.zeros(value.shape, dtype=np.bool_)
    size = np.where(negative, np.negative(value.view(U64)), value.view(U64))
    tail = np.uint64(0x7FF)
    sticky = np.where((size & tail) != 0, np.uint64(0x800), np.uint64(0))
    odd = np.where(size >> np.uint64(53) != 0, (size & ~tail) | sticky, size).astype(F64)
    return np.where(negative, -odd, odd)


def _integer_to_float(spec: Spec, target: str, source: str) -> Callable[[Array], Array]:
    read = _reader(source)
    mode, sat = spec.one_of(*_MODES) or "rn", spec.flag("sat")
    spec.flag("ftz")  # integers have no subnormals
    if target == "f64":
        if sat:
            return lambda bits: np.clip(read(bits), 0, 1).astype(F64).view(U64)
        if mode == "rn" or width(source) < 64:
            return lambda bits: read(bits).astype(F64).view(U64)
        return lambda bits: _integers_to_f64(read(bits), mode)
    wide = width(source) == 64
    exact: Callable[[Array], Array] = _odd_of_integers if wide else lambda value: value.astype(F64)
    if target == "f32":
        if mode == "rn":
            run: Callable[[Array], Array] = lambda bits: read(bits).astype(F32).view(U32)  # noqa: E731
        else:
            run = lambda bits: to_f32(exact(read(bits)), mode)  # noqa: E731
        return (lambda bits: saturate32(run(bits))) if sat else run
    to = HALF if target == "f16" else BFLOAT

    def short(bits: Array) -> Array:
        result: Array = narrow(to_f32_odd(exact(read(bits))), to, mode).astype(U16)
        return saturate16(result) if sat else result

    if sat and target == "bf16":
        spec.refuse(".bf16 does not saturate")
    return short


def _integers_to_f64(value: Array, mode: str) -> Array:
    numbers = [encode64(number < 0, abs(number), 0, mode) for number in value.reshape(-1).tolist()]
    return np.array(numbers, dtype=U64).reshape(value.shape)


def _float_to_integer(spec: Spec, target: str, source: str) -> Callable[[Array], Array]:
    name = spec.one_of(*_TO_INTEGER)
    if not name:
        spec.refuse("no rounding to an integer")
    rounded = _TO_INTEGER[name]
    ftz = spec.flag("ftz")
    spec.flag("sat")  # these conversions always saturate
    read, dtype, bits_out = _float_reader(source, ftz), _INTEGERS[target], width(target)
    limits = np.iinfo(dtype)
    undefined = dtype.type(0)
    if source == "f64" or bits_out == 64:
        undefined = np.array([1 << (bits_out - 1)], dtype=f"u{bits_out // 8}").view(dtype)[0]
    low, high = np.float64(int(limits.min)), np.float64(int(limits.max))

    def small(bits: Array) -> Array:
        value = read(bits)
        result = np.clip(rounded(value), low, high).astype(S64).astype(dtype)
        nan = value != value
        converted: Array = np.where(nan, undefined, result) if some(nan) else result
        return converted

    half = np.float64(2.0**63)

    def large(bits: Array) -> Array:
        value = read(bits)
        whole = rounded(value)
        if target == "s64":
            inside = (whole >= -half) & (whole < half)
            result = np.where(inside, whole, np.float64(0)).astype(S64)
        else:
            inside = (whole >= 0) & (whole < 2 * half)
            upper = whole >= half
            rest = np.where(inside, np.where(upper, whole - half, whole), np.float64(0)).astype(S64).view(U64)
            result = np.where(upper & inside, rest | np.uint64(1 << 63), rest)
        outside = np.where(whole > 0, dtype.type(limits.max), dtype.type(limits.min))
        result = np.where(inside, result, outside)
        converted: Array = np.where(value != value, undefined, result)
        return converted

    return large if bits_out == 64 else small


def _float_to_float(spec: Spec, target: str, source: str) -> Callable[[Array], Array]:
    whole = spec.one_of(*_TO_INTEGER)
    mode = spec.one_of(*_MODES) or "rn"
    ftz, sat, relu = spec.flag("ftz"), spec.flag("sat"), spec.flag("relu")
    satfinite = spec.flag("satfinite")
    if whole and source != target:
        spec.refuse("rounding to an integer keeps the type")
    if ((relu or satfinite) and (target not in ("f16", "bf16") or source != "f32")) or (sat and target == "bf16"):
        spec.refuse("this modifier with these types")
    if mode == "rna" and target != "tf32":
        spec.refuse("rounding .rna")

    def finish(bits: Array) -> Array:
        if target == "f32":
            if ftz:
                bits = flush32(bits)
            return saturate32(bits) if sat else bits
        if target == "f64":
            if not sat:
                return bits
            value = bits.view(F64)
            clamped: Array = np.where(value > 0, np.minimum(value, np.float64(1)), np.float64(0)).view(U64)
            return clamped
        if relu:
            bits = rectify16(bits)
        return saturate16(bits) if sat else bits

    encode = _float_encoder(target, source, mode, satfinite)
    if ftz and source == "f32" and target != "f16":  # the hardware converts subnormals to f16 regardless
        inner, clean = encode, target == "f64"
        encode = lambda bits: inner(canonical32(flush32(bits).view(F32)) if clean else flush32(bits))  # noqa: E731
    elif target == source and source != "f16" and not (whole or sat or relu or ftz):
        return lambda bits: bits.copy()
    if whole:
        plain, rounder = encode, _whole(source, _TO_INTEGER[whole])
        encode = lambda bits: plain(rounder(flush32(bits) if ftz else bits))  # noqa: E731
    if not (ftz or sat or relu):
        return encode
    return lambda bits: finish(encode(bits))


def _whole(kind: str, rounded: Any) -> Callable[[Array], Array]:
    """A function that rounds patterns of a format to integers of the same format."""
    if kind == "bf16":
        return lambda bits: (rounded(bfloat_to_f32(bits)).view(U32) >> np.uint32(16)).astype(U16)
    views: dict[str, np.dtype[Any]] = {"f16": F16, "f32": F32, "f64": F64}
    view = views[kind]
    return lambda bits: rounded(bits.view(view)).view(bits.dtype)


def nearest_half(bits: Array) -> Array:
    """float32 patterns to the nearest f16 ones, NaN canonical."""
    return canonical16(bits.view(F32).astype(F16))


def nearest_bfloat(bits: Array) -> Array:
    """float32 patterns to the nearest bf16 ones, NaN canonical."""
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    result: Array = np.where((bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint32(0x7FFF), rounded).astype(
        U16
    )
    return result


def _float_encoder(target: str, source: str, mode: str, satfinite: bool) -> Callable[[Array], Array]:
    """A function from patterns of one format to patterns of another. As in hardware a NaN becomes canonical, except
    that conversions from and to f64 keep its sign and payload."""
    if target == source:
        canonical: dict[str, Callable[[Array], Array]] = {
            "f16": lambda bits: canonical16(bits.view(F16)).copy(),
            "bf16": lambda bits: np.where((bits & np.uint16(0x7FFF)) > np.uint16(0x7F80), np.uint16(0x7FFF), bits),
            "f32": lambda bits: canonical32(bits.view(F32)).copy(),
            "f64": lambda bits: quiet64(bits.view(F64), bits).copy(),
        }
        return canonical[target]
    if source == "f16" and target == "f32":
        return lambda bits: canonical32(half_to_f32(bits))
    if source == "bf16" and target == "f32":
        return lambda bits: bfloat_to_f32(bits).view(U32)
    if source == "f32" and mode == "rn" and not satfinite and target in ("f16", "bf16"):
        return nearest_half if target == "f16" else nearest_bfloat
    read = _float_reader(source, False)
    if target == "f64":
        return lambda bits: read(bits).view(U64) | _quiet_bit(bits, source)
    if target == "f32":
        return lambda bits: to_f32(read(bits), mode)
    to, keep = HALF if target == "f16" else BFLOAT, source == "f64"
    return lambda bits: narrow(to_f32_odd(read(bits)), to, mode, satfinite, keep).astype(U16)


def _quiet_bit(bits: Array, source: str) -> Array:
    """The bit that makes a float64 NaN quiet, for values of another format that are NaN; 0 for others."""
    magnitude, infinity = {
        "f16": (np.uint16(0x7FFF), np.uint16(0x7C00)),
        "bf16": (np.uint16(0x7FFF), np.uint16(0x7F80)),
        "f32": (np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)),
    }[source]
    quiet: Array = np.where((bits & magnitude) > infinity, QUIET64, np.uint64(0))
    return quiet


# ---- packed forms ----


def byte_table(to: Format) -> Array:
    """The float16 patterns of the 256 values of an 8-bit format; NaN canonical."""
    codes = np.arange(256)
    size = codes & 0x7F
    exponent, fraction = size >> to.fraction, size & ((1 << to.fraction) - 1)
    scale = np.where(exponent > 0, exponent, 1) - to.bias - to.fraction
    value = np.ldexp((fraction + np.where(exponent > 0, 1 << to.fraction, 0)).astype(F64), scale)
    if to.has_infinity:
        value = np.where(size == to.infinity, np.inf, np.where(size > to.infinity, np.nan, value))
    else:
        value = np.where(size == to.nan, np.nan, value)
    return canonical16(np.where(codes > 127, -value, value).astype(F16))


_BYTES: dict[str, tuple[Format, Array]] = {
    "e4m3x2": (E4M3, byte_table(E4M3)),
    "e5m2x2": (E5M2, byte_table(E5M2)),
}


def _packed(spec: Spec, target: str, source: str) -> Form:
    mode = spec.one_of(*_MODES)
    relu, satfinite = spec.flag("relu"), spec.flag("satfinite")
    spec.finish()
    if target == "tf32" and source == "f32":
        return _tf32(spec, mode, relu, satfinite)
    if target in ("f16x2", "bf16x2") and source == "f32" and mode in ("rn", "rz"):
        to = HALF if target == "f16x2" else BFLOAT

        def encode(bits: Array) -> Array:
            if mode == "rn" and not satfinite:
                half = nearest_half(bits) if to is HALF else nearest_bfloat(bits)
            else:
                half = narrow(bits, to, mode, satfinite).astype(U16)
            return rectify16(half) if relu else half

        return Form(lambda a, b: join(encode(b), encode(a)), (target,), ("f32", "f32"))
    if target in _BYTES and source in ("f32", "f16x2") and mode == "rn" and satfinite:
        to, _ = _BYTES[target]

        def byte(bits: Array) -> Array:
            code = narrow(bits, to, "rn", satfinite=True)
            # the sign bit of a byte; NaN is positive
            return np.where((code & np.uint32(0x80)) != 0, np.uint32(0), code) if relu else code

        def run(*operands: Any) -> Array:
            if source == "f32":
                upper, lower = byte(operands[0]), byte(operands[1])
            else:
                low, high = halves(operands[0])
                upper, lower = byte(half_to_f32(high).view(U32)), byte(half_to_f32(low).view(U32))
            packed_bytes: Array = ((upper << np.uint32(8)) | lower).astype(U16)
            return packed_bytes

        return Form(run, (target,), ("f32", "f32") if source == "f32" else ("f16x2",))
    if target == "f16x2" and source in _BYTES and mode in ("rn", ""):
        _, table = _BYTES[source]

        def widen(*operands: Any) -> Array:
            low, high = table[operands[0] & np.uint16(255)], table[operands[0] >> np.uint16(8)]
            if relu:
                low, high = rectify16(low), rectify16(high)
            return join(low, high)

        return Form(widen, (target,), (source,))
    spec.refuse("this pair of types")


def _tf32(spec: Spec, mode: str, relu: bool, satfinite: bool) -> Form:
    if mode not in ("rna", "rn", "rz"):
        spec.refuse("rounding to .tf32 is .rna, .rn or .rz")

    def run(*operands: Any) -> Array:
        bits = operands[0]
        result = narrow(bits, TF32, mode, satfinite) << np.uint32(13)
        if mode == "rna":
            nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            # an H200's .satfinite moves every pattern above the largest number one step down, including NaN
            kept = (bits & np.uint32(0xFFFFE000)) - np.uint32(0x2000 if satfinite else 0)
            result = np.where(nan, kept, result)
        rectified: Array = np.where((result >> np.uint32(31)) != 0, np.uint32(0), result) if relu else result
        return rectified

    return Form(run, ("tf32",), ("f32",))


def _build_pack(spec: Spec) -> Form:
    """cvt.pack.sat: two saturated 32-bit integers, packed below the lower bits of a third operand."""
    spec.flag("pack")
    with_third = spec.flag("b32")
    source = spec.kind("u32", "s32")
    target = spec.kind("u16", "s16", "u8", "s8")
    saturates = spec.flag("sat")
    spec.finish()
    bits = width(target)
    if not saturates or with_third != (bits == 8):
        spec.refuse("this form of cvt.pack")
    limits = np.iinfo(_INTEGERS[target])
    dtype = _INTEGERS[source]
    low = dtype.type(max(int(limits.min), int(np.iinfo(dtype).min)))
    high = dtype.type(limits.max)
    mask = np.uint32((1 << bits) - 1)

    def clamp(value: Array) -> Array:
        clamped: Array = np.clip(value.view(dtype), low, high).view(U32) & mask
        return clamped

    def run(*operands: Any) -> Array:
        result: Array = (clamp(operands[0]) << np.uint32(bits)) | clamp(operands[1])
        return result | (operands[2] << np.uint32(16)) if with_third else result

    return Form(run, ("u32",), (source, source, "b32") if with_third else (source, source))
