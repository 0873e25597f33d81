"""The difference between an array as it was recorded and as a replay left it, and whether it is rounding.

Rounding: all elements are floats, NaN and infinities are at the same places, and each difference is at most one step of
the dtype at the element's magnitude, plus ROUNDINGS steps of its sums (float32's for smaller floats) at the array's
largest magnitude. An array whose rows differ much in size can hide a small wrong element by this rule, so the first
element and the distance in ulp are shown too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cudakit.recording.launches import ArrayArgument
from cudakit.recording.memory import Bytes

ROUNDINGS = 16
_SINGLE = float(np.finfo(np.float32).eps)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Difference:
    """How an array differs.

    array: its name. at: the index of the first element that differs. region, byte: the place of that element in the
    launch's memory. dtype: as in ArrayArgument. recorded, replayed: its values. count: elements that differ, of `size`.
    largest: the largest difference, None if a value is not finite. ulp: the most numbers between two values; None if
    they are not floats. rounding: whether the difference is rounding.
    """

    array: str
    at: tuple[int, ...]
    region: int
    byte: int
    dtype: str
    recorded: str
    replayed: str
    count: int
    size: int
    largest: float | None
    ulp: int | None
    rounding: bool

    @property
    def element(self) -> str:
        """The first element as Python writes it: "y[3, 4]"."""
        return f"{self.array}[{', '.join(map(str, self.at))}]"

    def __str__(self) -> str:
        ulp = "" if self.ulp is None else f", at most {self.ulp} ulp apart"
        kind = "rounding: " if self.rounding else ""
        return (
            f"{kind}{self.count} of {self.size} elements of {self.array} differ{ulp}; the first is {self.element}: "
            f"recorded {self.recorded}, replayed {self.replayed}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return {**asdict(self), "at": list(self.at), "element": self.element}


def compare(recorded: Bytes, replayed: Bytes, array: ArrayArgument) -> Difference:
    """Return how two states of some memory differ, as elements of an array in it.

    recorded, replayed: the bytes, which are not equal. The first element that differs is named by its index in the
    array; one outside the array by its distance from the array's first element.
    """
    kind = array.kind
    size = kind.itemsize
    start = array.offset % size
    end = start + (len(recorded) - start) // size * size
    inside = np.flatnonzero(recorded[start:end] != replayed[start:end])
    if not inside.size:  # the bytes before the first whole element, or after the last
        bytes_ = replace(array, offset=0, dtype="", shape=(len(recorded),), strides=(1,))
        return compare(recorded, replayed, bytes_)
    old, new = recorded[start:end].copy().view(kind), replayed[start:end].copy().view(kind)
    different = np.unique(inside // size)
    first = int(different[0])
    byte = start + first * size
    largest, ulp, rounding = _sizes(old, new, different)
    if kind == np.uint8 and _rounding_as_float(recorded, replayed):
        return replace(compare(recorded, replayed, _as_floats(array, len(recorded))), rounding=True)
    return Difference(
        array.name,
        _index(byte - array.offset, array.shape, array.strides) or ((byte - array.offset) // size,),
        array.region,
        byte,
        array.dtype,
        text(old[first]),
        text(new[first]),
        len(different),
        len(old),
        largest,
        ulp,
        rounding,
    )


def _rounding_as_float(recorded: Bytes, replayed: Bytes) -> bool:
    """Whether bytes without a type, such as scratch memory, differ by rounding if they are float32: each float that
    differs, by itself, by at most ROUNDINGS steps."""
    whole = len(recorded) // 4 * 4
    old, new = recorded[:whole].copy().view(np.float32), replayed[:whole].copy().view(np.float32)
    different = old.view(np.uint32) != new.view(np.uint32)
    a, b = old[different].astype(np.float64), new[different].astype(np.float64)
    if not len(a) or (recorded[whole:] != replayed[whole:]).any() or not (np.isfinite(a) & np.isfinite(b)).all():
        return False
    largest = np.maximum(np.abs(a), np.abs(b))
    return bool((largest > np.finfo(np.float32).tiny).all() and (np.abs(a - b) <= ROUNDINGS * _SINGLE * largest).all())


def _as_floats(array: ArrayArgument, size: int) -> ArrayArgument:
    """An array of bytes as an array of the float32 in its memory of `size` bytes."""
    return replace(array, offset=0, dtype="float32", shape=(size // 4,), strides=(4,))


def text(value: Any) -> str:
    """Return an element as text, with all digits of its dtype."""
    return str(value.item()) if value.dtype.kind in "iub" else str(value)


def _index(byte: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of the element at a byte of an array; None if none begins there."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -abs(strides[axis])):
        if shape[axis] > 1 and strides[axis] > 0:
            index[axis] = min(byte // strides[axis], shape[axis] - 1) if byte >= 0 else 0
            byte -= index[axis] * strides[axis]
    return tuple(index) if byte == 0 else None


def _sizes(old: Any, new: Any, different: Any) -> tuple[float | None, int | None, bool]:
    """Return the largest difference, the distance in ulp, and whether all differences are rounding."""
    if old.dtype.kind == "c":
        parts = np.unique(np.concatenate([2 * different, 2 * different + 1]))
        return _sizes(old.view(old.real.dtype), new.view(new.real.dtype), parts)
    if old.dtype.kind in "iub":
        return float(np.max(np.abs(old[different].astype(np.float64) - new[different].astype(np.float64)))), None, False
    if old.dtype.kind not in "fV" or old.dtype.names is not None or old.dtype.itemsize not in _UNSIGNED:
        return None, None, False
    import ml_dtypes

    wide_old, wide_new = old.astype(np.float64), new.astype(np.float64)
    a, b = wide_old[different], wide_new[different]
    # -0 and 0 differ in their bits only; so do two NaNs
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not (finite | same).all():
        return None, None, False
    apart = np.where(finite, np.abs(a - b), 0.0)
    every = np.abs(np.concatenate([wide_old, wide_new]))
    scale = float(np.max(every, initial=0.0, where=np.isfinite(every)))
    eps = float(ml_dtypes.finfo(old.dtype).eps)  # type: ignore[no-untyped-call]
    # sums of 16-bit and smaller floats are float32
    allowed = eps * np.maximum(np.abs(a), np.abs(b)) + ROUNDINGS * min(eps, _SINGLE) * scale
    rounding = bool((apart[finite] <= allowed[finite]).all())
    return float(apart.max()), _ulp(old[different], new[different], finite), rounding


def _ulp(a: Any, b: Any, finite: Any) -> int:
    """Return the most steps between two floats of each pair."""
    unsigned = _UNSIGNED[a.dtype.itemsize]
    top = 1 << (8 * a.dtype.itemsize - 1)

    def ordered(values: Any) -> list[int]:
        return [int(bits) if bits < top else top - int(bits) for bits in values[finite].view(unsigned)]

    return max((abs(one - other) for one, other in zip(ordered(a), ordered(b), strict=True)), default=0)
