"""cvt in every form."""

from __future__ import annotations

from collections.abc import Iterator

from ..forms import Form, op, statements
from .floats import MODES

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")


def forms() -> Iterator[Form]:
    yield from _integers()
    yield from _integers_and_floats()
    yield from _floats()
    yield from _small_formats()


def _integers() -> Iterator[Form]:
    group = "cvt between integers"
    for target in INTEGERS:
        for source in INTEGERS:
            yield op(group, f"cvt.{target}.{source}", source, target)
            if not _holds(target, source):
                yield op(group, f"cvt.sat.{target}.{source}", source, target)
    # registers wider than the type: upper bits of the operand are ignored, those of the result are set
    for target, source, into, taken in (
        ("s32", "s8", "s32", "s32"),
        ("u32", "u8", "u32", "u32"),
        ("s16", "s8", "s16", "s32"),
        ("s8", "s32", "s32", "s32"),
        ("u8", "u32", "u64", "u32"),
        ("u64", "u8", "u64", "u64"),
        ("s64", "s16", "s64", "s32"),
        ("s16", "s64", "s32", "s64"),
        ("u16", "u32", "u32", "u32"),
    ):
        yield op(group, f"cvt.{target}.{source}", taken, into)
        if not _holds(target, source):
            yield op(group, f"cvt.sat.{target}.{source}", taken, into)
    for target in ("u8", "s8"):
        text = f"cvt.pack.sat.{target}.s32.b32 d0, a, b, c;"
        yield statements("cvt of small formats", text, "s32 s32 b32", "b32")
    for target in ("u16", "s16"):
        yield statements("cvt of small formats", f"cvt.pack.sat.{target}.s32 d0, a, b;", "s32 s32", "b32")


def _holds(target: str, source: str) -> bool:
    """Return whether a type has every value of another: then nothing can saturate, and PTX does not allow .sat."""
    room, need = int(target[1:]), int(source[1:])
    if target[0] == source[0]:
        return room >= need
    return target[0] == "s" and room > need


def _integers_and_floats() -> Iterator[Form]:
    group = "cvt between integers and floats"
    for whole in INTEGERS:
        for real in FLOATS:
            if real == "bf16" and whole in ("u8", "s8"):
                continue
            for mode in MODES:
                yield op(group, f"cvt{mode}.{real}.{whole}", whole, real)
            for mode in _TO_INTEGER:
                yield op(group, f"cvt.{mode}.{whole}.{real}", real, whole)
                if real == "f32":
                    yield op(group, f"cvt.{mode}.ftz.{whole}.f32", "f32", whole)
        yield op(group, f"cvt.rzi.sat.{whole}.f32", "f32", whole)
        for real in ("f16", "f32", "f64"):
            yield op(group, f"cvt.rn.sat.{real}.{whole}", whole, real)
    yield op(group, "cvt.rzi.s8.f32", "f32", "s32")
    yield op(group, "cvt.rn.f32.s8", "s32", "f32")


def _floats() -> Iterator[Form]:
    group = "cvt between floats"
    for real in FLOATS:
        for mode in _TO_INTEGER:
            yield op(group, f"cvt.{mode}.{real}.{real}", real, real)
            if real == "f32":
                yield op(group, f"cvt.{mode}.ftz.f32.f32", "f32", "f32")
            if real in ("f16", "f32", "f64"):
                yield op(group, f"cvt.{mode}.sat.{real}.{real}", real, real)
        if real != "bf16":
            yield op(group, f"cvt.{real}.{real}", real, real)
            yield op(group, f"cvt.sat.{real}.{real}", real, real)
    for ftz in ("", ".ftz"):
        for sat in ("", ".sat"):
            yield op(group, f"cvt{ftz}{sat}.f32.f32", "f32", "f32")
            yield op(group, f"cvt{ftz}{sat}.f64.f32", "f32", "f64")
            yield op(group, f"cvt{ftz}{sat}.f32.f16", "f16", "f32")
            for mode in MODES:
                yield op(group, f"cvt{mode}{ftz}{sat}.f32.f64", "f64", "f32")
                yield op(group, f"cvt{mode}{ftz}{sat}.f16.f32", "f32", "f16")
    for sat in ("", ".sat"):
        yield op(group, f"cvt{sat}.f64.f16", "f16", "f64")
        for mode in MODES:
            yield op(group, f"cvt{mode}{sat}.f16.f64", "f64", "f16")
    yield op(group, "cvt.f32.bf16", "bf16", "f32")
    yield op(group, "cvt.f64.bf16", "bf16", "f64")
    for mode in MODES:
        yield op(group, f"cvt{mode}.bf16.f32", "f32", "bf16")
        yield op(group, f"cvt{mode}.bf16.f64", "f64", "bf16")
        yield op(group, f"cvt{mode}.bf16.f16", "f16", "bf16")
        yield op(group, f"cvt{mode}.f16.bf16", "bf16", "f16")


def _small_formats() -> Iterator[Form]:
    group = "cvt of small formats"
    for mode in ("rn", "rz"):
        for relu in ("", ".relu"):
            for finite in ("", ".satfinite"):
                how = f"{mode}{relu}{finite}"
                for base in ("f16", "bf16"):
                    yield op(group, f"cvt.{how}.{base}.f32", "f32", base)
                    yield op(group, f"cvt.{how}.{base}x2.f32", "f32 f32", "b32")
                if not finite:
                    yield op(group, f"cvt.{how}.tf32.f32", "f32", "b32")
    yield op(group, "cvt.rna.tf32.f32", "f32", "b32")
    yield op(group, "cvt.rna.satfinite.tf32.f32", "f32", "b32")
    for pair in ("e4m3x2", "e5m2x2"):
        for relu in ("", ".relu"):
            yield op(group, f"cvt.rn.satfinite{relu}.{pair}.f32", "f32 f32", "b16")
            yield op(group, f"cvt.rn.satfinite{relu}.{pair}.f16x2", "f16x2", "b16")
            yield op(group, f"cvt.rn{relu}.f16x2.{pair}", pair, "b32")
