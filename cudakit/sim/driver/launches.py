"""Driver calls that launch kernels."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.checks.watches import Launched
from cudakit.sim.chips.occupancy import active_blocks
from cudakit.sim.driver.arguments import Handle, as_handle, read_c_array, unsigned
from cudakit.sim.driver.contexts import LIMITS
from cudakit.sim.driver.faults import CallError, Result, caller, host_report
from cudakit.sim.driver.functions import UNSUPPORTED_HINT, Function
from cudakit.sim.driver.objects import Context, MemoryRecord, Operation, QueuedWork, Stream
from cudakit.sim.driver.observing import LaunchRecord, ObservingCalls
from cudakit.sim.driver.occupancy import Index3, LaunchSettings, read_config
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.heap import Heap
from cudakit.sim.lockstep.memory import NEAR_NULL, Allocation
from cudakit.sim.lockstep.report import KernelFault, KernelReport, Origin, plain_name
from cudakit.sim.lockstep.tensor_maps import SIZE as TENSOR_MAP_SIZE
from cudakit.sim.lockstep.tensor_maps import InvalidTensorMap, TensorMap
from cudakit.sim.machine.launch import launch as launch_kernel
from cudakit.sim.machine.loading import LoadedFunction

# the default stack limit, until cuCtxSetLimit sets another
DEFAULT_STACK = LIMITS[cu.CUlimit.CU_LIMIT_STACK_SIZE]

# the driver's result for each kind of kernel fault; any other kind is a launch failure
FAULT_RESULTS = {
    "out of bounds": Result.CUDA_ERROR_ILLEGAL_ADDRESS,
    "use after free": Result.CUDA_ERROR_ILLEGAL_ADDRESS,
    "write to constant memory": Result.CUDA_ERROR_ILLEGAL_ADDRESS,
    "misaligned": Result.CUDA_ERROR_MISALIGNED_ADDRESS,
    "assertion": Result.CUDA_ERROR_ASSERT,
    "hang": Result.CUDA_ERROR_LAUNCH_TIMEOUT,
    "endless loop": Result.CUDA_ERROR_LAUNCH_TIMEOUT,
    "deadlock": Result.CUDA_ERROR_LAUNCH_TIMEOUT,
    "mbarrier bytes differ": Result.CUDA_ERROR_LAUNCH_TIMEOUT,
    "mbarrier phase missed": Result.CUDA_ERROR_LAUNCH_TIMEOUT,
    "tensor coordinates": Result.CUDA_ERROR_ILLEGAL_INSTRUCTION,
    "invalid tensor map": Result.CUDA_ERROR_ILLEGAL_INSTRUCTION,
    "tensor map in the wrong memory": Result.CUDA_ERROR_ILLEGAL_ADDRESS,
    "stack overflow": Result.CUDA_ERROR_HARDWARE_STACK_ERROR,
    "invalid function pointer": Result.CUDA_ERROR_INVALID_PC,
}


@dataclass(frozen=True, eq=False)
class CheckedLaunch:
    """A checked launch. ``params`` are the values of its parameters, ``place`` is the line that made it."""

    function: Function
    settings: LaunchSettings
    shared: int
    params: list[bytes]
    place: Origin


class LaunchCalls(ObservingCalls):
    """cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel."""

    printf: Callable[[str], None]
    step_limit: int | None

    @call()
    def cuLaunchKernel(
        self,
        f: Handle,
        gridDimX: int,
        gridDimY: int,
        gridDimZ: int,
        blockDimX: int,
        blockDimY: int,
        blockDimZ: int,
        sharedMemBytes: int,
        hStream: Handle,
        kernelParams: Any,
        extra: int,
    ) -> None:
        grid = (unsigned(gridDimX), unsigned(gridDimY), unsigned(gridDimZ))
        block = (unsigned(blockDimX), unsigned(blockDimY), unsigned(blockDimZ))
        settings = LaunchSettings(grid, block)
        self._launch(f, settings, unsigned(sharedMemBytes), self._stream(hStream), kernelParams, extra)

    @call()
    def cuLaunchKernelEx(self, config: Any, f: Handle, kernelParams: Any, extra: int) -> None:
        if config is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "config is None")
        settings = read_config(config, self._function(f).chip)
        self._launch(f, settings, int(config.sharedMemBytes), self._stream(config.hStream), kernelParams, extra)

    @call()
    def cuLaunchCooperativeKernel(
        self,
        f: Handle,
        gridDimX: int,
        gridDimY: int,
        gridDimZ: int,
        blockDimX: int,
        blockDimY: int,
        blockDimZ: int,
        sharedMemBytes: int,
        hStream: Handle,
        kernelParams: Any,
    ) -> None:
        grid = (unsigned(gridDimX), unsigned(gridDimY), unsigned(gridDimZ))
        block = (unsigned(blockDimX), unsigned(blockDimY), unsigned(blockDimZ))
        settings = LaunchSettings(grid, block, cooperative=True)
        self._launch(f, settings, unsigned(sharedMemBytes), self._stream(hStream), kernelParams, 0)

    def _launch(
        self, f: Handle, settings: LaunchSettings, shared: int, stream: Stream, kernel_params: Any, extra: Any
    ) -> None:
        function = self._function(f)
        if stream.context is not function.module.context:
            raise CallError(Result.CUDA_ERROR_INVALID_HANDLE, "the stream and the kernel belong to different contexts")
        launch = self._checked_launch(function, settings, shared, kernel_params, extra)
        for listener in list(self._listeners):
            listener(self._launched(launch))
        self._submit(stream, self._kernel_work(launch))

    def _checked_launch(
        self, function: Function, settings: LaunchSettings, shared: int, kernel_params: Any, extra: Any
    ) -> CheckedLaunch:
        grid, block = settings.grid, settings.block
        self._check_launch(function, grid, block, shared)
        settings = settings._replace(cluster=self._cluster(function, grid, settings.cluster))
        if settings.cooperative:
            room = self._resident(function, int(np.prod(block)), shared) * function.chip.multiprocessors
            if int(np.prod(grid)) > room:
                raise CallError(
                    Result.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
                    f"{function.loaded.name}: a cooperative grid of {int(np.prod(grid))} blocks; at most {room} blocks"
                    " fit on the device",
                )
        params = _parameters(function.loaded, kernel_params, extra)
        return CheckedLaunch(function, settings, shared, params, caller())

    def _kernel_work(self, launch: CheckedLaunch) -> QueuedWork:
        def check() -> None:
            self._function(launch.function.handle)

        return QueuedWork("kernel", lambda stream, after: self._enqueue_kernel(launch, stream, after), check, launch)

    def _enqueue_kernel(self, launch: CheckedLaunch, stream: Stream, after: Iterable[Operation]) -> Operation:
        function, settings, shared, place = launch.function, launch.settings, launch.shared, launch.place
        grid, block = settings.grid, settings.block
        stack = function.module.context.limits[int(cu.CUlimit.CU_LIMIT_STACK_SIZE)]
        injected = self._injector.hit("kernel") if self._injector.injections else None

        def run() -> None:
            if injected is not None:
                detail = f"{injected.fault} in kernel {plain_name(function.loaded.name)}"
                report = host_report("injected fault", detail, f"kernel {plain_name(function.loaded.name)}", place)
                raise self._fault(injected.code, report)
            before, prints = self._before(operation)
            watches = tuple(self._watches)
            try:
                counters = launch_kernel(
                    function.loaded,
                    grid,
                    block,
                    shared,
                    launch.params,
                    chip=function.chip,
                    cooperative=settings.cooperative,
                    cluster=settings.cluster,
                    checks=self.checks,
                    printf=self.printf,
                    counters=bool(self._counts),
                    stack_limit=stack if stack > DEFAULT_STACK else None,
                    heap=self._heap(function.module.context) if function.loaded.allocates else None,
                    prints=prints,
                    watches=watches,
                    step_limit=self.step_limit,
                    draw=self._scheduler.draw(),
                    probes=self._probes,
                    launched=place,
                )
            except KernelFault as fault:
                self._explain(operation, fault.report)
                self._describe(launch, fault.report)
                code = FAULT_RESULTS.get(fault.report.kind, Result.CUDA_ERROR_LAUNCH_FAILED)
                raise self._fault(code, fault.report) from None
            finally:
                if watches:
                    launched = self._launched(launch)
                    for watch in watches:
                        watch.launched(launched)
            self._after(operation, function.loaded.module.sources.place, before, prints)
            if not self._counts:
                return
            static = function.loaded.static_shared
            counters.occupancy = active_blocks(function.chip, int(np.prod(block)), function.registers, static + shared)
            record = LaunchRecord(function.loaded.name, grid, block, counters, shared, static, function.registers)
            for count in self._counts:
                if count.context is None or count.context is stream.context:
                    count.add(record)

        touches = self._pinned_count > 0 and self._mentions_pinned(launch.params)
        label = f"kernel {plain_name(function.loaded.name)}"
        overlaps = stream.last if settings.programmatic and stream.last is not None and stream.last.kernel else None
        operation = self._scheduler.enqueue(
            stream, label, run, after=after, place=place, touches_host=touches, kernel=True, overlaps=overlaps
        )
        self._note_kernel(operation, launch.params, self._variables_of(function))
        return operation

    def _variables_of(self, function: Function) -> list[MemoryRecord]:
        """The module's variables that a kernel may access."""
        module = function.module
        return [self._variable(module.loaded.globals[name][0], module.context) for name in function.loaded.variables]

    def _describe(self, launch: CheckedLaunch, report: KernelReport) -> None:
        """Add to a kernel's report the line that launched it, its device, and the parameters that point to the
        allocation."""
        launched = self._launched(launch)
        report.launched, report.device, given = launched.place, launched.device, launched.pointers
        allocation = report.allocation
        if report.address is not None and report.address < NEAR_NULL and report.space == "global":
            report.null = tuple(label for label, value in given if value == 0)
        elif allocation is not None:
            labels = [label for label, value in given if allocation.address <= value < allocation.end]
            report.parameter = " and ".join(labels)

    def _launched(self, launch: CheckedLaunch) -> Launched:
        """The facts of a launch that reports and watches need."""
        function = launch.function
        device = f"sim:{function.module.context.device.ordinal}" if len(self.devices) > 1 else ""
        given = zip(function.labels, launch.params, function.pointers, strict=True)
        pointers = tuple((label, _address(value)) for label, value, may in given if may)
        return Launched(function.loaded.name, launch.place, device, pointers, function.labels)

    def _heap(self, context: Context) -> Heap:
        """The device heap of a context. Memory that kernels do not free belongs to the context."""

        def made(allocation: Allocation) -> None:
            self._memory[allocation.address] = MemoryRecord(allocation, context)

        def freed(address: int) -> None:
            del self._memory[address]

        mine = [m.allocation for m in self._memory.values() if m.context is context and m.allocation.kind == "heap"]
        limit = context.limits[int(cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE)]
        return Heap(self._space, limit, sum(allocation.size for allocation in mine), made, freed)

    def _mentions_pinned(self, params: list[bytes]) -> bool:
        """Whether a parameter may be a pointer to pinned host memory."""
        for value in params:
            for offset in range(0, len(value) - 7, 8):
                memory = self._covering(int.from_bytes(value[offset : offset + 8], "little"))
                if memory is not None and memory.allocation.kind == "host":
                    return True
        return False

    @staticmethod
    def _check_launch(function: Function, grid: Index3, block: Index3, shared: int) -> None:
        chip, name = function.chip, function.loaded.name
        if function.loaded.refusal is not None:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, str(function.loaded.refusal), UNSUPPORTED_HINT)
        invalid = Result.CUDA_ERROR_INVALID_VALUE
        for axis, value, most in zip("xyz", grid, chip.max_grid, strict=True):
            if not 0 < value <= most:
                raise CallError(invalid, f"{name}: grid.{axis} must be 1 to {most}, got {value}")
        for axis, value, most in zip("xyz", block, chip.max_block, strict=True):
            if not 0 < value <= most:
                raise CallError(invalid, f"{name}: block.{axis} must be 1 to {most}, got {value}")
        threads = block[0] * block[1] * block[2]
        if threads > min(chip.max_threads_per_block, function.loaded.max_threads):
            most = min(chip.max_threads_per_block, function.loaded.max_threads)
            raise CallError(invalid, f"{name}: a block of {threads} threads; at most {most} for this kernel")
        if threads > function.max_threads:
            raise CallError(
                Result.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                f"{name}: {threads} threads with {function.registers} registers each; at most {function.max_threads}"
                " threads fit",
            )
        required = function.loaded.required_threads
        if required and tuple(required) + (1,) * (3 - len(required)) != block:
            raise CallError(invalid, f"{name}: a block of {block}; the kernel requires {tuple(required)}")
        if shared > function.max_dynamic:
            raise CallError(
                invalid,
                f"{name}: {shared} bytes of dynamic shared memory; {function.max_dynamic} are allowed (up to"
                f" {chip.shared_per_block_optin - function.loaded.static_shared} with"
                " CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)",
            )


def _address(value: bytes) -> int:
    """The address that a parameter holds: its value, or the address of the tensor of a tensor map."""
    if len(value) == TENSOR_MAP_SIZE:
        with contextlib.suppress(InvalidTensorMap):
            return TensorMap.decode(value).address
    return int.from_bytes(value, "little")


def _parameters(function: LoadedFunction, kernel_params: Any, extra: Any) -> list[bytes]:
    """A copy of each parameter's value, from any of the forms that the bindings accept."""
    sizes = [size for _, size in function.params]
    buffer = _extra_buffer(extra)
    if buffer is not None:
        if kernel_params:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "pass kernelParams or extra, not both")
        end = max((offset + size for offset, size in function.params), default=0)
        if len(buffer) < end:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"a parameter buffer of {len(buffer)} bytes; at least {end} are needed"
            )
        return [buffer[offset : offset + size] for offset, size in function.params]
    if not sizes:
        return []
    if isinstance(kernel_params, tuple):
        values, types = kernel_params
        packed = [_pack(value, kind) for value, kind in zip(values, types, strict=True)]
        if [len(value) for value in packed] != sizes:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"parameters of {[len(value) for value in packed]} bytes; {function.name} takes {sizes}",
            )
        return packed
    if kernel_params is None or isinstance(kernel_params, (int, np.integer)):
        address = as_handle(kernel_params)
    else:
        address = int(np.frombuffer(kernel_params, np.uint8).ctypes.data)
    if address == 0:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{function.name} takes {len(sizes)} parameters, got none")
    pointers = read_c_array(address, len(sizes))
    if 0 in pointers:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"the pointer to parameter {pointers.index(0)} is null")
    return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]


def _extra_buffer(extra: Any) -> bytes | None:
    if extra is None:
        raise TypeError("extra must be an integer (0 for none)")
    address = as_handle(extra)
    if address == 0:
        return None
    # pairs of a name (1: the buffer, 2: the address of its size) and a value, ended by 0
    words: dict[int, int] = {}
    while (name := read_c_array(address, 1)[0]) != 0:
        words[name] = read_c_array(address + 8, 1)[0]
        address += 16
    if 1 not in words or 2 not in words:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "extra needs a buffer and its size")
    return ctypes.string_at(words[1], read_c_array(words[2], 1)[0])


def _pack(value: Any, kind: Any) -> bytes:
    if kind is None:
        if isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
            return bytes(value)
        if isinstance(value, cu.CUdeviceptr):
            return int(value).to_bytes(8, "little")
        raise TypeError(f"a parameter without a type must be a ctypes value, got {type(value).__name__}")
    return bytes(kind(int(value) if kind is ctypes.c_void_p else value))


def write_stdout(text: str) -> None:
    """Write the text of device printf to stdout: the default."""
    sys.stdout.write(text)
