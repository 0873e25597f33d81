"""Moves, comparisons and selections: mov, setp, set, selp, slct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.ptx.ir import PtxError
from cudakit.sim.values.integers import BITS, INTEGERS, signed
from cudakit.sim.values.lanewise import (
    F32,
    F64,
    U16,
    U32,
    UNSIGNED,
    Array,
    Form,
    Spec,
    builds,
    halves,
    join,
    select,
    width,
)
from cudakit.sim.values.rounding import bfloat_to_f32, flush16, flush32, half_to_f32

FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_NEGATED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_NAMES = (*_COMPARE, *_UNSIGNED_NAMES, *_NEGATED, "num", "nan")
_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def reader(kind: str, ftz: bool) -> Callable[[Array], Array]:
    """A function from bit patterns to floats that numpy can compare: float32 for the 16-bit formats."""
    if kind.startswith("bf16"):
        return bfloat_to_f32
    if kind.startswith("f16"):
        return (lambda bits: half_to_f32(flush16(bits))) if ftz else half_to_f32
    if kind == "f64":
        return lambda bits: bits.view(F64)
    if ftz:
        return lambda bits: flush32(bits).view(F32)
    return lambda bits: bits.view(F32)


def _comparison(spec: Spec, name: str, kind: str, ftz: bool) -> Callable[[Array, Array], Array]:
    """A comparison of bit patterns of a type (for packed types, of one half)."""
    if kind in FLOATS:
        read = reader(kind, ftz)
        if name in ("num", "nan"):

            def ordered(a: Array, b: Array) -> Array:
                x, y = read(a), read(b)
                found: Array = (x == x) & (y == y) if name == "num" else (x != x) | (y != y)
                return found

            return ordered
        if name in _UNSIGNED_NAMES:
            spec.refuse(f"comparison .{name} of floats")
        # numpy's != is true for NaN, PTX's ne is not; an unordered comparison is the negated opposite ordered one
        if name == "ne":
            return lambda a, b: _not_equal(read(a), read(b))
        if name == "equ":
            return lambda a, b: ~_not_equal(read(a), read(b))
        if name == "neu":
            return lambda a, b: np.not_equal(read(a), read(b))
        if name in _NEGATED:
            opposite = _COMPARE[_NEGATED[name]]
            return lambda a, b: np.logical_not(opposite(read(a), read(b)))
        function = _COMPARE[name]
        return lambda a, b: function(read(a), read(b))
    if name in _NEGATED or name in ("num", "nan"):
        spec.refuse(f"comparison .{name} of integers")
    if kind.startswith("b") and name not in ("eq", "ne"):
        spec.refuse(f"comparison .{name} of untyped bits")
    function = _COMPARE[_UNSIGNED_NAMES.get(name, name)]
    if kind.startswith("s") and name in ("lt", "le", "gt", "ge"):
        return lambda a, b: function(signed(a), signed(b))
    return function  # type: ignore[no-any-return]


def _not_equal(x: Array, y: Array) -> Array:
    return (x < y) | (x > y)


def _combined(spec: Spec) -> Any:
    combine = spec.one_of(*_COMBINE)
    return _COMBINE[combine] if combine else None


@builds("setp")
def _setp(spec: Spec) -> Form:
    kind = spec.kind(*BITS, *INTEGERS, *FLOATS)
    name = spec.one_of(*_NAMES)
    combine = _combined(spec)
    ftz = spec.flag("ftz")
    spec.finish()
    if not name:
        spec.refuse("no comparison")
    compare = _comparison(spec, name, kind, ftz)
    sources = (kind, kind) if combine is None else (kind, kind, "pred")
    if kind.endswith("x2"):

        def both(*operands: Any) -> Array | tuple[Array, ...]:
            (a_low, a_high), (b_low, b_high) = halves(operands[0]), halves(operands[1])
            low, high = compare(a_low, b_low), compare(a_high, b_high)
            return (low, high) if combine is None else (combine(low, operands[2]), combine(high, operands[2]))

        return Form(both, ("pred", "pred"), sources)
    if len(spec.destinations) == 1:
        if combine is None:
            return Form(compare, ("pred",), sources)
        return Form(lambda a, b, c: combine(compare(a, b), c), ("pred",), sources)

    def pair(*operands: Any) -> tuple[Array, ...]:
        result = compare(operands[0], operands[1])
        opposite = np.logical_not(result)
        if combine is None:
            return result, opposite
        return combine(result, operands[2]), combine(opposite, operands[2])

    return Form(pair, ("pred", "pred"), sources)


_TRUE: dict[str, tuple[int, np.dtype[Any]]] = {
    "u16": (0xFFFF, U16),
    "s16": (0xFFFF, U16),
    "u32": (0xFFFFFFFF, U32),
    "s32": (0xFFFFFFFF, U32),
    "f16": (0x3C00, U16),
    "bf16": (0x3F80, U16),
    "f32": (0x3F800000, U32),
    "f16x2": (0x3C00, U16),
    "bf16x2": (0x3F80, U16),
}


@builds("set")
def _set(spec: Spec) -> Form:
    kind = spec.kind(*BITS, *INTEGERS, *FLOATS)
    result = spec.kind(*_TRUE)
    name = spec.one_of(*_NAMES)
    combine = _combined(spec)
    ftz = spec.flag("ftz")
    spec.finish()
    if not name:
        spec.refuse("no comparison")
    compare = _comparison(spec, name, kind, ftz)
    is_packed = kind.endswith("x2")
    if is_packed and result in ("u32", "s32"):
        one, dtype = 0xFFFF, U16  # a mask for each half
    elif is_packed == result.endswith("x2"):
        one, dtype = _TRUE[result]
    else:
        spec.refuse("one type is packed, the other is not")
    true, false = dtype.type(one), dtype.type(0)

    def run(*operands: Any) -> Array:
        pairs = [halves(operand) for operand in operands[:2]] if is_packed else [(operands[0],), (operands[1],)]
        found = []
        for a, b in zip(*pairs, strict=True):
            outcome = compare(a, b)
            if combine is not None:
                outcome = combine(outcome, operands[2])
            found.append(np.where(outcome, true, false))
        return join(found[0], found[1]) if is_packed else found[0]

    return Form(run, (result,), (kind, kind) if combine is None else (kind, kind, "pred"))


@builds("selp")
def _selp(spec: Spec) -> Form:
    kind = spec.kind(*BITS, *INTEGERS, "f32", "f64")
    spec.finish()
    return Form(lambda a, b, c: select(c, a, b), (kind,), (kind, kind, "pred"))


@builds("slct")
def _slct(spec: Spec) -> Form:
    by = spec.kind("s32", "f32")
    kind = spec.kind(*BITS, *INTEGERS, "f32", "f64")
    ftz = spec.flag("ftz")
    spec.finish()
    read: Callable[[Array], Array] = reader("f32", ftz) if by == "f32" else signed
    return Form(lambda a, b, c: select(read(c) >= 0, a, b), (kind,), (kind, kind, by))


@builds("mov")
def _mov(spec: Spec) -> Form:
    kind = spec.kind("pred", *BITS, *INTEGERS, "f32", "f64")
    length = int(spec.one_of("v2", "v4")[1:] or 1)
    spec.finish()
    into, taken = len(spec.destinations), len(spec.sources)
    if length > 1:
        if into == length and taken == 1:
            spec.refuse("a single operand for a vector")
        if kind == "pred" or not into == taken == length or length * width(kind) > 128:
            raise PtxError(f"{spec.instruction.name} moves a vector of {length} to another")
        return Form(lambda *operands: tuple(operand.copy() for operand in operands), (kind,) * length, (kind,) * length)
    if into == taken == 1:
        return Form(lambda a: a.copy(), (kind,), (kind,))
    bits = width(kind)
    count = max(into, taken)
    element = bits // count
    if min(into, taken) != 1 or kind == "pred" or element * count != bits or element < 8:
        spec.refuse("this shape of vector")
    mask = UNSIGNED[bits].type((1 << element) - 1)
    part = f"b{element}"
    if into == 1:

        def pack(*operands: Any) -> Array:
            result: Any = None
            for place, operand in enumerate(operands):
                piece = operand.astype(UNSIGNED[bits])
                if element == 8:
                    piece = piece & mask
                piece = piece << UNSIGNED[bits].type(place * element) if place else piece
                result = piece if result is None else result | piece
            return result  # type: ignore[no-any-return]

        return Form(pack, (kind,), (part,) * count)

    shifts = [UNSIGNED[bits].type(place * element) for place in range(count)]

    def unpack(value: Array) -> tuple[Array, ...]:
        return tuple(((value >> shift) & mask).astype(UNSIGNED[element]) for shift in shifts)

    return Form(unpack, (part,) * count, (kind,))
