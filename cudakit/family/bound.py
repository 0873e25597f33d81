"""The default rounding bound of a family's results, derived from its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.compare import steps_of
from cudakit.errors import Refused
from cudakit.family.declaration import several
from cudakit.family.defaults import wide
from cudakit.family.references import is_float

# Roundings that a correct result may have in addition to those of the plain algorithm: a few per element, and the
# random walk of a sum over all inputs that an output depends on.
_FEW, _WALK = 16, 2
# The relative change of an input that measures how sensitive results are: one rounding of float32.
_NUDGE = 2.0**-24


def rounding(
    results: Callable[[Sequence[Any]], Any], exact: Any, inputs: Sequence[Any], dtypes: Sequence[np.dtype[Any]]
) -> Any:
    """Return a rounding bound for results of any algorithm that is at least as accurate as a plain one. results: runs
    the reference.

    Returns one array per output. Each bound is the sum of three errors:

    - 8 times the error of the reference in the inputs' own precision;
    - 4 times the change of the reference's results if each input is rounded once more, for algorithms that scale their
      inputs first;
    - a number of roundings of the result, or of the sum of magnitudes (the reference of the inputs' magnitudes) if that
      is larger. The number grows with the root of the number of inputs per output, for sums in any order.

    The bound is 0 for integers.
    """
    exacts, few = several(exact), []
    plains = several(_tried(results, inputs, exact))
    scales = several(_tried(results, [wide(_magnitude(x)) for x in inputs], exact))
    moved = several(_tried(results, _perturbed(inputs), exact))
    terms = _terms(results, exact, inputs)
    for number, (one, dtype) in enumerate(zip(exacts, dtypes, strict=True)):
        steps = steps_of(dtype)
        if not steps.sums:
            few.append(np.zeros(()))
            continue
        size = np.maximum(_finite(np.abs(one)), _finite(np.abs(scales[number])))
        own = _usual(_apart(plains[number], one), size, steps.least)
        change = _usual(_apart(moved[number], one) * (steps.sums / 2 / _NUDGE), size, steps.least)
        walk = _FEW + _WALK * math.sqrt(terms[number])
        few.append(8 * own + 4 * change + steps.sums / 2 * walk * size + 2 * steps.least)
    return tuple(few) if isinstance(exact, tuple) else few[0]


def _apart(result: Any, exact: Any) -> Any:
    """Return the absolute difference of each pair of elements, in float64; 0 if either element is not finite."""
    kind = np.complex128 if "c" in (result.dtype.kind, exact.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        return _finite(np.abs(result.astype(kind) - exact))


def _usual(errors: Any, size: Any, least: float) -> Any:
    """Return the 99.9th percentile of errors along the last axis: absolute, or relative to `size` if that is smaller;
    but at least each element's own error.

    The largest error in a thousand is ignored: it may be at a discontinuity of the reference, such as rounding to
    integers, with the two results on different sides. The smallest result in a thousand may be a difference of
    larger numbers, so it gets the absolute error.
    """
    if not errors.ndim or not errors.shape[-1]:
        return errors
    with np.errstate(all="ignore"):
        relative = np.where(size > 0, np.maximum(errors - least, 0) / size, 0.0)
    count = errors.shape[-1]
    last = min(int(0.999 * count), count - 1)
    absolute, share, small = _ranked(errors, last), _ranked(relative, last), _ranked(size, count - 1 - last)
    usual = np.where(size > small, np.minimum(absolute, share * size), absolute)
    return np.maximum(usual, errors)


def _ranked(values: Any, place: int) -> Any:
    """Return the value that would be at position `place` if the last axis were sorted."""
    return np.partition(values, place, axis=-1)[..., place : place + 1]


def _perturbed(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs in float64, with each float changed by about _NUDGE of itself, up or down."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        return [wide(x) * (1 + _NUDGE * rng.uniform(-1.5, 1.5, x.shape)) if _has_nan(x) else wide(x) for x in inputs]


def _terms(results: Callable[[Sequence[Any]], Any], exact: Any, inputs: Sequence[Any]) -> list[float]:
    """Return, per output, the number of input elements that one of its elements depends on. For floats it is the number
    of output elements that become NaN if the middle element of an input is NaN, times the ratio of input to output
    elements. For integers it is the ratio alone."""
    exacts = several(exact)
    found = [1.0] * len(exacts)
    for number, x in enumerate(inputs):
        if not x.size:
            continue
        marked = list(map(wide, inputs))
        changed = [1] * len(exacts)
        if _has_nan(x):
            marked[number].flat[x.size // 2] = math.nan
            after = several(_tried(results, marked, exact))
            changed = [
                int(np.count_nonzero(np.isnan(one) & ~np.isnan(before)))
                for one, before in zip(after, exacts, strict=True)
            ]
        for place, (count, one) in enumerate(zip(changed, exacts, strict=True)):
            found[place] = max(found[place], count * x.size / max(one.size, 1))
    return found


def _has_nan(array: Any) -> bool:
    return array.dtype.kind == "c" or is_float(array.dtype)


def _tried(results: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], exact: Any) -> Any:
    """Return the reference's results; `exact` if the reference does not support the inputs, such as 16-bit numbers or
    NaN."""
    try:
        made = results(inputs)
    except Refused:
        return exact
    shapes = [[np.shape(one) for one in several(each)] for each in (made, exact)]
    return made if shapes[0] == shapes[1] else exact


def _magnitude(array: Any) -> Any:
    return np.abs(array) if _has_nan(array) else array


def _finite(array: Any) -> Any:
    return np.where(np.isfinite(array), array, 0.0)


def relative(exact: Any, share: float) -> Any:
    """Return a bound of `share` of the largest magnitude along the last axis, one array per output."""
    bounds = []
    for one in several(exact):
        size = _finite(np.abs(np.asarray(one, np.float64)))
        largest = size.max(axis=-1, keepdims=True) if size.ndim and size.shape[-1] else size
        bounds.append(share * largest)
    return tuple(bounds) if isinstance(exact, tuple) else bounds[0]
