"""The cost of memory accesses: global sectors, shared-memory wavefronts and same-address atomics, counted per warp as
Nsight Compute does."""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.lanes import Array, LaneSet

_PATTERNS_KEPT = 4096
_patterns: dict[tuple[bytes, int], tuple[int, int, int]] = {}


class Tally:
    """The counts of one site. A request is an instruction of one warp.

    ``requests`` and ``lanes`` are for sites that do not access memory, and for asynchronous copies; those in bulk have
    one request per thread. ``bulk_bytes`` are the bytes of the copies, of which ``clipped_bytes`` are outside of the
    tensor. ``ready`` are waits that found the phase complete. Other accesses are counted by the space of their bytes (a
    generic access may reach several spaces): global accesses in sectors, shared accesses in wavefronts. ``ideal_*`` is
    the minimum for the same active lanes and width. ``distributed_requests`` are requests to the shared memory of other
    blocks of a cluster. ``worst_ways`` is the largest number of wavefronts that a group of lanes needed, ``depth`` the
    number of lanes at an atomic's most contended address, summed over its requests.
    """

    __slots__ = (
        "bulk_bytes",
        "clipped_bytes",
        "depth",
        "distributed_requests",
        "global_bytes",
        "ideal_sectors",
        "ideal_wavefronts",
        "lanes",
        "local_bytes",
        "local_requests",
        "ready",
        "requests",
        "sector_requests",
        "sectors",
        "shared_bytes",
        "wavefront_requests",
        "wavefronts",
        "worst_depth",
        "worst_ways",
    )

    def __init__(self) -> None:
        self.requests = self.lanes = self.ready = self.bulk_bytes = self.clipped_bytes = 0
        self.sector_requests = self.sectors = self.ideal_sectors = self.global_bytes = 0
        self.wavefront_requests = self.wavefronts = self.ideal_wavefronts = self.worst_ways = self.shared_bytes = 0
        self.local_requests = self.local_bytes = self.distributed_requests = 0
        self.depth = self.worst_depth = 0


def count_same_sector(tally: Tally, lanes: LaneSet, size: int) -> None:
    """Add one global request in which all lanes access the same address."""
    tally.sector_requests += lanes.warp_count
    tally.sectors += lanes.warp_count
    tally.ideal_sectors += lanes.warp_count
    tally.global_bytes += lanes.count * size


def count_same_word(tally: Tally, lanes: LaneSet, size: int, paired: bool) -> None:
    """Add one shared request in which all lanes access the same address."""
    if size <= 4 or lanes.complete:
        passes = lanes.warp_count * max(size // (8 if paired else 4), 1)
        count_wavefronts(tally, lanes, size, (passes, passes, 1))
        return
    key = ("same word", size, paired)
    found: tuple[int, int, int] | None = lanes.cache.get(key)
    if found is None:
        found = lanes.cache[key] = wavefronts(lanes, np.zeros(lanes.count, np.int32), size, paired)
    count_wavefronts(tally, lanes, size, found)


def count_local(tally: Tally, lanes: LaneSet, size: int) -> None:
    """Add one local-memory request."""
    tally.local_requests += lanes.warp_count
    tally.local_bytes += lanes.count * size


def count_contention(tally: Tally, lanes: LaneSet, address: Array) -> None:
    """Add one request of an atomic: lanes of a warp with the same address are serialised. ``address``: a number per
    lane that is equal for equal addresses, or one number for all lanes."""
    if address.ndim == 0:
        depths = lanes.warp_counts
        tally.depth += lanes.count
    else:
        depths = _deepest(lanes, address)
        tally.depth += int(depths.sum())
    tally.worst_depth = max(tally.worst_depth, int(depths.max()))


def _deepest(lanes: LaneSet, address: Array) -> Array:
    """The number of lanes at the most contended address of each warp."""
    order = np.lexsort((address, lanes.warp_rank))
    ranks, places = lanes.warp_rank[order], address[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (ranks[1:] != ranks[:-1]) | (places[1:] != places[:-1])
    starts = np.flatnonzero(fresh)
    lengths = np.diff(np.append(starts, len(order)))
    firsts = np.searchsorted(ranks[starts], np.arange(lanes.warp_count))
    found: Array = np.maximum.reduceat(lengths, firsts)
    return found


def ideal_sectors(lanes: LaneSet, size: int) -> int:
    """The minimum number of sectors for one access of ``size`` bytes per lane, no byte shared by two lanes, summed over
    the warps."""
    if lanes.complete:
        return lanes.warp_count * size
    key = ("ideal sectors", size)
    found: int | None = lanes.cache.get(key)
    if found is None:
        found = lanes.cache[key] = int(_fewest_sectors(lanes, size).sum())
    return found


def _fewest_sectors(lanes: LaneSet, size: int) -> Array:
    """``ideal_sectors`` of each warp."""
    found: Array = -(-lanes.warp_counts[lanes.warps] * size // 32)
    return found


def count_row(tally: Tally, lanes: LaneSet, offset: int, size: int) -> None:
    """Add one global request of consecutive elements. ``offset``: that of the first one from a 32-byte boundary, a
    multiple of ``size``."""
    tally.sector_requests += lanes.warp_count
    tally.ideal_sectors += ideal_sectors(lanes, size)
    tally.global_bytes += lanes.count * size
    key = ("row", offset & 31, size)
    found: int | None = lanes.cache.get(key)
    if found is None:
        first = (offset & 31) + lanes.warp_starts * size
        last = np.append(first[1:], (offset & 31) + lanes.count * size) - size
        # an aligned element of at most 32 bytes is within one sector
        found = lanes.cache[key] = int(((last >> 5) - (first >> 5) + 1).sum())
    tally.sectors += found


def count_sectors(tally: Tally, lanes: LaneSet, offsets: Array, size: int, breaks: Array) -> None:
    """Add one global request. ``offsets``: uint64 byte offsets from a 32-byte boundary, each a multiple of ``size``.

    ``breaks``: the positions after which the next lane's address is not the next element.
    """
    tally.sector_requests += lanes.warp_count
    tally.global_bytes += lanes.count * size
    starts = lanes.warp_starts
    if len(breaks) < len(starts) and _are_starts(lanes, breaks):
        # consecutive within every warp
        first = offsets.take(starts)
        last = first + np.uint64(31 * size) if lanes.complete else offsets.take(np.append(starts[1:], lanes.count) - 1)
        # an aligned element of at most 32 bytes is within one sector
        sectors = (last >> np.uint64(5)) - (first >> np.uint64(5))
        tally.sectors += int(sectors.sum()) + len(starts)
        tally.ideal_sectors += ideal_sectors(lanes, size)
        return
    rows = _rows(lanes, (offsets >> np.uint64(5)).astype(np.uint32))
    rows.sort(axis=1)
    sectors = 1 + np.count_nonzero(rows[:, 1:] != rows[:, :-1], axis=1)
    tally.sectors += int(sectors.sum())
    # fewer if lanes share bytes
    tally.ideal_sectors += int(np.minimum(sectors, _fewest_sectors(lanes, size)).sum())


def _are_starts(lanes: LaneSet, breaks: Array) -> bool:
    if lanes.complete:
        return not ((breaks + 1) & 31).any()
    return bool(np.isin(breaks + 1, lanes.warp_starts).all())


def _rows(lanes: LaneSet, values: Array) -> Array:
    """A new table with 32 columns and one row per warp; absent lanes repeat their warp's first value."""
    if lanes.complete:
        table: Array = values.reshape(-1, 32).copy()
        return table
    out = np.repeat(values.take(lanes.warp_starts), 32)
    out[lanes.slots] = values
    return out.reshape(-1, 32)


def count_wavefronts(tally: Tally, lanes: LaneSet, size: int, found: tuple[int, int, int]) -> None:
    """Add one shared-memory request with the result of ``request_wavefronts``."""
    tally.wavefront_requests += lanes.warp_count
    tally.shared_bytes += lanes.count * size
    tally.wavefronts += found[0]
    tally.ideal_wavefronts += found[1]
    tally.worst_ways = max(tally.worst_ways, found[2])


def request_wavefronts(lanes: LaneSet, offsets: Array, size: int, paired: bool) -> tuple[int, int, int]:
    """``wavefronts`` of a whole request. ``offsets``: int64 byte offsets within each lane's own block; adding a
    multiple of 4 bytes to all of them does not change the result."""
    repeat = 1
    blocks = lanes.geometry.blocks
    if blocks > 1 and lanes.periodic:
        rows = offsets.reshape(blocks, -1)
        if (rows[1:] == rows[0]).all():
            # every block has the same offsets: compute one block
            repeat = blocks
            offsets = rows[0]
    # moving all offsets by whole words rotates the banks, which does not change the number of wavefronts
    pattern = (offsets - (int(offsets[0]) & ~3)).astype(np.int32)
    part = lanes if repeat == 1 else _first_block(lanes)
    found = None
    if part.count <= 1024:
        key = (pattern.tobytes() + part.slots.astype(np.uint16).tobytes(), size if paired else -size)
        found = _patterns.get(key)
    if found is None:
        found = wavefronts(part, pattern, size, paired)
        if part.count <= 1024:
            if len(_patterns) >= _PATTERNS_KEPT:
                _patterns.clear()
            _patterns[key] = found
    return found[0] * repeat, found[1] * repeat, found[2]


def _first_block(lanes: LaneSet) -> LaneSet:
    found: LaneSet | None = lanes.cache.get("first block")
    if found is None:
        count = lanes.count // lanes.geometry.blocks
        found = lanes.cache["first block"] = LaneSet(lanes.geometry, lanes.lanes[:count], count)
    return found


def wavefronts(lanes: LaneSet, offsets: Array, size: int, paired: bool = True) -> tuple[int, int, int]:
    """Return the wavefronts of a request, the minimum for its bytes, and the largest number for one group of lanes: the
    n of an n-way bank conflict.

    With up to 4 bytes per lane a whole warp is one group; with 8 bytes a half warp, with 16 bytes a quarter warp.
    Exception: a load of 8 bytes processes both halves of a warp in one wavefront (a load of 16 bytes, both quarters of
    a half) if they have no bank conflict and all neighbouring lanes (0 and 1, 2 and 3...) or all lanes two apart (0 and
    2, 1 and 3, 4 and 6...) have the same address. ``paired``: it is a load. Measured on an H200; for some patterns of
    16 bytes with inactive lanes the result is off by one.
    """
    words = max(size // 4, 1)
    table = _rows(lanes, offsets)
    here = np.zeros(lanes.warp_count * 32, np.bool_)
    here[lanes.slots] = True
    group = 32 // min(words, 4)
    ways = _ways(table, here, group, words)
    worst = int(ways.max())
    if paired and words > 1:
        together = _ways(table, here, 2 * group, words) <= 1
        together &= _shared_by_neighbours(table.reshape(-1, 2 * group), here.reshape(-1, 2 * group))
        pairs = ways.reshape(-1, 2)
        ways = np.where(together, pairs.max(axis=1), pairs.sum(axis=1))
    passes = ways.reshape(lanes.warp_count, -1).sum(axis=1)
    fewest = np.minimum(passes, -(-lanes.warp_counts[lanes.warps] * size // 128))
    return int(passes.sum()), int(fewest.sum()), worst


def _ways(table: Array, here: Array, group: int, words: int) -> Array:
    """The number of different words in the most used bank, per group of lanes; 0 if no lane is active."""
    active = here.reshape(-1, group)
    used = active.any(axis=1)
    rows = table.reshape(-1, group)
    # absent lanes repeat their warp's first lane; in a group without that lane, they must repeat one of the group
    first = rows[np.arange(len(rows)), active.argmax(axis=1)]
    rows = np.where(active, rows, first[:, None])[used]
    spread = (rows >> 2)[:, :, None] + np.arange(words)
    rows = np.sort(spread.reshape(len(rows), -1), axis=1)
    fresh = np.ones(rows.shape, np.bool_)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    slots = np.arange(len(rows))[:, None] * 32 + (rows & 31)
    per_bank = np.bincount(slots[fresh], minlength=len(rows) * 32).reshape(-1, 32)
    ways = np.zeros(used.size, np.int64)
    ways[used] = per_bank.max(axis=1)
    return ways


def _shared_by_neighbours(table: Array, here: Array) -> Array:
    """A mask of the rows in which all neighbouring lanes, or all lanes two apart, have the same address."""
    lane = np.arange(table.shape[-1])
    same = [((table == table[:, lane ^ step]) | ~here | ~here[:, lane ^ step]).all(axis=1) for step in (1, 2)]
    found: Array = same[0] | same[1]
    return found
