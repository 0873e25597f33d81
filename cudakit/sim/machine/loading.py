"""Loads PTX modules: parsed, compiled, and their variables placed in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from cudakit.sim.checks.reach import Reach
from cudakit.sim.instructions.lowering import Compiler
from cudakit.sim.lockstep.memory import RESERVED_BYTES, SHARED_START, AddressSpace, round_up
from cudakit.sim.lockstep.program import CALL, CLUSTER, INDIRECT, RESERVED_SHARED, Program, find_spins
from cudakit.sim.lockstep.report import Index3
from cudakit.sim.lockstep.sites import Sites
from cudakit.sim.machine.sources import SourceLines, SourceLookup
from cudakit.sim.machine.variables import ModuleVariables
from cudakit.sim.ptx.ir import NotSimulated, PtxError, Variable
from cudakit.sim.ptx.parser import parse, source_files


class LoadedFunction:
    """A kernel ready to launch. ``params`` are (offset, size) pairs in bytes; ``registers`` is only an estimate."""

    def __init__(self, module: LoadedModule, program: Program) -> None:
        function = program.function
        self.name = function.name
        self.module = module
        self.program = program
        self.reachable = _reachable(module.programs, program)
        # the reason why the kernel cannot be launched, if it or a function that it calls needs what is not simulated
        self.refusal = _refusal(self.reachable, program)
        offset = 0
        params = []
        for param in function.params:
            offset = round_up(offset, max(param.align, 1))
            params.append((offset, param.size))
            offset += param.size
        self.params = tuple(params)
        self.param_bytes = offset
        self.shared_symbols, self.static_shared, self.dynamic_align = _shared_layout(
            self.reachable, module.module.variables
        )
        self.local_bytes, self.recursive = _stack(module.programs, program)
        directives = function.directives
        self.required_threads: tuple[int, ...] | None = directives.get("reqntid")
        limit = directives.get("maxntid") or self.required_threads
        self.max_threads = int(np.prod(limit)) if limit else 1024
        weights = (sum(_weight(p, s) for s in live) for p in self.reachable for live in p.live)
        self.registers = min(255, 8 + max(weights, default=0))
        # the cluster size that it was compiled for, and whether a launch must specify one
        required = directives.get("reqnctapercluster")
        self.required_cluster: Index3 | None = _three(required) if required else None
        self.max_cluster = (directives.get("maxclusterrank") or (0,))[0]
        self.cluster_must_be_set = "explicitcluster" in directives and required is None
        self.cluster_barriers = any(b.kind == CLUSTER for p in self.reachable for b in p.blocks)
        self.allocates = any(name in p.symbols for p in self.reachable for name in ("malloc", "free"))
        self.reserves_shared = any(RESERVED_SHARED in p.symbols for p in self.reachable)
        self.spins = any(p.spins for p in self.reachable)
        # the global and constant variables of the module that the kernel may access
        self.variables = frozenset().union(*(p.variables for p in self.reachable))

    @cached_property
    def reach(self) -> Reach:
        """The memory that the kernel's instructions can access, for the checks."""
        module = self.module
        return Reach(self.reachable, module.globals, reserves_shared=self.reserves_shared, debug=module.module.debug)

    def __repr__(self) -> str:
        return f"LoadedFunction({self.name!r})"


def _refusal(reachable: Iterable[Program], kernel: Program) -> NotSimulated | None:
    """The error of a launch of a kernel, if one of the programs that it reaches cannot run."""
    for program in reachable:
        if program.refusal is not None:
            called = f"\n  called by the kernel {kernel.name}" if program is not kernel else ""
            return NotSimulated(f"{program.refusal}{called}", program.refusal.line)
    return None


def _three(values: tuple[int, ...]) -> Index3:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _weight(program: Program, slot: int) -> int:
    """How many 32-bit registers a slot needs."""
    value = program.template[slot]
    return 0 if value.dtype.kind in "bV" else -(-value.dtype.itemsize // 4)


class LoadedModule:
    """A module parsed, compiled and placed in memory. Raises ``PtxError`` with the instruction and its PTX line if the
    text is not valid. A kernel that needs what is not simulated has a ``refusal``, and fails when launched. ``source``
    returns the text of a source file by its name in the PTX. ``digest`` is that of the PTX."""

    def __init__(self, ptx_text: str, space: AddressSpace, source: SourceLookup | None = None) -> None:
        try:
            self.module = parse(ptx_text)
        except PtxError as error:
            raise SourceLines(source_files(ptx_text), source).explained(error) from None
        self.digest = hashlib.sha256(ptx_text.encode()).hexdigest()
        self.space = space
        self.sites = Sites()
        self.sources = SourceLines(self.module.files, source)
        self.globals = ModuleVariables(self.module, space)
        try:
            self.programs = self._compile()
            self.functions = {n: LoadedFunction(self, p) for n, p in self.programs.items() if p.function.entry}
        except BaseException:
            self.close()
            raise

    def _compile(self) -> dict[str, Program]:
        """The programs of all functions, with calls linked."""
        module, explain = self.module, self.sources.explained
        programs = {
            name: Compiler(function, module, self.sites, self.globals, explain).compile()
            for name, function in module.functions.items()
            if function.body
        }
        self.globals.find_functions()
        for program in programs.values():
            for block in program.blocks:
                if block.kind == CALL:
                    block.callee = programs[block.callee_name]
                elif block.kind == INDIRECT:
                    block.pointers.link(self.globals.functions, programs)
                    program.callees.update(callee.name for callee in block.pointers.callees.values())
        find_spins(programs)
        return programs

    def close(self) -> None:
        """Free the module's variables; may be called again."""
        self.globals.close()


def _reachable(programs: Mapping[str, Program], program: Program) -> list[Program]:
    """A kernel and every function that it can call."""
    found = {program.name: program}
    todo = [program]
    while todo:
        for name in todo.pop().callees:
            if name not in found:
                found[name] = programs[name]
                todo.append(found[name])
    return list(found.values())


def _shared_layout(programs: list[Program], globals_: Mapping[str, Variable]) -> tuple[dict[str, int], int, int]:
    """Addresses of the shared variables, bytes of the static ones, and the alignment of the dynamic ones."""
    variables: dict[str, Variable] = {}
    for program in programs:
        for variable in program.function.variables:
            if variable.space == "shared":
                variables[variable.name] = variable
        for name in program.symbols:
            if name in globals_:
                variables[name] = globals_[name]
    symbols: dict[str, int] = {}
    reserved = size = RESERVED_BYTES if any(RESERVED_SHARED in program.symbols for program in programs) else 0
    for variable in variables.values():
        if not variable.extern and variable.size:
            size = round_up(size, max(variable.align, 1))
            symbols[variable.name] = SHARED_START + size
            size += variable.size
    dynamic = [v for v in variables.values() if v.extern or not v.size]
    align = max((v.align for v in dynamic), default=1)
    for variable in dynamic:
        symbols[variable.name] = SHARED_START + round_up(size, max(align, 16))
    return symbols, size - reserved, max(align, 16)


def _stack(programs: Mapping[str, Program], program: Program) -> tuple[int, bool]:
    """Bytes of local memory that the deepest chain of calls needs, and whether that is not all: calls recurse, or
    functions allocate memory on the stack."""
    depths: dict[str, int] = {}
    active: set[str] = set()
    recursive = False

    def depth(current: Program) -> int:
        nonlocal recursive
        if current.name in active:
            recursive = True
            return 0
        if current.name not in depths:
            active.add(current.name)
            deepest = max((depth(programs[name]) for name in current.callees), default=0)
            active.discard(current.name)
            depths[current.name] = current.local_bytes + deepest
        return depths[current.name]

    bytes_ = depth(program)
    # the memory of a thread whose stack grows is limited in the same way
    return bytes_, recursive or any(programs[name].grows for name in depths)
