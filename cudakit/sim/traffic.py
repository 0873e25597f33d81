"""What memory accesses cost: global sectors and shared-memory wavefronts, counted by warp as Nsight Compute does."""

from __future__ import annotations

import numpy as np

from cudakit.sim.fragment import Fragment, Tally
from cudakit.sim.lanes import Array, LaneSet

_PATTERNS_KEPT = 4096
_patterns: dict[tuple[bytes, int], tuple[int, int]] = {}


def count_uniform(f: Fragment, tally: Tally, lanes: LaneSet, size: int) -> None:
    """All lanes access the same address."""
    tally.requests += lanes.warp_count
    tally.units += lanes.warp_count
    tally.ideal += lanes.warp_count
    tally.lanes += lanes.count
    tally.bytes += lanes.count * size


def count_sectors(tally: Tally, lanes: LaneSet, offsets: Array, size: int, breaks: Array | None) -> None:
    """Add one global request. ``offsets``: uint64 byte offsets from a 32-byte boundary, each a multiple of ``size``.

    ``breaks``: the positions after which the next lane's address is not the next element; None where there are none.
    """
    tally.requests += lanes.warp_count
    tally.lanes += lanes.count
    tally.bytes += lanes.count * size
    starts = lanes.warp_starts
    if breaks is None or (len(breaks) < len(starts) and _are_starts(lanes, breaks)):
        # consecutive within every warp
        first = offsets.take(starts)
        last = first + np.uint64(31 * size) if lanes.complete else offsets.take(np.append(starts[1:], lanes.count) - 1)
        # aligned elements of at most 32 bytes never straddle a sector
        sectors = (last >> np.uint64(5)) - (first >> np.uint64(5))
        tally.units += int(sectors.sum()) + len(starts)
        return
    rows = _rows(lanes, (offsets >> np.uint64(5)).astype(np.uint32))
    rows.sort(axis=1)
    tally.units += lanes.warp_count + int(np.count_nonzero(rows[:, 1:] != rows[:, :-1]))


def _are_starts(lanes: LaneSet, breaks: Array) -> bool:
    if lanes.complete:
        return not ((breaks + 1) & 31).any()
    return bool(np.isin(breaks + 1, lanes.warp_starts).all())


def _rows(lanes: LaneSet, values: Array) -> Array:
    """A fresh table of 32 a warp, absent lanes repeating their warp's first value."""
    if lanes.complete:
        table: Array = values.reshape(-1, 32).copy()
        return table
    out = np.repeat(values.take(lanes.warp_starts), 32)
    out[lanes.slots] = values
    return out.reshape(-1, 32)


def count_wavefronts(tally: Tally, lanes: LaneSet, offsets: Array, size: int) -> None:
    """Add one shared-memory request; ``offsets``: int64 byte offsets within each lane's own block."""
    tally.requests += lanes.warp_count
    tally.lanes += lanes.count
    tally.bytes += lanes.count * size
    repeat = 1
    blocks = lanes.geometry.blocks
    if blocks > 1 and lanes.periodic:
        rows = offsets.reshape(blocks, -1)
        if (rows[1:] == rows[0]).all():
            # every block does the same: look at one
            repeat = blocks
            offsets = rows[0]
    # moving everything by whole words turns the banks round and changes nothing
    pattern = (offsets - (int(offsets[0]) & ~3)).astype(np.int32)
    part = lanes if repeat == 1 else _first_block(lanes)
    found = None
    if part.count <= 1024:
        key = (pattern.tobytes() + part.slots.astype(np.uint16).tobytes(), size)
        found = _patterns.get(key)
    if found is None:
        found = wavefronts(part, pattern, size)
        if part.count <= 1024:
            if len(_patterns) >= _PATTERNS_KEPT:
                _patterns.clear()
            _patterns[key] = found
    tally.units += found[0] * repeat
    tally.ideal += found[1] * repeat


def _first_block(lanes: LaneSet) -> LaneSet:
    found: LaneSet | None = lanes.cache.get("first block")
    if found is None:
        count = lanes.count // lanes.geometry.blocks
        found = lanes.cache["first block"] = LaneSet(lanes.geometry, lanes.lanes[:count], count)
    return found


def wavefronts(lanes: LaneSet, offsets: Array, size: int) -> tuple[int, int]:
    """Passes that a request needs, and the fewest that its lanes could need (one for each group with a lane in it).

    Lanes go together in groups of 32 (up to 4 bytes each), 16 (8 bytes) or 8 (16 bytes and more).
    """
    words = max(size // 4, 1)
    group = 32 // min(words, 4)
    table = _rows(lanes, offsets)
    here = np.zeros(lanes.warp_count * 32, np.bool_)
    here[lanes.slots] = True
    active = here.reshape(-1, group)
    used = active.any(axis=1)
    table = table.reshape(-1, group)
    # in a group without its warp's first lane, absent lanes must repeat one of its own
    first = table[np.arange(len(table)), active.argmax(axis=1)]
    table = np.where(active, table, first[:, None])[used]
    spread = (table >> 2)[:, :, None] + np.arange(words)
    rows = np.sort(spread.reshape(len(table), -1), axis=1)
    fresh = np.ones(rows.shape, np.bool_)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    slots = np.arange(len(rows))[:, None] * 32 + (rows & 31)
    per_bank = np.bincount(slots[fresh], minlength=len(rows) * 32).reshape(-1, 32)
    return int(per_bank.max(axis=1).sum()), len(rows)
