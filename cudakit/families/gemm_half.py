"""Matrix products on tensor cores: float16 or bfloat16 operands, fp32 sums, rounded once to the operands' dtype or not
at all (float32 out). Any strides, batched or not.

`ops.gemm` picks the best rung; `FAMILY` is the ladder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.families import gemm_packed
from cudakit.families.gemm_host import make_inputs, read_shape
from cudakit.families.gemm_host import reference as any_reference
from cudakit.families.gemm_host import rounding as any_rounding
from cudakit.families.gemm_problem import SCALARS, GemmProblem, arguments, output_shape
from cudakit.families.gemm_problem import problem as any_problem
from cudakit.families.variant import (
    CPP,
    MAX_GRID_X,
    MAX_GRID_YZ,
    Arguments,
    Config,
    Family,
    Variant,
    ceil_div,
    cpp_bool,
)
from cudakit.memory import array as memory
from cudakit.rounding import U

DTYPES = ("float16", "bfloat16")
_ITEM = 2  # bytes of an element of A and B
_DEPTH = 64  # k of a shared tile
_WMMA = 64  # rows and columns of the tile of 01_wmma.cu


@dataclass(frozen=True)
class MmaTile:
    """bm x bn outputs a block, wm x wn a warp, a ring of `stages` tiles; `resident` blocks a multiprocessor.

    The rest is what it takes, in us, fitted to 17 shapes on an H200: a step of 64 k of a block alone on a
    multiprocessor, of each block where there are several, and the start and end of a tile.
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
        """Bytes of the ring."""
        return self.stages * (self.bm + self.bn) * _DEPTH * _ITEM

    @property
    def constants(self) -> str:
        """The template arguments."""
        return ", ".join(map(str, (self.bm, self.bn, self.wm, self.wn, self.stages, self.resident)))

    def count(self, problem: GemmProblem) -> int:
        """Tiles of all batches."""
        return ceil_div(problem.m, self.bm) * ceil_div(problem.n, self.bn) * problem.batch

    def us(self, problem: GemmProblem) -> float:
        """The time the model gives: full rounds of the busiest multiprocessor, and what is left of the last one."""
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


# How the operands lie -------------------------------------------------------------------------------------------------


def _oriented(problem: GemmProblem) -> GemmProblem:
    """`problem`, or its transpose where only the output's columns are neighbours."""
    return problem.turned if problem.d.row == 1 and problem.d.col != 1 else problem


def _of_oriented(made: Arguments) -> Arguments:
    """What `made` makes of the problem as it is oriented and of its operands."""

    def oriented(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        p, (a, b, *rest) = _oriented(problem), inputs
        return made(p, (a, b, *rest) if p is problem else (b, a, *rest), output, scratch)

    return oriented


def _tile_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    """What the rungs behind wmma take: what all products take, and whether rows of the output can be written in 16-byte
    pieces."""
    d, item = problem.d, memory.as_dtype(problem.result).itemsize
    wide = problem.n % 8 == 0 and d.pieces(d.col, d.row, problem.n, problem.batch, item)
    return (*arguments(problem, inputs, output, scratch), int(wide))


def _along_k(problem: GemmProblem, packed: Collection[int] = ()) -> tuple[bool, bool] | str:
    """Whether A and B lie along k, in 16-byte pieces either way, or why these kernels do not take them. `packed`: which
    of them (0, 1) lie as 12_packed.cu leaves them."""
    p, along_k = problem, []
    if not p.k:
        return True, True  # nothing is read
    for index, (of, lines) in enumerate(((p.a, p.m), (p.b.turned, p.n))):
        if index in packed:
            along_k.append(False)
        elif of.pieces(of.col, of.row, p.k, p.batch, _ITEM):
            along_k.append(True)
        elif of.pieces(of.row, of.col, lines, p.batch, _ITEM):
            along_k.append(False)
        else:
            return (
                f"{'AB'[index]} does not lie in 16-byte pieces: an axis of neighbours whose extent is a multiple of 8, "
                "other strides that are, and the first element on 16 bytes"
            )
    return along_k[0], along_k[1]


def _lies(problem: GemmProblem, packed: Collection[int] = ()) -> str:
    """The template arguments for how a problem's operands lie, which its variant has asked for before."""
    along_k = _along_k(problem, packed)
    if isinstance(along_k, str):
        raise ValueError(along_k)
    return ", ".join(map(cpp_bool, along_k))


def _types(problem: GemmProblem) -> str:
    return f"{CPP[problem.dtype]}, {CPP[problem.result]}"


def _blocks_fit(bm: int, bn: int, problem: GemmProblem) -> bool | str:
    blocks = ceil_div(problem.m, bm) * ceil_div(problem.n, bn)
    return blocks <= MAX_GRID_X or f"it takes {blocks} tiles of {bm}x{bn}, a grid has at most {MAX_GRID_X} blocks"


def _in_pieces(problem: GemmProblem) -> bool | str:
    """`supports` of the rungs that read 16-byte pieces."""
    along_k = _along_k(_oriented(problem))
    return along_k if isinstance(along_k, str) else True


def _one_stage_takes(problem: GemmProblem) -> bool | str:
    in_pieces = _in_pieces(problem)
    return _blocks_fit(ONE_STAGE.bm, ONE_STAGE.bn, _oriented(problem)) if in_pieces is True else in_pieces


# Launches -------------------------------------------------------------------------------------------------------------


def _wmma(problem: GemmProblem) -> Config:
    blocks = ceil_div(problem.m, _WMMA) * ceil_div(problem.n, _WMMA)
    grid = (blocks, 1, min(problem.batch, MAX_GRID_YZ))
    return Config(f"wmma_tile<{_types(problem)}>", grid, 128, arguments=arguments)


def _one_stage(swizzled: bool) -> Callable[[GemmProblem], Config]:
    def configure(problem: GemmProblem) -> Config:
        p, t = _oriented(problem), ONE_STAGE
        shape = f"{t.bm}, {t.bn}, {t.wm}, {t.wn}, {_lies(p)}, {cpp_bool(swizzled)}"
        grid = (t.count(p) // p.batch, 1, min(p.batch, MAX_GRID_YZ))
        return Config(f"mma_tile<{_types(p)}, {shape}>", grid, t.threads, t.shared)

    return configure


def tile_config(tile: MmaTile, problem: GemmProblem, packed: Collection[int] = ()) -> Config:
    """The launch of `pipelined` on `tile`, for a problem as it is oriented and packed."""
    grid = min(tile.count(problem), problem.sms * tile.resident)
    entry = f"pipelined<{_types(problem)}, {tile.constants}, {_lies(problem, packed)}>"
    return Config(entry, grid, tile.threads, tile.shared)


def best(problem: GemmProblem) -> MmaTile:
    """The tile of `pipelined` for a problem, among those whose ring the device has room for."""
    return min((tile for tile in TILES if tile.shared <= problem.shared), key=lambda tile: tile.us(problem))


def _pipelined(problem: GemmProblem) -> Config:
    p = _oriented(problem)
    return tile_config(best(p), p)


def _packing(problem: GemmProblem) -> gemm_packed.Packing:
    return gemm_packed.packing_of(problem, along_k=True)


def _packed(problem: GemmProblem) -> tuple[Config, ...]:
    oriented = _oriented(problem)
    packing = _packing(oriented)
    applied = packing.applied(oriented)
    main = tile_config(best(applied), applied, [each.index for each in packing.packed])
    main = replace(main, source="gemm_half/04_pipelined.cu", arguments=_packed_arguments)
    every = (*gemm_packed.pack_configs(packing, oriented), main)
    return tuple(replace(each, arguments=_of_oriented(each.arguments)) for each in every if each.arguments)


def _packed_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    packing = _packing(problem)
    if packing.end:
        inputs = gemm_packed.packed_inputs(packing, inputs, scratch.view(memory.as_dtype(problem.dtype)))
    return _tile_arguments(packing.applied(problem), inputs, output, scratch)


VARIANTS: tuple[Variant[GemmProblem], ...] = (
    Variant(
        1,
        "wmma",
        "tensor cores: 16x16x16 products, fragments as a whole",
        "gemm_half/01_wmma.cu",
        _wmma,
        lambda p: _blocks_fit(_WMMA, _WMMA, p),
        since="sm_80",
    ),
    Variant(
        2,
        "ldmatrix",
        "mma.sync and ldmatrix on 128x128 tiles, 16-byte copies",
        "gemm_half/02_mma.cu",
        _one_stage(swizzled=False),
        _one_stage_takes,
        since="sm_80",
        problems="pieces",
    ),
    Variant(
        3,
        "swizzled",
        "the pieces of a tile swizzled: no bank conflicts",
        "gemm_half/02_mma.cu",
        _one_stage(swizzled=True),
        _one_stage_takes,
        since="sm_80",
        problems="pieces",
    ),
    Variant(
        4,
        "pipelined",
        "copies run ahead of the arithmetic, 64x64 outputs a warp",
        "gemm_half/04_pipelined.cu",
        _pipelined,
        _in_pieces,
        since="sm_80",
        problems="pieces",
    ),
    Variant(
        5,
        "packed",
        "operands that are not aligned copied once to where they are",
        gemm_packed.SOURCE,
        _packed,
        since="sm_80",
        scratch=lambda p: _ITEM * _packing(_oriented(p)).end,
    ),
)


# The family -----------------------------------------------------------------------------------------------------------


def _result(inputs: Sequence[Any], dtype: Any) -> np.dtype[Any]:
    """The dtype of the output: the operands', unless `dtype` says another."""
    return memory.as_dtype(inputs[0].dtype if dtype is None else dtype)


def problem(
    inputs: Sequence[Any], output: Any, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None
) -> GemmProblem:
    """The problem of float16 or bfloat16 operands; ValueError says what it refuses."""
    kind = inputs[0].dtype
    if kind.name not in DTYPES:
        raise ValueError(f"a product on tensor cores takes {' or '.join(DTYPES)}, A is {kind}")
    if output.dtype not in (kind, np.float32):
        raise ValueError(f"a product of {kind} gives {kind} or float32, the output is {output.dtype}")
    if dtype is not None and output.dtype != memory.as_dtype(dtype):
        raise ValueError(f"the result was asked for as {dtype}, and the output is {output.dtype}: give one of the two")
    return any_problem(inputs, output, alpha, beta)


def _output_like(
    inputs: Sequence[Any], alpha: float = 1.0, beta: float = 0.0, dtype: Any = None
) -> tuple[tuple[int, ...], Any]:
    return output_shape(inputs[0].shape, inputs[1].shape), _result(inputs, dtype)


def reference(inputs: Sequence[Any], alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    """The product in float64, infinite past the result's range."""
    return any_reference(inputs, alpha, beta, _result(inputs, dtype))


def of_sum(k: int) -> float:
    """The rounding of a sum of k products on tensor cores, relative to its size: partial sums are cut, not rounded,
    once in 16 products, so that it grows with k. Measured: up to 0.06 * k steps of float32 at 2,048; this
    is twice that."""
    return (k / 16 + 2) * 4 * U


def rounding(inputs: Sequence[Any], exact: Any, alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    """The rounding of sums on tensor cores."""
    return any_rounding(inputs, exact, alpha, beta, of_sum)


def baseline(inputs: Sequence[np.ndarray], alpha: float = 1.0, beta: float = 0.0, dtype: Any = None) -> Any:
    """numpy's product in float32: it has no fast one of 16-bit numbers."""
    a, b, *rest = (np.asarray(x).astype(np.float32) for x in inputs)
    with np.errstate(all="ignore"):
        product = np.float32(alpha) * np.matmul(a, b)
        return (product + np.float32(beta) * rest[0] if beta else product).astype(_result(inputs, dtype))


def choose(problem: GemmProblem, arch: str) -> str:
    """The rung that "auto" means."""
    return "pipelined" if isinstance(_along_k(_oriented(problem)), tuple) else "packed"


def _traffic(p: GemmProblem) -> int:
    item = memory.as_dtype(p.result).itemsize
    return p.batch * (_ITEM * (p.m * p.k + p.k * p.n) + item * p.m * p.n * (2 if p.beta else 1))


FAMILY: Family[GemmProblem] = Family(
    name="gemm_half",
    variants=VARIANTS,
    make_inputs=make_inputs,
    output_like=_output_like,
    reference=reference,
    rounding=rounding,
    baseline=baseline,
    problem=problem,
    arguments=_of_oriented(_tile_arguments),
    traffic=_traffic,
    flops=lambda p: p.flops,
    choose=choose,
    empty=lambda p: p.empty,
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
)  # fmt: skip
