"""The lane-wise instructions: those whose result in a lane depends only on that lane's operands.

``compile_lanewise`` turns an instruction into a function of the values of ``flatten``'s sources, in their order (a
``Negated`` one already inverted), as arrays or numpy scalars in the ``storage`` of ``operand_types``. It returns the
value of the destination, or a tuple if there are several. Every result is a new array.
"""

from __future__ import annotations

from functools import lru_cache

from cudakit.sim.ptx.ir import (
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    Register,
    Special,
    UnsupportedPtx,
    Vector,
)
from cudakit.sim.ptx.operand_checks import special_fits
from cudakit.sim.ptx.types import fits, literal_fits
from cudakit.sim.values import approximations, bits, conversions, floats, integers, selection, video
from cudakit.sim.values.lanewise import BUILDERS, Form, Run, Spec, constant, flatten, storage, width

__all__ = [
    "compile_lanewise",
    "constant",
    "flatten",
    "operand_types",
    "storage",
]

# importing a family registers it
_FAMILIES = (approximations, bits, conversions, floats, integers, selection, video)


def compile_lanewise(instruction: Instruction) -> Run | None:
    """The function that executes an instruction; None if it is not lane-wise.

    Raises ``UnsupportedPtx`` for an unsupported instruction or modifier, ``PtxError`` for operands that do not fit.
    """
    if instruction.opcode not in BUILDERS:
        return None
    return _form(instruction).run


def operand_types(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The PTX types of a lane-wise instruction's flattened destinations and sources, as ``constant`` takes them."""
    form = _form(instruction)
    return form.destinations, form.sources


def _shape(opcode: str, operand: Operand | None) -> tuple[object, ...]:
    """The properties of an operand that a form may depend on: its kind, and the type of a register."""
    if isinstance(operand, Register):
        return ("register", operand.type)
    if isinstance(operand, Immediate):
        return ("immediate", operand.type, operand.bits if opcode == "lop3" else 0)
    if isinstance(operand, Vector):
        return ("vector", *(_shape(opcode, element) for element in operand.elements))
    if isinstance(operand, Special):
        return ("special", operand.name)
    return (type(operand).__name__,)


def _form(instruction: Instruction) -> Form:
    builder = BUILDERS.get(instruction.opcode)
    if builder is None:
        raise UnsupportedPtx(f"PTX line {instruction.line}: {instruction.name} is not lane-wise", instruction.line)
    if not instruction.modifiers:
        raise PtxError(f"{instruction.opcode} needs a type")
    key = (
        instruction.opcode,
        instruction.modifiers,
        tuple(_shape(instruction.opcode, operand) for operand in instruction.operands),
    )
    found = _keep(key)
    if not found:
        form = builder(Spec(instruction))
        _check(instruction, form)
        found.append(form)
    return found[0]


@lru_cache(maxsize=4096)
def _keep(key: tuple[object, ...]) -> list[Form]:
    """A cached list per key: empty until the key's form has been built without an error, then it contains the form."""
    return []


def _check(instruction: Instruction, form: Form) -> None:
    destinations, sources = flatten(instruction)
    if len(destinations) != len(form.destinations) or len(sources) != len(form.sources):
        raise PtxError(
            f"PTX line {instruction.line}: {instruction.name} takes {len(form.destinations)} destinations and "
            f"{len(form.sources)} sources, not {len(destinations)} and {len(sources)}: {instruction.text}",
            instruction.line,
        )
    for operand, kind in zip((*destinations, *sources), (*form.destinations, *form.sources), strict=True):
        wrong = _mismatch(instruction.opcode, operand, kind, form.destinations[0][0] in "us")
        if wrong:
            raise PtxError(
                f"PTX line {instruction.line}: {wrong}, expected {width(kind)} bits of .{kind}: {instruction.text}",
                instruction.line,
            )
    vector = any(isinstance(operand, Vector) for operand in instruction.operands)
    if vector and instruction.opcode not in ("mov", "cvt"):
        raise PtxError(f"{instruction.name} has no vectors")
    if instruction.operands[0] is None and instruction.opcode not in ("setp", "mov"):
        raise PtxError(f"the result of {instruction.name} cannot be _")


def _mismatch(opcode: str, operand: Operand | None, kind: str, integers: bool) -> str:
    """The reason why an operand does not fit a type; "" if it does. ``integers``: the result is an integer."""
    if isinstance(operand, Register):
        return "" if fits(operand.type, kind) else f"register {operand.name} has type .{operand.type}"
    if isinstance(operand, Immediate):
        noun = "a float literal" if operand.type in ("f32", "f64") else f"the integer literal {operand.bits}"
        return "" if literal_fits(operand.type, kind) else f"{noun} does not fit"
    if isinstance(operand, Negated):
        return "" if kind == "pred" else f"the predicate !{operand.register.name} does not fit"
    if isinstance(operand, Special) and (opcode == "mov" or (opcode == "cvt" and integers)):
        return "" if special_fits(operand.name, kind) else f"the special register {operand.name} does not fit"
    if isinstance(operand, Special):
        return f"the special register {operand.name} must be moved to a register first"
    return "" if operand is None or opcode == "mov" else "an address is not a register"
