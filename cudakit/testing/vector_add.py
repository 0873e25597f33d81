"""Problems of the vector_add family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.testing.case import Case, contiguous, dense, extents, float32_values, known


@st.composite
def vector_add_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of the vector_add family: contiguous vectors and volumes at any alignment; kind "aligned": on
    16-byte boundaries."""
    known(kind, "aligned")
    if draw(st.booleans()):
        shape: tuple[int, ...] = (draw(extents(elements)),)
    else:
        shape = tuple(draw(extents(most)) for most in (20, 30, elements // 600))
    if kind:
        flat = [dense(draw, shape) for _ in range(3)]
    else:
        flat = [contiguous(shape, draw(st.integers(0, 4))) for _ in range(3)]
    return Case((flat[0], flat[1]), draw(float32_values()), flat[2])
