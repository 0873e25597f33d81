"""Problems of the matrix_add family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, binary_case, extents


@st.composite
def matrix_add_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the matrix-add family: one matrix and batches, any strides, in place over either input and not."""
    cols = draw(extents(min(elements, 600)))
    rows = draw(extents(max(1, min(elements // max(cols, 1), 600))))
    shape: tuple[int, ...] = (rows, cols)
    if draw(st.booleans()):
        shape = (draw(extents(max(1, min(elements // max(rows * cols, 1), 300)))), rows, cols)
    return binary_case(draw, shape, shape, shape)
