"""Problems of the gemm family and, with other dtypes, of gemm_half."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, Values, extents, known, layouts

_SPECIALS = (float("inf"), float("-inf"), float("nan"), 1e-45, -0.0)


@functools.cache
def gemm_values(dtype: str = "float32") -> st.SearchStrategy[Values]:
    """Return a strategy for fillers whose products are normal numbers of their dtype: overflow depends on the order of
    a sum, and rounding errors of denormals are as large as the numbers."""
    scales = (1.0, 1.0, 4.0, 0.1) if dtype == "float16" else (1.0, 1.0, 10.0, 1e-3, 1e4, 1e15, 1e-15)
    places = st.lists(st.tuples(st.floats(0, 1), st.sampled_from(_SPECIALS)), max_size=2).map(tuple)
    return st.builds(Values, st.integers(0, 2**32 - 1), st.sampled_from(scales), places)


@st.composite
def gemm_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "", dtypes: tuple[str, ...] = ("float32",)) -> Case:
    """Draw problems whose operands and output have at most about `elements` elements each, and m * n * k at most 50
    times that: transposed, with gaps, negative strides, batches, alpha and beta, in place over C.

    kind "neighbours": operands with contiguous rows or columns; "pieces": such operands whose extents and strides are
    also multiples of 16 bytes; "skinny": at most 8 rows or columns; "one": no batches.
    """
    known(kind, "neighbours", "pieces", "skinny", "one")
    dtype = draw(st.sampled_from(dtypes))
    result = dtype if dtype == "float32" else draw(st.sampled_from((dtype, dtype, dtype, "float32")))
    batch = draw(st.sampled_from(((), (), (), (1,), (3,)) if kind != "one" else ((), (), (1,))))
    most = elements // max(1, *batch, 1)
    m = draw(extents(min(most, 400)))
    n = draw(extents(min(most // max(m, 1), 8 if kind == "skinny" else 400)))
    if kind == "skinny" and draw(st.booleans()):
        m, n = n, m
    k = draw(extents(min(most // max(m, n, 1), 50 * most // max(m * n, 1))))
    pieces = 4 if dtype == "float32" else 8  # elements per 16 bytes
    if kind == "pieces" or (dtype != "float32" and draw(st.booleans())):
        # round every extent up to a multiple of 16 bytes, which few random extents are with eight elements per piece
        m, n, k = (-(-extent // pieces) * pieces for extent in (m, n, k))
    alpha = draw(st.sampled_from((1.0, 1.0, -0.5, 0.0)))
    beta = draw(st.sampled_from((0.0, 0.0, 1.0, 0.25)))

    def placed(rows: int, cols: int, output: bool = False) -> Layout:
        shape, item = (*batch, rows, cols), result if output else dtype
        if draw(st.booleans()) and (output or kind not in ("neighbours", "pieces")):
            return draw(layouts(shape, output=output, dtype=item))
        # the common case: contiguous rows or columns, on a 16-byte boundary or close to one
        other = pieces if kind == "pieces" else 1
        gap = draw(st.sampled_from((0, 0, pieces, 8, other)))
        lead = draw(st.sampled_from((0, 0, 0, pieces, other)))
        turned = draw(st.booleans())
        outer = (rows if turned else cols) + gap
        inner = (1, outer) if turned else (outer, 1)
        return Layout(shape, (*((outer * (cols if turned else rows),) if batch else ()), *inner), lead, item)

    inputs = [placed(m, k), placed(k, n)]
    in_place = False
    if beta or draw(st.integers(0, 7)) == 0:
        in_place = draw(st.booleans())
        inputs.append(placed(m, n, output=True))
    options: dict[str, Any] = {"alpha": alpha, "beta": beta}
    if result != dtype:
        options["dtype"] = result
    output = None if in_place else placed(m, n, output=True)
    return Case(tuple(inputs), draw(gemm_values(dtype)), output, options, over=2)
