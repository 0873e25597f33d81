"""The problem of attention: extents, strides and options of q, k, v and the output, and the checks of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudakit.family import CPP, MAX_GRID_X, ceil_div, checks
from cudakit.family import alignment as alignment_of
from cudakit.memory import array as memory

MAX_D = 256
MAX_LENGTH = 2**30

Strides = tuple[int, int, int]

_TWICE = (
    "the output of attention with strides {output.strides_elements} (elements) may store two elements at one "
    "address, a data race: pass an output whose elements do not overlap"
)


@dataclass(frozen=True)
class AttentionProblem:
    """Extents; the strides of (batch, head, row) of q, k, v and o, in elements (the last axis is contiguous);
    `alignment`, in bytes (at most 16), of every row of all four; the name of the dtype; whether there is a causal mask;
    the scale of scores; `shared`, the bytes of shared memory that the device allows per block; `lengths`, the elements
    between the lengths of two batch entries, and from an entry's number of queries to its number of keys, or None if
    every entry has all queries and keys."""

    batches: int
    heads: int
    key_heads: int
    sq: int
    skv: int
    d: int
    strides: tuple[Strides, Strides, Strides, Strides]
    alignment: int
    dtype: str
    causal: bool
    scale: float
    shared: int
    lengths: tuple[int, int] | None = None

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.key_heads else f"{self.heads} on {self.key_heads}"
        limit = ("causal, " if self.causal else "") + ("own lengths, " if self.lengths else "")
        return (
            f"attention of {self.batches} x {heads} heads, {self.sq} queries, {self.skv} keys, head size {self.d}, "
            f"{limit}{self.dtype}"
        )

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return memory.as_dtype(self.dtype).itemsize

    @property
    def all_heads(self) -> int:
        """Query heads of all batches."""
        return self.batches * self.heads

    @property
    def pairs(self) -> int:
        """The number of (query, visible key) pairs in one head of an entry that has all queries and keys."""
        if not self.causal:
            return self.sq * self.skv
        seen, blind = min(self.sq, self.skv), max(self.skv - self.sq, 0)
        return seen * blind + seen * (seen + 1) // 2

    @property
    def padded(self) -> int:
        """The smallest head size, at least d, that tensor core kernels have a tile for."""
        return next(size for size in (32, 64, 96, 128, 256) if size >= self.d)


def problem(
    inputs: Sequence[Any], output: Any, causal: bool = False, scale: float | None = None, padded: bool = False
) -> AttentionProblem:
    """Return the problem of q, k, v, optional lengths, and the output. Raise ValueError for unsupported arrays."""
    q, k, v, *own = inputs
    names = {array.dtype.name for array in (q, k, v, output)}
    if len(names) > 1 or q.dtype.name not in CPP:
        got = ", ".join(str(array.dtype) for array in (q, k, v, output))
        raise ValueError(
            f"attention takes q, k, v and out of one dtype, {', '.join(CPP)}; got {got}: convert them first"
        )
    if any(len(array.shape) != 4 for array in (q, k, v)):
        got = ", ".join(str(tuple(array.shape)) for array in (q, k, v))
        raise ValueError(
            f"attention takes q, k and v of shape (batch, heads, length, d), got {got}: reshape them first"
        )
    batches, heads, sq, d = q.shape
    key_heads, skv = k.shape[1:3]
    if tuple(k.shape) != (batches, key_heads, skv, d) or tuple(v.shape) != tuple(k.shape):
        raise ValueError(
            f"attention takes k and v of one shape (batch, key heads, keys, d), with the batch and d of q, "
            f"{tuple(q.shape)}; got k {tuple(k.shape)} and v {tuple(v.shape)}"
        )
    if heads and (not key_heads or heads % key_heads):
        raise ValueError(
            f"attention needs a number of query heads that is a multiple of the key heads, got {heads} query heads and "
            f"{key_heads} key heads"
        )
    if not 8 <= d <= MAX_D or d % 8:
        raise ValueError(
            f"attention takes head sizes 8 to {MAX_D} that are multiples of 8, got {d}: pad q, k and v with zeros "
            "and pass scale=1/sqrt(the original size)"
        )
    if max(sq, skv) > MAX_LENGTH or batches * heads * ceil_div(sq, 16) > MAX_GRID_X:
        raise ValueError(
            f"attention takes lengths up to {MAX_LENGTH} and at most {MAX_GRID_X} blocks of 16 queries, got "
            f"{batches * heads} heads of {sq} queries and {skv} keys: split the batch"
        )
    if tuple(output.shape) != tuple(q.shape):
        raise ValueError(f"attention writes an output of the shape of q, {tuple(q.shape)}, got {tuple(output.shape)}")
    named = [("q", q), ("k", k), ("v", v)]
    for name, array in (*named, ("out", output)):
        if array.size and array.strides_elements[-1] != 1:
            raise ValueError(
                f"attention takes arrays whose last axis is contiguous, {name} has a stride of "
                f"{array.strides_elements[-1]} elements there: copy it first"
            )
    lengths = _lengths(own[0], batches) if own else None
    checks.expect_output("attention", output, separate=(*named, *(("lengths", x) for x in own)), twice=_TWICE)
    factor = 1 / math.sqrt(d) if scale is None else read_scale(scale)
    arrays = (q, k, v, output)
    strides: Any = tuple(tuple(array.strides_elements[:3]) for array in arrays)
    sizes = (batches, heads, key_heads, sq, skv, d)
    shared = int(output.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
    alignment = _row_alignment(arrays)
    return AttentionProblem(*sizes, strides, alignment, q.dtype.name, bool(causal), factor, shared, lengths)


def _lengths(array: Any, batches: int) -> tuple[int, int]:
    """Return the strides of an array of lengths: between batch entries, and from queries to keys."""
    if array.dtype.name != "int32" or tuple(array.shape) not in ((batches,), (batches, 2)):
        raise ValueError(
            f"attention takes lengths of int32 and shape ({batches},), or ({batches}, 2) for the queries and the keys "
            f"of each batch entry, got {array.dtype} {tuple(array.shape)}: convert them first"
        )
    step, *to_keys = array.strides_elements
    return int(step), int(to_keys[0]) if to_keys else 0


def read_scale(scale: float) -> float:
    """Return `scale` as a float. Raise ValueError unless it is positive and finite."""
    factor = float(scale)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"attention takes a positive finite scale, got {scale}: for a negative scale, negate q")
    return factor


def _row_alignment(arrays: Sequence[Any]) -> int:
    """Return 16 if every row of every array starts on a 16-byte boundary, otherwise the item size."""
    for array in arrays:
        steps = [stride for stride, extent in zip(array.strides[:3], array.shape[:3], strict=True) if extent > 1]
        if array.size and (alignment_of(array) != 16 or any(step % 16 for step in steps)):
            return int(arrays[0].itemsize)
    return 16
