"""One configuration that was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cudakit.tuning.space import Point

Verdict = Literal["measured", "slower", "unfit", "not compiled", "failed", "wrong", "not run"]

#: The verdicts that a kernel's bug leads to.
BUGS = ("failed", "wrong")


class Unfit(Exception):
    """A configuration's block cannot be resident on the device; the text says why."""


class Wrong(Exception):
    """A configuration's result is wrong; the text says where."""


@dataclass
class Trial:
    """A configuration that was not refused.

    verdict: "measured"; "slower" after a short measurement, far from the best; "unfit": its block cannot be resident;
    "not compiled"; "failed": it could not be launched, or faulted; "wrong"; "not run". why: the reason of the last
    five. cost: None unless it was measured, if only for a short time. details: what else is known, such as registers.
    """

    point: Point
    configuration: Mapping[str, Any]
    usual: bool = False
    verdict: Verdict = "not run"
    why: str = ""
    cost: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The name of its variant."""
        return self.point.variant

    def end(self, verdict: Verdict, why: str = "") -> None:
        self.verdict, self.why = verdict, why

    def as_dict(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "configuration": dict(self.configuration),
            "usual": self.usual,
            "verdict": self.verdict,
            "why": self.why or None,
            "cost": self.cost,
            **self.details,
        }
