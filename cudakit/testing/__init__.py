"""Hypothesis strategies for kernel problems, and the run that decides whether a variant was correct on one.

`cases("softmax")` draws problems of a family: odd shapes, any strides, offsets, hard values; `cases_of(family,
variant)` those that a variant supports. `run_case` places the arrays in device memory exactly as drawn, poisons the
output, runs one variant, and holds the result against the family's float64 reference; what the variant wrote outside
its output is found too. `check_variant` does so for many problems, and fails too if the variant refused most of them:

    def test_mine():
        variant = family["tree_reduce"]
        check_variant(device, family, variant, cases_of(family, variant))
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hypothesis import strategies as st

from cudakit import ops
from cudakit.family import Ladder, Variant
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
from cudakit.testing.declared import declared_cases

__all__ = [
    "LEAST", "Case", "Coverage", "Layout", "Unsupported", "Values",
    "cases", "cases_of", "check_variant", "contiguous", "declared_cases", "extents", "float32_values", "layouts",
    "run_case",
]  # fmt: skip


@functools.lru_cache(maxsize=256)
def cases(family: str | Ladder[Any], elements: int = 20_000, kind: str = "") -> st.SearchStrategy[Case]:
    """The strategy of a family's problems, at most `elements` elements each: its own, or one made of its declaration.

    family: one of cudakit.ops by name, or a family. kind: only problems that variants of this kind support
    (`Variant.problems`). ValueError for a name that is none, and for a kind that the strategy does not have.
    """
    if isinstance(family, str):
        known = ops.families()
        if family not in known:
            raise ValueError(f"there is no family {family!r}; there are {', '.join(known)}")
        family = known[family]
    own = family.problems
    if not own:
        return declared_cases(family, elements, kind)
    if isinstance(own, str):
        module, _, name = own.partition(":")
        own = getattr(importlib.import_module(module), name)
    strategy: st.SearchStrategy[Case] = own(elements, kind) if kind else own(elements)
    return strategy


def cases_of(family: Ladder[Any], variant: Variant[Any], elements: int = 20_000) -> st.SearchStrategy[Case]:
    """The strategy of the problems that `variant` supports, by the kind that it names."""
    return cases(family, elements, variant.problems)
