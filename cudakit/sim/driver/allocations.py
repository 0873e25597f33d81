"""Driver calls that make, free and describe memory: device memory, stream-ordered too, and pinned host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.checks.watches import Watch
from cudakit.sim.driver.arguments import Handle, as_handle, member, size_t, unsigned
from cudakit.sim.driver.faults import CallError, Result, caller, host_report, other_access
from cudakit.sim.driver.objects import Context, MemoryRecord, Pool, Stream
from cudakit.sim.driver.pools import PoolCalls
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.bounds import ArrayBounds
from cudakit.sim.lockstep.memory import Allocation, MemoryFault
from cudakit.sim.lockstep.report import HostReport, Origin

PAGE = 4096
# with more bytes than this in queued frees, some of the frees run although nothing waits for them
MOST_FREEING = 256 << 20
_POINTER = cu.CUpointer_attribute


class HostView:
    """Host memory at an address, for numpy's array interface."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def host_bytes(address: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A writable uint8 view of host memory; the caller must ensure that the range is valid."""
    return np.asarray(HostView(address, size))


class MemoryCalls(PoolCalls):
    """cuMem*Alloc*, cuMemFree*, cuMemHost*, cuPointer*."""

    _watches: list[Watch]

    # ---- records ----

    def _live(self, address: int, what: str) -> MemoryRecord:
        """The live allocation that starts at ``address``."""
        memory = self._memory.get(address)
        if memory is not None and not memory.freeing:
            return memory
        near = self._space.find(address)
        if memory is not None or (near is not None and not near.live and near.address == address):
            raise CallError.by(Result.CUDA_ERROR_INVALID_VALUE, self._freed_twice(what, address, memory, near))
        if near is not None and near.live and near.address < address < near.end:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"{what} {address:#x} is {address - near.address} bytes into an allocation: pass its start",
            )
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{what} {address:#x} was not allocated here")

    @staticmethod
    def _freed_twice(what: str, address: int, memory: MemoryRecord | None, near: Allocation | None) -> HostReport:
        allocation = near if memory is None else memory.allocation
        first = memory.freed_at if memory is not None else allocation and allocation.free_origin
        others = (other_access("first free", first),) if isinstance(first, Origin) else ()
        detail = f"{what} {address:#x} was freed already"
        return host_report("double free", detail, "", caller(), others=others, allocation=allocation)

    def _keep(self, allocation: Allocation, context: Context, **details: Any) -> MemoryRecord:
        self._allocations_made += 1
        self._pinned_count += allocation.kind == "host"
        memory = MemoryRecord(allocation, context, number=self._allocations_made, **details)
        self._memory[allocation.address] = memory
        return memory

    def _reserve(self, context: Context, size: int, pool: Pool | None) -> MemoryRecord:
        """Reserve and allocate device memory; raises CallError (OUT_OF_MEMORY) if the device has too little left."""
        device = context.device
        whole = -(-size // 512) * 512
        # unused memory that the pool has reserved is used first
        spare = pool.reserved - pool.used if pool is not None else 0
        if whole > spare and whole - spare > device.free_memory:
            # before it fails, the driver waits for queued frees and trims the pools
            self._scheduler.finish(self._scheduler.pending_of(context))
            for other in device.pools:
                other.trim(0)
            spare = pool.reserved - pool.used if pool is not None else 0
            if whole > spare and whole - spare > device.free_memory:
                raise CallError(
                    Result.CUDA_ERROR_OUT_OF_MEMORY,
                    f"{size} bytes requested, {device.free_memory} of {device.total_memory} free on device"
                    f" {device.ordinal} (memory=... sets the simulated device's memory)",
                )
        try:
            allocation = self._space.allocate(size, "device", caller())
        except MemoryError:
            raise CallError(Result.CUDA_ERROR_OUT_OF_MEMORY, f"the host cannot allocate {size} bytes") from None
        if pool is None:
            device.allocated += whole
        else:
            pool.take(whole)
        return self._keep(allocation, context, pool=pool)

    def _release(self, memory: MemoryRecord, origin: str) -> None:
        """Free an allocation."""
        address = memory.allocation.address
        if memory.allocation.kind == "device":
            if memory.pool is None:
                memory.context.device.allocated -= memory.size
            else:
                memory.pool.used -= memory.size
        self._pinned_count -= memory.allocation.kind == "host"
        self._freeing -= memory.size if memory.freeing else 0
        for watch in self._watches:
            watch.freed(memory.allocation, origin)
        self._space.free(address, origin)
        del self._memory[address]

    def _size(self, value: Any) -> int:
        size = size_t(value)
        if size == 0:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "an allocation must have at least 1 byte, got 0")
        return size

    # ---- device memory ----

    @call(2)
    def cuMemGetInfo(self) -> tuple[int, int]:
        device = self._context().device
        return device.free_memory, device.total_memory

    @call(1)
    def cuMemAlloc(self, bytesize: int) -> Any:
        return cu.CUdeviceptr(self._reserve(self._context(), self._size(bytesize), None).allocation.address)

    @call(2)
    def cuMemAllocPitch(self, WidthInBytes: int, Height: int, ElementSizeBytes: int) -> tuple[Any, int]:
        if ElementSizeBytes not in (4, 8, 16):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"ElementSizeBytes must be 4, 8 or 16, got {ElementSizeBytes}"
            )
        pitch = -(-self._size(WidthInBytes) // 512) * 512
        memory = self._reserve(self._context(), self._size(pitch * size_t(Height)), None)
        return cu.CUdeviceptr(memory.allocation.address), pitch

    @call()
    def cuMemFree(self, dptr: Handle) -> None:
        context = self._context()
        memory = self._device_memory(dptr)
        if memory.pool is None:
            # cuMemFree waits for the device, except for memory of a pool
            self._finish(self._scheduler.pending_of(context))
        else:
            self._check_free(memory, None)
        self._release(memory, caller())
        self._settle(context)

    def _device_memory(self, dptr: Handle) -> MemoryRecord:
        memory = self._live(as_handle(dptr), "device pointer")
        if memory.allocation.kind == "host":
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "this is pinned host memory: call cuMemFreeHost")
        if memory.allocation.kind != "device":
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, "this is a module's variable, which is freed with its module"
            )
        return memory

    @call(1, context=False)
    def cuMemAllocAsync(self, bytesize: int, hStream: Handle) -> Any:
        stream = self._stream(hStream)
        return self._allocate_on(stream, bytesize, stream.context.device.pool)

    @call(1, context=False)
    def cuMemAllocFromPoolAsync(self, bytesize: int, pool: Handle, hStream: Handle) -> Any:
        return self._allocate_on(self._stream(hStream), bytesize, self._pool(pool))

    def _allocate_on(self, stream: Stream, bytesize: int, pool: Pool) -> Any:
        self._not_captured("cuMemAllocAsync (the simulated device has no allocation nodes)", stream)
        self._expect_allowed("cuMemAllocAsync")
        memory = self._reserve(stream.context, self._size(bytesize), pool)
        memory.made = self._scheduler.enqueue(stream, "cuMemAllocAsync", place=caller())
        return cu.CUdeviceptr(memory.allocation.address)

    @call(context=False)
    def cuMemFreeAsync(self, dptr: Handle, hStream: Handle) -> None:
        stream = self._stream(hStream)
        memory = self._device_memory(dptr)
        if stream.capture is not None:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"{stream} is being captured, and a graph can only free memory that it allocated",
            )
        self._not_captured("cuMemFreeAsync", stream)
        self._expect_allowed("cuMemFreeAsync")
        self._keep_up(stream.context)
        self._make_room(stream.context, memory.size)
        origin = memory.freed_at = caller()
        self._freeing += memory.size
        free = self._scheduler.enqueue(stream, "cuMemFreeAsync", lambda: self._release(memory, origin), place=origin)
        self._frees.append(free)
        self._check_free(memory, free)

    def _make_room(self, context: Context, size: int) -> None:
        """Run queued frees, the oldest first, if they and ``size`` more bytes would take too much memory; a GPU would
        have run them by now."""
        while self._frees and (self._frees[0].done or self._freeing + size > MOST_FREEING):
            self._scheduler.finish([self._frees.popleft()])
        self._usable(context)

    # ---- pinned host memory ----

    @call(1)
    def cuMemHostAlloc(self, bytesize: int, Flags: int) -> int:
        return self._pin(bytesize, unsigned(Flags))

    @call(1)
    def cuMemAllocHost(self, bytesize: int) -> int:
        return self._pin(bytesize, 0)

    def _pin(self, bytesize: int, flags: int) -> int:
        size = self._size(bytesize)
        if flags & ~7:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"flags {flags} are not in CU_MEMHOSTALLOC_*")
        try:
            raw = np.empty(size + PAGE, np.uint8)
        except MemoryError:
            raise CallError(Result.CUDA_ERROR_OUT_OF_MEMORY, f"the host cannot allocate {size} bytes") from None
        skip = -raw.ctypes.data % PAGE
        allocation = self._space.register_host(raw[skip : skip + size], caller())
        return self._keep(allocation, self._context(), flags=flags).allocation.address

    @call(lost=True)
    def cuMemFreeHost(self, p: Any) -> None:
        memory = self._host_memory(p)
        if memory.registered:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "this is registered memory: call cuMemHostUnregister")
        self._release_host(memory)

    def _host_memory(self, p: Any) -> MemoryRecord:
        memory = self._live(as_handle(p), "host pointer")
        if memory.allocation.kind != "host":
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "this is device memory: call cuMemFree")
        return memory

    @call()
    def cuMemHostRegister(self, p: Any, bytesize: int, Flags: int) -> None:
        size, flags = self._size(bytesize), unsigned(Flags)
        address = as_handle(p) if not hasattr(p, "__buffer__") else int(np.frombuffer(p, np.uint8).ctypes.data)
        if address == 0 or flags & ~15:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"cannot register pointer {address:#x}, flags {flags}")
        try:
            allocation = self._space.register_host(host_bytes(address, size), caller())
        except ValueError as error:
            raise CallError(Result.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, str(error)) from None
        self._keep(allocation, self._context(), registered=True, flags=flags)

    @call(lost=True)
    def cuMemHostUnregister(self, p: Any) -> None:
        memory = self._memory.get(as_handle(p))
        if memory is None or not memory.registered:
            raise CallError(Result.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "this pointer was not registered")
        self._release_host(memory)

    def _release_host(self, memory: MemoryRecord) -> None:
        context = self._current()
        self._finish(self._scheduler.pending_of(context))
        self._release(memory, caller())
        # it is freed even if the work failed or the context was lost; both are reported afterwards
        self._usable(context)
        self._settle(context)

    @call(1)
    def cuMemHostGetDevicePointer(self, p: Any, Flags: int) -> Any:
        memory = self._covering(as_handle(p))
        if memory is None or memory.allocation.kind != "host":
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "this is not pinned host memory")
        return cu.CUdeviceptr(as_handle(p))

    @call(1)
    def cuMemHostGetFlags(self, p: Any) -> int:
        return self._host_memory(p).flags

    # ---- pointers ----

    @call(2)
    def cuMemGetAddressRange(self, dptr: Handle) -> tuple[Any, int]:
        memory = self._covering(as_handle(dptr))
        if memory is None:
            raise CallError(Result.CUDA_ERROR_NOT_FOUND, f"{as_handle(dptr):#x} is not in a live allocation")
        return cu.CUdeviceptr(memory.allocation.address), memory.allocation.size

    @call(1)
    def cuPointerGetAttribute(self, attribute: Any, ptr: Handle) -> Any:
        address = as_handle(ptr)
        memory = self._covering(address)
        if memory is None:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"{address:#x} is not in a live device or pinned host allocation"
            )
        return self._pointer_attribute(member(_POINTER, attribute, "pointer attribute"), address, memory)

    @call(1)
    def cuPointerGetAttributes(self, numAttributes: int, attributes: Any, ptr: Handle) -> list[Any]:
        address = as_handle(ptr)
        memory = self._covering(address)
        wanted = [member(_POINTER, a, "pointer attribute") for a in attributes[:numAttributes]]
        if memory is None:
            return [0] * len(wanted)
        return [self._pointer_attribute(attribute, address, memory) for attribute in wanted]

    def _pointer_attribute(self, attribute: Any, address: int, memory: MemoryRecord) -> Any:
        device = memory.allocation.kind != "host"
        if attribute == _POINTER.CU_POINTER_ATTRIBUTE_HOST_POINTER and device:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "device memory has no host pointer")
        kinds = cu.CUmemorytype
        answers: dict[Any, Callable[[], Any]] = {
            _POINTER.CU_POINTER_ATTRIBUTE_CONTEXT: lambda: cu.CUcontext(memory.context.handle),
            _POINTER.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: lambda: (
                kinds.CU_MEMORYTYPE_DEVICE if device else kinds.CU_MEMORYTYPE_HOST
            ),
            _POINTER.CU_POINTER_ATTRIBUTE_DEVICE_POINTER: lambda: cu.CUdeviceptr(address),
            _POINTER.CU_POINTER_ATTRIBUTE_HOST_POINTER: lambda: address,
            _POINTER.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: lambda: False,
            _POINTER.CU_POINTER_ATTRIBUTE_BUFFER_ID: lambda: memory.number,
            _POINTER.CU_POINTER_ATTRIBUTE_IS_MANAGED: lambda: False,
            _POINTER.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: lambda: memory.context.device.ordinal,
            _POINTER.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: lambda: cu.CUdeviceptr(memory.allocation.address),
            _POINTER.CU_POINTER_ATTRIBUTE_RANGE_SIZE: lambda: memory.allocation.size,
            _POINTER.CU_POINTER_ATTRIBUTE_MAPPED: lambda: True,
            _POINTER.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: lambda: cu.CUmemoryPool(
                memory.pool.handle if memory.pool is not None else 0
            ),
        }
        answer = answers.get(attribute)
        if answer is None:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, f"{attribute!r} is not simulated")
        return answer()

    # ---- extensions ----

    def simRestrict(
        self,
        address: int,
        first: int = 0,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] = (),
        itemsize: int = 1,
    ) -> None:
        """Restrict kernels to one array of the allocation that contains ``address``. The array's element of index 0 is
        at ``first``; ``strides`` are in bytes. Kernel accesses to other bytes of the allocation are out of bounds from
        now on; copies, fills and host functions may still use all of it. Without a ``shape``, the restriction ends.

        Raises ValueError if no live allocation contains ``address``, or the array is not within the allocation."""
        with self._lock.raw, self._lock:
            try:
                allocation = self._space.covering(int(address), 1)
            except MemoryFault as fault:
                raise ValueError(str(fault)) from None
            if shape is None:
                allocation.bounds = None
                return
            bounds = ArrayBounds(int(first), tuple(shape), tuple(strides), itemsize)
            if bounds.size and not (allocation.address <= bounds.start and bounds.end <= allocation.end):
                raise ValueError(
                    f"an array of {bounds.size} bytes at {bounds.start:#x} is not within the allocation of"
                    f" {allocation.size} bytes at {allocation.address:#x}"
                )
            allocation.bounds = bounds
