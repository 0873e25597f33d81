"""Driver calls that fill memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cudakit.sim.checks.watches import HostWrite
from cudakit.sim.driver.arguments import Handle, as_handle, size_t, unsigned
from cudakit.sim.driver.copies import CopyCalls
from cudakit.sim.driver.faults import CallError, Result, caller
from cudakit.sim.driver.objects import Operation, QueuedWork, Stream
from cudakit.sim.driver.regions import repeated
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.memory import MemoryFault


class FillCalls(CopyCalls):
    """cuMemset*."""

    def _fill(
        self, label: str, pointer: Handle, value: int, bits: int, width: int, height: int, pitch: int, stream: Stream
    ) -> None:
        """Fill ``width`` elements of ``bits`` bits in each of ``height`` rows."""
        pattern = np.array(unsigned(value, bits), f"<u{bits // 8}")
        width, height, pitch = size_t(width), size_t(height), size_t(pitch)
        if width == 0 or height == 0:
            return
        size = pattern.itemsize
        if as_handle(pointer) % size or (height > 1 and (pitch % size or pitch < width * size)):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"address {as_handle(pointer):#x} and pitch {pitch} must be multiples of {size}, and rows must not"
                " overlap",
            )
        region = self._device_range(pointer, width * size, height, pitch if height > 1 else width * size)
        place = caller()

        def run() -> None:
            try:
                for watch in self._watches:
                    watch.write(HostWrite("fill", label, place), region.rows)
                region.view().view(pattern.dtype)[...] = pattern
                region.define()
                for watch in self._watches:
                    watch.written()
            except MemoryFault as fault:
                raise self._gone(label, fault, place) from None

        host = region.kind == "pinned"
        writes = (region.extent,) if host else ()
        unit = np.frombuffer(pattern.tobytes(), np.uint8)
        puts = (region, lambda row, start, stop: repeated(unit, start, stop))

        def enqueue(stream: Stream, after: Iterable[Operation]) -> Operation:
            operation = self._scheduler.enqueue(
                stream, label, run, after=after, place=place, visible=host, writes=writes, puts=puts
            )
            self._note(operation, "writes", region.rows)
            return operation

        if label.endswith("Async"):
            self._submit(stream, QueuedWork("memset", enqueue, lambda: self._expect_there(region), (region, pattern)))
            return
        operation = enqueue(stream, ())
        if host:
            self._finish([operation], stream.context)

    @call()
    def cuMemsetD8(self, dstDevice: Handle, uc: int, N: int) -> None:
        self._fill("cuMemsetD8", dstDevice, uc, 8, N, 1, 0, self._context().legacy)

    @call()
    def cuMemsetD16(self, dstDevice: Handle, us: int, N: int) -> None:
        self._fill("cuMemsetD16", dstDevice, us, 16, N, 1, 0, self._context().legacy)

    @call()
    def cuMemsetD32(self, dstDevice: Handle, ui: int, N: int) -> None:
        self._fill("cuMemsetD32", dstDevice, ui, 32, N, 1, 0, self._context().legacy)

    @call()
    def cuMemsetD8Async(self, dstDevice: Handle, uc: int, N: int, hStream: Handle) -> None:
        self._fill("cuMemsetD8Async", dstDevice, uc, 8, N, 1, 0, self._stream(hStream))

    @call()
    def cuMemsetD16Async(self, dstDevice: Handle, us: int, N: int, hStream: Handle) -> None:
        self._fill("cuMemsetD16Async", dstDevice, us, 16, N, 1, 0, self._stream(hStream))

    @call()
    def cuMemsetD32Async(self, dstDevice: Handle, ui: int, N: int, hStream: Handle) -> None:
        self._fill("cuMemsetD32Async", dstDevice, ui, 32, N, 1, 0, self._stream(hStream))

    @call()
    def cuMemsetD2D8(self, dstDevice: Handle, dstPitch: int, uc: int, Width: int, Height: int) -> None:
        self._fill("cuMemsetD2D8", dstDevice, uc, 8, Width, Height, dstPitch, self._context().legacy)

    @call()
    def cuMemsetD2D16(self, dstDevice: Handle, dstPitch: int, us: int, Width: int, Height: int) -> None:
        self._fill("cuMemsetD2D16", dstDevice, us, 16, Width, Height, dstPitch, self._context().legacy)

    @call()
    def cuMemsetD2D32(self, dstDevice: Handle, dstPitch: int, ui: int, Width: int, Height: int) -> None:
        self._fill("cuMemsetD2D32", dstDevice, ui, 32, Width, Height, dstPitch, self._context().legacy)

    @call()
    def cuMemsetD2D8Async(
        self, dstDevice: Handle, dstPitch: int, uc: int, Width: int, Height: int, hStream: Handle
    ) -> None:
        self._fill("cuMemsetD2D8Async", dstDevice, uc, 8, Width, Height, dstPitch, self._stream(hStream))

    @call()
    def cuMemsetD2D16Async(
        self, dstDevice: Handle, dstPitch: int, us: int, Width: int, Height: int, hStream: Handle
    ) -> None:
        self._fill("cuMemsetD2D16Async", dstDevice, us, 16, Width, Height, dstPitch, self._stream(hStream))

    @call()
    def cuMemsetD2D32Async(
        self, dstDevice: Handle, dstPitch: int, ui: int, Width: int, Height: int, hStream: Handle
    ) -> None:
        self._fill("cuMemsetD2D32Async", dstDevice, ui, 32, Width, Height, dstPitch, self._stream(hStream))
