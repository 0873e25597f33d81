"""Problems of the softmax_backward family."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Values, aligned_rows, contiguous, extents, known, layouts
from cudakit.testing.softmax import TWO_BLOCKS


@dataclass(frozen=True)
class Probabilities:
    """A filler: the softmax of rows of normal numbers times `spread`, or its logarithm. density: the fraction of
    elements that is not masked; masked elements are 0, or -inf with log."""

    seed: int
    spread: float
    density: float
    log: bool

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        kept = rng.random(shape) < self.density
        powers = np.where(kept, np.exp(rng.standard_normal(shape) * self.spread), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(kept, powers / powers.sum(axis=-1, keepdims=True), 0.0)
            return np.log(values) if self.log else values


@functools.cache
def _gradients(dtype: str) -> st.SearchStrategy[Values]:
    """Return a strategy for fillers of grad whose sums do not overflow in any order, with infinities and NaN."""
    scales = (1.0, 1.0, 4.0, 0.1) if dtype == "float16" else (1.0, 1.0, 10.0, 1e-3, 1e4, 1e15)
    special = st.sampled_from((np.inf, -np.inf, np.nan, 1e-45, -0.0))
    places = st.lists(st.tuples(st.floats(0, 1), special), max_size=2).map(tuple)
    return st.builds(Values, st.integers(0, 2**32 - 1), st.sampled_from(scales), places)


@st.composite
def softmax_backward_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems with at most `elements` elements per array: three dtypes, 1-D and 2-D, gradients repeated along
    rows or columns, in place over grad and over y.

    kind "vectors": rows of a multiple of 16 bytes on 16-byte boundaries. y is 0 or at least about e^-30: an infinite
    sum times a number that underflows is NaN only in float32.
    """
    known(kind, "vectors")
    dtype = draw(st.sampled_from(("float32", "float16", "bfloat16")))
    cols = draw(extents(max(elements, TWO_BLOCKS) if kind else elements))
    if kind:
        cols = -(-cols // 8) * 8
    elif draw(st.booleans()):
        cols -= cols % 8
    shape: tuple[int, ...] = (draw(extents(max(1, min(elements // max(cols, 1), 300)))), cols)
    if draw(st.integers(0, 7)) == 0:
        shape = (cols,)
    over = draw(st.sampled_from((None, None, 0, 1)))
    plain = draw(st.booleans())

    def place(number: int | None) -> Any:
        if kind:
            return aligned_rows(draw, shape, dtype)
        if plain or draw(st.booleans()):
            return contiguous(shape, 0, dtype)
        return draw(layouts(shape, output=number in (None, over), dtype=dtype))

    log = draw(st.booleans())
    spread, density = draw(st.sampled_from((1.0, 3.0, 0.0))), draw(st.sampled_from((1.0, 1.0, 0.7, 0.0)))
    y = Probabilities(draw(st.integers(0, 2**32 - 1)), spread, density, log)
    options = {"log": log, "scale": draw(st.sampled_from((1.0, 0.125, -0.3)))}
    output = place(None) if over is None else None
    return Case((place(0), place(1)), (draw(_gradients(dtype)), y), output, options, over=over or 0)
