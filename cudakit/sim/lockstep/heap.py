"""The device heap: what malloc, free, new and delete of a kernel use."""

from __future__ import annotations

from collections.abc import Callable

from cudakit.sim.lockstep.memory import AddressSpace, Allocation, MemoryFault

HEAP_BYTES = 8 << 20


class Heap:
    """Memory that kernels ask for, ``limit`` bytes in all, of which ``used`` are taken. ``made`` is told each
    allocation and ``freed`` each address that was given back: they outlive the kernel."""

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
        """The address of ``size`` bytes; 0 where the heap has no room for them."""
        if self.used + size > self.limit:
            return 0
        allocation = self.space.allocate(max(size, 1), "heap", origin)
        self.used += allocation.size
        self.made(allocation)
        return allocation.address

    def free(self, address: int, origin: str) -> None:
        """Give memory back; nothing for a null pointer. MemoryFault for what malloc has not given, or not any more."""
        if address == 0:
            return
        found = self.space.find(address)
        if found is None or found.address != address or found.kind != "heap":
            raise MemoryFault("out of bounds", address, 1, found)
        self.used -= found.size
        self.space.free(address, origin)
        self.freed(address)
