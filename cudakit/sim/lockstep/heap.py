"""The device heap, for malloc, free, new and delete in kernels."""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.lockstep.memory import AddressSpace, Allocation, MemoryFault

HEAP_BYTES = 8 << 20


class Heap:
    """The memory that kernels allocate: at most ``limit`` bytes, of which ``used`` are allocated. ``made`` is called
    with each new allocation and ``freed`` with each freed address, since allocations outlive the kernel."""

    def __init__(
        self,
        space: AddressSpace,
        limit: int = HEAP_BYTES,
        used: int = 0,
        made: Callable[[Allocation], None] = lambda allocation: None,
        freed: Callable[[int], None] = lambda address: None,
    ) -> None:
        self.space = space
        self.limit = limit
        self.used = used
        self.made = made
        self.freed = freed

    def allocate(self, size: int, origin: str) -> int:
        """Allocate ``size`` bytes; returns 0 if they do not fit into the heap."""
        if self.used + size > self.limit:
            return 0
        allocation = self.space.allocate(max(size, 1), "heap", origin)
        self.used += allocation.size
        self.made(allocation)
        return allocation.address

    def free(self, address: int, origin: str) -> None:
        """Free memory; a null pointer is ignored. Raises MemoryFault if malloc did not return the address, or it was
        freed already."""
        if address == 0:
            return
        found = self.space.find(address)
        if found is None or found.address != address or found.kind != "heap":
            raise MemoryFault("out of bounds", address, 1, found)
        self.used -= found.size
        self.space.free(address, origin)
        self.freed(address)
