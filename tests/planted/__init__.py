"""Planted bugs: one small `.cu` file per bug, with a kernel `wrong` and its correct twin `right`; bugs of host code are
in Python.

`catalogue` defines a case and runs it; `shared`, `between_blocks`, `addresses`, `lanes`, `protocols`, `undefined` and
`host` contain the cases.
`sanitize` runs all of them under compute-sanitizer on a GPU; `table` writes both verdicts as a table.
"""

from __future__ import annotations

from . import addresses, between_blocks, host, lanes, protocols, shared, undefined
from .catalogue import CASES, Case, Reported, run_case, seen_by_sim

__all__ = [
    "CASES",
    "Case",
    "Reported",
    "addresses",
    "between_blocks",
    "host",
    "lanes",
    "protocols",
    "run_case",
    "seen_by_sim",
    "shared",
    "undefined",
]
