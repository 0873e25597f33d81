"""Sets of lanes: which threads of a batch of blocks a fragment holds, and how sets split and unite.

A batch is ``blocks`` thread blocks of ``threads`` lanes each, numbered block after block. The last warp of a block may
be partial. Sets are immutable and shared; splits and unions are remembered, because kernels repeat them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Index = npt.NDArray[np.intp]
# how to pick lanes out of a register: positions, or a slice where they are consecutive
Choice = Index | slice

# how many lanes the remembered sets of one geometry may hold together (some 30 bytes each)
_REMEMBERED_LANES = 1 << 20


class Geometry:
    """The shape of a batch: ``blocks`` blocks of ``dims`` threads; everything that does not depend on the grid."""

    def __init__(self, blocks: int, dims: tuple[int, int, int]) -> None:
        self.blocks = blocks
        self.dims = dims
        self.threads = dims[0] * dims[1] * dims[2]
        self.lanes = blocks * self.threads
        self.warps_per_block = -(-self.threads // 32)
        self.warps = blocks * self.warps_per_block
        self.whole_warps = self.threads % 32 == 0
        self.unions: dict[tuple[LaneSet, ...], tuple[LaneSet, list[Choice]]] = {}
        self.splits: dict[tuple[LaneSet, bytes], Split] = {}
        self._remembered = 0
        self.all = LaneSet(self, None, self.lanes)

    @cached_property
    def thread(self) -> Index:
        """Each lane's thread number within its block."""
        return np.tile(np.arange(self.threads), self.blocks)

    @cached_property
    def block(self) -> Index:
        """Each lane's block within the batch."""
        return np.repeat(np.arange(self.blocks), self.threads)

    @cached_property
    def warp(self) -> Index:
        """Each lane's warp within the batch."""
        if self.whole_warps:
            return np.repeat(np.arange(self.warps), 32)
        return self.block * self.warps_per_block + self.thread // 32

    @cached_property
    def laneid(self) -> Index:
        return self.thread % 32

    def _remember(self, lanes: int) -> None:
        self._remembered += lanes
        if self._remembered > _REMEMBERED_LANES:
            self.unions.clear()
            self.splits.clear()
            self.all = LaneSet(self, None, self.lanes)
            self._remembered = lanes

    def unite(self, sets: tuple[LaneSet, ...]) -> tuple[LaneSet, list[Choice]]:
        """The union of disjoint sets, and where each set's lanes stand in it."""
        found = self.unions.get(sets)
        if found is None:
            joined = np.concatenate([s.lanes for s in sets])
            order = np.argsort(joined, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            if len(joined) == self.lanes:
                whole = self.all
            else:
                whole = LaneSet(self, joined[order], len(joined))
            self._remember(len(joined))
            ends = np.cumsum([s.count for s in sets])[:-1]
            found = self.unions[sets] = (whole, [as_choice(p) for p in np.split(place, ends)])
        return found


class LaneSet:
    """Some lanes of a batch in ascending order; ``index`` is None when it is all of them."""

    def __init__(self, geometry: Geometry, index: Index | None, count: int) -> None:
        self.geometry = geometry
        self.index = index
        self.count = count
        self.cache: dict[Any, Any] = {}

    @cached_property
    def lanes(self) -> Index:
        return np.arange(self.count) if self.index is None else self.index

    @cached_property
    def warp(self) -> Index:
        """Each lane's warp in the batch."""
        return self.pick(self.geometry.warp)

    @cached_property
    def block(self) -> Index:
        """Each lane's block in the batch."""
        return self.pick(self.geometry.block)

    @cached_property
    def warps(self) -> Index:
        """The warps that have a lane here, ascending."""
        if self.index is None:
            return np.arange(self.geometry.warps)
        warp = self.warp
        first = np.empty(len(warp), np.bool_)
        first[:1] = True
        np.not_equal(warp[1:], warp[:-1], out=first[1:])
        return warp[first]

    @cached_property
    def warp_count(self) -> int:
        return len(self.warps)

    @cached_property
    def complete(self) -> bool:
        """Whether every warp here has all its 32 lanes."""
        return self.count == 32 * self.warp_count

    @cached_property
    def warp_starts(self) -> Index:
        """The position of each warp's first lane."""
        if self.complete:
            return np.arange(0, self.count, 32)
        return np.searchsorted(self.warp, self.warps)

    @cached_property
    def warp_rank(self) -> Index:
        """Each lane's warp as a position in ``warps``."""
        return np.searchsorted(self.warps, self.warp)

    @cached_property
    def laneid(self) -> Index:
        return self.pick(self.geometry.laneid)

    @cached_property
    def slots(self) -> Index:
        """Each lane's place in a table of ``warp_count`` rows of 32."""
        return self.warp_rank * 32 + self.laneid

    @cached_property
    def present(self) -> Array:
        """One bit per lane that is here, a uint32 per warp of ``warps``."""
        if self.complete:
            return np.full(self.warp_count, 0xFFFFFFFF, np.uint32)
        bits = np.zeros(self.warp_count, np.uint32)
        np.bitwise_or.at(bits, self.warp_rank, (np.uint32(1) << self.laneid.astype(np.uint32)))
        return bits

    @cached_property
    def block_counts(self) -> Index:
        """How many lanes of each block of the batch are here."""
        if self.index is None:
            return np.full(self.geometry.blocks, self.geometry.threads)
        return np.bincount(self.block, minlength=self.geometry.blocks)

    @cached_property
    def warp_counts(self) -> Index:
        """How many lanes of each warp of the batch are here."""
        return np.bincount(self.warp, minlength=self.geometry.warps)

    @cached_property
    def periodic(self) -> bool:
        """Whether the set holds the same threads of every block of the batch."""
        blocks = self.geometry.blocks
        if self.index is None:
            return True
        if self.count % blocks:
            return False
        rows = self.pick(self.geometry.thread).reshape(blocks, -1)
        return bool((rows == rows[0]).all()) and bool((self.block_counts == self.count // blocks).all())

    def pick(self, values: Array) -> Array:
        """Values of these lanes, out of an array over all lanes of the batch."""
        return values if self.index is None else values.take(self.index)

    def pad(self, values: Array, fill: Any = 0) -> Array:
        """Values of these lanes as rows of 32, one a warp; absent lanes hold ``fill``."""
        if self.complete:
            return np.broadcast_to(values, (self.count,)).reshape(-1, 32)
        out = np.full(self.warp_count * 32, fill, values.dtype)
        out[self.slots] = values
        return out.reshape(-1, 32)

    def unpad(self, rows: Array) -> Array:
        """The inverse of ``pad``."""
        flat = rows.reshape(-1)
        return flat if self.complete else flat.take(self.slots)

    def spread(self, per_warp: Array) -> Array:
        """A value per warp of ``warps``, given to each lane."""
        return np.repeat(per_warp, 32) if self.complete else per_warp.take(self.warp_rank)

    def split(self, mask: Array) -> Split:
        """Part by a mask that has both values in it."""
        geometry = self.geometry
        key = (self, np.packbits(mask).tobytes())
        found = geometry.splits.get(key)
        if found is None:
            geometry._remember(self.count)
            yes, no = np.flatnonzero(mask), np.flatnonzero(~mask)
            set_yes = LaneSet(geometry, self.lanes.take(yes), len(yes))
            set_no = LaneSet(geometry, self.lanes.take(no), len(no))
            parted = set_yes.warp_count + set_no.warp_count - self.warp_count
            found = geometry.splits[key] = Split(as_choice(yes), set_yes, as_choice(no), set_no, parted)
            # the halves mostly meet again
            geometry.unions[set_yes, set_no] = (self, [found.yes, found.no])
            geometry.unions[set_no, set_yes] = (self, [found.no, found.yes])
        return found

    def subset(self, mask: Array) -> tuple[Choice, LaneSet]:
        """The lanes where ``mask`` holds, which may be all."""
        if mask.all():
            return slice(0, self.count), self
        found = self.split(mask)
        return found.yes, found.set_yes


class Split(NamedTuple):
    """A set in two: positions and set of the lanes where the mask held, of the others, and how many warps parted."""

    yes: Choice
    set_yes: LaneSet
    no: Choice
    set_no: LaneSet
    parted: int


def as_choice(index: Index) -> Choice:
    """A slice where the positions are consecutive."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def choose(value: Array, choice: Choice) -> Array:
    """The chosen lanes of a register; a uniform value stays uniform."""
    if value.ndim == 0:
        return value
    if isinstance(choice, slice):
        return value[choice]
    return value.take(choice, axis=0)
