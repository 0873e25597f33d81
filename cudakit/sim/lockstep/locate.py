"""Turns the addresses of lanes into pieces of memory, in every state space. Bounds and alignment are always checked."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.clusters import offsets_in_cluster
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet, choose
from cudakit.sim.lockstep.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_START,
    SHARED_WINDOW,
    Allocation,
    MemoryFault,
)
from cudakit.sim.lockstep.owners import own_offsets
from cudakit.sim.lockstep.pieces import (
    CLUSTER,
    CONST,
    ELEMENTS,
    GENERIC,
    GLOBAL,
    LOCAL,
    PARAM,
    SHARED,
    Piece,
    SharedAddresses,
    within,
)
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.stack import frame_end
from cudakit.sim.lockstep.traffic import (
    count_local,
    count_row,
    count_same_sector,
    count_same_word,
    count_sectors,
    count_wavefronts,
    request_wavefronts,
)

_WINDOWS = ((PARAM_WINDOW, PARAM), (LOCAL_WINDOW, LOCAL), (SHARED_WINDOW, SHARED))
_WRAP = 1 << 64
_ADDRESSES_KEPT = 8


class AddressResolver:
    """Resolves the addresses of one access instruction: ``count`` elements of ``width`` bytes at ``address + offset``
    in a state space. ``counted`` is its size in the shared-memory counters, which differs from its own size if ptxas
    merges accesses; ``paired``: lanes may share wavefronts, as in loads."""

    __slots__ = ("count", "counted", "dtype", "offset", "paired", "shift", "site", "size", "space", "step", "width")

    def __init__(self, site: Site, space: str, offset: int, width: int, count: int) -> None:
        self.site = site
        self.space = space
        self.offset = offset
        self.width = width
        self.count = count
        self.size = width * count
        # the size as an array without dimensions, with which numpy compares faster than with a scalar
        self.step = np.array(self.size, np.uint64)
        self.shift = self.size.bit_length() - 1
        self.dtype = ELEMENTS[width]
        self.counted = self.size
        self.paired = site.instruction.opcode == "ld"

    @property
    def named(self) -> str:
        """The access as reports describe it: "shared store of 4 bytes"."""
        return f"{self.site.kind} of {self.size} byte{'s' * (self.size != 1)}"

    def locate(self, f: Fragment, lanes: LaneSet, address: Array) -> list[Piece]:
        """The pieces at addresses in the access's state space."""
        space = self.space
        if space == GENERIC:
            return self._generic(f, lanes, address)
        if space in (GLOBAL, CONST):
            return self._global(f, lanes, address)
        if space in (SHARED, CLUSTER):
            return self.shared_pieces(f, lanes, address, 0)
        if space == LOCAL:
            return self._local(f, lanes, address, 0)
        return self._param(f, lanes, address, 0)

    def _view(self, allocation: Allocation) -> Array:
        view = allocation.view(self.dtype)
        return view if self.count == 1 else view.reshape(-1, self.count)

    def _global(self, f: Fragment, lanes: LaneSet, address: Array) -> list[Piece]:
        run, size, shift = f.batch.run, self.size, self.shift
        space = run.space
        if address.ndim == 0:
            start = int(address) + self.offset
            try:
                allocation = space.covering(start, size)
            except MemoryFault as fault:
                f.fail_access(self.site, fault, self.space, 0, lanes.count)
            if start & (size - 1):
                self._misaligned(f, start, allocation, 0, lanes.count)
            if allocation.bounds is not None:
                self._expect_within(f, allocation, np.array([start]), None)
            if run.counting:
                count_same_sector(run.tally(self.site), lanes, size)
            return [Piece(self._view(allocation), (start - allocation.base) >> shift, None, lanes, allocation)]
        if np.count_nonzero(address[1:] - address[:-1] == self.step) == lanes.count - 1:
            row = self._row(f, lanes, int(address[0]) + self.offset)
            if row is not None:
                return row
        low, high = int(address.min()) + self.offset, int(address.max()) + self.offset
        try:
            allocation = space.covering(low, high - low + size)
        except MemoryFault:
            return self._scattered(f, lanes, address)
        offsets = address + np.uint64((self.offset - allocation.base) % _WRAP)
        if size > 1 and int(np.bitwise_or.reduce(offsets)) & (size - 1):
            wrong = np.flatnonzero(offsets & np.uint64(size - 1))
            start = int(address[wrong[0]]) + self.offset
            self._misaligned(f, start, allocation, int(wrong[0]), wrong)
        if allocation.bounds is not None:
            self._expect_within(f, allocation, offsets + np.uint64(allocation.base), np.arange(lanes.count))
        index = (offsets >> np.uint64(shift)).view(np.int64)
        if run.counting:
            breaks = (index[1:] - index[:-1] != 1).nonzero()[0]
            count_sectors(run.tally(self.site), lanes, offsets, size, breaks)
        return [Piece(self._view(allocation), index, None, lanes, allocation)]

    def _row(self, f: Fragment, lanes: LaneSet, start: int) -> list[Piece] | None:
        """The piece of lanes that access consecutive elements, the first of them at ``start``; None if they may be at
        fault."""
        run, size = f.batch.run, self.size
        try:
            allocation = run.space.covering(start, lanes.count * size)
        except MemoryFault:
            return None
        bounds = allocation.bounds
        if start & (size - 1) or (bounds is not None and not bounds.holds(start, lanes.count * size)):
            return None
        place = start - allocation.base
        if run.counting:
            count_row(run.tally(self.site), lanes, place, size)
        first = place >> self.shift
        return [Piece(self._view(allocation), slice(first, first + lanes.count), None, lanes, allocation)]

    def _misaligned(
        self, f: Fragment, start: int, allocation: Allocation, position: int, lanes: int | Array
    ) -> NoReturn:
        fault = MemoryFault("misaligned", start, self.size, allocation)
        f.fail_access(self.site, fault, self.space, position, lanes)

    def _expect_within(self, f: Fragment, allocation: Allocation, starts: Array, lanes: Array | None) -> None:
        """Stop the kernel if an access at one of these addresses is not within the bounds of its allocation. ``lanes``
        are the lanes of the addresses; None: all lanes access one address."""
        bounds = allocation.bounds
        if bounds is None or bounds.holds(int(starts.min()), int(starts.max() - starts.min()) + self.size):
            return
        wrong = np.flatnonzero(bounds.outside(starts, self.size))
        if not len(wrong):
            return
        fault = MemoryFault("out of bounds", int(starts[wrong[0]]), self.size, allocation)
        if lanes is None:
            f.fail_access(self.site, fault, self.space, 0, f.lanes.count)
        f.fail_access(self.site, fault, self.space, int(lanes[wrong[0]]), lanes[wrong])

    def _scattered(self, f: Fragment, lanes: LaneSet, address: Array) -> list[Piece]:
        """Return one piece per allocation that the lanes access. Fails if a lane accesses unallocated memory."""
        run, size = f.batch.run, self.size
        left = np.ones(lanes.count, np.bool_)
        parts: list[tuple[Allocation, Array]] = []
        wrong: list[tuple[int, MemoryFault]] = []
        bad = np.zeros(lanes.count, np.bool_)
        while left.any():
            position = int(np.argmax(left))
            start = int(address[position]) + self.offset
            try:
                allocation = run.space.covering(start, size)
            except MemoryFault as fault:
                near = fault.allocation
                # report lanes together that are out of bounds near the same allocation
                same = left & (address == address[position])
                if near is not None and start >= near.address:
                    top = np.uint64(max(near.end - self.offset - size, 0))
                    same |= left & (address > top) & (address - top < np.uint64(4096))
                wrong.append((position, fault))
                bad |= same
                left &= ~same
                if len(wrong) > 64:
                    break
                continue
            inside = (address >= np.uint64(max(allocation.address - self.offset, 0))) & (
                address <= np.uint64(allocation.end - size - self.offset)
            )
            inside &= left
            inside[position] = True
            parts.append((allocation, inside))
            left &= ~inside
        if wrong:
            position, first = min(wrong, key=lambda w: w[0])
            f.fail_access(self.site, first, self.space, position, np.flatnonzero(bad))
        pieces: list[Piece] = []
        for allocation, inside in parts:
            offsets = address[inside] + np.uint64((self.offset - allocation.base) % _WRAP)
            crooked = np.flatnonzero(offsets & np.uint64(size - 1))
            if len(crooked):
                position = int(np.flatnonzero(inside)[crooked[0]])
                self._misaligned(f, int(address[position]) + self.offset, allocation, position, len(crooked))
            if allocation.bounds is not None:
                self._expect_within(f, allocation, offsets + np.uint64(allocation.base), np.flatnonzero(inside))
            index = (offsets >> np.uint64(self.shift)).view(np.int64)
            choice, part = lanes.subset(inside)
            pieces.append(Piece(self._view(allocation), index, choice, part, allocation))
        if run.counting:
            offsets = address + np.uint64(self.offset % _WRAP)
            # sectors are numbered from the lowest address, to fit 32 bits
            offsets -= offsets.min() & np.uint64(_WRAP - 32)
            count_sectors(run.tally(self.site), lanes, offsets, size, np.arange(lanes.count))
        return pieces

    def shared_pieces(self, f: Fragment, lanes: LaneSet, address: Array, window: int) -> list[Piece]:
        batch, size, shift = f.batch, self.size, self.shift
        store, limit = batch.shared, batch.run.shared_bytes
        if batch.run.cluster_size > 1:
            return self._cluster(f, lanes, address, window)
        move = self.offset - SHARED_START - window
        one = lanes.geometry.blocks == 1
        if address.ndim == 0:
            start = int(address) + move
            if not window:
                start = _wrapped(start + SHARED_START) - SHARED_START
            if start < 0 or start + size > limit or start & (size - 1) or store is None:
                self._bad_shared(f, start, limit, 0, lanes.count)
            if batch.run.counting and self.counted:
                count_same_word(batch.run.tally(self.site), lanes, self.counted, self.paired)
            view = store.view(self.dtype) if self.count == 1 else store.view(self.dtype).reshape(-1, self.count)
            index = start >> shift
            return [Piece(view, index if one else index + self._bases(lanes, store.stride), None, lanes, store)]
        bases = 0 if one or store is None else self._bases(lanes, store.stride)
        known = batch.shared_addresses.get(id(address))
        if known is None or known.address is not address or known.lanes is not lanes or known.size != size:
            known = SharedAddresses(address, lanes, size, bases)
            if len(batch.shared_addresses) >= _ADDRESSES_KEPT:
                batch.shared_addresses.clear()
            batch.shared_addresses[id(address)] = known
        in_bounds = known.low + move >= 0 and known.high + move + size <= limit
        if not in_bounds and not window:
            address, move = _wrapped(address.astype(np.int64) + self.offset), -SHARED_START
            known = SharedAddresses(address, lanes, size, bases)
            in_bounds = known.low + move >= 0 and known.high + move + size <= limit
        if not in_bounds or known.rest < 0 or (known.rest + move) & (size - 1) or store is None:
            self._bad_addresses(f, address.astype(np.int64) + move, limit)
        if batch.run.counting and self.counted:
            found = known.wavefronts(move, self.counted, self.paired)
            count_wavefronts(batch.run.tally(self.site), lanes, self.counted, found)
        view = store.view(self.dtype) if self.count == 1 else store.view(self.dtype).reshape(-1, self.count)
        return [Piece(view, known.index + ((known.rest + move) >> shift), None, lanes, store)]

    def _bad_addresses(self, f: Fragment, offsets: Array, limit: int) -> NoReturn:
        """Report the offsets that are out of bounds or, if none is, those that are misaligned."""
        wrong = np.flatnonzero((offsets < 0) | (offsets > limit - self.size))
        if not len(wrong):
            wrong = np.flatnonzero(offsets & (self.size - 1))
        self._bad_shared(f, int(offsets[wrong[0]]), limit, int(wrong[0]), wrong)

    def _cluster(self, f: Fragment, lanes: LaneSet, address: Array, window: int) -> list[Piece]:
        """``shared_pieces`` in a cluster: the addresses also contain the block's rank."""
        batch, size, shift = f.batch, self.size, self.shift
        store, limit = batch.shared, batch.run.shared_bytes
        start = address.astype(np.int64) + (self.offset - window)
        if not window:
            start &= 0xFFFFFFFF
        offsets, block = offsets_in_cluster(f, lanes, start, self.site, size, self.space != SHARED)
        wrong = np.flatnonzero((offsets < 0) | (offsets > limit - size) | (offsets & (size - 1) != 0))
        if len(wrong) or store is None:
            self._bad_shared(f, int(offsets[wrong[0]]), limit, int(wrong[0]), wrong)
        if batch.run.counting and self.counted:
            tally = batch.run.tally(self.site)
            if self.space != SHARED and (block != lanes.block).any():
                tally.distributed_requests += lanes.warp_count
            else:
                found = request_wavefronts(lanes, offsets, self.counted, self.paired)
                count_wavefronts(tally, lanes, self.counted, found)
        view = store.view(self.dtype) if self.count == 1 else store.view(self.dtype).reshape(-1, self.count)
        return [Piece(view, (block * store.stride + offsets) >> shift, None, lanes, store)]

    def _bases(self, lanes: LaneSet, stride: int) -> Array:
        """The start of each lane's block in the shared store, in elements."""
        key = ("shared", stride, self.shift)
        found: Array | None = lanes.cache.get(key)
        if found is None:
            found = lanes.cache[key] = lanes.block * (stride >> self.shift)
        return found

    def _bad_shared(self, f: Fragment, start: int, limit: int, position: int, lanes: int | Array) -> NoReturn:
        address = start + SHARED_START
        if start >= 0 and start + self.size <= limit:
            kind, what = "misaligned", f"byte {start} (not a multiple of {self.size}) of shared memory"
        else:
            kind = "out of bounds"
            what = f"byte {start} of shared memory; the block has {limit} bytes"
            if limit == 0:
                what = f"byte {start} of shared memory; the block has 0 bytes: launch the kernel with shared=BYTES"
        f.fail(
            self.site.instruction,
            kind,
            f"{self.named} at {what}",
            position,
            lanes,
            address=address,
            size=self.size,
            space=SHARED,
            access=self.site.kind,
        )

    def _local(self, f: Fragment, lanes: LaneSet, address: Array, window: int) -> list[Piece]:
        batch, size, shift = f.batch, self.size, self.shift
        # the memory after that of the last function that was called belongs to none
        store, limit = batch.local, f.frames[-1].local_base + f.program.local_bytes
        offsets = address.astype(np.int64) + (self.offset - window)
        low, high = int(offsets.min()), int(offsets.max())
        if high > limit:
            offsets = own_offsets(f, lanes, offsets, self.site, size)
            low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + size > limit or store is None:
            ends = np.broadcast_to(frame_end(f), offsets.shape or (lanes.count,))
            wrong = np.flatnonzero((offsets < 0) | (offsets > ends - size))
            if len(wrong) or store is None:
                self._bad_local(f, "out of bounds", int(ends[wrong[0]]), np.broadcast_to(offsets, ends.shape), wrong)
        if (low | high | int(np.bitwise_or.reduce(offsets, axis=None))) & (size - 1):
            wrong = np.flatnonzero(offsets & (size - 1))
            self._bad_local(f, "misaligned", limit, offsets, wrong)
        if batch.run.counting:
            count_local(batch.run.tally(self.site), lanes, size)
        key = ("local", store.stride, shift)
        bases = lanes.cache.get(key)
        if bases is None:
            bases = lanes.cache[key] = lanes.lanes * (store.stride >> shift)
        view = store.view(self.dtype) if self.count == 1 else store.view(self.dtype).reshape(-1, self.count)
        return [Piece(view, bases + (offsets >> shift), None, lanes, store)]

    def _bad_local(self, f: Fragment, kind: str, limit: int, offsets: Array, wrong: Array) -> NoReturn:
        start = int(offsets.flat[wrong[0]])
        why = f"not a multiple of {self.size}" if kind == "misaligned" else f"the thread has {limit} bytes"
        f.fail(
            self.site.instruction,
            kind,
            f"{self.named} at byte {start} of local memory ({why})",
            int(wrong[0]),
            wrong if offsets.ndim else f.lanes.count,
            address=start,
            size=self.size,
            space=LOCAL,
            access=self.site.kind,
        )

    def _param(self, f: Fragment, lanes: LaneSet, address: Array, window: int) -> list[Piece]:
        params = f.batch.run.param_store
        offsets = address.astype(np.int64) + (self.offset - window)
        limit = len(f.batch.run.config.params)
        wrong = np.flatnonzero((offsets < 0) | (offsets > limit - self.size) | (offsets & (self.size - 1) != 0))
        if len(wrong):
            start = int(offsets.flat[wrong[0]])
            f.fail(
                self.site.instruction,
                "misaligned" if start & (self.size - 1) else "out of bounds",
                f"{self.named} at byte {start} of the kernel's {limit} bytes of parameters",
                int(wrong[0]),
                wrong if offsets.ndim else lanes.count,
            )
        view = params.view(self.dtype) if self.count == 1 else params.view(self.dtype).reshape(-1, self.count)
        index = offsets >> self.shift
        return [Piece(view, int(index) if index.ndim == 0 else index, None, lanes)]

    def _generic(self, f: Fragment, lanes: LaneSet, address: Array) -> list[Piece]:
        low = int(address) if address.ndim == 0 else int(address.min())
        high = low if address.ndim == 0 else int(address.max())
        if high + self.offset < SHARED_WINDOW:
            return self._global(f, lanes, address)
        for window, space in _WINDOWS:
            if low + self.offset >= window:
                if high + self.offset < window << 1:
                    return self._in_window(f, lanes, address, window, space)
                break
        # the lanes access different spaces: handle each space separately
        pieces: list[Piece] = []
        place = address + np.uint64(self.offset % _WRAP)
        bounds = [0, SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, _WRAP - 1]
        for number, space in enumerate((GLOBAL, SHARED, LOCAL, PARAM)):
            mask = (place >= np.uint64(bounds[number])) & (place < np.uint64(bounds[number + 1]))
            if mask.any():
                choice, part = lanes.subset(mask)
                # a fragment of only these lanes, so that a report names the correct ones
                there = f.borrow(choice, part, ())
                found = self._in_window(there, part, choose(address, choice), bounds[number], space)
                pieces.extend(within(piece, choice, lanes.count) for piece in found)
        return pieces

    def _in_window(self, f: Fragment, lanes: LaneSet, address: Array, window: int, space: str) -> list[Piece]:
        if space == GLOBAL:
            return self._global(f, lanes, address)
        if space == SHARED:
            return self.shared_pieces(f, lanes, address, window)
        if space == LOCAL:
            return self._local(f, lanes, address, window)
        return self._param(f, lanes, address, window)


def _wrapped(address: Any) -> Any:
    """Reduce shared addresses to 32 bits, as signed numbers. With a negative index the sum of base and index wraps in
    its register, and wraps back when the constant offset of the instruction is added."""
    return ((address + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
