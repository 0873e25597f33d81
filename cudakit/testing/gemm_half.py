"""Problems of the gemm_half family."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from cudakit.families.gemm_half import DTYPES
from cudakit.families.gemm_problem import ACTIVATIONS
from cudakit.testing.case import Case, Layout, aligned_rows, contiguous, layouts
from cudakit.testing.gemm import gemm_cases


@st.composite
def gemm_half_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of gemm in 16-bit dtypes, a quarter of them with a fused epilogue. kind "plain": those of kind
    "pieces" without C and without an epilogue, whose output consists of such pieces too."""
    if kind == "plain":
        return _plain(draw, draw(gemm_cases(elements, "pieces", DTYPES)))
    case = draw(gemm_cases(elements, kind, DTYPES))
    return case if draw(st.integers(0, 3)) else _fused(draw, case)


def _plain(draw: st.DrawFn, case: Case) -> Case:
    """Draw an output with contiguous rows or columns for a product, which then has no C."""
    a, b = case.inputs[:2]
    options = {**case.options, "beta": 0.0}
    m, n = a.shape[-2], b.shape[-1]
    turned = draw(st.booleans())
    output = aligned_rows(draw, (*a.shape[:-2], *((n, m) if turned else (m, n))), str(options.get("dtype", a.dtype)))
    if turned:
        *batch, rows, cols = output.strides
        output = replace(output, shape=(*a.shape[:-2], m, n), strides=(*batch, cols, rows))
    return replace(case, inputs=(a, b), output=output, options=options)


def _fused(draw: st.DrawFn, case: Case) -> Case:
    """Draw an epilogue for a product: an activation, a factor, a bias per row, column or element, a residual, which may
    be the output."""
    a, *_ = inputs = list(case.inputs)
    output = case.inputs[case.over] if case.output is None else case.output
    assert isinstance(output, Layout)
    added, over, place = ["c"][: len(inputs) - 2], case.over, case.output
    if draw(st.booleans()):
        added.append("bias")
        inputs.append(_bias(draw, output.shape, draw(st.sampled_from((str(a.dtype), "float32")))))
    if draw(st.booleans()):
        added.append("residual")
        in_place = place is not None and draw(st.booleans())
        if in_place:
            over, place = len(inputs), None
        like = draw(st.sampled_from((output, None)))
        inputs.append(like or draw(layouts(output.shape, output=in_place, dtype=output.dtype)))
    options = {
        **case.options,
        "added": " ".join(added),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
        "scale": draw(st.sampled_from((1.0, 1.0, 0.5, -2.0))),
    }
    return replace(case, inputs=tuple(inputs), output=place, options=options, over=over)


def _bias(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Layout:
    """Draw a bias that broadcasts to `shape`."""
    ones = draw(st.tuples(*[st.booleans()] * len(shape)))
    own = tuple(1 if one else extent for one, extent in zip(ones, shape, strict=True))
    while own[:1] == (1,) and len(own) > 1 and draw(st.booleans()):
        own = own[1:]
    return draw(st.one_of(st.just(contiguous(own, 0, dtype)), layouts(own, dtype=dtype)))
