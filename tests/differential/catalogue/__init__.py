"""Every instruction that a compiler emits for CUDA C++, in every type and modifier that it takes, as forms.

What needs sm_100 (three operands of min and max, 256-bit accesses, redux of floats) is not here.
"""

from __future__ import annotations

from functools import cache

from ..forms import Form, unique
from . import atomics, conversions, floats, flow, halves, integers, matrices, memory, warps

FAMILIES = (integers, floats, halves, conversions, memory, atomics, warps, flow, matrices)


@cache
def catalogue() -> tuple[Form, ...]:
    """All forms, those of one group side by side."""
    found = unique(form for family in FAMILIES for form in family.forms())
    order = {group: number for number, group in enumerate(dict.fromkeys(form.group for form in found))}
    return tuple(sorted(found, key=lambda form: order[form.group]))


def groups() -> dict[str, list[Form]]:
    """The forms of each group, by its name."""
    found: dict[str, list[Form]] = {}
    for form in catalogue():
        found.setdefault(form.group, []).append(form)
    return found
