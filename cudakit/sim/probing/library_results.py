"""Results that functions of the math library select, instead of computing them: log(0) = -inf, pow(-1, 0.5) = NaN."""

from __future__ import annotations

from collections.abc import Sequence

from cudakit.sim.lockstep.program import Program, reads_of
from cudakit.sim.probing.operands import literal_of, writers
from cudakit.sim.ptx.ir import Immediate, Instruction, Negated, Operand, Register
from cudakit.sim.ptx.opcodes import row_of

_SIGN = {"f32": 1 << 31, "f64": 1 << 63}
_INFINITY = {"f32": 0x7F800000, "f64": 0x7FF0000000000000}


def selected_nan(instruction: Instruction) -> list[bool]:
    """For a selp, whether its first and its second operand is a NaN; for a mov, whether it moves one."""
    operands = instruction.operands[1:3] if instruction.opcode == "selp" else instruction.operands[1:2]
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind not in _INFINITY:
        return []
    # a register that holds a NaN has been noted when the NaN was moved there
    literals = [operand if isinstance(operand, Immediate) else None for operand in operands]
    return [one is not None and one.bits & ~_SIGN[kind] > _INFINITY[kind] for one in literals]


def selected_infinity(program: Program, instruction: Instruction) -> tuple[bool, str] | None:
    """For a selp that makes an infinity as a function of the math library: which of its operands it is (True: the
    first), and its text; None for other instructions."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind not in _INFINITY:
        return None
    yes, no, predicate = instruction.operands[1:4]
    compared = _writer(program, predicate.register if isinstance(predicate, Negated) else predicate)
    if compared is None or compared.opcode != "setp" or _INFINITY.keys().isdisjoint(compared.modifiers):
        return None
    against = literal_of(program, compared.operands[2])
    if against is None or against.bits & ~_SIGN[against.type if against.type in _SIGN else "f32"]:
        return None
    for first, (operand, other) in ((True, (yes, no)), (False, (no, yes))):
        literal, alternative = literal_of(program, operand), literal_of(program, other)
        if literal is None or literal.bits & ~_SIGN[kind] != _INFINITY[kind]:
            continue
        if alternative is not None:
            return (first, "pow() = inf") if literal.bits == _INFINITY[kind] and alternative.bits == 0 else None
        # the logarithm itself is computed from the number that is compared with 0
        inputs = _inputs(program, other)
        if "eq" not in compared.modifiers or inputs.isdisjoint(_inputs(program, compared.operands[1])):
            return None
        if literal.bits & _SIGN[kind]:
            return first, "log(0.0) = -inf"
        # compilers negate both operands instead of the result
        return (first, "-log(0.0) = inf") if _has_logarithm(program, inputs) else None
    return None


def _has_logarithm(program: Program, names: set[str]) -> bool:
    """Whether one of some registers is a logarithm: it is x * inf + inf for an infinite or NaN x."""
    return any(
        writer.opcode == "fma"
        and _is_infinity(program, writer.operands[2])
        and _is_infinity(program, writer.operands[3])
        for name in names
        for writer in writers(program).get(name, ())
    )


def _is_infinity(program: Program, operand: Operand | None) -> bool:
    """Whether an operand is the literal +inf."""
    literal = literal_of(program, operand)
    return literal is not None and literal.bits == _INFINITY["f64" if literal.type == "f64" else "f32"]


def is_exponential(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction makes the infinity of exp of a double that is too large: x + inf, or 0 if x < 0."""
    if instruction.opcode != "add" or "f64" not in instruction.modifiers:
        return False
    result, _, literal = instruction.operands[:3]
    if not _is_infinity(program, literal) or not isinstance(result, Register):
        return False
    for user in program.function.instructions:
        if user.opcode == "selp" and "f64" in user.modifiers and result.name in _names(user.operands[1:3]):
            others = [literal_of(program, o) for o in user.operands[1:3]]
            return any(o is not None and not o.bits & ~_SIGN["f64"] for o in others)
    return False


def _names(operands: Sequence[Operand | None]) -> list[str]:
    return [operand.name for operand in operands if isinstance(operand, Register)]


def is_pole(instruction: Instruction) -> bool:
    """Whether an instruction makes the infinity of pow(0, -1) from the bits of 0."""
    literal = instruction.operands[2] if instruction.opcode == "xor" else None
    return isinstance(literal, Immediate) and literal.bits == _INFINITY["f32"]


def _writer(program: Program, register: Operand | None) -> Instruction | None:
    """The only instruction that writes a register."""
    found = writers(program).get(register.name, []) if isinstance(register, Register) else []
    return found[0] if len(found) == 1 else None


def _inputs(program: Program, operand: Operand | None) -> set[str]:
    """The registers from which an operand is computed, up to those that are loaded."""
    pending = [operand.name] if isinstance(operand, Register) else []
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found and literal_of(program, Register(name, "")) is None:
            found.add(name)
            for writer in writers(program).get(name, ()):
                if row_of(writer).memory is None:
                    pending += [o.name for o in reads_of(writer) if isinstance(o, Register)]
    return found
