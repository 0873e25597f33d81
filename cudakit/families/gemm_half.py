"""Matrix products on tensor cores: float16 or bfloat16 operands, fp32 sums, rounded once to the operands' dtype or not
at all (float32 out). Any strides, batched or not, with a fused epilogue or not.

`ops.gemm` picks the fastest variant; `FAMILY` is the ladder.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.families import gemm_epilogue, gemm_half_ladder, gemm_hopper, gemm_host, gemm_packed
from cudakit.families.gemm_half_gemv import best_gemv, gemv, gemv_cluster, prefers_gemv
from cudakit.families.gemm_host import make_inputs, read_shape
from cudakit.families.gemm_problem import (
    SCALARS,
    GemmProblem,
    arguments,
    epilogue_arguments,
    epilogue_constants,
    named,
    output_shape,
)
from cudakit.families.gemm_problem import problem as any_problem
from cudakit.family import CPP, MAX_GRID_X, MAX_GRID_YZ, Family, Launch, ceil_div, cpp_bool, variant
from cudakit.memory import array as memory
from cudakit.rounding import U

DTYPES = ("float16", "bfloat16")
_ITEM = 2  # bytes per element of A and B
_DEPTH = 64  # k per tile in shared memory
_WMMA = 64  # rows and columns of the tile of 01_wmma.cu
_FUSED = 'has no fused epilogue (bias, activation, scale, residual): pass variant="auto"'
_TOO_MANY = f"at most {MAX_GRID_X} tiles of {{bm}}x{{bn}} supported, got {{blocks}}"


@dataclass(frozen=True)
class MmaTile:
    """A tile of bm x bn outputs per block and wm x wn per warp, with a ring of `stages` tiles in shared memory and
    `resident` blocks per multiprocessor.

    The other fields are times in us, fitted to 17 shapes on an H200: `alone_us` per step of 64 k if the block is alone
    on its multiprocessor, `each_us` per step and block if there are several blocks, and `start_us` for the start and
    end of a tile.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int
    resident: int
    alone_us: float = 0.0
    each_us: float = 0.0
    start_us: float = 0.0

    @property
    def threads(self) -> int:
        return 32 * (self.bm // self.wm) * (self.bn // self.wn)

    @property
    def shared(self) -> int:
        """Bytes of the ring in shared memory."""
        return self.stages * (self.bm + self.bn) * _DEPTH * _ITEM

    @property
    def constants(self) -> str:
        """The template arguments."""
        return ", ".join(map(str, (self.bm, self.bn, self.wm, self.wn, self.stages, self.resident)))

    def count(self, problem: GemmProblem) -> int:
        """Tiles of all batches."""
        return ceil_div(problem.m, self.bm) * ceil_div(problem.n, self.bn) * problem.batch

    def us(self, problem: GemmProblem) -> float:
        """Return the modelled time of the busiest multiprocessor: its full waves of blocks plus its partial last
        wave."""
        steps = max(1, ceil_div(problem.k, _DEPTH))
        rounds, left = divmod(ceil_div(self.count(problem), problem.sms), self.resident)
        full, last = (
            self.start_us + steps * max(self.alone_us, self.each_us * blocks) for blocks in (self.resident, left)
        )
        return rounds * full + (last if left else 0.0)


ONE_STAGE = MmaTile(128, 128, 64, 32, 1, 1)
TILES = (
    MmaTile(256, 128, 64, 64, 4, 1, 1.066, 1.066, 4.535),
    MmaTile(128, 256, 64, 64, 3, 1, 1.102, 1.102, 3.687),
    MmaTile(128, 128, 64, 64, 3, 2, 0.364, 0.565, 3.848),
    MmaTile(128, 64, 32, 64, 3, 2, 0.385, 0.359, 2.355),
    MmaTile(64, 64, 32, 32, 3, 3, 0.293, 0.249, 1.434),
)


# Layout of the operands -----------------------------------------------------------------------------------------------


def _oriented(problem: GemmProblem) -> GemmProblem:
    """Return `problem`, or its transpose if the output is contiguous along columns only."""
    return problem.turned if problem.d.row == 1 and problem.d.col != 1 else problem


def _wide(problem: GemmProblem) -> int:
    """Return whether rows of the output can be written in 16-byte pieces, the last argument of the variants after
    wmma."""
    d, item = problem.d, memory.as_dtype(problem.result).itemsize
    return int(problem.n % 8 == 0 and d.pieces(d.col, d.row, problem.n, problem.batch, item))


def _along_k(problem: GemmProblem, packed: Collection[int] = ()) -> tuple[bool, bool] | str:
    """Return whether A and B are contiguous along k, or the reason why an operand is unsupported: each must consist of
    16-byte pieces, along k or across it. `packed`: the indexes of operands that 12_packed.cu packs."""
    p, along_k = problem, []
    if not p.k:
        return True, True  # nothing is read
    for index, (of, lines) in enumerate(((p.a, p.m), (p.b.turned, p.n))):
        if index in packed:
            along_k.append(of.col == 1)
        elif of.pieces(of.col, of.row, p.k, p.batch, _ITEM):
            along_k.append(True)
        elif of.pieces(of.row, of.col, lines, p.batch, _ITEM):
            along_k.append(False)
        else:
            return (
                f"{'AB'[index]} does not consist of 16-byte pieces: needs a contiguous axis, extent and other strides "
                "that are multiples of 8, and a first element on a 16-byte boundary"
            )
    return along_k[0], along_k[1]


def _types(problem: GemmProblem) -> str:
    return f"{CPP[problem.dtype]}, {CPP[problem.result]}"


# Launches -------------------------------------------------------------------------------------------------------------


@variant("gemm_half/01_wmma.cu", since="sm_80")
def wmma(problem: GemmProblem) -> Launch | str:
    """tensor cores by WMMA: 16x16x16 products"""
    if problem.fused:
        return _FUSED
    blocks = ceil_div(problem.m, _WMMA) * ceil_div(problem.n, _WMMA)
    if blocks > MAX_GRID_X:
        return _TOO_MANY.format(blocks=blocks, bm=_WMMA, bn=_WMMA)
    grid = (blocks, 1, min(problem.batch, MAX_GRID_YZ))
    return Launch(grid, 128, arguments(problem), entry=f"wmma_tile<{_types(problem)}>")


def _one_stage(problem: GemmProblem, swizzled: bool) -> Launch | str:
    p, t = _oriented(problem), ONE_STAGE
    if p.fused:
        return _FUSED
    along_k = _along_k(p)
    if isinstance(along_k, str):
        return along_k
    blocks = ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn)
    if blocks > MAX_GRID_X:
        return _TOO_MANY.format(blocks=blocks, bm=t.bm, bn=t.bn)
    lies = ", ".join(map(cpp_bool, along_k))
    entry = f"mma_tile<{_types(p)}, {t.bm}, {t.bn}, {t.wm}, {t.wn}, {lies}, {cpp_bool(swizzled)}>"
    return Launch((blocks, 1, min(p.batch, MAX_GRID_YZ)), t.threads, (*arguments(p), _wide(p)), t.shared, entry)


@variant("gemm_half/02_mma.cu", since="sm_80", problems="pieces")
def ldmatrix(problem: GemmProblem) -> Launch | str:
    """mma.sync and ldmatrix on 128x128 tiles, 16-byte copies"""
    return _one_stage(problem, swizzled=False)


@variant("gemm_half/02_mma.cu", since="sm_80", problems="pieces")
def swizzled(problem: GemmProblem) -> Launch | str:
    """16-byte pieces swizzled within a tile: no bank conflicts"""
    return _one_stage(problem, swizzled=True)


def tile_launch(tile: MmaTile, problem: GemmProblem, packed: Collection[int] = (), source: str = "") -> Launch | str:
    """Return the launch of `pipelined` on `tile` for an oriented problem, or the reason why it is unsupported.
    `packed`: as in _along_k."""
    along_k = _along_k(problem, packed)
    if isinstance(along_k, str):
        return along_k
    constants = ", ".join((_types(problem), *epilogue_constants(problem), tile.constants))
    entry = f"pipelined<{constants}, {', '.join(map(cpp_bool, along_k))}>"
    grid = min(tile.count(problem), problem.sms * tile.resident)
    args = (*arguments(problem), *epilogue_arguments(problem), _wide(problem))
    return Launch(grid, tile.threads, args, tile.shared, entry, source=source)


def best(problem: GemmProblem) -> MmaTile:
    """Return the fastest tile of `pipelined` for a problem, among those whose ring fits in the device's shared
    memory."""
    return min((tile for tile in TILES if tile.shared <= problem.shared), key=lambda tile: tile.us(problem))


@variant("gemm_half/04_pipelined.cu", since="sm_80", problems="pieces")
def pipelined(problem: GemmProblem) -> Launch | str:
    """asynchronous copies ahead of the arithmetic, 64x64 outputs per warp"""
    p = _oriented(problem)
    return tile_launch(best(p), p)


def _packing(problem: GemmProblem) -> gemm_packed.Packing:
    return gemm_packed.packing_of(_oriented(problem), along_k=True, keep=True)


@variant(gemm_packed.SOURCE, since="sm_80")
def packed(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """unaligned operands copied once to aligned scratch memory"""
    oriented, packing = _oriented(problem), _packing(problem)
    applied = packing.applied(oriented)
    places = [each.index for each in packing.packed]
    product = tile_launch(best(applied), applied, places, "gemm_half/04_pipelined.cu")
    if isinstance(product, str):
        return product
    return (*gemm_packed.pack_launches(packing, oriented), replace(product, scratch=_ITEM * packing.end))


# The family -----------------------------------------------------------------------------------------------------------


def result_dtype(a: Any, dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the output: `dtype`, or the operands' if it is None."""
    return memory.as_dtype(a.dtype if dtype is None else dtype)


def expect_output_dtype(what: str, kind: Any, output: Any, dtype: Any) -> None:
    """Raise ValueError unless the output is of the operands' dtype `kind` or float32, and of `dtype` if that is
    given."""
    if output.dtype not in (kind, np.float32):
        raise ValueError(f"{what} of {kind} takes an output of {kind} or float32, got {output.dtype}")
    if dtype is not None and output.dtype != memory.as_dtype(dtype):
        raise ValueError(f"dtype={dtype} differs from the output's dtype {output.dtype}: pass only one of the two")


def problem(
    inputs: Sequence[Any],
    output: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    added: str = "c",
    activation: str = "",
    scale: float = 1.0,
) -> GemmProblem:
    """Return the problem of float16 or bfloat16 operands and of the arrays after them that `added` names. Raise
    ValueError for unsupported arrays."""
    kind = inputs[0].dtype
    if kind.name not in DTYPES:
        raise ValueError(f"a product on tensor cores takes {' or '.join(DTYPES)}, A is {kind}")
    expect_output_dtype("a product", kind, output, dtype)
    return any_problem(inputs, output, alpha, beta, added=added, activation=activation, scale=scale)


def _product(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    """Return alpha * A @ B + beta * C in the precision of A and B. C is not read if beta is 0."""
    product = a.dtype.type(alpha) * np.matmul(a, b)
    return product + a.dtype.type(beta) * c if beta else product


def reference(
    a: Any,
    b: Any,
    first: Any = None,
    second: Any = None,
    third: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    added: str = "c",
    activation: str = "",
    scale: float = 1.0,
) -> Any:
    """Return scale * activation(alpha * A @ B + beta * C + bias) + residual. `added` names the arrays after A and B: of
    "c", "bias" and "residual", separated by blanks."""
    given = named([x for x in (first, second, third) if x is not None], added)
    product = _product(a, b, given.pop("c", None), alpha, beta)
    return gemm_epilogue.applied(product, **given, activation=activation, scale=scale)


def of_sum(k: int) -> float:
    """Return the relative rounding error of a sum of k products on tensor cores. It grows with k, because partial sums
    are truncated, not rounded, once per 16 products. The bound is twice the largest measured error, 0.06 * k steps of
    float32 at k = 2,048."""
    return (k / 16 + 2) * 4 * U


def rounding(
    exact: Any,
    a: Any,
    b: Any,
    *rest: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    dtype: Any = None,
    added: str = "c",
    activation: str = "",
    scale: float = 1.0,
) -> Any:
    """Return the rounding error of products with sums on tensor cores, and of their epilogues."""
    given = {name: np.asarray(x).astype(np.float64) for name, x in named(rest, added).items()}
    c = given.pop("c", None)
    fused = bool(given or activation or scale != 1)
    if fused:
        of_a, of_b = (np.asarray(x).astype(np.float64) for x in (a, b))
        with np.errstate(all="ignore"):  # test problems contain infinities and NaN
            exact = _product(of_a, of_b, c, alpha, beta)
    inputs = (a, b) if c is None else (a, b, c)
    error = gemm_host.rounding(exact, *inputs, alpha=alpha, beta=beta, of_sum=of_sum)
    if not fused:
        return error
    kind = result_dtype(a, dtype)
    return gemm_epilogue.rounding(exact, error, **given, dtype=kind, activation=activation, scale=scale)


def baseline(a: Any, b: Any, *rest: Any, dtype: Any = None, **options: Any) -> Any:
    """Return numpy's product in float32; numpy has no fast product of 16-bit numbers."""
    return reference(*(x.astype(np.float32) for x in (a, b, *rest)), **options).astype(result_dtype(a, dtype))


def choose(problem: GemmProblem, arch: str) -> str:
    """Return the variant for "auto"."""
    if not problem.empty and problem.k:
        if prefers_gemv(problem):
            return best_gemv(problem, arch)
        if arch == "sm_90a" and (name := gemm_hopper.choose(problem)):
            return name
    return "pipelined" if isinstance(_along_k(_oriented(problem)), tuple) else "packed"


def _traffic(p: GemmProblem) -> int:
    item = memory.as_dtype(p.result).itemsize
    outputs = 1 + (p.beta != 0) + (p.residual is not None)  # arrays of the output's size
    total = p.batch * (_ITEM * (p.m * p.k + p.k * p.n) + item * p.m * p.n * outputs)
    if p.bias:
        axes = ((p.bias.row, p.m), (p.bias.col, p.n), (p.bias.batch, p.batch))
        total += memory.as_dtype(p.bias_dtype).itemsize * math.prod(extent for stride, extent in axes if stride)
    return total


FAMILY: Family[GemmProblem] = Family(
    name="gemm_half",
    reference=reference,
    variants=(
        *(wmma, ldmatrix, swizzled, pipelined, packed),
        *gemm_half_ladder.VARIANTS,
        *(*gemm_hopper.VARIANTS, gemv, gemv_cluster),
    ),
    inputs=make_inputs,
    outputs=lambda a, b, *c, dtype=None, **options: (output_shape(a.shape, b.shape), result_dtype(a, dtype)),
    problem=problem,
    arguments=arguments,
    rounding=rounding,
    baseline=baseline,
    traffic=_traffic,
    flops=lambda p: p.flops,
    choose=choose,
    shapes={
        "gpu": ((1024,), (2048,), (4096,), (8192,), (4096, 11008, 4096), (16384, 1024, 4096), (4095, 4097, 1023)),
        "gpu once": ((1024,), (2048,)),
        "sim": ((128, 64, 64), (45, 67, 33), (2, 24, 40, 16)),
        "sim sweep": ((64,), (128,), (104, 40, 80)),
        "sweep": (
            (512,), (1024,), (1536,), (2048,), (3072,), (4096,), (6144,), (8192,),
            (1000,), (1023,), (2049,), (4095, 4097, 1023), (333, 555, 777),
            (4096, 11008, 4096), (16384, 1024, 4096), (8192, 8192, 512), (64, 4096, 4096), (3072, 768, 768),
            (197, 768, 3072), (512, 30522, 768), (256, 256, 32768), (65536, 128, 128), (8, 1024, 1024, 64),
        ),
    },
    dtypes=("bfloat16", "float16"),
    scalars=SCALARS,
    ceiling="cublas",
    read_shape=read_shape,
    problems="cudakit.testing.gemm_half:gemm_half_cases",
)  # fmt: skip
