"""The types of PTX, and which operands have which: the rules of ptxas.

A register of untyped bits fits every type of its width, and every register of that width fits a type of untyped bits.
Signed and unsigned integers fit each other; floats fit only their own type. A literal has no width: integers fit
integer types and bits, floats fit float types, and bits of their own width.
"""

from __future__ import annotations

import re
from itertools import pairwise

# types that only instructions have, with the types of registers that hold them
_PACKED: dict[str, tuple[str, ...]] = {
    "bf16": ("b16",),
    "bf16x2": ("b32",),
    "tf32": ("b32",),
    "e4m3x2": ("b16",),
    "e5m2x2": ("b16",),
}
_PACKED |= {"f16": ("b16", "f16"), "f16x2": ("b32", "f16x2")}
_PACKED |= {"u16x2": ("b32", "f16x2"), "s16x2": ("b32", "f16x2")}
_WIDTHS = {"pred": 1, "f16x2": 32, "bf16": 16, "bf16x2": 32, "tf32": 32, "u16x2": 32, "s16x2": 32}
_WIDTHS |= {"e4m3x2": 16, "e5m2x2": 16}
_INTEGERS = ("b", "u", "s")


def bits_of(kind: str) -> int:
    """Bits of a type; 1 for pred, 0 if it is unknown."""
    found = _WIDTHS.get(kind)
    if found is None:
        match = re.fullmatch(r"[bsu](8|16|32|64)|f(16|32|64)|b128", kind)
        found = _WIDTHS[kind] = int(kind[1:]) if match else 0
    return found


def fits(register: str, kind: str) -> bool:
    """Whether a register of one type can be an operand of another: pred, b32, f16x2 ..."""
    if register == kind:
        return True
    if kind in _PACKED:
        return register in _PACKED[kind]
    if bits_of(register) != bits_of(kind) or "pred" in (register, kind):
        return False
    if register == "f16x2":
        return kind[0] in _INTEGERS
    return "b" in (register[0], kind[0]) or (register[0] in _INTEGERS and kind[0] in _INTEGERS)


def fits_wider(register: str, kind: str) -> bool:
    """Like ``fits``, for instructions that take wider registers too: loads and stores."""
    wide, bits = bits_of(register), bits_of(kind)
    if wide == bits or "pred" in (register, kind):
        return fits(register, kind)
    if wide < bits or wide > 64:
        return False
    return "b" in (register[0], kind[0]) or (register[0] in _INTEGERS and kind[0] in _INTEGERS)


def literal_fits(literal: str, kind: str) -> bool:
    """Whether a literal ("s64", "u64", "f32" or "f64") can be an operand of a type."""
    if kind in _PACKED:
        return False
    if literal in ("f32", "f64"):
        return kind in ("f32", "f64") or kind == f"b{literal[1:]}"
    return kind == "pred" or kind[0] in _INTEGERS


def vector_type(elements: list[str]) -> str:
    """The type of a vector of registers and literals; "" if they cannot be in one vector. ptxas compares each element
    only with the one before it."""
    found = elements[0]
    for before, kind in pairwise(elements):
        if kind == before:
            continue
        if bits_of(kind) != bits_of(before):
            return ""
        if kind[0] == "b" or before[0] == "b":
            found = f"b{bits_of(kind)}"
        elif not (kind[0] in _INTEGERS and before[0] in _INTEGERS):
            return ""
    return found
