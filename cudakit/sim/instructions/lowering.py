"""From PTX instructions to blocks of Python: the compiler of one function.

Each instruction family contributes a builder: a function that takes the compiler and an instruction and returns lines
of Python, in which ``r`` is the fragment's registers (a list by slot) and ``f`` the fragment. The lines of a basic
block become one Python function, made when the program first runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.sim.instructions.merging import merged_accesses
from cudakit.sim.instructions.params import addressed, keep_param
from cudakit.sim.lockstep.branches import find_asides
from cudakit.sim.lockstep.clusters import shared_address
from cudakit.sim.lockstep.fragment import Site, round_up
from cudakit.sim.lockstep.program import (
    BRANCH,
    CALL,
    ENDS,
    EXIT,
    FALL,
    JUMP,
    RESERVED_SHARED,
    RETURN,
    SWITCH,
    Block,
    Guarded,
    Program,
    find_spins,
    liveness,
    reads_of,
    writes_of,
)
from cudakit.sim.ptx.ir import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    PtxError,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Variable,
    Vector,
    refused,
)
from cudakit.sim.ptx.unsupported import unsupported
from cudakit.sim.values.lanewise import constant, storage

if TYPE_CHECKING:
    from cudakit.sim.loading import LoadedModule

Builder = Callable[["Compiler", Instruction], "list[str]"]

# fewest and most operands of what is not lane-wise
OPERANDS: dict[str, tuple[int, int]] = {"ld": (2, 3), "ldu": (2, 2), "st": (2, 3), "mov": (2, 2), "cvta": (2, 2)}
OPERANDS |= {"isspacep": (2, 2), "mapa": (3, 3), "getctarank": (2, 2), "shfl": (4, 5), "vote": (2, 3), "match": (3, 3)}
OPERANDS |= {"redux": (3, 3), "elect": (2, 2), "activemask": (1, 1), "bar": (0, 4), "barrier": (0, 4)}
OPERANDS |= {"atom": (3, 5), "red": (2, 3), "prefetch": (1, 1), "prefetchu": (1, 1), "nanosleep": (1, 1)}
OPERANDS |= {"discard": (2, 2), "applypriority": (2, 2), "createpolicy": (1, 4), "membar": (0, 0), "fence": (0, 0)}
OPERANDS |= {"setmaxnreg": (1, 1), "griddepcontrol": (0, 0), "pmevent": (1, 1), "trap": (0, 0), "brkpt": (0, 0)}
OPERANDS |= {"bra": (1, 1), "brx": (2, 2), "ret": (0, 0), "exit": (0, 0)}

# all modifiers that control flow may have
_FLOW: dict[str, tuple[tuple[str, ...], ...]] = dict.fromkeys(("bra", "ret", "call"), ((), ("uni",)))
_FLOW |= {"brx": (("idx",), ("idx", "uni"))} | dict.fromkeys(("exit", "trap", "brkpt"), ((),))

_SIGNED = {"s8": np.int8, "s16": np.int16, "s32": np.int32}


class Compiler:
    """Compiles one function. Builders use ``source``, ``store``, ``bind`` and ``site``."""

    def __init__(self, module: LoadedModule, function: Function, builders: dict[str, Builder]) -> None:
        self.module = module
        self.function = function
        self.builders = builders
        self.program = Program(function)
        self.slots = self.program.slots
        self.kinds = self.program.slot_kinds
        self.names = 0
        self._merged: dict[int, int] | None = None
        self._read: set[str] | None = None
        self._used: set[str] | None = None
        self.variables = {v.name: v for v in function.variables}
        self.call_params: dict[str, Variable] = {}
        for name, kind in function.registers.items():
            self._add_slot(name, kind, np.zeros((), storage(kind))[()])
        params = [v for v in function.variables if v.space == "param"]
        if not function.entry:
            params += [*function.params, *function.returns]
        for variable in params:
            self.call_params[variable.name] = variable
            self._add_slot(variable.name, "param", np.zeros((), f"V{round_up(max(variable.size, 1), 8)}")[()])
        if not function.entry:
            self.program.params = tuple(self.slots[p.name] for p in function.params)
            self.program.returns = tuple(self.slots[p.name] for p in function.returns)
        self.param_offsets: dict[str, int] = {}
        offset = 0
        if function.entry:
            for param in function.params:
                offset = round_up(offset, max(param.align, 1))
                self.param_offsets[param.name] = offset
                offset += param.size
        local = 0
        for variable in function.variables:
            if variable.space == "local":
                local = round_up(local, max(variable.align, 1))
                self.program.local_offsets[variable.name] = local
                local += variable.size
        # parameters whose address is taken live in local memory from the start: name to offset
        self.taken: dict[str, int] = {}
        names = {} if function.entry else {p.name: p for p in function.params}
        for instruction in function.instructions:
            for name in addressed(instruction):
                if name in names and name not in self.taken:
                    local = round_up(local, 16)
                    self.taken[name] = local
                    local += round_up(names[name].size, 8)
        self.program.local_offsets.update(self.taken)
        self.program.local_bytes = round_up(local, 16)

    def _add_slot(self, name: str, kind: str, initial: Any) -> None:
        self.slots[name] = len(self.kinds)
        self.kinds.append(kind)
        self.program.template.append(initial)

    # ---- what builders use ----

    def bind(self, value: Any) -> str:
        """A name for an object in the generated code."""
        self.names += 1
        name = f"k{self.names}"
        self.program.namespace[name] = value
        return name

    def site(self, instruction: Instruction, kind: str) -> Site:
        return self.module.new_site(instruction, kind)

    def merged_width(self, instruction: Instruction, size: int) -> int:
        """The bytes of what ptxas makes of an access of ``size`` bytes, with others; 0 where another of them counts."""
        if self._merged is None:
            self._merged = merged_accesses(self.function)
        return self._merged.get(id(instruction), size)

    def is_read(self, register: Operand | None) -> bool:
        """Whether any instruction of the function reads a register."""
        if self._read is None:
            self._read = {o.name for i in self.function.instructions for o in reads_of(i) if isinstance(o, Register)}
        return isinstance(register, Register) and register.name in self._read

    def is_used(self, register: Operand | None) -> bool:
        """Whether an instruction does more with a register's value than to store it."""
        if self._used is None:
            self._used = set()
            for instruction in self.function.instructions:
                read = {o.name for o in reads_of(instruction) if isinstance(o, Register)}
                if instruction.opcode == "st":
                    value = instruction.operands[1]
                    stored = value.elements if isinstance(value, Vector) else (value,)
                    read -= {o.name for o in stored if isinstance(o, Register)}
                self._used |= read
        return isinstance(register, Register) and register.name in self._used

    def slot(self, register: Register) -> int:
        return self.slots[register.name]

    def source(self, operand: Operand | None, kind: str) -> str:
        """An expression for an operand's value in the storage of a PTX type."""
        if isinstance(operand, Register):
            text = f"r[{self.slot(operand)}]"
            have = storage(operand.type)
        elif isinstance(operand, Negated):
            return f"~r[{self.slot(operand.register)}]"
        elif isinstance(operand, Immediate):
            return self.bind(constant(operand, kind))
        elif isinstance(operand, Special):
            getter, have = self.module.special(operand.name)
            if operand.name.startswith(RESERVED_SHARED):
                self.program.symbols.add(RESERVED_SHARED)
            text = f"{self.bind(getter)}(f)"
        elif isinstance(operand, Symbol):
            text, have = self.symbol(operand.name), np.dtype(np.uint64)
        else:
            raise PtxError(f"operand {operand!r} has no value")
        want = storage(kind)
        return text if have == want else f"{text}.astype({self.bind(want)})"

    def symbol(self, name: str) -> str:
        """An expression for the address of a variable within its own space, a uint64."""
        variable = self.variables.get(name)
        program = self.program
        if variable is None:
            variable = self.module.module.variables.get(name)
        if name in self.param_offsets:
            return self.bind(np.uint64(self.param_offsets[name]))
        if name in self.taken:
            variable = self.call_params[name]
        if variable is None:
            if name in self.module.module.functions:
                raise UnsupportedPtx(
                    f"the address of the function {name!r}: function pointers and indirect calls are not supported"
                )
            raise UnsupportedPtx(f"{name!r} as an operand: this symbol is not supported")
        if variable.space == "shared":
            program.symbols.add(name)
            return f"{self.bind(shared_address(name))}(f)"
        if variable.space == "local" or name in self.taken:
            return f"{self.bind(np.uint64)}(f.frames[-1].local_base + {program.local_offsets[name]})"
        if variable.space in ("global", "const"):
            return self.bind(np.uint64(self.module.place_variable(variable)))
        raise UnsupportedPtx(f"{name!r} as an operand: the address of a .{variable.space} variable is not supported")

    def address(self, operand: Operand | None, instruction: Instruction) -> tuple[str, int]:
        """An expression for the base of an address (a numpy integer), and the constant offset in bytes."""
        if isinstance(operand, Symbol):
            operand = Address(operand, 0)
        if not isinstance(operand, Address):
            raise refused(instruction, "operand is not an address")
        base = operand.base
        if base is None:
            return self.bind(np.uint64(0)), operand.offset
        if isinstance(base, Immediate):
            return self.bind(np.uint64(base.bits & 0xFFFFFFFFFFFFFFFF)), operand.offset
        if isinstance(base, Register):
            return f"r[{self.slot(base)}]", operand.offset
        return self.source(base, "u64"), operand.offset

    def store(self, register: Operand | None, kind: str, value: str) -> list[str]:
        """Lines that write a value, held in the storage of a PTX type, to a register."""
        if register is None:
            return []
        if not isinstance(register, Register):
            raise PtxError(f"{register!r} is not a register")
        have, want = storage(kind), storage(register.type)
        if have != want:
            if kind in _SIGNED and want.itemsize > have.itemsize:
                signed = self.bind(np.dtype(f"i{have.itemsize}"))
                wide = self.bind(np.dtype(f"i{want.itemsize}"))
                value = f"{value}.view({signed}).astype({wide}).view({self.bind(want)})"
            else:
                value = f"{value}.astype({self.bind(want)})"
        return [f"r[{self.slot(register)}] = {value}"]

    def store_all(self, registers: Sequence[Operand | None], kinds: Sequence[str], value: str) -> list[str]:
        """Like ``store``, for a tuple of values."""
        lines = [f"t = {value}"]
        for number, (register, kind) in enumerate(zip(registers, kinds, strict=True)):
            lines.extend(self.store(register, kind, f"t[{number}]"))
        return lines

    # ---- compiling ----

    def compile(self) -> Program:
        function, program = self.function, self.program
        labels: dict[int, list[str]] = {}
        for label, place in function.labels.items():
            labels.setdefault(place, []).append(label)
        targets: dict[str, int] = {}
        blocks = program.blocks
        current = self._block()
        if self.taken:
            current.lines.extend(self._keep_parameters())
            current = self._block()
        for place, instruction in enumerate(function.instructions):
            try:
                syncs = self._checked(instruction)
                # lanes that have met stay together to the end of a block
                meets = syncs is not None and syncs is not current.sync
                if place in labels or meets or instruction.opcode in ("bar", "barrier"):
                    current = self._next(current)
                    for label in labels.get(place, ()):
                        targets[label] = len(blocks) - 1
                if instruction.opcode in ENDS and "warp" not in instruction.modifiers:
                    current = self._end(current, instruction)
                    continue
                if syncs is not None:
                    current.sync = syncs
                current.instructions.append(instruction)
                current.lines.extend(self._lines(instruction))
            except PtxError as error:
                raise self._explained(error, instruction) from None
        if current.instructions or len(function.instructions) in labels:
            current = self._next(current)
            for label in labels.get(len(function.instructions), ()):
                targets[label] = len(blocks) - 1
        current.kind = RETURN
        for index, block in enumerate(blocks):
            block.count = len(block.instructions)
            if block.fall < 0:
                block.fall = index + 1
            if block.after is not None:
                block.targets = tuple(targets[name] for name in block.after)
                block.target = block.targets[0]
        find_spins(program)
        program.live = liveness(program, self.slots)
        find_asides(program)
        return program

    def _keep_parameters(self) -> list[str]:
        """Lines that put the parameters whose address is taken where it says."""
        lines = []
        for name, offset in self.taken.items():
            taker = next(i for i in self.function.instructions if name in addressed(i))
            keep = keep_param(self.site(taker, "local store"), offset, self.call_params[name].size)
            lines.append(f"{self.bind(keep)}(f, r[{self.slots[name]}])")
        self.program.kept = tuple(self.slots[name] for name in self.taken)
        return lines

    def _block(self) -> Block:
        block = Block(self.module.new_block())
        self.program.blocks.append(block)
        return block

    def _next(self, current: Block) -> Block:
        """A new block after the current one, unless that one is still empty."""
        if not current.instructions and current.kind == FALL and current.sync is None:
            return current
        return self._block()

    def _checked(self, instruction: Instruction) -> Callable[[Any, Any], Any] | None:
        """Refuse what is not executed, or has operands too few or too many; else the member mask of an instruction by
        which the lanes of a warp wait for each other."""
        reason = unsupported(instruction)
        if reason is not None:
            raise refused(instruction, reason)
        least, most = OPERANDS.get(instruction.opcode, (0, 99))
        if not least <= len(instruction.operands) <= most:
            due = f"{least}" if least == most else f"{least} to {most}"
            raise PtxError(f"{instruction.name} takes {due} operands, not {len(instruction.operands)}")
        if instruction.modifiers not in _FLOW.get(instruction.opcode, (instruction.modifiers,)):
            raise refused(instruction, "no such form is known")
        return self.module.sync_of(self, instruction)

    def _lines(self, instruction: Instruction) -> list[str]:
        builder = self.builders.get(instruction.opcode)
        lines = self.lanewise(instruction) if builder is None else builder(self, instruction)
        if instruction.guard is None or not lines:
            return lines
        return self._guarded(instruction, lines)

    def _explained(self, error: PtxError, instruction: Instruction) -> PtxError:
        """An error about an instruction with its PTX line, its kernel and its source."""
        said = str(error)
        if not error.line:
            said = f"PTX line {instruction.line}: {said}: {instruction.text.strip()}"
        explained = type(error)(said, instruction.line)
        explained.function, explained.location = self.function.title, instruction.location
        return self.module.explained(explained)

    def lanewise(self, instruction: Instruction) -> list[str]:
        """Lines for an instruction that the arithmetic executes; UnsupportedPtx where it does not."""
        found = self.module.lanewise(instruction)
        if found is None:
            raise refused(instruction)
        form, destinations, sources = found
        values = ", ".join(self.source(o, k) for o, k in zip(sources, form.sources, strict=True))
        call = f"{self.bind(form.run)}(({values}{',' if len(sources) == 1 else ''}))"
        if len(destinations) == 1:
            return self.store(destinations[0], form.destinations[0], call)
        return self.store_all(destinations, form.destinations, call)

    def _guarded(self, instruction: Instruction, lines: list[str]) -> list[str]:
        guard = instruction.guard
        if guard is None:
            return lines
        name = f"guarded_{self.names}"
        self.names += 1
        source = f"def {name}(f, r):\n" + "\n".join("    " + line for line in lines)
        reads = sorted({self.slots[o.name] for o in reads_of(instruction) if o.name in self.slots})  # type: ignore[union-attr]
        writes = sorted({self.slot(o) for o in writes_of(instruction)} | self._param_writes(instruction))
        # compiled on first use, in the namespace of the block that calls it
        self.program.namespace[name + "_source"] = source
        lazy = Guarded(source, name, self.program.namespace, self.slot(guard[0]), guard[1], reads, writes)
        return [f"{self.bind(lazy)}(f, r)"]

    def _param_writes(self, instruction: Instruction) -> set[int]:
        """Slots of call parameters that an instruction writes in part."""
        if instruction.opcode != "st" or not any(m.startswith("param") for m in instruction.modifiers):
            return set()
        operand = instruction.operands[0]
        base = operand.base if isinstance(operand, Address) else operand
        return {self.slots[base.name]} if isinstance(base, Symbol) and base.name in self.slots else set()

    def _end(self, current: Block, instruction: Instruction) -> Block:
        opcode = instruction.opcode
        if instruction.guard is not None and opcode != "bra":
            # skip over it where the guard does not hold
            register, negated = instruction.guard
            current.kind, current.slot, current.negated = BRANCH, self.slot(register), not negated
            current.instructions.append(instruction)
            current.target = len(self.program.blocks) + 1
            current = self._block()
        current.instructions.append(instruction)
        if opcode == "bra":
            target = instruction.operands[0]
            if not isinstance(target, Label):
                raise refused(instruction, "the target is not a label")
            current.after = (target.name,)
            current.kind = JUMP
            if instruction.guard is not None:
                register, negated = instruction.guard
                current.kind, current.slot, current.negated = BRANCH, self.slot(register), negated
        elif opcode == "brx":
            index, table = instruction.operands[0], instruction.operands[1]
            if not isinstance(index, Register) or not isinstance(table, Label):
                raise refused(instruction)
            current.kind, current.slot = SWITCH, self.slot(index)
            current.after = tuple(self.function.branch_targets[table.name])
        elif opcode == "exit" or (opcode == "ret" and self.function.entry):
            current.kind = EXIT
        elif opcode == "ret":
            current.kind = RETURN
        elif opcode == "call":
            self._call(current, instruction)
        else:
            self.module.barrier(self, current, instruction)
        return self._block()

    def _call(self, current: Block, instruction: Instruction) -> None:
        returns, callee, params = instruction.operands[:3]
        if not isinstance(callee, Symbol):
            raise refused(
                instruction,
                "indirect calls, by which function pointers and virtual functions work, are not simulated: call the "
                "function by name, or choose with a switch or a template",
            )
        returns = returns if isinstance(returns, tuple) else ()
        params = params if isinstance(params, tuple) else ()
        arguments = [self.slots[p.name] for p in params if isinstance(p, (Symbol, Register))]
        results = [self.slots[p.name] for p in returns if isinstance(p, (Symbol, Register))]
        if any(isinstance(p, (Register, Immediate)) for p in (*params, *returns)):
            raise refused(instruction, "calls that pass registers instead of .param variables are not supported")
        system = self.module.system_call(callee.name)
        if system is not None:
            self.program.symbols.add(callee.name)
            values = ", ".join(f"r[{slot}]" for slot in arguments)
            call = f"{self.bind(system(self, instruction))}(f, ({values},))"
            current.lines.append(f"r[{results[0]}] = {call}" if results else call)
            return
        target = self.module.module.functions.get(callee.name)
        if target is None or not target.body:
            raise UnsupportedPtx(
                f"PTX line {instruction.line}: call of {callee.name!r}, which this module declares and does not define",
                instruction.line,
            )
        current.kind = CALL
        current.arguments, current.results = tuple(arguments), tuple(results)
        self.program.callees.add(callee.name)
        current.barrier = callee.name
