"""Hypothesis strategies for kernel problems, and the run that decides whether a variant was right on one.

`cases("softmax")` draws problems of a family: odd shapes, any strides, offsets, hard values. `run_case` places the
arrays in device memory exactly as drawn, poisons the output, runs one variant, and holds the result against the
family's float64 reference; what the variant wrote outside its output is found too.

    @given(cases("softmax"))
    def test_mine(case):
        verdict = run_case(device, family, family.variant("tree_reduce"), case)
        assert verdict.ok, verdict.why
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from cudakit.testing import (
    add,
    add_broadcast,
    attention,
    blur,
    gemm,
    gemm_half,
    matrix_add,
    random,
    reduce,
    softmax,
    softmax_backward,
    softmax_modes,
    unary,
    vector_add,
)
from cudakit.testing.case import (
    Case,
    Layout,
    Unsupported,
    Values,
    contiguous,
    extents,
    float32_values,
    layouts,
    run_case,
)

__all__ = [
    "Case", "Layout", "Unsupported", "Values",
    "cases", "contiguous", "extents", "float32_values", "layouts", "run_case",
]  # fmt: skip

# The strategy of each family's problems, called with the most elements a problem may have.
_CASES: dict[str, Callable[[int], st.SearchStrategy[Case]]] = {
    "softmax": softmax.softmax_cases,
    "softmax_modes": softmax_modes.softmax_modes_cases,
    "softmax_backward": softmax_backward.softmax_backward_cases,
    "blur": blur.blur_cases,
    "uniform": random.random_cases,
    "normal": random.random_cases,
    "gemm": gemm.gemm_cases,
    "gemm_half": gemm_half.gemm_half_cases,
    "attention": attention.attention_cases,
    "vector_add": vector_add.vector_add_cases,
    "matrix_add": matrix_add.matrix_add_cases,
    "add_broadcast": add_broadcast.add_broadcast_cases,
    "add": add.add_cases,
    "scale": unary.scale_cases,
    "threshold": unary.threshold_cases,
    "cast": unary.cast_cases,
    "fill": unary.fill_cases,
    "sum": reduce.sum_cases,
    "max": reduce.max_cases,
    "argmax": reduce.argmax_cases,
}


def cases(family: str, elements: int = 20_000) -> st.SearchStrategy[Case]:
    """The strategy of a family's problems, at most `elements` elements each. ValueError for a family that has none."""
    if family not in _CASES:
        raise ValueError(f"there are no strategies for {family!r}; there are for {', '.join(_CASES)}")
    return _CASES[family](elements)
