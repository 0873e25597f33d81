"""The simulated device's memory: allocations with real bytes at virtual addresses that are never reused.

Addresses grow upwards; at least 4 KiB between two allocations are unused, so that an overrun never reaches the next
allocation. Freed allocations are remembered for reports. Pinned host memory is registered at its real address.

Shared, local and parameter memory have their own windows of generic addresses, far above any real pointer: a generic
address is ``window + offset``. The windows contain no allocations; the machine holds their bytes.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.sim.lockstep.bounds import ArrayBounds

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 512
GAP = 4096
FIRST_ADDRESS = 1 << 36
# the addresses of functions, which hold no data
FIRST_FUNCTION = 1 << 35
_FUNCTION_STEP = 128
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
PARAM_WINDOW = 1 << 58
# the first shared address: address 0 stays invalid, as on hardware
SHARED_START = 1024
# a lower address is reported as a null pointer or an offset from one
NEAR_NULL = 1 << 16
# bytes at the start of shared memory that belong to the system, in kernels that read their address
RESERVED_BYTES = 1024
# the byte that fills a new allocation: NaN as a float, -1 as an int, so that an uninitialised read is noticed
POISON = 0xFF
_POISON_LIMIT = 1 << 30
_FREED_KEPT = 8192
_GRANULE = 128


class MemoryFault(Exception):
    """An access that is not within one live allocation, or is misaligned.

    ``kind`` is "out of bounds", "misaligned", "use after free" or "double free"; the access is to ``size`` bytes at
    ``address``. ``allocation`` is the one that contains the address, otherwise the nearest, or None. ``distance`` is
    how many bytes the access is before the allocation or reaches past its end (0 if inside).
    """

    def __init__(self, kind: str, address: int, size: int, allocation: Allocation | None = None) -> None:
        self.kind = kind
        self.address = address
        self.size = size
        self.allocation = allocation
        self.distance = _distance(allocation, address, size) if allocation is not None else 0
        super().__init__(f"{kind}: {self._sentence(origins=True)}")

    @property
    def where(self) -> str:
        """Size, address and place in or near an allocation, for a report that lists the allocation's origin itself."""
        return self._sentence(origins=False)

    def _sentence(self, *, origins: bool) -> str:
        odd = f" (not a multiple of {self.size})" if self.kind == "misaligned" else ""
        return f"{_bytes(self.size)} at {self.address:#x}{odd}, {describe_place(self, origins=origins)}"


class Allocation:
    """An allocation of ``size`` bytes at ``address``; ``data`` is a writable uint8 array of them (empty once freed).
    ``kind`` is "device", "host", "heap", "global" or "constant"; ``origin`` and ``free_origin`` name the lines that
    made and freed it. ``bounds``: the only array in it that kernels may access; None: all of it.
    """

    __slots__ = (
        "_undefined",
        "_views",
        "address",
        "base",
        "bounds",
        "data",
        "end",
        "free_origin",
        "kind",
        "origin",
        "owner",
        "size",
        "store",
    )

    def __init__(self, address: int, size: int, store: Bytes, base: int, kind: str, origin: str, owner: Any) -> None:
        self.address = address
        self.size = size
        self.end = address + size
        # the store starts at `base` (at most 127 bytes before `address`) and is a multiple of 128 bytes long, so that
        # it can be viewed as any element type or as rows of 128 bytes, with index (address - base) / itemsize
        self.base = base
        self.store = store
        self.data: Bytes = store[address - base : address - base + size]
        self.kind = kind
        self.origin = origin
        self.free_origin: str | None = None
        self.owner = owner
        self.bounds: ArrayBounds | None = None
        # 0xFF for each uninitialised byte; True: all are uninitialised; None: none is
        self._undefined: Bytes | bool | None = None
        self._views: dict[Any, npt.NDArray[Any]] = {}

    @property
    def live(self) -> bool:
        return self.free_origin is None

    def view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the store as elements of ``dtype``; element 0 is at ``base``."""
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self.store.view(dtype)
        return view

    # ---- which bytes are undefined ----

    def undefine(self) -> None:
        """Mark all bytes as uninitialised."""
        self._undefined = True

    def define(
        self, start: int = 0, size: int | None = None, height: int = 1, pitch: int = 0, like: Bytes | None = None
    ) -> None:
        """Mark ``height`` rows of ``size`` bytes, ``pitch`` bytes apart, from byte ``start`` on as initialised (all
        following bytes if ``size`` is None). With ``like``, of shape (height, size), only the bytes that are 0 in it;
        the others become uninitialised."""
        if self._undefined is None and (like is None or not like.any()):
            return
        size = self.size - start if size is None else size
        if like is None and size == self.size:
            self._undefined = None
            return
        if self._undefined is None:
            self._undefined = np.zeros(len(self.store), np.uint8)
        rows = self.undefined_rows(start, size, height, pitch)
        if rows is not None:
            rows[:] = 0 if like is None else like
            self.forget_if_defined()

    def undefined_rows(self, start: int, size: int, height: int = 1, pitch: int = 0) -> Bytes | None:
        """The part of ``undefined_bytes`` for the rows of ``define``, as (height, size)."""
        found = self.undefined_bytes()
        if found is None:
            return None
        first = self.address - self.base + start
        rows: Bytes = np.ndarray((height, size), np.uint8, buffer=found, offset=first, strides=(pitch or size, 1))
        return rows

    def undefined_at(self, start: int, size: int) -> Bytes | None:
        """A copy of ``size`` bytes of ``undefined_bytes`` from byte ``start`` on, without making the whole table."""
        known = self._undefined
        if not isinstance(known, np.ndarray):
            return np.full(size, 0xFF, np.uint8) if known else None
        first = self.address - self.base + start
        return np.array(known[first : first + size])

    def undefined_bytes(self) -> Bytes | None:
        """A writable array with 0xFF for each uninitialised byte of the store, else 0; None if all are initialised."""
        if self._undefined is True:
            self._undefined = np.full(len(self.store), 0xFF, np.uint8)
            # the store's padding is not part of the allocation
            self._undefined[self.address - self.base + self.size :] = 0
        found = self._undefined
        return found if isinstance(found, np.ndarray) else None

    def forget_if_defined(self) -> None:
        """Drop the table of uninitialised bytes if none is left."""
        if isinstance(self._undefined, np.ndarray) and not self._undefined.any():
            self._undefined = None

    def drop(self, origin: str) -> None:
        """Free the bytes; keep the facts that reports need."""
        self._undefined = None
        self.free_origin = origin
        self.store = self.data = np.empty(0, np.uint8)
        self._views = {}
        self.owner = None

    def __repr__(self) -> str:
        state = "" if self.live else ", freed"
        return f"Allocation({self.address:#x}, {self.size}, {self.kind!r}, {self.origin!r}{state})"


class AddressSpace:
    """The memory of one simulated device, or of several that share addresses."""

    def __init__(self, *, track_undefined: bool = False) -> None:
        """``track_undefined``: record which bytes of device memory are initialised."""
        self.track_undefined = track_undefined
        self._next = FIRST_ADDRESS
        self._next_function = FIRST_FUNCTION
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        self._freed: deque[int] = deque()
        self._last: Allocation | None = None

    # ---- making and freeing ----

    def allocate(self, size: int, kind: str = "device", origin: str = "") -> Allocation:
        """Allocate ``size`` bytes at a new 512-byte aligned address. New memory is filled with ``POISON``, not zero."""
        if size <= 0:
            raise ValueError(f"an allocation needs at least one byte, got {size}")
        padded = round_up(size, _GRANULE)
        raw = np.empty(padded + 64, np.uint8) if size <= _POISON_LIMIT else np.zeros(padded + 64, np.uint8)
        store = aligned(raw, padded)
        if size <= _POISON_LIMIT:
            store.fill(POISON)
        address = self._next
        self._next = round_up(address + size + GAP, ALIGNMENT)
        made = Allocation(address, size, store, address, kind, origin, raw)
        if self.track_undefined and kind in ("device", "heap"):
            made.undefine()
        return self._add(made)

    def function_address(self) -> int:
        """A new address for a function; it has no bytes that a kernel can read."""
        address = self._next_function
        self._next_function += _FUNCTION_STEP
        return address

    def register_host(self, buffer: npt.NDArray[Any], origin: str = "", *, kind: str = "host") -> Allocation:
        """Let kernels access host memory at its real address. ``buffer`` must be contiguous and is kept alive until
        ``free``. Raises ValueError if it overlaps a live registration."""
        if not (buffer.flags.c_contiguous or buffer.flags.f_contiguous):
            raise ValueError("only contiguous host memory can be registered")
        if buffer.nbytes == 0:
            raise ValueError("an empty buffer cannot be registered")
        address, size = int(buffer.ctypes.data), int(buffer.nbytes)
        other = self._last_live(address + size - 1)
        if other is not None and address < other.end:
            raise ValueError(f"host memory {address:#x} + {size} is already registered (with {other!r})")
        # The system reuses host addresses: forget freed registrations within the buffer, which lookups would find.
        place = bisect_right(self._starts, address)
        for start in self._starts[place : bisect_right(self._starts, address + size - 1)]:
            self._forget(start)
        base = address - address % _GRANULE
        # a granule never crosses a page, so the padding is on the pages of the buffer's first and last byte: readable
        padded = round_up(address + size, _GRANULE) - base
        store: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * padded).from_address(base))
        return self._add(Allocation(address, size, store, base, kind, origin, buffer))

    def free(self, address: int, origin: str = "") -> Allocation:
        """Free the allocation that starts at ``address``; raises MemoryFault "double free", or "out of bounds" if no
        allocation starts there."""
        allocation = self._by_start.get(address)
        if allocation is None:
            raise MemoryFault("out of bounds", address, 1, self.find(address))
        if not allocation.live:
            raise MemoryFault("double free", address, 1, allocation)
        allocation.drop(origin)
        self._last = None
        self._freed.append(address)
        if len(self._freed) > _FREED_KEPT:
            self._forget(self._freed.popleft())
        return allocation

    def _add(self, allocation: Allocation) -> Allocation:
        old = self._by_start.get(allocation.address)
        if old is None:
            if self._starts and allocation.address < self._starts[-1]:
                insort(self._starts, allocation.address)
            else:
                self._starts.append(allocation.address)
        self._by_start[allocation.address] = allocation
        return allocation

    def _forget(self, address: int) -> None:
        allocation = self._by_start.get(address)
        # a live allocation: host memory was registered again at the freed address
        if allocation is None or allocation.live:
            return
        del self._by_start[address]
        del self._starts[bisect_right(self._starts, address) - 1]

    # ---- looking up ----

    def _last_live(self, address: int) -> Allocation | None:
        """The live allocation with the highest start at or before ``address``. Live allocations do not overlap, so none
        with a lower start ends after it."""
        for place in range(bisect_right(self._starts, address) - 1, -1, -1):
            allocation = self._by_start[self._starts[place]]
            if allocation.live:
                return allocation
        return None

    def allocations(self) -> Iterator[Allocation]:
        """Live allocations, lowest address first."""
        return (a for a in [self._by_start[s] for s in self._starts] if a.live)

    def find(self, address: int) -> Allocation | None:
        """The live or freed allocation that contains ``address``, otherwise the nearest one; None if there are none."""
        place = bisect_right(self._starts, address)
        near = [self._by_start[start] for start in self._starts[max(0, place - 2) : place + 1]]
        if not near:
            return None
        # prefer a live allocation to a freed one at the same distance
        return min(near, key=lambda a: (_distance(a, address, 1), not a.live))

    def covering(self, address: int, size: int) -> Allocation:
        """The live allocation that contains all ``size`` bytes at ``address``; raises MemoryFault if there is none."""
        last = self._last
        if last is not None and last.address <= address and address + size <= last.end:
            return last
        place = bisect_right(self._starts, address)
        if place:
            allocation = self._by_start[self._starts[place - 1]]
            if address + size <= allocation.end:
                if not allocation.live:
                    raise MemoryFault("use after free", address, size, allocation)
                self._last = allocation
                return allocation
        raise self.fault(address, size)

    def fault(self, address: int, size: int) -> MemoryFault:
        """The fault of an access to ``size`` bytes at ``address`` that no live allocation contains."""
        near = self.find(address)
        if near is not None and not near.live and near.address <= address < near.end:
            return MemoryFault("use after free", address, size, near)
        return MemoryFault("out of bounds", address, size, near)

    def bytes(self, address: int, size: int) -> Bytes:
        """A writable uint8 view of ``size`` bytes at ``address``; raises MemoryFault unless one allocation contains
        them."""
        if size == 0:
            return np.empty(0, np.uint8)
        allocation = self.covering(address, size)
        return allocation.data[address - allocation.address : address - allocation.address + size]


def describe_place(fault: MemoryFault, *, origins: bool = True) -> str:
    """The position of a fault's address relative to its allocation, as a clause. ``origins``: name the lines that made
    and freed the allocation."""
    allocation = fault.allocation
    if allocation is None:
        return "but no memory is allocated on this device"
    what = f"{allocation.kind} allocation of {allocation.size} bytes"
    if origins:
        made = f", made {allocation.origin}" if allocation.origin else ""
        what = f"{what} at {allocation.address:#x}{made}"
    if fault.kind in ("use after free", "double free"):
        freed = f" and freed {allocation.free_origin}" if origins and allocation.free_origin else " that was freed"
        return f"{fault.address - allocation.address} bytes into the {what}{freed}"
    if fault.address < NEAR_NULL:
        return "a null pointer or an offset from one"
    if fault.distance > 1 << 30:
        return f"far from any allocation (the nearest is the {what})"
    if fault.kind == "misaligned":
        return f"{fault.address - allocation.address} bytes into the {what}"
    start, end = allocation.address, allocation.end
    what = what if allocation.live else f"freed {what}"
    if allocation.bounds is not None:
        start, end = allocation.bounds.start, allocation.bounds.end
        what = f"array of {end - start} bytes in the {what}, whose other bytes are guards"
    if fault.address >= end:
        return f"{_bytes(fault.address - end)} past the end of the {what}"
    if fault.address < start:
        return f"{_bytes(start - fault.address)} before the start of the {what}"
    over = fault.address + fault.size - end
    if over <= 0:
        return f"in a gap between elements, {_bytes(fault.address - start)} into the {what}"
    return f"of which the last {_bytes(over)} {'is' if over == 1 else 'are'} past the end of the {what}"


def _bytes(count: int) -> str:
    return f"{count} byte{'s' * (count != 1)}"


def _distance(allocation: Allocation, address: int, size: int) -> int:
    if address < allocation.address:
        return allocation.address - address
    return max(0, address + size - allocation.end)


def aligned(raw: Bytes, size: int) -> Bytes:
    """``size`` bytes of an array with 64 more: 64-byte aligned, so that every typed view is aligned for numpy."""
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size]


def round_up(value: int, multiple: int) -> int:
    """Round a value up to a multiple."""
    return -(-value // multiple) * multiple
