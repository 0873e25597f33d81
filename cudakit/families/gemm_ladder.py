"""The introductory variants of the fp32 product, from one thread per output to warp tiles; and the memory-bound product
with few columns or rows."""

from __future__ import annotations

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, arguments
from cudakit.family import MAX_GRID_X, Dim, Launch, ceil_div, variant

SKINNY = 8  # the most columns or rows that "gemv" supports


def _fits(problem: GemmProblem, bm: int, bn: int) -> int | str:
    """Return the number of bm x bn tiles, one block per tile; or the reason why there are too many."""
    blocks = ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * problem.batch
    if blocks > MAX_GRID_X:
        return f"at most {MAX_GRID_X} tiles of {bm}x{bn} supported, got {blocks}"
    return blocks


def _tiles(problem: GemmProblem, entry: str, bm: int, bn: int, block: Dim) -> Launch | str:
    """Return a launch of one block per bm x bn outputs, for any strides."""
    blocks = _fits(problem, bm, bn)
    return blocks if isinstance(blocks, str) else Launch(blocks, block, entry=entry)


def _wide(problem: GemmProblem, constants: str, bm: int, bn: int, threads: int) -> Launch | str:
    """Return a launch of one block per bm x bn outputs, for a kernel that is compiled for the operands' layout."""
    lies = gemm_tiles.operand_layout(problem)
    if isinstance(lies, str):
        return lies
    return _tiles(problem, f"{constants}, {lies.constants}>", bm, bn, threads)


@variant("gemm/01_naive_uncoalesced.cu")
def naive_uncoalesced(problem: GemmProblem) -> Launch | str:
    """one thread per output, lanes down the rows: uncoalesced"""
    return _tiles(problem, "naive_uncoalesced<16>", 16, 16, (16, 16))


@variant("gemm/02_naive.cu")
def naive(problem: GemmProblem) -> Launch | str:
    """lanes along the columns: coalesced"""
    return _tiles(problem, "naive<16>", 16, 16, (16, 16))


@variant("gemm/03_tiled.cu")
def tiled16(problem: GemmProblem) -> Launch | str:
    """16x16 tiles in shared memory, each float used 16 times"""
    return _tiles(problem, "tiled<16>", 16, 16, (16, 16))


@variant("gemm/03_tiled.cu")
def tiled32(problem: GemmProblem) -> Launch | str:
    """32x32 tiles, as many threads as a block can have"""
    return _tiles(problem, "tiled<32>", 32, 32, (32, 32))


@variant("gemm/05_register_1d.cu")
def register_1d(problem: GemmProblem) -> Launch | str:
    """8 outputs of a column per thread, in registers"""
    return _tiles(problem, "register_1d<64, 64, 8, 8>", 64, 64, 512)


@variant("gemm/06_register_2d.cu")
def register_2d(problem: GemmProblem) -> Launch | str:
    """8x8 outputs per thread: 64 FFMA per 16 reads"""
    return _tiles(problem, "register_2d<128, 128, 8, 8, 8>", 128, 128, 256)


@variant("gemm/07_vec4.cu", problems="neighbours")
def vec4(problem: GemmProblem) -> Launch | str:
    """128-bit loads, shared reads and stores; A transposed in shared memory"""
    return _wide(problem, "vec4<128, 128, 8", 128, 128, 256)


@variant("gemm/08_warp_tile.cu", problems="neighbours")
def warp_tile(problem: GemmProblem) -> Launch | str:
    """64x32 outputs per warp, no bank conflicts"""
    return _wide(problem, "warp_tile<128, 128, 8, 64, 32", 128, 128, 256)


LADDER = (naive_uncoalesced, naive, tiled16, tiled32, register_1d, register_2d, vec4, warp_tile)


# Products with few columns or rows ------------------------------------------------------------------------------------


def skinny(problem: GemmProblem) -> str:
    """Return the reason why "gemv" does not support a product; "" if it does."""
    if min(problem.m, problem.n) > SKINNY:
        return f"at most {SKINNY} rows or columns of output supported, got {problem.m} and {problem.n}"
    blocks = _fits(tall(problem), 8, SKINNY)
    return blocks if isinstance(blocks, str) else ""


def prefers_gemv(problem: GemmProblem) -> bool:
    """Return whether "gemv" is the fastest. It is not if there are few, long lines: other variants split k over more
    blocks."""
    lines = max(problem.m, problem.n) * problem.batch
    return not skinny(problem) and (lines >= 8 * problem.sms or problem.k <= 4096)


def tall(problem: GemmProblem) -> GemmProblem:
    """Return `problem` if it has at least as many rows as columns, else its transpose, D^T = B^T * A^T."""
    return problem if problem.m >= problem.n else problem.turned


@variant("gemm/13_gemv.cu", problems="skinny")
def gemv(problem: GemmProblem) -> Launch | str:
    """at most 8 columns or rows: the matrix is read once"""
    refusal = skinny(problem)
    if refusal:
        return refusal
    p = tall(problem)
    small = next(size for size in (1, 2, 4, 8) if p.n <= size)
    if p.a.row == 1 and p.a.col != 1:
        warps = 16 if small == 1 else 8  # measured on an H200; 16 bytes per lane leave too few blocks
        blocks = ceil_div(p.m, 32) * p.batch
        return Launch(blocks, 32 * warps, arguments(p), entry=f"gemv_columns<{small}, {warps}, 1>")
    vec = 4 if p.a.pieces(p.a.col, p.a.row, p.k, p.batch, 4) else 1
    rows = 1 if small == 1 or p.m * p.batch < 16 * p.sms else 8 if small == 4 and p.k >= 2048 else 4
    blocks = ceil_div(p.m, 8 * rows) * p.batch
    return Launch(blocks, 256, arguments(p), entry=f"gemv_rows<{small}, {rows}, {vec}>")
