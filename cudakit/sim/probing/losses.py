"""The accuracy of a kernel by source line, and which lines lose it.

The error of a value is its difference from its shadow, relative to the larger of both. A line loses accuracy if its
result has lost ``bits_of_loss`` bits that its operands still had, and if such results reach global memory: the lost
digits of a compensated sum are not an error, because they are added to a larger value later.

Any difference of inexact numbers loses k bits by chance in about one of 2**k cases, and a long sum, which is small by
chance, in ten times as many. So a line is reported only if values that lost k bits are 1024 times as frequent among
those that a line of the kernel stores, or are more than half of them.

Overflow is not a matter of chance: a line that makes an infinity from a finite shadow is reported if one finite result
is wrong because of it, by more than float's rounding of the largest value that the storing line writes: the 0 of
``x / (1 + exp(-x))`` for a large negative ``x`` is a correct result. Infinities that are stored are left to the traps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.report import Index3, SourcePlace

_BINS = 80
_BY_CHANCE = 1024
# floats below this are too small for a relative error
_NEGLIGIBLE = 2.0**-101
# no number of a float format other than double is smaller, and 0 has no relative error
LEAST = 2.0**-1000
# a value that is this much smaller without rounding consists of rounding errors only
_NOISE = 2.0**-10
# an overflow shows in an error of this size relative to the largest stored value; among halves, of this absolute size:
# the 0 of x / (1 + exp(-x)) is off by up to 2**-12.5, because exp overflows from 11.1 on
_VISIBLE = 2.0**-24
_VISIBLE_HALF = 2.0**-12
# a sum that drops its addends has stagnated if it has lost this many bits
STAGNATION = 3
# The code of a value is the number of the line that lost its accuracy: negative if the line is a sum that dropped an
# addend, and with this added if the line made an infinity whose shadow is finite.
OVERFLOWED = 1 << 24


def bits_of_loss(unit: int) -> int:
    """The bits whose loss counts, for a format by the exponent of its unit roundoff: 10 of float's 24, 5 of half's 11,
    4 of bfloat16's 8."""
    return 10 if unit <= -20 else 5 if unit <= -11 else 4 if unit <= -8 else 2


def relative_error(actual: Array, exact: Array, least: float = _NEGLIGIBLE) -> Array:
    """The relative error of values, of those below ``least`` relative to it; 1 if a value is infinite and should not
    be, 0 if there is no finite exact value."""
    scale = np.maximum(np.maximum(np.abs(actual), np.abs(exact)), least)
    errors: Array = np.abs(actual - exact) / scale
    return np.where(np.isfinite(errors), errors, np.where(np.isinf(actual) & np.isfinite(exact), 1.0, 0.0))


def threshold(unit: int, *, stagnation: bool = False) -> float:
    """The error from which on a value of a format has lost its accuracy."""
    return float(2.0 ** (unit + (STAGNATION if stagnation else bits_of_loss(unit))))


class Worst(NamedTuple):
    """An operation with a large error, as reports show it; the fields are those of `LineAccuracy`."""

    error: float
    unit: int
    block: Index3
    thread: Index3
    operation: str
    result: str
    exact: str


@dataclass
class LineAccuracy:
    """The accuracy of the float operations of a source line in a kernel.

    ``error`` is the largest relative error of their results and ``typical`` the median; ``bits_at_once`` the most bits
    that one operation lost, ``bits_in_all`` those that all of them lost. ``block``, ``thread``, ``operation``,
    ``result`` and ``exact`` are those of the worst lane, ``unit`` the exponent of its format's unit roundoff.
    ``addends`` counts the numbers other than 0 that were added, ``absorbed`` those that had no effect. ``overflow`` and
    ``underflow`` are the first operations whose result is infinite and its shadow finite, or too small for a relative
    error; they do not count as the worst, because the results of the kernel may be correct.
    """

    kernel: str
    place: SourcePlace
    operations: int = 0
    error: float = 0.0
    bits_at_once: float = 0.0
    bits_in_all: float = 0.0
    unit: int = -24
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    operation: str = ""
    result: str = ""
    exact: str = ""
    addends: int = 0
    absorbed: int = 0
    overflow: Worst | None = field(default=None, repr=False)
    underflow: Worst | None = field(default=None, repr=False)
    #: of the values that reached memory with a loss of this line, the largest error
    stored_error: float = 0.0
    _errors: Array = field(default_factory=lambda: np.zeros(_BINS, np.int64), repr=False)

    @property
    def stagnates(self) -> bool:
        """Whether it is a sum whose addends have no effect any more."""
        return self.absorbed * 4 >= self.addends > 0

    @property
    def bits_lost(self) -> float:
        """The bits that the line lost: in one operation, or in all of them if none loses many."""
        if self.bits_at_once >= bits_of_loss(self.unit) and not self.stagnates:
            return self.bits_at_once
        return max(self.bits_at_once, self.bits_in_all)

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

    def show(self, worst: Worst) -> None:
        """Make an operation the one that reports show."""
        self.error, self.unit, self.block, self.thread, self.operation, self.result, self.exact = worst

    def explain(self, *, overflowed: bool) -> None:
        """Show the overflow, if it is why the line loses accuracy, or the underflow, if no other operation is."""
        worst = self.overflow if overflowed else self.underflow if self.bits_lost < STAGNATION else None
        if worst is not None:
            self.show(worst)
            self.bits_at_once = float(np.log2(worst.error * 2.0**-worst.unit))

    def blame(self, errors: Array, unit: int) -> None:
        """Note the errors of results that this line and its earlier operations have made."""
        if errors.size:
            self.bits_in_all = max(self.bits_in_all, float(np.log2(max(errors.max() * 2.0**-unit, 1.0))))

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


def number_of(code: int) -> int:
    """The number of the line of a code."""
    return abs(code) % OVERFLOWED


class StoredErrors:
    """The errors of the values that a source line writes to global memory, by the code of the line that lost them."""

    def __init__(self) -> None:
        self.total = 0
        self.units = -99
        # by code: how many values have lost this many bits
        self.bits: dict[int, Array] = {}
        self.largest = 0.0
        # by code: the largest difference from the exact value
        self.differences: dict[int, float] = {}

    def add(self, values: Array, exact: Array, codes: Array, unit: int) -> dict[int, float]:
        """Count stored values; returns the largest error by code."""
        self.total += len(values)
        self.units = max(self.units, unit)
        finite = np.isfinite(values)
        for given in (values, exact):
            self.largest = max(self.largest, float(np.abs(given).max(initial=0.0, where=finite)))
        codes = np.where(finite, codes, np.int32(0))
        worst: dict[int, float] = {}
        if codes.any():
            errors = relative_error(values, exact)
            lost = np.where(errors > 0, np.clip(np.frexp(errors)[1] - 1 - unit, 0, _BINS - 1), 0)
            # the relative error of a value that would be far smaller says little: an exact result of 0 loses all bits
            by_noise = np.abs(exact) < np.abs(values) * _NOISE
            lost = np.where(by_noise, np.minimum(lost, bits_of_loss(unit)), lost)
            for code in np.unique(codes[codes != 0]).tolist():
                mine = codes == code
                counts = np.bincount(lost[mine], minlength=_BINS)
                self.bits[code] = self.bits.get(code, 0) + counts
                worst[code] = float(errors[mine].max())
                difference = float(np.abs(values - exact)[mine].max())
                self.differences[code] = max(self.differences.get(code, 0.0), difference)
        return worst

    def overflowed(self, number: int) -> bool:
        """Whether an infinity that a line made has led to a wrong finite value."""
        visible = max(self.largest * _VISIBLE, _VISIBLE_HALF if self.units == -11 else _NEGLIGIBLE)
        return self.differences.get(number + OVERFLOWED, 0.0) > visible

    def is_loss(self, number: int, stagnates: bool) -> bool:
        """Whether the values whose accuracy a line lost have lost more bits than by chance."""
        none = np.zeros(_BINS, np.int64)
        counts = self.bits.get(number, none) + self.bits.get(-number, none)
        first = STAGNATION if stagnates else bits_of_loss(self.units)
        at_least = np.cumsum(counts[::-1])[::-1]
        allowed = [self.total * min(0.5, _BY_CHANCE * 2.0**-k) for k in range(first, _BINS)]
        return bool((at_least[first:] > allowed).any())
