"""Bytes without defined content: memory that was never written (`types.UNWRITTEN`), and memory and registers that were
computed from it (`types.UNDEFINED`).

The simulated device tracks them for its check of uninitialised reads ("init"). Without it, none are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.debugger.types import UNDEFINED, UNWRITTEN, Array
from cudakit.sim.lockstep.clusters import home_of
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, Allocation, MemoryFault
from cudakit.sim.lockstep.owners import named_offsets

if TYPE_CHECKING:
    from cudakit.debugger.expressions import Value
    from cudakit.debugger.state import View
    from cudakit.sim.lockstep.fragment import Batch


def of(value: Value, view: View) -> Array | None:
    """The marks of a value's bytes, (threads, size); None if all are defined."""
    if value.addresses is not None:
        found = in_memory(view, value.addresses, value.type.size)
        return found if found.any() else None
    codes = view.frame.frame.undefined.get(view.program.slots.get(value.register, -1))
    if codes is None:
        return None
    undefined = np.broadcast_to(codes, (view.f.lanes.count,)).take(view.positions) != 0
    return np.repeat(undefined[:, None] * np.uint8(UNDEFINED), max(value.type.size, 1), axis=1)


def in_memory(view: View, addresses: Array, size: int) -> Array:
    """The same for readable memory at generic addresses."""
    found = np.zeros((len(addresses), size), np.uint8)
    spaces = np.searchsorted(np.array([SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW], np.uint64), addresses, side="right")
    shared, local, other = (np.flatnonzero(spaces == space) for space in (1, 2, 0))
    if len(shared):
        own = view.f.lanes.block[view.positions[shared]]
        blocks, offsets = home_of(view.batch, own, (addresses[shared] - np.uint64(SHARED_WINDOW)).astype(np.int64))
        found[shared] = in_shared(view.batch, blocks, offsets - SHARED_START, size)
    if len(local):
        places = (addresses[local] - np.uint64(LOCAL_WINDOW)).astype(np.int64)
        offsets = named_offsets(view.f, view.positions[local], places)
        found[local] = _in_local(view.batch, view.f.lanes.lanes[view.positions[local]], offsets, size)
    for position in other:
        found[position] = in_global(view.batch, int(addresses[position]), size)
    return found


def in_shared(batch: Batch, blocks: Array, offsets: Array, size: int) -> Array:
    """The marks of bytes of shared memory, at an offset in each of some blocks: (blocks, size)."""
    guard: Any = batch.guard
    if guard is None or not guard.init or guard.shared is None or batch.shared is None:
        return np.zeros((len(blocks), size), np.uint8)
    table = guard.shared
    places = offsets[:, None] + np.arange(size)
    written = table.writes.first[blocks[:, None] * table.granules + (places >> table.shift)] != 0
    return _marks(guard, batch.shared, written, blocks[:, None] * batch.shared.stride + places)


def _in_local(batch: Batch, lanes: Array, offsets: Array, size: int) -> Array:
    guard: Any = batch.guard
    if guard is None or guard.local is None or batch.local is None:
        return np.zeros((len(lanes), size), np.uint8)
    places = lanes[:, None] * batch.local.stride + offsets[:, None] + np.arange(size)
    return _marks(guard, batch.local, guard.local.written[places] != 0, places)


def _marks(guard: Any, store: Any, written: Array, places: Array) -> Array:
    """The marks of bytes of shared or local memory. written: whether they were written; places: theirs in the store."""
    values = guard.values.stores.get(store)
    found = np.where(written, 0, UNWRITTEN).astype(np.uint8)
    if values is not None:
        found[written & (values.codes[places] != 0)] = UNDEFINED
    return found


def in_global(batch: Batch, address: int, size: int) -> Array:
    """The marks of bytes of global memory, which may have been written before the launch or by it."""
    guard: Any = batch.guard
    nothing = np.zeros(size, np.uint8)
    try:
        allocation: Allocation = batch.run.space.covering(address, size)
    except MemoryFault:
        return nothing
    before = allocation.undefined_at(address - allocation.address, size)
    if guard is None or not guard.init or before is None or not before.any():
        return nothing
    missing = before != 0
    shadow = guard.memory.shadows.get(allocation)
    if shadow is not None and shadow.writes is not None:
        places = address - allocation.base + np.arange(size) >> guard.memory.shift
        missing &= shadow.writes.first[places] == 0
    return np.where(missing, np.uint8(UNWRITTEN), np.uint8(0))
