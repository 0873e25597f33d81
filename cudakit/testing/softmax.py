"""Problems of the softmax family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import (
    Case,
    Layout,
    aligned_rows,
    contiguous,
    dense,
    extents,
    float32_values,
    known,
    layouts,
    nested,
)

# Elements of a row that is shared by two blocks of a cluster, which hold at least 1,024 each. Other problems may be
# smaller.
TWO_BLOCKS = 2500


@st.composite
def softmax_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of the softmax family with at most `elements` elements: 1-D and 2-D, in place or not.

    kind "vectors": rows of whole float4 on 16-byte boundaries, up to TWO_BLOCKS long; "few rows": at most 32 such rows;
    "span": contiguous arrays that start on 16-byte boundaries, with at most 1,024 columns; "forwards": few rows, with
    positive column strides.
    """
    known(kind, "vectors", "few rows", "span", "forwards")
    longest = {"span": min(elements, 1024), "vectors": max(elements, TWO_BLOCKS)}.get(kind, elements)
    cols = draw(extents(longest))
    most = 300
    if kind in ("vectors", "few rows"):
        cols = -(-cols // 4) * 4
    elif kind == "forwards":
        most = 12
    if draw(st.integers(0, 7)) == 0:
        shape: tuple[int, ...] = (cols,)
    else:
        shape = (draw(extents(max(1, min(elements // max(cols, 1), most)))), cols)
    if kind == "few rows" and len(shape) == 2:  # each power of two needs another compiled kernel
        shape = (draw(st.sampled_from((1, 3, 17, 32))), cols if shape[0] else 4)
    if kind:
        place = dense if kind == "span" else aligned_rows if kind != "forwards" else _forwards
        return Case((place(draw, shape),), draw(float32_values()), draw(st.sampled_from((None, place(draw, shape)))))
    if draw(st.integers(0, 3)) == 0:  # rows of whole float4
        shape = (*shape[:-1], cols - cols % 4)
        rows = contiguous(shape)
        return Case((rows,), draw(float32_values()), rows)
    in_place = draw(st.integers(0, 4)) == 0
    source = draw(layouts(shape, output=in_place))
    return Case((source,), draw(float32_values()), None if in_place else draw(layouts(shape, output=True)))


def _forwards(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Draw a layout in either order of the axes, with gaps, at any alignment."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.integers(0, 3)) for _ in shape]
    return Layout(shape, nested(shape, order, lambda axis: gaps[axis]), draw(st.integers(0, 5)))
