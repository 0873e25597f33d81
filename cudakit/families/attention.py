"""Attention, forward: o = softmax(q k^T * scale) v for each head, without and with a causal limit.

`attention(q, k, v)` picks the best rung; `FAMILY` is the ladder. q is (batch, heads, queries, d), k and v are
(batch, key heads, keys, d); where there are fewer key heads, neighbouring query heads share one (grouped queries). The
causal limit is aligned at the end: the last query sees every key, and query i the keys up to i + keys - queries (as
FlashAttention-2 has it; torch's is_causal aligns at the beginning). A query that sees no key gives 0.

Scores and sums are float32 in every rung. A NaN in q or k makes NaN of each query whose scores it enters, as does a
score of +inf, or nothing but scores of -inf. v has to be finite where a causal limit hides it: 0 * NaN is NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families.attention_host import baseline, make_inputs, reference, rounding
from cudakit.families.attention_problem import AttentionProblem, problem, read_scale
from cudakit.family import (
    CPP,
    IN,
    MAX_GRID_X,
    OUT,
    SCRATCH,
    Family,
    Launch,
    Scalar,
    apply,
    ceil_div,
    cpp_bool,
    variant,
)

LOG2_E = 1 / math.log(2)
# Bytes of keys and values of the heads that advance together under a causal limit (see 05_flash.cu). Measured on an
# H200, whose L2 has 60 MiB: 64 MiB is 2 to 14 % faster than 4, and no slower than more.
SHARED_KEYS = 64 << 20

# Queries of a block of 02_fused_rows.cu.
FUSED_ROWS = 8
# Scratch memory that 01_three_passes.cu may ask for.
MOST_SCORES = 8 << 30

_ALIGNED = "it copies 16 bytes at a time: every row of q, k, v and out must begin on 16 bytes"
_HALVES = "tensor cores take float16 and bfloat16, not float32"


def _sizes(problem: AttentionProblem) -> tuple[int, ...]:
    group = problem.heads // max(problem.key_heads, 1)
    return (problem.heads, group, problem.sq, problem.skv, problem.d)


def _arguments(problem: AttentionProblem, scale: float) -> tuple[Any, ...]:
    """q, k, v and out, their strides, the sizes, the factor on scores, the causal limit."""
    p = problem
    return (*IN[:3], OUT, *sum(p.strides, ()), p.batches, *_sizes(p), scale, int(p.causal))


def _powers_of_two(problem: AttentionProblem) -> tuple[Any, ...]:
    """The same for kernels that take powers of two."""
    return _arguments(problem, problem.scale * LOG2_E)


@variant("attention/01_three_passes.cu")
def three_passes(problem: AttentionProblem) -> tuple[Launch, ...] | str:
    """scores, their softmax, the weighted sum: three kernels"""
    p, rows = problem, problem.all_heads * problem.sq
    scratch = max(rows * p.skv, 1) * 4
    if scratch > MOST_SCORES:
        return f"its scores take {scratch} bytes of scratch memory, over {MOST_SCORES}"
    if rows > MAX_GRID_X:
        return f"it takes one block a query, {rows}, and a grid has at most {MAX_GRID_X}"
    cpp, causal, sizes, scores = CPP[p.dtype], int(p.causal), _sizes(p), SCRATCH.at(dtype=np.float32)
    q, k, v = IN[:3]
    q_strides, k_strides, v_strides, o_strides = p.strides
    of_scores = (q, k, scores, *q_strides, *k_strides, *sizes, p.scale, causal)
    of_values = (scores, v, OUT, *v_strides, *o_strides, *sizes, causal)
    return (
        Launch(rows, 256, of_scores, entry=f"scores<{cpp}>", scratch=scratch),
        Launch(rows, 256, (scores, p.sq, p.skv, causal), entry="softmax_rows"),
        Launch(rows, ceil_div(p.d, 32) * 32, of_values, entry=f"weigh_values<{cpp}>"),
    )


@variant("attention/02_fused_rows.cu")
def fused_rows(problem: AttentionProblem) -> Launch | str:
    """the scores of eight queries stay in shared memory"""
    p = problem
    shared = (FUSED_ROWS * p.d + 32 * (p.d + 1) + FUSED_ROWS * p.skv) * 4
    if shared > p.shared:
        return f"the scores of {FUSED_ROWS} queries and {p.skv} keys do not fit {p.shared} shared bytes"
    blocks = p.all_heads * ceil_div(p.sq, FUSED_ROWS)
    if blocks > MAX_GRID_X:
        return "it has more blocks than a grid"
    entry = f"fused_rows<{CPP[p.dtype]}, {FUSED_ROWS}>"
    return Launch(blocks, FUSED_ROWS * 32, _arguments(p, p.scale), shared, entry)


@variant("attention/03_online.cu", since="sm_80")
def online(problem: AttentionProblem) -> Launch:
    """scores never stored: a running maximum and sum, output in registers"""
    d = problem.padded
    for rows, keys in ((128, 64), (64, 32), (32, 16)):  # the largest tiles that fit
        shared = ((rows + 2 * keys) * d + rows * (keys + 4)) * 4
        if shared <= problem.shared:
            break
    vector = 16 // problem.itemsize if problem.alignment == 16 else 1
    entry = f"online<{CPP[problem.dtype]}, {d}, {rows}, {keys}, {vector}>"
    return Launch(problem.all_heads * ceil_div(problem.sq, rows), 256, _powers_of_two(problem), shared, entry)


@variant("attention/04_tensor_cores.cu", since="sm_80", problems="16 bits")
def tensor_cores(problem: AttentionProblem) -> Launch | str:
    """both products on tensor cores, scores and output of 16 queries in a warp's registers"""
    if problem.dtype == "float32":
        return _HALVES
    d, warps = problem.padded, 4
    keys = 32 if d > 128 else 64
    vector = 8 if problem.alignment == 16 else 1
    shared = (warps * 16 + 2 * keys) * (d + 8) * 2
    entry = f"tensor_cores<{CPP[problem.dtype]}, {d}, {warps}, {keys}, {vector}>"
    blocks = problem.all_heads * ceil_div(problem.sq, warps * 16)
    return Launch(blocks, warps * 32, _powers_of_two(problem), shared, entry)


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


@variant("attention/05_flash.cu", since="sm_80", problems="aligned")
def flash(problem: AttentionProblem) -> Launch | str:
    """copies a tile ahead of the arithmetic; each fragment of keys and values used for 32 queries"""
    tiles = FLASH_TILES[problem.padded]
    return flash_launch(problem, next((tile for tile in tiles if tile.shared <= problem.shared), tiles[-1]))


def flash_launch(problem: AttentionProblem, tile: FlashTile) -> Launch | str:
    """The launch of 05_flash.cu with a tile."""
    p = problem
    if p.dtype == "float32":
        return _HALVES
    if p.alignment != 16:
        return _ALIGNED
    entry = f"flash<{CPP[p.dtype]}, {tile.d}, {tile.warps}, {tile.tiles}, {tile.keys}, {cpp_bool(p.d != tile.d)}>"
    bytes_a_head = max(2 * p.skv * p.d * p.itemsize, 1)
    section = min(max(SHARED_KEYS // bytes_a_head, 1), p.all_heads) if p.causal else 1
    blocks = p.all_heads * ceil_div(p.sq, tile.queries)
    return Launch(blocks, tile.warps * 32, (*_powers_of_two(p), section), tile.shared, entry)


LADDER = (three_passes, fused_rows, online, tensor_cores, flash)


def choose(problem: AttentionProblem, arch: str) -> str:
    """The rung that "auto" means: the highest that takes the problem, which is the fastest on an H200."""
    supported = (rung.name for rung in reversed(LADDER) if rung.refusal(problem, arch) is None)
    return next(supported, LADDER[0].name)


def _call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> Callable[[], Any]:
    q, k, v = inputs
    return functools.partial(attention, q, k, v, out, variant=variant, stream=stream, **options)


FAMILY: Family[AttentionProblem] = Family(
    name="attention",
    reference=reference,
    variants=LADDER,
    inputs=make_inputs,
    outputs=lambda q, k, v, **options: (tuple(q.shape), q.dtype),
    widened=False,
    problem=problem,
    rounding=rounding,
    baseline=baseline,
    flops=lambda problem: 4 * problem.all_heads * problem.pairs * problem.d,
    choose=choose,
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
    problems="cudakit.testing.attention:attention_cases",
)
FAMILY.call = _call


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
    return apply(FAMILY, (q, k, v), out, variant, stream, {"causal": causal, "scale": scale})
