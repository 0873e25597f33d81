"""Problems of the attention family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, known, nested

# Head sizes: mostly small ones that have a tile, some padded. Each size compiles each variant again, so small problems
# use only the smallest sizes.
HEAD_SIZES = (32, 32, 32, 64, 64, 24, 128)
SMALL, SMALL_HEAD_SIZES = 2000, (32, 32, 24)


@dataclass(frozen=True)
class Normals:
    """A filler: normal numbers of one scale, with special values at drawn places (fractions of the array)."""

    seed: int
    scale: float = 1.0
    specials: tuple[tuple[float, float], ...] = ()

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        values = (np.random.default_rng(self.seed).standard_normal(shape) * self.scale).astype(np.float32)
        for place, special in self.specials if values.size else ():
            values.flat[int(place * (values.size - 1))] = special
        return values


@dataclass(frozen=True)
class Lengths:
    """A filler: random lengths from -1 to one more than `most`, which may differ per column (queries and keys)."""

    seed: int
    most: tuple[int, ...]

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.random.default_rng(self.seed).integers(-1, np.array(self.most) + 2, shape)


@st.composite
def attention_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of the attention family: grouped heads, odd lengths, more and fewer keys than queries, (batch,
    head, length) and (batch, length, head) layouts with gaps, aligned or not. kind "lengths": also lengths per batch
    entry; "16 bits": only 16-bit dtypes; "aligned": lengths, 16-bit dtypes, and every row on a 16-byte boundary.

    Scores stay below about a hundred: for larger ones, the softmax turns the rounding of a score into an error of any
    size, which differs between algorithms. Special values are only in q and k: the result of 0 * inf with v depends on
    which probabilities underflow.
    """
    known(kind, "lengths", "16 bits", "aligned")
    d = draw(st.sampled_from(SMALL_HEAD_SIZES if elements <= SMALL else HEAD_SIZES))
    key_heads, group = draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (1, 2), (1, 3), (2, 2))))
    heads, batches = key_heads * group, draw(st.sampled_from((1, 1, 1, 2, 0)))
    most = max(2, elements // (d * heads * max(batches, 1) * 2))
    edges = [n for n in (0, 1, 2, 5, 16, 17, 31, 33, 63, 64, 65, 127, 129, 130, 193) if n <= most]
    lengths = st.one_of(st.sampled_from(edges), st.integers(0, most))
    sq, skv = draw(lengths), draw(lengths)
    halves = ("float16", "bfloat16")
    dtype = draw(st.sampled_from(halves if kind in ("16 bits", "aligned") else (*halves, "float32")))
    aligned = kind == "aligned" or draw(st.sampled_from((True, True, False)))

    def place(heads: int, length: int) -> Layout:
        order = draw(st.sampled_from(((3, 2, 1, 0), (3, 1, 2, 0), (3, 2, 0, 1))))
        unit = 8 if aligned else 1
        gaps = {axis: unit * draw(st.sampled_from((0, 0, 1, 3))) for axis in (0, 1, 2)}
        shape = (batches, heads, length, d)
        lead = 0 if aligned else draw(st.integers(0, 5))
        return Layout(shape, nested(shape, order, lambda axis: gaps.get(axis, 0)), lead, dtype)

    inputs: tuple[Layout, ...] = (place(heads, sq), place(key_heads, skv), place(key_heads, skv))
    scale = draw(st.sampled_from((1.0, 1.0, 3.0, 1e-3)))
    special = st.sampled_from((np.inf, -np.inf, np.nan, -0.0))
    specials = draw(st.lists(st.tuples(st.floats(0, 1), special), max_size=2).map(tuple))
    seed = draw(st.integers(0, 2**32 - 1))
    fill: tuple[Any, ...] = (Normals(seed, scale, specials), Normals(seed + 1, 1.0, specials[:1]), Normals(seed + 2))
    if kind in ("lengths", "aligned") and draw(st.booleans()):
        both = draw(st.booleans())
        shape = (batches, 2) if both else (batches,)
        order = draw(st.permutations(range(len(shape)))) if both else (0,)
        inputs += (Layout(shape, nested(shape, order, lambda axis: 0), draw(st.integers(0, 3)), "int32"),)
        fill += (Lengths(seed + 3, (sq, skv) if both else (max(sq, skv),)),)
    options: dict[str, Any] = {"causal": draw(st.booleans())}
    if draw(st.integers(0, 3)) == 0:
        options["scale"] = draw(st.sampled_from((1.0, 0.0625, 0.3)))
    return Case(inputs, fill, place(heads, sq), options)
