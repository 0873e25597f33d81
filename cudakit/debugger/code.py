"""The code of a module on the simulated device for a debugger: its lines, functions and variables.

A statement is a run of instructions of one source line (and one chain of inlined calls) in the order of the PTX. It has
an entry, at which a breakpoint stops. A basic block has one too, so that jumps into the middle of a statement are seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cudakit.debugger.dwarf import DebugFunction, DebugInfo, DebugVariable, InMemory, instruction_numbers
from cudakit.debugger.placement import place_by_flow
from cudakit.debugger.shared_types import declared_type
from cudakit.launch.mangling import demangle
from cudakit.sim.lockstep.program import Program
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import Instruction, Location, Variable


class Entry(NamedTuple):
    """An instruction of a program at which a statement or a basic block begins. `starts`: it has another line than the
    instruction before it in the PTX; `prologue`: it is before the function's first statement."""

    program: Program
    number: int
    instruction: Instruction
    starts: bool
    prologue: bool

    @property
    def file(self) -> int:
        return self.instruction.location.file if self.instruction.location is not None else 0

    @property
    def line(self) -> int:
        return self.instruction.location.line if self.instruction.location is not None else 0


class Code:
    """A loaded module's code. `info` has no variables if the module was not compiled with -G."""

    def __init__(self, module: LoadedModule) -> None:
        self.programs: dict[str, Program] = dict(module.programs)
        self.globals = module.globals
        self.debug = module.module.debug
        self.sources = module.sources
        self.info = DebugInfo(module.module)
        self._ptx = module.module
        self._numbers: dict[str, dict[int, int]] = {}
        self._entries: dict[str, dict[int, Entry]] = {}
        for name, function in self.info.functions.items():
            if name in self.programs:
                place_by_flow(self.programs[name], function)

    def number(self, program: Program, instruction: Instruction) -> int:
        """The number of an instruction in its function."""
        found = self._numbers.get(program.name)
        if found is None:
            found = self._numbers[program.name] = instruction_numbers(program.function)
        return found[id(instruction)]

    def entries(self, program: Program) -> dict[int, Entry]:
        """The entries of a program, by the ids of their instructions."""
        found = self._entries.get(program.name)
        if found is None:
            found = self._entries[program.name] = {id(e.instruction): e for e in self._find_entries(program)}
        return found

    def _find_entries(self, program: Program) -> Iterator[Entry]:
        firsts = {id(block.instructions[0]) for block in program.blocks if block.instructions}
        last: tuple[int, ...] = ()
        prologue = self.debug
        for number, instruction in enumerate(program.function.instructions):
            location = instruction.location
            # -G loads all parameters first, at column 0
            before, prologue = prologue, prologue and (location is None or location.column == 0)
            where = _line(location)
            starts = location is not None and (where != last or before != prologue)
            if starts or id(instruction) in firsts:
                yield Entry(program, number, instruction, starts, prologue)
            if location is not None:
                last = where

    def at(self, program: Program, instruction: Instruction) -> Entry | None:
        return self.entries(program).get(id(instruction))

    # ---- files and lines ----

    def files(self, name: str) -> list[int]:
        """The numbers of the source files that a user's file name means: the whole path, also by way of symbolic links,
        or its last parts."""
        wanted = os.path.normpath(name)
        if os.path.isabs(wanted):
            real = os.path.realpath(wanted)
            return [n for n, file in self.sources.files.items() if os.path.realpath(file) == real]
        tail = os.sep + wanted
        return [n for n, file in self.sources.files.items() if os.path.normpath(file) == wanted or file.endswith(tail)]

    def file(self, number: int) -> str:
        return self.sources.files.get(number, "??")

    def on_line(self, files: list[int], line: int) -> tuple[int, list[Entry]]:
        """The entries at which a breakpoint on a line stops, and their line: the next line with code, if this one is
        without. One per function or inlined call, the first one; optimised code may have copies, which are all
        entries."""
        found: dict[int, dict[tuple[str, bool, tuple[int, ...]], list[Entry]]] = {}
        for program in self.programs.values():
            inside = self.entries(program).values()
            begins = min((e.line for e in inside if e.file in files), default=line + 1)
            for entry in inside:
                if not entry.starts or entry.prologue or begins > line:
                    continue  # a line before the function is not its
                for level, location in enumerate(chain(entry.instruction.location)):
                    if location.file in files and location.line >= line:
                        context = (program.name, level == 0, _line(location.inlined_at))
                        found.setdefault(location.line, {}).setdefault(context, []).append(entry)
        if not found:
            return line, []
        first = min(found)
        own = any(inner for _, inner, _ in found[first])
        chosen = []
        for (_, inner, _), entries in found[first].items():
            if inner:
                chosen += entries[:1] if self.debug else entries
            elif not own:
                # the line's only code is inlined from the functions that it calls
                chosen += entries[:1]
        return first, chosen

    def lines_with_code(self, file: int) -> set[int]:
        """The lines of a file at which a breakpoint stops."""
        entries = (e for program in self.programs.values() for e in self.entries(program).values())
        return {e.line for e in entries if e.file == file and e.starts and not e.prologue}

    def of_function(self, name: str) -> list[Entry]:
        """The first statements of the functions with a name: mangled, or in C++ with or without template arguments."""
        return [
            entry
            for program in self.programs.values()
            if name in self.names(program) and (entry := self.body(program)) is not None
        ]

    def body(self, program: Program) -> Entry | None:
        """The entry of a function's first statement, after the instructions that load its parameters."""
        entries = self.entries(program).values()
        inside = [e for e in entries if e.starts and not e.prologue]
        return next(iter(inside or entries), None)

    # ---- functions ----

    def debug_function(self, program: Program) -> DebugFunction | None:
        return self.info.functions.get(program.name)

    def title(self, program: Program) -> str:
        """A function's C++ name, with its template arguments if they are known."""
        found = self.debug_function(program)
        return _plain(program.name) if found is None else found.name

    def names(self, program: Program) -> set[str]:
        """The names by which a user may refer to a function."""
        full = _plain(program.name)
        title = self.title(program)
        names = {program.name, title, title.replace(" ", ""), full, full.replace(" ", "")}
        names |= {re.sub(r"<.*", "", one) for one in names}
        return names | {one.rsplit("::", 1)[-1] for one in names if "::" in one}

    # ---- variables ----

    def variables(self, program: Program, number: int) -> Iterator[DebugVariable]:
        """The local variables and parameters in scope at an instruction, the innermost first."""
        function = self.debug_function(program)
        if function is None:
            return
        for scope in function.scope.around(number):
            yield from scope.variables

    @cached_property
    def shared(self) -> dict[str, dict[str, DebugVariable]]:
        """The shared variables of each function, by their C++ names, and the module's under "". DWARF has only the
        dynamic ones; the types of static ones are read from their declarations."""
        found: dict[str, dict[str, DebugVariable]] = {}
        for function, variable in self._shared_variables():
            demangled = demangle(variable.name)
            name = demangled.name.rsplit("::", 1)[-1] if demangled is not None else variable.name.split("#")[0]
            known = self.info.variables.get(variable.name)
            if known is None:
                owner = self.programs.get(function)
                title = "" if owner is None else self.title(owner)
                kind = declared_type(self.sources.texts(), title, name, variable.size, self.info.types)
                known = DebugVariable(name, kind, places=[(None, InMemory(variable.name, 0))])
            found.setdefault(function, {})[name] = known
        return found

    def _shared_variables(self) -> Iterator[tuple[str, Variable]]:
        for variable in self._ptx.variables.values():
            if variable.space == "shared":
                yield "", variable
        for name, function in self._ptx.functions.items():
            for variable in function.variables:
                if variable.space == "shared":
                    yield name, variable


_known: WeakKeyDictionary[LoadedModule, Code] = WeakKeyDictionary()


def code_of(module: LoadedModule) -> Code:
    """The code of a module, which is read once."""
    found = _known.get(module)
    if found is None:
        found = _known[module] = Code(module)
    return found


def chain(location: Location | None) -> Iterator[Location]:
    """A location, and those of the calls into which it is inlined, the innermost first."""
    while location is not None:
        yield location
        location = location.inlined_at


def _line(location: Location | None) -> tuple[int, ...]:
    """A line with the chain of calls into which it is inlined, to compare."""
    return tuple(number for one in chain(location) for number in (one.file, one.line))


def _plain(mangled: str) -> str:
    """A function's C++ name without its parameters; the name itself if it is not mangled."""
    found = demangle(mangled)
    return mangled if found is None else found.name
