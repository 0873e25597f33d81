"""Hypothesis strategies for kernel problems, and the run that decides whether a variant was correct on one.

`cases("softmax")` draws problems of a family: odd shapes, any strides, offsets, hard values; `cases_of(family,
variant)` those that a variant supports. `run_case` places the arrays in device memory exactly as drawn, poisons the
output, runs one variant, and holds the result against the family's float64 reference; what the variant wrote outside
its output is found too. `check_variant` does so for many problems, and fails too if the variant refused most of them:

    def test_mine():
        variant = family.variant("tree_reduce")
        check_variant(device, family, variant, cases_of(family, variant))
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from cudakit.testing.coverage import LEAST, Coverage, check_variant

if TYPE_CHECKING:
    from cudakit.families.variant import Family, Variant

__all__ = [
    "LEAST", "Case", "Coverage", "Layout", "Unsupported", "Values",
    "cases", "cases_of", "check_variant", "contiguous", "extents", "float32_values", "layouts", "run_case",
]  # fmt: skip

# The strategy of each family's problems, called with the most elements a problem may have, and with a kind of problems
# if the family has kinds.
_CASES: dict[str, Callable[..., st.SearchStrategy[Case]]] = {
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


@functools.lru_cache(maxsize=256)
def cases(family: str, elements: int = 20_000, kind: str = "") -> st.SearchStrategy[Case]:
    """The strategy of a family's problems, at most `elements` elements each.

    kind: only those that variants of this kind support (`Variant.problems`). ValueError for a family that has no
    strategy; a kind that a family does not have is refused by its strategy.
    """
    if family not in _CASES:
        raise ValueError(f"there are no strategies for {family!r}; there are for {', '.join(_CASES)}")
    return _CASES[family](elements, kind) if kind else _CASES[family](elements)


def cases_of(family: Family[Any], variant: Variant[Any], elements: int = 20_000) -> st.SearchStrategy[Case]:
    """The strategy of the problems that `variant` supports, by the kind that it names."""
    return cases(family.name, elements, variant.problems)
