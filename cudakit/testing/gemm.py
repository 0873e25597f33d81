"""Problems of the matrix products."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, Values, extents, layouts

_SPECIALS = (float("inf"), float("-inf"), float("nan"), 1e-45, -0.0)


def gemm_values() -> st.SearchStrategy[Values]:
    """Fillers whose products stay normal numbers of float32: what overflows depends on the order of a sum, and of a
    denormal an error of one place may be all there is."""
    scale = st.sampled_from((1.0, 1.0, 10.0, 1e-3, 1e4, 1e15, 1e-15))
    places = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(_SPECIALS)), max_size=2).map(tuple)
    return st.builds(Values, st.integers(0, 2**32 - 1), scale, places)


@st.composite
def gemm_cases(draw: st.DrawFn, elements: int = 20_000, dtypes: tuple[str, ...] = ("float32",)) -> Case:
    """Problems whose operands and output have at most about `elements` elements each, m * n * k at most 50 times that:
    transposed, with gaps, negative strides, batches, alpha and beta, in place over C."""
    dtype = draw(st.sampled_from(dtypes))
    batch = draw(st.sampled_from(((), (), (), (1,), (3,))))
    most = elements // max(1, *batch, 1)
    m = draw(extents(min(most, 400)))
    n = draw(extents(min(most // max(m, 1), 400)))
    k = draw(extents(min(most // max(m, n, 1), 50 * most // max(m * n, 1))))
    alpha = draw(st.sampled_from((1.0, 1.0, -0.5, 0.0)))
    beta = draw(st.sampled_from((0.0, 0.0, 1.0, 0.25)))

    def placed(rows: int, cols: int, output: bool = False) -> Layout:
        shape = (*batch, rows, cols)
        if draw(st.booleans()):
            return draw(layouts(shape, output=output, dtype=dtype))
        # what products are mostly given: rows or columns of neighbours, 16-byte aligned or nearly
        gap, lead = draw(st.sampled_from((0, 0, 4, 8, 1))), draw(st.sampled_from((0, 0, 0, 4, 1)))
        turned = draw(st.booleans())
        outer = (rows if turned else cols) + gap
        inner = (1, outer) if turned else (outer, 1)
        return Layout(shape, (*((outer * (cols if turned else rows),) if batch else ()), *inner), lead, dtype)

    inputs = [placed(m, k), placed(k, n)]
    in_place = False
    if beta or draw(st.integers(0, 7)) == 0:
        in_place = draw(st.booleans())
        inputs.append(placed(m, n, output=in_place))
    options: dict[str, Any] = {"alpha": alpha, "beta": beta}
    return Case(
        tuple(inputs), draw(gemm_values()), None if in_place else placed(m, n, output=True), options, over=2
    )  # fmt: skip
