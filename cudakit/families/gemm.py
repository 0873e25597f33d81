"""Matrix products: D = alpha * A @ B + beta * C, any strides, batched or not; for 16-bit operands also with a bias, an
activation and a residual.

`gemm(a, b)` picks the fastest variant; `FAMILY` is the ladder of the fp32 products, whose sums are IEEE fp32 (fused
multiply-add), not TF32. The ladder of float16 and bfloat16, on tensor cores, is in gemm_half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.families import gemm_half, gemm_ladder, gemm_packed, gemm_tiles
from cudakit.families.gemm_host import make_inputs, read_shape, reference, rounding
from cudakit.families.gemm_ladder import LADDER, gemv
from cudakit.families.gemm_problem import SCALARS, GemmProblem, arguments, named, output_shape
from cudakit.families.gemm_problem import problem as any_problem
from cudakit.families.gemm_tiles import FmaTile
from cudakit.family import MAX_GRID_YZ, Family, Launch, apply, variant
from cudakit.memory import array as memory

# The smallest extents at which it is faster to transpose operands once in memory: for unaligned operands, and for
# aligned operands (H200, fraction of cuBLAS: at 4096, 0.996 with the transpose and 0.998 without; at 8192, 1.025 and
# 1.008).
PACK_UNALIGNED_FROM, PACK_FROM = 4096, 8192


def tile_launch(kernel: str, tile: FmaTile, problem: GemmProblem) -> Launch | str:
    """Return the launch of `pipelined` or `sliced` on `tile`, or the reason why the operands' layout is unsupported."""
    lies = gemm_tiles.operand_layout(problem)
    if isinstance(lies, str):
        return lies
    entry = f"{kernel}<{tile.constants(kernel == 'sliced')}, {lies.constants}>"
    grid = (tile.count(problem), 1, min(problem.batch, MAX_GRID_YZ))
    return Launch(grid, tile.threads, shared=tile.shared((lies.a_along_k, lies.b_along_k)), entry=entry)


def _tile(
    table: Callable[[GemmProblem], FmaTile], problem: GemmProblem, tm: int | None, *constants: int
) -> FmaTile | str:
    """Return the tile for a variant's constants (if tm is None, the table's tile), or the reason why it is
    unsupported."""
    if tm is not None:
        return gemm_tiles.tuned_tile(problem, (tm, *constants))
    if constants != gemm_tiles.USUAL:
        return "tm=None selects the table's tile: the other constants must keep their defaults"
    return table(problem)


@variant("gemm/09_pipelined.cu", since="sm_80", problems="neighbours", tune=gemm_tiles.TUNE)
def pipelined(
    problem: GemmProblem,
    tm: int | None = None,
    tn: int = 8,
    warps_m: int = 2,
    warps_n: int = 2,
    rows: int = 4,
    stages: int = 3,
    resident: int = 2,
) -> Launch | str:
    """asynchronous copies ahead of the arithmetic, 16x8 sums per thread"""
    tile = _tile(gemm_tiles.best_plain, problem, tm, tn, warps_m, warps_n, rows, stages, resident, 1)
    return tile if isinstance(tile, str) else tile_launch("pipelined", tile, problem)


@variant("gemm/10_sliced.cu", since="sm_80", problems="neighbours", tune=gemm_tiles.SLICED_TUNE)
def sliced(
    problem: GemmProblem,
    tm: int | None = None,
    tn: int = 8,
    warps_m: int = 2,
    warps_n: int = 2,
    rows: int = 4,
    stages: int = 3,
    resident: int = 2,
    slices: int = 1,
) -> Launch | str:
    """groups of warps split k within a tile"""
    if tm is not None and slices == 1:
        return "needs at least two slices, got 1"
    tile = _tile(gemm_tiles.best_sliced, problem, tm, tn, warps_m, warps_n, rows, stages, resident, slices)
    return tile if isinstance(tile, str) else tile_launch("sliced", tile, problem)


@variant("gemm/11_stream_k.cu", since="sm_80", problems="neighbours", tune=gemm_tiles.SLICED_TUNE)
def stream_k(
    problem: GemmProblem,
    tm: int | None = None,
    tn: int = 8,
    warps_m: int = 2,
    warps_n: int = 2,
    rows: int = 4,
    stages: int = 3,
    resident: int = 2,
    slices: int = 1,
) -> tuple[Launch, ...] | str:
    """stream-K: every block gets an equal share of all tiles' k"""
    lies = gemm_tiles.operand_layout(problem)
    tile = _tile(gemm_tiles.best_stream, problem, tm, tn, warps_m, warps_n, rows, stages, resident, slices)
    if isinstance(lies, str):
        return lies
    if isinstance(tile, str):
        return tile
    if tile.bm * tile.bn % 1024:
        return "needs tiles with a multiple of 1024 sums"
    return gemm_tiles.stream_launches(tile, problem, lies)


VARIANTS = (*LADDER, pipelined, sliced, stream_k, gemm_packed.packed, gemv)


def problem(
    inputs: Sequence[Any],
    output: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    others: tuple[int, ...] = (),
    **epilogue: Any,
) -> GemmProblem:
    """Return the problem of float32 operands. Raise ValueError for unsupported arrays, and for the options of a fused
    epilogue."""
    if epilogue:
        raise ValueError(
            f"a product of {inputs[0].dtype} has no bias, activation, residual or scale: pass float16 or bfloat16 "
            "operands, or compute them from the result"
        )
    if dtype is not None and memory.as_dtype(dtype) != np.float32:
        raise ValueError(f"a product of {inputs[0].dtype} has the dtype float32, got dtype={dtype}")
    for name, array in (*zip("ABC", inputs, strict=False), ("the output", output)):
        if array.dtype != np.float32:
            raise ValueError(f"a product takes float32, float16 or bfloat16 throughout; {name} is {array.dtype}")
    return any_problem(inputs, output, alpha, beta, others)


def baseline(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    """Return numpy's product."""
    product = np.float32(alpha) * np.matmul(a, b)
    return product + np.float32(beta) * c if beta else product


def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> Callable[[], Any]:
    """Return a user's call of `gemm`."""
    a, b, *rest = inputs
    given = {**options, **named(rest, options.get("added", "c"))}
    given.pop("added", None)
    return lambda: gemm(a, b, out, variant=variant, stream=stream, **given)


def choose(problem: GemmProblem, arch: str) -> str:
    """Return the variant for "auto"."""
    if problem.empty:
        return "naive"  # supports every problem; nothing is launched
    if gemm_ladder.prefers_gemv(problem):
        return "gemv"
    if isinstance(gemm_tiles.operand_layout(problem), str):
        return "packed" if problem.batch == 1 else "register_2d"
    least = PACK_FROM if gemm_tiles.is_aligned(problem) else PACK_UNALIGNED_FROM
    if min(problem.m, problem.n, problem.k) >= least and problem.batch == 1:
        return "packed"
    return gemm_tiles.fastest(problem)


def choose_for_several(a: Any, b: Any, columns: int) -> str:
    """Return the variant for a product whose kernels store it on several devices: "packed" or "stream_k".

    Each device multiplies all of A by its own part of the `columns` columns of B. "" if neither supports the operands.
    """
    shape = (*a.shape, columns)
    if not all(shape) or a.dtype != np.float32:
        return ""
    if not all(1 in (*x.strides_elements, *x.shape) for x in (a, b)):
        return "packed"
    return "packed" if min(shape) >= PACK_FROM else "stream_k"


FAMILY: Family[GemmProblem] = Family(
    name="gemm",
    reference=reference,
    variants=VARIANTS,
    inputs=make_inputs,
    outputs=lambda a, b, *c, **options: (output_shape(a.shape, b.shape), np.dtype(np.float32)),
    problem=problem,
    arguments=arguments,
    rounding=rounding,
    baseline=baseline,
    traffic=lambda p: 4 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n * (2 if p.beta else 1)),
    flops=lambda p: p.flops,
    choose=choose,
    instead=lambda dtype: gemm_half.FAMILY if dtype in gemm_half.DTYPES else None,
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
    problems="cudakit.testing.gemm:gemm_cases",
)  # fmt: skip
FAMILY.call = gemm_half.FAMILY.call = call


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    activation: str | None = None,
    scale: float = 1.0,
    residual: Any = None,
    dtype: Any = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return scale * activation(alpha * a @ b + beta * c + bias) + residual, for arrays of cudakit, torch or CuPy.

    Does not wait for the device. Operands are float32, float16 or bfloat16. The 16-bit dtypes use tensor cores (sm_80
    and newer) with fp32 sums. If k is 0 the product is 0.

    `bias`, `activation`, `scale` and `residual` are the fused epilogue of 16-bit operands; float32 operands do not
    support them. It is computed in fp32, in the order of the formula, and the result is rounded once to the output's
    dtype.

    Args:
        a: Shape (m, k) or (batch, m, k), any strides: a.T is a transposed operand. A 2-D operand is used for every
            batch.
        b: Shape (k, n) or (batch, k, n), like `a`.
        out: The output, of shape (m, n) or (batch, m, n). It may be `c` or `residual`. By default a new array.
        c: An array of the output's shape and dtype, by default `out` itself. It is not read if beta is 0.
        alpha: The factor on the product.
        beta: The factor on `c`.
        bias: An array that broadcasts to the output: (n,) is added to each row, (m, 1) to each column. Its dtype is the
            operands' or float32.
        activation: None, "relu", "gelu" (x times the normal distribution function of x), "gelu_tanh" (its approximation
            by tanh) or "silu" (x times the sigmoid of x).
        scale: The factor on the activation's result.
        residual: An array of the output's shape and dtype, any strides.
        dtype: The dtype of a new output: the operands' (default), or "float32" for 16-bit operands.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported, or beta is not 0 and there is neither `c` nor `out`.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    if beta and c is None and out is None:
        raise ValueError(f"beta is {beta}, but there is nothing to add: pass c=, or out= to add to")
    options = {"alpha": alpha, "beta": beta, "dtype": dtype}
    if bias is None and residual is None and not activation and scale == 1:
        return apply(FAMILY, (a, b) if c is None else (a, b, c), out, variant, stream, options)
    given = {name: x for name, x in (("c", c), ("bias", bias), ("residual", residual)) if x is not None}
    options |= {"added": " ".join(given), "activation": activation or "", "scale": scale}
    return apply(FAMILY, (a, b, *given.values()), out, variant, stream, options)
