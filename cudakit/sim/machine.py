"""The lockstep machine: runs kernels on numpy vectors of lanes.

A launch goes batch by batch: some consecutive blocks whose lanes together fill the caches, run to their end by the
scheduler. Blocks that must be resident together (a cooperative launch, a kernel whose lanes wait for each other) make
one batch. Bounds and alignment are always checked; ``checks`` switches on what goes beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from cudakit.sim.checks.footprints import Footprints
from cudakit.sim.checks.guard import Guard, LaunchGuard, wanted
from cudakit.sim.chips.properties import Chip
from cudakit.sim.collect import collect
from cudakit.sim.loading import LoadedFunction
from cudakit.sim.lockstep.control import Scheduler
from cudakit.sim.lockstep.counters import Counters
from cudakit.sim.lockstep.fragment import Batch, Run
from cudakit.sim.lockstep.heap import Heap
from cudakit.sim.lockstep.lanes import Geometry
from cudakit.sim.lockstep.memory import RESERVED_BYTES, round_up
from cudakit.sim.lockstep.report import Index3

# lanes of a batch: enough to hide Python's cost for each instruction, few enough for the caches
_BATCH_LANES = 16384
# bytes of shared and local memory that one batch may have
_BATCH_BYTES = 64 << 20
# local memory for calls that recurse, as cuCtxGetLimit's default
_RECURSION_BYTES = 8192


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
        chip=chip,
        checks=checks,
        printf=printf,
        counting=counters,
        sites=len(function.module.sites.all),
        blocks=function.module.sites.blocks,
        place=function.module.sources.place,
        environment=environment,
        heap=heap or Heap(function.module.space),
        cluster=cluster,
        explicit_cluster=explicit is not None,
        cluster_barriers=function.cluster_barriers,
    )
    together = _batch_blocks(function, blocks, threads, shared_bytes, local, cooperative, chip)
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
    chip: Chip,
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
        resident = chip.max_threads_per_multiprocessor // max(threads, 1)
        if shared:
            resident = min(resident, chip.shared_per_multiprocessor // (shared + 1024))
        fitting = max(fitting, max(1, min(resident, 32)) * chip.multiprocessors)
    return min(blocks, fitting)


def _grid_workspace(function: LoadedFunction, environment: dict[int, int]) -> int:
    """Memory for cooperative groups' grid barrier, whose address kernels find in %envreg1 and %envreg2."""
    allocation = function.module.space.allocate(64, "device", "for the grid barrier")
    allocation.data[:] = 0
    allocation.data[0] = 64
    allocation.define()
    environment[1], environment[2] = allocation.address >> 32, allocation.address & 0xFFFFFFFF
    return allocation.address
