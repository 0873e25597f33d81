"""Shared by all writers of lane-wise instructions: the registry, the reading of modifiers, and functions for long code.

A writer works on values with one element per lane of a vector, or, if all lanes of the warp have the same operands, on
single values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cudakit.sim.compiled.ir import Code, Value, lanes, like, mangled
from cudakit.sim.ptx.ir import Instruction, Operand
from cudakit.sim.values.lanewise import AFTER_TYPE, width

INTEGERS = frozenset(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
BITS = frozenset(("b16", "b32", "b64"))


class Unsupported(Exception):
    """The kernel needs something that is not compiled: the interpreter runs it."""


class Operands(Protocol):
    """The registers of the instruction that is being written."""

    code: Code
    # the number of lanes of the values; 0 for single values
    width: int

    def read(self, operand: Operand | None, kind: str) -> Value:
        """An operand as an integer of the type's width (i1 for a predicate)."""

    def read_float(self, operand: Operand | None, kind: str) -> Value:
        """An operand of type f32 or f64. A NaN may have any bits if it is the result of an f32 instruction."""

    def write(self, operand: Operand | None, value: Value) -> None:
        """Set a register to a value of its width."""

    def write_float(self, operand: Operand | None, value: Value) -> None:
        """Set a register to an f32 result. Its NaN becomes the canonical one before anything else can see its bits."""


Writer = Callable[[Operands, Instruction], None]
WRITERS: dict[str, Writer] = {}


def writes(*opcodes: str) -> Callable[[Writer], Writer]:
    def register(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(opcodes, writer))
        return writer

    return register


def modifiers_of(instruction: Instruction) -> list[str]:
    """The modifiers of an instruction; those that PTX has after the type come first."""
    found = list(instruction.modifiers)
    if found and found[-1] in AFTER_TYPE:
        found.insert(0, found.pop())
    return found


def form(instruction: Instruction, *allowed: str) -> tuple[str, set[str]]:
    """The type of an instruction, and its other modifiers, all of which must be ``allowed``."""
    found = modifiers_of(instruction)
    if not found:
        raise Unsupported(instruction.name)
    *others, kind = found
    if not set(others) <= set(allowed):
        raise Unsupported(instruction.name)
    return kind, set(others)


def expect_integer(instruction: Instruction, kind: str) -> None:
    if kind not in INTEGERS and kind not in BITS:
        raise Unsupported(instruction.name)


def twice(kind: str) -> str:
    """The integer type of twice the width."""
    return f"{kind[0]}{2 * width(kind)}"


def rounding(mods: set[str]) -> str:
    """The rounding among modifiers; to nearest if there is none."""
    return next(iter(mods & {"rn", "rz", "rm", "rp"}), "rn")


def combined(opcode: str, a: Value, b: Value) -> Value:
    return a & b if opcode == "and" else a | b if opcode == "or" else a ^ b


def intrinsic(name: str, *operands: Value) -> Value:
    """LLVM's function ``name`` of operands of one type."""
    first = operands[0]
    return first.code.call(f"llvm.{name}.{mangled(first.kind)}", first.kind, *operands)


def halves_of(packed: Value) -> Value:
    """A vector of the 16-bit halves of 32-bit values, the low one of each first."""
    return packed.bits(f"<{2 * max(lanes(packed.kind), 1)} x i16>")


def joined(halves: Value, like_this: Value) -> Value:
    """32-bit values from a vector of 16-bit halves; ``like_this``: a value of the type."""
    return halves.bits(like_this.kind)


def function(name: str, result: str, body: Callable[..., Value], operands: Sequence[Value]) -> Value:
    """``body(*operands)``, written once per kernel as a function ``name``: for code that is too long to be written for
    each instruction. ``result``: the type of an element of the result."""
    first = operands[0]
    module = first.code.module
    whole = f"{name}.{mangled(first.kind)}"
    kind = like(first.kind, result)
    if whole not in module.defined:
        given = {f"a{number}": operand.kind for number, operand in enumerate(operands)}
        with module.private_function(whole, kind, **given) as code:
            code.return_(body(*code.arguments.values()))
    return first.code.call(whole, kind, *operands)
