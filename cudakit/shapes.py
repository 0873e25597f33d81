"""Shapes of arrays, and their form on the command line and in tables."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape in the form that the command line reads: (8192, 8192) is "8192x8192"."""
    return "x".join(str(extent) for extent in shape)
