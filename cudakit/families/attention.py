"""Attention, forward: o = softmax(q k^T * scale) v for each head, without and with a causal limit.

`attention(q, k, v)` picks the best rung; `FAMILY` is the ladder. q is (batch, heads, queries, d), k and v are
(batch, key heads, keys, d); where there are fewer key heads, neighbouring query heads share one (grouped queries). The
causal limit is aligned at the end: the last query sees every key, and query i the keys up to i + keys - queries (as
FlashAttention-2 has it; torch's is_causal aligns at the beginning). A query that sees no key gives 0.

Scores and sums are float32 in every rung. A NaN in q or k makes NaN of each query whose scores it enters, as does a
score of +inf, or nothing but scores of -inf. v has to be finite where a causal limit hides it: 0 * NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import front
from cudakit.families.attention_host import baseline, make_inputs, reference, rounding
from cudakit.families.attention_problem import AttentionProblem, problem, read_scale
from cudakit.families.scalars import Scalar
from cudakit.families.variant import CPP, MAX_GRID_X, Config, Family, Variant, ceil_div, cpp_bool

LOG2_E = 1 / math.log(2)
# Bytes of keys and values of the heads that advance together under a causal limit (see 05_flash.cu). Measured on an
# H200, whose L2 has 60 MiB: 64 MiB is 2 to 14 % faster than 4, and no slower than more.
SHARED_KEYS = 64 << 20

# Queries of a block of 02_fused_rows.cu.
FUSED_ROWS = 8
# Scratch memory that 01_three_passes.cu may ask for.
MOST_SCORES = 8 << 30


def _strides(problem: AttentionProblem) -> tuple[int, ...]:
    return tuple(stride for strides in problem.strides for stride in strides)


def _sizes(problem: AttentionProblem) -> tuple[Any, ...]:
    group = problem.heads // max(problem.key_heads, 1)
    return (problem.batches, problem.heads, group, problem.sq, problem.skv, problem.d)


@dataclass(frozen=True)
class FlashTile:
    """The template constants of 05_flash.cu: head size, warps a block, tiles of 16 queries a warp, keys a tile."""

    d: int
    warps: int
    tiles: int
    keys: int

    @property
    def queries(self) -> int:
        """Of a block."""
        return self.warps * self.tiles * 16

    @property
    def shared(self) -> int:
        """Bytes: the queries, and keys and values twice."""
        return (self.queries + 4 * self.keys) * self.d * 2


# By head size, the best first (measured on an H200); the first whose shared memory the device has is taken.
FLASH_TILES = {
    32: (FlashTile(32, 4, 2, 64),),
    64: (FlashTile(64, 4, 2, 64),),
    96: (FlashTile(96, 4, 2, 64),),
    128: (FlashTile(128, 4, 2, 64),),
    256: (FlashTile(256, 8, 1, 64), FlashTile(256, 4, 1, 32)),
}


def _flash(problem: AttentionProblem) -> Config:
    tiles = FLASH_TILES[problem.padded]
    return flash_config(problem, next(tile for tile in tiles if tile.shared <= problem.shared))


def flash_config(problem: AttentionProblem, tile: FlashTile) -> Config:
    """The launch of 05_flash.cu with a tile."""
    guarded = cpp_bool(problem.d != tile.d)
    entry = f"flash<{CPP[problem.dtype]}, {tile.d}, {tile.warps}, {tile.tiles}, {tile.keys}, {guarded}>"
    blocks = ceil_div(problem.sq, tile.queries)
    bytes_a_head = max(2 * problem.skv * problem.d * problem.itemsize, 1)
    section = min(max(SHARED_KEYS // bytes_a_head, 1), problem.all_heads) if problem.causal else 1

    def arguments(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (*_powers_of_two(problem, inputs, output, scratch), section)

    return Config(entry, problem.all_heads * blocks, tile.warps * 32, tile.shared, arguments=arguments)


def _scale2(problem: AttentionProblem) -> tuple[float, int]:
    """The factor on scores for kernels that take powers of two, and the causal limit."""
    return problem.scale * LOG2_E, int(problem.causal)


def _powers_of_two(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *_strides(problem), *_sizes(problem), *_scale2(problem))


def _arguments(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *_strides(problem), *_sizes(problem), problem.scale, int(problem.causal))


def _three_passes(problem: AttentionProblem) -> tuple[Config, ...]:
    cpp, rows = CPP[problem.dtype], problem.all_heads * problem.sq
    q_strides, k_strides, v_strides, o_strides = problem.strides
    causal, sizes = int(problem.causal), _sizes(problem)[1:]

    def scores(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        q, k, _ = inputs
        return (q, k, scratch.view(np.float32), *q_strides, *k_strides, *sizes, problem.scale, causal)

    def softmax(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (scratch.view(np.float32), problem.sq, problem.skv, causal)

    def values(problem: AttentionProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        return (scratch.view(np.float32), inputs[2], output, *v_strides, *o_strides, *sizes, causal)

    return (
        Config(f"scores<{cpp}>", rows, 256, arguments=scores),
        Config("softmax_rows", rows, 256, arguments=softmax),
        Config(f"weigh_values<{cpp}>", rows, ceil_div(problem.d, 32) * 32, arguments=values),
    )


def _scores_bytes(problem: AttentionProblem) -> int:
    return max(problem.all_heads * problem.sq * problem.skv, 1) * 4


def _takes_three_passes(problem: AttentionProblem) -> bool | str:
    if _scores_bytes(problem) > MOST_SCORES:
        return f"its scores take {_scores_bytes(problem)} bytes of scratch memory, over {MOST_SCORES}"
    if problem.all_heads * problem.sq > MAX_GRID_X:
        return f"it takes one block a query, {problem.all_heads * problem.sq}, and a grid has at most {MAX_GRID_X}"
    return True


def _fused_shared(problem: AttentionProblem) -> int:
    return (FUSED_ROWS * problem.d + 32 * (problem.d + 1) + FUSED_ROWS * problem.skv) * 4


def _fused_rows(problem: AttentionProblem) -> Config:
    blocks = problem.all_heads * ceil_div(problem.sq, FUSED_ROWS)
    entry = f"fused_rows<{CPP[problem.dtype]}, {FUSED_ROWS}>"
    return Config(entry, blocks, FUSED_ROWS * 32, _fused_shared(problem))


def _takes_fused_rows(problem: AttentionProblem) -> bool | str:
    shared = _fused_shared(problem)
    if shared > problem.shared:
        return f"the scores of {FUSED_ROWS} queries and {problem.skv} keys do not fit {problem.shared} shared bytes"
    return problem.all_heads * ceil_div(problem.sq, FUSED_ROWS) <= MAX_GRID_X or "it has more blocks than a grid"


def _online(problem: AttentionProblem) -> Config:
    d = problem.padded
    for rows, keys in ((128, 64), (64, 32), (32, 16)):  # the largest tiles that fit
        shared = ((rows + 2 * keys) * d + rows * (keys + 4)) * 4
        if shared <= problem.shared:
            break
    vector = 16 // problem.itemsize if problem.alignment == 16 else 1
    entry = f"online<{CPP[problem.dtype]}, {d}, {rows}, {keys}, {vector}>"
    return Config(entry, problem.all_heads * ceil_div(problem.sq, rows), 256, shared, arguments=_powers_of_two)


def _tensor_cores(problem: AttentionProblem) -> Config:
    d, warps = problem.padded, 4
    keys = 32 if d > 128 else 64
    vector = 8 if problem.alignment == 16 else 1
    shared = (warps * 16 + 2 * keys) * (d + 8) * 2
    entry = f"tensor_cores<{CPP[problem.dtype]}, {d}, {warps}, {keys}, {vector}>"
    blocks = problem.all_heads * ceil_div(problem.sq, warps * 16)
    return Config(entry, blocks, warps * 32, shared, arguments=_powers_of_two)


def _halves(problem: AttentionProblem) -> bool | str:
    return problem.dtype != "float32" or "tensor cores take float16 and bfloat16, not float32"


def _takes_flash(problem: AttentionProblem) -> bool | str:
    if problem.dtype == "float32":
        return _halves(problem)
    return (
        problem.alignment == 16 or "it copies 16 bytes at a time: every row of q, k, v and out must begin on 16 bytes"
    )


VARIANTS: tuple[Variant[AttentionProblem], ...] = (
    Variant(
        1,
        "three_passes",
        "scores, their softmax, the weighted sum: three kernels",
        "attention/01_three_passes.cu",
        _three_passes,
        _takes_three_passes,
        scratch=_scores_bytes,
    ),
    Variant(
        2,
        "fused_rows",
        "the scores of eight queries stay in shared memory",
        "attention/02_fused_rows.cu",
        _fused_rows,
        _takes_fused_rows,
    ),
    Variant(
        3,
        "online",
        "scores never stored: a running maximum and sum, output in registers",
        "attention/03_online.cu",
        _online,
        since="sm_80",
    ),
    Variant(
        4,
        "tensor_cores",
        "both products on tensor cores, scores and output of 16 queries in a warp's registers",
        "attention/04_tensor_cores.cu",
        _tensor_cores,
        _halves,
        since="sm_80",
        problems="16 bits",
    ),
    Variant(
        5,
        "flash",
        "copies a tile ahead of the arithmetic; each fragment of keys and values used for 32 queries",
        "attention/05_flash.cu",
        _flash,
        _takes_flash,
        since="sm_80",
        problems="aligned",
    ),
)


def choose(problem: AttentionProblem, arch: str) -> str:
    """The rung that "auto" means: the highest that takes the problem, which is the fastest on an H200."""
    supported = (variant.name for variant in reversed(VARIANTS) if variant.refusal(problem, arch) is None)
    return next(supported, VARIANTS[0].name)


def _traffic(problem: AttentionProblem) -> int:
    rows = 2 * problem.all_heads * problem.sq + 2 * problem.batches * problem.key_heads * problem.skv
    return rows * problem.d * problem.itemsize


FAMILY: Family[AttentionProblem] = Family(
    name="attention",
    variants=VARIANTS,
    make_inputs=make_inputs,
    output_like=lambda inputs, **options: (tuple(inputs[0].shape), inputs[0].dtype),
    reference=reference,
    rounding=rounding,
    baseline=baseline,
    problem=problem,
    arguments=_arguments,
    traffic=_traffic,
    flops=lambda problem: 4 * problem.all_heads * problem.pairs * problem.d,
    choose=choose,
    empty=lambda problem: problem.all_heads * problem.sq == 0,
    shapes={
        "gpu": ((8, 16, 16, 2048, 2048, 128),),
        "sim": ((1, 2, 1, 17, 33, 32), (1, 1, 1, 40, 70, 64)),
        "sim sweep": ((1, 2, 1, 17, 33, 32), (1, 1, 1, 40, 70, 64), (1, 1, 1, 33, 5, 128)),
        "sweep": (
            (32, 16, 16, 512, 512, 128),
            (8, 16, 16, 2048, 2048, 128),
            (2, 16, 16, 8192, 8192, 128),
            (1, 16, 16, 16384, 16384, 128),
            (2, 32, 32, 8192, 8192, 64),
            (8, 16, 4, 2048, 2048, 128),
            (8, 8, 8, 2048, 2048, 256),
            (3, 7, 7, 1000, 1777, 96),
        ),
    },
    dtypes=("bfloat16", "float16", "float32"),
    modes={"": {}, "causal": {"causal": True}},
    scalars={"scale": Scalar("scale", read_scale, kind=lambda scale: scale is None)},
    ceiling="peer:torch-flash",
)


def attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """softmax(q k^T * scale) v: cudakit's arrays, torch's or CuPy's, and so is the result.

    q: (batch, heads, queries, d); k, v: (batch, key heads, keys, d), heads a multiple of key heads; d a multiple of 8,
    up to 256; float32, float16 or bfloat16, all alike; any strides that keep the last axis contiguous, so that arrays
    laid out (batch, length, heads, d) come as transposed views. out: where to write, of the shape of q, apart from the
    inputs; a new array unless given. causal: query i sees the keys up to i + keys - queries. scale: 1 / sqrt(d) unless
    given. variant: a rung by name, or "auto". stream: the device's default stream, or torch's or CuPy's current one,
    unless given. Returns without waiting. Raises ValueError for arrays it does not take, UnsupportedVariant for a rung
    that does not take them.
    """
    return front.apply(FAMILY, (q, k, v), out, variant, stream, options={"causal": causal, "scale": scale})
