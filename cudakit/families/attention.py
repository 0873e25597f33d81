"""Attention, forward: o = softmax(q k^T * scale) v for each head, with or without a causal mask.

`attention(q, k, v)` picks the fastest variant; `FAMILY` is the ladder. q is (batch, heads, queries, d), k and v are
(batch, key heads, keys, d). If there are fewer key heads than heads, neighbouring query heads share a key head
(grouped-query attention). The causal mask is aligned to the last query and key: query i sees the keys up to i + keys -
queries, so that the last query sees every key. FlashAttention-2 does the same; torch's is_causal aligns to the first
query and key. The output of a query that sees no key is 0.

With `lengths`, each batch entry has its own number of queries and keys, at the beginning of its rows (a padded batch).
The rows after them are not read, and the outputs of queries after them are 0.

Scores and sums are float32 in every variant. The output of a query is NaN if one of its scores is NaN or +inf, or if
all are -inf. v must be finite even if the causal mask hides it, because 0 * NaN is NaN.
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
# Bytes of keys and values of the heads that are processed at the same time with a causal mask (see 05_flash.cu).
# Measured on an H200 (60 MiB of L2): 64 MiB is 2 to 14 % faster than 4 MiB, and no slower than more.
SHARED_KEYS = 64 << 20

# Queries per block of 02_fused_rows.cu.
FUSED_ROWS = 8
# The most scratch memory, in bytes, that 01_three_passes.cu may request.
MOST_SCORES = 8 << 30

_ALIGNED = "copies 16 bytes at a time: every row of q, k, v and out must start on a 16-byte boundary"
_HALVES = "tensor cores support float16 and bfloat16, not float32"
_LENGTHS = "lengths per batch entry are supported by online and flash only"


def _sizes(problem: AttentionProblem) -> tuple[int, ...]:
    group = problem.heads // max(problem.key_heads, 1)
    return (problem.heads, group, problem.sq, problem.skv, problem.d)


def _arguments(problem: AttentionProblem, scale: float) -> tuple[Any, ...]:
    """Return q, k, v and out, their strides, the sizes, the scale of scores, and the causal flag."""
    p = problem
    return (*IN[:3], OUT, *sum(p.strides, ()), p.batches, *_sizes(p), scale, int(p.causal))


def _powers_of_two(problem: AttentionProblem) -> tuple[Any, ...]:
    """Return the arguments of kernels that compute exponentials in base 2: the scale is multiplied by log2(e)."""
    return _arguments(problem, problem.scale * LOG2_E)


def _with_lengths(kernel: str, problem: AttentionProblem) -> tuple[str, tuple[Any, ...]]:
    """Return the name of the kernel for the problem, and its last arguments, for the lengths of batch entries."""
    return (kernel, ()) if problem.lengths is None else (f"{kernel}_lengths", (IN[3], *problem.lengths))


@variant("attention/01_three_passes.cu")
def three_passes(problem: AttentionProblem) -> tuple[Launch, ...] | str:
    """scores, their softmax, the weighted sum: three kernels"""
    if problem.lengths is not None:
        return _LENGTHS
    p, rows = problem, problem.all_heads * problem.sq
    scratch = max(rows * p.skv, 1) * 4
    if scratch > MOST_SCORES:
        return f"at most {MOST_SCORES} bytes of scratch memory for scores supported, got {scratch}"
    if rows > MAX_GRID_X:
        return f"at most {MAX_GRID_X} queries in all heads supported (one block per query), got {rows}"
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
    if problem.lengths is not None:
        return _LENGTHS
    p = problem
    shared = (FUSED_ROWS * p.d + 32 * (p.d + 1) + FUSED_ROWS * p.skv) * 4
    if shared > p.shared:
        return f"{FUSED_ROWS} queries and {p.skv} keys need {shared} bytes of shared memory, over {p.shared}"
    blocks = p.all_heads * ceil_div(p.sq, FUSED_ROWS)
    if blocks > MAX_GRID_X:
        return f"at most {MAX_GRID_X} blocks supported, got {blocks}"
    entry = f"fused_rows<{CPP[p.dtype]}, {FUSED_ROWS}>"
    return Launch(blocks, FUSED_ROWS * 32, _arguments(p, p.scale), shared, entry)


@variant("attention/03_online.cu", since="sm_80", problems="lengths")
def online(problem: AttentionProblem) -> Launch:
    """scores never stored: a running maximum and sum, output in registers"""
    d = problem.padded
    for rows, keys in ((128, 64), (64, 32), (32, 16)):  # the largest tile that fits
        shared = ((rows + 2 * keys) * d + rows * (keys + 4)) * 4
        if shared <= problem.shared:
            break
    vector = 16 // problem.itemsize if problem.alignment == 16 else 1
    name, own = _with_lengths("online", problem)
    entry = f"{name}<{CPP[problem.dtype]}, {d}, {rows}, {keys}, {vector}>"
    blocks = problem.all_heads * ceil_div(problem.sq, rows)
    return Launch(blocks, 256, (*_powers_of_two(problem), *own), shared, entry)


@variant("attention/04_tensor_cores.cu", since="sm_80", problems="16 bits")
def tensor_cores(problem: AttentionProblem) -> Launch | str:
    """both products on tensor cores, scores and output of 16 queries in a warp's registers"""
    if problem.dtype == "float32":
        return _HALVES
    if problem.lengths is not None:
        return _LENGTHS
    d, warps = problem.padded, 4
    keys = 32 if d > 128 else 64
    vector = 8 if problem.alignment == 16 else 1
    shared = (warps * 16 + 2 * keys) * (d + 8) * 2
    entry = f"tensor_cores<{CPP[problem.dtype]}, {d}, {warps}, {keys}, {vector}>"
    blocks = problem.all_heads * ceil_div(problem.sq, warps * 16)
    return Launch(blocks, warps * 32, _powers_of_two(problem), shared, entry)


@dataclass(frozen=True)
class FlashTile:
    """The template constants of 05_flash.cu: head size, warps per block, tiles of 16 queries per warp, keys per
    tile."""

    d: int
    warps: int
    tiles: int
    keys: int

    @property
    def queries(self) -> int:
        """Queries per block."""
        return self.warps * self.tiles * 16

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the queries, and two buffers of keys and values."""
        return (self.queries + 4 * self.keys) * self.d * 2


# Tiles by head size, the fastest first (measured on an H200). The first that fits in the device's shared memory is
# used.
FLASH_TILES = {
    32: (FlashTile(32, 4, 2, 64),),
    64: (FlashTile(64, 4, 2, 64),),
    96: (FlashTile(96, 4, 2, 64),),
    128: (FlashTile(128, 4, 2, 64),),
    256: (FlashTile(256, 8, 1, 64), FlashTile(256, 4, 1, 32)),
}


@variant("attention/05_flash.cu", since="sm_80", problems="aligned")
def flash(problem: AttentionProblem) -> Launch | str:
    """copies one tile ahead of the arithmetic; each fragment of keys and values used for 32 queries"""
    tiles = FLASH_TILES[problem.padded]
    return flash_launch(problem, next((tile for tile in tiles if tile.shared <= problem.shared), tiles[-1]))


def flash_launch(problem: AttentionProblem, tile: FlashTile) -> Launch | str:
    """Return the launch of 05_flash.cu with `tile`, or the reason why it is unsupported."""
    p = problem
    if p.dtype == "float32":
        return _HALVES
    if p.alignment != 16:
        return _ALIGNED
    name, own = _with_lengths("flash", p)
    entry = f"{name}<{CPP[p.dtype]}, {tile.d}, {tile.warps}, {tile.tiles}, {tile.keys}, {cpp_bool(p.d != tile.d)}>"
    bytes_a_head = max(2 * p.skv * p.d * p.itemsize, 1)
    section = min(max(SHARED_KEYS // bytes_a_head, 1), p.all_heads) if p.causal else 1
    blocks = p.all_heads * ceil_div(p.sq, tile.queries)
    return Launch(blocks, tile.warps * 32, (*_powers_of_two(p), section, *own), tile.shared, entry)


LADDER = (three_passes, fused_rows, online, tensor_cores, flash)


def choose(problem: AttentionProblem, arch: str) -> str:
    """Return the variant for "auto": the last in the ladder that supports the problem, the fastest on an H200."""
    supported = (rung.name for rung in reversed(LADDER) if rung.refusal(problem, arch) is None)
    return next(supported, LADDER[0].name)


def _call(
    inputs: Sequence[Any], out: Any, variant: str, stream: Any, padded: bool = False, **options: Any
) -> Callable[[], Any]:
    q, k, v, *own = inputs
    lengths = own[0] if padded else None
    return functools.partial(attention, q, k, v, out, lengths=lengths, variant=variant, stream=stream, **options)


FAMILY: Family[AttentionProblem] = Family(
    name="attention",
    reference=reference,
    variants=LADDER,
    inputs=make_inputs,
    outputs=lambda q, k, v, lengths=None, **options: (tuple(q.shape), q.dtype),
    widened=False,
    problem=problem,
    rounding=rounding,
    baseline=baseline,
    flops=lambda problem: 0 if problem.lengths else 4 * problem.all_heads * problem.pairs * problem.d,
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
    modes={
        "": {},
        "causal": {"causal": True},
        "lengths": {"padded": True},
        "causal-lengths": {"causal": True, "padded": True},
    },
    scalars={"scale": Scalar("scale", read_scale, kind=lambda scale: scale is None)},
    ceiling="peer:torch-*",
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
    lengths: Any = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return softmax(q k^T * scale) v, for arrays of cudakit, torch or CuPy.

    Does not wait for the device. Arrays are float32, float16 or bfloat16, all of one dtype, with any strides that keep
    the last axis contiguous: pass arrays of layout (batch, length, heads, d) as transposed views.

    Args:
        q: Shape (batch, heads, queries, d); d is a multiple of 8, at most 256.
        k: Shape (batch, key heads, keys, d); heads is a multiple of key heads.
        v: The shape of `k`.
        out: The output, of the shape of `q`, separate from the inputs. By default a new array.
        causal: If true, query i sees only the keys up to i + keys - queries.
        scale: The factor on scores, by default 1 / sqrt(d).
        lengths: The number of queries and keys of each batch entry, an int32 array of the inputs' library: shape
            (batch,) if both are equal, (batch, 2) for queries and keys. By default all. Later rows of an entry are not
            read, and the outputs of later queries are 0. Numbers below 0 or above the extents of `q` and `k` count as
            these.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library, of the shape of `q`.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    inputs = (q, k, v) if lengths is None else (q, k, v, lengths)
    return apply(FAMILY, inputs, out, variant, stream, {"causal": causal, "scale": scale})
