"""The float instructions as functions of float64 values, for the shadow of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.program import Program
from cudakit.sim.probing.operands import FORMATS, PACKED, literal_of
from cudakit.sim.ptx.ir import Instruction
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
# adding one of these and subtracting it again rounds to an integer; the numbers are near 1.5 * 2**23 and 1.5 * 2**52
_MAGIC = ((0x4B400000, 0x100), (0x4B000000, 0))
_MAGIC64 = ((0x4338000000000000, 0x1000), (0x4330000000000000, 1 << 31))


def formula_of(program: Program, instruction: Instruction) -> Formula | None:
    """The formula of a lane-wise instruction between float types; None if its result starts a new shadow: it is
    rounded to an integer, or is not the result of float operands."""
    found = _FORMULAS.get(instruction.opcode)
    if found is None or not _TO_INTEGER.isdisjoint(instruction.modifiers):
        return None
    results, sources = operand_types(instruction)
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
