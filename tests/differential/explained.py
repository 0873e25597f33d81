"""Known differences between the simulated device and a GPU, with their reasons. Any other difference is a bug."""

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
    """forms: a pattern that a form's name must match from its start. reason: the text in the table. `where`: a function
    of (operands, simulated results, the GPU's results) that returns the lanes it explains; None: all of them."""

    forms: str
    reason: str
    where: Callable[[Words, Words, Words], Mask] | None = None

    def matches(self, form: Form) -> bool:
        """Return whether it can explain lanes of a form."""
        return re.match(self.forms, form.name) is not None


def _upper_half_plus_zero(nan: int) -> Callable[[Words, Words, Words], Mask]:
    """Lanes in which the lower halves are equal and the GPU added +0 to the upper half. That leaves the upper half
    unchanged, except that NaN becomes canonical and -0 becomes +0. nan: bit patterns above it, without the sign bit,
    are NaN."""

    def where(operands: Words, sim: Words, gpu: Words) -> Mask:
        low, size = np.uint64(0xFFFF), np.uint64(0x7FFF)
        upper = operands[0] >> np.uint64(16)
        kept = np.where((upper & size) > np.uint64(nan), size, np.where(upper & size, upper, np.uint64(0)))
        same: Mask = ((gpu[-1] & low) == (sim[-1] & low)) & ((gpu[-1] >> np.uint64(16)) == kept)
        return same & (gpu[:-1] == sim[:-1]).all(axis=0)

    return where


def _next_bfloat(operands: Words, sim: Words, gpu: Words) -> Mask:
    """Lanes whose bf16 results, single or in pairs, differ by at most one step."""
    near = np.ones(operands.shape[1], np.bool_)
    for shift in (0, 16):
        ours, theirs = ((row[0] >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for row in (sim, gpu))
        near &= np.abs(ours - theirs) <= 1
    return near


EXPLANATIONS: tuple[Explanation, ...] = (
    *(
        Explanation(
            rf".*%tile.*\b(atom|red)\S*\.add\.noftz\.{pair}\b",
            "Probably a compiler bug (driver 580): on an H200, atom and red on a packed pair in shared memory add 0 to "
            "the upper half; PTX adds the operand's upper half, as the H200 does in global memory.",
            _upper_half_plus_zero(nan),
        )
        for pair, nan in (("f16x2", 0x7C00), ("bf16x2", 0x7F80))
    ),
    Explanation(
        r"tanh\.approx\.bf16(x2)?\b",
        "The H200 exceeds the bound of 2^-8 by less than one step of bf16: its table's error and the rounding error "
        "add up.",
        _next_bfloat,
    ),
)


def explain(form: Form, operands: Words, sim: Words, gpu: Words, wrong: Mask) -> tuple[Mask, list[str]]:
    """Return the lanes of `wrong` that are explained, and the reasons."""
    found = np.zeros(wrong.shape, np.bool_)
    reasons = []
    for explanation in EXPLANATIONS:
        if not explanation.matches(form):
            continue
        covered: Any = wrong if explanation.where is None else wrong & explanation.where(operands, sim, gpu)
        if covered.any():
            found |= covered
            reasons.append(explanation.reason)
    return found, reasons
