"""Forms of every instruction that a compiler emits for CUDA C++, with every type and modifier.

Instructions that need sm_100 (three operands of min and max, 256-bit accesses, redux of floats) are not included.
"""

from __future__ import annotations

from functools import cache

from ..forms import Form, unique
from . import atomics, conversions, floats, flow, halves, integers, matrices, memory, warps

FAMILIES = (integers, floats, halves, conversions, memory, atomics, warps, flow, matrices)


@cache
def catalogue() -> tuple[Form, ...]:
    """Return all forms, sorted by group."""
    found = unique(form for family in FAMILIES for form in family.forms())
    order = {group: number for number, group in enumerate(dict.fromkeys(form.group for form in found))}
    return tuple(sorted(found, key=lambda form: order[form.group]))


def groups() -> dict[str, list[Form]]:
    """Return the forms of each group, by group name."""
    found: dict[str, list[Form]] = {}
    for form in catalogue():
        found.setdefault(form.group, []).append(form)
    return found
