"""The approximate functions as machine code, as ``sim/values/approximations.py``: in f64 and rounded once, or by
tables."""

from __future__ import annotations

import math
from collections.abc import Callable

from cudakit.sim.compiled import measured
from cudakit.sim.compiled.halves import write16
from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.lanewise import Operands, Unsupported, form, function, writes
from cudakit.sim.compiled.numpy_loops import applied
from cudakit.sim.compiled.rounding import (
    INFINITY64,
    bfloat_to_float,
    double,
    flushed,
    flushed16,
    half_to_float,
    is_nan,
    odd_to_bfloat,
    odd_to_half,
    pattern,
    quiet64,
    short,
    size,
    square_root,
    wide,
)
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.approximations import FUNCTIONS, SEED_NAN, UPPER


def _write32(o: Operands, i: Instruction, mods: set[str], compute: Callable[..., Value], count: int = 1) -> None:
    """Write an f32 result from a function of f64 values."""
    operands = [o.read_float(operand, "f32") for operand in i.operands[1 : 1 + count]]
    if "ftz" in mods:
        operands = [flushed(operand) for operand in operands]
    result = short(compute(*map(wide, operands)))
    o.write_float(i.operands[0], flushed(result) if "ftz" in mods else result)


def _reciprocal(a: Value) -> Value:
    """rcp.approx of f32 values."""
    return function("rcp", "double", measured.reciprocal, [a])


def _inverse(a: Value) -> Value:
    return a._with(1.0) / a


def _inverse_root(a: Value) -> Value:
    return _inverse(square_root(a))


def _seed(o: Operands, i: Instruction, compute: Callable[[Value], Value]) -> None:
    """A form of f64 with 20 bits of fraction from the upper word, subnormals flushed, like the hardware's."""

    def flush(bits: Value) -> Value:
        return (bits & INFINITY64).eq(0).select(bits & (1 << 63), bits)

    def run(a: Value) -> Value:
        value = compute(double(flush(a & int(UPPER))))
        bits = is_nan(value).select(int(SEED_NAN), pattern(value))
        rounded = (bits + (1 << 31)) & int(UPPER)
        return flush((bits & INFINITY64).eq(INFINITY64).select(bits, rounded))

    o.write(i.operands[0], function(i.name, "i64", run, [o.read(i.operands[1], "f64")]))


def root(o: Operands, i: Instruction) -> None:
    """rcp.approx and sqrt.approx."""
    kind, mods = form(i, "approx", "ftz")
    if kind == "f32":
        return _write32(o, i, mods, _reciprocal if i.opcode == "rcp" else square_root)
    if i.opcode != "rcp":
        raise Unsupported(i.name)
    _seed(o, i, _inverse)


@writes("rsqrt")
def _rsqrt(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "approx", "ftz")
    if kind == "f32":
        return _write32(o, i, mods, _inverse_root)
    if "ftz" in mods:
        return _seed(o, i, _inverse_root)
    a = o.read_float(i.operands[1], kind)
    o.write(i.operands[0], quiet64(_inverse_root(a), a))


def divide(o: Operands, i: Instruction) -> None:
    """div.approx and div.full of f32."""
    _, mods = form(i, "approx", "full", "ftz")

    def approximate(a: Value, b: Value) -> Value:
        # 1 / b is subnormal and flushed: the result is a * 0
        magnitude = size(b)
        large = magnitude.is_("ogt", 2.0**126) & magnitude.is_("olt", math.inf)
        zero = double(pattern(b) & (1 << 63))
        return large.select(a * zero, a * _reciprocal(b))

    _write32(o, i, mods, (lambda a, b: a * _reciprocal(b)) if "full" in mods else approximate, 2)


@writes(*FUNCTIONS)
def _function(o: Operands, i: Instruction) -> None:
    kind, mods = form(i, "approx", "ftz")
    numpy_function, _ = FUNCTIONS[i.opcode]
    if kind == "f32" and i.opcode == "ex2":
        return _power_of_two(o, i, mods)
    if kind == "f32":
        return _write32(o, i, mods, lambda a: function(i.opcode, "double", lambda b: applied(numpy_function, b), [a]))
    flush = _flushed_bfloat if kind.startswith("bf16") else flushed16
    read, encode = (bfloat_to_float, odd_to_bfloat) if kind.startswith("bf16") else (half_to_float, odd_to_half)

    def compute(a: Value) -> Value:
        if "ftz" in mods:
            a = flush(a)
        bits = encode(applied(numpy_function, wide(read(a))))
        return flush(bits) if "ftz" in mods else bits

    write16(o, i, kind, 1, compute)


def _power_of_two(o: Operands, i: Instruction, mods: set[str]) -> None:
    a = o.read_float(i.operands[1], "f32")
    result = function("ex2", "float", measured.exp2, [flushed(a) if "ftz" in mods else a])
    o.write_float(i.operands[0], flushed(result) if "ftz" in mods else result)


def _flushed_bfloat(bits: Value) -> Value:
    return (bits & 0x7F80).eq(0).select(bits & 0x8000, bits)
