"""Problems of the blur family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.families.blur import BORDERS
from cudakit.testing.case import Case, aligned_rows, contiguous, extents, float32_values, known, layouts


@st.composite
def blur_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw single images and batches, down to one pixel, with any strides and each border; half of them have rows of
    whole float4.

    kind "vectors": rows of whole float4 on 16-byte boundaries.
    """
    known(kind, "vectors")
    cols = draw(extents(min(elements, 300)))
    rows = draw(extents(min(elements // max(cols, 1), 100)))
    images = draw(st.sampled_from(((), (), (1,), (3,))))
    options = {"border": draw(st.sampled_from(list(BORDERS)))}
    if kind:
        whole = (*images, rows, -(-cols // 4) * 4)
        return Case((aligned_rows(draw, whole),), draw(float32_values()), aligned_rows(draw, whole), options)
    if draw(st.booleans()):
        place = contiguous((*images, rows, cols - cols % 4))
        return Case((place,), draw(float32_values()), place, options)
    shape = (*images, rows, cols)
    return Case((draw(layouts(shape)),), draw(float32_values()), draw(layouts(shape, output=True)), options)
