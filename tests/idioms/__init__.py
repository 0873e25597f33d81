"""Idioms of CUDA programming as correct kernels: none may have a report, and every result is exact. `cases` has the
launches and their results; `host` has idioms of host code."""

from __future__ import annotations

from .cases import IDIOMS, Idiom
from .host import HOST

__all__ = ["HOST", "IDIOMS", "Idiom"]
