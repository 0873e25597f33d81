"""Runs a launch in machine code.

``run_compiled`` returns False if the interpreter must run the launch, since an access may be a fault. Memory is then as
before the launch. So machine code reports nothing itself, and its checks may be coarser than the interpreter's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from time import perf_counter
from typing import Any

import numpy as np

from cudakit.sim.compiled.arithmetic import Unsupported
from cudakit.sim.compiled.atomics import ATOMICS
from cudakit.sim.compiled.ir import Module
from cudakit.sim.compiled.kernel import KernelWriter
from cudakit.sim.compiled.layout import (
    ATOMIC,
    ATOMIC_BYTES,
    BAIL,
    CACHE,
    CACHE_BYTES,
    CONTEXT,
    CONTEXT_BYTES,
    COPIES_MOST,
    COPY_BYTES,
    EXITED,
    FINE,
    LANES,
    PATTERN,
    PATTERN_BYTES,
    PATTERNS,
    PENDING_BYTES,
    PENDING_MOST,
    SHIFTS,
    SITE,
    SITE_BYTES,
    STATE_BYTES,
)
from cudakit.sim.compiled.machine import Machine, converts_halves, kept, run_blocks
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.lanes import Array, Geometry, LaneSet
from cudakit.sim.lockstep.memory import Allocation, MemoryFault, aligned, round_up
from cudakit.sim.lockstep.program import Program
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.traffic import wavefronts

_FIND = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_COUNT_PATTERN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
# bytes of the allocations that a launch stores to, which are copied so that they can be put back, and of one allocation
# with a table of accesses
_MOST_SAVED = 1 << 27
# bytes of the local memory of a block, which is set at the start of each block
_MOST_LOCAL = 1 << 26
# the words of those tables have 30 bits for the block
_MOST_BLOCKS = 1 << 29
# seconds that LLVM takes for a line of text, measured on 2.5 GHz
_SECONDS_PER_LINE = 1e-4
# seconds of machine code between two chances for an interrupt
_PART = 0.2
_WARP = Geometry(1, (LANES, 1, 1))
# the tables of earlier launches, all zeros, and how many words of them are kept
_MOST_SPARE = 1 << 23
_spare: list[Array] = []


@dataclass(frozen=True, eq=False)
class KernelSource:
    """A kernel to compile. ``param_offsets``: the parameters' offsets in bytes; ``address_of`` returns the address of a
    variable within its space. ``shared_granule`` and ``global_granule``: the bytes that are checked together, 1 or 4.
    ``refusal``: why it cannot be compiled, if the caller knows."""

    program: Program
    sites: Iterable[Site]
    param_offsets: Mapping[str, int]
    address_of: Callable[[str], int]
    shared_granule: int
    global_granule: int
    refusal: str = ""


class CompiledKernel:
    """A kernel as machine code. Raises Unsupported if it cannot be compiled. ``cost``: an estimate of the seconds that
    ``compile`` takes. ``name``: that of its file in the store of machine code."""

    def __init__(self, source: KernelSource, name: str) -> None:
        if source.refusal:
            raise Unsupported(source.refusal)
        program = source.program
        if program.kept:
            raise Unsupported("parameters in local memory")
        owners = (getattr(value, "__self__", None) for value in program.namespace.values())
        # those of atomics are an attribute of their owners
        known = (one if isinstance(one, MemoryAccess) else getattr(one, "access", None) for one in owners)
        accesses = {id(one.site.instruction): one for one in known if isinstance(one, MemoryAccess)}
        own = {id(instruction) for instruction in program.function.instructions}
        sites: dict[int, list[Site]] = {}
        for site in source.sites:
            if id(site.instruction) in own:
                sites.setdefault(id(site.instruction), []).append(site)
        self._module = Module(halves=converts_halves())
        self.writer = KernelWriter(
            self._module, program, accesses, sites, source.param_offsets, source.address_of, source.shared_granule
        )
        self.writer.write()
        self._name = name
        self.cost = self._module.lines() * _SECONDS_PER_LINE
        if kept(name, self._module) is not None:
            self.cost = 0.0
        self.shifts = tuple({4: 2, 1: 0}[granule] for granule in (source.shared_granule, source.global_granule))
        self.patterns = _memory(PATTERN_BYTES * PATTERNS)

    def compile(self) -> None:
        """Make the machine code."""
        self.run_blocks = run_blocks()
        self._machine = Machine(self._module, self._name, speed=1)
        self.warp = self._machine.address("warp")


def _memory(size: int, fill: int | None = 0) -> Array:
    """``size`` bytes at an address that vectors can be loaded from; ``fill`` None: of any value."""
    size = max(size, 64)
    raw = np.empty(size + 64, np.uint8) if fill is None else np.full(size + 64, fill, np.uint8)
    return aligned(raw, size)


def run_compiled(kernel: CompiledKernel, run: KernelRun, written: set[Allocation] | None) -> bool:
    """Run a launch and collect its counts in ``run``. ``written``: the allocations that it may store to; None: any.
    Returns False if the interpreter must run it."""
    if run.config.cluster_barriers or run.cluster_size > 1 or run.config.blocks >= _MOST_BLOCKS:
        return False
    if run.local_bytes * run.config.threads > _MOST_LOCAL:
        return False
    launch = _Launch(kernel, run, written)
    try:
        return launch.run()
    finally:
        launch.close()


def _table(count: int) -> Array:
    """A table of zeros, of an earlier launch if there is one: pages that are new to the process take longer to access
    than to clear."""
    for number, table in enumerate(_spare):
        if len(table) == count:
            return _spare.pop(number)
    return np.zeros(count, np.int64)


class _Launch:
    """One launch of a compiled kernel: the memory that it shares with Python."""

    def __init__(self, kernel: CompiledKernel, run: KernelRun, written: set[Allocation] | None) -> None:
        self.kernel, self.launch, self.written = kernel, run, written
        # the bytes of allocations before the launch stored to them
        self.saved: dict[Allocation, Array] = {}
        # the memory that machine code has the addresses of
        self.stores: list[Array] = []
        self.error: BaseException | None = None
        self.checked = not run.checks.isdisjoint(("race", "init"))
        self.kept: dict[str, Any] = {}
        # the tables of the allocations that the launch stores to, and of those that it loads from too
        self.writes: dict[Allocation, Array] = {}
        self.reads: dict[Allocation, Array] = {}
        writer = kernel.writer
        self.context = _memory(CONTEXT_BYTES)
        self.context[SHIFTS:CONTEXT_BYTES].view(np.int32)[:] = np.arange(LANES)[::-1]
        self.words = self.context[:SHIFTS].view(np.int64)
        config = run.config
        warps = -(-config.threads // LANES)
        shared_bytes = round_up(config.shared_bytes, 32)
        shared_shift, self.global_shift = kernel.shifts
        shared_cells = -(-config.shared_bytes // (1 << shared_shift))
        self.caches = (
            self._keep("caches", CACHE_BYTES * max(len(writer.found), 1)).view(np.int64).reshape(-1, CACHE_BYTES // 8)
        )
        # no allocation is known yet
        self.caches[:, CACHE["low"] // 8] = np.iinfo(np.int64).max
        params = self._keep("params", len(config.params) + 64)
        params[: len(config.params)] = np.frombuffer(config.params, np.uint8)
        self._keep("shared", shared_bytes + 1024, 0xFF)
        for name, size in (
            ("writes", 8 * shared_cells),
            ("reads", 8 * shared_cells),
            ("sites", SITE_BYTES * max(len(writer.counted), 1)),
            ("counts", 24 * len(writer.program.blocks)),
            ("registers", writer.register_bytes * warps),
            ("states", STATE_BYTES * warps),
            ("atomics", ATOMIC_BYTES * max(len(writer.updates), 1)),
        ):
            self._keep(name, size)
        self.atomics = self.kept["atomics"].view(np.int64).reshape(-1, ATOMIC_BYTES // 8)
        self.atomics[:, ATOMIC["low"] // 8] = np.iinfo(np.int64).max
        self._keep("pending", PENDING_BYTES * (PENDING_MOST + 1), None)
        local = round_up(run.local_bytes, 32) * warps
        self._keep("local", LANES * local, None)
        self._keep("local_written", 4 * local, None)
        self._keep("copies", COPY_BYTES * COPIES_MOST * warps * writer.copies, None)
        places = self._keep("start_states", STATE_BYTES * warps).view(np.int32).reshape(warps, -1)
        if config.threads % LANES:
            places[-1, config.threads % LANES : LANES] = EXITED
        ids = self._keep("thread_ids", 12 * LANES * warps).view(np.int32).reshape(warps, 3, LANES)
        linear = np.arange(warps * LANES).reshape(warps, LANES)
        x, y, _ = config.block
        ids[:, 0], ids[:, 1], ids[:, 2] = linear % x, linear // x % y, linear // (x * y)
        self.kept["find"] = _FIND(self._find)
        self.kept["count_pattern"] = _COUNT_PATTERN(_count_pattern)
        values: dict[str, Any] = {
            name: memory.ctypes.data for name, memory in self.kept.items() if isinstance(memory, np.ndarray)
        }
        for name in ("find", "count_pattern"):
            values[name] = ctypes.cast(self.kept[name], ctypes.c_void_p).value
        for name, sizes in (("nctaid", config.grid), ("ntid", config.block)):
            values |= {f"{name}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}
        values |= {
            "shared_limit": config.shared_bytes,
            "shared_bytes": shared_bytes,
            "shared_cells": shared_cells,
            "shared_shift": shared_shift,
            # at most 64 chunks
            "chunk_shift": max((shared_bytes - 1).bit_length() - 6, 0),
            "global_shift": self.global_shift,
            "warps": warps,
            "local_limit": run.local_bytes,
            "local_stride": round_up(run.local_bytes, 32),
            "register_bytes": writer.register_bytes,
            "unset_bytes": writer.unset_bytes,
            "patterns": kernel.patterns.ctypes.data,
            "step_limit": min(config.step_limit, 1 << 62),
            "counting": config.counting,
            # of shared memory: without the checks a copy would be seen before it has been waited for
            "checked": self.checked or writer.copies,
            "init": "init" in run.checks,
        }
        for name, value in values.items():
            self.words[CONTEXT[name] // 8] = value

    def _keep(self, name: str, size: int, fill: int | None = 0) -> Array:
        found = self.kept[name] = _memory(size, fill)
        return found

    def run(self) -> bool:
        blocks, first, step = self.launch.config.blocks, 0, 1
        while first < blocks:
            # in parts, so that an interrupt (Ctrl-C) has to wait for a part only
            count, started = min(step, blocks - first), perf_counter()
            status = self.kernel.run_blocks(self.context.ctypes.data, self.kernel.warp, first, first + count)
            different = self._counts_would_differ() or self._order_would_differ()
            if status != FINE or self.error is not None or different:
                for allocation, store in self.saved.items():
                    allocation.store[:] = store
                if self.error is not None:
                    raise self.error
                return False
            first += count
            step = max(1, min(step * 2, int(count * _PART / max(perf_counter() - started, 1e-9))))
        self._define()
        self._collect()
        return True

    def _counts_would_differ(self) -> bool:
        """Whether the interpreter might count other executions of blocks: a fragment that has jumped backwards often
        yields to others, and the lanes of a warp that would meet then run apart."""
        tired, parted = (self.words[CONTEXT[name] // 8] for name in ("tired", "parted"))
        return self.launch.counting and bool(tired and parted)

    def _order_would_differ(self) -> bool:
        """Whether the interpreter might execute atomics in another order that has other results: of several on the same
        bytes that do not commute, or of lanes that wait for a long loop."""
        updates = self.kernel.writer.updates
        low, high = (self.atomics[:, ATOMIC[name] // 8].tolist() for name in ("low", "high"))
        used = [number for number in range(len(updates)) if low[number] < high[number]]
        if self.words[CONTEXT["tired"] // 8] and any(updates[number].commutes is None for number in used):
            return True
        for one, other in combinations(used, 2):
            meet = low[one] < high[other] and low[other] < high[one]
            alike = updates[one].commutes is not None and updates[one] == updates[other]
            if meet and updates[one].space == updates[other].space and not alike:
                return True
        return False

    def _find(self, pointer: int, low: int, end: int) -> int:
        """Find the allocation of an access, for its place in ``caches`` at ``pointer``."""
        try:
            return self._found(pointer, low, end)
        except BaseException as error:  # machine code must not be left by an exception
            self.error = error
            return BAIL

    def _found(self, pointer: int, low: int, end: int) -> int:
        number = (pointer - self.caches.ctypes.data) // CACHE_BYTES
        instruction = self.kernel.writer.found[number].instruction
        opcode = instruction.opcode
        stores, updates = opcode in ("st", *ATOMICS), opcode in ATOMICS
        try:
            allocation = self.launch.space.covering(low, end - low)
        except MemoryFault:
            return BAIL
        may_change = self.written is None or allocation in self.written
        cached = "nc" in instruction.modifiers and may_change
        large = may_change and len(allocation.store) > _MOST_SAVED
        bounds = allocation.bounds
        first, last = (allocation.address, allocation.end) if bounds is None else (bounds.start, bounds.end)
        gaps = bounds is not None and bounds.has_gaps
        if gaps or low < first or end > last or cached or large or (stores and not may_change):
            return BAIL
        if stores and allocation not in self.saved:
            self.saved[allocation] = allocation.store.copy()
            if sum(map(len, self.saved.values())) > _MOST_SAVED:
                return BAIL
        self.stores.append(allocation.store)
        writes = reads = undefined = 0
        if self.checked and may_change and allocation.kind != "constant":
            writes = self._table(self.writes, allocation)
            if not stores:
                reads = self._table(self.reads, allocation)
                # stores to it that were found before it was read
                same = self.caches[:, CACHE["writes"] // 8] == writes
                self.caches[same, CACHE["reads"] // 8] = reads
            elif allocation in self.reads:
                reads = self._table(self.reads, allocation)
        if "init" in self.launch.checks and (updates or not stores):
            found = allocation.undefined_bytes()
            if found is not None:
                self.stores.append(found)
                undefined = found.ctypes.data
        row = {
            "base": allocation.base,
            "low": first,
            "high": last,
            "writes": writes,
            "reads": reads,
            "undefined": undefined,
            "shift": allocation.store.ctypes.data - allocation.base,
            "flags": bool(writes or undefined),
        }
        for name, value in row.items():
            self.caches[number, CACHE[name] // 8] = value
        return FINE

    def _table(self, tables: dict[Allocation, Array], allocation: Allocation) -> int:
        """The address of an allocation's table, which is made if there is none."""
        if allocation not in tables:
            tables[allocation] = _table(len(allocation.store) >> self.global_shift)
        return tables[allocation].ctypes.data

    def close(self) -> None:
        """Keep the tables for later launches."""
        for table in (*self.writes.values(), *self.reads.values()):
            if sum(map(len, _spare)) + len(table) <= _MOST_SPARE:
                table.fill(0)
                _spare.append(table)

    def _define(self) -> None:
        """Mark the memory that the launch stored to as initialised."""
        for allocation, writes in self.writes.items():
            undefined = allocation.undefined_bytes()
            if undefined is not None:
                undefined.view(np.uint32 if self.global_shift else np.uint8)[writes != 0] = 0
                allocation.forget_if_defined()

    def _collect(self) -> None:
        """Add the counts to those of the launch."""
        run, writer = self.launch, self.kernel.writer
        blocks = self.kept["counts"].view(np.int64)[: 3 * len(writer.program.blocks)].reshape(-1, 3)
        for block, counts in zip(writer.program.blocks, blocks.tolist(), strict=True):
            if counts[0]:
                run.block_counts[block.number] = counts
        if not run.counting:
            return
        table = self.kept["sites"].view(np.int64).reshape(-1, SITE_BYTES // 8)
        for counted, row in zip(writer.counted, table.tolist(), strict=False):
            requests, lanes, cost, ideal, worst, depth, deepest = (row[place // 8] for place in SITE.values())
            # a load that ptxas merges with its neighbours is counted at the first of them
            for site in counted.sites if requests and (counted.size or counted.kind == "other") else ():
                tally = run.tally(site)
                tally.depth += depth
                tally.worst_depth = max(tally.worst_depth, deepest)
                if counted.kind == "other":
                    tally.requests += requests
                    tally.lanes += lanes
                elif counted.kind == "global":
                    tally.sector_requests += requests
                    tally.global_bytes += lanes * counted.size
                    tally.sectors += cost
                    tally.ideal_sectors += ideal
                elif counted.kind == "local":
                    tally.local_requests += requests
                    tally.local_bytes += lanes * counted.size
                else:
                    tally.wavefront_requests += requests
                    tally.shared_bytes += lanes * counted.size
                    tally.wavefronts += cost
                    tally.ideal_wavefronts += ideal
                    tally.worst_ways = max(tally.worst_ways, worst)


def _count_pattern(pointer: int) -> int:
    """Compute the wavefronts of a pattern of shared memory that is new to the table of patterns."""
    entry = np.ctypeslib.as_array((ctypes.c_int32 * (PATTERN_BYTES // 4)).from_address(pointer))
    mask, kind = int(entry[PATTERN["mask"] // 4]), int(entry[PATTERN["kind"] // 4])
    offsets = entry[PATTERN["offsets"] // 4 :][:LANES]
    index = np.flatnonzero([mask >> lane & 1 for lane in range(LANES)])
    lanes = LaneSet(_WARP, index, len(index))
    found = wavefronts(lanes, offsets[index].astype(np.int32), kind >> 1, bool(kind & 1))
    for name, value in zip(("passes", "fewest", "worst"), found, strict=True):
        entry[PATTERN[name] // 4] = value
    return FINE
