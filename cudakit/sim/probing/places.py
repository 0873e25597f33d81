"""The bytes that the lanes of a load, store or atomic access, for probes: without checks and without counting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.clusters import shared_address
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW
from cudakit.sim.lockstep.program import Program
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Operand, Register, Symbol
from cudakit.sim.ptx.opcodes import spaces_of

_SHARED = ("shared", "shared::cta")
# a local address may contain its thread (owners.py) above these bits
_OFFSET, _HALF = (1 << 24) - 1, 1 << 23


class Place(NamedTuple):
    """The first byte that each lane accesses in one memory. ``home`` is the allocation, or the batch's store of shared
    or local memory; ``offsets`` count from its first byte (that of an allocation's store), one for each of the lanes at
    ``positions`` of the fragment."""

    home: Any
    offsets: Array
    positions: Array

    @property
    def is_global(self) -> bool:
        return hasattr(self.home, "address")


class AddressReader:
    """Finds the places of an access. ``operand`` is its address."""

    def __init__(self, program: Program, instruction: Instruction, operand: Operand | None) -> None:
        self.program = program
        self.spaces = spaces_of(instruction)
        address = operand if isinstance(operand, Address) else Address(None, 0)
        if isinstance(operand, (Symbol, Register)):
            address = Address(operand, 0)
        self.base, self.offset = address.base, address.offset
        #: the slot of the address register, if it is one
        self.slot = program.slots[self.base.name] if isinstance(self.base, Register) else None

    def value(self, f: Fragment, r: Any) -> Any:
        """The base of the address, one for all lanes or one per lane; None if it is not known."""
        if self.slot is not None:
            return r[self.slot]
        if isinstance(self.base, Immediate):
            return np.uint64(self.base.bits & 0xFFFFFFFFFFFFFFFF)
        if isinstance(self.base, Symbol):
            if self.base.name in f.program.local_offsets:
                return np.uint64(f.frames[-1].local_base + f.program.local_offsets[self.base.name])
            if self.base.name in f.batch.run.config.shared_symbols:
                return shared_address(self.base.name)(f)
        return None

    def places(self, f: Fragment, r: Any, held: Array | None) -> list[Place]:
        """The places of the lanes in the mask ``held``, of all lanes if it is None."""
        value = self.value(f, r)
        if value is None or "shared::cluster" in self.spaces:
            return []
        positions = np.arange(f.lanes.count) if held is None else np.flatnonzero(held)
        if not len(positions):
            return []
        at = np.broadcast_to(value, (f.lanes.count,))[positions].astype(np.int64) + self.offset
        if "global" in self.spaces or "const" in self.spaces:
            return _in_global(f, at, positions)
        if "local" in self.spaces:
            return _in_local(f, at, positions)
        if not set(_SHARED).isdisjoint(self.spaces):
            return _in_shared(f, at & 0xFFFFFFFF, positions)
        if self.spaces:
            return []
        found: list[Place] = []
        bounds = (0, SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW)
        for start, end, inside in zip(bounds[:3], bounds[1:], (_in_global, _in_shared, _in_local), strict=True):
            here = (at >= start) & (at < end)
            if here.any():
                found += inside(f, at[here] - start, positions[here])
        return found


def _in_global(f: Fragment, at: Array, positions: Array) -> list[Place]:
    found: list[Place] = []
    while len(at):
        allocation = f.batch.run.space.find(int(at[0]))
        if allocation is None or not allocation.live or not allocation.address <= at[0] < allocation.end:
            at, positions = at[1:], positions[1:]  # the access is about to fail
            continue
        inside = (at >= allocation.address) & (at < allocation.end)
        if inside.all():
            return [*found, Place(allocation, at - allocation.base, positions)]
        found.append(Place(allocation, at[inside] - allocation.base, positions[inside]))
        at, positions = at[~inside], positions[~inside]
    return found


def _in_shared(f: Fragment, at: Array, positions: Array) -> list[Place]:
    store = f.batch.shared
    offsets = at - SHARED_START
    if store is None or f.batch.run.cluster_size > 1 or int(offsets.min()) < 0 or int(offsets.max()) >= store.stride:
        return []
    return [Place(store, offsets + f.lanes.block[positions] * store.stride, positions)]


def _in_local(f: Fragment, at: Array, positions: Array) -> list[Place]:
    store = f.batch.local
    offsets = ((at & _OFFSET) ^ _HALF) - _HALF
    if store is None or int(offsets.min()) < 0 or int(offsets.max()) >= store.stride:
        return []
    return [Place(store, offsets + f.lanes.lanes[positions] * store.stride, positions)]


def memory_of(home: Any, dtype: Any) -> Array:
    """All elements of a memory."""
    found: Array = home.view(np.dtype(dtype))
    return found
