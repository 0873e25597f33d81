"""Problems of the add_broadcast family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, contiguous, extents, float32_values, layouts


@st.composite
def add_broadcast_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the add-broadcast family: volumes with long and short rows, any strides, in place and not."""
    nz = draw(extents(min(elements, 2100)))
    ny = draw(extents(max(1, min(elements // max(nz, 1), 40))))
    nx = draw(extents(max(1, min(elements // max(nz * ny, 1), 40))))
    in_place = draw(st.integers(0, 4)) == 0
    volume = draw(layouts((nx, ny, nz), output=in_place))
    # A volume walked along z that is off its boundaries: what the vectors must find out for themselves.
    if draw(st.booleans()):
        volume = contiguous((nx, ny, nz), draw(st.integers(0, 4)))
    output = None if in_place else draw(st.one_of(st.just(volume), layouts((nx, ny, nz), output=True)))
    if output is volume and 0 in volume.strides:
        output = contiguous(volume.shape)
    plane, line = draw(layouts((nx, ny))), draw(layouts((nx,)))
    return Case((volume, plane, line), draw(float32_values()), output)
