"""Function: a kernel's limits and resources as the driver reports them, and the check of launch configurations."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cudakit import nvtx
from cudakit.compile import options
from cudakit.compile.compiler import Resources
from cudakit.driver.context import Context
from cudakit.errors import Closed, LaunchError
from cudakit.launch import following
from cudakit.launch.image import Image

# -G makes kernels use more registers: under a debugger, blocks of all sizes fit nevertheless
_FITTING_REGISTERS = 64
Dim = tuple[int, int, int]

_PORTABLE_CLUSTER = 8  # blocks per cluster that every chip with clusters supports
_PROGRAMMATIC_SINCE = (9, 0)  # compute capability
_KEPT = 1024  # configurations remembered per function


class LaunchConfig(NamedTuple):
    """A checked launch configuration, in the order cuLaunchKernel takes it."""

    grid_x: int
    grid_y: int
    grid_z: int
    block_x: int
    block_y: int
    block_z: int
    shared: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks along x, y and z."""
        return self[0], self[1], self[2]

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads along x, y and z."""
        return self[3], self[4], self[5]


class LaunchOptions(NamedTuple):
    """The options of a launch that cuLaunchKernel does not take, as the caller passed them; see `Kernel.launch`."""

    cluster: Any = None
    cooperative: Any = False
    programmatic: Any = False
    priority: Any = None

    @property
    def plain(self) -> bool:
        """Whether no option is set."""
        return self.cluster is None and not self.cooperative and not self.programmatic and self.priority is None


def exact(*sizes: Any) -> bool:
    """Return whether each is exactly an int or a tuple of ints: a dict would find 1.0 and True under the key 1."""
    return all(type(size) is int or (type(size) is tuple and all(type(part) is int for part in size)) for size in sizes)


def _whole(value: Any) -> int:
    """Return `value` as an int. Raises TypeError if it is not one, or is a bool."""
    if isinstance(value, (bool, np.bool)):
        raise TypeError("a bool")
    return operator.index(value)


def _dimensions(kernel: str, what: str, value: Any) -> Dim:
    """Return `value` (an int, or one to three of them) as three ints of at least 1. Raises LaunchError."""
    row = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim == 1)
    try:
        extents = [_whole(extent) for extent in (value if row else (value,))]
    except TypeError:
        raise LaunchError(f"{kernel}: {what} must be an int or a tuple of up to three, got {value!r}") from None
    if not 1 <= len(extents) <= 3:
        raise LaunchError(f"{kernel}: {what} must have one to three dimensions, got {value!r}")
    if any(extent < 1 for extent in extents):
        advice = "; skip the launch for empty inputs" if what == "grid" else ""
        raise LaunchError(f"{kernel}: {what} must be at least 1 in each dimension, got {value!r}{advice}")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def parameter_count(context: Context, function: Any) -> int | None:
    """Return the number of parameters of a driver's function; None if the driver does not report it (before CUDA 13.2).

    Without it, cuFuncGetParamInfo is called until it fails; compute-sanitizer reports that call.
    """
    try:
        code, count = context.driver.cuFuncGetParamCount(function)
    except (AttributeError, RuntimeError):  # the bindings, or the driver, are older
        return None
    return None if code else int(count)


class Function:
    """A function of an image: its limits and resources, and the check of a launch configuration against them.

    name: in C++ ("softmax<8>"). mangled: its name in the cubin. Sizes are bytes: static_shared, local_bytes (per
    thread), max_dynamic_shared (the limit for a launch). registers, spills: as ptxas reports them. max_threads: the
    limit per block. required_cluster: the cluster it was compiled for (`__cluster_dims__`), or None. sends: for each
    (grid, block, shared) that passed the check, cuLaunchKernel with all but its last three arguments bound.
    """

    def __init__(self, module: Image, mangled: str, name: str, resources: Resources | None) -> None:
        self.module = module
        self.context = context = module.context
        self.mangled = mangled
        self.name = name
        with nvtx.range(f"load kernel {name}"), context.relaxed():
            self.handle: Any = context.call("cuModuleGetFunction", module.handle, mangled.encode())
            # A lazily loaded function has no parameter info before it is loaded.
            context.call("cuFuncLoad", self.handle)
        if context.kind == "sim" and resources is not None:
            registers = min(resources.registers, _FITTING_REGISTERS) if options.debug_code else resources.registers
            context.driver.simSetResources(self.handle, registers=registers, local_bytes=resources.stack)
        self.registers = self._attribute("NUM_REGS") if resources is None else resources.registers
        self.static_shared = self._attribute("SHARED_SIZE_BYTES")
        self.local_bytes = self._attribute("LOCAL_SIZE_BYTES")
        self.max_threads = self._attribute("MAX_THREADS_PER_BLOCK")
        self.max_dynamic_shared = context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - self.static_shared
        self.resources = resources if resources is not None else Resources(self.registers, self.static_shared)
        # Not a cached_property: CPython would make a dict for each kernel, which every launch would search.
        self.required_cluster = self._required_cluster()
        self.sends: dict[Any, Callable[..., Any]] = {}
        self.lock = threading.Lock()
        without_opting_in = context.attribute("MAX_SHARED_MEMORY_PER_BLOCK") - self.static_shared
        self._allowed_shared = min(self._attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES"), without_opting_in)
        self._configs: dict[Any, LaunchConfig] = {}

    def parameter_layout(self, count: int | None) -> list[tuple[int, int]]:
        """Return offset and size in bytes of each of `count` parameters; of all that the driver reports if None."""
        context = self.context
        layout: list[tuple[int, int]] = []
        context.make_current()
        if count is None:
            count = parameter_count(context, self.handle)
        while count is None or len(layout) < count:
            code, offset, size = context.driver.cuFuncGetParamInfo(self.handle, len(layout))
            if count is None and code == context.driver.CUresult.CUDA_ERROR_INVALID_VALUE:
                break
            context.check("cuFuncGetParamInfo", (code, offset, size))
            layout.append((int(offset), int(size)))
        return layout

    def _attribute(self, name: str) -> int:
        member = getattr(self.context.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self.context.call("cuFuncGetAttribute", member, self.handle))

    def _set(self, name: str, value: int) -> None:
        member = getattr(self.context.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        self.context.call("cuFuncSetAttribute", self.handle, member, value)

    # Resources and limits ---------------------------------------------------------------------------------------------

    @property
    def spills(self) -> int:
        """Bytes per thread that ptxas spilled to local memory, loads and stores added."""
        return self.resources.spill_stores + self.resources.spill_loads

    def _required_cluster(self) -> Dim | None:
        if not self.context.attribute("CLUSTER_LAUNCH"):
            return None
        width, height, depth = (self._attribute(f"REQUIRED_CLUSTER_{axis}") for axis in ("WIDTH", "HEIGHT", "DEPTH"))
        return (width, max(height, 1), max(depth, 1)) if width else None

    def expect_open(self) -> None:
        """Raise Closed, with the kernel's name, if its module was closed."""
        try:
            self.module.expect_open()
        except Closed as error:
            raise Closed(f"{self.name}: {error}") from error

    def occupancy(self, block: Any, shared: int = 0) -> int:
        """Return how many blocks one multiprocessor can hold at once; 0 if a block is too large.

        Args:
            block: Threads per block: an int, or up to three.
            shared: Dynamic shared memory per block, in bytes.

        Raises:
            LaunchError: If an argument is not a size.
            Closed: If the module was closed.
        """
        self.expect_open()
        x, y, z = _dimensions(self.name, "block", block)
        dynamic = self._shared_bytes(shared)
        if x * y * z > self.max_threads or dynamic > self.max_dynamic_shared:
            return 0
        self.allow_shared(dynamic)
        return int(self.context.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, x * y * z, dynamic))

    def _shared_bytes(self, shared: Any) -> int:
        """Return `shared` as an int of at least 0. Raises LaunchError."""
        try:
            wanted = _whole(shared)
        except TypeError:
            raise LaunchError(f"{self.name}: shared must be a number of bytes, got {shared!r}; pass an int") from None
        if wanted < 0:
            raise LaunchError(
                f"{self.name}: shared must be 0 or more, got {wanted}; pass the bytes of dynamic shared memory"
            )
        return wanted

    def allow_shared(self, wanted: int) -> None:
        """Opt in to the largest dynamic shared memory when more than the default is first requested."""
        if wanted > self._allowed_shared:
            self.expect_open()
            with self.lock:
                self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", self.max_dynamic_shared)
                self._allowed_shared = self.max_dynamic_shared

    def allow_large_clusters(self) -> None:
        """Opt in to clusters of more than the 8 blocks that every chip with clusters supports."""
        self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def max_cluster(self, config: LaunchConfig) -> int:
        """Return the largest number of blocks per cluster for this configuration. Raises Closed after close()."""
        self.expect_open()
        asked = self.extended_config(config, LaunchOptions())
        return int(self.context.call("cuOccupancyMaxPotentialClusterSize", self.handle, asked))

    # Configurations ---------------------------------------------------------------------------------------------------

    def config(self, grid: Any, block: Any, shared: Any) -> LaunchConfig:
        """Return the checked configuration; it is remembered if it consists of plain ints. Raises LaunchError."""
        if not exact(grid, block, shared):
            return self._checked_config(grid, block, shared)
        key = (grid, block, shared)
        known = self._configs.get(key)
        if known is None:
            known = self._checked_config(grid, block, shared)
            if len(self._configs) >= _KEPT:
                self._configs.clear()
                self.sends.clear()
            self._configs[key] = known
            self.sends[key] = self.sender(known)
        return known

    def _checked_config(self, grid: Any, block: Any, shared: Any) -> LaunchConfig:
        """Check a configuration against the kernel's and device's limits; opt in to large shared memory if needed."""
        name, context = self.name, self.context
        grid3, block3 = _dimensions(name, "grid", grid), _dimensions(name, "block", block)
        for what, extents in (("grid", grid3), ("block", block3)):
            for axis, extent in zip("XYZ", extents, strict=True):
                limit = context.attribute(f"MAX_{what.upper()}_DIM_{axis}")
                if extent > limit:
                    raise LaunchError(
                        f"{name}: {what}.{axis.lower()} must be at most {limit} on {context.spec}, got {extent}"
                    )
        threads = block3[0] * block3[1] * block3[2]
        if threads > self.max_threads:
            device = context.attribute("MAX_THREADS_PER_BLOCK")
            if self.max_threads >= device:
                why = f"{context.spec} supports at most {device}"
            else:
                cause = f"its __launch_bounds__, or its {self.registers} registers"
                why = f"this kernel supports at most {self.max_threads} ({cause})"
            raise LaunchError(f"{name}: a block of {'x'.join(map(str, block3))} has {threads} threads, but {why}")
        wanted = self._shared_bytes(shared)
        if wanted > self.max_dynamic_shared:
            raise LaunchError(
                f"{name}: {wanted} bytes of dynamic shared memory were requested, but at most "
                f"{self.max_dynamic_shared} are available on {context.spec} "
                f"({context.attribute('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN')} per block, {self.static_shared} of them "
                "static)"
            )
        self.allow_shared(wanted)
        config = LaunchConfig(*grid3, *block3, wanted)
        if self.required_cluster is not None:
            for axis, blocks, group in zip("xyz", config.grid, self.required_cluster, strict=True):
                if blocks % group:
                    raise LaunchError(
                        f"{name}: grid.{axis} must be a multiple of {group}, the cluster that the kernel is compiled "
                        f"for, got {blocks}; round the grid up"
                    )
        return config

    def sender(self, config: LaunchConfig) -> Callable[..., Any]:
        """Return cuLaunchKernel with all but its last three arguments bound: stream, parameters and extra."""
        return following.sender(self.context.driver.cuLaunchKernel, self.handle, config)

    def extended_sender(self, extended: Any) -> Callable[..., Any]:
        """Return cuLaunchKernelEx likewise, with a CUlaunchConfig whose stream is not set yet."""
        return following.extended_sender(self.context.driver.cuLaunchKernelEx, self.handle, extended)

    def extended_config(self, config: LaunchConfig, options: LaunchOptions) -> Any:
        """Return a CUlaunchConfig, without its stream. Raises LaunchError for a wrong option."""
        driver = self.context.driver
        attributes: list[Any] = []

        def attribute(name: str) -> Any:
            made = driver.CUlaunchAttribute()
            made.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            attributes.append(made)
            return made.value

        if options.cluster is not None:
            cluster = self._checked_cluster(config, _dimensions(self.name, "cluster", options.cluster))
            dims = attribute("CLUSTER_DIMENSION").clusterDim
            dims.x, dims.y, dims.z = cluster
        if options.cooperative:
            self._check_cooperative(config, options.cooperative)
            attribute("COOPERATIVE").cooperative = 1
        if options.programmatic:
            self._check_programmatic(options.programmatic)
            attribute("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
        if options.priority is not None:
            attribute("PRIORITY").priority = self._checked_priority(options.priority)
        made = driver.CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = config.grid
        made.blockDimX, made.blockDimY, made.blockDimZ = config.block
        made.sharedMemBytes = config.shared
        made.attrs = attributes
        made.numAttrs = len(attributes)
        return made

    def _check_cooperative(self, config: LaunchConfig, cooperative: Any) -> None:
        name, context = self.name, self.context
        self._expect_bool("cooperative", cooperative)
        if not context.attribute("COOPERATIVE_LAUNCH"):
            raise LaunchError(f"{name}: {context.spec} does not support cooperative launches")
        resident = self.occupancy(config.block, config.shared) * context.attribute("MULTIPROCESSOR_COUNT")
        blocks = config.grid_x * config.grid_y * config.grid_z
        if blocks > resident:
            raise LaunchError(
                f"{name}: a cooperative grid must fit on the device at once, which holds {resident} blocks of this "
                f"configuration, got {blocks}; use a smaller grid and a loop over the elements"
            )

    def _check_programmatic(self, programmatic: Any) -> None:
        self._expect_bool("programmatic", programmatic)
        if self.context.compute_capability < _PROGRAMMATIC_SINCE:
            raise LaunchError(
                f"{self.name}: {self.context.spec} does not support programmatic dependent launches (sm_90 and later "
                "do); launch without programmatic=True"
            )

    def _expect_bool(self, option: str, value: Any) -> None:
        if not isinstance(value, (int, np.bool_)):
            raise LaunchError(f"{self.name}: {option} must be True or False, got {value!r}")

    def _checked_priority(self, priority: Any) -> int:
        try:
            wanted = _whole(priority)
        except TypeError:
            raise LaunchError(f"{self.name}: priority must be an int or None, got {priority!r}") from None
        least, greatest = self.context.stream_priorities()
        if not greatest <= wanted <= least:
            raise LaunchError(
                f"{self.name}: priority must be {greatest} (runs first) to {least} on {self.context.spec}, got {wanted}"
            )
        return wanted

    def _checked_cluster(self, config: LaunchConfig, cluster: Dim) -> Dim:
        name, context = self.name, self.context
        if not context.attribute("CLUSTER_LAUNCH"):
            raise LaunchError(f"{name}: {context.spec} does not support thread block clusters (sm_90 and later do)")
        for axis, blocks, group in zip("xyz", config.grid, cluster, strict=True):
            if blocks % group:
                raise LaunchError(
                    f"{name}: grid.{axis} must be a multiple of cluster.{axis}, {group}, got {blocks}; "
                    "round the grid up"
                )
        required = self.required_cluster
        if required is not None and required != cluster:
            raise LaunchError(f"{name}: cluster must be {required}, which the kernel is compiled for, got {cluster}")
        size = cluster[0] * cluster[1] * cluster[2]
        if size > _PORTABLE_CLUSTER:
            self.allow_large_clusters()
            most = self.max_cluster(config)
            if size > most:
                raise LaunchError(f"{name}: {context.spec} supports clusters of at most {most} blocks, got {size}")
        return cluster
