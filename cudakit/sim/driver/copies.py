"""Driver calls that copy memory, with CUDA's rules on when the host waits.

Pageable host memory is staged: a copy from it reads it during the call, and a copy to it returns only when done. Pinned
memory is read and written when the work runs. To expose missing waits, the destination of an asynchronous copy to
pinned memory is poisoned until the copy runs, and a change of a pinned source between the call and the copy is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.sim.checks.watches import HostWrite
from cudakit.sim.driver.allocations import MemoryCalls
from cudakit.sim.driver.arguments import Handle, as_handle, size_t
from cudakit.sim.driver.faults import CallError, OperationFault, Result, caller, host_report, memory_report
from cudakit.sim.driver.objects import Operation, QueuedWork, Stream
from cudakit.sim.driver.regions import Bytes, PinnedSource, Region
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.report import Origin

MAX_PITCH = 2**31 - 1
# the kinds of writes, by the kind of the memory that is copied
_KINDS = {"device": "copy from device", "pinned": "copy from pinned memory", "pageable": "copy from host"}


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]


class CopyCalls(MemoryCalls):
    """cuMemcpy*."""

    checks: frozenset[str]

    # ---- ranges ----

    def _device_range(self, pointer: Handle, width: int, height: int = 1, pitch: int = 0) -> Region:
        """Memory at a device pointer; raises CallError (INVALID_VALUE) unless one live allocation contains it."""
        address = as_handle(pointer)
        region = Region("device", address, width, height, pitch or width, self._space)
        try:
            allocation = self._space.covering(address, region.span)
        except MemoryFault as fault:
            raise CallError.by(Result.CUDA_ERROR_INVALID_VALUE, memory_report(fault, "", caller())) from None
        memory = self._memory.get(allocation.address)
        if memory is not None and memory.freeing:
            raise self._refuse_freed(memory, address)
        if allocation.kind == "host":
            region.kind = "pinned"
        return region

    def _host_range(self, place: Any, width: int, height: int = 1, pitch: int = 0, *, write: bool = False) -> Region:
        """Host memory at an address or of an object with a buffer, which must be long enough (and writable)."""
        region = Region("pageable", 0, width, height, pitch or width, self._space)
        if isinstance(place, (int, np.integer)) or not _is_buffer(place):
            region.address = as_handle(place)
        else:
            view = memoryview(place)
            if not view.c_contiguous:
                raise ValueError("ndarray is not contiguous")
            if view.nbytes < region.span:
                raise CallError(
                    Result.CUDA_ERROR_INVALID_VALUE, f"the copy needs {region.span} bytes, the buffer has {view.nbytes}"
                )
            if write and view.readonly:
                raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "the destination buffer is read-only")
            region.address = int(np.frombuffer(place, np.uint8).ctypes.data)
        return self._classify(region)

    def _classify(self, region: Region) -> Region:
        address, span = region.extent
        if address < 4096:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{address:#x} is not a host address")
        memory = self._covering(address)
        if memory is None:
            return region
        allocation = memory.allocation
        if allocation.kind != "host":
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE, f"{address:#x} is device memory, but host memory is required"
            )
        if address + span > allocation.end:
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"{span} bytes at {address:#x} reach {address + span - allocation.end} bytes past the end of the pinned"
                f" memory of {allocation.size} bytes made {allocation.origin}",
            )
        region.kind = "pinned"
        return region

    def _any_range(self, pointer: Handle, width: int) -> Region:
        """Memory at an address of either kind (unified addressing)."""
        address = as_handle(pointer)
        near = self._space.find(address)
        if near is not None and near.address <= address < near.end:
            return self._device_range(address, width)
        return self._host_range(address, width)

    def _gone(self, label: str, fault: MemoryFault, place: Origin) -> OperationFault:
        """The fault of queued work whose memory was freed before the work ran."""
        return self._fault(Result.CUDA_ERROR_ILLEGAL_ADDRESS, memory_report(fault, label, place))

    # ---- the work ----

    def _transfer(
        self, label: str, dst: Region, src: Region, stream: Stream, place: Origin, after: Iterable[Operation] = ()
    ) -> Operation:
        """Enqueue a copy. Pageable memory is read or written before this returns."""
        read: Callable[[], Bytes]
        details: dict[str, Any] = {"puts": (dst, None)}
        source: PinnedSource | None = None
        if src.kind == "pageable":
            staged = src.view().copy()
            read = lambda: staged  # noqa: E731
            details["puts"] = (dst, lambda row, start, stop: staged[row, start:stop])
        elif src.kind == "pinned":
            source = PinnedSource(src, self._may_watch(src, stream))
            read = source.read
            details.update(reads=(src.extent,), secure=source.secure)
        else:
            read = src.view
        if dst.kind != "device":
            details.update(writes=(dst.extent,), visible=True)

        def run() -> None:
            try:
                if source is not None and source.changed():
                    report = host_report(
                        "source changed in flight",
                        f"the host changed {src.span} bytes of pinned memory at {src.address:#x} after a copy from them"
                        " was queued and before it ran: wait for the copy first",
                        label,
                        place,
                        allocation=self._space.find(src.address),
                    )
                    self._mistake(stream.context, report)
                if operation.poisoned and not dst.is_poison():
                    report = host_report(
                        "destination changed in flight",
                        f"the host changed {dst.span} bytes of pinned memory at {dst.address:#x} after a copy to them"
                        " was queued and before it ran, and the copy overwrites the change: wait for the copy first",
                        label,
                        place,
                        allocation=self._space.find(dst.address),
                    )
                    self._mistake(stream.context, report)
                for watch in self._watches:
                    watch.write(HostWrite(_KINDS[src.kind], label, place, src.rows), dst.rows)
                np.copyto(dst.view(), read())
                dst.define(src.undefined())
                for watch in self._watches:
                    watch.written()
            except MemoryFault as fault:
                raise self._gone(label, fault, place) from None

        operation = self._scheduler.enqueue(stream, label, run, after=after, place=place, **details)
        for region, does in ((src, "reads"), (dst, "writes")):
            if region.kind != "pageable":
                self._note(operation, does, region.rows)
        if dst.kind == "pageable":
            self._finish([operation], stream.context)
        return operation

    def _may_watch(self, region: Region, stream: Stream) -> bool:
        """Whether a pinned source can be watched for changes; False while queued work may write it."""
        return "streams" in self.checks and not any(
            other.touches_host or any(_overlap(region.extent, r) for r in other.writes)
            for other in self._scheduler.pending()
        )

    def _poison(self, operation: Operation, region: Region) -> None:
        """Fill the destination of a queued copy with poison, so that reading it too early is noticed. Pending work that
        reads the old contents gets a copy of them."""
        if operation.done:
            return
        readers = []
        alone = True
        for other in self._scheduler.pending():
            if other is operation:
                continue
            if other.touches_host:
                return
            if any(_overlap(region.extent, r) for r in other.writes):
                alone = other.poisoned = False
            if other.secure is not None and any(_overlap(region.extent, r) for r in other.reads):
                readers.append(other.secure)
        for secure in readers:
            secure()
        region.poison()
        # unless other queued work writes there too, only a mistake changes the poison before the copy runs
        operation.poisoned = alone and "streams" in self.checks

    def _copy_async(self, label: str, dst: Region, src: Region, hStream: Handle) -> None:
        stream, place = self._stream(hStream), caller()

        def enqueue(stream: Stream, after: Iterable[Operation]) -> Operation:
            operation = self._transfer(label, dst, src, stream, place, after)
            if dst.kind == "pinned":
                self._poison(operation, dst)
            return operation

        if stream.capture is not None and "pageable" in (dst.kind, src.kind):
            self._not_captured(f"{label} of pageable memory", stream)
        self._submit(stream, QueuedWork("memcpy", enqueue, lambda: self._expect_there(dst, src), (dst, src)))

    def _expect_there(self, *regions: Region) -> None:
        """Raise CallError for work on memory that was freed or whose free is queued."""
        for region in regions:
            self._device_range(region.address, region.width, region.height, region.pitch)

    def _copy_now(self, label: str, dst: Region, src: Region) -> None:
        """A copy by a call without a stream, on the legacy stream. A copy between device memory does not wait; a copy
        from pageable memory waits for earlier work and is staged."""
        context = self._context()
        stream = context.legacy
        if src.kind == "pageable" and stream.last is not None:
            self._finish([stream.last], context)
        operation = self._transfer(label, dst, src, stream, caller())
        if dst.kind != "device" or src.kind == "pinned":
            self._finish([operation], context)

    # ---- copies of a run of bytes ----

    @call()
    def cuMemcpy(self, dst: Handle, src: Handle, ByteCount: int) -> None:
        if size := size_t(ByteCount):
            self._copy_now("cuMemcpy", self._any_range(dst, size), self._any_range(src, size))

    @call()
    def cuMemcpyAsync(self, dst: Handle, src: Handle, ByteCount: int, hStream: Handle) -> None:
        self._stream(hStream)
        if size := size_t(ByteCount):
            self._copy_async("cuMemcpyAsync", self._any_range(dst, size), self._any_range(src, size), hStream)

    @call()
    def cuMemcpyHtoD(self, dstDevice: Handle, srcHost: Any, ByteCount: int) -> None:
        if size := size_t(ByteCount):
            self._copy_now("cuMemcpyHtoD", self._device_range(dstDevice, size), self._host_range(srcHost, size))

    @call()
    def cuMemcpyHtoDAsync(self, dstDevice: Handle, srcHost: Any, ByteCount: int, hStream: Handle) -> None:
        self._stream(hStream)
        if size := size_t(ByteCount):
            dst, src = self._device_range(dstDevice, size), self._host_range(srcHost, size)
            self._copy_async("cuMemcpyHtoDAsync", dst, src, hStream)

    @call()
    def cuMemcpyDtoH(self, dstHost: Any, srcDevice: Handle, ByteCount: int) -> None:
        if size := size_t(ByteCount):
            dst, src = self._host_range(dstHost, size, write=True), self._device_range(srcDevice, size)
            self._copy_now("cuMemcpyDtoH", dst, src)

    @call()
    def cuMemcpyDtoHAsync(self, dstHost: Any, srcDevice: Handle, ByteCount: int, hStream: Handle) -> None:
        self._stream(hStream)
        if size := size_t(ByteCount):
            dst, src = self._host_range(dstHost, size, write=True), self._device_range(srcDevice, size)
            self._copy_async("cuMemcpyDtoHAsync", dst, src, hStream)

    @call()
    def cuMemcpyDtoD(self, dstDevice: Handle, srcDevice: Handle, ByteCount: int) -> None:
        if size := size_t(ByteCount):
            self._copy_now("cuMemcpyDtoD", self._device_range(dstDevice, size), self._device_range(srcDevice, size))

    @call()
    def cuMemcpyDtoDAsync(self, dstDevice: Handle, srcDevice: Handle, ByteCount: int, hStream: Handle) -> None:
        self._stream(hStream)
        if size := size_t(ByteCount):
            dst, src = self._device_range(dstDevice, size), self._device_range(srcDevice, size)
            self._copy_async("cuMemcpyDtoDAsync", dst, src, hStream)

    @call()
    def cuMemcpyPeer(
        self, dstDevice: Handle, dstContext: Handle, srcDevice: Handle, srcContext: Handle, ByteCount: int
    ) -> None:
        dst, src = self._peers(dstDevice, dstContext, srcDevice, srcContext, size_t(ByteCount))
        if size_t(ByteCount):
            self._copy_now("cuMemcpyPeer", dst, src)

    @call()
    def cuMemcpyPeerAsync(
        self,
        dstDevice: Handle,
        dstContext: Handle,
        srcDevice: Handle,
        srcContext: Handle,
        ByteCount: int,
        hStream: Handle,
    ) -> None:
        self._stream(hStream)
        if size_t(ByteCount):
            dst, src = self._peers(dstDevice, dstContext, srcDevice, srcContext, size_t(ByteCount))
            self._copy_async("cuMemcpyPeerAsync", dst, src, hStream)

    def _peers(
        self, dstDevice: Handle, dstContext: Handle, srcDevice: Handle, srcContext: Handle, size: int
    ) -> tuple[Region, Region]:
        ranges = []
        for pointer, handle in ((dstDevice, dstContext), (srcDevice, srcContext)):
            context = self._usable(self._context_of(handle))
            region = self._device_range(pointer, size)
            memory = self._covering(region.address)
            if memory is not None and memory.context.device is not context.device:
                raise CallError(
                    Result.CUDA_ERROR_INVALID_VALUE,
                    f"{region.address:#x} is memory of device {memory.context.device.ordinal}, but the context passed"
                    f" with it is of device {context.device.ordinal}",
                )
            ranges.append(region)
        return ranges[0], ranges[1]

    # ---- copies of rows ----

    @call()
    def cuMemcpy2D(self, pCopy: Any) -> None:
        if pair := self._planes(pCopy):
            self._copy_now("cuMemcpy2D", *pair)

    @call()
    def cuMemcpy2DUnaligned(self, pCopy: Any) -> None:
        if pair := self._planes(pCopy):
            self._copy_now("cuMemcpy2DUnaligned", *pair)

    @call()
    def cuMemcpy2DAsync(self, pCopy: Any, hStream: Handle) -> None:
        self._stream(hStream)
        if pair := self._planes(pCopy):
            self._copy_async("cuMemcpy2DAsync", *pair, hStream)

    def _planes(self, copy: Any) -> tuple[Region, Region] | None:
        """Destination and source of a CUDA_MEMCPY2D; None if it is empty."""
        if copy is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "pCopy is None")
        width, height = int(copy.WidthInBytes), int(copy.Height)
        if width == 0 or height == 0:
            return None
        return self._plane(copy, "dst", width, height), self._plane(copy, "src", width, height)

    def _plane(self, copy: Any, side: str, width: int, height: int) -> Region:
        try:
            kind = getattr(copy, f"{side}MemoryType")
        except ValueError:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{side}MemoryType is not set") from None
        x, y, pitch = (int(getattr(copy, side + name)) for name in ("XInBytes", "Y", "Pitch"))
        if pitch < x + width and not (pitch == 0 and height == 1 and y == 0):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"{side}Pitch {pitch} is less than {side}XInBytes {x} + WidthInBytes {width}",
            )
        if pitch > MAX_PITCH:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{side}Pitch {pitch} is over the limit of {MAX_PITCH}")
        kinds = cu.CUmemorytype
        if kind == kinds.CU_MEMORYTYPE_HOST:
            base = as_handle(getattr(copy, f"{side}Host"))
            return self._host_range(base + y * pitch + x, width, height, pitch, write=side == "dst")
        if kind in (kinds.CU_MEMORYTYPE_DEVICE, kinds.CU_MEMORYTYPE_UNIFIED):
            base = as_handle(getattr(copy, f"{side}Device"))
            return self._device_range(base + y * pitch + x, width, height, pitch)
        raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, f"{side}MemoryType {kind!r} is not simulated")


def _is_buffer(thing: Any) -> bool:
    try:
        memoryview(thing).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True
