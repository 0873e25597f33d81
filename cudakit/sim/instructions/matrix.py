"""Builders for moves of matrices between memory and the registers of a warp: ldmatrix, stmatrix, movmatrix,
wmma.load and wmma.store (PTX ISA, "Warp-level Matrix Instructions").

ldmatrix and stmatrix move 8 x 8 matrices of 16-bit elements. Lanes 8i to 8i + 7 pass the addresses of matrix i's rows,
which have 16 bytes. wmma moves a whole fragment: each lane moves its own elements, as words if a register's elements
are adjacent in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.tensor import (
    WMMA_SHAPES,
    elements,
    family,
    meet,
    named,
    register_kind,
    shape_of,
    wmma_tile,
)
from cudakit.sim.instructions.tiles import ELEMENT_BITS, FragmentLayout
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, Choice, LaneSet
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_WINDOW
from cudakit.sim.lockstep.pieces import GENERIC, GLOBAL, SHARED, Piece
from cudakit.sim.ptx.ir import Instruction, Operand, PtxError, refused
from cudakit.sim.ptx.modifiers import Modifiers

_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",), "s8": ("s32",)}
_SUMS |= {"s4": ("s32",), "b1": ("s32",)}
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


# ---- 8 x 8 matrices of 16-bit elements ----


class _GenericRows(MemoryAccess):
    """Rows in shared memory with generic addresses."""

    __slots__ = ()

    def locate(self, f: Fragment, lanes: LaneSet, address: Array) -> list[Piece]:
        start = np.broadcast_to(address, (lanes.count,)) + np.uint64(self.offset % (1 << 64))
        wrong = np.flatnonzero((start < np.uint64(SHARED_WINDOW)) | (start >= np.uint64(LOCAL_WINDOW)))
        if len(wrong):
            f.fail(
                self.site.instruction,
                "out of bounds",
                f"{self.site.kind} of a row of 16 bytes at the generic address {start[wrong[0]]:#x}, which is not in "
                "shared memory: copy the matrix to shared memory first",
                int(wrong[0]),
                wrong,
                address=int(start[wrong[0]]),
                size=16,
                space=SHARED,
                access=self.site.kind,
            )
        return self.shared_pieces(f, lanes, address, SHARED_WINDOW)


def _small(c: Emitter, instruction: Instruction, verb: str) -> tuple[int, bool, Callable[[Operand | None], Any]]:
    """The number of matrices, whether they are transposed, and a function from the address operand to its expression
    and access."""
    modifiers = Modifiers(instruction)
    if not (modifiers.flag("sync") and modifiers.flag("aligned")):
        modifiers.refuse(f"{instruction.opcode} is .sync.aligned")
    if not modifiers.flag("m8n8") or not modifiers.flag("b16"):
        modifiers.refuse("only .m8n8 with .b16 is supported; .m16n16 and .m8n16 with 8-bit elements need sm_100")
    count = _COUNTS.get(modifiers.one_of(*_COUNTS), 0)
    transposed = modifiers.flag("trans")
    space = modifiers.one_of("shared", "shared::cta")
    modifiers.finish()
    if not count:
        modifiers.refuse("no .x1, .x2 or .x4")

    def place(operand: Operand | None) -> tuple[str, MemoryAccess]:
        address, offset = c.address(operand, instruction)
        kind = MemoryAccess if space else _GenericRows
        return address, kind(c.site(instruction, f"shared {verb}"), SHARED, offset, 4, 4)

    return count, transposed, place


def _givers(lanes: LaneSet, count: int) -> tuple[Choice, LaneSet]:
    """The lanes whose addresses are used."""
    key = ("matrix rows", count)
    found: tuple[Choice, LaneSet] | None = lanes.cache.get(key)
    if found is None:
        found = lanes.cache[key] = lanes.subset(lanes.laneid < 8 * count)
    return found


def build_ldmatrix(c: Emitter, instruction: Instruction) -> list[str]:
    count, transposed, place = _small(c, instruction, "load")
    target, source = instruction.operands
    registers = elements(target)
    if len(registers) != count:
        raise PtxError(f"{instruction.name} loads {count} registers, not {len(registers)}")
    address, access = place(source)

    def load(f: Fragment, address: Array) -> tuple[Array, ...]:
        lanes = f.lanes
        meet(f, access.site)
        choice, givers = _givers(lanes, count)
        part = f if givers is lanes else f.borrow(choice, givers, ())
        rows = access.load(part, address if address.ndim == 0 else address[choice])
        words = np.zeros((lanes.warp_count, 32, 4), np.uint32)
        if givers.complete or givers.count == 8 * count * lanes.warp_count:
            words[:, : 8 * count] = rows if rows.ndim == 1 else rows.reshape(-1, 8 * count, 4)
        else:
            words.reshape(-1, 4)[lanes.slots[choice]] = rows
        found = words.reshape(-1, 4, 8, 4)[:, :count]
        if transposed:
            halves = np.ascontiguousarray(found).view(np.uint16).swapaxes(2, 3)
            found = np.ascontiguousarray(halves).view(np.uint32)
        return tuple(lanes.unpad(np.ascontiguousarray(found[:, k])) for k in range(count))

    return c.store_all(registers, ["b32"] * count, f"{c.bind(load)}(f, {address})")


def build_stmatrix(c: Emitter, instruction: Instruction) -> list[str]:
    count, transposed, place = _small(c, instruction, "store")
    target, source = instruction.operands
    registers = elements(source)
    if len(registers) != count:
        raise PtxError(f"{instruction.name} stores {count} registers, not {len(registers)}")
    address, access = place(target)

    def store(f: Fragment, address: Array, values: tuple[Array, ...]) -> None:
        lanes = f.lanes
        meet(f, access.site)
        choice, givers = _givers(lanes, count)
        words = np.empty((lanes.warp_count, count, 8, 4), np.uint32)
        for number, value in enumerate(values):
            words[:, number] = value if value.ndim == 0 else lanes.pad(value).reshape(-1, 8, 4)
        if transposed:
            words = np.ascontiguousarray(words.view(np.uint16).swapaxes(2, 3)).view(np.uint32)
        rows = words.reshape(-1, 4)
        if givers.count != len(rows):
            rows = rows[(lanes.warp_rank * 8 * count + lanes.laneid)[choice]]
        part = f if givers is lanes else f.borrow(choice, givers, ())
        access.store_rows(part, address if address.ndim == 0 else address[choice], rows)

    texts = ", ".join(c.source(r, "b32") for r in registers)
    return [f"{c.bind(store)}(f, {address}, ({texts},))"]


def build_movmatrix(c: Emitter, instruction: Instruction) -> list[str]:
    if instruction.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise refused(instruction, "only movmatrix.sync.aligned.m8n8.trans.b16 is supported")

    site = c.site(instruction, "matrix transposition")

    def move(f: Fragment, value: Array) -> Array:
        meet(f, site)
        if value.ndim == 0:
            value = np.full(f.lanes.count, value)
        table = np.ascontiguousarray(f.lanes.pad(value)).view(np.uint16).reshape(-1, 8, 8)
        return f.lanes.unpad(np.ascontiguousarray(table.swapaxes(1, 2)).view(np.uint32))

    target, source = instruction.operands
    return c.store(target, "b32", f"{c.bind(move)}(f, {c.source(source, 'b32')})")


# ---- fragments of wmma ----


class _Fragment:
    """The layout of a fragment in memory: ``pieces`` are (register, element, or None for the whole register);
    ``access`` holds an access for each piece."""

    def __init__(self, c: Emitter, instruction: Instruction, verb: str) -> None:
        modifiers = Modifiers(instruction)
        modifiers.flag(verb)
        self.role = modifiers.one_of(*("abc" if verb == "load" else "d"))
        if not self.role or not (modifiers.flag("sync") and modifiers.flag("aligned")):
            modifiers.refuse(f"wmma.{verb} needs a matrix and .sync.aligned")
        layout = modifiers.one_of("row", "col")
        shape = shape_of(modifiers.rest)
        self.kind = modifiers.kind(*ELEMENT_BITS)
        space = modifiers.one_of("global", "shared", "shared::cta")
        modifiers.finish()
        if self.role in "ab":
            shapes = WMMA_SHAPES.get(family(self.kind), ())
        else:
            shapes = tuple(s for a, sums in _SUMS.items() if self.kind in sums for s in WMMA_SHAPES[a])
        if not layout or shape is None or shape not in shapes:
            modifiers.refuse(f"the shapes for .{self.kind} are {named(shapes)}")
        by_rows = layout == "row"
        if ELEMENT_BITS[self.kind] < 8 and self.role in "ab" and by_rows != (self.role == "a"):
            modifiers.refuse("with elements of less than 8 bits, A must be .row and B .col")
        self.tile: FragmentLayout = wmma_tile(self.role, self.kind, shape)
        lines, along = (self.tile.rows, self.tile.columns) if by_rows else (self.tile.columns, self.tile.rows)
        self.stride = self.tile.shape[1 if by_rows else 0]
        # registers past these are copies
        self.distinct = self.tile.shape[0] * self.tile.shape[1] * self.tile.bits // (32 * max(self.tile.bits, 32))
        whole = bool((np.diff(along, axis=2) == 1).all() and (np.diff(lines, axis=2) == 0).all())
        count = 1 if whole else self.tile.elements
        self.pieces = [(register, element) for register in range(self.distinct) for element in range(count)]
        self.bits = self.tile.word.itemsize * 8 if whole else self.tile.bits
        self.lines = [lines[register, :, element] for register, element in self.pieces]
        self.along = [along[register, :, element] for register, element in self.pieces]
        name = {"global": GLOBAL, "": GENERIC}.get(space, SHARED)
        address, offset = c.address(instruction.operands[1 if verb == "load" else 0], instruction)
        self.access = MemoryAccess(c.site(instruction, f"{name} {verb}"), name, offset, self.bits // 8, 1)
        stride = c.source(instruction.operands[2], "u32") if len(instruction.operands) > 2 else "None"
        self.text = f"f, {address}, {stride}"

    def addresses(self, lanes: LaneSet, address: Array, stride: Array | None) -> list[Array]:
        """The address of each piece, for each lane."""
        step: Any = self.stride if stride is None else stride.astype(np.int64)
        base = address.astype(np.uint64)
        found = []
        for line, along in zip(self.lines, self.along, strict=True):
            # elements of less than 8 bits start at a word
            place = (line.take(lanes.laneid) * step + along.take(lanes.laneid)) * self.tile.bits >> 3
            found.append(base + place.view(np.uint64))
        return found


def build_wmma_load(c: Emitter, instruction: Instruction) -> list[str]:
    fragment = _Fragment(c, instruction, "load")
    tile = fragment.tile
    registers = elements(instruction.operands[0])
    if len(registers) != tile.registers:
        raise PtxError(f"expected a fragment of {tile.registers} registers, got {len(registers)}")

    def load(f: Fragment, address: Array, stride: Array | None) -> tuple[Array, ...]:
        meet(f, fragment.access.site)
        words: list[Array] = [np.zeros(f.lanes.count, tile.word)] * fragment.distinct
        places = fragment.addresses(f.lanes, address, stride)
        for (register, element), place in zip(fragment.pieces, places, strict=True):
            value = np.broadcast_to(fragment.access.load(f, place), (f.lanes.count,)).astype(tile.word)
            words[register] = words[register] | value << tile.word.type(element * tile.bits)
        # further registers are copies
        return tuple(words[number % fragment.distinct] for number in range(tile.registers))

    kind = register_kind(fragment.kind)
    return c.store_all(registers, [kind] * len(registers), f"{c.bind(load)}({fragment.text})")


def build_wmma_store(c: Emitter, instruction: Instruction) -> list[str]:
    fragment = _Fragment(c, instruction, "store")
    tile = fragment.tile
    registers = elements(instruction.operands[1])
    if len(registers) != tile.registers:
        raise PtxError(f"expected a fragment of {tile.registers} registers, got {len(registers)}")

    def store(f: Fragment, address: Array, stride: Array | None, values: tuple[Array, ...]) -> None:
        meet(f, fragment.access.site)
        places = fragment.addresses(f.lanes, address, stride)
        for (register, element), place in zip(fragment.pieces, places, strict=True):
            value = values[register] >> tile.word.type(element * tile.bits)
            fragment.access.store(f, place, value.astype(fragment.access.dtype))

    texts = ", ".join(c.source(r, register_kind(fragment.kind)) for r in registers)
    return [f"{c.bind(store)}({fragment.text}, ({texts},))"]


BUILDERS = {"ldmatrix": build_ldmatrix, "stmatrix": build_stmatrix, "movmatrix": build_movmatrix}
BUILDERS |= {"wmma.load": build_wmma_load, "wmma.store": build_wmma_store}
