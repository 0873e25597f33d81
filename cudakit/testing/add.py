"""Problems of the add family."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, binary_case, contiguous, dense, extents, float32_values, known


@st.composite
def add_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of broadcasting: rank 0 to 4, axes broadcast by an extent of 1, by a lower rank or by a stride of
    0.

    kind "rows": a row or a column added to a contiguous matrix; "dense": the same with a matrix that starts on a
    16-byte boundary; "transposed": transposed operands; "aligned": contiguous arrays of one shape that start on 16-byte
    boundaries.
    """
    known(kind, "rows", "dense", "transposed", "aligned")
    kind = kind or draw(st.sampled_from(("rows", "rows", "transposed", "any", "any")))
    if kind == "aligned":
        alike = (draw(extents(min(elements, 40))), draw(extents(max(1, min(elements // 40, 1100)))))
        inputs = dense(draw, alike), dense(draw, alike)
        return Case(inputs, draw(float32_values()), draw(st.sampled_from((None, contiguous(alike)))))
    if kind in ("rows", "dense"):
        return _row_or_column(draw, elements, kind == "dense")
    if kind == "transposed":
        return _transposed(draw, elements)
    shape: list[int] = []
    for most in draw(st.lists(st.sampled_from((5, 40, 40, 2100)), max_size=4)):
        shape.append(draw(extents(max(1, min(most, elements // max(int(np.prod(shape)), 1))))))
    draw(st.randoms(use_true_random=False)).shuffle(shape)
    sides = [tuple(shape), tuple(1 if draw(st.integers(0, 2)) == 0 else extent for extent in shape)]
    sides[1] = sides[1][draw(st.integers(0, len(shape))) :]
    if draw(st.booleans()):
        sides.reverse()
    # If both sides are repeated along an axis, the result is larger than either.
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    if shape and len(sides[0]) == len(sides[1]) and draw(st.integers(0, 3)) == 0:
        sides[0] = (*sides[0][:axis], 1, *sides[0][axis + 1 :])
    return binary_case(draw, sides[0], sides[1], np.broadcast_shapes(*sides))


def _row_or_column(draw: st.DrawFn, elements: int, aligned: bool) -> Case:
    """Draw the common case: a row or a column added to a contiguous matrix. aligned: the matrix has two axes and starts
    on a 16-byte boundary."""
    cols = draw(extents(min(elements, 1100))) or 5
    shape = (draw(extents(max(1, min(elements // cols, 300)))) or 6, cols)
    if aligned:
        shape = max(shape[0], 2), max(shape[1], 2)
    matrix = contiguous(shape, 0 if aligned else draw(st.sampled_from((0, 0, 1))))
    cols = shape[1]
    other = contiguous(draw(st.sampled_from((shape[1:], (1, cols), (shape[0], 1)))), draw(st.integers(0, 4)))
    if draw(st.booleans()):
        output = None if other.shape != shape and draw(st.booleans()) else contiguous(shape)
        return Case((matrix, other), draw(float32_values()), output)
    return Case((other, matrix), draw(float32_values()), contiguous(shape, matrix.lead))


def _transposed(draw: st.DrawFn, elements: int) -> Case:
    """Draw a matrix, or a batch of matrices, with one operand or both transposed."""
    cols = max(draw(extents(min(elements, 200))), 2)
    rows = max(draw(extents(max(1, min(elements // cols, 100)))), 2)
    shape: tuple[int, ...] = (rows, cols) if draw(st.booleans()) else (draw(st.integers(1, 3)), rows, cols)
    turned = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    flipped = contiguous(tuple(shape[axis] for axis in turned)).strides
    other = Layout(shape, tuple(flipped[axis] for axis in turned), draw(st.integers(0, 4)))
    first = (
        other if draw(st.integers(0, 2)) == 0 else draw(st.sampled_from((contiguous(shape), contiguous(shape[-1:]))))
    )
    inputs = (first, other) if draw(st.booleans()) else (other, first)
    return Case(inputs, draw(float32_values()), contiguous(shape, draw(st.integers(0, 1))))
