"""Whether a result is right: the one comparison that tests, benches and fuzzing share.

The tolerance is derived, never picked: twice the error that the plain algorithm (numpy in the same precision) makes
against the float64 reference, plus a floor for the order of the sums, which a kernel may choose, for the steps of
denormal numbers and for the last rounding to 16 bits. The first two are taken along the last axis, so that one bad row
cannot hide behind the scale of another.
Rightness is asserted positively (`error <= tolerance`, which NaN does not pass), and NaN and infinities must stand
exactly where the reference has them. Whole numbers (indices, counts) must be equal.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

# Rows are compared in pieces of about this many elements: float64 copies of a whole result would not fit beside it.
_PIECE = 1 << 22


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. Errors are over finite places; `worst_at` is the index of the largest error against its
    tolerance, or of the first NaN or infinity out of place. `why` is a sentence where `ok` is False."""

    ok: bool
    max_abs_error: float
    max_rel_error: float
    worst_at: tuple[int, ...] | None
    why: str = ""


@dataclass(frozen=True)
class _Piece:
    misplaced: int | None  # flat index within the piece
    excess: float  # largest error over its tolerance
    at: int
    absolute: float
    relative: float


def compare(result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], plain: np.ndarray[Any, Any]) -> Comparison:
    """Compares `result` with a float64 (or integer) `reference`, by the error of `plain`: all three of one shape.

    Complex numbers are compared as (real, imaginary) pairs along the last axis, and `worst_at` counts those.
    """
    if result.dtype.kind == "c":
        result, reference, plain = (_pairs(array) for array in (result, reference, plain))
    if result.shape != reference.shape or plain.shape != reference.shape:
        shapes = f"result {result.shape}, plain {plain.shape}, reference {reference.shape}"
        raise ValueError(f"only arrays of one shape can be compared: {shapes}")
    if not reference.size:
        return Comparison(True, 0.0, 0.0, None)
    cols = reference.shape[-1] if reference.ndim else 1
    rows = [array.reshape(-1, cols) for array in (result, reference, plain)]
    step = max(1, _PIECE // cols)
    starts = range(0, rows[0].shape[0], step)
    steps = steps_of(plain.dtype)

    def piece(start: int) -> _Piece:
        ours, theirs, own = (array[start : start + step] for array in rows)
        return _compare_rows(ours, theirs, own, steps)

    if len(starts) == 1:
        pieces = [piece(0)]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets go of the interpreter lock
            pieces = list(pool.map(piece, starts))
    return _verdict(pieces, [start * cols for start in starts], result, reference)


def _pairs(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kind = array.dtype if array.dtype.kind == "c" else np.complex128
    return np.ascontiguousarray(array, kind).view(array.real.dtype)


def in_range(exact: Any, dtype: Any) -> Any:
    """`exact` (float64) as a reference for results of `dtype`: infinite where that has nothing so large."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.asarray(exact).astype(dtype).astype(np.float64)
    return np.where(np.isinf(rounded), rounded, exact)


@dataclass(frozen=True)
class Steps:
    """Of a dtype: the distance from 1 to the next number that its sums are kept in (16-bit numbers are summed in
    float32), how far the last rounding may move a number of size 1 besides (16-bit numbers: half of their own step,
    to whichever side the sum fell), and the distance from 0 to the next. Zeros for whole numbers: they have none."""

    sums: float = 0.0
    last: float = 0.0
    least: float = 0.0


def steps_of(dtype: np.dtype[Any]) -> Steps:
    """The steps of a result's dtype."""
    if dtype.kind in "iub":
        return Steps()
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    own, single = float(info.eps), float(np.finfo(np.float32).eps)
    return Steps(min(own, single), own / 2 if own > single else 0.0, float(info.smallest_subnormal))


def _compare_rows(result: Any, reference: Any, plain: Any, steps: Steps) -> _Piece:
    finite = np.isfinite(reference)
    with np.errstate(all="ignore"):
        got = result.astype(np.float64)
        # Equal infinities are in place; NaN equals nothing, so its masks are compared.
        misplaced = ~finite & ~((got == reference) | (np.isnan(got) & np.isnan(reference)))
        misplaced |= finite & ~np.isfinite(got)
        error = np.where(finite, np.abs(got - reference), 0.0)
        own = np.where(finite, np.abs(plain.astype(np.float64) - reference), 0.0)
        magnitude = np.where(finite, np.abs(reference), 0.0)
        own[~np.isfinite(own)] = 0.0  # where the plain algorithm overflows it allows no error
        floor = steps.sums * math.sqrt(reference.shape[-1]) * magnitude.max(axis=-1, keepdims=True) + 2 * steps.least
        tolerance = 2 * own.max(axis=-1, keepdims=True) + floor + steps.last * magnitude
        excess = error - tolerance
        places = np.flatnonzero(misplaced)
        if places.size:
            return _Piece(int(places[0]), math.inf, int(places[0]), _top(error), _top(error / magnitude))
        at = int(excess.argmax())
        return _Piece(None, float(excess.flat[at]), at, _top(error), _top(error / magnitude))


def _top(values: np.ndarray[Any, Any]) -> float:
    """The largest number, passing over 0 / 0 and x / 0."""
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


def _verdict(
    pieces: Sequence[_Piece], offsets: Sequence[int], result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]
) -> Comparison:
    worst = max(range(len(pieces)), key=lambda index: pieces[index].excess)
    piece = pieces[worst]
    at = tuple(int(i) for i in np.unravel_index(offsets[worst] + piece.at, reference.shape))
    absolute = max(p.absolute for p in pieces)
    relative = max(p.relative for p in pieces)
    if piece.misplaced is None and piece.excess <= 0:
        return Comparison(True, absolute, relative, at)
    return Comparison(
        False, absolute, relative, at, f"element {at} is {result[at]}, the float64 reference has {reference[at]:.9g}"
    )
