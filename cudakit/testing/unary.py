"""Problems of the families scale, threshold, cast and fill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from cudakit.families.unary import CASTS, FLOATS
from cudakit.testing.case import Case, Layout, Values, contiguous, dense, extents, float32_values, known, layouts


@dataclass(frozen=True)
class Whole:
    """A filler for int32: numbers of all magnitudes, including the ends of the range, exact in float64."""

    seed: int

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 31, shape)
        if values.size:
            values.flat[0], values.flat[-1] = -(2**31), 2**31 - 1
        return values


@dataclass(frozen=True)
class Halves:
    """A filler of rounding ties: multiples of one half, scaled by powers of two up to the largest int32."""

    seed: int

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = (rng.integers(-5000, 5000, shape) / 2).astype(np.float32)
        scaled: np.ndarray = np.ldexp(values, rng.integers(-3, 24, shape))
        return scaled


def _shape(draw: st.DrawFn, elements: int) -> tuple[int, ...]:
    cols = draw(extents(min(elements, 5000)))
    if draw(st.booleans()):
        return (cols,)
    rows = draw(extents(max(1, min(elements // max(cols, 1), 100))))
    deep = tuple(min(extent, 5) for extent in (rows, cols, rows + cols, rows))
    return draw(st.sampled_from(((rows, cols), (cols, rows), (1, rows, 1, cols), deep)))


def _pair(draw: st.DrawFn, elements: int, x: str, y: str, kind: str) -> tuple[Layout, Layout | None]:
    """Draw the layouts of input and output (None: in place): contiguous half of the time, otherwise any. kind
    "aligned": contiguous and on a 16-byte boundary."""
    known(kind, "aligned")
    shape = _shape(draw, elements)
    in_place = x == y and draw(st.integers(0, 3)) == 0
    if kind:
        return dense(draw, shape, x), None if in_place else dense(draw, shape, y)
    if draw(st.booleans()):
        lead = draw(st.sampled_from((0, 0, 1, 8)))
        return contiguous(shape, lead, x), None if in_place else contiguous(shape, draw(st.sampled_from((0, 0, 3))), y)
    source = draw(layouts(shape, output=in_place, dtype=x))
    return source, None if in_place else draw(layouts(shape, output=True, dtype=y))


@st.composite
def scale_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of scale: all dtypes, any strides, in place or not."""
    dtype = draw(st.sampled_from(FLOATS))
    source, output = _pair(draw, elements, dtype, dtype, kind)
    options = {"factor": draw(st.sampled_from((0.7, -2.0, 0.0, 1.0, 1e30, 1e-30, float("nan"), float("inf"))))}
    return Case((source,), draw(float32_values()), output, options)


@st.composite
def threshold_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of threshold, including values equal to the limit."""
    dtype = draw(st.sampled_from(FLOATS))
    source, output = _pair(draw, elements, dtype, dtype, kind)
    options = {"limit": draw(st.sampled_from((0.3, 0.0, -1.0, 2.5, float("-inf"), float("inf"), float("nan"))))}
    return Case((source,), draw(st.one_of(float32_values(), st.builds(Halves, st.integers(0, 99)))), output, options)


@st.composite
def cast_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of cast: every pair of dtypes, ties, and values out of the target's range."""
    x, y = draw(st.sampled_from(CASTS)), draw(st.sampled_from(CASTS))
    source, output = _pair(draw, elements, x, y, kind)
    ties = st.builds(Halves, st.integers(0, 99))
    fill = draw(st.builds(Whole, st.integers(0, 99)) if x == "int32" else st.one_of(float32_values(), ties))
    return Case((source,), fill, output, {"to": y})


@st.composite
def fill_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of fill: elements of 1 to 8 bytes, any strides."""
    dtype = draw(st.sampled_from(("float32", "float16", "bfloat16", "int32", "uint8", "float64")))
    shape = _shape(draw, elements)
    known(kind, "aligned")
    if kind:
        output = dense(draw, shape, dtype)
    else:
        output = draw(st.one_of(layouts(shape, output=True, dtype=dtype), st.just(contiguous(shape, 0, dtype))))
    return Case(
        (contiguous(shape, 0, dtype),), Values(0, 1.0), output, {"value": draw(st.sampled_from((0, 1, 7, 100)))}
    )
