"""Kernel: what one kernel needs, and its launches, every argument and limit checked before anything runs."""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

from cudakit import nvtx
from cudakit.compile.compiler import Resources
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, DeviceMismatch, LaunchError
from cudakit.launch.cxx import Type
from cudakit.launch.plan import Arguments, Config, LaunchPlan, Target, ThreadPlans, exact, make_plan, make_prepared
from cudakit.launch.signature import Parameter, PtxParameter, parameters
from cudakit.memory.array import DeviceArray

Dim = tuple[int, int, int]

_PORTABLE_CLUSTER = 8  # blocks of a cluster that every chip with clusters takes
_DEFAULT_SHARED = 48 * 1024  # bytes a block may have without opting in to more
_KEPT = 1024  # configurations remembered of one kernel
_FOREIGN_STREAMS = 64  # foreign streams remembered of one kernel


class Image:
    """What the driver loaded: the part of a module that its kernels need."""

    again = "compile"  # what gives another when it was closed

    def __init__(self, context: Context, name: str, image: bytes) -> None:
        self.context = context
        self.name = name
        self.retired: list[bool] = []  # holds something once it or its device was closed; launches look at it
        with nvtx.range(f"load {os.path.basename(name)}"):
            self.handle: Any = context.call("cuModuleLoadData", image)
        self._finalizer = context.adopt(self, _unload, context, self.handle, self.retired)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.context.spec!r}{', closed' if self.closed else ''})"

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its device was."""
        return bool(self.retired)

    def expect_open(self) -> None:
        """Raise Closed where it was closed."""
        if self.closed:
            raise Closed(f"{self!r} was closed: {self.again} it again")

    def close(self) -> None:
        """Unload it, once the work that uses it is done. Idempotent. Its kernels and arrays cannot be used any more."""
        self.retired.append(True)
        self.context.closings += 1
        self._finalizer()


def _unload(context: Context, handle: Any, retired: list[bool]) -> None:
    retired.append(True)
    context.attempt("cuModuleUnload", handle)


class Kernel:
    """One kernel of a module.

    name: in C++ ("softmax<8>"). mangled: in the cubin. signature: with its parameter types. parameters: a Parameter
    each. Sizes are bytes: static_shared, local_bytes (a thread's), max_dynamic_shared (the most a launch may ask for).
    registers, spills: ptxas's. max_threads: a block's most.
    """

    def __init__(
        self,
        module: Image,
        mangled: str,
        name: str,
        entry: tuple[PtxParameter, ...] | None,
        resources: Resources | None,
        types: tuple[Type, ...] | None = None,
    ) -> None:
        self.module = module
        self.context = context = module.context
        self.mangled = mangled
        self.name = name
        with nvtx.range(f"load kernel {name}"):
            self.handle: Any = context.call("cuModuleGetFunction", module.handle, mangled.encode())
            # A lazily loaded function has no parameter info until it is loaded.
            context.call("cuFuncLoad", self.handle)
        if context.kind == "sim" and resources is not None:
            context.driver.simSetResources(self.handle, registers=resources.registers, local_bytes=resources.stack)
        layout = self._layout(entry)
        self.parameters: tuple[Parameter, ...] = parameters(
            mangled, [(int(offset), int(size)) for offset, size in layout], entry, types
        )
        self.signature = f"{self.name}({', '.join(parameter.text for parameter in self.parameters)})"
        self.registers = self._attribute("NUM_REGS") if resources is None else resources.registers
        self.static_shared = self._attribute("SHARED_SIZE_BYTES")
        self.local_bytes = self._attribute("LOCAL_SIZE_BYTES")
        self.max_threads = self._attribute("MAX_THREADS_PER_BLOCK")
        self.max_dynamic_shared = context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - self.static_shared
        self.resources = resources if resources is not None else Resources(self.registers, self.static_shared)
        # The cluster it was compiled for (`__cluster_dims__`), or None. Not a cached_property, which would give each
        # kernel a dict, in which every launch would look its attributes up.
        self.required_cluster = self._required_cluster()
        self._allowed_shared = min(
            self._attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES"), _DEFAULT_SHARED - self.static_shared
        )
        self._plans = ThreadPlans()
        self._configs: dict[Any, Config] = {}
        self._sends: dict[Any, Callable[..., Any]] = {}
        self._foreign: dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._launching = nvtx.range(f"launch {name}")
        self._target = Target(name, context, self.parameters, self._sends, module.retired)

    def __repr__(self) -> str:
        return f"Kernel({self.signature!r}, {self.context.spec!r})"

    def _layout(self, entry: tuple[PtxParameter, ...] | None) -> list[tuple[Any, Any]]:
        """Offset and size of each parameter; without PTX, of as many as the driver has."""
        context = self.context
        if entry is not None:
            return [context.call("cuFuncGetParamInfo", self.handle, index) for index in range(len(entry))]
        layout: list[tuple[Any, Any]] = []
        context.make_current()
        while True:
            code, offset, size = context.driver.cuFuncGetParamInfo(self.handle, len(layout))
            if code == context.driver.CUresult.CUDA_ERROR_INVALID_VALUE:
                return layout
            context.check("cuFuncGetParamInfo", (code, offset, size))
            layout.append((offset, size))

    def _attribute(self, name: str) -> int:
        member = getattr(self.context.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(self.context.call("cuFuncGetAttribute", member, self.handle))

    def _set(self, name: str, value: int) -> None:
        member = getattr(self.context.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        self.context.call("cuFuncSetAttribute", self.handle, member, value)

    # What it needs ----------------------------------------------------------------------------------------------------

    @property
    def spills(self) -> int:
        """Bytes a thread that ptxas spilled to local memory, stores and loads."""
        return self.resources.spill_stores + self.resources.spill_loads

    def _required_cluster(self) -> Dim | None:
        if not self.context.attribute("CLUSTER_LAUNCH"):
            return None
        width, height, depth = (self._attribute(f"REQUIRED_CLUSTER_{axis}") for axis in ("WIDTH", "HEIGHT", "DEPTH"))
        return (width, max(height, 1), max(depth, 1)) if width else None

    def occupancy(self, block: Any, shared: int = 0) -> int:
        """Blocks of `block` threads and `shared` dynamic bytes that one multiprocessor holds at once."""
        x, y, z = _dimensions(self.name, "block", block)
        if x * y * z > self.max_threads or shared > self.max_dynamic_shared:
            return 0
        self.allow_shared(shared)
        return int(
            self.context.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, x * y * z, int(shared))
        )

    def allow_shared(self, wanted: int) -> None:
        """Opt in to `wanted` bytes of dynamic shared memory: the first time more than the default is asked for, all."""
        if wanted > self._allowed_shared:
            with self._lock:
                self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", self.max_dynamic_shared)
                self._allowed_shared = self.max_dynamic_shared

    def allow_large_clusters(self) -> None:
        """Opt in to clusters of more than the 8 blocks that every chip with clusters takes."""
        self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def max_cluster(self, config: Config) -> int:
        """The most blocks a cluster of this configuration may have."""
        asked = _extended_config(self, config, None, False)
        return int(self.context.call("cuOccupancyMaxPotentialClusterSize", self.handle, asked))

    # Launching --------------------------------------------------------------------------------------------------------

    def launch(
        self,
        stream: Any,
        grid: Any,
        block: Any,
        shared: int = 0,
        args: Arguments = (),
        cluster: Any = None,
        cooperative: bool = False,
    ) -> None:
        """Queue a launch on `stream`, checked against the kernel's signature, its limits and the device's.

        grid, block, cluster: an int, or up to three. shared: bytes of dynamic shared memory. args: see `arguments`.
        Raises LaunchError before anything runs; what the kernel does wrong is raised by the call that waits for it.
        """
        if cluster is None and not cooperative and self._plans.last_launch(stream, grid, block, shared, args):
            return
        self._launch_by_rules(stream, grid, block, shared, args, cluster, cooperative)

    def _launch_by_rules(
        self, stream: Any, grid: Any, block: Any, shared: Any, args: Any, cluster: Any, cooperative: bool
    ) -> None:
        """A launch that this thread's last plan does not take: by its plan for these types, or with every rule applied
        here. A plan is made for types that are new on this thread."""
        stream = self.checked_stream(stream)
        args = self._as_tuple(args)
        plans = self._plans
        types = tuple(map(type, args))
        plan = plans.by_types.get(types)
        plain = cluster is None and not cooperative
        if plan is not None and plain:
            plans.last_launch = plan.launch
            if plan.launch(stream, grid, block, shared, args):
                return
        self.module.expect_open()
        config = self._config(grid, block, shared)
        if plan is None:
            plan = plans.by_types[types] = make_plan(self._target, args)
        else:
            plan.convert(args)
        for value in args:
            if isinstance(value, DeviceArray):
                value.allocation.uses.add(stream)
        if plain:
            with self._launching:
                self.context.call("cuLaunchKernel", self.handle, *config, stream.handle, plan.pointers, 0)
            plans.last_launch = plan.launch
        else:
            extended = _extended_config(self, config, cluster, cooperative)
            self.send_extended(extended, stream, plan.pointers)

    def prepare(
        self,
        *,
        grid: Any,
        block: Any,
        shared: int = 0,
        args: Arguments = (),
        cluster: Any = None,
        cooperative: bool = False,
    ) -> Prepared:
        """A launch with everything but the stream fixed and checked, for the lowest cost a launch."""
        self.module.expect_open()
        args = self._as_tuple(args)
        config = self._config(grid, block, shared)
        extended = None
        if cluster is not None or cooperative:
            extended = _extended_config(self, config, cluster, cooperative)
        return Prepared(self, config, extended, args, make_plan(self._target, args))

    def send_extended(self, extended: Any, stream: Stream, pointers: int) -> None:
        """Queue a launch with a CUlaunchConfig whose stream is not set yet."""
        with self._lock, self._launching:
            extended.hStream = stream.handle
            self.context.call("cuLaunchKernelEx", extended, self.handle, pointers, 0)

    def checked_stream(self, stream: Any) -> Stream:
        """`stream` as a Stream of this kernel's device. Raises LaunchError for what is none."""
        if isinstance(stream, Stream):
            if stream.closed:
                raise Closed(f"{self.name}: the stream was closed; make another with the device's stream()")
        else:
            protocol = getattr(stream, "__cuda_stream__", None)
            known = self._foreign.get(int(protocol()[1])) if callable(protocol) else None
            if known is not None and not known.closed:
                return known
        try:
            checked = Stream.of(self.context, stream)
        except (TypeError, DeviceMismatch) as error:
            raise LaunchError(f"{self.name}: {error}. The stream comes first: launch(stream, grid=...)") from error
        if checked.foreign and checked is not stream:
            if len(self._foreign) >= _FOREIGN_STREAMS:
                self._foreign.clear()
            self._foreign[int(checked)] = checked
        return checked

    def _as_tuple(self, args: Any) -> Arguments:
        if not isinstance(args, (tuple, list)):
            raise LaunchError(
                f"{self.name}: args is a {type(args).__name__}; give the arguments as a tuple, args=(x,) for one"
            )
        return tuple(args)

    def _config(self, grid: Any, block: Any, shared: Any) -> Config:
        """The checked configuration, remembered where it is made of plain ints."""
        if not exact(grid, block, shared):
            return self._checked(grid, block, shared)
        key = (grid, block, shared)
        known = self._configs.get(key)
        if known is None:
            known = self._checked(grid, block, shared)
            if len(self._configs) >= _KEPT:
                self._configs.clear()
                self._sends.clear()
            self._configs[key] = known
            self._sends[key] = self.sender(known)
        return known

    def _checked(self, grid: Any, block: Any, shared: Any) -> Config:
        config = _checked_config(self, grid, block, shared)
        if self.required_cluster is not None:
            for axis, blocks, group in zip("xyz", config.grid, self.required_cluster, strict=True):
                if blocks % group:
                    raise LaunchError(
                        f"{self.name}: grid.{axis} is {blocks}, and it is compiled for clusters of {group} there"
                    )
        return config

    def sender(self, config: Config) -> Callable[..., Any]:
        """cuLaunchKernel with all but its last three arguments: stream, parameters and extra."""
        return functools.partial(self.context.driver.cuLaunchKernel, self.handle, *config)


def _dimensions(kernel: str, what: str, value: Any) -> Dim:
    """`value` (an int, or one to three of them) as three ints of at least 1."""
    try:
        extents = [operator.index(value)]
    except TypeError:
        try:
            extents = [operator.index(extent) for extent in value]
        except TypeError:
            raise LaunchError(f"{kernel}: {what}={value!r} is no size; give an int or a tuple of up to three") from None
    if not 1 <= len(extents) <= 3:
        raise LaunchError(f"{kernel}: {what}={value!r} has {len(extents)} dimensions; give one to three")
    if any(extent < 1 for extent in extents):
        raise LaunchError(
            f"{kernel}: {what}={value!r} has a dimension below 1; an empty problem is not launched, return before"
        )
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _checked_config(kernel: Kernel, grid: Any, block: Any, shared: Any) -> Config:
    """A configuration within the kernel's and the device's limits; opts in to large shared memory where it is due."""
    name, context = kernel.name, kernel.context
    grid3, block3 = _dimensions(name, "grid", grid), _dimensions(name, "block", block)
    for what, extents in (("grid", grid3), ("block", block3)):
        for axis, extent in zip("XYZ", extents, strict=True):
            limit = context.attribute(f"MAX_{what.upper()}_DIM_{axis}")
            if extent > limit:
                raise LaunchError(
                    f"{name}: {what}.{axis.lower()} is {extent}, and {context.spec} takes at most {limit} there"
                )
    threads = block3[0] * block3[1] * block3[2]
    if threads > kernel.max_threads:
        device = context.attribute("MAX_THREADS_PER_BLOCK")
        if kernel.max_threads >= device:
            why = f"the device takes at most {device}"
        else:
            cause = f"its __launch_bounds__, or its {kernel.registers} registers"
            why = f"this kernel takes at most {kernel.max_threads} ({cause})"
        raise LaunchError(f"{name}: a block of {'x'.join(map(str, block3))} has {threads} threads; {why}")
    try:
        wanted = operator.index(shared)
    except TypeError:
        raise LaunchError(f"{name}: shared={shared!r} is no number of bytes") from None
    if wanted < 0:
        raise LaunchError(f"{name}: shared={wanted} is negative")
    if wanted > kernel.max_dynamic_shared:
        raise LaunchError(
            f"{name}: {wanted} bytes of dynamic shared memory, and at most {kernel.max_dynamic_shared} are left beside "
            f"its {kernel.static_shared} static ones on {context.spec} "
            f"({context.attribute('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN')} in all)"
        )
    kernel.allow_shared(wanted)
    return Config(*grid3, *block3, wanted)


def _extended_config(kernel: Kernel, config: Config, cluster: Any, cooperative: bool) -> Any:
    """A CUlaunchConfig (its stream still to be set) for a launch with clusters, or of a cooperative grid."""
    name, context = kernel.name, kernel.context
    driver = context.driver
    attributes = []
    if cluster is not None:
        cluster3 = _checked_cluster(kernel, config, _dimensions(name, "cluster", cluster))
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster3
        attributes.append(attribute)
    if cooperative:
        if not context.attribute("COOPERATIVE_LAUNCH"):
            raise LaunchError(f"{name}: {context.spec} has no cooperative launches")
        resident = kernel.occupancy(config.block, config.shared) * context.attribute("MULTIPROCESSOR_COUNT")
        blocks = config.grid_x * config.grid_y * config.grid_z
        if blocks > resident:
            raise LaunchError(
                f"{name}: a cooperative grid must be on the device at once, which holds {resident} blocks of this "
                f"configuration, not {blocks}"
            )
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = config.grid
    made.blockDimX, made.blockDimY, made.blockDimZ = config.block
    made.sharedMemBytes = config.shared
    made.attrs = attributes
    made.numAttrs = len(attributes)
    return made


def _checked_cluster(kernel: Kernel, config: Config, cluster: Dim) -> Dim:
    name, context = kernel.name, kernel.context
    if not context.attribute("CLUSTER_LAUNCH"):
        raise LaunchError(f"{name}: {context.spec} has no thread block clusters (sm_90 and later do)")
    for axis, blocks, group in zip("xyz", config.grid, cluster, strict=True):
        if blocks % group:
            raise LaunchError(
                f"{name}: grid.{axis} is {blocks}, which is no multiple of cluster.{axis}, {group}; round the grid up"
            )
    required = kernel.required_cluster
    if required is not None and required != cluster:
        raise LaunchError(f"{name}: cluster={cluster}, and the kernel is compiled for {required}")
    size = cluster[0] * cluster[1] * cluster[2]
    if size > _PORTABLE_CLUSTER:
        kernel.allow_large_clusters()
        most = kernel.max_cluster(config)
        if size > most:
            raise LaunchError(f"{name}: a cluster of {size} blocks, and {context.spec} takes at most {most}")
    return cluster


class Prepared:
    """One launch with its configuration and arguments fixed, made by `Kernel.prepare`. It keeps its arrays alive.

    `launch(stream)` queues it. Any number of threads may; the packed arguments are only read.
    """

    __slots__ = ("_allocations", "_extended", "_plan", "arguments", "config", "kernel", "launch")

    def __init__(self, kernel: Kernel, config: Config, extended: Any, arguments: Arguments, plan: LaunchPlan) -> None:
        self.kernel = kernel
        self.config = config
        self.arguments = arguments
        self._extended = extended
        self._plan = plan
        self._allocations = [value.allocation for value in arguments if isinstance(value, DeviceArray)]
        self.launch: Callable[[Any], None] = self._launch_extended
        if extended is None:
            self.launch = make_prepared(kernel._target, kernel.sender(config), arguments, plan, self._accept)

    def _accept(self, stream: Any) -> Stream:
        """The stream as a Stream, with the arrays' frees ordered after what is launched on it."""
        self.kernel.module.expect_open()
        accepted = self.kernel.checked_stream(stream)
        for allocation in self._allocations:
            if not allocation.open:
                raise LaunchError(f"{self.kernel.name}: an array of this prepared launch was closed; prepare another")
            allocation.uses.add(accepted)
        return accepted

    def _launch_extended(self, stream: Any) -> None:
        self.kernel.send_extended(self._extended, self._accept(stream), self._plan.pointers)
