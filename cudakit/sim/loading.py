"""Loads PTX modules: parsed, compiled, and their variables placed in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from cudakit.sim.checks.reach import Reach
from cudakit.sim.instructions import async_copies, atomics, hints, loads, matrix, special, tensor, warp
from cudakit.sim.instructions.calls import SYSTEM_CALLS, Call
from cudakit.sim.instructions.lowering import Builder, Compiler
from cudakit.sim.instructions.special import RESERVED_BYTES, Getter
from cudakit.sim.lockstep import clusters
from cudakit.sim.lockstep.fragment import SHARED_START, Registers, Site, round_up
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.program import CALL, CLUSTER, RESERVED_SHARED, Block, Program
from cudakit.sim.lockstep.report import Index3, Place
from cudakit.sim.ptx.ir import Function, Instruction, Location, Module, PtxError, UnsupportedPtx, Variable
from cudakit.sim.ptx.parser import parse, source_files
from cudakit.sim.values.arithmetic import compile_lanewise, flatten, operand_types
from cudakit.sim.values.lanewise import Form

SourceLookup = Callable[[str], "str | None"]

_BUILDERS: dict[str, Builder] = {**loads.BUILDERS, **hints.BUILDERS, **atomics.BUILDERS, **warp.BUILDERS}
_BUILDERS |= {**clusters.BUILDERS, **async_copies.BUILDERS}
_BUILDERS |= {**matrix.BUILDERS, **tensor.BUILDERS}


class LoadedFunction:
    """A kernel ready to launch. ``params`` are (offset, size) pairs in bytes; ``registers`` is only an estimate."""

    def __init__(self, module: LoadedModule, program: Program) -> None:
        function = program.function
        self.name = function.name
        self.module = module
        self.program = program
        self.reachable = module.reach(program)
        offset = 0
        params = []
        for param in function.params:
            offset = round_up(offset, max(param.align, 1))
            params.append((offset, param.size))
            offset += param.size
        self.params = tuple(params)
        self.param_bytes = offset
        self.shared_symbols, self.static_shared, self.dynamic_align = module.shared_layout(self.reachable)
        self.local_bytes, self.recursive = module.stack(program)
        directives = function.directives
        self.required_threads: tuple[int, ...] | None = directives.get("reqntid")
        limit = directives.get("maxntid") or self.required_threads
        self.max_threads = int(np.prod(limit)) if limit else 1024
        self.registers = min(255, 8 + max(sum(_weight(p, s) for s in live) for p in self.reachable for live in p.live))
        # the cluster that it was compiled for, and whether a launch must give one
        required = directives.get("reqnctapercluster")
        self.required_cluster: Index3 | None = _three(required) if required else None
        self.max_cluster = (directives.get("maxclusterrank") or (0,))[0]
        self.cluster_must_be_set = "explicitcluster" in directives and required is None
        self.cluster_barriers = any(b.kind == CLUSTER for p in self.reachable for b in p.blocks)
        self.allocates = any(name in p.symbols for p in self.reachable for name in ("malloc", "free"))
        self.reserves_shared = any(RESERVED_SHARED in p.symbols for p in self.reachable)
        self.spins = any(p.spins for p in self.reachable)

    @cached_property
    def reach(self) -> Reach:
        """What its instructions can touch, for the checks."""
        return Reach(self)

    def __repr__(self) -> str:
        return f"LoadedFunction({self.name!r})"


def _three(values: tuple[int, ...]) -> Index3:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _weight(program: Program, slot: int) -> int:
    """How many 32-bit registers a slot needs."""
    value = program.template[slot]
    return 0 if value.dtype.kind in "bV" else -(-value.dtype.itemsize // 4)


class LoadedModule:
    """A module parsed, compiled and placed in memory. ``PtxError`` where it cannot be: the message names the
    instruction and its PTX line. ``source`` gives the text of a source file by the name that PTX has for it."""

    def __init__(self, ptx_text: str, space: AddressSpace, source: SourceLookup | None = None) -> None:
        self.space = space
        self.source = source
        self.sites: list[Site] = []
        self.blocks = 0
        self.globals: Mapping[str, tuple[int, int]] = _Globals(self)
        self._placed: dict[str, int] = {}
        self._sources: dict[str, list[str] | None] = {}
        self.programs: dict[str, Program] = {}
        try:
            self.module = parse(ptx_text)
        except PtxError as error:
            self.module = Module("", "", 64, source_files(ptx_text))
            raise self.explained(error) from None
        try:
            for name, function in self.module.functions.items():
                if function.body:
                    self.programs[name] = self._compile(function)
            for program in self.programs.values():
                for block in program.blocks:
                    if block.kind == CALL:
                        block.callee = self.programs[block.barrier]
            self.functions = {n: LoadedFunction(self, p) for n, p in self.programs.items() if p.function.entry}
        except BaseException:
            self.close()
            raise

    def _compile(self, function: Function) -> Program:
        return Compiler(self, function, _BUILDERS).compile()

    def close(self) -> None:
        """Free the module's variables; may be called again."""
        placed, self._placed = self._placed, {}
        for address in placed.values():
            self.space.free(address, "by unloading its module")

    # ---- what the compiler asks ----

    def new_site(self, instruction: Instruction, kind: str) -> Site:
        site = Site(len(self.sites), instruction, kind)
        self.sites.append(site)
        return site

    def new_block(self) -> int:
        self.blocks += 1
        return self.blocks - 1

    def special(self, name: str) -> tuple[Getter, np.dtype[Any]]:
        return special.special(name)

    def lanewise(self, instruction: Instruction) -> tuple[Form, tuple[Any, ...], tuple[Any, ...]] | None:
        """A lane-wise instruction's function with its types, and its destinations and sources."""
        run = compile_lanewise(instruction)
        if run is None:
            return None
        destinations, sources = flatten(instruction)
        return Form(run, *operand_types(instruction)), destinations, sources

    def sync_of(self, c: Compiler, instruction: Instruction) -> Callable[[Any, Registers], Any] | None:
        return warp.sync_of(c, instruction)

    def barrier(self, c: Compiler, block: Block, instruction: Instruction) -> None:
        warp.end_with_barrier(c, block, instruction)

    def system_call(self, name: str) -> Callable[[Compiler, Instruction], Call] | None:
        return SYSTEM_CALLS.get(name)

    # ---- variables ----

    def place_variable(self, variable: Variable) -> int:
        """The address of a global or constant, which gets its memory now if it has none yet."""
        found = self._placed.get(variable.name)
        if found is not None:
            return found
        if variable.extern:
            raise UnsupportedPtx(f"{variable.name!r} is declared extern and defined nowhere")
        kind = "constant" if variable.space == "const" else "global"
        allocation = self.space.allocate(max(variable.size, 1), kind, f"as the variable {variable.name!r}")
        self._placed[variable.name] = allocation.address
        data = variable.initial or b""
        allocation.data[:] = 0
        allocation.data[: len(data)] = np.frombuffer(data, np.uint8)
        for offset, symbol, addend, _ in variable.relocations:
            target = self.module.variables.get(symbol)
            if target is None or target.space not in ("global", "const"):
                if symbol in self.module.functions:
                    raise UnsupportedPtx(
                        f"{variable.name!r} holds the address of the function {symbol!r}: function pointer tables, "
                        "virtual functions and indirect calls are not supported"
                    )
                raise UnsupportedPtx(f"{variable.name!r} holds the address of {symbol!r}, which is no global variable")
            address = self.place_variable(target) + addend
            allocation.data[offset : offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
        return allocation.address

    # ---- kernels ----

    def reach(self, program: Program) -> list[Program]:
        """A kernel and every function it can call."""
        found = {program.name: program}
        todo = [program]
        while todo:
            for name in todo.pop().callees:
                if name not in found:
                    found[name] = self.programs[name]
                    todo.append(found[name])
        return list(found.values())

    def shared_layout(self, programs: list[Program]) -> tuple[dict[str, int], int, int]:
        """Addresses of the shared variables, bytes of the static ones, and the alignment of the dynamic ones."""
        variables: dict[str, Variable] = {}
        for program in programs:
            for variable in program.function.variables:
                if variable.space == "shared":
                    variables[variable.name] = variable
            for name in program.symbols:
                if name in self.module.variables:
                    variables[name] = self.module.variables[name]
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

    def stack(self, program: Program) -> tuple[int, bool]:
        """Bytes of local memory that the deepest chain of calls needs, and whether calls recurse."""
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
                deepest = max((depth(self.programs[name]) for name in current.callees), default=0)
                active.discard(current.name)
                depths[current.name] = current.local_bytes + deepest
            return depths[current.name]

        return depth(program), recursive

    # ---- sources ----

    def place(self, instruction: Instruction) -> tuple[Place, ...]:
        """The source lines of an instruction: its own, then those it was inlined into. Lines of CUDA's own headers are
        left out where the user's code follows."""
        return self._places(instruction.location)

    def explained(self, error: PtxError) -> PtxError:
        """An error with the kernel or function, and the source lines, that it is about."""
        message = str(error)
        if error.function is not None:
            message += f"\n  in {error.function}"
        for place in self._places(error.location):
            message += f"\n  at {place.file}:{place.line}"
            if place.text is not None:
                message += f"\n      {place.text.strip()}"
        return type(error)(message, error.line)

    def _places(self, location: Location | None) -> tuple[Place, ...]:
        places = []
        while location is not None:
            file = self.module.files.get(location.file, f"file {location.file}")
            places.append(Place(file, location.line, self._line(file, location.line), location.function))
            location = location.inlined_at
        own = next((n for n, place in enumerate(places) if place.text is not None and not _is_toolkit(place.file)), 0)
        return tuple(places[own:])

    def _line(self, file: str, line: int) -> str | None:
        if file not in self._sources:
            text = self.source(file) if self.source is not None else None
            if text is None:
                try:
                    with open(file, encoding="utf-8", errors="replace") as handle:
                        text = handle.read()
                except OSError:
                    text = None
            self._sources[file] = text.splitlines() if text is not None else None
        lines = self._sources[file]
        return lines[line - 1] if lines is not None and 0 < line <= len(lines) else None


def _is_toolkit(file: str) -> bool:
    """Whether a source file is one of CUDA's headers."""
    folders = file.replace("\\", "/").split("/")[:-1]
    return "include" in folders and any(f == "nvidia" or f.startswith("cuda") for f in folders)


class _Globals(Mapping[str, "tuple[int, int]"]):
    """The module's variables: (address, size) by name. Memory is given to one when it is asked for or used."""

    def __init__(self, module: LoadedModule) -> None:
        self._module = module

    def _variables(self) -> dict[str, Variable]:
        return {
            n: v for n, v in self._module.module.variables.items() if v.space in ("global", "const") and not v.extern
        }

    def __getitem__(self, name: str) -> tuple[int, int]:
        variable = self._variables()[name]
        return self._module.place_variable(variable), variable.size

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables())

    def __len__(self) -> int:
        return len(self._variables())
