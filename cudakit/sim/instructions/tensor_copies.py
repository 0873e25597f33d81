"""Builders for tensor copies: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor and their prefetches.

A tensor map (lockstep/tensor_maps.py) says which bytes of global memory a box has. In shared memory a box is always
made of chunks of 16 bytes, which the swizzle moves; in global memory its units may be smaller, at the edges of a
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cudakit.sim.instructions.bulk_copies import COMPLETION, SPACES, count_bulk, each_lane, finish, reduction
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.mbarriers import barrier_places
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.map_memory import read_map
from cudakit.sim.lockstep.memory import SHARED_START, MemoryFault
from cudakit.sim.lockstep.pieces import CLUSTER, GLOBAL, SHARED
from cudakit.sim.lockstep.ranges import peer_blocks, shared_range
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.tensor_maps import TENSOR_FLOAT, TensorMap, box_places, fill_of, loaded, swizzled
from cudakit.sim.lockstep.transfers import Transfer, Units
from cudakit.sim.ptx.ir import Instruction, Operand, Vector
from cudakit.sim.ptx.modifiers import Modifiers

# bytes of a chunk in shared memory, and the alignment of a tile there
CHUNK, TILE_ALIGN = 16, 128
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_BITWISE = ("and", "or", "xor")
# the types of the reductions, by the type of the map
_REDUCED = {"u32": "u32", "s32": "s32", "u64": "u64", "s64": "s64", "f16": "f16", "bf16": "bf16", "f32": "f32"}
_REDUCED |= {"f64": "f64", "f32.ftz": "f32"}


class _Accesses:
    """The accesses of one instruction by the size of their units, which the tensor map determines."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.chunks = {space: MemoryAccess(site, space, 0, 4, CHUNK // 4) for space in (SHARED, CLUSTER)}
        self._units: dict[int, MemoryAccess] = {CHUNK: MemoryAccess(site, GLOBAL, 0, 4, CHUNK // 4)}

    def units(self, size: int) -> MemoryAccess:
        """The access to units of ``size`` bytes of global memory."""
        found = self._units.get(size)
        if found is None:
            found = self._units[size] = MemoryAccess(self.site, GLOBAL, 0, size, 1)
        return found


def _bytes_of(tensor: TensorMap, f: Fragment, position: int, address: Array, size: int, site: Site) -> Any:
    """The allocation of the bytes at the addresses of units of ``size`` bytes."""
    space = f.batch.run.space
    try:
        if not len(address):
            return space.covering(tensor.address, 1)
        low, high = int(address.min()), int(address.max())
        allocation = space.covering(low, high - low + size)
        if allocation.bounds is not None and not allocation.bounds.holds(low, high - low + size):
            wrong = np.flatnonzero(allocation.bounds.outside(address.astype(np.uint64), size))
            if len(wrong):
                raise MemoryFault("out of bounds", int(address[wrong[0]]), size, allocation)
    except MemoryFault as fault:
        f.fail_access(site, fault, GLOBAL, position, 1)
    return allocation


class _Box:
    """The box of one copy: its places in global memory, as units, and in a tile of shared memory, as chunks."""

    def __init__(
        self, f: Fragment, position: int, tensor: TensorMap, corner: tuple[int, ...], site: Site, *, stores: bool
    ) -> None:
        self.tensor, self.corner = tensor, corner
        _check_corner(f, position, tensor, corner, site, stores=stores)
        places = box_places(_stored(tensor) if stores else tensor, corner)
        self.unit = places.unit
        offsets = places.global_offsets
        self.inside = places.inside
        if self.inside is not None:
            offsets = offsets[self.inside]
        self.count = len(places.shared_offsets)
        self.chunks = places.shared_offsets[:: CHUNK // self.unit]
        self.allocation = _bytes_of(tensor, f, position, offsets + tensor.address, self.unit, site)
        # bytes of the allocation's store
        self.begins = offsets + (tensor.address - self.allocation.base)
        self.clipped = (self.count - len(self.begins)) * self.unit
        if stores and self.inside is not None:
            # a store does not read the part of the box that it leaves out
            inside = self.inside.reshape(len(self.chunks), -1)
            stored = inside.any(axis=1)
            self.chunks, self.inside = self.chunks[stored], inside[stored].reshape(-1)

    def global_units(self, accesses: _Accesses) -> Units:
        return Units(self.allocation, self.begins // self.unit, accesses.units(self.unit))

    def tile(self, f: Fragment, block: int, offset: int, access: MemoryAccess) -> Units:
        """The chunks of a tile at an offset in a block's shared memory."""
        store = f.batch.shared
        if store is None:
            raise RuntimeError("a tile in shared memory, which the kernel lacks")
        base = offset + SHARED_START
        at = swizzled(self.chunks, base, self.tensor.swizzle) + (block * store.stride + offset)
        return Units(store, at // CHUNK, access)

    def to_tile(self) -> Callable[[Array], Array]:
        """A function from the units of the box to the chunks of a tile."""
        tensor = self.tensor

        def arrange(units: Array) -> Array:
            raw = np.ascontiguousarray(units).view(np.uint8).reshape(-1)
            if tensor.data_type in TENSOR_FLOAT:
                converted = loaded(tensor, raw)
                # the value of elements outside the tensor is not converted
                raw = converted if self.inside is None else np.where(self._each_byte(), converted, raw)
            chunks: Array = np.ascontiguousarray(raw).view(np.uint32).reshape(-1, CHUNK // 4)
            return chunks

        return arrange

    def _each_byte(self) -> Array:
        """Whether each byte of the box is inside the tensor."""
        inside: Any = self.inside
        found: Array = np.repeat(inside, self.unit)
        return found

    def from_tile(self, access: MemoryAccess) -> Callable[[Array], Array]:
        """A function from the chunks of a tile to the units of the box inside the tensor."""

        def arrange(chunks: Array) -> Array:
            units = np.ascontiguousarray(chunks).view(access.dtype)
            units = units.reshape(-1, access.count) if access.count > 1 else units.reshape(-1)
            if self.inside is None:
                return units
            each = self.unit // access.size
            found: Array = units[self.inside if each == 1 else np.repeat(self.inside, each)]
            return found

        return arrange

    def filled(self, access: MemoryAccess) -> Array | None:
        """All units of the box with the value of those outside the tensor; None if all are inside."""
        if self.inside is None:
            return None
        fill = np.full(self.count * self.unit // 2 or 1, fill_of(self.tensor), np.uint16)
        units = fill.view(np.uint8)[: self.count * self.unit].view(access.dtype)
        return units.reshape(-1, access.count) if access.count > 1 else units


def _stored(tensor: TensorMap) -> TensorMap:
    """The tensor as stores see it: an H200 stores whole chunks of 16 bytes, also at the end of a row."""
    size = tensor.inner_bytes
    whole = -(-tensor.dims[0] * size // CHUNK) * CHUNK // size
    return tensor if whole == tensor.dims[0] else replace(tensor, dims=(whole, *tensor.dims[1:]))


def _check_corner(
    f: Fragment, position: int, tensor: TensorMap, corner: tuple[int, ...], site: Site, *, stores: bool
) -> None:
    """Report coordinates that are an illegal instruction on an H200: a box that does not begin at a multiple of 16
    bytes of a row, and a store before the tensor."""
    begin = corner[0] * tensor.inner_bytes
    detail = ""
    if begin % CHUNK:
        detail = f"the box begins {begin} bytes from the start of a row, which is not a multiple of 16"
    elif stores and min(corner) < 0:
        detail = f"coordinate {corner.index(min(corner))} is negative, which only loads allow"
    if detail:
        what = f"{site.kind}: {detail} (coordinates {corner} of {tensor})"
        f.fail(site.instruction, "tensor coordinates", what, position, access=site.kind)


class _Modes:
    """The modifiers that all tensor copies share."""

    def __init__(self, modifiers: Modifiers) -> None:
        rank = modifiers.one_of("1d", "2d", "3d", "4d", "5d")
        self.rank = int(rank[:1] or 0)
        modifiers.flag("tile")
        rows = next((m for m in modifiers.rest if m in ("tile::gather4", "tile::scatter4")), "")
        if rows:
            modifiers.refuse(f".{rows} needs sm_100: use .tile")
        if not self.rank:
            modifiers.refuse("the number of dimensions (.1d to .5d) is missing")


def _named(c: Emitter, instruction: Instruction, operand: Operand | None, rank: int) -> tuple[str, str]:
    """Expressions for the address of a tensor map and for its coordinates, from an operand [map, {x, y}]."""
    parts = operand if isinstance(operand, tuple) else (operand,)
    coordinates = parts[1] if len(parts) > 1 else None
    elements = coordinates.elements if isinstance(coordinates, Vector) else ()
    if len(elements) != rank:
        Modifiers(instruction).refuse(f"{rank} coordinates are needed, got {len(elements)}")
    address, offset = c.address(parts[0], instruction)
    if offset:
        address = f"({address} + {c.bind(np.uint64(offset % (1 << 64)))})"
    return address, f"({', '.join(c.source(element, 's32') for element in elements)},)"


def _corners(f: Fragment, coordinates: tuple[Array, ...]) -> list[tuple[int, ...]]:
    count = f.lanes.count
    columns = [np.broadcast_to(v, (count,)).view(np.int32).tolist() for v in coordinates]
    return list(zip(*columns, strict=True))


def _check_outside(f: Fragment, position: int, box: _Box, site: Site) -> None:
    if len(box.begins) or "clipping" not in f.batch.run.checks:
        return
    f.fail(
        site.instruction,
        "tensor coordinates",
        f"{site.kind}: no element of the box at {box.corner} is in the tensor ({box.tensor})",
        position,
        notes=["coordinates count elements of the tensor, dimension 0 first, not boxes"],
    )


def build_tensor(c: Emitter, instruction: Instruction) -> list[str]:
    """cp.async.bulk.tensor."""
    modifiers = Modifiers(instruction)
    for name in ("async", "bulk", "tensor"):
        modifiers.flag(name)
    modes = _Modes(modifiers)
    target, source = modifiers.one_of(*SPACES), modifiers.one_of(*SPACES)
    completes, grouped = modifiers.flag(COMPLETION), modifiers.flag("bulk_group")
    multicast, policy = modifiers.flag("multicast::cluster"), modifiers.flag("L2::cache_hint")
    modifiers.finish()
    loads = target != "global"
    if not target or completes != loads or grouped == loads or source != ("global" if loads else "shared::cta"):
        modifiers.refuse("unknown form")
    if len(instruction.operands) != 2 + loads + multicast + policy or (multicast and target != "shared::cluster"):
        modifiers.refuse("unknown form")
    site = c.site(instruction, "tensor copy")
    if loads:
        return _build_load(c, instruction, site, modes.rank, SPACES[target], multicast)
    return _build_store(c, instruction, site, modes.rank, "")


def _build_load(c: Emitter, instruction: Instruction, site: Site, rank: int, space: str, multicast: bool) -> list[str]:
    operands = instruction.operands
    to, offset = c.address(operands[0], instruction)
    address, coordinates = _named(c, instruction, operands[1], rank)
    bar, places = barrier_places(c, operands[2], site, space)
    mask = c.source(operands[3], "u16") if multicast else "None"
    accesses = _Accesses(site)

    def load(f: Fragment, to: Array, at: Array, corner: tuple[Array, ...], bar: Array, mask: Any) -> None:
        corners = _corners(f, corner)
        for position, (place, tensor_at, barrier, peers) in enumerate(each_lane(f, to, at, places(f, bar), mask)):
            tensor = read_map(f, position, tensor_at, rank, site)
            box = _Box(f, position, tensor, corners[position], site, stores=False)
            _check_outside(f, position, box, site)
            block, where = shared_range(
                f, position, place + offset, tensor.tile_bytes, TILE_ALIGN, site, anywhere=space == CLUSTER
            )
            blocks = [block] if peers is None else peer_blocks(f, position, peers, place, site)
            for peer in blocks:
                transfer = Transfer(f, site, int(f.lanes.lanes[position]), len(box.chunks))
                transfer.source = box.global_units(accesses)
                transfer.data, transfer.inside = box.filled(transfer.source.access), box.inside
                transfer.arrange = box.to_tile()
                transfer.destination = box.tile(f, peer, where, accesses.chunks[space])
                finish(f, transfer, position, barrier, None if peers is None else peer, tensor.box_bytes)
                transfer.issue()
            count_bulk(f, site, tensor.box_bytes, box.clipped)

    return [f"{c.bind(load)}(f, {to}, {address}, {coordinates}, {bar}, {mask})"]


def build_tensor_reduction(c: Emitter, instruction: Instruction) -> list[str]:
    """cp.reduce.async.bulk.tensor."""
    modifiers = Modifiers(instruction)
    for name in ("reduce", "async", "bulk", "tensor"):
        modifiers.flag(name)
    modes = _Modes(modifiers)
    spaces = (modifiers.one_of(*SPACES), modifiers.one_of(*SPACES)) == ("global", "shared::cta")
    operation, grouped = modifiers.one_of(*_OPERATIONS), modifiers.flag("bulk_group")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if not (spaces and operation and grouped) or len(instruction.operands) != 2 + policy:
        modifiers.refuse("unknown form")
    return _build_store(c, instruction, c.site(instruction, "tensor reduction"), modes.rank, operation)


def _build_store(c: Emitter, instruction: Instruction, site: Site, rank: int, operation: str) -> list[str]:
    address, coordinates = _named(c, instruction, instruction.operands[0], rank)
    source, offset = c.address(instruction.operands[1], instruction)
    accesses = _Accesses(site)

    def store(f: Fragment, at: Array, corner: tuple[Array, ...], source: Array) -> None:
        corners = _corners(f, corner)
        for position, (tensor_at, place) in enumerate(each_lane(f, at, source)):
            tensor = read_map(f, position, tensor_at, rank, site)
            box = _Box(f, position, tensor, corners[position], site, stores=True)
            _check_outside(f, position, box, site)
            block, where = shared_range(
                f, position, place + offset, tensor.tile_bytes, TILE_ALIGN, site, anywhere=False
            )
            if not len(box.begins):  # the whole box is outside
                count_bulk(f, site, tensor.box_bytes, box.clipped)
                continue
            transfer = Transfer(f, site, int(f.lanes.lanes[position]), len(box.chunks))
            transfer.source = box.tile(f, block, where, accesses.chunks[SHARED])
            transfer.destination = box.global_units(accesses)
            if operation:
                _reduce(f, position, transfer, box, instruction, operation, site)
            transfer.arrange = box.from_tile(transfer.destination.access)
            finish(f, transfer, position, None, None, tensor.box_bytes)
            transfer.issue()
            count_bulk(f, site, tensor.box_bytes, box.clipped)

    return [f"{c.bind(store)}(f, {address}, {coordinates}, {source})"]


def _reduce(
    f: Fragment, position: int, transfer: Transfer, box: _Box, instruction: Instruction, operation: str, site: Site
) -> None:
    """Make a store combine its elements with those in memory, as the type of the tensor map says."""
    name = box.tensor.element.name
    kind = _REDUCED.get(name, "")
    if kind and operation in _BITWISE:
        kind = f"b{8 * box.tensor.element.size}" if kind[0] in "us" else ""
    if not kind or (operation in ("inc", "dec") and kind != "u32"):
        detail = f"{site.kind}: .{operation} of elements of type {name}, which have no such operation"
        f.fail(site.instruction, "invalid tensor map", detail, position)
    reduced = reduction(instruction, site, operation, kind, GLOBAL)
    each = box.unit // reduced.size
    begins = box.begins
    if each > 1:
        begins = (begins[:, None] + np.arange(each) * reduced.size).reshape(-1)
    transfer.destination = Units(box.allocation, begins // reduced.size, reduced.access(site, GLOBAL))
    transfer.combine = reduced.combine


def build_tensor_prefetch(c: Emitter, instruction: Instruction) -> list[str]:
    """Prefetches move no data; their tensor maps are checked."""
    modifiers = Modifiers(instruction)
    for name in ("async", "bulk", "prefetch", "tensor"):
        modifiers.flag(name)
    modes = _Modes(modifiers)
    spaces = all([modifiers.flag("L2"), modifiers.flag("global")])
    policy = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if not spaces or len(instruction.operands) != 1 + policy:
        modifiers.refuse("unknown form")
    site = c.site(instruction, "tensor prefetch")
    address, coordinates = _named(c, instruction, instruction.operands[0], modes.rank)

    def prefetch(f: Fragment, at: Array, corner: tuple[Array, ...]) -> None:
        for position, (tensor_at,) in enumerate(each_lane(f, at)):
            read_map(f, position, tensor_at, modes.rank, site)

    return [f"{c.bind(prefetch)}(f, {address}, {coordinates})"]


BUILDERS = {
    "cp.async.bulk.tensor": build_tensor,
    "cp.reduce.async.bulk.tensor": build_tensor_reduction,
    "cp.async.bulk.prefetch.tensor": build_tensor_prefetch,
}
