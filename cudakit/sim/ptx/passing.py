"""Arguments of calls: their check against the callee's parameters, and registers that are passed directly.

A call passes variables of ``.param``. PTX may also have registers and literals there, and functions may have parameters
in registers; both are rewritten to variables, with a store before and a load after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudakit.sim.ptx.declarations import type_bytes
from cudakit.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Prototype,
    PtxError,
    PtxFunction,
    Register,
    Symbol,
    Variable,
)
from cudakit.sim.ptx.types import fits, literal_fits


def argument_mismatch(actual: Variable, formal: Variable) -> str:
    """The reason why a variable cannot be passed as a parameter; "" if it can."""
    array, wanted = (v.size != type_bytes(v.type) for v in (actual, formal))
    if array != wanted or actual.size != formal.size or not (array or fits(actual.type, formal.type)):
        return f"is {_described(actual)}, the parameter is {_described(formal)}"
    return "" if actual.align == formal.align else f"is aligned to {actual.align}, the parameter to {formal.align}"


def _described(variable: Variable) -> str:
    element = type_bytes(variable.type) or 1
    return f".{variable.type}" + (f"[{variable.size // element}]" if variable.size != element else "")


def value_mismatch(operand: Operand | None, formal: Variable, written: bool) -> str:
    """The reason why a register or literal cannot be passed as a parameter; "" if it can."""
    if formal.size != type_bytes(formal.type):
        return f"is one value, the parameter is {_described(formal)}"
    if isinstance(operand, Register):
        fit = operand.type != "pred" and fits(operand.type, formal.type)
        return "" if fit else f"is a register of .{operand.type}, the parameter is .{formal.type}"
    if operand is None and written:
        return ""
    if isinstance(operand, Immediate) and not written:
        return "" if literal_fits(operand.type, formal.type) else f"is a literal that does not fit .{formal.type}"
    return "is not a variable, a register or a literal"


def moved(register: Operand | None, parameter: Variable, store: bool, like: Instruction) -> Instruction:
    """The ``st.param`` or ``ld.param`` of a value in a parameter, at the place of another instruction and with its
    guard."""
    place = Address(Symbol(parameter.name), 0)
    operands = (place, register) if store else (register, place)
    opcode = "st" if store else "ld"
    return Instruction(opcode, ("param", parameter.type), operands, like.guard, like.location, like.line, like.text)


def call_shape(name: str, prototype: Prototype) -> PtxFunction:
    """A function without a body, with the parameters of a prototype."""
    return PtxFunction(name, False, prototype.params, prototype.returns, body=False)


def linked(
    call: Instruction, callee: PtxFunction, variables: Mapping[str, Variable]
) -> tuple[list[Instruction], list[Variable]]:
    """A call of a known function as instructions that only pass variables: the stores, the call and the loads; and the
    new variables. ``variables``: those of the caller, by name. Raises PtxError if the arguments do not fit."""
    before: list[Instruction] = []
    after: list[Instruction] = []
    made: list[Variable] = []
    sides = []
    for formals, operands, written in (
        (callee.returns, call.operands[0], True),
        (callee.params, call.operands[2], False),
    ):
        actuals = operands if isinstance(operands, tuple) else ()
        noun = "result" if written else "argument"
        if len(actuals) != len(formals):
            raise PtxError(f"{callee.name} has {len(formals)} {noun}s, got {len(actuals)}")
        passed: list[Operand | None] = []
        for number, (actual, formal) in enumerate(zip(actuals, formals, strict=True), 1):
            variable = variables.get(actual.name) if isinstance(actual, Symbol) else None
            if variable is not None and variable.space == "param":
                wrong = argument_mismatch(variable, formal)
            else:
                wrong = value_mismatch(actual, formal, written)
                name = f"{callee.name}#{len(variables) + len(made)}"
                variable = Variable(name, "param", formal.align, formal.type, formal.size)
                made.append(variable)
                if not written:
                    before.append(moved(actual, variable, True, call))
                elif actual is not None:
                    after.append(moved(actual, variable, False, call))
            if wrong:
                raise PtxError(f"{noun} {number} of {callee.name} {wrong}")
            passed.append(Symbol(variable.name))
        sides.append(tuple(passed))
    call.operands = (sides[0], call.operands[1], sides[1], *call.operands[3:])
    return [*before, call, *after], made


class RegisterParameters:
    """The parameters of a function that are in registers: they are loaded from variables at its start, and stored
    before it returns."""

    def __init__(self, function: PtxFunction) -> None:
        self.taken = self._replaced(function.params)
        self.returned = self._replaced(function.returns)

    @staticmethod
    def _replaced(variables: Sequence[Variable]) -> list[tuple[Register, Variable]]:
        found = []
        for variable in variables:
            if variable.space == "reg":
                register = Register(variable.name, variable.type)
                variable.name, variable.space = f"{variable.name}#param", "param"
                found.append((register, variable))
        return found

    def loads(self, line: int) -> list[Instruction]:
        """The instructions that begin the function."""
        opening = Instruction("ld", (), (), line=line)
        return [moved(register, variable, False, opening) for register, variable in self.taken]

    def stores(self, before: Instruction) -> list[Instruction]:
        """The instructions before a return."""
        return [moved(register, variable, True, before) for register, variable in self.returned]
