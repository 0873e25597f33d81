"""Sets of lanes: the threads of a batch that a fragment contains, and splits and unions of sets.

A batch is ``blocks`` thread blocks of ``threads`` lanes each, numbered block after block. The last warp of a block may
be partial. Sets are immutable and shared; splits and unions are cached, because kernels repeat them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Index = npt.NDArray[np.intp]
# selects lanes of a register: positions, or a slice if they are consecutive
Choice = Index | slice

# the most lanes that all cached sets of one geometry may have in total (about 30 bytes each)
_REMEMBERED_LANES = 1 << 20


class Geometry:
    """The shape of a batch: ``blocks`` blocks of ``dims`` threads. It does not depend on the grid."""

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

    def thread_index(self, thread: int) -> tuple[int, int, int]:
        """The index of a thread of a block."""
        x, y, _ = self.dims
        return thread % x, thread // x % y, thread // (x * y)

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
        """The union of disjoint sets, and the positions of each set's lanes in it."""
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
        """The warps with a lane in the set, ascending."""
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
        """Whether all 32 lanes of every warp of the set are in it."""
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
        """Each lane's index in a table of ``warp_count`` rows of 32."""
        return self.warp_rank * 32 + self.laneid

    @cached_property
    def present(self) -> Array:
        """The lanes of the set as bits, one uint32 per warp of ``warps``."""
        if self.complete:
            return np.full(self.warp_count, 0xFFFFFFFF, np.uint32)
        bits = np.zeros(self.warp_count, np.uint32)
        np.bitwise_or.at(bits, self.warp_rank, (np.uint32(1) << self.laneid.astype(np.uint32)))
        return bits

    @cached_property
    def block_counts(self) -> Index:
        """The number of lanes of each block of the batch that are in the set."""
        if self.index is None:
            return np.full(self.geometry.blocks, self.geometry.threads)
        return np.bincount(self.block, minlength=self.geometry.blocks)

    @cached_property
    def warp_counts(self) -> Index:
        """The number of lanes of each warp of the batch that are in the set."""
        return np.bincount(self.warp, minlength=self.geometry.warps)

    @cached_property
    def periodic(self) -> bool:
        """Whether the set contains the same threads of every block of the batch."""
        blocks = self.geometry.blocks
        if self.index is None:
            return True
        if self.count % blocks:
            return False
        rows = self.pick(self.geometry.thread).reshape(blocks, -1)
        return bool((rows == rows[0]).all()) and bool((self.block_counts == self.count // blocks).all())

    def pick(self, values: Array) -> Array:
        """Select the values of these lanes from an array over all lanes of the batch."""
        return values if self.index is None else values.take(self.index)

    def pad(self, values: Array, fill: Any = 0) -> Array:
        """Arrange the values of these lanes as rows of 32, one per warp; absent lanes get ``fill``."""
        if self.complete:
            return np.broadcast_to(values, (self.count,)).reshape(-1, 32)
        out = np.full(self.warp_count * 32, fill, values.dtype)
        out[self.slots] = values
        return out.reshape(-1, 32)

    def shuffled(self, values: Array, places: Array, fill: Any = 0) -> Array:
        """The values that these lanes read from others: from places in the rows of ``pad``."""
        found: Array = self.pad(values, fill).reshape(-1).take(places)
        return found

    def unpad(self, rows: Array) -> Array:
        """The inverse of ``pad``."""
        flat = rows.reshape(-1)
        return flat if self.complete else flat.take(self.slots)

    def spread(self, per_warp: Array) -> Array:
        """Repeat a value per warp of ``warps`` for each lane."""
        return np.repeat(per_warp, 32) if self.complete else per_warp.take(self.warp_rank)

    def split(self, mask: Array) -> Split:
        """Split the set by a mask that contains both values."""
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
            # the halves usually reunite
            geometry.unions[set_yes, set_no] = (self, [found.yes, found.no])
            geometry.unions[set_no, set_yes] = (self, [found.no, found.yes])
        return found

    def at(self, positions: Any) -> tuple[Choice, LaneSet]:
        """``subset`` of the lanes at some positions."""
        mask = np.zeros(self.count, np.bool_)
        mask[positions] = True
        return self.subset(mask)

    def subset(self, mask: Array) -> tuple[Choice, LaneSet]:
        """The positions and the set of the lanes for which ``mask`` is true, which may be all."""
        if mask.all():
            return slice(0, self.count), self
        found = self.split(mask)
        return found.yes, found.set_yes


class Split(NamedTuple):
    """A split set: positions and set of the lanes for which the mask is true, the same for the other lanes, and the
    number of divergent warps."""

    yes: Choice
    set_yes: LaneSet
    no: Choice
    set_no: LaneSet
    parted: int


def as_choice(index: Index) -> Choice:
    """The positions, as a slice if they are consecutive."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def choose(value: Array, choice: Choice) -> Array:
    """Select lanes of a register; a uniform value stays uniform."""
    if value.ndim == 0:
        return value
    if isinstance(choice, slice):
        return value[choice]
    return value.take(choice, axis=0)
