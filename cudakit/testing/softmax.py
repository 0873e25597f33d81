"""Problems of the softmax family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, contiguous, extents, float32_values, layouts


@st.composite
def softmax_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the softmax family with at most `elements` elements: 1-D and 2-D, in place and not."""
    cols = draw(extents(elements))
    if draw(st.integers(0, 7)) == 0:
        shape: tuple[int, ...] = (cols,)
    else:
        shape = (draw(extents(max(1, min(elements // max(cols, 1), 300)))), cols)
    if draw(st.integers(0, 3)) == 0:  # what float4 takes
        shape = (*shape[:-1], cols - cols % 4)
        rows = contiguous(shape)
        return Case((rows,), draw(float32_values()), rows)
    in_place = draw(st.integers(0, 4)) == 0
    source = draw(layouts(shape, output=in_place))
    return Case((source,), draw(float32_values()), None if in_place else draw(layouts(shape, output=True)))
