"""simPeek: the bytes that memory will have after the queued copies and fills, computed without running them."""

from __future__ import annotations

from collections.abc import Sequence

from cudakit.sim.driver.arguments import Handle
from cudakit.sim.driver.objects import Context, Operation, Stream
from cudakit.sim.driver.regions import Bytes
from cudakit.sim.driver.state import DriverState
from cudakit.sim.lockstep.memory import MemoryFault

#: Labels of queued work that does not change bytes of live memory.
_HARMLESS = frozenset({"cuMemFreeAsync"})


class PeekCalls(DriverState):
    """simPeek."""

    def simPeek(
        self, context: Handle, ranges: Sequence[tuple[int, int]], streams: Sequence[int] = ()
    ) -> str | list[tuple[Bytes, Bytes | None]]:
        """Copy the bytes of ``ranges`` (address, size). Each copy has a table with 0xFF for uninitialised bytes, or
        None if all are initialised. If the bytes are unknown, returns the reason instead: "closed", "lost", "being
        captured" (one of ``streams`` is), "work in flight" or "freed".

        It does not run or wait for queued work and is not checked. Queued fills and copies from pageable memory count
        as done, since their bytes are known; other queued work makes the bytes unknown if it may write to ``ranges``.
        """
        if not self._lock.raw.acquire(blocking=False):
            return "work in flight"
        try:
            with self._lock:
                owner = self._objects.get(int(context))
                if not isinstance(owner, Context) or not owner.active:
                    return "closed"
                if owner.sticky is not None:
                    return "lost"
                known = [self._objects.get(int(handle)) for handle in streams]
                if any(isinstance(stream, Stream) and stream.capture is not None for stream in known):
                    return "being captured"
                queued = [
                    operation
                    for operation in self._scheduler.pending()
                    if operation.run is not None and operation.label not in _HARMLESS
                ]
                if any(operation.puts is None for operation in queued):
                    return "work in flight"
                queued.sort(key=lambda operation: operation.serial)
                try:
                    found = [self._peek(address, size, queued) for address, size in ranges]
                except MemoryFault:
                    return "freed"
                return "work in flight" if None in found else [one for one in found if one is not None]
        finally:
            self._lock.raw.release()

    def _peek(self, address: int, size: int, queued: Sequence[Operation]) -> tuple[Bytes, Bytes | None] | None:
        """The bytes of one range; None if queued work will write unknown bytes to it."""
        data = self._space.bytes(address, size).copy()
        found = self._space.covering(address, size)
        undefined = found.undefined_at(address - found.address, size)
        for operation in queued:
            if operation.puts is None:
                continue
            region, values = operation.puts
            first = max(0, (address - region.address) // region.pitch)
            last = min(region.height - 1, (address + size - 1 - region.address) // region.pitch)
            for row in range(first, last + 1):
                start = region.address + row * region.pitch
                low, high = max(start, address), min(start + region.width, address + size)
                if low < high and values is None:
                    return None
                if low < high and values is not None:
                    data[low - address : high - address] = values(row, low - start, high - start)
                    if undefined is not None:
                        undefined[low - address : high - address] = 0
        return data, undefined if undefined is not None and undefined.any() else None
