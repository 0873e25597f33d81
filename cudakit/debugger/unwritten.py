"""Values that no store has set: memory that was never written, and registers that were computed from it.

The simulated device tracks them for its check of uninitialised reads ("init"). Without it, none are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.sim.lockstep.clusters import home_of
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, Allocation, MemoryFault
from cudakit.sim.lockstep.owners import named_offsets

if TYPE_CHECKING:
    from cudakit.debugger.expressions import Value
    from cudakit.debugger.state import View
    from cudakit.debugger.types import Array
    from cudakit.sim.lockstep.fragment import Batch

UNINITIALISED = "<uninitialised>"


def of(value: Value, view: View) -> tuple[Array | None, str]:
    """Whether each byte of a value has no defined content, (threads, size), and the text for such values. None if all
    are defined."""
    if value.addresses is not None:
        return memory(view, value.addresses, value.type.size), UNINITIALISED
    slot = view.program.slots.get(value.register)
    found = None if slot is None else registers(view, slot)
    return (None if found is None else np.repeat(found[:, None], max(value.type.size, 1), axis=1)), "<undefined>"


def memory(view: View, addresses: Array, size: int) -> Array | None:
    """Whether each byte of readable memory at generic addresses was never written, (threads, size); None if all were,
    or if it is not tracked."""
    guard: Any = view.batch.guard
    if guard is None or not guard.init:
        return None
    found = np.zeros((len(addresses), size), np.bool_)
    columns = np.arange(size)
    spaces = np.searchsorted(np.array([SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW], np.uint64), addresses, side="right")
    shared, local, other = (np.flatnonzero(spaces == space) for space in (1, 2, 0))
    if len(shared) and guard.shared is not None:
        own = view.f.lanes.block[view.positions[shared]]
        blocks, offsets = home_of(view.batch, own, (addresses[shared] - np.uint64(SHARED_WINDOW)).astype(np.int64))
        found[shared] = in_shared(view.batch, blocks, offsets - SHARED_START, size)
    if len(local) and guard.local is not None:
        places = (addresses[local] - np.uint64(LOCAL_WINDOW)).astype(np.int64)
        offsets = named_offsets(view.f, view.positions[local], places)
        rows = view.f.lanes.lanes[view.positions[local]]
        written = guard.local.written.reshape(-1, guard.local.stride)
        found[local] = written[rows[:, None], offsets[:, None] + columns] == 0
    for position in other:
        found[position] = in_global(view.batch, int(addresses[position]), size)
    return found if found.any() else None


def in_shared(batch: Batch, blocks: Array, offsets: Array, size: int) -> Array:
    """Whether each byte of shared memory was never written, at an offset in each of some blocks: (blocks, size)."""
    table = getattr(batch.guard, "shared", None)
    if table is None or not table.init:
        return np.zeros((len(blocks), size), np.bool_)
    granules = offsets[:, None] + np.arange(size) >> table.shift
    found: Array = table.writes.first[blocks[:, None] * table.granules + granules] == 0
    return found


def in_global(batch: Batch, address: int, size: int) -> Array:
    """Whether each byte of global memory was never written: not before the launch, and not by it."""
    guard: Any = batch.guard
    nothing = np.zeros(size, np.bool_)
    try:
        allocation: Allocation = batch.run.space.covering(address, size)
    except MemoryFault:
        return nothing
    start = address - allocation.address
    before = allocation.undefined_at(start, size)
    if guard is None or not guard.init or before is None or not before.any():
        return nothing
    shadow = guard.memory.shadows.get(allocation)
    if shadow is None or shadow.writes is None:
        return np.asarray(before != 0)
    places = address - allocation.base + np.arange(size) >> guard.memory.shift
    found: Array = (before != 0) & (shadow.writes.first[places] == 0)
    return found


def registers(view: View, slot: int) -> Array | None:
    """Whether the value of a register is undefined, per thread; None if it is defined in all of them."""
    codes = view.frame.frame.undefined.get(slot)
    if codes is None:
        return None
    found: Array = np.broadcast_to(codes, (view.f.lanes.count,)).take(view.positions) != 0
    return found if found.any() else None
