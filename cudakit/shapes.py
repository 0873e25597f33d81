"""The shape of an array, and the way it is written on the command line and in tables."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def shape_text(shape: Sequence[int]) -> str:
    """(8192, 8192) is 8192x8192, the form that the command line reads."""
    return "x".join(str(extent) for extent in shape)
