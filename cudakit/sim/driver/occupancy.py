"""Driver calls about occupancy, and the configuration of extended launches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.chips.occupancy import active_blocks, active_clusters, available_shared
from cudakit.sim.chips.properties import Chip
from cudakit.sim.driver.arguments import Handle, as_handle, signed, unsigned
from cudakit.sim.driver.contexts import PRIORITIES
from cudakit.sim.driver.faults import CallError, Result
from cudakit.sim.driver.functions import UNSUPPORTED_HINT, Function, FunctionCalls
from cudakit.sim.driver.state import call

Index3 = tuple[int, int, int]
_ATTRIBUTE = cu.CUfunction_attribute
_LAUNCH = cu.CUlaunchAttributeID
_NOT_SIMULATED = frozenset(
    int(attribute)
    for attribute in (
        _LAUNCH.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
        _LAUNCH.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
        _LAUNCH.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
    )
)


class OccupancyCalls(FunctionCalls):
    """cuOccupancy*: the number of blocks and clusters that fit."""

    @call(1)
    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, func: Handle, blockSize: int, dynamicSMemSize: int) -> int:
        return self._occupancy(func, blockSize, dynamicSMemSize)

    @call(1)
    def cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        self, func: Handle, blockSize: int, dynamicSMemSize: int, flags: int
    ) -> int:
        return self._occupancy(func, blockSize, dynamicSMemSize)

    def _occupancy(self, func: Handle, block: int, dynamic: int) -> int:
        function = self._function(func)
        if signed(block) <= 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"a block of {block} threads")
        return self._resident(function, block, unsigned(dynamic, 64))

    @staticmethod
    def _resident(function: Function, threads: int, dynamic: int) -> int:
        if threads > function.max_threads:
            return 0
        shared = function.loaded.static_shared + dynamic
        return active_blocks(function.chip, threads, function.registers, shared).blocks

    @call(1)
    def cuOccupancyAvailableDynamicSMemPerBlock(self, func: Handle, numBlocks: int, blockSize: int) -> int:
        function = self._function(func)
        if signed(numBlocks) <= 0 or signed(blockSize) <= 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{numBlocks} blocks of {blockSize} threads")
        if self._resident(function, blockSize, 0) < numBlocks:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"{numBlocks} blocks of {blockSize} threads do not fit on one SM"
            )
        return available_shared(function.chip, numBlocks, function.loaded.static_shared)

    @call(2)
    def cuOccupancyMaxPotentialBlockSize(
        self, func: Handle, blockSizeToDynamicSMemSize: Any, dynamicSMemSize: int, blockSizeLimit: int
    ) -> tuple[int, int]:
        function = self._function(func)
        if blockSizeToDynamicSMemSize is not None and as_handle(blockSizeToDynamicSMemSize):
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, "a shared-memory callback is not simulated")
        most = min(function.max_threads, blockSizeLimit or function.max_threads)
        step = function.chip.warp_size
        best, best_threads, best_blocks = 0, 0, 0
        for threads in range(most - most % step or most, 0, -step):
            blocks = self._resident(function, threads, unsigned(dynamicSMemSize, 64))
            if blocks * threads > best:
                best, best_threads, best_blocks = blocks * threads, threads, blocks
        return best_blocks * function.chip.multiprocessors, best_threads

    @call(1)
    def cuOccupancyMaxActiveClusters(self, func: Handle, config: Any) -> int:
        function = self._function(func)
        if config is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "config is None")
        asked = read_config(config, function.chip)
        size = int(np.prod(self._cluster(function, asked.grid, asked.cluster) or (1, 1, 1)))
        resident = self._resident(function, int(np.prod(asked.block)), int(config.sharedMemBytes))
        return active_clusters(function.chip, size, resident)

    @call(1)
    def cuOccupancyMaxPotentialClusterSize(self, func: Handle, config: Any) -> int:
        function = self._function(func)
        if not function.chip.has_clusters:
            return 1
        free = function.settings.get(int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED), 0)
        return function.chip.largest_cluster if free else function.chip.portable_cluster

    @staticmethod
    def _cluster(function: Function, grid: Index3, asked: Index3 | None) -> Index3 | None:
        """Check and return a launch's cluster size: the requested size, else the compiled-in size; None without
        either."""
        loaded, settings, chip = function.loaded, function.settings, function.chip
        name, invalid = loaded.name, Result.CUDA_ERROR_INVALID_CLUSTER_SIZE
        required = loaded.required_cluster
        if asked is not None and required is not None and asked != required:
            raise CallError(invalid, f"{name}: a cluster of {asked}, but the kernel is compiled for {required}")
        cluster = asked or required
        if cluster is None:
            if loaded.cluster_must_be_set:
                raise CallError(invalid, f"{name}: the kernel is compiled for clusters: pass a cluster size")
            return None
        size = int(np.prod(cluster))
        if size == 1:
            return cluster
        if not chip.has_clusters:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, f"{name}: {chip.arch} does not support clusters")
        allowed = settings.get(int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED), 0)
        most = chip.largest_cluster if allowed else chip.portable_cluster
        most = min(most, loaded.max_cluster or most)
        if not 0 < size <= most:
            raise CallError(invalid, f"{name}: a cluster of {size} blocks; at most {most} are allowed")
        if any(g % c for g, c in zip(grid, cluster, strict=True)):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"{name}: grid {grid} is not a multiple of cluster {cluster}"
            )
        return cluster


class LaunchSettings(NamedTuple):
    """A CUlaunchConfig: ``cluster`` is None without one, ``priority`` None for the stream's.

    ``programmatic``: the kernel may start before its predecessor on the stream has ended (programmatic dependent
    launch). The simulated device starts the kernel after that end, and reports accesses that should wait (`order`).
    Priorities do not change the order of work either."""

    grid: Index3
    block: Index3
    cluster: Index3 | None = None
    cooperative: bool = False
    programmatic: bool = False
    priority: int | None = None


def read_config(config: Any, chip: Chip) -> LaunchSettings:
    """Read and check a CUlaunchConfig. Attributes that are only hints are ignored; raises CallError for those that
    change what a launch does and are not simulated."""
    found: dict[str, Any] = {}
    for attribute in list(config.attrs)[: int(config.numAttrs)]:
        kind, value = int(attribute.id), attribute.value
        if kind == int(_LAUNCH.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION):
            dim = value.clusterDim
            found["cluster"] = (int(dim.x), int(dim.y), int(dim.z))
        elif kind == int(_LAUNCH.CU_LAUNCH_ATTRIBUTE_COOPERATIVE):
            found["cooperative"] = bool(value.cooperative)
        elif kind == int(_LAUNCH.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION):
            found["programmatic"] = _programmatic(value.programmaticStreamSerializationAllowed, chip)
        elif kind == int(_LAUNCH.CU_LAUNCH_ATTRIBUTE_PRIORITY):
            least, greatest = PRIORITIES
            # clamped to the range, as by the driver
            found["priority"] = min(max(int(value.priority), greatest), least)
        elif kind in _NOT_SIMULATED:
            name = _LAUNCH(kind).name
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, f"{name} is not simulated", UNSUPPORTED_HINT)
    grid = (int(config.gridDimX), int(config.gridDimY), int(config.gridDimZ))
    block = (int(config.blockDimX), int(config.blockDimY), int(config.blockDimZ))
    return LaunchSettings(grid, block, **found)


def _programmatic(allowed: Any, chip: Chip) -> bool:
    if allowed and not chip.has_clusters:
        why = f"{chip.arch} does not support programmatic dependent launches: sm_90 and later do"
        raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, why)
    return bool(allowed)
