"""The table of litmus tests: what a GPU showed, what the model allows, and what the simulated device reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .catalogue import catalogue
from .explained import reason
from .model import judge
from .program import Variant
from .verdicts import AGREES, seen_by_sim, verdict


def markdown(record: Mapping[str, Any]) -> str:
    """Return the table. record: the JSON of a run on a GPU."""
    rows: dict[str, list[str]] = {}
    verdicts: Counter[str] = Counter()
    for variant, seen in seen_by_sim(catalogue()):
        found = verdict(variant, seen)
        verdicts[found] += 1
        why = "" if found == AGREES else f": {reason(variant, found)}"
        cells = [
            variant.text.replace("|", "\\|"),
            variant.placement + (f", {variant.shared} shared" if variant.shared else ""),
            _outcomes(variant, record["tests"][variant.name]),
            "yes" if judge(variant).race else "no",
            "yes" if seen.race else "no",
            found + why,
        ]
        rows.setdefault(variant.shape, []).append("| " + " | ".join(cells) + " |")
    total = sum(verdicts.values())
    lines = [
        "# Litmus tests of memory ordering",
        "",
        f"{total} tests on {record['about']['name']}. The simulated device's reports: "
        + ", ".join(f"{count} {name}" for name, count in verdicts.most_common())
        + ".",
        "",
        "Each outcome that the PTX memory model allows is followed by the number of times that it was seen.",
    ]
    for shape, found_rows in rows.items():
        lines += ["", f"## {shape}", "", "| test | placement | outcomes | data race | reported | verdict |"]
        lines += ["|---|---|---|---|---|---|", *found_rows]
    return "\n".join(lines)


def _outcomes(variant: Variant, observed: Mapping[str, int]) -> str:
    allowed = sorted(judge(variant).allowed)
    shown = [f"{variant.outcome(values)}: {observed.get(variant.outcome(values), 0):,}" for values in allowed]
    names = {variant.outcome(values) for values in allowed}
    return "; ".join(
        shown + [f"**{name}: {count:,}**, not allowed" for name, count in observed.items() if name not in names]
    )
