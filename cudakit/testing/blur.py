"""Problems of the blur family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.families.blur import BORDERS
from cudakit.testing.case import Case, contiguous, extents, float32_values, layouts


@st.composite
def blur_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Single images and batches, down to one pixel, any strides, each border; half of them what float4 takes."""
    cols = draw(extents(min(elements, 300)))
    rows = draw(extents(min(elements // max(cols, 1), 100)))
    images = draw(st.sampled_from(((), (), (1,), (3,))))
    options = {"border": draw(st.sampled_from(list(BORDERS)))}
    if draw(st.booleans()):
        place = contiguous((*images, rows, cols - cols % 4))
        return Case((place,), draw(float32_values()), place, options)
    shape = (*images, rows, cols)
    return Case((draw(layouts(shape)),), draw(float32_values()), draw(layouts(shape, output=True)), options)
