"""The accuracy of a kernel by source line, and which lines lose it.

The error of a value is its difference from its shadow, relative to the larger of both. A line loses accuracy if its
result has lost ``bits_of_loss`` bits that its operands still had, and if such results reach global memory: the lost
digits of a compensated sum are not an error, because they are added to a larger value later.

Any difference of inexact numbers loses k bits by chance in about one of 2**k cases, and a long sum, which is small by
chance, in ten times as many. So a line is reported only if values that lost k bits are 1024 times as frequent among
those that a line of the kernel stores, or are more than half of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.report import Index3, SourcePlace

_BINS = 80
_BY_CHANCE = 1024
# a sum that drops its addends has stagnated if it has lost this many bits
STAGNATION = 3


def bits_of_loss(unit: int) -> int:
    """The bits whose loss counts, for a format by the exponent of its unit roundoff: 10 of float's 24, 5 of half's 11,
    4 of bfloat16's 8."""
    return 10 if unit <= -20 else 5 if unit <= -11 else 4 if unit <= -8 else 2


@dataclass
class LineAccuracy:
    """The accuracy of the float operations of a source line in a kernel.

    ``error`` is the largest relative error of their results and ``typical`` the median; ``bits_at_once`` the most bits
    that one operation lost. ``block``, ``thread``, ``operation``, ``result`` and ``exact`` are those of the worst lane,
    ``unit`` the exponent of its format's unit roundoff. ``addends`` counts the numbers other than 0 that were added,
    ``absorbed`` those that had no effect.
    """

    kernel: str
    place: SourcePlace
    operations: int = 0
    error: float = 0.0
    bits_at_once: float = 0.0
    unit: int = -24
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    operation: str = ""
    result: str = ""
    exact: str = ""
    addends: int = 0
    absorbed: int = 0
    #: of the values that reached memory with a loss of this line, the largest error
    stored_error: float = 0.0
    _errors: Array = field(default_factory=lambda: np.zeros(_BINS, np.int64), repr=False)

    @property
    def stagnates(self) -> bool:
        """Whether it is a sum whose addends have no effect any more."""
        return self.absorbed * 4 >= self.addends > 0

    @property
    def bits_lost(self) -> float:
        """The bits that the line lost: in one operation, or in all of them if it is a sum that drops its addends."""
        drifted = float(np.log2(max(self.error * 2.0**-self.unit, 1.0))) if self.stagnates else 0.0
        return max(self.bits_at_once, drifted)

    @property
    def typical(self) -> float:
        """The median error, to a factor of 2."""
        total = int(self._errors.sum())
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._errors), (total + 1) // 2))
        return 0.0 if place == 0 else float(2.0 ** (place - _BINS + 2))

    def count(self, errors: Array) -> None:
        """Add the errors of an operation's results."""
        self.operations += len(errors)
        place = np.frexp(errors)[1] + _BINS - 2
        place = np.where(errors > 0, np.clip(place, 1, _BINS - 1), 0)
        self._errors += np.bincount(place, minlength=_BINS)

    def as_dict(self) -> dict[str, Any]:
        """The fields in plain types, for JSON."""
        return {
            "kernel": self.kernel,
            "file": self.place.file,
            "line": self.place.line,
            "text": None if self.place.text is None else self.place.text.strip(),
            "operations": self.operations,
            "error": self.error,
            "typical_error": self.typical,
            "bits_lost": self.bits_lost,
            "stagnates": self.stagnates,
            "stored_error": self.stored_error,
            "block": list(self.block),
            "thread": list(self.thread),
            "operation": self.operation,
            "result": self.result,
            "exact": self.exact,
        }


class StoredErrors:
    """The errors of the values that a source line writes to global memory, by the code of the line that lost them."""

    def __init__(self) -> None:
        self.total = 0
        self.units = -99
        # by code: how many values have lost this many bits
        self.bits: dict[int, Array] = {}

    def add(self, errors: Array, codes: Array, unit: int, by_noise: Array) -> dict[int, float]:
        """Count stored values; returns the largest error by code. ``by_noise``: a mask of those that would be far
        smaller without rounding, so that their relative error says little: an exact result of 0 loses all bits."""
        self.total += len(errors)
        self.units = max(self.units, unit)
        worst: dict[int, float] = {}
        if codes.any():
            lost = np.clip(np.frexp(errors)[1] - 1 - unit, 0, _BINS - 1)
            lost = np.where(by_noise, np.minimum(lost, bits_of_loss(unit)), lost)
            for code in np.unique(codes[codes != 0]).tolist():
                mine = codes == code
                counts = np.bincount(lost[mine], minlength=_BINS)
                self.bits[code] = self.bits.get(code, 0) + counts
                worst[code] = float(errors[mine].max())
        return worst

    def is_loss(self, code: int, stagnates: bool) -> bool:
        """Whether the values with a code have lost more bits than by chance."""
        counts = self.bits.get(code)
        if counts is None:
            return False
        first = STAGNATION if stagnates else bits_of_loss(self.units)
        at_least = np.cumsum(counts[::-1])[::-1]
        allowed = [self.total * min(0.5, _BY_CHANCE * 2.0**-k) for k in range(first, _BINS)]
        return bool((at_least[first:] > allowed).any())
