"""Problems of the add_broadcast family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, contiguous, dense, extents, float32_values, known, layouts, nested


@st.composite
def add_broadcast_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of the add_broadcast family: volumes with long and short rows, any strides, in place or not.

    kind "rows": volumes whose last axis is contiguous; "aligned": contiguous volumes that start on 16-byte boundaries.
    """
    known(kind, "rows", "aligned")
    nz = draw(extents(min(elements, 2100)))
    ny = draw(extents(max(1, min(elements // max(nz, 1), 40))))
    nx = draw(extents(max(1, min(elements // max(nz * ny, 1), 40))))
    in_place = draw(st.integers(0, 4)) == 0
    if kind:
        shape = (nx, ny, nz)
        place = _gapped if kind == "rows" else dense
        plane, line = draw(layouts((nx, ny))), draw(layouts((nx,)))
        inputs = (place(draw, shape), plane, line)
        return Case(inputs, draw(float32_values()), None if in_place else place(draw, shape))
    volume = draw(layouts((nx, ny, nz), output=in_place))
    # A volume that is contiguous along z but not on a 16-byte boundary, which vectorised variants must detect.
    if draw(st.booleans()):
        volume = contiguous((nx, ny, nz), draw(st.integers(0, 4)))
    output = None if in_place else draw(st.one_of(st.just(volume), layouts((nx, ny, nz), output=True)))
    if output is volume and 0 in volume.strides:
        output = contiguous(volume.shape)
    plane, line = draw(layouts((nx, ny))), draw(layouts((nx,)))
    return Case((volume, plane, line), draw(float32_values()), output)


def _gapped(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Draw a layout of contiguous rows, with gaps between them, in either order of the other axes, at any alignment."""
    order = draw(st.sampled_from(((2, 1, 0), (2, 1, 0), (2, 0, 1))))
    gaps = [draw(st.sampled_from((0, 0, 1, 4))), draw(st.sampled_from((0, 0, 1, 4))), 0]
    return Layout(shape, nested(shape, order, lambda axis: gaps[axis]), draw(st.integers(0, 4)))
