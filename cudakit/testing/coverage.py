"""Counts the problems that a fuzzed variant ran on: a refused problem is not a passed one."""

from __future__ import annotations

from dataclasses import dataclass, field

from cudakit.testing.case import Case
from cudakit.testing.drawing import places

# Different problems that a variant must have run on.
LEAST = 20


@dataclass
class Coverage:
    """The problems of one variant: how many were drawn and refused, and which different ones ran.

    Problems of the same layouts and options are one problem, whatever their values.
    """

    drawn: int = 0
    refused: int = 0
    different: set[str] = field(default_factory=set)

    def count(self, case: Case, refused: bool) -> None:
        """Counts a problem that ran, or that the variant refused."""
        self.drawn += 1
        self.refused += refused
        if not refused:
            self.different.add(places(case))

    def shortfall(self, least: int = LEAST) -> str | None:
        """A sentence if fewer than half of the problems ran, or fewer than `least` different ones; else None."""
        if 2 * self.refused <= self.drawn and len(self.different) >= least:
            return None
        return (
            f"{self.refused} of {self.drawn} problems were refused and {len(self.different)} different ones ran; at "
            f"least half must run, and {least} different ones: name the kind of problems that it supports in "
            '`problems` of its Variant, such as "aligned" for one that loads vectors, or draw more'
        )
