"""The simulated device's memory: allocations with real bytes behind virtual addresses that are never used twice.

Addresses grow upwards; at least 4 KiB between two allocations belong to nobody, so an overrun never lands in a
neighbour. Freed allocations are remembered for reports. Pinned host memory is registered at its real address.

Shared, local and parameter memory have generic addresses in windows of their own, far above any real pointer: a
generic address is ``window + offset``. They hold no allocations; the machine owns what is behind them.
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
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
PARAM_WINDOW = 1 << 58
# where shared memory starts: address 0 stays invalid, as on hardware
SHARED_START = 1024
# addresses below it are those of a null pointer, or offsets from one
NEAR_NULL = 1 << 16
# bytes of shared memory that the system keeps for itself in kernels that ask where they are: they come first
RESERVED_BYTES = 1024
# what a fresh allocation holds: NaN to a float, -1 to an int, so that reading it before writing shows
POISON = 0xFF
_POISON_LIMIT = 1 << 30
_FREED_KEPT = 8192
_GRANULE = 32


class MemoryFault(Exception):
    """An access that no live allocation covers, or that is not aligned.

    ``kind`` is "out of bounds", "misaligned", "use after free" or "double free"; ``address`` the first byte asked
    for; ``size`` the bytes asked for; ``allocation`` the one that covers the address or lies nearest, or None;
    ``distance`` the bytes from that allocation to the first byte outside it (0 when inside).
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
        """What was asked for and where that lies, for a report that says by itself who made the allocation."""
        return self._sentence(origins=False)

    def _sentence(self, *, origins: bool) -> str:
        return f"{self.size} byte{'s' * (self.size != 1)} at {self.address:#x}: {describe_place(self, origins=origins)}"


class Allocation:
    """One piece of memory: ``size`` bytes at ``address``; ``data`` is a writable uint8 array over them (empty once
    freed). ``kind`` is "device", "host", "global" or "constant"; ``origin`` and ``free_origin`` say who made and who
    freed it. ``bounds``: the array that is all that kernels may touch of it, or None.
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
        # the store starts at `base` (at most 31 bytes lower) and is whole in 32-byte granules, so that it can be
        # viewed as any element type with index (address - base) / itemsize
        self.base = base
        self.store = store
        self.data: Bytes = store[address - base : address - base + size]
        self.kind = kind
        self.origin = origin
        self.free_origin: str | None = None
        self.owner = owner
        self.bounds: ArrayBounds | None = None
        # 0xFF for each byte that nobody has stored to; True: for all; None: for none
        self._undefined: Bytes | bool | None = None
        self._views: dict[Any, npt.NDArray[Any]] = {}

    @property
    def live(self) -> bool:
        return self.free_origin is None

    def view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The store as elements of ``dtype``; element 0 is at ``base``."""
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self.store.view(dtype)
        return view

    # ---- which bytes are undefined ----

    def undefine(self) -> None:
        """Nothing has been stored here yet."""
        self._undefined = True

    def define(
        self, start: int = 0, size: int | None = None, height: int = 1, pitch: int = 0, like: Bytes | None = None
    ) -> None:
        """``height`` rows of ``size`` bytes, ``pitch`` bytes apart, from byte ``start`` on have been stored to (all
        that follow where ``size`` is None). ``like``, of (height, size): only those that are 0 in it; the others are
        undefined now."""
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
        """``undefined_bytes`` of rows as ``define`` names them, as (height, size)."""
        found = self.undefined_bytes()
        if found is None:
            return None
        first = self.address - self.base + start
        rows: Bytes = np.ndarray((height, size), np.uint8, buffer=found, offset=first, strides=(pitch or size, 1))
        return rows

    def undefined_at(self, start: int, size: int) -> Bytes | None:
        """A copy of ``undefined_bytes`` of ``size`` bytes from byte ``start`` on, made of these alone."""
        known = self._undefined
        if not isinstance(known, np.ndarray):
            return np.full(size, 0xFF, np.uint8) if known else None
        first = self.address - self.base + start
        return np.array(known[first : first + size])

    def undefined_bytes(self) -> Bytes | None:
        """0xFF for each byte of the store that is undefined, else 0, writable; None where all are defined."""
        if self._undefined is True:
            self._undefined = np.full(len(self.store), 0xFF, np.uint8)
            # what pads the store is nobody's
            self._undefined[self.address - self.base + self.size :] = 0
        found = self._undefined
        return found if isinstance(found, np.ndarray) else None

    def forget_if_defined(self) -> None:
        """Keep no note of undefined bytes where there are none any more."""
        if isinstance(self._undefined, np.ndarray) and not self._undefined.any():
            self._undefined = None

    def drop(self, origin: str) -> None:
        """Forget the bytes; keep what a report says about the allocation."""
        self._undefined = None
        self.free_origin = origin
        self.store = self.data = np.empty(0, np.uint8)
        self._views = {}
        self.owner = None

    def __repr__(self) -> str:
        state = "" if self.live else ", freed"
        return f"Allocation({self.address:#x}, {self.size}, {self.kind!r}, {self.origin!r}{state})"


class AddressSpace:
    """All memory of one simulated device (or of several that share addresses)."""

    def __init__(self, *, track_undefined: bool = False) -> None:
        """``track_undefined``: remember of device memory which bytes have been stored to."""
        self.track_undefined = track_undefined
        self._next = FIRST_ADDRESS
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        self._freed: deque[int] = deque()
        self._last: Allocation | None = None

    # ---- making and freeing ----

    def allocate(self, size: int, kind: str = "device", origin: str = "") -> Allocation:
        """``size`` bytes at a new 512-byte aligned address. Fresh memory is poisoned, not zero."""
        if size <= 0:
            raise ValueError(f"an allocation needs at least one byte, got {size}")
        padded = round_up(size, _GRANULE)
        # 64-byte aligned, so that every typed view is aligned for numpy
        raw = np.empty(padded + 64, np.uint8) if size <= _POISON_LIMIT else np.zeros(padded + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        store = raw[skip : skip + padded]
        if size <= _POISON_LIMIT:
            store.fill(POISON)
        address = self._next
        self._next = round_up(address + size + GAP, ALIGNMENT)
        made = Allocation(address, size, store, address, kind, origin, raw)
        if self.track_undefined and kind in ("device", "heap"):
            made.undefine()
        return self._add(made)

    def register_host(self, buffer: npt.NDArray[Any], origin: str = "", *, kind: str = "host") -> Allocation:
        """Make host memory readable and writable by kernels at its real address. ``buffer`` must be contiguous and is
        kept alive until ``free``. Overlapping a live registration is a ValueError."""
        if not (buffer.flags.c_contiguous or buffer.flags.f_contiguous):
            raise ValueError("only contiguous host memory can be registered")
        if buffer.nbytes == 0:
            raise ValueError("an empty buffer cannot be registered")
        address, size = int(buffer.ctypes.data), int(buffer.nbytes)
        other = self._last_live(address + size - 1)
        if other is not None and address < other.end:
            raise ValueError(f"host memory {address:#x} + {size} is already registered (with {other!r})")
        # The system gives memory out again: what was freed inside it must not stand between its start and its bytes.
        place = bisect_right(self._starts, address)
        for start in self._starts[place : bisect_right(self._starts, address + size - 1)]:
            self._forget(start)
        base = address - address % _GRANULE
        # whole granules lie on the same page as the buffer's own first and last bytes, so the padding can be read
        padded = round_up(address + size, _GRANULE) - base
        store: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * padded).from_address(base))
        return self._add(Allocation(address, size, store, base, kind, origin, buffer))

    def free(self, address: int, origin: str = "") -> Allocation:
        """Free the allocation that starts at ``address``; MemoryFault "double free" or "out of bounds" otherwise."""
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
        # host memory may have been registered again at an address that was freed before
        if allocation is None or allocation.live:
            return
        del self._by_start[address]
        del self._starts[bisect_right(self._starts, address) - 1]

    # ---- looking up ----

    def _last_live(self, address: int) -> Allocation | None:
        """The live allocation that starts last at or before ``address``. Live ones do not overlap: none before it ends
        after it."""
        for place in range(bisect_right(self._starts, address) - 1, -1, -1):
            allocation = self._by_start[self._starts[place]]
            if allocation.live:
                return allocation
        return None

    def allocations(self) -> Iterator[Allocation]:
        """Live allocations, lowest address first."""
        return (a for a in [self._by_start[s] for s in self._starts] if a.live)

    def find(self, address: int) -> Allocation | None:
        """The allocation, live or freed, that covers ``address``; else the nearest one; None in an empty space."""
        place = bisect_right(self._starts, address)
        near = [self._by_start[start] for start in self._starts[max(0, place - 2) : place + 1]]
        if not near:
            return None
        # of equally near ones a live one says more
        return min(near, key=lambda a: (_distance(a, address, 1), not a.live))

    def covering(self, address: int, size: int) -> Allocation:
        """The live allocation that holds all ``size`` bytes at ``address``; MemoryFault otherwise."""
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
        """The fault that an access to ``size`` bytes at ``address`` is, for an address that nothing covers."""
        near = self.find(address)
        if near is not None and not near.live and near.address <= address < near.end:
            return MemoryFault("use after free", address, size, near)
        return MemoryFault("out of bounds", address, size, near)

    def bytes(self, address: int, size: int) -> Bytes:
        """A writable uint8 view of ``size`` bytes at ``address``; MemoryFault where no one allocation holds them."""
        if size == 0:
            return np.empty(0, np.uint8)
        allocation = self.covering(address, size)
        return allocation.data[address - allocation.address : address - allocation.address + size]


def describe_place(fault: MemoryFault, *, origins: bool = True) -> str:
    """Where a fault's address lies relative to its allocation, as a clause. ``origins``: and who made and freed it."""
    allocation = fault.allocation
    if allocation is None:
        return "no memory is allocated on this device"
    what = f"{allocation.kind} allocation of {allocation.size} bytes"
    if origins:
        made = f", made {allocation.origin}" if allocation.origin else ""
        what = f"{what} at {allocation.address:#x}{made}"
    if fault.kind in ("use after free", "double free"):
        freed = f" and freed {allocation.free_origin}" if origins and allocation.free_origin else " that was freed"
        return f"{fault.address - allocation.address} bytes into the {what}{freed}"
    if fault.address < NEAR_NULL:
        return "a null pointer, or an offset from one"
    if fault.distance > 1 << 30:
        return f"nowhere near any allocation (the nearest is the {what})"
    if fault.kind == "misaligned":
        return f"{fault.address - allocation.address} bytes into the {what}"
    start, end = allocation.address, allocation.end
    what = what if allocation.live else f"freed {what}"
    if allocation.bounds is not None:
        start, end = allocation.bounds.start, allocation.bounds.end
        what = f"array of {end - start} bytes in the {what}, whose other bytes are guards"
    if fault.address >= end:
        past = fault.address - end
        return f"{'right behind' if past == 0 else f'{past} bytes behind the end of'} the {what}"
    if fault.address < start:
        return f"{start - fault.address} bytes before the {what}"
    over = fault.address + fault.size - end
    if over <= 0:
        return f"in a gap between elements, {fault.address - start} bytes into the {what}"
    return f"its last {over} byte{'s lie' if over != 1 else ' lies'} behind the end of the {what}"


def _distance(allocation: Allocation, address: int, size: int) -> int:
    if address < allocation.address:
        return allocation.address - address
    return max(0, address + size - allocation.end)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not below a value."""
    return -(-value // multiple) * multiple
