"""Problems of the softmax_modes family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, contiguous, extents, float32_values, layouts


@dataclass(frozen=True)
class Hides:
    """A filler of masks: a bool mask with `density` True elements, or the additive mask that hides the same elements
    and adds random numbers to the others."""

    seed: int
    density: float
    additive: bool

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        kept = rng.random(shape) < self.density
        return np.where(kept, rng.standard_normal(shape), -np.inf).astype(np.float32) if self.additive else kept


@st.composite
def softmax_modes_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Draw problems with at most `elements` elements: three dtypes, both kinds of masks with every broadcast, in place
    or not."""
    dtype = draw(st.sampled_from(("float16", "bfloat16", "float32")))
    cols = draw(extents(elements))
    if draw(st.booleans()):
        cols -= cols % 8
    shape = (draw(extents(max(1, min(elements // max(cols, 1), 300)))), cols)
    plain = draw(st.booleans())
    x = contiguous(shape, 0, dtype) if plain else draw(layouts(shape, output=True, dtype=dtype))
    output = draw(st.sampled_from((None, contiguous(shape, 0, dtype))))
    inputs: tuple[Layout, ...] = (x,)
    fill: Any = draw(float32_values())
    mask = draw(st.sampled_from(("", "bool", "float32")))
    if mask:
        broadcast = draw(st.sampled_from((shape, shape[1:], (1, cols), (shape[0], 1))))
        inputs = (x, contiguous(broadcast, draw(st.sampled_from((0, 0, 3))), mask))
        density = draw(st.sampled_from((0.0, 0.05, 0.7, 1.0)))
        fill = (fill, Hides(draw(st.integers(0, 2**32 - 1)), density, mask == "float32"))
    options = {"log": draw(st.booleans()), "scale": draw(st.sampled_from((1.0, 0.125, -0.3)))}
    return Case(inputs, fill, output, options)
