"""A static analysis of the memory that a kernel can access: the smallest units in which it accesses shared and global
memory, and the parameters through which it may store to global memory.

The analysis of the stores ignores the order of instructions: a register may point to the same memory as any of its
sources. A 64-bit value loaded from memory may be any pointer, so a store through it may be to any allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cudakit.sim.lockstep.memory import RESERVED_BYTES, Allocation, MemoryFault
from cudakit.sim.lockstep.program import Program, reads_of, writes_of
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.ptx.ir import Address, Instruction, Operand, Register, Symbol
from cudakit.sim.ptx.opcodes import row_of, spaces_of
from cudakit.sim.values.lanewise import width

_GLOBAL = ("global",)
_SHARED = ("shared", "shared::cta", "shared::cluster")
_ELSEWHERE = ("local", "param", "param::entry", "param::func", "const")
# the member of a set of parameters that stands for any pointer
_ANY = -1


class Reach:
    """The memory that a kernel can access. Granules are in bytes (1 or 4). ``local``: whether reads of local memory can
    be checked. ``params``: the offsets of the pointer parameters through which the kernel may store to global memory,
    or None if it may store through any. ``symbols``: the module's variables to which the kernel may store by name.

    ``programs``: the kernel and all functions that it can call. ``variables``: the module's variables by name, each as
    (address, size).
    """

    def __init__(
        self,
        programs: Sequence[Program],
        variables: Mapping[str, tuple[int, int]],
        *,
        reserves_shared: bool,
        debug: bool,
    ) -> None:
        self.shared_granule = self.global_granule = 4
        for program in programs:
            for instruction in _instructions(program):
                memory = row_of(instruction).memory
                if memory is not None and (memory.granule or width(instruction.modifiers[-1]) // 8) < 4:
                    spaces = spaces_of(instruction)
                    if not any(m in spaces for m in (*_GLOBAL, *_ELSEWHERE)):
                        self.shared_granule = 1
                    if not any(m in spaces for m in (*_SHARED, *_ELSEWHERE)):
                        self.global_granule = 1
        # bytes at the start of shared memory that belong to the system and count as initialised
        self.reserved = RESERVED_BYTES * reserves_shared
        self.variables = variables
        # debug code copies structures with their uninitialised padding
        self.local = not debug
        self.params: set[int] | None = set()
        self.symbols: set[str] = set()
        # the same for loads through the read-only cache (ld.global.nc, __ldg)
        self.cached_params: set[int] | None = set()
        self.cached_symbols: set[str] = set()
        for program in programs:
            found, cached = _accessed(program, program.function.entry, self.symbols, self.cached_symbols)
            self.params = None if self.params is None or _ANY in found else self.params | found
            several = self.cached_params is None or _ANY in cached
            self.cached_params = None if several else (self.cached_params or set()) | cached

    def written(self, run: KernelRun) -> set[Allocation] | None:
        """The allocations that a launch may store to; None if it may store to any."""
        return self._allocations(run, self.params, self.symbols)

    def cached(self, run: KernelRun) -> set[Allocation] | None:
        """The allocations that a launch may load from through the read-only cache; None if it may load from any."""
        return self._allocations(run, self.cached_params, self.cached_symbols)

    def _allocations(self, run: KernelRun, params: set[int] | None, symbols: set[str]) -> set[Allocation] | None:
        if params is None:
            return None
        addresses = [int.from_bytes(run.config.params[offset : offset + 8], "little") for offset in params]
        addresses += [self.variables[name][0] for name in symbols if name in self.variables]
        found = set()
        for address in addresses:
            try:
                found.add(run.space.covering(address, 1))
            except MemoryFault:
                # not a pointer, or one past the end of an allocation, from which the kernel may index back into it
                near = run.space.find(address)
                if near is not None and near.live and near.address <= address <= near.end:
                    found.add(near)
        return found


def _instructions(program: Program) -> Iterable[Instruction]:
    return program.function.instructions


def _accessed(
    program: Program, entry: bool, stored_symbols: set[str], cached_symbols: set[str]
) -> tuple[set[int], set[int]]:
    """The offsets of the parameters through which a function may store to global memory, and of those through which it
    may load from the read-only cache. Adds to the sets of symbols the variables that it may access so."""
    function = program.function
    offsets: dict[str, int] = {}
    offset = 0
    for param in function.params:
        offset = -(-offset // max(param.align, 1)) * max(param.align, 1)
        offsets[param.name] = offset
        offset += param.size
    local = {v.name for v in function.variables}
    may: dict[str, set[int | str]] = {}
    instructions = list(_instructions(program))

    def meant(operands: Iterable[Operand | None]) -> set[int | str]:
        found: set[int | str] = set()
        for operand in operands:
            base = operand.base if isinstance(operand, Address) else operand
            if isinstance(base, Register):
                found |= may.get(base.name, set())
            elif isinstance(base, Symbol) and base.name not in local and base.name not in offsets:
                found.add(base.name)
        return found

    changed = True
    while changed:
        changed = False
        for instruction in instructions:
            targets = writes_of(instruction)
            if not targets:
                continue
            memory = row_of(instruction).memory
            loaded = memory is not None and memory.reads is not None
            if loaded:
                source = _source(instruction, offsets, entry)
            else:
                source = meant(reads_of(instruction))
            for target in targets:
                if loaded and width(target.type) < 64:
                    continue
                known = may.setdefault(target.name, set())
                if not source <= known:
                    known |= source
                    changed = True
    stored: set[int] = set()
    cached: set[int] = set()
    for instruction in instructions:
        memory = row_of(instruction).memory
        if memory is None:
            continue
        if memory.writes is not None:
            operand, found, symbols = memory.writes, stored, stored_symbols
        elif memory.reads is not None and "nc" in instruction.modifiers:
            operand, found, symbols = memory.reads, cached, cached_symbols
        else:
            continue
        if any(space in spaces_of(instruction)[:1] for space in (*_SHARED, *_ELSEWHERE)):
            continue
        address = instruction.operands[operand]
        # the operand [map, {coordinates}] of a tensor store: the map may be of any allocation
        for one in {_ANY} if isinstance(address, tuple) else meant((address,)):
            if isinstance(one, str):
                symbols.add(one)
            else:
                found.add(one)
    return stored, cached


def _source(instruction: Instruction, offsets: dict[str, int], entry: bool) -> set[int | str]:
    """The parameters that a loaded value may come from."""
    source = instruction.operands[1]
    base = source.base if isinstance(source, Address) else source
    shift = source.offset if isinstance(source, Address) else 0
    if entry and isinstance(base, Symbol) and base.name in offsets:
        size = width(instruction.modifiers[-1]) // 8
        count = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
        return {offsets[base.name] + shift + number * size for number in range(count)}
    return {_ANY}
