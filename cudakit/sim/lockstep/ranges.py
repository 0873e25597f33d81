"""Ranges of memory that asynchronous copies name by their first byte: one range per lane, of any size."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from cudakit.sim.lockstep.clusters import offsets_in_cluster, ranks
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_START, SHARED_WINDOW, Allocation, MemoryFault
from cudakit.sim.lockstep.pieces import GLOBAL, SHARED
from cudakit.sim.lockstep.sites import Site


def shared_range(
    f: Fragment, position: int, address: int, size: int, align: int, site: Site, *, anywhere: bool
) -> tuple[int, int]:
    """The block of the batch and the offset in its shared memory of ``size`` bytes at a shared or generic address, for
    the lane at a position of the fragment. ``anywhere``: in any block of the cluster. Bytes outside of shared memory,
    a rank that the cluster lacks, a block that has exited and an address that is not a multiple of ``align`` are
    reported."""
    batch = f.batch
    if SHARED_WINDOW <= address < LOCAL_WINDOW:
        address -= SHARED_WINDOW
    if batch.run.cluster_size > 1:
        one = f.borrow(*f.lanes.at(position), ())
        offsets, blocks = offsets_in_cluster(one, one.lanes, np.array([address]), site, size, anywhere)
        offset, block = int(offsets[0]), int(blocks[0])
    else:
        offset, block = address - SHARED_START, int(f.lanes.block[position])
    limit = batch.run.shared_bytes
    if offset < 0 or offset + size > limit:
        _fail(f, position, address, size, site, "out of bounds", f"byte {offset} of shared memory ({limit} bytes)")
    if offset % align:
        where = f"byte {offset} of shared memory, which is not a multiple of {align}"
        _fail(f, position, address, size, site, "misaligned", where)
    return block, offset


def peer_blocks(f: Fragment, position: int, mask: int, address: int, site: Site) -> list[int]:
    """The blocks of the batch that a multicast mask names; ``address`` is where the copy goes in the own one. Ranks
    that the cluster lacks and blocks that have exited are reported."""
    batch = f.batch
    size = batch.run.cluster_size
    own = int(f.lanes.block[position])
    rank = int(ranks(batch, f.lanes)[position]) if size > 1 else 0
    found = []
    for peer in range(16):
        if not mask >> peer & 1:
            continue
        if peer >= size:
            where = f"the shared memory of rank {peer} of the multicast mask {mask:#x}; the cluster has {size} blocks"
            _fail(f, position, address, 0, site, "out of bounds", where)
        block = own - rank + peer
        if batch.live_blocks[block] == 0:
            where = f"the shared memory of block {batch.block_index(block)}, which has exited"
            _fail(f, position, address, 0, site, "use after free", where)
        found.append(block)
    if not found:
        _fail(f, position, address, 0, site, "out of bounds", "no block: the multicast mask is 0")
    return found


def global_range(f: Fragment, position: int, address: int, size: int, align: int, site: Site) -> tuple[Allocation, int]:
    """The allocation of ``size`` bytes at a global address, and their first byte in its store."""
    try:
        allocation = f.batch.run.space.covering(address, max(size, 1))
        if allocation.bounds is not None and not allocation.bounds.holds(address, size):
            raise MemoryFault("out of bounds", address, size, allocation)
        if address % align:
            raise MemoryFault("misaligned", address, size, allocation)
    except MemoryFault as fault:
        f.fail_access(site, fault, GLOBAL, position, 1)
    return allocation, address - allocation.base


def _fail(f: Fragment, position: int, address: int, size: int, site: Site, kind: str, where: str) -> NoReturn:
    what = f"{site.kind} of {size} bytes at" if size else f"{site.kind} to"
    f.fail(
        site.instruction,
        kind,
        f"{what} {where}",
        position,
        address=address,
        size=size,
        space=SHARED,
        access=site.kind,
    )
