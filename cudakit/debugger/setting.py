"""Assignments to a thread's variables in a stopped kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudakit.debugger import types
from cudakit.debugger.expressions import Value
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.types import Array
from cudakit.sim.checks.shadow import STRONG
from cudakit.sim.lockstep.clusters import home_of
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW
from cudakit.sim.lockstep.owners import own_offset


def assign(target: Value, number: Array, view: View) -> None:
    """Store a number to a variable or an element of memory of the first thread of a view. Raises ExpressionError if it
    cannot be changed."""
    dtype = types.dtype_of(target.type)
    if dtype is None:
        raise ExpressionError(f"a value of type {target.type.name} cannot be set; set its members")
    if target.member is not None and target.member.bits:
        raise ExpressionError("a bit field cannot be set")
    if isinstance(target.type.plain, types.Base) and target.type.plain.kind == "bool":
        number = (number != 0).astype(np.uint8)
    data = number[:1].astype(dtype).view(np.uint8)
    if target.addresses is not None:
        _bytes_at(int(target.addresses[0]), len(data), view)[:] = data
        return
    if not target.register:
        raise ExpressionError("a computed value cannot be set")
    slot = view.program.slots[target.register]
    held = np.asarray(view.frame.regs[slot])
    changed = np.array(np.broadcast_to(held, (view.f.lanes.count,)))
    position = int(view.positions[0])
    whole = np.zeros(changed.dtype.itemsize, np.uint8)
    whole[: min(len(data), len(whole))] = data[: len(whole)]
    changed[position] = bool(data[0]) if changed.dtype == np.bool_ else whole.view(changed.dtype)[0]
    # arrays of registers are shared, so that one is replaced and not written
    view.frame.regs[slot] = changed
    codes = view.frame.frame.undefined.get(slot)
    if codes is not None:
        codes = view.frame.frame.undefined[slot] = np.array(np.broadcast_to(codes, (view.f.lanes.count,)))
        codes[position] = 0


def _bytes_at(address: int, size: int, view: View) -> Array:
    """The bytes at a generic address, to be written."""
    view.load(np.array([address], np.uint64), size)  # raises if they are not accessible
    batch = view.batch
    position = view.positions[0]
    if address >= PARAM_WINDOW:
        raise ExpressionError("a kernel's parameters are in constant memory and cannot be set")
    if address >= LOCAL_WINDOW:
        offset = own_offset(view.f, int(position), address)
        written = getattr(batch.guard, "local", None)
        if written is not None:
            _row_of(written.written, written.stride, int(view.f.lanes.lanes[position]), offset, size)[:] = 0xFF
        return _row(batch.local, int(view.f.lanes.lanes[position]), offset, size)
    if address >= SHARED_WINDOW:
        block, offset = home_of(batch, int(view.f.lanes.block[position]), address - SHARED_WINDOW)
        _initialise(batch, block, offset - SHARED_START, size)
        return _row(batch.shared, block, offset - SHARED_START, size)
    allocation = batch.run.space.covering(address, size)
    start = address - allocation.address
    allocation.define(start, size)
    return allocation.data[start : start + size]


def _initialise(batch: Batch, block: int, offset: int, size: int) -> None:
    """Mark bytes of a block's shared memory as written, for the check of uninitialised reads."""
    table = getattr(batch.guard, "shared", None)
    if table is not None:
        first = block * table.granules + (offset >> table.shift)
        words = table.writes.first[first : first + -(-size >> table.shift)]
        words[words == 0] = STRONG


def _row(store: Any, row: int, offset: int, size: int) -> Array:
    return _row_of(store.bytes, store.stride, row, offset, size)


def _row_of(table: Array, stride: int, row: int, offset: int, size: int) -> Array:
    return table[row * stride + offset :][:size]
