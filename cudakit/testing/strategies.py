"""The strategy of a family's problems: its own, or one derived from its declaration."""

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
    """Return the strategy of a family's problems: its own, or one derived from its declaration.

    Args:
        family: A family, or the name of a family of cudakit.ops.
        elements: The most elements of a problem.
        kind: Draw only problems that variants of this kind support (`Variant.problems`); "" for any.

    Returns:
        The strategy.

    Raises:
        ValueError: If the family or the kind is unknown.
    """
    if isinstance(family, str):
        known = ops.families()
        if family not in known:
            raise ValueError(f"there is no family {family!r}; known are {', '.join(known)}")
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
    """Return the strategy of the problems that a variant supports, by its `problems`.

    Args:
        family: The family.
        variant: The variant.
        elements: The most elements of a problem.

    Returns:
        The strategy.
    """
    return cases(family, elements, variant.problems)
