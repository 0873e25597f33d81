"""Counts of the problems that a fuzzed variant ran on; an unsupported problem does not count as passed."""

from __future__ import annotations

from dataclasses import dataclass, field

from cudakit.testing.case import Case
from cudakit.testing.drawing import places

# The fewest different problems that a variant must have run on.
LEAST = 20


@dataclass
class Coverage:
    """The problems of one variant. drawn: their number. refused: the number of unsupported ones. different: the
    different ones that ran; problems with the same layouts and options count as one.
    """

    drawn: int = 0
    refused: int = 0
    different: set[str] = field(default_factory=set)

    def count(self, case: Case, refused: bool) -> None:
        """Count a problem that ran or was unsupported.

        Args:
            case: The problem.
            refused: Whether the variant does not support it.
        """
        self.drawn += 1
        self.refused += refused
        if not refused:
            self.different.add(places(case))

    def shortfall(self, least: int = LEAST) -> str | None:
        """Return a message if fewer than half of the problems ran, or fewer than `least` different ones; else None."""
        if 2 * self.refused <= self.drawn and len(self.different) >= least:
            return None
        return (
            f"{self.refused} of {self.drawn} problems were unsupported, {len(self.different)} different ones ran; at "
            f"least half must run, and {least} different ones: name the kind of problems that it supports in "
            '`problems` of its Variant, such as "aligned" for one that loads vectors, or draw more'
        )
