"""The rows of Hopper's instructions in the table of conformance: cases, and those that differ from the recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .catalogue import selected
from .recording import Recording
from .runner import Runner

_TABLE = Path(__file__).resolve().parents[2] / "profiles" / "h200" / "conformance.json"


def rows(recorded: Recording) -> list[dict[str, Any]]:
    """Run all cases on the simulated device and return one row per group, as `differential.table` has them."""
    found: dict[str, dict[str, Any]] = {}
    with Runner("sim", checks=()) as runner:
        for cases in selected("").values():
            for case, outcome in runner.run([case for case in cases if case in recorded]):
                row = found.setdefault(
                    case.group,
                    {"group": case.group, "forms": 0, "cases": 0, "mismatches": 0, "explained": 0, "reasons": []}
                    | {"unexplained": []},
                )
                row["forms"] += 1
                row["cases"] += 1
                wrong = outcome.error if outcome.result is None else recorded.difference(case, outcome.result)
                if wrong:
                    row["mismatches"] += 1
                    row["unexplained"].append(f"{case.name}: {wrong}")
    for row in found.values():
        row["unexplained"] = row["unexplained"][:20]
    return list(found.values())


def write() -> bool:
    """Add the rows to profiles/h200/conformance.json, and print its Markdown; return whether a case differs."""
    from tests.differential.table import markdown

    recorded = Recording()
    made = rows(recorded)
    record = json.loads(_TABLE.read_text())
    groups = {row["group"] for row in made}
    record["groups"] = [row for row in record["groups"] if row["group"] not in groups] + made
    record["about"]["hopper"] = {
        key: recorded.about[key] for key in ("name", "driver", "date") if key in recorded.about
    }
    _TABLE.write_text(json.dumps(record, indent=1) + "\n")
    _TABLE.with_suffix(".md").write_text(markdown(record) + "\n")
    for row in made:
        print(f"{row['group']:40} {row['forms']:5} cases, {row['mismatches']} differ")
        for line in row["unexplained"]:
            print(f"    {line}")
    return any(row["mismatches"] for row in made)
