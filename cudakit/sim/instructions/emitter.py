"""The emitter, which instruction builders use to write Python.

A builder is a function that takes the emitter and an instruction and returns lines of Python. In these lines ``f`` is
the fragment and ``r`` its registers (a list, by slot).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from cudakit.sim.instructions.confirmed import confirmed_loads
from cudakit.sim.instructions.merging import merged_accesses
from cudakit.sim.instructions.params import addressed
from cudakit.sim.instructions.special import special
from cudakit.sim.lockstep.clusters import shared_address
from cudakit.sim.lockstep.memory import round_up
from cudakit.sim.lockstep.program import RESERVED_SHARED, Program, reads_of
from cudakit.sim.lockstep.sites import Site, Sites
from cudakit.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    PtxFunction,
    PtxModule,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Variable,
    Vector,
    refused,
)
from cudakit.sim.values.arithmetic import compile_lanewise, flatten, operand_types
from cudakit.sim.values.lanewise import constant, storage

Builder = Callable[["Emitter", Instruction], "list[str]"]

_STACK = ("alloca", "stacksave", "stackrestore")
_SIGNED = {"s8": np.int8, "s16": np.int16, "s32": np.int32}


class Places(Protocol):
    """The addresses of a module's variables and functions."""

    def address_of(self, variable: Variable) -> int:
        """The address of a global or constant variable, which is allocated on first use."""

    def function_address(self, function: PtxFunction) -> int:
        """The address of a function; raises NotSimulated if the module does not define it."""


class Emitter:
    """Writes the Python of one function. Builders use ``source``, ``store``, ``bind`` and ``site``.

    ``module`` is the parsed module of the function, ``sites`` numbers its sites, and ``places`` has the addresses of
    its variables and functions.
    """

    def __init__(self, function: PtxFunction, module: PtxModule, sites: Sites, places: Places) -> None:
        self.function = function
        self.module = module
        self.sites = sites
        self.places = places
        self.program = Program(function)
        self.slots = self.program.slots
        self.kinds = self.program.slot_kinds
        self.names = 0
        # the number of the current instruction's basic block, and of its instructions up to this one
        self.place = (0, 0)
        self._merged: dict[int, int] | None = None
        self._confirmed: set[int] | None = None
        self._read: set[str] | None = None
        self._used: set[str] | None = None
        self.variables = {v.name: v for v in function.variables}
        self.call_params: dict[str, Variable] = {}
        self.param_offsets: dict[str, int] = {}
        # parameters whose address is taken are in local memory from the start: name to offset
        self.taken: dict[str, int] = {}
        self._place_registers()
        self._place_local()

    def _place_registers(self) -> None:
        """Assign slots to registers and to parameters of calls, and offsets to a kernel's own parameters."""
        function = self.function
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
            return
        offset = 0
        for param in function.params:
            offset = round_up(offset, max(param.align, 1))
            self.param_offsets[param.name] = offset
            offset += param.size

    def _place_local(self) -> None:
        """Assign offsets in local memory to local variables and to parameters whose address is taken."""
        function, program = self.function, self.program
        local = 0
        for variable in function.variables:
            if variable.space == "local":
                local = round_up(local, max(variable.align, 1))
                program.local_offsets[variable.name] = local
                local += variable.size
        names = {} if function.entry else {p.name: p for p in function.params}
        for instruction in function.instructions:
            for name in addressed(instruction):
                if name in names and name not in self.taken:
                    local = round_up(local, 16)
                    self.taken[name] = local
                    local += round_up(names[name].size, 8)
        program.local_offsets.update(self.taken)
        program.grows = any(instruction.opcode in _STACK for instruction in function.instructions)
        # a function whose frame grows has one from the start
        program.local_bytes = round_up(max(local, program.grows), 16)

    def _add_slot(self, name: str, kind: str, initial: Any) -> None:
        self.slots[name] = len(self.kinds)
        self.kinds.append(kind)
        self.program.template.append(initial)

    def bind(self, value: Any) -> str:
        """Bind an object to a name in the generated code; returns the name."""
        self.names += 1
        name = f"k{self.names}"
        self.program.namespace[name] = value
        return name

    def site(self, instruction: Instruction, kind: str) -> Site:
        return self.sites.site(instruction, kind)

    def merged_width(self, instruction: Instruction, size: int) -> int:
        """Bytes of the access into which ptxas merges an access of ``size`` bytes and its neighbours; 0 if the access
        is not the first of them, since only the first is counted."""
        if self._merged is None:
            self._merged = merged_accesses(self.function)
        return self._merged.get(id(instruction), size)

    def is_confirmed(self, load: Instruction) -> bool:
        """Whether a load's value has no effect unless a compare-and-swap finds it in memory."""
        if self._confirmed is None:
            self._confirmed = confirmed_loads(self.function)
        return id(load) in self._confirmed

    def is_read(self, register: Operand | None) -> bool:
        """Whether an instruction of the function reads a register."""
        if self._read is None:
            self._read = {o.name for i in self.function.instructions for o in reads_of(i) if isinstance(o, Register)}
        return isinstance(register, Register) and register.name in self._read

    def is_used(self, register: Operand | None) -> bool:
        """Whether an instruction uses a register's value other than to store it."""
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
            getter, have = special(operand.name, self.place)
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
        """An expression for the address of a variable within its own space, as uint64."""
        variable = self.variables.get(name)
        program = self.program
        if variable is None:
            variable = self.module.variables.get(name)
        if name in self.param_offsets:
            return self.bind(np.uint64(self.param_offsets[name]))
        if name in self.taken:
            variable = self.call_params[name]
        if variable is None:
            if name in self.module.functions:
                return self.bind(np.uint64(self.places.function_address(self.module.functions[name])))
            raise UnsupportedPtx(f"the symbol {name!r} as an operand is not supported")
        if variable.space == "shared":
            program.symbols.add(name)
            return f"{self.bind(shared_address(name))}(f)"
        if variable.space == "local" or name in self.taken:
            return f"{self.bind(np.uint64)}(f.frames[-1].local_base + {program.local_offsets[name]})"
        if variable.space in ("global", "const"):
            program.variables.add(name)
            return self.bind(np.uint64(self.places.address_of(variable)))
        raise UnsupportedPtx(f"{name!r} as an operand: addresses of .{variable.space} variables are not supported")

    def space_of(self, name: str) -> str:
        """The state space of a symbol, "func" for a function; "" if it is unknown."""
        if name in self.param_offsets or name in self.call_params:
            return "param"
        variable = self.variables.get(name) or self.module.variables.get(name)
        if variable is not None:
            return variable.space
        return "func" if name in self.module.functions else ""

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
        """Lines that write a value, in the storage of a PTX type, to a register."""
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

    def lanewise(self, instruction: Instruction) -> list[str]:
        """Lines for a lane-wise instruction. Raises UnsupportedPtx if it is not lane-wise."""
        run = compile_lanewise(instruction)
        if run is None:
            raise refused(instruction)
        destinations, sources = flatten(instruction)
        results, kinds = operand_types(instruction)
        values = ", ".join(self.source(o, k) for o, k in zip(sources, kinds, strict=True))
        call = f"{self.bind(run)}({values})"
        if len(destinations) == 1:
            return self.store(destinations[0], results[0], call)
        return self.store_all(destinations, results, call)
