"""Hypothesis strategies for kernel problems, and the check of a variant on a problem.

`cases("softmax")` draws problems of a family: odd shapes, any strides, offsets, hard values; `cases_of(family,
variant)` draws those that a variant supports. `run_case` places the arrays in device memory exactly as drawn, fills the
output with a poison pattern, runs one variant, and compares the result with the family's float64 reference; it also
finds out-of-bounds writes. `check_variant` does this for many problems, and also fails if the variant does not support
most of them:

    def test_mine():
        variant = family["tree_reduce"]
        check_variant(device, family, variant, cases_of(family, variant))
"""

from __future__ import annotations

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
from cudakit.testing.coverage import LEAST, Coverage
from cudakit.testing.declared import declared_cases
from cudakit.testing.pytests import kernel_test
from cudakit.testing.search import check_variant
from cudakit.testing.strategies import cases, cases_of

__all__ = [
    "LEAST", "Case", "Coverage", "Layout", "Unsupported", "Values",
    "cases", "cases_of", "check_variant", "contiguous", "declared_cases", "extents", "float32_values",
    "kernel_test", "layouts", "run_case",
]  # fmt: skip
