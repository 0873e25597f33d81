"""Operands of matrix products that are turned and aligned once in memory, for both families; and the rung of the fp32
products that multiplies them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.families.gemm_tiles import LARGE
from cudakit.family import CPP, MAX_GRID_YZ, SCRATCH, Launch, Slot, ceil_div, cpp_bool, variant
from cudakit.memory import array as memory

SOURCE = "gemm/12_packed.cu"
_TILE = 32  # of its kernel


@dataclass(frozen=True)
class Packed:
    """One packed operand: its strides where it came from (of a line, of k, of a batch), its lines and batches, its
    place in the scratch memory, and the elements from k to k + 1 there. A line is a row of A or a column
    of B."""

    index: int
    of: Operand
    lines: int
    batches: int
    place: Slot
    pitch: int


@dataclass(frozen=True)
class Packing:
    """The operands as the product reads them, the packed ones among them, and the first element of the scratch memory
    after those.

    It has no alpha or beta: it is kept for problems that compare equal, and 0.0 equals -0.0."""

    a: Operand
    b: Operand
    packed: tuple[Packed, ...]
    end: int

    def applied(self, problem: GemmProblem) -> GemmProblem:
        """The problem with these operands."""
        return replace(problem, a=self.a, b=self.b)


@functools.lru_cache(maxsize=64)  # scratch, launches and the arguments of each ask for it
def packing_of(problem: GemmProblem, along_k: bool = False) -> Packing:
    """Packs each operand that does not lie in whole 16-byte pieces line by line, or (`along_k`) along k either."""
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
        place = SCRATCH.at(end * itemsize, p.dtype) if p.k else of.slot  # without k there is nothing to read
        packed.append(Packed(index, of, lines, batches, place, pitch))
        lies.append(Operand(1, pitch, pitch * p.k if of.batch else 0, 16, place))
        end += pitch * p.k * batches
    return Packing(lies[0], lies[1].turned, tuple(packed), end)


def pack_launches(packing: Packing, p: GemmProblem) -> list[Launch]:
    """One launch for each operand that is packed."""
    launches = []
    for each in packing.packed if p.k else ():
        of = each.of
        entry = f"pack<{CPP[p.dtype]}, {cpp_bool(of.col == 1)}>"
        tiles = ceil_div(each.pitch, _TILE) * ceil_div(p.k, _TILE)
        grid = (min(tiles, 2**20), 1, min(each.batches, MAX_GRID_YZ))
        args = (of.slot, each.place, of.row, of.col, of.batch, each.lines, p.k, each.pitch, each.batches)
        launches.append(Launch(grid, (_TILE, 8), args, entry=entry, source=SOURCE))
    return launches


# The rung of the fp32 products ----------------------------------------------------------------------------------------


@variant(SOURCE, since="sm_80", problems="one")
def packed(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """operands turned and aligned once in memory"""
    if problem.batch != 1:
        return f"it packs one product, not {problem.batch}"
    packing = packing_of(problem)
    # where a packed line ends inside a piece, zeros are behind it: all copies are of whole pieces
    lies = gemm_tiles.OperandLayout(False, False, 4, 4, gemm_tiles.store_width(problem))
    parts = SCRATCH.at(4 * packing.end)
    product = gemm_tiles.stream_launches(LARGE, packing.applied(problem), lies, parts, "gemm/11_stream_k.cu")
    return (*pack_launches(packing, problem), *product)
