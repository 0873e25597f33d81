"""All cases, by family."""

from __future__ import annotations

from . import async_stores, bulk_copies, program_ptx, tensor_copies, tensor_map_edits, wgmma_forms
from .case import Case

FAMILIES = ("wgmma", "copies", "mbarrier")


def cases(family: str) -> list[Case]:
    """Return the cases of a family.

    Raises:
        KeyError: If there is no such family.
    """
    made = {
        "wgmma": (wgmma_forms.cases,),
        "copies": (bulk_copies.cases, async_stores.cases, tensor_copies.cases, tensor_map_edits.cases),
        "mbarrier": (program_ptx.cases,),
    }
    return [case for part in made[family] for case in part()]


def selected(only: str) -> dict[str, list[Case]]:
    """Return the cases by family, of one family or of those whose name or group contains a text."""
    found = {}
    for family in FAMILIES:
        if only in FAMILIES and only != family:
            continue
        chosen = [case for case in cases(family) if only == family or only in case.name or only in case.group]
        if chosen:
            found[family] = chosen
    return found
