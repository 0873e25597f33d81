"""Planted bugs: one small `.cu` file an idea, with a kernel `wrong` and its correct twin `right`, and mistakes of host
code in Python.

`catalogue` says what a case is and runs one; `shared`, `between_blocks`, `addresses`, `lanes` and `host` hold them.
`sanitize` runs all of them under compute-sanitizer on a GPU, `table` writes both verdicts side by side.
"""

from __future__ import annotations

from . import addresses, between_blocks, host, lanes, shared
from .catalogue import CASES, Case, Reported, run_case, seen_by_sim

__all__ = [
    "CASES",
    "Case",
    "Reported",
    "addresses",
    "between_blocks",
    "host",
    "lanes",
    "run_case",
    "seen_by_sim",
    "shared",
]
