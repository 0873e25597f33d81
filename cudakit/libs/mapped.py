"""Device memory that other processes can map, as NCCL's windows need: physical memory, mapped at an address."""

from __future__ import annotations

from typing import Any

from cudakit.driver.context import Context


class MappedMemory:
    """At least `nbytes` of a GPU's memory. All GPUs with peer access to it may read and write it.

    address: of the mapping. nbytes: its size, a multiple of the driver's granularity.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        self.context = context
        driver, call = context.driver, context.call
        wanted = driver.CUmemAllocationProp()
        wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = context.ordinal
        wanted.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        unit = int(
            call(
                "cuMemGetAllocationGranularity",
                wanted,
                driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        )
        self.nbytes = max(1, -(-nbytes // unit)) * unit
        handle = call("cuMemCreate", self.nbytes, wanted, 0)
        try:
            self.address = int(call("cuMemAddressReserve", self.nbytes, unit, 0, 0))
            call("cuMemMap", self.address, self.nbytes, 0, handle, 0)
            readers = [
                self._access(ordinal) for ordinal in range(int(call("cuDeviceGetCount"))) if self._reads(ordinal)
            ]
            call("cuMemSetAccess", self.address, self.nbytes, readers, len(readers))
        finally:
            context.attempt("cuMemRelease", handle)  # the mapping keeps the memory

    def _reads(self, ordinal: int) -> bool:
        if ordinal == self.context.ordinal:
            return True
        other = self.context.call("cuDeviceGet", ordinal)
        return bool(self.context.call("cuDeviceCanAccessPeer", other, self.context.device))

    def _access(self, ordinal: int) -> Any:
        driver = self.context.driver
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = ordinal
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def free(self) -> None:
        """Unmap and free it. Never raises."""
        self.context.attempt("cuMemUnmap", self.address, self.nbytes)
        self.context.attempt("cuMemAddressFree", self.address, self.nbytes)
