"""Builders for tensor maps in memory: tensormap.replace, tensormap.cp_fenceproxy, their fences and prefetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cudakit.sim.instructions.bulk_copies import each_lane
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import GENERIC, GLOBAL, SHARED
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.tensor_maps import SIZE, InvalidTensorMap, TensorMap
from cudakit.sim.ptx.ir import Immediate, Instruction, Symbol
from cudakit.sim.ptx.modifiers import Modifiers

# fields of one value per dimension, in the order of TensorMap.rows; those of which only a literal may be the new value
_ARRAYS = ("global_dim", "global_stride", "box_dim", "element_stride")
_LITERALS = {"elemtype": "data_type", "interleave_layout": "interleave", "swizzle_mode": "swizzle", "fill_mode": "fill"}
_FIELDS = ("global_address", "rank", *_ARRAYS, *_LITERALS)
# the types by the numbers of tensormap.replace, as numbers of cuTensorMapEncodeTiled
_TYPES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 10, 9: 8, 10: 9, 11: 11, 12: 12}
_WORDS = SIZE // 8
_SPACES = {"global": GLOBAL, "shared::cta": SHARED}


def _whole_map(site: Site, space: str, offset: int) -> MemoryAccess:
    return MemoryAccess(site, space, offset, 8, _WORDS)


def build_replace(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("b32", "b64")
    modifiers.flag("replace")
    tile = modifiers.flag("tile")
    field = modifiers.one_of(*_FIELDS)
    # a variable's space is named as .shared if the instruction names none
    named = isinstance(getattr(instruction.operands[0], "base", None), Symbol) and modifiers.flag("shared")
    space = SHARED if named else _SPACES.get(modifiers.one_of(*_SPACES), GENERIC)
    whole = modifiers.flag("b1024")
    modifiers.finish()
    operands = instruction.operands
    if not field or not whole or not tile or len(operands) != 2 + (field in _ARRAYS):
        modifiers.refuse("unknown form")
    if (kind == "b64") != (field in ("global_address", "global_stride")):
        modifiers.refuse(f"a {field} of .{kind}")
    ordinal = operands[1] if field in _ARRAYS else None
    value = operands[-1]
    if field in _LITERALS and not isinstance(value, Immediate):
        modifiers.refuse(f"the new {field} must be a literal")
    if ordinal is not None and not isinstance(ordinal, Immediate):
        modifiers.refuse("the dimension must be a literal")
    place = ordinal.bits if isinstance(ordinal, Immediate) else 0
    site = c.site(instruction, "tensormap.replace")
    address, offset = c.address(operands[0], instruction)
    access = _whole_map(site, space, offset)

    def run(f: Fragment, at: Array, value: Array) -> None:
        found = np.broadcast_to(access.load(f, at), (f.lanes.count, _WORDS))
        rows = np.empty((f.lanes.count, _WORDS), np.uint64)
        for position, (new,) in enumerate(each_lane(f, value)):
            data = np.ascontiguousarray(found[position]).tobytes()
            try:
                changed = _replaced(TensorMap.decode(data), field, place, new).encode()
            except (InvalidTensorMap, ValueError) as error:
                f.fail(site.instruction, "invalid tensor map", f"{site.kind} of .{field}: {error}", position)
            rows[position] = np.frombuffer(changed, np.uint64)
        access.store_rows(f, at, rows)

    return [f"{c.bind(run)}(f, {address}, {c.source(value, kind)})"]


def _replaced(tensor: TensorMap, field: str, place: int, new: int) -> TensorMap:
    """A map with another value of a field, for an array that of dimension ``place``. Raises ValueError for a rank, or a
    dimension, that no map has."""
    if field == "global_address":
        return replace(tensor, address=new)
    if field in _LITERALS:
        literal: dict[str, Any] = {_LITERALS[field]: _TYPES.get(new, new) if field == "elemtype" else new}
        return replace(tensor, **literal)
    # dimensions beyond the rank may be changed, too: the order of the instructions is free
    rows, rank = tensor.rows(), tensor.rank
    if field == "rank":
        # the instruction counts ranks from 0
        rank = new + 1
        if not 1 <= rank <= len(rows[0]):
            raise ValueError(f"a rank of {rank}; it may be 1 to {len(rows[0])}")
    else:
        row = rows[_ARRAYS.index(field)]
        if place >= len(row):
            raise ValueError(f"number {place} of {len(row)}: numbers start at 0")
        row[place] = new
    return tensor.with_rows(rows, rank)


def build_copy_fence(c: Emitter, instruction: Instruction) -> list[str]:
    """tensormap.cp_fenceproxy: copy a map from shared to global memory, with a release."""
    modifiers = Modifiers(instruction)
    spaces = modifiers.one_of("global", "shared::cta"), modifiers.one_of("global", "shared::cta")
    wanted = ("cp_fenceproxy", "tensormap::generic", "release", "sync", "aligned")
    if not all(modifiers.flag(name) for name in wanted) or not modifiers.one_of("cta", "cluster", "gpu", "sys"):
        modifiers.refuse("unknown form")
    if spaces != ("global", "shared::cta"):
        modifiers.refuse("it copies from .shared::cta to .global")
    modifiers.finish()
    size = instruction.operands[2]
    if not isinstance(size, Immediate) or size.bits != SIZE:
        modifiers.refuse(f"it copies {SIZE} bytes")
    site = c.site(instruction, "tensormap.cp_fenceproxy")
    to, to_offset = c.address(instruction.operands[0], instruction)
    at, at_offset = c.address(instruction.operands[1], instruction)
    reading, writing = _whole_map(site, SHARED, at_offset), _whole_map(site, GLOBAL, to_offset)

    def copy(f: Fragment, to: Array, at: Array) -> None:
        # the warp copies once
        choice, first = f.lanes.at(f.lanes.warp_starts)
        part = f.borrow(choice, first, ())
        rows = reading.load(part, at if at.ndim == 0 else at[choice])
        writing.store_rows(part, to if to.ndim == 0 else to[choice], np.broadcast_to(rows, (first.count, _WORDS)))
        if f.batch.guard is not None:
            f.batch.guard.map_fence(f, None)

    return [f"{c.bind(copy)}(f, {to}, {at})"]


def build_fence(c: Emitter, instruction: Instruction) -> list[str]:
    """fence.proxy.tensormap: a release, or an acquire of the map at an address."""
    modifiers = Modifiers(instruction)
    wanted = modifiers.flag("proxy") and modifiers.flag("tensormap::generic")
    order = modifiers.one_of("acquire", "release")
    scope = modifiers.one_of("cta", "cluster", "gpu", "sys")
    modifiers.finish()
    operands = instruction.operands
    if not (wanted and order and scope) or len(operands) != (2 if order == "acquire" else 0):
        modifiers.refuse("unknown form")
    if not operands:
        return [f"{c.bind(_release)}(f)"]
    if not isinstance(operands[1], Immediate) or operands[1].bits != SIZE:
        modifiers.refuse(f"it acquires {SIZE} bytes")
    address, offset = c.address(operands[0], instruction)

    def acquire(f: Fragment, at: Array) -> None:
        if f.batch.guard is not None:
            f.batch.guard.map_fence(f, np.broadcast_to(at, (f.lanes.count,)).astype(np.int64) + offset)

    return [f"{c.bind(acquire)}(f, {address})"]


def _release(f: Fragment) -> None:
    if f.batch.guard is not None:
        f.batch.guard.map_fence(f, None)


def build_prefetch(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    modifiers.one_of("param", "const")
    modifiers.flag("tensormap")
    modifiers.finish()
    c.address(instruction.operands[0], instruction)
    return []


BUILDERS = {
    "tensormap.replace": build_replace,
    "tensormap.cp_fenceproxy": build_copy_fence,
    "fence.tensormap": build_fence,
    "prefetch.tensormap": build_prefetch,
}
