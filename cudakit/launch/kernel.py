"""Kernel: launches, with every argument and limit checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudakit import nvtx
from cudakit.compile.compiler import Resources
from cudakit.driver.stream import Stream, foreign_handle
from cudakit.errors import Closed, DeviceMismatch, LaunchError
from cudakit.launch import following
from cudakit.launch.cxx import Type
from cudakit.launch.function import Function, LaunchConfig, LaunchOptions
from cudakit.launch.image import Image
from cudakit.launch.patchable import PatchableLaunch
from cudakit.launch.plan import Arguments, LaunchPlan, Target, ThreadPlans, make_plan, make_prepared
from cudakit.launch.signature import Parameter, PtxParameter, parameters
from cudakit.launch.strides import unwrapped
from cudakit.memory.array import DeviceArray

_FOREIGN_STREAMS = 64  # remembered per kernel
_UNKNOWN = (400, 709)  # CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_CONTEXT_IS_DESTROYED: the stream no longer exists


class Kernel(Function):
    """One kernel of a module. Its launches are checked against its signature and limits.

    Attributes:
        name: The name in C++ ("softmax<8>").
        mangled: The name in the cubin.
        signature: The name with the parameter types.
        parameters: One Parameter per parameter.
        registers: Registers per thread.
        static_shared: Static shared memory per block, in bytes.
        max_dynamic_shared: The most dynamic shared memory that a launch may request, in bytes.
        local_bytes: Local memory per thread, in bytes.
        max_threads: The most threads per block.
        required_cluster: The cluster that the kernel was compiled for (`__cluster_dims__`), or None.
    """

    def __init__(
        self,
        module: Image,
        mangled: str,
        name: str,
        entry: tuple[PtxParameter, ...] | None,
        resources: Resources | None,
        types: tuple[Type, ...] | None = None,
        source: str = "",
    ) -> None:
        super().__init__(module, mangled, name, resources)
        layout = self.parameter_layout(None if entry is None else len(entry))
        self.parameters: tuple[Parameter, ...] = parameters(mangled, layout, entry, types, source)
        if self.context.kind == "sim":
            pointers = [parameter.kind in ("pointer", "bits", "tensor map") for parameter in self.parameters]
            labels = [parameter.label for parameter in self.parameters]
            self.context.driver.simNameParameters(self.handle, labels, pointers)
        self.signature = f"{self.name}({', '.join(parameter.text for parameter in self.parameters)})"
        self.target = Target(name, self.context, self.parameters, self.sends, module.retired)
        self._plans = ThreadPlans()
        self._foreign_streams: dict[int, Stream] = {}
        self._launching = nvtx.range(f"launch {name}")

    def __repr__(self) -> str:
        return f"Kernel({self.signature!r}, {self.context.spec!r})"

    def launch(
        self,
        stream: Any,
        grid: Any,
        block: Any,
        shared: int = 0,
        args: Arguments = (),
        cluster: Any = None,
        cooperative: bool = False,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> None:
        """Queue a launch on `stream`, checked against the kernel's signature and the limits of kernel and device.

        An error of the kernel itself is raised by the next call that waits for it.

        Args:
            stream: A stream of the kernel's device, ours or another library's.
            grid: Blocks: an int, or a tuple of up to three.
            block: Threads per block, likewise.
            shared: Dynamic shared memory per block, in bytes.
            args: A tuple with one value per parameter; `cudakit/launch/arguments.py` lists which values are accepted.
            cluster: Blocks per cluster, like `grid`; None for no clusters.
            cooperative: Launch a cooperative grid, which must fit on the device at once.
            programmatic: Programmatic dependent launch: the kernel may start before the one launched before it on the
                stream has ended, and waits for its results with `griddepcontrol.wait`
                (`cudaGridDependencySynchronize()`). On the simulated device it starts after that kernel's end.
            priority: The kernel's priority instead of the stream's; smaller numbers run first.

        Raises:
            LaunchError: If an argument, a size or the stream is wrong; nothing runs.
            Closed: If the module or the stream was closed.
        """
        if type(stream) is not Stream:
            stream = self.checked_stream(stream)
        # The generated function of this thread's last plan (`launch_source` shows one) tests, packs and launches.
        plain = cluster is None and not cooperative and not programmatic and priority is None
        if plain and self._plans.last_launch(stream, grid, block, shared, args):
            return
        options = LaunchOptions(cluster, cooperative, programmatic, priority)
        self._launch_by_rules(stream, grid, block, shared, args, options)

    def _launch_by_rules(
        self, stream: Any, grid: Any, block: Any, shared: Any, args: Any, options: LaunchOptions
    ) -> None:
        """Launch with arguments that this thread's last plan does not take.

        If the thread has a plan for these argument types, it is tried. If there is none, or it fails too, every rule is
        applied here, and types that are new on this thread get a plan.
        """
        stream = self.checked_stream(stream)
        args = self._as_tuple(args)
        plans = self._plans
        types = tuple(map(type, args))
        plan = plans.by_types.get(types)
        plain = options.plain
        if plan is not None and plain:
            plans.last_launch = plan.launch
            if plan.launch(stream, grid, block, shared, args):
                return
        self.expect_open()
        config = self.config(grid, block, shared)
        if plan is None:
            plan = plans.by_types[types] = make_plan(self.target, args)
        else:
            plan.convert(args)
        for value in map(unwrapped, args):
            if isinstance(value, DeviceArray):
                value.allocation.uses.add(stream)
        if plain:
            self.context.make_current()
            send = following.followed(self.context, self.sender(config), args)
            with self._launching:
                self.context.check("cuLaunchKernel", send(stream.handle, plan.pointers, 0))
            plans.last_launch = plan.launch
        else:
            self.send_extended(self.extended_config(config, options), stream, plan.pointers, args)

    def prepare(
        self,
        *,
        grid: Any,
        block: Any,
        shared: int = 0,
        args: Sequence[Any] = (),
        cluster: Any = None,
        cooperative: bool = False,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> Prepared:
        """Check a launch and fix everything but its stream, for the lowest cost per launch.

        Args:
            grid: Blocks; all arguments are as for `launch`.
            block: Threads per block.
            shared: Dynamic shared memory per block, in bytes.
            args: A tuple with one value per parameter.
            cluster: Blocks per cluster.
            cooperative: Launch a cooperative grid.
            programmatic: May start before the previous kernel has ended.
            priority: The kernel's priority.

        Returns:
            A launch that is queued by `launch(stream)`.

        Raises:
            LaunchError: If an argument or a size is wrong.
            Closed: If the module was closed.
        """
        options = LaunchOptions(cluster, cooperative, programmatic, priority)
        config, extended, values = self._checked_launch(grid, block, shared, args, options)
        return Prepared(self, config, extended, values, make_plan(self.target, values))

    def patchable(
        self,
        *,
        grid: Any,
        block: Any,
        shared: int = 0,
        args: Arguments = (),
        cluster: Any = None,
        cooperative: bool = False,
        programmatic: bool = False,
        priority: int | None = None,
    ) -> PatchableLaunch:
        """Check a launch whose pointers and numbers can be replaced in place. It does not keep its arrays alive."""
        options = LaunchOptions(cluster, cooperative, programmatic, priority)
        config, extended, args = self._checked_launch(grid, block, shared, args, options)
        if extended is None:
            return PatchableLaunch(self.target, "cuLaunchKernel", self.sender(config), args)
        return PatchableLaunch(self.target, "cuLaunchKernelEx", self.extended_sender(extended), args)

    def _checked_launch(
        self, grid: Any, block: Any, shared: Any, args: Any, options: LaunchOptions
    ) -> tuple[LaunchConfig, Any, Arguments]:
        """Return the configuration, a CUlaunchConfig if it needs one (else None), and the arguments as a tuple."""
        self.expect_open()
        args = self._as_tuple(args)
        config = self.config(grid, block, shared)
        extended = None if options.plain else self.extended_config(config, options)
        return config, extended, args

    def send_extended(self, extended: Any, stream: Stream, pointers: int, args: Arguments) -> None:
        """Queue a launch with a CUlaunchConfig whose stream is not set yet. args: the arguments at `pointers`."""
        self.context.make_current()
        send = following.followed(self.context, self.extended_sender(extended), args)
        with self.lock, self._launching:
            self.context.check("cuLaunchKernelEx", send(stream.handle, pointers, 0))

    def checked_stream(self, stream: Any) -> Stream:
        """Return `stream` as a Stream of this kernel's device. Raises LaunchError or Closed."""
        if isinstance(stream, Stream) and stream.closed:
            raise Closed(f"{self.name}: the stream was closed; make another with the device's stream()")
        try:
            known = None if isinstance(stream, Stream) else self._foreign_streams.get(foreign_handle(stream))
            if known is not None and not known.closed:
                return known
            checked = Stream.of(self.context, stream)
        except Closed as error:
            raise Closed(f"{self.name}: {error}") from error
        except DeviceMismatch as error:
            raise LaunchError(f"{self.name}: {error}, or compile the kernel on the stream's device") from error
        except TypeError as error:
            raise LaunchError(
                f"{self.name}: {error}. The first argument is the stream: launch(stream, grid=...)"
            ) from error
        if checked.foreign:
            self.context.make_current()  # another context may not know a stream of this one
            code = self.context.driver.cuStreamIsCapturing(checked.handle)[0]
            if int(code) in _UNKNOWN:
                raise LaunchError(
                    f"{self.name}: the {type(stream).__name__} has the handle {int(checked):#x}, which is not a stream "
                    f"of {self.context.spec}; pass a stream that exists"
                )
        if checked.foreign and checked is not stream:
            if len(self._foreign_streams) >= _FOREIGN_STREAMS:
                self._foreign_streams.clear()
            self._foreign_streams[int(checked)] = checked
        return checked

    def _as_tuple(self, args: Any) -> Arguments:
        if not isinstance(args, (tuple, list)):
            raise LaunchError(
                f"{self.name}: args must be a tuple, got {type(args).__name__}; write args=(x,) for one argument"
            )
        return tuple(args)


class Prepared:
    """One launch with its configuration and arguments fixed, made by `Kernel.prepare`. It keeps its arrays alive.

    `launch(stream)` queues it. Several threads may call it at once, because the packed arguments are only read.

    Attributes:
        config: The launch configuration.
        arguments: The arguments.
        allocations: The memory of its arrays.
        kernel: The kernel.
        launch: Function of the stream that queues the launch. Raises LaunchError if an array was closed.
    """

    __slots__ = ("_extended", "_plan", "allocations", "arguments", "config", "kernel", "launch")

    def __init__(
        self, kernel: Kernel, config: LaunchConfig, extended: Any, arguments: Arguments, plan: LaunchPlan
    ) -> None:
        self.kernel = kernel
        self.config = config
        self.arguments = arguments
        arrays = map(unwrapped, arguments)
        self.allocations = [value.allocation for value in arrays if isinstance(value, DeviceArray)]
        self._extended = extended
        self._plan = plan
        self.launch: Callable[[Any], None] = self._launch_extended
        if extended is None:
            self.launch = make_prepared(kernel.target, kernel.sender(config), arguments, plan, self._accept)

    @property
    def pointers(self) -> int:
        """The address of the packed arguments, for the driver's kernelParams; this object owns that memory."""
        return self._plan.pointers

    def _accept(self, stream: Any) -> Stream:
        """Return the stream as a Stream; the arrays' frees are ordered after work on it."""
        self.kernel.expect_open()
        accepted = self.kernel.checked_stream(stream)
        for allocation in self.allocations:
            if not allocation.open:
                raise LaunchError(f"{self.kernel.name}: an array of this prepared launch was closed; prepare a new one")
            allocation.uses.add(accepted)
        return accepted

    def _launch_extended(self, stream: Any) -> None:
        self.kernel.send_extended(self._extended, self._accept(stream), self.pointers, self.arguments)
