"""The strategy of a family's problems: its own, or one made of its declaration."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hypothesis import strategies as st

from cudakit import ops
from cudakit.family import Ladder, Variant
from cudakit.testing.case import Case
from cudakit.testing.declared import declared_cases


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
