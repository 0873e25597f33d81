"""The registers of a kernel and its functions from which addresses of global memory are computed.

The search goes backwards from the addresses: through instructions, parameters and results of calls, and through shared
and local memory. In memory it does not distinguish places: if an address depends on a value loaded from shared memory,
it may depend on all values that are stored there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cudakit.sim.lockstep.program import Program, reads_of
from cudakit.sim.probing.operands import PARAMETERS, elements_of, writers
from cudakit.sim.ptx.ir import Address, Instruction, Operand, Register, Symbol
from cudakit.sim.ptx.opcodes import row_of, spaces_of

# the name of a function, and of one of its registers or parameters
_Node = tuple[str, str]
_FOLLOWED = ("shared", "local")


def in_global(instruction: Instruction) -> bool:
    """Whether an instruction may access global memory."""
    spaces = spaces_of(instruction)
    return row_of(instruction).memory is not None and (not spaces or "global" in spaces)


def followed_spaces(instruction: Instruction) -> frozenset[str]:
    """Which of the memories that are followed a load, store or atomic may access."""
    if instruction.opcode not in ("ld", "ldu", "st", "atom", "red"):
        return frozenset()
    spaces = {space.split("::")[0] for space in spaces_of(instruction)}
    return frozenset(_FOLLOWED if not spaces else spaces.intersection(_FOLLOWED))


def parameter_of(instruction: Instruction) -> Address | None:
    """The address of the parameter that an instruction loads or stores; None for other instructions."""
    if instruction.opcode not in ("ld", "st") or PARAMETERS.isdisjoint(spaces_of(instruction)):
        return None
    address = instruction.operands[1 if instruction.opcode == "ld" else 0]
    return address if isinstance(address, Address) and isinstance(address.base, Symbol) else None


def address_slices(programs: Iterable[Program]) -> dict[str, frozenset[str]]:
    """By function: the names of the registers from which addresses of global memory are computed."""
    search = _Search({program.name: program for program in programs})
    return search.slices()


class _Search:
    def __init__(self, programs: dict[str, Program]) -> None:
        self.programs = programs
        self.found: set[_Node] = set()
        self.pending: list[_Node] = []
        # by parameter or result of a function: the variables that calls pass to it, or that receive it
        self.passed: dict[_Node, list[_Node]] = defaultdict(list)
        # by parameter: the values that are stored to it
        self.stored: dict[_Node, list[_Node]] = defaultdict(list)
        # by memory: the values that are stored to it
        self.kept: dict[str, list[_Node]] = defaultdict(list)
        for program in programs.values():
            for instruction in program.function.instructions:
                self._enter(program, instruction)

    def slices(self) -> dict[str, frozenset[str]]:
        while self.pending:
            node = self.pending.pop()
            if node not in self.found:
                self.found.add(node)
                self.pending += [*self.passed[node], *self.stored[node]]
                for writer in writers(self.programs[node[0]]).get(node[1], ()):
                    self._trace(node[0], writer)
        names: dict[str, set[str]] = {name: set() for name in self.programs}
        for program, name in self.found:
            names[program].add(name)
        return {name: frozenset(found) for name, found in names.items()}

    def _enter(self, program: Program, instruction: Instruction) -> None:
        if instruction.opcode == "call":
            self._enter_call(program, instruction)
        if in_global(instruction):
            bases = [o.base for o in instruction.operands if isinstance(o, Address)]
            self.pending += _nodes(program.name, bases)
        if instruction.opcode == "st":
            values = _nodes(program.name, elements_of(instruction.operands[1]))
            for space in followed_spaces(instruction):
                self.kept[space] += values
            parameter = parameter_of(instruction)
            if parameter is not None:
                self.stored[program.name, str(getattr(parameter.base, "name", ""))] += values

    def _enter_call(self, program: Program, instruction: Instruction) -> None:
        """Connect the variables of a call with those of the functions that it may call."""
        returns, callee, arguments = instruction.operands[:3]
        called = [callee.name] if isinstance(callee, Symbol) else list(self.programs)
        for name in called:
            if name in self.programs:
                function = self.programs[name].function
                for variable, theirs in zip(_variables(arguments), function.params, strict=False):
                    self.passed[name, theirs.name].append((program.name, variable))
                for variable, theirs in zip(_variables(returns), function.returns, strict=False):
                    self.passed[program.name, variable].append((name, theirs.name))

    def _trace(self, program: str, writer: Instruction) -> None:
        """Continue with the values from which an instruction computes a register."""
        parameter = parameter_of(writer)
        if parameter is not None:
            self.pending.append((program, str(getattr(parameter.base, "name", ""))))
        elif row_of(writer).memory is not None:
            for space in followed_spaces(writer) if writer.opcode != "atom" else ():
                self.pending += self.kept[space]
        elif writer.opcode == "shfl":
            self.pending += _nodes(program, writer.operands[1:2])
        else:
            self.pending += _nodes(program, reads_of(writer))


def _nodes(program: str, operands: Iterable[Operand | None]) -> list[_Node]:
    return [(program, operand.name) for operand in operands if isinstance(operand, Register)]


def _variables(operands: Operand | None) -> list[str]:
    """The names of the parameters of a call; "" for a literal."""
    given = operands if isinstance(operands, tuple) else ()
    return [operand.name if isinstance(operand, (Symbol, Register)) else "" for operand in given]
