"""The lockstep machine: loads PTX modules and runs their kernels on numpy vectors of lanes.

A launch goes batch by batch: some consecutive blocks whose lanes together fill the caches, run to their end by the
scheduler. Blocks that must be resident together (a cooperative launch, a kernel whose lanes wait for each other) make
one batch. Bounds and alignment are always checked; ``checks`` switches on what goes beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cudakit.sim.checks.footprints import Footprints
from cudakit.sim.checks.guard import Guard, LaunchGuard, wanted
from cudakit.sim.checks.reach import Reach
from cudakit.sim.collect import collect
from cudakit.sim.instructions import async_copies, atomics, hints, loads, matrix, special, tensor, warp
from cudakit.sim.instructions.calls import SYSTEM_CALLS, Call
from cudakit.sim.instructions.lowering import Builder, Compiler
from cudakit.sim.instructions.special import RESERVED_BYTES, Getter
from cudakit.sim.lockstep import clusters
from cudakit.sim.lockstep.control import Scheduler
from cudakit.sim.lockstep.counters import Counters
from cudakit.sim.lockstep.fragment import SHARED_START, Batch, Registers, Run, Site, round_up
from cudakit.sim.lockstep.heap import Heap
from cudakit.sim.lockstep.lanes import Geometry
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.program import CALL, CLUSTER, RESERVED_SHARED, Block, Program
from cudakit.sim.lockstep.report import Index3, KernelFault, Place, Report
from cudakit.sim.ptx.ir import Function, Instruction, Location, Module, PtxError, UnsupportedPtx, Variable
from cudakit.sim.ptx.parser import parse, source_files
from cudakit.sim.values.arithmetic import compile_lanewise, flatten, operand_types
from cudakit.sim.values.lanewise import Form

__all__ = ["Counters", "DeviceProperties", "KernelFault", "LoadedFunction", "LoadedModule", "Report", "launch"]

SourceLookup = Callable[[str], "str | None"]

# lanes of a batch: enough to hide Python's cost for each instruction, few enough for the caches
_BATCH_LANES = 16384
# bytes of shared and local memory that one batch may have
_BATCH_BYTES = 64 << 20
# local memory for calls that recurse, as cuCtxGetLimit's default
_RECURSION_BYTES = 8192

_BUILDERS: dict[str, Builder] = {**loads.BUILDERS, **hints.BUILDERS, **atomics.BUILDERS, **warp.BUILDERS}
_BUILDERS |= {**clusters.BUILDERS, **async_copies.BUILDERS}
_BUILDERS |= {**matrix.BUILDERS, **tensor.BUILDERS}


@dataclass(frozen=True)
class DeviceProperties:
    """What a kernel can see of the device it runs on. Sizes in bytes."""

    arch: str = "sm_90"
    warp_size: int = 32
    multiprocessors: int = 132
    max_threads_per_block: int = 1024
    max_threads_per_multiprocessor: int = 2048
    shared_per_block: int = 49152
    shared_per_block_optin: int = 232448
    shared_per_multiprocessor: int = 233472
    shared_reserved_per_block: int = 1024
    registers_per_multiprocessor: int = 65536
    local_per_thread: int = 512 * 1024


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


@lru_cache(maxsize=8)
def _geometry(blocks: int, dims: Index3) -> Geometry:
    return Geometry(blocks, dims)


def launch(
    function: LoadedFunction,
    grid: Index3,
    block: Index3,
    shared: int,
    params: list[bytes],
    *,
    properties: DeviceProperties,
    cooperative: bool = False,
    cluster: Index3 | None = None,
    checks: frozenset[str] = frozenset(),
    printf: Callable[[str], None] = lambda text: None,
    counters: bool = True,
    stack_limit: int | None = None,
    heap: Heap | None = None,
    prints: Footprints | None = None,
) -> Counters:
    """Run a kernel to its end. ``shared`` is the dynamic shared memory in bytes, ``params`` one value per parameter.

    ``checks`` may hold "barrier" (divergent barriers), "warp" (member masks that name lanes which never come), "race"
    (accesses of shared and global memory that nothing orders, cp.async results touched before their wait) and "init"
    (uninitialised reads; of device memory, where the address space tracks them); bounds, alignment and freed memory are
    always checked. ``counters=False`` leaves memory traffic uncounted. ``stack_limit`` is the local memory of a thread
    whose calls recurse, in bytes. ``heap`` serves malloc. ``prints`` notes which bytes of some allocations are read and
    written; it needs "race" or "init" among the checks.

    Raises KernelFault; ValueError for what cannot be run at all. Limits of the device and types of parameters are the
    caller's to check.
    """
    if len(params) != len(function.params):
        raise ValueError(f"{function.name} takes {len(function.params)} parameters, got {len(params)}")
    explicit = cluster or function.required_cluster
    cluster = explicit or (1, 1, 1)
    if any(blocks % group for blocks, group in zip(grid, cluster, strict=True)):
        raise ValueError(f"{function.name}: grid {grid} is no multiple of cluster {cluster}")
    data = bytearray(function.param_bytes)
    for number, ((offset, size), value) in enumerate(zip(function.params, params, strict=True)):
        if len(value) != size:
            raise ValueError(f"parameter {number} of {function.name} has {size} bytes, got {len(value)}")
        data[offset : offset + size] = value
    for program in function.reachable:
        program.prepare()
    threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
    static = function.static_shared
    shared_bytes = round_up(static, function.dynamic_align) + shared if shared else static
    shared_bytes += RESERVED_BYTES * function.reserves_shared
    local = function.local_bytes
    if function.recursive:
        local = round_up(max(local, stack_limit or _RECURSION_BYTES), 32)
    environment: dict[int, int] = {}
    workspace = _grid_workspace(function, environment) if cooperative else None
    run = Run(
        kernel=function.name,
        program=function.program,
        space=function.module.space,
        grid=grid,
        dims=block,
        params=bytes(data),
        shared_bytes=shared_bytes,
        dynamic_shared=shared,
        shared_symbols=function.shared_symbols,
        local_bytes=local,
        properties=properties,
        checks=checks,
        printf=printf,
        counting=counters,
        sites=len(function.module.sites),
        blocks=function.module.blocks,
        place=function.module.place,
        environment=environment,
        heap=heap or Heap(function.module.space),
        cluster=cluster,
        explicit_cluster=explicit is not None,
        cluster_barriers=function.cluster_barriers,
    )
    together = _batch_blocks(function, blocks, threads, shared_bytes, local, cooperative, properties)
    # the blocks of a cluster run together
    together = round_up(together, run.cluster_size)
    guard = LaunchGuard(run, function.reach, prints) if wanted(checks) else None
    try:
        with np.errstate(all="ignore"):
            for first in range(0, blocks, together):
                count = min(together, blocks - first)
                batch = Batch(run, _geometry(count, block), first)
                if guard is not None:
                    batch.guard = Guard(guard, batch)
                Scheduler(batch, function.program, blocks - first - count).loop()
                if batch.guard is not None:
                    # they hold each other: without this their shadows would outlive the batch by many others
                    batch.guard.shared = batch.guard = None
    finally:
        if guard is not None:
            guard.memory.finish()
        if workspace is not None:
            function.module.space.free(workspace)
    return collect(function, run, blocks, threads)


def _batch_blocks(
    function: LoadedFunction,
    blocks: int,
    threads: int,
    shared: int,
    local: int,
    cooperative: bool,
    properties: DeviceProperties,
) -> int:
    """How many blocks run at once."""
    if cooperative:
        return blocks
    fitting = max(1, _BATCH_LANES // threads)
    memory = shared + local * threads
    if memory:
        fitting = max(1, min(fitting, _BATCH_BYTES // memory))
    if function.spins:
        # as many as the device would hold, for those that wait for each other without saying so
        resident = properties.max_threads_per_multiprocessor // max(threads, 1)
        if shared:
            resident = min(resident, properties.shared_per_multiprocessor // (shared + 1024))
        fitting = max(fitting, max(1, min(resident, 32)) * properties.multiprocessors)
    return min(blocks, fitting)


def _grid_workspace(function: LoadedFunction, environment: dict[int, int]) -> int:
    """Memory for cooperative groups' grid barrier, whose address kernels find in %envreg1 and %envreg2."""
    allocation = function.module.space.allocate(64, "device", "for the grid barrier")
    allocation.data[:] = 0
    allocation.data[0] = 64
    allocation.define()
    environment[1], environment[2] = allocation.address >> 32, allocation.address & 0xFFFFFFFF
    return allocation.address
