"""Layouts of 16-bit products on Hopper (sm_90a): those that the kernels with tensor copies support, and the tensor maps
of their arrays."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.family import TensorMapSlot, ceil_div
from cudakit.memory import array as memory

ITEM = 2  # bytes per element of A and B
DEPTH = 64  # k per stage of the ring
_SUPER = 8  # rows of a super row: whole 16-byte pieces at any length of the rows
_RAW_ROW = (DEPTH + _SUPER) * ITEM  # bytes of a row in raw memory
_MOST_EXTENT = 2**31 - 256  # the end of the last tile is an int
_MOST_GATHERED = _MOST_EXTENT // _SUPER  # elements of a gathered operand's row: so is the end of a super row


# Layout of the operands -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """How the kernels load A, or B transposed, whose rows are along its contiguous axis: whether this is along k;
    whether tensor copies load the rows (otherwise it is gathered: its rows adjoin, and they load super rows of 8 rows,
    which a warpgroup shifts), and whether the rows are then whole lines of 128 bytes in L2."""

    along_k: bool
    tensor: bool
    whole: bool

    def bytes(self, lines: int) -> int:
        """Bytes of a tile of `lines` lines in shared memory."""
        return (lines if self.along_k else ceil_div(lines, 64) * 64) * DEPTH * ITEM

    def raw(self, lines: int) -> int:
        """Bytes of a tile's rows in raw memory, from which they are shifted."""
        if self.tensor:
            return 0
        height, boxes = self.super_box(lines)
        return _SUPER * boxes * ceil_div(height * _RAW_ROW, 128) * 128

    def super_box(self, lines: int) -> tuple[int, int]:
        """Return the super rows of a copied box, and the boxes that have row c of each super row of a tile, for c of 0
        to 7."""
        return (lines // _SUPER, 1) if self.along_k else (DEPTH // _SUPER, ceil_div(lines, 64))


def side_of(of: Operand, lines: int, depth: int, batches: int) -> Side | str:
    """Return how the kernels load an operand, whose rows are its lines, or the reason why they cannot. If both axes are
    contiguous, because one has a single element, the axis is chosen whose rows tensor copies load."""
    width = 16 // ITEM
    sides, reasons = [], []
    for along_k, stride, step, extent, rows in (
        (True, of.col, of.row, depth, lines),
        (False, of.row, of.col, lines, depth),
    ):
        if stride != 1 and extent != 1:
            continue
        tensor = of.alignment == 16 and (rows == 1 or (step % width == 0 and step >= extent))
        if tensor or (of.alignment == 16 and step == extent <= _MOST_GATHERED):
            sides.append(Side(along_k, tensor, tensor and step * ITEM % 128 == 0))
        else:
            apart = "" if rows == 1 else f", {step} apart"
            reasons.append(
                f"{{}} begins at a multiple of {of.alignment} bytes and has rows of {extent} elements{apart}: needs a "
                f"multiple of 16 bytes, and rows that adjoin (of at most {_MOST_GATHERED} elements) or are a multiple "
                f"of {width} elements apart, without overlap"
            )
    if not sides:
        return reasons[0] if reasons else "neither axis of {} is contiguous"
    if batches > 1 and (of.batch % width or of.batch < 0):
        return f"the batches of {{}} are {of.batch} elements apart: needs 0 or a positive multiple of {width}"
    return next((side for side in sides if side.tensor), sides[0])


@dataclass(frozen=True)
class Layout:
    """The layout of a problem's arrays. by_columns: the output is contiguous along its columns. tensor: whether tensor
    copies store it; whole: whether its rows are also whole sectors of L2 (32 bytes)."""

    a: Side
    b: Side
    by_columns: bool
    tensor: bool
    whole: bool

    @property
    def gathers(self) -> bool:
        """Whether an operand is gathered."""
        return not (self.a.tensor and self.b.tensor)


@functools.lru_cache(maxsize=256)
def layout_of(p: GemmProblem) -> Layout | str:
    """Return the layout of a problem, or the reason why it is unsupported."""
    if not p.k:
        return "k is 0"
    if max(p.m, p.n, p.k) > _MOST_EXTENT:
        return f"extents up to {_MOST_EXTENT} supported"
    a, b = side_of(p.a, p.m, p.k, p.batch), side_of(p.b.turned, p.n, p.k, p.batch)
    for name, side in (("A", a), ("B", b)):
        if isinstance(side, str):
            return f'{side.format(name)}; pass variant="auto", which packs such operands'
    assert isinstance(a, Side)
    assert isinstance(b, Side)
    by_columns = p.d.row == 1 and p.d.col != 1
    item = memory.as_dtype(p.result).itemsize
    along, step, extent = (p.d.row, p.d.col, p.m) if by_columns else (p.d.col, p.d.row, p.n)
    tensor = p.d.pieces(along, step, extent, p.batch, item) and step >= extent and (p.batch == 1 or p.d.batch > 0)
    return Layout(a, b, by_columns, tensor, tensor and step * item % 32 == 0)


def _map(
    of: Operand, side: Side, lines: int, depth: int, batches: int, box: int, shares: int = 1
) -> TensorMapSlot | None:
    """Return the tensor map of an operand whose rows are its lines, for tiles of `box` lines, of which a copy loads one
    of `shares` parts; None if the operand is gathered."""
    if not side.tensor:
        return None
    step, (rows, cols) = (of.row, (lines, depth)) if side.along_k else (of.col, (depth, lines))
    return TensorMapSlot(
        of.slot,
        box=(1, (box if side.along_k else DEPTH) // shares, DEPTH),
        dims=(batches if of.batch else 1, rows, cols),
        strides=(of.batch * ITEM, step * ITEM, ITEM),
        swizzle="128B",
        l2_promotion="128B",
    )


def operand_maps(p: GemmProblem, layout: Layout, bm: int, bn: int, shares: int = 1) -> list[TensorMapSlot | None]:
    """Return the tensor maps of A and B for tiles of bm x bn, None for an operand that is gathered. shares: blocks that
    load B for each other."""
    return [
        _map(p.a, layout.a, p.m, p.k, p.batch, bm),
        _map(p.b.turned, layout.b, p.n, p.k, p.batch, bn, shares),
    ]


def _super_map(of: Operand, side: Side, lines: int, depth: int, batches: int, box: int, partial: bool) -> TensorMapSlot:
    """Return the tensor map of the super rows of a gathered operand whose rows are its lines, for tiles of `box` lines:
    of those of 8 rows, or with `partial` also of the last one, as far as its rows go. If there are none, it is the
    other map."""
    rows, extent = (lines, depth) if side.along_k else (depth, lines)
    supers, last = divmod(rows, _SUPER)
    supers, last = (supers + 1, last) if last and (partial or not supers) else (supers, _SUPER)
    return TensorMapSlot(
        of.slot,
        box=(1, side.super_box(box)[0], _RAW_ROW // ITEM),
        dims=(batches if of.batch else 1, supers, last * extent),
        strides=(of.batch * ITEM, _SUPER * extent * ITEM, ITEM),
        l2_promotion="128B",
    )


def any_operand_maps(p: GemmProblem, layout: Layout, bm: int, bn: int) -> list[TensorMapSlot | None]:
    """Return the tensor maps of A and B for tiles of bm x bn, then their second ones, which only gathered operands
    have."""
    first, second = operand_maps(p, layout, bm, bn), []
    for index, (of, side, lines, box) in enumerate(
        ((p.a, layout.a, p.m, bm), (p.b.turned, layout.b, p.n, bn)),
    ):
        supers = [
            None if side.tensor else _super_map(of, side, lines, p.k, p.batch, box, each) for each in (False, True)
        ]
        first[index] = first[index] or supers[0]
        second.append(supers[1])
    return first + second


def output_map(p: GemmProblem, layout: Layout, bn: int) -> TensorMapSlot:
    """Return the tensor map of the output for tiles of bn columns; its boxes are those of Store in
    warpgroup_store.cuh."""
    item = memory.as_dtype(p.result).itemsize
    cols = next(width for width in ((64, 32, 16, 8) if item == 2 else (32, 16, 8)) if bn % width == 0)
    d = p.d
    step, rows, along = (d.col, p.n, p.m) if layout.by_columns else (d.row, p.m, p.n)
    box = (1, cols, 128 // item) if layout.by_columns else (1, 64, cols)
    strides = (d.batch * item, step * item, item)
    return TensorMapSlot(p.d.slot, box, (p.batch, rows, along), strides, swizzle=f"{box[-1] * item}B")


def filled(maps: list[TensorMapSlot | None]) -> list[TensorMapSlot | bytes]:
    """Return the maps; zeros, which the kernel does not read, replace a missing one."""
    return [bytes(128) if each is None else each for each in maps]
