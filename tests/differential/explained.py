"""Differences between the simulated device and a GPU that are understood, with their reasons. All others are bugs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .forms import Form
from .operands import Words

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Explanation:
    """forms: a pattern that a form's name must match from its start. reason: what a reader of the table is told.
    where: of (operands, simulated results, the GPU's results) the lanes that it speaks for; None: all of them."""

    forms: str
    reason: str
    where: Callable[[Words, Words, Words], Mask] | None = None


EXPLANATIONS: tuple[Explanation, ...] = ()


def explain(form: Form, operands: Words, sim: Words, gpu: Words, wrong: Mask) -> tuple[Mask, list[str]]:
    """The lanes of `wrong` that are explained, and the reasons."""
    found = np.zeros(wrong.shape, np.bool_)
    reasons = []
    for explanation in EXPLANATIONS:
        if not re.match(explanation.forms, form.name):
            continue
        covered: Any = wrong if explanation.where is None else wrong & explanation.where(operands, sim, gpu)
        if covered.any():
            found |= covered
            reasons.append(explanation.reason)
    return found, reasons
