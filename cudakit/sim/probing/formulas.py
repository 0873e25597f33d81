"""The float instructions as functions of float64 values, for the shadow of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program
from cudakit.sim.probing.operands import FORMATS, PACKED, literal_of, values_of
from cudakit.sim.ptx.ir import Instruction, Register
from cudakit.sim.values.arithmetic import operand_types

Formula = Callable[..., Any]

_FORMULAS: dict[str, Formula] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "mad": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "neg": lambda a: -a,
    "abs": np.abs,
    "cvt": lambda a: a,
    "copysign": lambda a, b: np.copysign(b, a),
}
_TO_INTEGER = frozenset(("rni", "rzi", "rmi", "rpi"))
# integers of 8 bits are numbers of each format
_INTEGERS: dict[str, Any] = {
    f"{sign}{bits}": np.dtype(f"{'iu'[sign == 'u']}{bits // 8}") for sign in "su" for bits in (16, 32, 64)
}
# adding one of these and subtracting it again rounds to an integer; the numbers are near 1.5 * 2**23 and 1.5 * 2**52
_MAGIC = ((0x4B400000, 0x100), (0x4B000000, 0))
_MAGIC64 = ((0x4338000000000000, 0x1000), (0x4330000000000000, 1 << 31))


def formula_of(program: Program, instruction: Instruction) -> Formula | None:
    """The formula of a lane-wise instruction between float types, or from integers to floats; None if its result starts
    a new shadow: it is rounded to an integer, or is not the result of numbers."""
    found = _FORMULAS.get(instruction.opcode)
    if found is None or not _TO_INTEGER.isdisjoint(instruction.modifiers):
        return None
    results, sources = operand_types(instruction)
    if is_conversion(instruction):
        return None if _is_converted_back(program, instruction) else found
    if not all(PACKED.get(kind, kind) in FORMATS for kind in (results[0], *sources)):
        return None
    if instruction.opcode in ("add", "sub", "fma") and _rounds(program, instruction):
        return None
    modifiers = instruction.modifiers
    if "sat" in modifiers:
        return lambda *given: np.clip(found(*given), 0.0, 1.0)
    if "relu" in modifiers:
        return lambda *given: np.maximum(found(*given), 0.0)
    return found


def is_conversion(instruction: Instruction) -> bool:
    """Whether an instruction converts integers to floats, which may round."""
    if instruction.opcode != "cvt":
        return False
    (result, *_), sources = operand_types(instruction)
    return PACKED.get(result, result) in FORMATS and all(kind in _INTEGERS for kind in sources)


def operand_values(kind: str, bits: Any) -> tuple[Array, ...]:
    """Operands of a float or integer type as float64, as `values_of` returns them."""
    if kind not in _INTEGERS:
        return values_of(kind, bits)
    return (np.asarray(bits).view(_INTEGERS[kind]).astype(np.float64),)


def _is_converted_back(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction converts the result to an integer: the kernel then expects the rounding of the first
    conversion, as it does if it splits an integer into a sum of floats."""
    result = instruction.operands[0]
    return any(
        other.opcode == "cvt"
        and not _TO_INTEGER.isdisjoint(other.modifiers)
        and isinstance(result, Register)
        and isinstance(other.operands[1], Register)
        and other.operands[1].name == result.name
        for other in program.function.instructions
    )


def _rounds(program: Program, instruction: Instruction) -> bool:
    """Whether an addition of a literal rounds to an integer."""
    operands = instruction.operands[-1:] if instruction.opcode == "fma" else instruction.operands[1:]
    for operand in operands:
        literal = literal_of(program, operand)
        if literal is None:
            continue
        bits, magic = literal.bits & 0x7FFFFFFF, _MAGIC
        if literal.type == "f64":
            bits, magic = literal.bits & 0x7FFFFFFFFFFFFFFF, _MAGIC64
        if any(abs(bits - start) <= spread for start, spread in magic):
            return True
    return False
