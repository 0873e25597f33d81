"""Matrix products: D = alpha * A @ B + beta * C, any strides, batched or not.

`gemm(a, b)` picks the best rung; `FAMILY` is the ladder of the fp32 products, whose sums are IEEE fp32 (fused
multiply-add), no TF32. That of float16 and bfloat16, on tensor cores, is in gemm_half.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cudakit.families import front, gemm_half, gemm_ladder, gemm_packed, gemm_tiles
from cudakit.families.gemm_host import make_inputs, read_shape, reference, rounding
from cudakit.families.gemm_ladder import LADDER, gemv
from cudakit.families.gemm_problem import SCALARS, GemmProblem, arguments, output_shape
from cudakit.families.gemm_problem import problem as any_problem
from cudakit.families.gemm_tiles import FmaTile
from cudakit.families.variant import MAX_GRID_YZ, Config, Family, Variant
from cudakit.memory import array as memory

# The least extent from which on turning operands once in memory pays: where they are not aligned, and where they are
# (H200: 0.996 of cuBLAS against 0.998 at 4096, 1.025 against 1.008 at 8192).
PACK_UNALIGNED_FROM, PACK_FROM = 4096, 8192


def tile_config(kernel: str, tile: FmaTile, problem: GemmProblem) -> Config:
    """The launch of `pipelined` or `sliced` on `tile`."""
    lies = gemm_tiles.expected_layout(problem)
    entry = f"{kernel}<{tile.constants(kernel == 'sliced')}, {lies.constants}>"
    grid = (tile.count(problem), 1, min(problem.batch, MAX_GRID_YZ))
    return Config(entry, grid, tile.threads, tile.shared((lies.a_along_k, lies.b_along_k)))


def _pipelined(problem: GemmProblem) -> Config:
    return tile_config("pipelined", gemm_tiles.best_plain(problem), problem)


def _sliced(problem: GemmProblem) -> Config:
    return tile_config("sliced", gemm_tiles.best_sliced(problem), problem)


def _parts(problem: GemmProblem) -> int:
    tile = gemm_tiles.best_stream(problem)
    return gemm_tiles.stream_blocks(tile, problem) * 2 * tile.bm * tile.bn * 4


def _stream_k(problem: GemmProblem) -> tuple[Config, ...]:
    return stream_configs(gemm_tiles.best_stream(problem), problem)


def stream_configs(tile: FmaTile, problem: GemmProblem) -> tuple[Config, ...]:
    """The two launches of `stream_k` on `tile`."""
    main, join = gemm_tiles.stream_configs(tile, problem, gemm_tiles.expected_layout(problem))
    joining = functools.partial(_join_arguments, gemm_tiles.stream_blocks(tile, problem))
    return replace(main, arguments=_stream_arguments), replace(join, arguments=joining)


def _stream_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*arguments(problem, inputs, output, scratch), scratch.view(np.float32))


def _join_arguments(
    blocks: int, problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any
) -> tuple[Any, ...]:
    return gemm_tiles.join_arguments(_stream_arguments(problem, inputs, output, scratch), blocks)


VARIANTS: tuple[Variant[GemmProblem], ...] = (
    *LADDER,
    Variant(
        9,
        "pipelined",
        "copies run ahead of the arithmetic, 16x8 sums a thread",
        "gemm/09_pipelined.cu",
        _pipelined,
        gemm_tiles.has_layout,
        since="sm_80",
        problems="neighbours",
    ),
    Variant(
        10,
        "sliced",
        "groups of warps share the k of a tile",
        "gemm/10_sliced.cu",
        _sliced,
        gemm_tiles.has_layout,
        since="sm_80",
        problems="neighbours",
    ),
    Variant(
        11,
        "stream_k",
        "every block takes an equal stretch of all tiles' k",
        "gemm/11_stream_k.cu",
        _stream_k,
        gemm_tiles.has_layout,
        since="sm_80",
        scratch=_parts,
        problems="neighbours",
    ),
    Variant(
        12,
        "packed",
        "operands turned and aligned once in memory",
        "gemm/12_packed.cu",
        gemm_packed.configure,
        gemm_packed.fits,
        since="sm_80",
        scratch=gemm_packed.scratch,
        problems="one",
    ),
    gemv(13),
)


def problem(
    inputs: Sequence[Any], output: Any, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None
) -> GemmProblem:
    """The problem of float32 operands; ValueError says what it refuses."""
    if dtype is not None and memory.as_dtype(dtype) != np.float32:
        raise ValueError(f"a product of {inputs[0].dtype} gives float32, {dtype} was asked for")
    for name, array in (*zip("ABC", inputs, strict=False), ("the output", output)):
        if array.dtype != np.float32:
            raise ValueError(f"a product takes float32, float16 or bfloat16 throughout; {name} is {array.dtype}")
    return any_problem(inputs, output, alpha, beta)


def _output_like(
    inputs: Sequence[Any], alpha: float = 1.0, beta: float = 0.0, dtype: Any = None
) -> tuple[tuple[int, ...], Any]:
    return output_shape(inputs[0].shape, inputs[1].shape), np.dtype(np.float32)


def baseline(inputs: Sequence[np.ndarray], alpha: float = 1.0, beta: float = 0.0) -> Any:
    """numpy's product."""
    with np.errstate(all="ignore"):
        product = np.float32(alpha) * np.matmul(inputs[0], inputs[1])
        return product + np.float32(beta) * inputs[2] if beta else product


def _rounding(inputs: Sequence[Any], exact: Any, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    return rounding(inputs, exact, alpha, beta)


def choose(problem: GemmProblem, arch: str) -> str:
    """The rung that "auto" means."""
    if problem.empty:
        return "naive"  # which takes anything; nothing is launched
    if gemm_ladder.prefers_gemv(problem):
        return "gemv"
    if gemm_tiles.has_layout(problem) is not True:
        return "packed" if problem.batch == 1 else "register_2d"
    least = PACK_FROM if gemm_tiles.is_aligned(problem) else PACK_UNALIGNED_FROM
    if min(problem.m, problem.n, problem.k) >= least and problem.batch == 1:
        return "packed"
    return gemm_tiles.fastest(problem)


FAMILY: Family[GemmProblem] = Family(
    name="gemm",
    variants=VARIANTS,
    make_inputs=make_inputs,
    output_like=_output_like,
    reference=reference,
    rounding=_rounding,
    baseline=baseline,
    problem=problem,
    arguments=arguments,
    traffic=lambda p: 4 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n * (2 if p.beta else 1)),
    flops=lambda p: p.flops,
    choose=choose,
    instead=lambda dtype: gemm_half.FAMILY if dtype in gemm_half.DTYPES else None,
    empty=lambda p: p.empty,
    shapes={
        "gpu": ((512,), (1024,), (2048,), (4096,), (8192,), (1000,), (4095, 4097, 1023)),
        "gpu once": ((1024,), (2048,)),
        "sim": ((128, 64, 64), (45, 67, 33), (2, 20, 30, 17)),
        "sim sweep": ((64,), (128,), (100, 36, 77)),
        "sweep": (
            (512,), (1024,), (2048,), (4096,), (8192,),
            (1000,), (1023,), (1537,), (2049,), (3000,), (4095, 4097, 1023), (333, 555, 777),
            (65536, 128, 128), (32768, 256, 512), (16384, 64, 1024), (8192, 512, 64), (100000, 32, 256),
            (128, 65536, 128), (256, 32768, 512), (64, 16384, 1024), (32, 8192, 4096),
            (4096, 4096, 64), (8192, 8192, 32), (2048, 2048, 16), (4096, 4096, 8),
            (128, 128, 65536), (256, 256, 32768), (512, 512, 16384), (64, 64, 262144), (1024, 1024, 8192),
            (4096, 11008, 4096), (16384, 1024, 4096), (197, 768, 3072), (64, 4096, 4096), (3072, 768, 768),
            (1, 4096, 4096), (4096, 1, 4096), (8, 8192, 8192), (8192, 8, 8192), (512, 30522, 768),
        ),
    },
    scalars=SCALARS,
    ceiling="cublas",
    read_shape=read_shape,
)  # fmt: skip


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """alpha * a @ b + beta * c for arrays of float32, float16 or bfloat16: cudakit's, torch's or CuPy's, and so is the
    result. float16 and bfloat16 go through tensor cores (sm_80 on), their sums are fp32.

    a: (m, k), b: (k, n), any strides, so a.T is a transposed operand; (batch, m, k) and (batch, k, n) for batches, and
    a 2-D one is used for all of them. out: (m, n) or (batch, m, n), where to write, which may be c; a new array unless
    given. c: of the output's shape and dtype; out itself unless given, and not read where beta is 0. dtype: of a new
    output: the operands', or "float32" for 16-bit operands. variant: a rung by name, or "auto". stream: the device's
    default stream, or torch's or CuPy's current one, unless given. k = 0 gives beta * c. Returns without waiting.
    Raises ValueError for arrays it does not take, UnsupportedVariant for a rung that does not take them.
    """
    if beta and c is None and out is None:
        raise ValueError(f"beta is {beta}, and there is no c for it: give c=, or out= to add to")
    inputs = (a, b) if c is None else (a, b, c)
    return front.apply(FAMILY, inputs, out, variant, stream, {"alpha": alpha, "beta": beta, "dtype": dtype})
