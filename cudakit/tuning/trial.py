"""One configuration that was tried, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cudakit.tuning.space import Point

Verdict = Literal["measured", "slower", "unfit", "not compiled", "failed", "wrong", "not run"]

#: The verdicts caused by a bug in the kernel.
BUGS = ("failed", "wrong")


class Unfit(Exception):
    """A configuration's block cannot be resident on the device; the message has the reason."""


class Wrong(Exception):
    """A configuration's result is wrong; the message has the location."""


@dataclass
class Trial:
    """A supported configuration and its result.

    verdict: "measured"; "slower": much slower than the best in a short measurement; "unfit": its block cannot be
    resident; "not compiled"; "failed": its launch failed or faulted; "wrong": its result is wrong; "not run". why: the
    reason for the last five. cost: None if it was not measured. details: other properties, such as registers.
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
        """The name of the configuration's variant."""
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
