"""Operand packing for both GEMM families: the operands are aligned once in scratch memory, transposed if the product
needs it. Also the fp32 variant that multiplies packed operands."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.families.gemm_tiles import LARGE
from cudakit.family import CPP, SCRATCH, Launch, Slot, ceil_div, variant
from cudakit.memory import array as memory

SOURCE = "gemm/12_packed.cu"
_THREADS, _DEEP = 256, 4  # of its kernel: threads per block, rows per thread
_TILE_ROWS, _TILE_COLS = 64, 32  # of its kernel, if it transposes
_MOST_BLOCKS = 2**20  # per operand; each block copies at least 16 KB of a large one


@dataclass(frozen=True)
class Packed:
    """One packed operand: the operand it is copied from (strides of a line, of k and of a batch), its lines and
    batches, and its address in the scratch memory. Lines are rows of A or columns of B. along_k: whether it is
    contiguous along k there, otherwise across its lines. pitch: elements between its contiguous rows."""

    index: int
    of: Operand
    lines: int
    batches: int
    place: Slot
    along_k: bool
    pitch: int

    def copied(self, k: int) -> _Copied:
        """Return the work of the kernel for this operand."""
        of, itemsize = self.of, memory.as_dtype(self.place.elements).itemsize
        rows, cols, row, col = (self.lines, k, of.row, of.col) if self.along_k else (k, self.lines, of.col, of.row)
        if col != 1 and abs(row) < abs(col):
            parts = ceil_div(rows, _TILE_ROWS) * ceil_div(self.pitch, _TILE_COLS)
            how, lanes = "kColumns", 1
        else:
            pieces = self.pitch * itemsize // 16
            lanes = min(32, 1 << (pieces - 1).bit_length())
            parts = ceil_div(rows, _THREADS // lanes * _DEEP) * ceil_div(pieces, lanes)
            how = "kRows" if col == 1 else "kElements"
        blocks = min(parts * self.batches, _MOST_BLOCKS)
        args = (of.slot, self.place, row, col, of.batch, rows, cols, self.pitch, self.batches, lanes)
        return _Copied(how, blocks, args)


@dataclass(frozen=True)
class _Copied:
    """How the kernel reads an operand, its blocks and its arguments."""

    how: str
    blocks: int
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Packing:
    """The operands as the product reads them, the packed operands, and `end`, the index of the first element of the
    scratch memory after the packed operands.

    alpha and beta are left out, because results are cached for problems that compare equal, and 0.0 equals -0.0."""

    a: Operand
    b: Operand
    packed: tuple[Packed, ...]
    end: int

    def applied(self, problem: GemmProblem) -> GemmProblem:
        """Return the problem with these operands."""
        return replace(problem, a=self.a, b=self.b)


@functools.lru_cache(maxsize=64)  # called for the scratch size, for the launches and for each launch's arguments
def packing_of(problem: GemmProblem, along_k: bool = False, keep: bool = False) -> Packing:
    """Return how the operands are packed. An operand is packed unless the kernel can read it in aligned 16-byte pieces:
    across its lines or, with `along_k`, along k. A packed operand is contiguous across its lines; with `keep`, along
    the axis of its smaller stride, which is not transposed."""
    p, end, packed = problem, 0, []
    itemsize = memory.as_dtype(p.dtype).itemsize
    width = 16 // itemsize
    lies = []
    for index, (of, lines) in enumerate(((p.a, p.m), (p.b.turned, p.n))):
        fits = of.pieces(of.row, of.col, lines, p.batch, itemsize)
        if fits or (along_k and of.pieces(of.col, of.row, p.k, p.batch, itemsize)):
            lies.append(of)
            continue
        batches = p.batch if of.batch else 1
        # nothing is read if k is 0
        place = SCRATCH.at(end * itemsize, p.dtype) if p.k else of.slot
        kept = keep and (of.col == 1 or (of.row != 1 and abs(of.col) < abs(of.row)))
        rows, cols = (lines, p.k) if kept else (p.k, lines)
        pitch = ceil_div(cols, width) * width
        packed.append(Packed(index, of, lines, batches, place, kept, pitch))
        batch = pitch * rows if of.batch else 0
        lies.append(Operand(pitch, 1, batch, 16, place) if kept else Operand(1, pitch, batch, 16, place))
        end += pitch * rows * batches
    return Packing(lies[0], lies[1].turned, tuple(packed), end)


def pack_launches(packing: Packing, p: GemmProblem) -> list[Launch]:
    """Return the launch that packs the operands, or none if there is nothing to pack."""
    if not packing.packed or not p.k:
        return []
    first, *rest = (each.copied(p.k) for each in packing.packed)
    second = rest[0] if rest else replace(first, how="kNone", blocks=0)
    return [
        Launch(
            first.blocks + second.blocks,
            _THREADS,
            (*first.args, *second.args, first.blocks),
            entry=f"pack<{CPP[p.dtype]}, {first.how}, {second.how}>",
            source=SOURCE,
        )
    ]


# The variant of the fp32 products -------------------------------------------------------------------------------------


@variant(SOURCE, since="sm_80", problems="one")
def packed(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """operands transposed and aligned once in memory"""
    if problem.batch != 1:
        return f"one product supported, got a batch of {problem.batch}"
    packing = packing_of(problem)
    # the last piece of a packed line is padded with zeros, so that all copies are whole pieces
    lies = gemm_tiles.OperandLayout(False, False, 4, 4, gemm_tiles.store_width(problem))
    parts = SCRATCH.at(4 * packing.end)
    product = gemm_tiles.stream_launches(LARGE, packing.applied(problem), lies, parts, "gemm/11_stream_k.cu")
    return (*pack_launches(packing, problem), *product)
