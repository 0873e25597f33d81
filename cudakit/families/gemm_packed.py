"""Operand packing for both GEMM families: the operands are transposed and aligned once in scratch memory. Also the fp32
variant that multiplies packed operands."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, Operand
from cudakit.families.gemm_tiles import LARGE
from cudakit.family import CPP, IN, MAX_GRID_YZ, OUT, SCRATCH, Launch, Slot, alignment, ceil_div, cpp_bool, variant
from cudakit.family.kernels import kernel_of
from cudakit.memory import array as memory
from cudakit.memory import makers
from cudakit.memory.array import DeviceArray
from cudakit.memory.scratch import scratch

SOURCE = "gemm/12_packed.cu"
_TILE, _ROWS = 64, 4  # the tile of its kernel, and the rows of threads of a block


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
    return [_pack(each, each.of.slot, each.place, p.k, p.dtype) for each in packing.packed if p.k]


def _pack(each: Packed, source: Any, target: Any, k: int, dtype: str) -> Launch:
    """Return the launch that copies an operand. source, target: arrays or their slots."""
    of = each.of
    tiles = ceil_div(each.pitch, _TILE) * ceil_div(k, _TILE)
    grid = (min(tiles, 2**20), 1, min(each.batches, MAX_GRID_YZ))
    args = (source, target, of.row, of.col, of.batch, each.lines, k, each.pitch, each.batches)
    entry = f"pack<{CPP[dtype]}, {cpp_bool(of.col == 1)}>"
    return Launch(grid, (_TILE, _ROWS), args, entry=entry, source=SOURCE)


def packed_rows(device: Device, a: DeviceArray, stream: Stream) -> DeviceArray:
    """Queue a copy of A, 2-D, in the layout that products read fastest; they do not pack it again.

    Returns:
        The copy, of A's shape, in scratch memory that the next copy on the stream overwrites; A itself if it has that
        layout.
    """
    (m, k), width = a.shape, 16 // a.itemsize
    row, col = a.strides_elements
    of = Operand(row, col, 0, alignment(a), IN[0])
    if of.pieces(row, col, m, 1, a.itemsize):
        return a
    pitch = ceil_div(m, width) * width
    address = scratch(stream, pitch * k * a.itemsize, "packed")
    made = makers.over(device.context, stream, address, (k, pitch), a.dtype)
    launch = _pack(Packed(0, of, m, 1, OUT, pitch), a, made, k, a.dtype.name)
    kernel_of(device, packed, launch).launch(stream, **launch.keywords(launch.args or ()))
    a.allocation.uses.add(stream)
    return made.T[:m]


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
