"""The lockstep machine: runs kernels on numpy vectors of lanes.

A launch runs in batches: consecutive blocks, as many as fit the caches, which the scheduler runs until all have exited.
Blocks that must be resident together (a cooperative launch, a kernel whose lanes wait for each other) are one batch.
Bounds and alignment are always checked; ``checks`` selects further checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from time import perf_counter

import numpy as np

from cudakit.sim.checks.footprints import Footprints
from cudakit.sim.checks.guard import Guard, LaunchGuard, wanted
from cudakit.sim.checks.watches import Watch
from cudakit.sim.chips.properties import Chip
from cudakit.sim.lockstep.control import LaneScheduler
from cudakit.sim.lockstep.counters import Counters
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.heap import Heap
from cudakit.sim.lockstep.lanes import Geometry
from cudakit.sim.lockstep.memory import RESERVED_BYTES, AddressSpace, round_up
from cudakit.sim.lockstep.probes import Probe
from cudakit.sim.lockstep.program import Program
from cudakit.sim.lockstep.register_pool import registers_at_launch
from cudakit.sim.lockstep.report import Index3, Origin
from cudakit.sim.lockstep.run import KernelRun, RunConfig, RunServices
from cudakit.sim.machine.collect import collect
from cudakit.sim.machine.engine import Restart, engine_of, mode
from cudakit.sim.machine.limits import default_step_limit
from cudakit.sim.machine.loading import LoadedFunction
from cudakit.sim.ptx.ir import NotSimulated

# lanes of a batch: enough to amortise Python's cost per instruction, few enough for the caches
_BATCH_LANES = 16384
# the most bytes of shared and local memory of one batch
_BATCH_BYTES = 64 << 20
# bytes of shared memory that the system reserves per block, for the estimate of how many blocks are resident
_RESERVED_PER_BLOCK = 1024
# local memory of a thread whose calls recurse: cuCtxGetLimit's default stack size
_RECURSION_BYTES = 8192
# the steps of each warp after which machine code leaves a launch without a limit of its own to the interpreter
_COMPILED_STEPS = 1 << 24


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
    chip: Chip,
    cooperative: bool = False,
    cluster: Index3 | None = None,
    checks: frozenset[str] = frozenset(),
    printf: Callable[[str], None] = lambda text: None,
    counters: bool = True,
    stack_limit: int | None = None,
    heap: Heap | None = None,
    prints: Footprints | None = None,
    watches: Sequence[Watch] = (),
    step_limit: int | None = None,
    draw: int | None = None,
    probes: Sequence[Probe] = (),
    launched: Origin | None = None,
) -> Counters:
    """Run a kernel. ``shared`` is the dynamic shared memory in bytes, ``params`` one value per parameter.

    ``checks`` may contain "barrier" (lanes of a warp at different barriers), "syncthreads" (warps of a block at
    different __syncthreads() of the source), "warp" (member masks with inactive lanes), "race" (data races in shared
    and global memory, cp.async results used before the wait), "benign" with "race" (also benign races) and "init"
    (uninitialised reads; of device memory only if the address space tracks it). Bounds, alignment and freed memory are
    always checked.
    ``counters=False`` does not count memory traffic. ``stack_limit`` is the local memory of a thread whose calls
    recurse, in bytes. ``heap`` serves malloc. ``prints`` records which bytes of some allocations are read and written;
    it requires "race" or "init" in ``checks``. Each of ``watches`` is notified of writes to global memory.
    ``step_limit`` is the most loop iterations of the blocks that run together; by default it follows from the launch
    (limits.py). ``draw`` is the seed of the moments at which asynchronous copies complete; by default they complete as
    late as allowed. ``probes`` may follow the launch instruction by instruction; the interpreter runs it then.
    ``launched`` is the line that launched it, for probes.

    Raises KernelFault if the kernel is stopped, ValueError if the launch is invalid, NotSimulated if the kernel needs
    PTX that is not simulated. The caller checks the limits of the device and the types of parameters.
    """
    if function.refusal is not None:
        raise NotSimulated(str(function.refusal), function.refusal.line)
    config = _configuration(function, grid, block, shared, params, cluster, checks, counters, stack_limit)
    space = function.module.space
    services = RunServices(chip, space, heap or Heap(space), printf, function.module.sources.place)
    together = config.blocks if cooperative else _blocks_at_once(config, chip, function.spins)
    if step_limit is None:
        budget = default_step_limit(min(together, config.blocks) * config.threads, params, space)
        config = replace(config, step_limit=max(budget, _COMPILED_STEPS), step_budget=budget, draw=draw)
    else:
        config = replace(config, step_limit=step_limit, draw=draw)
    for program in function.reachable:
        program.prepare()
    with _grid_barrier(space, cooperative) as environment:
        run = KernelRun(config, services, function.module.sites, environment)
        run.launched = launched
        run.probes = tuple(probe for probe in probes if probe.begin(function, run))
        if run.probes:
            with _followed(function, run):
                _interpret(function, run, round_up(together, run.cluster_size), prints, watches, None)
            return collect(function, run, config.blocks, config.threads)
        chosen = mode()
        plain = not watches and not cooperative and prints is None
        machine = engine_of(function) if plain and chosen != "interpreter" else None
        if machine is not None and machine.run(function, run, now=chosen == "compiled"):
            return collect(function, run, config.blocks, config.threads)
        started = perf_counter()
        together = round_up(together, run.cluster_size)  # the blocks of a cluster run together
        restart = machine.restarts(function, run) if machine is not None and together < config.blocks else None
        finished = _interpret(function, run, together, prints, watches, restart)
        if machine is not None:
            machine.seconds += perf_counter() - started
        if not finished and restart is not None:
            run = KernelRun(config, services, function.module.sites, environment)
            if not restart.run(run):
                _interpret(function, run, together, prints, watches, None)
    return collect(function, run, config.blocks, config.threads)


def _configuration(
    function: LoadedFunction,
    grid: Index3,
    block: Index3,
    shared: int,
    params: list[bytes],
    cluster: Index3 | None,
    checks: frozenset[str],
    counting: bool,
    stack_limit: int | None,
) -> RunConfig:
    """The configuration of a launch; ValueError if the parameters or the grid do not fit the kernel."""
    if len(params) != len(function.params):
        raise ValueError(f"{function.name} takes {len(function.params)} parameters, got {len(params)}")
    explicit = cluster or function.required_cluster
    cluster = explicit or (1, 1, 1)
    if any(blocks % group for blocks, group in zip(grid, cluster, strict=True)):
        raise ValueError(f"{function.name}: grid {grid} is not a multiple of cluster {cluster}")
    static = function.static_shared
    shared_bytes = round_up(static, function.dynamic_align) + shared if shared else static
    local = function.local_bytes
    if function.recursive:
        local = round_up(max(local, stack_limit or _RECURSION_BYTES), 32)
    return RunConfig(
        kernel=function.name,
        grid=grid,
        block=block,
        params=_packed(function, params),
        shared_bytes=shared_bytes + RESERVED_BYTES * function.reserves_shared,
        dynamic_shared=shared,
        shared_symbols=function.shared_symbols,
        local_bytes=local,
        cluster=cluster,
        explicit_cluster=explicit is not None,
        cluster_barriers=function.cluster_barriers,
        registers=registers_at_launch(function.program.function.directives),
        checks=checks,
        counting=counting,
    )


def _packed(function: LoadedFunction, params: list[bytes]) -> bytes:
    """The parameters at their offsets."""
    data = bytearray(function.param_bytes)
    for number, ((offset, size), value) in enumerate(zip(function.params, params, strict=True)):
        if len(value) != size:
            raise ValueError(f"parameter {number} of {function.name} has {size} bytes, got {len(value)}")
        data[offset : offset + size] = value
    return bytes(data)


def _interpret(
    function: LoadedFunction,
    run: KernelRun,
    together: int,
    prints: Footprints | None,
    watches: Sequence[Watch],
    restart: Restart | None,
) -> bool:
    """Run all blocks, ``together`` at a time. Returns False if the launch must start again in machine code."""
    watched = watches or wanted(run.checks)
    guard = LaunchGuard(run, function.reach, prints, watches) if watched else None
    blocks = run.config.blocks
    try:
        with np.errstate(all="ignore"):
            for first in range(0, blocks, together):
                if restart is not None and first and restart.due(first, blocks):
                    return False
                _run_batch(function.program, run, first, min(together, blocks - first), guard)
    finally:
        if guard is not None:
            guard.memory.finish()
    return True


def _run_batch(program: Program, run: KernelRun, first: int, count: int, guard: LaunchGuard | None) -> None:
    """Run ``count`` blocks from ``first`` on. The batch's memory is freed on return, before the next batch starts."""
    batch = Batch(run, _geometry(count, run.config.block), first)
    checks = Guard(guard, batch) if guard is not None else None
    batch.guard = checks
    LaneScheduler(batch, program, run.config.blocks - first - count).loop()
    # break the cycles, so that shared memory and shadow tables are freed with the batch
    batch.warpgroups = batch.asynchrony = batch.scheduler = None
    if checks is not None:
        batch.guard = None
        checks.end()


def _blocks_at_once(config: RunConfig, chip: Chip, spins: bool) -> int:
    """The number of blocks of a batch. ``spins``: lanes of the kernel may wait for stores of other lanes."""
    threads, shared = config.threads, config.shared_bytes
    fitting = max(1, _BATCH_LANES // threads)
    memory = shared + config.local_bytes * threads
    if memory:
        fitting = max(1, min(fitting, _BATCH_BYTES // memory))
    if spins:
        # as many as are resident on the device: blocks may wait for each other without a cooperative launch
        resident = chip.max_threads_per_multiprocessor // max(threads, 1)
        if shared:
            resident = min(resident, chip.shared_per_multiprocessor // (shared + _RESERVED_PER_BLOCK))
        fitting = max(fitting, max(1, min(resident, 32)) * chip.multiprocessors)
    return min(config.blocks, fitting)


@contextmanager
def _followed(function: LoadedFunction, run: KernelRun) -> Iterator[None]:
    """The kernel's programs with the hooks of the launch's probes."""
    for program in function.reachable:
        program.follow(run.probes, undefined="init" in run.checks)
    try:
        yield
    finally:
        for program in function.reachable:
            program.follow(())
        for probe in run.probes:
            probe.end(run)


@contextmanager
def _grid_barrier(space: AddressSpace, cooperative: bool) -> Iterator[dict[int, int]]:
    """Memory for the grid barrier of cooperative groups: kernels find its address in %envreg1 and %envreg2."""
    if not cooperative:
        yield {}
        return
    allocation = space.allocate(64, "device", "for the grid barrier")
    allocation.data[:] = 0
    allocation.data[0] = 64
    allocation.define()
    try:
        yield {1: allocation.address >> 32, 2: allocation.address & 0xFFFFFFFF}
    finally:
        space.free(allocation.address)
