"""Operand packing for both GEMM families: the operands are transposed and aligned once in scratch memory. Also the fp32
variant that multiplies packed operands."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.families.gemm_tiles import LARGE
from cudakit.family import CPP, MAX_GRID_YZ, SCRATCH, Launch, Slot, ceil_div, cpp_bool, variant
from cudakit.memory import array as memory

SOURCE = "gemm/12_packed.cu"
_TILE, _ROWS = 32, 4  # the tile of its kernel, and the rows of threads of a block


@dataclass(frozen=True)
class Packed:
    """One packed operand: the operand it is copied from (strides of a line, of k and of a batch), its lines and
    batches, its address in the scratch memory, and its pitch there, the elements between k and k + 1. Lines are rows of
    A or columns of B."""

    index: int
    of: Operand
    lines: int
    batches: int
    place: Slot
    pitch: int


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
def packing_of(problem: GemmProblem, along_k: bool = False) -> Packing:
    """Return how the operands are packed. An operand is packed unless the kernel can read it in aligned 16-byte pieces:
    across its lines or, with `along_k`, along k."""
    p, end, packed = problem, 0, []
    itemsize = memory.as_dtype(p.dtype).itemsize
    width = 16 // itemsize
    lies = []
    for index, (of, lines) in enumerate(((p.a, p.m), (p.b.turned, p.n))):
        fits = of.pieces(of.row, of.col, lines, p.batch, itemsize)
        if fits or (along_k and of.pieces(of.col, of.row, p.k, p.batch, itemsize)):
            lies.append(of)
            continue
        pitch = ceil_div(lines, width) * width
        batches = p.batch if of.batch else 1
        place = SCRATCH.at(end * itemsize, p.dtype) if p.k else of.slot  # nothing is read if k is 0
        packed.append(Packed(index, of, lines, batches, place, pitch))
        lies.append(Operand(1, pitch, pitch * p.k if of.batch else 0, 16, place))
        end += pitch * p.k * batches
    return Packing(lies[0], lies[1].turned, tuple(packed), end)


def pack_launches(packing: Packing, p: GemmProblem) -> list[Launch]:
    """Return one launch per packed operand."""
    launches = []
    for each in packing.packed if p.k else ():
        of = each.of
        entry = f"pack<{CPP[p.dtype]}, {cpp_bool(of.col == 1)}>"
        tiles = ceil_div(each.pitch, _TILE) * ceil_div(p.k, _TILE)
        grid = (min(tiles, 2**20), 1, min(each.batches, MAX_GRID_YZ))
        args = (of.slot, each.place, of.row, of.col, of.batch, each.lines, p.k, each.pitch, each.batches)
        launches.append(Launch(grid, (_TILE, _ROWS), args, entry=entry, source=SOURCE))
    return launches


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
