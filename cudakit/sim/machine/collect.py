"""Collects the counters of a launch, per kernel and per source line, from the counts of basic blocks and sites.

The source line and class of each instruction are the same for all launches of a kernel and are computed once.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from cudakit.sim.lockstep.branches import becomes_predicates
from cudakit.sim.lockstep.counters import Counters, LineCounters, SourceLine
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import BRANCH, INDIRECT, SWITCH
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.traffic import Tally
from cudakit.sim.machine.loading import LoadedFunction
from cudakit.sim.ptx.ir import Instruction, Location
from cudakit.sim.ptx.mix import CLASSES, class_of, multiply_adds
from cudakit.sim.ptx.opcodes import row_of

# the kinds of sites that copy in bulk, and of those that wait for a phase
_BULK = frozenset(("bulk copy", "bulk reduction", "tensor copy", "tensor reduction"))
_ASYNC_STORES = frozenset(("st.async", "red.async"))
_WAITS = frozenset(("mbarrier.test_wait", "mbarrier.try_wait"))
_CLASS_NUMBER = {name: number for number, name in enumerate(CLASSES)}


class CountingPlan:
    """The lines, classes and branches of a kernel's counted blocks and sites.

    ``places`` are the source lines; the first is None, for code without a line. ``rows`` are (line, class, block,
    instructions) of all code, ``inlined`` (line, block, instructions) of the code inlined into lines. ``branches`` maps
    each block that ends with a branch to its line; ``short`` are the blocks whose branch ptxas turns into predicates.
    """

    def __init__(self, function: LoadedFunction) -> None:
        # not the module: a plan lives as long as its kernel, and must not keep it alive
        self.sources = function.module.sources
        self.places: list[SourceLine | None] = [None]
        self._numbers: dict[SourceLine, int] = {}
        self._located: dict[Location | None, tuple[int, ...]] = {None: (0,)}
        self._sites: dict[int, int] = {}
        self.branches: dict[int, int] = {}
        self.short: set[int] = set()
        rows: dict[tuple[int, int, int], int] = {}
        inlined: dict[tuple[int, int], int] = {}
        for program in function.reachable:
            skipped: Instruction | None = None
            for block in program.blocks:
                for instruction in block.instructions:
                    if instruction is skipped:
                        continue  # a guarded ret or exit, which was counted as the branch on its guard
                    first, *outer = self.lines_of(instruction)
                    key = (first, _CLASS_NUMBER[class_of(instruction)], block.number)
                    rows[key] = rows.get(key, 0) + 1
                    for line in set(outer) - {first}:
                        inlined[line, block.number] = inlined.get((line, block.number), 0) + 1
                if block.kind in (BRANCH, SWITCH, INDIRECT):
                    skipped = block.instructions[-1]
                    self.branches[block.number] = self.lines_of(skipped)[0]
                    if becomes_predicates(program, block):
                        self.short.add(block.number)
        self.rows = np.array([(*key, count) for key, count in rows.items()], np.int64).reshape(-1, 4)
        self.inlined = np.array([(*key, count) for key, count in inlined.items()], np.int64).reshape(-1, 3)

    def lines_of(self, instruction: Instruction) -> tuple[int, ...]:
        """The numbers of an instruction's source line and of the lines into which it was inlined."""
        found = self._located.get(instruction.location)
        if found is None:
            places = [(place.file, place.line) for place in self.sources.place(instruction)]
            found = self._located[instruction.location] = tuple(map(self._number, places)) or (0,)
        return found

    def line_of(self, site: Site) -> int:
        """The number of a site's source line."""
        found = self._sites.get(site.number)
        if found is None:
            found = self._sites[site.number] = self.lines_of(site.instruction)[0]
        return found

    def _number(self, place: SourceLine) -> int:
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self.places)
            self.places.append(place)
        return found


_plans: WeakKeyDictionary[LoadedFunction, CountingPlan] = WeakKeyDictionary()


def collect(function: LoadedFunction, run: KernelRun, blocks: int, threads: int) -> Counters:
    """The counters of a launch that has ended."""
    plan = _plans.get(function)
    if plan is None:
        plan = _plans[function] = CountingPlan(function)
    counted = np.array([count or (0, 0, 0) for count in run.block_counts], np.int64).reshape(-1, 3)
    lines = _instructions(plan, counted)
    for block, number in plan.branches.items():
        warps, _, parted = counted[block].tolist()
        if warps:
            line = lines[number]
            line.branches += warps
            line.divergent_branches += parted
            if block in plan.short:
                line.short_branches += warps
                line.divergent_short_branches += parted
    for site, tally in zip(function.module.sites.all, run.tallies, strict=True):
        if tally is not None:
            number = plan.line_of(site)
            if number not in lines:
                lines[number] = LineCounters()
            _add_site(lines[number], site, tally)
    total = Counters(launches=1, blocks=blocks, threads=blocks * threads)
    for number, line in lines.items():
        total.add(line)
        place = plan.places[number]
        if place is not None:
            total.per_line[place] = line
    executed = plan.inlined[:, 2] * counted[plan.inlined[:, 1], 0]
    sums = np.bincount(plan.inlined[:, 0], executed, len(plan.places)).astype(np.int64)
    for place, count in zip(plan.places, sums.tolist(), strict=True):
        if place is not None and count:
            total.inlined[place] = count
    return total


def _instructions(plan: CountingPlan, counted: Array) -> dict[int, LineCounters]:
    """Instructions by line, for the lines whose code ran."""
    line, kind, block, count = plan.rows.T
    mix = np.zeros((len(plan.places), len(CLASSES)), np.int64)
    np.add.at(mix, (line, kind), count * counted[block, 0])
    lanes = np.zeros(len(plan.places), np.int64)
    np.add.at(lanes, line, count * counted[block, 1])
    lines = {}
    for number in np.flatnonzero(lanes):
        row = mix[number].tolist()
        classes = {name: n for name, n in zip(CLASSES, row, strict=True) if n}
        lines[int(number)] = LineCounters(sum(row), int(lanes[number]), mix=classes)
    return lines


def _add_site(line: LineCounters, site: Site, tally: Tally) -> None:
    """Add the counts of a site to its line."""
    kind, group = site.kind, row_of(site.instruction).mix
    line.distributed_requests += tally.distributed_requests
    if kind == "matrix product":
        name, count = multiply_adds(site.instruction)
        line.multiply_adds[name] = line.multiply_adds.get(name, 0) + count * tally.requests
    elif kind == "barrier":
        line.barriers += tally.requests
    elif kind in _WAITS:
        line.mbarrier_waits += tally.requests
        line.mbarrier_waits_ready += tally.ready
    elif kind in _BULK:
        _add_bulk(line, site, tally)
    elif kind in _ASYNC_STORES:
        line.async_store_requests += tally.requests
        line.async_store_bytes += tally.bulk_bytes
    elif kind == "shuffle":
        line.shuffles += tally.requests
    elif group == "atomic":
        line.atomics += tally.sector_requests + tally.wavefront_requests + tally.distributed_requests
        line.atomic_depth += tally.depth
        line.worst_contention = max(line.worst_contention, tally.worst_depth)
        line.global_atomic_requests += tally.sector_requests
        line.global_atomic_sectors += tally.sectors
        line.global_atomic_bytes += tally.global_bytes
        line.shared_atomic_requests += tally.wavefront_requests
    elif group == "other":
        return  # a prefetch or cache hint: it has an address but transfers no data
    elif kind.endswith("load") and not kind.startswith("const"):
        line.global_load_requests += tally.sector_requests
        line.global_load_sectors += tally.sectors
        line.global_load_ideal_sectors += tally.ideal_sectors
        line.global_load_bytes += tally.global_bytes
        line.local_load_requests += tally.local_requests
        line.local_load_bytes += tally.local_bytes
        line.shared_load_requests += tally.wavefront_requests
        line.shared_load_wavefronts += tally.wavefronts
        line.shared_load_ideal_wavefronts += tally.ideal_wavefronts
        _add_conflicts(line, tally)
    elif kind.endswith("store"):
        line.global_store_requests += tally.sector_requests
        line.global_store_sectors += tally.sectors
        line.global_store_ideal_sectors += tally.ideal_sectors
        line.global_store_bytes += tally.global_bytes
        line.local_store_requests += tally.local_requests
        line.local_store_bytes += tally.local_bytes
        line.shared_store_requests += tally.wavefront_requests
        line.shared_store_wavefronts += tally.wavefronts
        line.shared_store_ideal_wavefronts += tally.ideal_wavefronts
        _add_conflicts(line, tally)


def _add_bulk(line: LineCounters, site: Site, tally: Tally) -> None:
    """Add bulk copies, by their direction. Only those out of shared memory into global memory complete in groups."""
    line.bulk_requests += tally.requests
    line.bulk_clipped_bytes += tally.clipped_bytes
    if "bulk_group" in site.instruction.modifiers:
        line.bulk_store_bytes += tally.bulk_bytes
    elif "global" in site.instruction.modifiers:
        line.bulk_load_bytes += tally.bulk_bytes
    else:
        line.bulk_distributed_bytes += tally.bulk_bytes


def _add_conflicts(line: LineCounters, tally: Tally) -> None:
    line.shared_bytes += tally.shared_bytes
    line.bank_conflicts += tally.wavefronts - tally.ideal_wavefronts
    line.worst_bank_conflict = max(line.worst_bank_conflict, tally.worst_ways)
