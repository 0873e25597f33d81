"""Problems of the families sum, max and argmax."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, Values, contiguous, extents, known, layouts, nested


@dataclass(frozen=True)
class Ties:
    """A filler of few different values, so that maxima have many ties."""

    seed: int

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, 3, shape).astype(np.float32)


@functools.cache
def _values() -> st.SearchStrategy[Values]:
    """Return a strategy for values whose sums do not overflow in any order, with infinities, NaN and rows of -inf."""
    special = st.sampled_from((np.inf, -np.inf, np.nan, 1e-45, -0.0))
    places = st.lists(st.tuples(st.floats(0, 1), special), max_size=2).map(tuple)
    scale = st.sampled_from((1.0, 1.0, 1e-3, 1e30, 1e-40))
    return st.builds(Values, st.integers(0, 2**32 - 1), scale, places, st.one_of(st.none(), st.floats(0, 1)))


def _cases(draw: st.DrawFn, elements: int, kind: str, dtype: str, least: int) -> Case:
    """Draw problems. kind "one axis": reductions over one axis, or over all of a contiguous array; "neighbours":
    reductions of contiguous elements."""
    known(kind, "one axis", "neighbours")
    cols = max(draw(extents(elements)), least)
    if draw(st.integers(0, 4)) == 0:
        shape: tuple[int, ...] = (cols,)
    else:
        rows = max(draw(extents(max(1, min(elements // max(cols, 1), 300)))), least)
        shape = draw(st.sampled_from(((rows, cols), (cols, rows))))
    axis = draw(st.sampled_from((-1, 0, None)))
    along = axis if len(shape) == 2 else None
    kept = () if along is None else (shape[1 + along] if along else shape[1],)
    if kind == "neighbours" or (kind and along is None):
        source = _neighbours(draw, shape, along)
    else:
        source = draw(st.one_of(layouts(shape), st.just(contiguous(shape)), st.just(contiguous(shape, 1))))
    target = draw(layouts(kept, output=True, dtype=dtype)) if kept else contiguous((), 0, dtype)
    fill = draw(st.one_of(_values(), _values(), st.builds(Ties, st.integers(0, 99))))
    return Case((source,), fill, target, {"axis": axis})


def _neighbours(draw: st.DrawFn, shape: tuple[int, ...], along: int | None) -> Layout:
    """Draw a layout that is contiguous along an axis (None: along all), on a 16-byte boundary or not."""
    order = (0, 1) if along == 0 else tuple(reversed(range(len(shape))))
    gap = 0 if along is None else draw(st.sampled_from((0, 0, 1, 4)))
    return Layout(
        shape, nested(shape, order, lambda axis: gap * (axis == order[-1])), draw(st.sampled_from((0, 0, 1, 4)))
    )


@st.composite
def sum_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of sum: 1-D and 2-D, over each axis and over all, any strides; also sums of no elements."""
    return _cases(draw, elements, kind, "float32", 0)


@st.composite
def max_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of max: like those of sum, but not empty, and with many ties."""
    return _cases(draw, elements, kind, "float32", 1)


@st.composite
def argmax_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of argmax: like those of max."""
    return _cases(draw, elements, kind, "int64", 1)
