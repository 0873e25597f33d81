"""16-bit products with few columns or rows: memory-bound, without tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cudakit.families.gemm_ladder import SKINNY, tall
from cudakit.families.gemm_problem import (
    NO_EPILOGUE,
    GemmProblem,
    Operand,
    arguments,
    epilogue_arguments,
    epilogue_constants,
    output_arguments,
)
from cudakit.family import CPP, MAX_GRID_X, SCRATCH, Launch, ceil_div, cpp_bool, several, variant

_SOURCE = "gemm_half/14_gemv.cu"
_WIDTH = 8  # elements per 16 bytes
_WARPS, _LANES = 8, 32  # warps of a block of gemv_rows, lanes of a warp
_WARP_SHARE = 1024  # the least k per warp, if several warps share a line: 4 loads of 16 bytes per lane
_CHUNK = {1: 16384, 2: 8192, 4: 8192, 8: 4096}  # k of B's columns in shared memory, by their number
_LINES = 64  # the most lines of a block of gemv_columns, 128 bytes of each k; the fewest have 32 bytes
_FULL = 0.9  # blocks per multiprocessor that are enough: a small rest does not justify another pass
_JOIN_BLOCKS = 8  # of gemv_join per multiprocessor


@dataclass(frozen=True)
class _Split:
    """How k is split over blocks if the lines do not fill the device: the least k per block, the most blocks per line,
    and the kernels' MODE."""

    least: int
    most: int
    mode: str

    def share(self, p: GemmProblem, blocks: int) -> int:
        """Return the k per block, a multiple of 8, if `blocks` blocks cover the lines."""
        splits = min(ceil_div(2 * p.sms, max(1, blocks)), p.k // self.least, self.most) if blocks < _FULL * p.sms else 1
        return max(1, ceil_div(p.k, _WIDTH * max(1, splits))) * _WIDTH


_PARTS = _Split(4096, 1024, "kParts")  # a second launch takes as long as reading some hundred KB
_CLUSTER = _Split(1024, 8, "kCluster")  # every device with clusters supports 8 blocks


def _aligned(of: Operand, width: int, *axes: tuple[int, int]) -> bool:
    """Return whether loads of `width` elements are aligned at every step of `axes` (stride, extent)."""
    return of.alignment == 16 and not any(stride % width for stride, extent in axes if extent > 1)


def _types(p: GemmProblem, fused: bool = True) -> str:
    """Return the template arguments of the types and the epilogue; fused: False for a launch without epilogue."""
    result = CPP[p.result]
    return ", ".join((CPP[p.dtype], result, *(epilogue_constants(p) if fused else (result, *NO_EPILOGUE))))


def _launch(
    p: GemmProblem, kernel: str, constants: str, split: _Split, blocks: int, threads: int, *more: int
) -> Launch:
    """Return the launch of one of the two kernels, whose first lines are covered by `blocks` blocks. more: its
    arguments after `share`."""
    share = split.share(p, blocks)
    splits = max(1, ceil_div(p.k, share))
    parts = splits > 1 and split is _PARTS
    return Launch(
        (blocks, splits),
        threads,
        (*arguments(p), *epilogue_arguments(p), SCRATCH.at(0, "float32") if parts else p.d.slot, share, *more),
        entry=f"{kernel}<{_types(p, not parts)}, {constants}, {split.mode if splits > 1 else 'kDirect'}>",
        scratch=4 * splits * p.m * p.n * p.batch if parts else 0,
        cluster=(1, splits) if splits > 1 and split is _CLUSTER else None,
        programmatic=split is _CLUSTER,
    )


def _grouped(p: GemmProblem, small: int, splits: int) -> tuple[int, int, int]:
    """Return the lines per group of warps, the warps per group and the blocks of gemv_rows, if at most `splits` blocks
    share a line: as many lines per block as fill the device, because each block loads all columns of its k."""
    rows, group = 2 if small == 1 else min(small, 4), 1
    while (blocks := ceil_div(p.m, _WARPS // group * rows) * p.batch) * max(1, splits) < 2 * _FULL * p.sms:
        if group < _WARPS and p.k >= 2 * group * _WARP_SHARE:
            group *= 2
        elif rows > 1:
            rows //= 2
        else:
            break
    return rows, group, blocks


def _rows(p: GemmProblem, small: int, split: _Split) -> Launch:
    rows, group, blocks = _grouped(p, small, 1)
    if blocks < _FULL * p.sms:
        rows, group, blocks = _grouped(p, small, min(p.k // split.least, split.most))
    chunk = min(_CHUNK[small], split.share(p, blocks))
    contiguous = p.a.col == 1
    shift = contiguous and not _aligned(p.a, _WIDTH, (p.a.row, p.m), (p.a.batch, p.batch))
    if contiguous and p.b.row == 1 and _aligned(p.b, _WIDTH, (p.b.col, p.n), (p.b.batch, p.batch)):
        columns = "kPieces"
    else:
        columns = "kAcross" if p.n > 1 and abs(p.b.col) < abs(p.b.row) else "kAlong"
    constants = f"{small}, {rows}, {_WIDTH if contiguous else 1}, {cpp_bool(shift)}, {columns}"
    launch = _launch(p, "gemv_rows", constants, split, blocks, _WARPS * _LANES, group, chunk)
    return replace(launch, shared=small * (chunk + _WIDTH) * 2)


def _columns(p: GemmProblem, small: int, split: _Split) -> Launch:
    vec = 1
    while vec < _WIDTH and p.a.row == 1 and p.m % (2 * vec) == 0:
        if not _aligned(p.a, 2 * vec, (p.a.col, p.k), (p.a.batch, p.batch)):
            break
        vec *= 2
    lines, fewest = min(_LINES, _LANES * vec), 32 if small == 8 else 16  # fewer need more registers
    while lines > fewest and ceil_div(p.m, lines) * p.batch < _FULL * p.sms:
        lines //= 2
    blocks = ceil_div(p.m, lines) * p.batch
    return _launch(p, "gemv_columns", f"{small}, {vec}, {lines // vec}", split, blocks, 512)


def _launches(problem: GemmProblem, split: _Split) -> tuple[Launch, ...] | str:
    if min(problem.m, problem.n) > SKINNY:
        return f"at most {SKINNY} rows or columns of output supported, got {problem.m} and {problem.n}"
    p = tall(problem)
    if p.m * p.batch > MAX_GRID_X:
        return f"at most {MAX_GRID_X} rows or columns of all batches supported, got {p.m * p.batch}"
    small = next(size for size in (1, 2, 4, 8) if p.n <= size)
    # lanes take neighbouring k of a line, or neighbouring lines
    along_k = p.a.col == 1 or (p.a.row != 1 and abs(p.a.col) <= abs(p.a.row))
    launch = _rows(p, small, split) if along_k else _columns(p, small, split)
    if not launch.scratch:
        return (launch,)
    parts, (_, splits) = SCRATCH.at(0, "float32"), several(launch.grid)
    grid = min(ceil_div(p.m * p.n * p.batch, _WARPS), _JOIN_BLOCKS * p.sms)
    sizes = (p.m, p.n, p.batch, p.alpha, p.beta)
    joined = (*output_arguments(p), *sizes, *epilogue_arguments(p), parts, splits)
    return launch, Launch(grid, _WARPS * _LANES, joined, entry=f"gemv_join<{_types(p)}>")


@variant(_SOURCE, since="sm_80", problems="skinny")
def gemv(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """at most 8 columns or rows: the matrix is read once"""
    return _launches(problem, _PARTS)


@variant(_SOURCE, since="sm_90", problems="skinny")
def gemv_cluster(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """blocks of a cluster share k: one launch"""
    return _launches(problem, _CLUSTER)


def prefers_gemv(problem: GemmProblem) -> bool:
    """Return whether this product is faster without tensor cores. Both ways read the matrix once, but tiles for tensor
    cores leave most of the device idle, and their variants copy an unaligned matrix first."""
    p = tall(problem)
    if p.n > SKINNY:
        return False
    a = p.a
    aligned = a.pieces(a.col, a.row, p.k, p.batch, 2) or a.pieces(a.row, a.col, p.m, p.batch, 2)
    return p.n <= 2 or not aligned


def best_gemv(problem: GemmProblem, arch: str) -> str:
    """Return the faster of the two variants: clusters, except on devices without them and if more blocks share k."""
    launches = _launches(problem, _CLUSTER)
    if isinstance(launches, str) or launches[0].cluster is None or gemv_cluster.arch_refusal(arch):
        return "gemv"
    return "gemv_cluster" if math.prod(several(launches[0].grid)) >= _FULL * problem.sms else "gemv"
