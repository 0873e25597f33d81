"""One launch of a kernel: its configuration, the services of the device that it uses, and its counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.sim.chips.properties import Chip
from cudakit.sim.lockstep.clock import Clock
from cudakit.sim.lockstep.heap import Heap
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import AddressSpace, round_up
from cudakit.sim.lockstep.probes import Probe
from cudakit.sim.lockstep.report import Index3, Origin, SourcePlace
from cudakit.sim.lockstep.sites import Site, Sites
from cudakit.sim.lockstep.traffic import Tally
from cudakit.sim.ptx.ir import Instruction


@dataclass(frozen=True)
class RunConfig:
    """A kernel and how it is launched. Sizes are bytes.

    ``kernel`` is the mangled name, ``params`` the parameter bytes as the kernel reads them. ``shared_bytes`` is all
    shared memory of a block, ``dynamic_shared`` the part that the launch requested; ``shared_symbols`` are the
    addresses of shared variables. ``explicit_cluster``: the launch or the kernel specifies ``cluster``;
    ``cluster_barriers``: the kernel contains cluster barriers. ``draw``: the seed of the moments at which
    asynchronous copies complete; None: as late as allowed. ``registers`` are those of a thread at launch, 0 if the
    kernel's directives do not determine them. ``step_limit``: the most loop iterations (jumps
    backwards, by any number of lanes at once) of the blocks that run together. ``step_budget``: the same, but counted
    from 0 in each iteration of a loop that is sure to end; None: the launch has a limit of its own.
    """

    kernel: str
    grid: Index3
    block: Index3
    params: bytes
    shared_bytes: int
    dynamic_shared: int
    shared_symbols: Mapping[str, int]
    local_bytes: int
    cluster: Index3 = (1, 1, 1)
    explicit_cluster: bool = False
    cluster_barriers: bool = False
    checks: frozenset[str] = frozenset()
    counting: bool = True
    draw: int | None = None
    registers: int = 0
    step_limit: int = sys.maxsize
    step_budget: int | None = None

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class RunServices:
    """The parts of a device that a kernel uses. ``heap`` serves malloc, ``printf`` receives the text that a kernel
    prints, and ``place`` returns the source lines of an instruction."""

    chip: Chip
    space: AddressSpace
    heap: Heap
    printf: Callable[[str], None]
    place: Callable[[Instruction], tuple[SourcePlace, ...]]


class KernelRun:
    """One launch: the data that its batches share, and their counts.

    ``sites`` are those of the kernel's module, ``environment`` the values of the registers %envreg by number.
    """

    def __init__(self, config: RunConfig, services: RunServices, sites: Sites, environment: Mapping[int, int]) -> None:
        self.config = config
        self.services = services
        self.environment = environment
        self.space = services.space
        self.checks = config.checks
        self.counting = config.counting
        self.shared_bytes = config.shared_bytes
        self.local_bytes = config.local_bytes
        self.cluster_size = config.cluster[0] * config.cluster[1] * config.cluster[2]
        # the parameters as elements of any type
        padded = config.params.ljust(round_up(len(config.params) + 1, 32), b"\0")
        self.param_store = np.frombuffer(padded, np.uint8)
        self.tallies: list[Tally | None] = [None] * len(sites.all)
        # per basic block: warps, lanes, and warps that diverge at its end
        self.block_counts: list[list[int] | None] = [None] * len(sites.sizes)
        self.block_sizes = sites.sizes
        self.clock = Clock()
        # the line that launched it, if it is known
        self.launched: Origin | None = None
        # the objects that follow its instructions (probes.py)
        self.probes: tuple[Probe, ...] = ()
        # the origins of undefined values (undefined.py)
        self.origins: list[Any] = []

    def place(self, instruction: Instruction) -> tuple[SourcePlace, ...]:
        """The source lines of an instruction."""
        return self.services.place(instruction)

    def executed(self) -> int:
        """The instructions that warps have executed so far, including all of the blocks that are running."""
        counts = zip(self.block_counts, self.block_sizes, strict=True)
        return sum(count[0] * size for count, size in counts if count is not None)

    def block_indices(self, numbers: Array) -> Array:
        """The grid index of each of these blocks of the launch, (numbers, 3) of int64."""
        grid, dims = np.array(self.config.grid), np.array(self.config.cluster)
        cluster, rank = np.divmod(numbers, self.cluster_size)
        found: Array = _unravel(cluster, grid // dims) * dims + _unravel(rank, dims)
        return found

    def tally(self, site: Site) -> Tally:
        """The counts of a site."""
        found = self.tallies[site.number]
        if found is None:
            found = self.tallies[site.number] = Tally()
        return found


def _unravel(number: Array, dims: Array) -> Array:
    """The three-dimensional indices of linear numbers, x fastest, (numbers, 3)."""
    x, y = int(dims[0]), int(dims[1])
    return np.stack((number % x, number // x % y, number // (x * y)), axis=1)
