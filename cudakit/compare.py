"""The comparison of results with references that tests, benches and fuzzing share.

`within` judges each element separately: it may differ from the float64 reference by the rounding that its family
derives for it (see rounding.py), and by the last rounding to the result's dtype, denormal numbers included.
`compare` is for results without such a derivation. The tolerance is twice the error of the plain algorithm (numpy in
the same precision) along the last axis, so that each row has its own scale, plus a term for the order of sums, plus the
last rounding.
Both test `error <= tolerance`, which NaN does not pass. NaN and infinities must be at the same elements as in
the reference, and whole numbers (indices, counts) must be equal.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

# Every byte of an output before a launch: in each float type a NaN that no arithmetic produces, -1 in integers. An
# element of an output or a guard zone that still holds it was not written.
POISON = 0xFF
# Ends the message about a kernel that is correct if its output holds zeros before the launch.
ADDS = "; if the output holds zeros beforehand the result is correct, so this kernel adds to it: declare initial=0"

# Rows are compared in pieces of about this many elements: float64 copies of a whole result would not fit in memory.
_PIECE = 1 << 22


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison. Errors are those of finite elements. `worst_at` is the index of the largest error
    relative to its tolerance, or of the first misplaced NaN or infinity. `why` is a sentence if `ok` is False. `stray`
    is the place of a store outside the result, in elements from its first one, or None. `output` is the number of the
    compared output."""

    ok: bool
    max_abs_error: float
    max_rel_error: float
    worst_at: tuple[int, ...] | None
    why: str = ""
    stray: int | None = None
    output: int = 0


@dataclass(frozen=True)
class _Piece:
    misplaced: int | None  # flat index within the piece
    excess: float  # largest error over its tolerance
    at: int
    absolute: float
    relative: float


def compare(
    result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], plain: np.ndarray[Any, Any], terms: int = 1
) -> Comparison:
    """Compare `result` with a float64 (or integer) `reference`, by the error of `plain`. All three have the same shape.

    terms: the length of the longest sum in an element, 1 if there is none. Complex numbers are compared as (real,
    imaginary) pairs along the last axis, and `worst_at` counts these.
    """
    if any(array.dtype.kind == "c" for array in (result, reference, plain)):
        result, reference, plain = (_pairs(array) for array in (result, reference, plain))
    steps = steps_of(plain.dtype)

    def allowance(exact: Any, own: Any) -> Any:
        magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0)
        own = np.where(np.isfinite(exact), np.abs(own.astype(np.float64) - exact), 0.0)
        own[~np.isfinite(own)] = 0.0  # an overflow of the plain algorithm allows no error
        of_sums = 0.0 if terms == 1 else steps.sums * math.sqrt(terms) * magnitude.max(axis=-1, keepdims=True)
        return 2 * own.max(axis=-1, keepdims=True) + of_sums + 2 * steps.least

    return _by_pieces(result, reference, plain, "plain", allowance)


def within(result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], rounding: Any) -> Comparison:
    """Compare `result` with a float64 (or integer) `reference`: each element may differ by its own `rounding`, which is
    broadcast, and by half a step of the result's dtype. Complex numbers are compared as by `compare`, each part with
    the rounding of its element."""
    limits = np.broadcast_to(np.asarray(rounding, np.float64), reference.shape)
    if "c" in (result.dtype.kind, reference.dtype.kind):
        result, reference, limits = _pairs(result), _pairs(reference), np.repeat(np.atleast_1d(limits), 2, axis=-1)
    return _by_pieces(result, reference, limits, "rounding", lambda exact, limit: limit)


def bounds(reference: Any, rounding: Any, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value that each element of a result of `dtype` may have: the reference minus
    and plus its `rounding`. Comparing with them is fast, but unlike `within` it does not allow for the last rounding.
    None for dtypes other than float32, float64 and whole numbers."""
    exact, allowed = np.asarray(reference), np.asarray(rounding)
    if dtype.kind in "iub" and exact.dtype.kind in "iub" and not np.any(allowed):
        return exact, exact
    if dtype not in (np.float32, np.float64) or exact.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        least, greatest = exact - allowed, exact + allowed
        low, high = least.astype(dtype), greatest.astype(dtype)
        low = np.where(low < least, np.nextafter(low, dtype.type(np.inf)), low)
        high = np.where(high > greatest, np.nextafter(high, dtype.type(-np.inf)), high)
    return low, high


def _by_pieces(result: Any, reference: Any, other: Any, name: str, allowance: Callable[[Any, Any], Any]) -> Comparison:
    """Compare `result` in pieces of whole rows. allowance(rows of reference, rows of other) returns the errors allowed
    before the last rounding."""
    if result.shape != reference.shape or other.shape != reference.shape:
        shapes = f"result {result.shape}, {name} {other.shape}, reference {reference.shape}"
        raise ValueError(f"only arrays of one shape can be compared: {shapes}")
    if not reference.size:
        return Comparison(True, 0.0, 0.0, None)
    cols = reference.shape[-1] if reference.ndim else 1
    rows = [array.reshape(-1, cols) for array in (result, reference)]
    others = other if other.ndim == 2 else other.reshape(-1, cols)
    step = max(1, _PIECE // cols)
    starts = range(0, rows[0].shape[0], step)

    def piece(start: int) -> _Piece:
        ours, exact = (array[start : start + step] for array in rows)
        with np.errstate(all="ignore"):
            return _compare_rows(ours, exact, allowance(exact, others[start : start + step]))

    if len(starts) == 1:
        pieces = [piece(0)]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy releases the interpreter lock
            pieces = list(pool.map(piece, starts))
    return _verdict(pieces, [start * cols for start in starts], result, reference)


def still_poisoned(results: Sequence[np.ndarray[Any, Any]]) -> str:
    """Return the end of a sentence about results if some elements still hold the poison value; otherwise ""."""
    left = sum(int((_bytes(result) == POISON).all(axis=-1).sum()) for result in results if result.size)
    if not left:
        return ""
    of = sum(result.size for result in results)
    return f"; {left} of {of} elements still hold the poison that outputs are filled with (0xFF in every byte)"


def _bytes(result: np.ndarray[Any, Any]) -> Any:
    return np.ascontiguousarray(result).reshape(-1).view(np.uint8).reshape(result.size, result.itemsize)


def _pairs(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kind = np.result_type(array.dtype, np.complex64)
    return np.ascontiguousarray(array, kind).view(array.real.dtype)


def in_range(exact: Any, dtype: Any) -> Any:
    """`exact` (float64 or complex128) as a reference for results of `dtype`; numbers beyond the dtype's range become
    infinite."""
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.asarray(exact).astype(dtype).astype(wide)
    return np.where(np.isinf(rounded), rounded, exact)


@dataclass(frozen=True)
class Steps:
    """Steps of a dtype. sums: the distance from 1 to the next number, in the type of its sums (float32 for 16-bit
    numbers). last: the most that the last rounding moves a number of size 1. least: the distance from 0 to the next
    number. All are zero for whole numbers."""

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
    return Steps(min(own, single), own / 2, float(info.smallest_subnormal))


def _last_rounding(magnitude: Any, steps: Steps) -> Any:
    """Return the largest error of rounding numbers of these sizes to a dtype: half a step, which is constant between
    two powers of two and among the denormals, plus the reference's own rounding to float64."""
    if not steps.last:
        return 0.0
    fractions, exponents = np.frexp(magnitude)
    steps_there = np.where(fractions > 0, np.ldexp(steps.last, exponents - 1), 0.0)
    return np.maximum(steps_there, steps.least / 2) + magnitude * 2.0**-52


def _compare_rows(result: Any, reference: Any, allowed: Any) -> _Piece:
    finite = np.isfinite(reference)
    got = result.astype(np.float64)
    # NaN is not equal to itself, so the masks of NaN elements are compared.
    misplaced = ~finite & ~((got == reference) | (np.isnan(got) & np.isnan(reference)))
    misplaced |= finite & ~np.isfinite(got)
    error = np.where(finite, np.abs(got - reference), 0.0)
    if reference.dtype.kind in "iub" and result.dtype.kind in "iub":
        error = np.maximum(error, result != reference)  # float64 cannot distinguish neighbours beyond 2^53
    magnitude = np.where(finite, np.abs(reference), 0.0)
    allowed = np.where(np.isfinite(allowed), allowed, 0.0)
    excess = error - (allowed + _last_rounding(magnitude + allowed, steps_of(result.dtype)))
    excess = np.where(finite, excess, -np.inf)
    absolute, relative = _top(error), _top(error / magnitude)
    places = np.flatnonzero(misplaced)
    if places.size:
        return _Piece(int(places[0]), math.inf, int(places[0]), absolute, relative)
    at = int(excess.argmax())
    return _Piece(None, float(excess.flat[at]), at, absolute, relative)


def _top(values: np.ndarray[Any, Any]) -> float:
    """The largest finite number; 0 / 0 and x / 0 are skipped."""
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
