"""Kernel families: each module is one ladder of variants, its float64 reference and its front function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudakit.ops.elementwise import FAMILY as _VECTOR_ADD
from cudakit.ops.elementwise import add
from cudakit.ops.softmax import FAMILY as _SOFTMAX
from cudakit.ops.softmax import softmax

if TYPE_CHECKING:
    from cudakit.ops.variant import Family

__all__ = ["add", "families", "softmax"]


def families() -> dict[str, Family[Any]]:
    """Every family by name."""
    return {family.name: family for family in (_VECTOR_ADD, _SOFTMAX)}
