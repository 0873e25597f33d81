"""Problems of the matrix_add family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, binary_case, dense, extents, float32_values, known


@st.composite
def matrix_add_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of the matrix_add family: one matrix and batches, any strides, in place over either input or not.

    kind "one": one matrix; "aligned": contiguous arrays that start on 16-byte boundaries.
    """
    known(kind, "one", "aligned")
    cols = draw(extents(min(elements, 600)))
    rows = draw(extents(max(1, min(elements // max(cols, 1), 600))))
    shape: tuple[int, ...] = (rows, cols)
    if kind == "one":
        shape = shape if draw(st.booleans()) else (1, *shape)
    elif draw(st.booleans()):
        shape = (draw(extents(max(1, min(elements // max(rows * cols, 1), 300)))), rows, cols)
    if kind == "aligned":
        over = draw(st.sampled_from((None, None, 0, 1)))
        inputs = dense(draw, shape), dense(draw, shape)
        return Case(inputs, draw(float32_values()), dense(draw, shape) if over is None else None, over=over or 0)
    return binary_case(draw, shape, shape, shape)
