"""The introductory variants of the 16-bit product by Hopper's own instructions (sm_90a), from one warpgroup per block
to persistent blocks with a producer. 12_tiles.cu (gemm_hopper) combines their ideas."""

from __future__ import annotations

from typing import Any

from cudakit.families.gemm_hopper_layout import DEPTH, ITEM, Layout, layout_of, operand_maps, output_map
from cudakit.families.gemm_hopper_tiles import BARRIERS, GROUP
from cudakit.families.gemm_problem import GemmProblem
from cudakit.family import CPP, MAX_GRID_YZ, Launch, ceil_div, cpp_bool, variant

_STAGES = 4  # of a ring
_SHARES = 2  # blocks of a cluster, which load B for each other
_BAND = 8  # rows of their tiles that concurrent blocks cover
_STAGING = 4 * 8192  # bytes for the stores of both consumers
_MOST = 2**31 - 1
_FUSED = 'has no fused epilogue (bias, activation, scale, residual): pass variant="auto"'
_SUM = 'computes alpha * A @ B without beta * C: pass variant="auto"'


# Supported problems ---------------------------------------------------------------------------------------------------


def _supported(problem: GemmProblem) -> tuple[GemmProblem, Layout] | str:
    """Return the problem, or its transpose if the output is contiguous along columns only, and its layout; or the
    reason why it is unsupported."""
    p = problem.turned if problem.d.row == 1 and problem.d.col != 1 else problem
    if p.fused:
        return _FUSED
    if p.beta != 0:
        return _SUM
    layout = layout_of(p)
    if isinstance(layout, str):
        return layout
    rows = {"A": layout.a.tensor, "B": layout.b.tensor, "the output": layout.tensor}
    unaligned = [name for name, aligned in rows.items() if not aligned]
    if unaligned:
        return (
            f"tensor copies cannot access {unaligned[0]}: needs a contiguous axis (the output's of 16-byte pieces), "
            "other strides that are positive multiples of 16 bytes, and a first element on a 16-byte boundary; pass "
            'variant="auto"'
        )
    return p, layout


def _grid(p: GemmProblem, bm: int, bn: int) -> tuple[int, int, int] | str:
    """Return a grid of one block per tile, or the reason why there are too many."""
    down, across = ceil_div(p.m, bm), ceil_div(p.n, bn)
    if max(across, p.batch) > MAX_GRID_YZ:
        return f"at most {MAX_GRID_YZ} columns of {bm}x{bn} tiles and batches supported, got {across} and {p.batch}"
    return down, across, p.batch


def _entry(p: GemmProblem, layout: Layout, name: str, *constants: int) -> str:
    """Return the name expression of a kernel for the problem's types and layout."""
    flags = map(cpp_bool, (layout.a.along_k, layout.b.along_k))
    return f"{name}<{', '.join((CPP[p.dtype], CPP[p.result], *flags, *map(str, constants)))}>"


def _operands(p: GemmProblem, layout: Layout, bm: int, bn: int, shares: int) -> tuple[Any, ...]:
    """Return the tensor maps of A and B for tiles of bm and bn lines, and whether each has batches of its own."""
    return (*operand_maps(p, layout, bm, bn, shares), int(p.a.batch != 0), int(p.b.batch != 0))


def _output(p: GemmProblem) -> tuple[Any, ...]:
    """Return the output and its strides."""
    return p.d.slot, p.d.row, p.d.batch


def _per_tile(
    problem: GemmProblem, name: str, bm: int, bn: int, stages: int = _STAGES, groups: int = 3, shares: int = 1
) -> Launch | str:
    """Return the launch of a kernel with tensor copies and one block of `groups` warpgroups per tile. shares: blocks
    of a cluster."""
    supported = _supported(problem)
    if isinstance(supported, str):
        return supported
    p, layout = supported
    grid = _grid(p, bm, bn)
    if isinstance(grid, str):
        return grid
    constants, barriers = ((stages,), stages * BARRIERS) if groups > 1 else ((), 0)
    return Launch(
        (ceil_div(grid[0], shares) * shares, *grid[1:]),
        groups * GROUP,
        (*_operands(p, layout, bm, bn, shares), *_output(p), p.m, p.n, p.k, p.alpha),
        stages * (bm + bn) * DEPTH * ITEM + barriers,
        _entry(p, layout, name, *constants),
        cluster=shares if shares > 1 else None,
    )


def _persistent(problem: GemmProblem, name: str, by_tensor: bool) -> Launch | str:
    """Return the launch of persistent blocks. by_tensor: tensor stores."""
    supported = _supported(problem)
    if isinstance(supported, str):
        return supported
    p, layout = supported
    bm, bn = 128, 256
    tiles = ceil_div(p.m, _SHARES * bm) * ceil_div(p.n, bn) * p.batch  # of clusters
    if tiles * _SHARES > _MOST:
        return f"at most {_MOST} tiles of {bm}x{bn} supported, got {tiles * _SHARES}"
    output = (output_map(p, layout, bn),) if by_tensor else _output(p)
    return Launch(
        min(tiles, p.sms // _SHARES) * _SHARES,
        3 * GROUP,
        (*_operands(p, layout, bm, bn, _SHARES), *output, p.m, p.n, p.k, p.batch, p.alpha),
        _STAGES * ((bm + bn) * DEPTH * ITEM + BARRIERS) + (_STAGING if by_tensor else 0),
        _entry(p, layout, name, _STAGES, _SHARES, _BAND),
        cluster=_SHARES,
    )


# Variants -------------------------------------------------------------------------------------------------------------


@variant("gemm_half/05_wgmma.cu", since="sm_90a", problems="plain")
def wgmma(problem: GemmProblem) -> Launch | str:
    """wgmma: four warps multiply 64x128x16 from shared memory"""
    supported = _supported(problem)
    if isinstance(supported, str):
        return supported
    p, layout = supported
    for name, side, lines in (("A", layout.a, p.m), ("B", layout.b, p.n)):
        extent = p.k if side.along_k else lines
        if extent % 8:
            return f"{name}'s contiguous axis must consist of 16-byte pieces, 8 elements each; got {extent} elements"
    grid = _grid(p, 128, 128)
    if isinstance(grid, str):
        return grid
    steps = (p.a.row if layout.a.along_k else p.a.col), (p.b.col if layout.b.along_k else p.b.row)
    operands = (p.a.slot, p.b.slot, p.d.slot, steps[0], p.a.batch, steps[1], p.b.batch, p.d.row, p.d.batch)
    entry = _entry(p, layout, "wgmma_tile")
    return Launch(grid, GROUP, (*operands, p.m, p.n, p.k, p.alpha), entry=entry)


@variant("gemm_half/06_tensor_copies.cu", since="sm_90a", problems="plain")
def tensor_copies(problem: GemmProblem) -> Launch | str:
    """tiles loaded by tensor copies, one step ahead"""
    return _per_tile(problem, "tensor_copies", 128, 128, stages=2, groups=1)


@variant("gemm_half/07_producer.cu", since="sm_90a", problems="plain")
def producer(problem: GemmProblem) -> Launch | str:
    """a producer warpgroup fills a ring of stages"""
    return _per_tile(problem, "producer", 128, 128)


@variant("gemm_half/08_wide.cu", since="sm_90a", problems="plain")
def wide(problem: GemmProblem) -> Launch | str:
    """128x256 tiles, 64x256 outputs per consumer warpgroup"""
    return _per_tile(problem, "wide", 128, 256)


@variant("gemm_half/09_cluster.cu", since="sm_90a", problems="plain")
def cluster(problem: GemmProblem) -> Launch | str:
    """clusters of two blocks load B once, by multicast"""
    return _per_tile(problem, "cluster", 128, 256, shares=_SHARES)


@variant("gemm_half/10_persistent.cu", since="sm_90a", problems="plain")
def persistent(problem: GemmProblem) -> Launch | str:
    """persistent blocks: loads during stores, operands found in L2"""
    return _persistent(problem, "persistent", by_tensor=False)


@variant("gemm_half/11_stored.cu", since="sm_90a", problems="plain")
def stored(problem: GemmProblem) -> Launch | str:
    """tensor stores from shared memory"""
    return _persistent(problem, "stored", by_tensor=True)


VARIANTS = (wgmma, tensor_copies, producer, wide, cluster, persistent, stored)
