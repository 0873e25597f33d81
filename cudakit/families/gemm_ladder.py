"""The rungs of the fp32 product that teach: from one thread an output to tiles of a warp. And the product with few
columns or rows, which is a matter of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, arguments
from cudakit.families.variant import MAX_GRID_X, Config, Dim, Variant, ceil_div

SKINNY = 8  # columns or rows that "gemv" takes at most


def _blocks(problem: GemmProblem, bm: int, bn: int) -> int:
    return ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * problem.batch


def _fits(bm: int, bn: int, wide: bool = False) -> Callable[[GemmProblem], bool | str]:
    """`supports` of a rung with tiles of bm x bn; `wide`: made for how the operands lie."""

    def supports(problem: GemmProblem) -> bool | str:
        if _blocks(problem, bm, bn) > MAX_GRID_X:
            return f"it takes {_blocks(problem, bm, bn)} tiles of {bm}x{bn}, a grid has at most {MAX_GRID_X} blocks"
        return gemm_tiles.has_layout(problem) if wide else True

    return supports


def _tiles(entry: str, bm: int, bn: int, block: Dim) -> Callable[[GemmProblem], Config]:
    """A block for each bm x bn outputs, whatever the strides."""
    return lambda problem: Config(entry, _blocks(problem, bm, bn), block)


def _wide(constants: str, bm: int, bn: int, threads: int) -> Callable[[GemmProblem], Config]:
    """The same for a kernel that is made for how the operands lie."""

    def configure(problem: GemmProblem) -> Config:
        entry = f"{constants}, {gemm_tiles.expected_layout(problem).constants}>"
        return Config(entry, _blocks(problem, bm, bn), threads)

    return configure


LADDER: tuple[Variant[GemmProblem], ...] = (
    Variant(
        1,
        "naive_uncoalesced",
        "one thread an output, lanes down the rows",
        "gemm/01_naive_uncoalesced.cu",
        _tiles("naive_uncoalesced<16>", 16, 16, (16, 16)),
        _fits(16, 16),
    ),
    Variant(
        2,
        "naive",
        "lanes along the columns: coalesced",
        "gemm/02_naive.cu",
        _tiles("naive<16>", 16, 16, (16, 16)),
        _fits(16, 16),
    ),
    Variant(
        3,
        "tiled16",
        "16x16 tiles in shared memory, each float used 16 times",
        "gemm/03_tiled.cu",
        _tiles("tiled<16>", 16, 16, (16, 16)),
        _fits(16, 16),
    ),
    Variant(
        4,
        "tiled32",
        "32x32 tiles, as many threads as a block can have",
        "gemm/03_tiled.cu",
        _tiles("tiled<32>", 32, 32, (32, 32)),
        _fits(32, 32),
    ),
    Variant(
        5,
        "register_1d",
        "8 outputs of a column a thread, in registers",
        "gemm/05_register_1d.cu",
        _tiles("register_1d<64, 64, 8, 8>", 64, 64, 512),
        _fits(64, 64),
    ),
    Variant(
        6,
        "register_2d",
        "8x8 outputs a thread: 64 FFMA for 16 reads",
        "gemm/06_register_2d.cu",
        _tiles("register_2d<128, 128, 8, 8, 8>", 128, 128, 256),
        _fits(128, 128),
    ),
    Variant(
        7,
        "vec4",
        "128-bit loads, shared reads and stores; A turned in shared memory",
        "gemm/07_vec4.cu",
        _wide("vec4<128, 128, 8", 128, 128, 256),
        _fits(128, 128, wide=True),
        problems="neighbours",
    ),
    Variant(
        8,
        "warp_tile",
        "64x32 outputs a warp, no bank conflicts",
        "gemm/08_warp_tile.cu",
        _wide("warp_tile<128, 128, 8, 64, 32", 128, 128, 256),
        _fits(128, 128, wide=True),
        problems="neighbours",
    ),
)


# A matrix and few columns ---------------------------------------------------------------------------------------------


def is_skinny(problem: GemmProblem) -> bool | str:
    """Whether "gemv" takes a product, or why not."""
    if min(problem.m, problem.n) > SKINNY:
        return f"it takes at most {SKINNY} rows or columns of output, this one has {problem.m} and {problem.n}"
    return _fits(8, SKINNY)(tall(problem))


def prefers_gemv(problem: GemmProblem) -> bool:
    """Whether "gemv" is the fastest: not where few lines are so long that other rungs have more blocks to split k."""
    lines = max(problem.m, problem.n) * problem.batch
    return is_skinny(problem) is True and (lines >= 8 * problem.sms or problem.k <= 4096)


def tall(problem: GemmProblem) -> GemmProblem:
    """`problem` with at least as many rows as columns: itself, or D^T = B^T * A^T."""
    return problem if problem.m >= problem.n else problem.turned


def _gemv_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    a, b, *rest = inputs
    operands = (a, b) if problem.m >= problem.n else (b, a)
    return arguments(tall(problem), (*operands, *rest), output, scratch)


def _gemv(problem: GemmProblem) -> Config:
    p = tall(problem)
    small = next(size for size in (1, 2, 4, 8) if p.n <= size)
    if p.a.row == 1 and p.a.col != 1:
        warps = 16 if small == 1 else 8  # measured on an H200; 16 bytes a lane leave too few blocks
        blocks = ceil_div(p.m, 32) * p.batch
        return Config(f"gemv_columns<{small}, {warps}, 1>", blocks, 32 * warps, arguments=_gemv_arguments)
    vec = 4 if p.a.pieces(p.a.col, p.a.row, p.k, p.batch, 4) else 1
    rows = 1 if small == 1 or p.m * p.batch < 16 * p.sms else 8 if small == 4 and p.k >= 2048 else 4
    blocks = ceil_div(p.m, 8 * rows) * p.batch
    return Config(f"gemv_rows<{small}, {rows}, {vec}>", blocks, 256, arguments=_gemv_arguments)


def gemv(rung: int) -> Variant[GemmProblem]:
    """The last rung, numbered by who lists it."""
    return Variant(
        rung,
        "gemv",
        "at most 8 columns or rows: the matrix is read once",
        "gemm/13_gemv.cu",
        _gemv,
        is_skinny,
        problems="skinny",
    )
