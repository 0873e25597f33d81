"""The results of a run, one row per group of forms, as JSON and as Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.measure.command import command_line

from .explained import explain
from .runner import Comparison


@dataclass
class Row:
    """A group: the number of forms, of cases (operand vectors), of cases that differ, and of those explained."""

    group: str
    forms: int = 0
    cases: int = 0
    mismatches: int = 0
    explained: int = 0
    reasons: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)  # the forms, with examples

    def add(self, found: Comparison) -> None:
        self.forms += 1
        self.cases += found.cases
        self.mismatches += found.mismatches
        if not found.mismatches:
            return
        if found.sim.results is None or found.gpu.results is None:
            self.unexplained += found.lines()
            return
        covered, reasons = explain(found.form, found.operands, found.sim.results, found.gpu.results, found.wrong)
        self.explained += int(covered.sum())
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        if covered.sum() < found.mismatches:
            found.wrong = found.wrong & ~covered
            self.unexplained += found.lines()

    @property
    def open(self) -> int:
        return self.mismatches - self.explained


class Table:
    """Rows by group, in the order in which groups were added."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, group: str, found: Comparison) -> None:
        self.rows.setdefault(group, Row(group)).add(found)

    @property
    def unexplained(self) -> list[str]:
        return [line for row in self.rows.values() for line in row.unexplained]

    def record(self, about: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of the JSON file. about: the machine."""
        return {
            "about": about
            | {"date": datetime.date.today().isoformat(), "command": command_line(), "numpy": np.__version__},
            "groups": [
                {
                    "group": row.group,
                    "forms": row.forms,
                    "cases": row.cases,
                    "mismatches": row.mismatches,
                    "explained": row.explained,
                    "reasons": row.reasons,
                    "unexplained": row.unexplained[:20],
                }
                for row in self.rows.values()
            ],
        }


def markdown(record: dict[str, Any]) -> str:
    """Return the table of a record as Markdown, with numbered reasons below it."""
    about, groups = record["about"], record["groups"]
    reasons: list[str] = []
    lines = [
        "| instructions | forms | operand vectors | mismatches | unexplained |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in groups:
        marks = ""
        for reason in row["reasons"]:
            if reason not in reasons:
                reasons.append(reason)
            marks += f" [{reasons.index(reason) + 1}]"
        left = row["mismatches"] - row["explained"]
        lines.append(
            f"| {row['group']} | {row['forms']:,} | {row['cases']:,} | {row['mismatches']:,}{marks} | {left:,} |"
        )
    total = {key: sum(row[key] for row in groups) for key in ("forms", "cases", "mismatches", "explained")}
    left = total["mismatches"] - total["explained"]
    lines.append(f"| all | {total['forms']:,} | {total['cases']:,} | {total['mismatches']:,} | {left:,} |")
    lines += ["", *(f"[{number}] {reason}" for number, reason in enumerate(reasons, 1))]
    machine = ", ".join(str(about[key]) for key in ("name", "driver", "nvrtc", "date") if key in about)
    return "\n".join([*lines, *([""] if reasons else []), f"On {machine}."])


def lines_of(rows: Iterable[Row]) -> list[str]:
    """Return one line per group, for the terminal."""
    return [
        f"{row.group:40} {row.forms:5} forms {row.cases:9} cases {row.mismatches:7} differ, {row.open} unexplained"
        for row in rows
    ]
