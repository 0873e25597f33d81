"""What a family's declaration leaves open: the inputs that are drawn, the outputs' shapes, the bound of rounding, and
the dtypes of arrays by the kernel's signature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.compare import steps_of
from cudakit.errors import Refused
from cudakit.family.declaration import several
from cudakit.family.problem import ArraySpec, dims_of
from cudakit.family.references import is_float
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text

# Shapes of a bench by the number of axes, if a family declares none: for a GPU, and for the simulated device.
SHAPES: dict[int, dict[str, tuple[Shape, ...]]] = {
    1: {"gpu": ((1 << 24,), (10_000_019,)), "sim": ((4096,), (1003,))},
    2: {"gpu": ((4096, 4096), (1023, 4097)), "sim": ((64, 64), (33, 65))},
    3: {"gpu": ((256, 256, 256), (255, 129, 257)), "sim": ((16, 16, 16), (9, 17, 33))},
}
#: The kinds of shapes that a family declares.
KINDS = ("gpu", "sim", "sweep", "sim sweep", "gpu once", "sim once")
# Roundings that a correct result may have more than the plain algorithm: a few for each element, and the random walk of
# a sum over all inputs that an output depends on.
_FEW, _WALK = 16, 2
# The share of itself that an input is moved by to see how results follow: a rounding of float32.
_NUDGE = 2.0**-24


def shapes_by_device(declared: Any, axes: int) -> dict[str, tuple[Shape, ...]]:
    """Shapes by kind of device ("gpu", "sim", "sweep", "sim sweep"). declared: such a mapping, shapes for all, or None:
    usual shapes of `axes` axes. An int is a shape of one axis."""
    if declared is None:
        if axes not in SHAPES:
            raise ValueError(f"a problem of {axes} axes has no usual shapes: declare shapes=")
        declared = SHAPES[axes]
    if not isinstance(declared, Mapping):
        declared = {"gpu": declared}
    unknown = [kind for kind in declared if kind not in KINDS]
    if unknown:
        raise ValueError(f"shapes= has {unknown[0]!r}; kinds of shapes are {', '.join(KINDS)}")
    found = {kind: tuple(map(_shape, _sequence(shapes))) for kind, shapes in declared.items()}
    every = found.get("gpu") or found.get("sim")
    if not every:
        raise ValueError('shapes= needs at least one shape for "gpu" or "sim"')
    found.setdefault("gpu", every)
    found.setdefault("sim", every)
    return found | {"sweep": found.get("sweep", found["gpu"]), "sim sweep": found.get("sim sweep", found["sim"])}


def _sequence(shapes: Any) -> Sequence[Any]:
    if isinstance(shapes, str) or not isinstance(shapes, Sequence):
        raise ValueError(f"shapes={shapes!r} is not a sequence of shapes: write ((64, 64), (37, 101)), or (4096,)")
    return shapes


def _shape(shape: Any) -> Shape:
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not all(isinstance(extent, (int, np.integer)) and extent >= 0 for extent in extents):
        raise ValueError(f"shapes= has {shape!r}, which is not a shape: write ((64, 64), (37, 101)), or (4096,)")
    return tuple(int(extent) for extent in extents)


# Inputs and outputs ---------------------------------------------------------------------------------------------------


def bound(what: str, specs: Mapping[str, ArraySpec], shape: Shape) -> dict[str, int]:
    """The extents by name if the problem's shape is `shape`. ValueError if their numbers differ."""
    dims = dims_of(list(specs.values()))
    whole = any(spec.dims is None for spec in specs.values())
    if whole and not dims:
        return {}
    if len(dims) != len(shape):
        raise ValueError(f"{what} has a shape of {len(dims)} extents ({', '.join(dims)}), got {shape_text(shape)}")
    return dict(zip(dims, shape, strict=True))


def value_range(spec: ArraySpec, dtype: np.dtype[Any]) -> tuple[float | None, float | None]:
    """The bounds that values of an array are drawn between, `high` excluded; None for floats without bounds."""
    if dtype.kind not in "iub":
        return spec.low, spec.high
    if dtype.kind == "b":
        return 0, 2
    info = np.iinfo(dtype)
    low, high = max(int(info.min), -1000), min(int(info.max) + 1, 1000)
    return (low if spec.low is None else spec.low), (high if spec.high is None else spec.high)


def values(spec: ArraySpec, shape: Shape, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random values of a declared array: standard normal numbers, or evenly spread ones within its bounds."""
    low, high = value_range(spec, dtype)
    if dtype.kind in "iub":
        return rng.integers(int(low or 0), int(high or 0), shape).astype(dtype)
    if low is not None or high is not None:
        bottom = -1.0 if low is None else low
        return rng.uniform(bottom, bottom + 1 if high is None else high, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype == np.float32:
        return rng.standard_normal(shape, dtype=np.float32)
    return rng.standard_normal(shape).astype(dtype)


def spread(array: Any) -> int:
    """Bytes of an array that are read at least: elements that a stride of 0 repeats count once."""
    steps = zip(array.shape, array.strides, strict=True)
    return int(array.itemsize) * math.prod(int(n) for n, step in steps if step or n < 2)


def wide(array: Any) -> Any:
    """An input as the reference gets it: floats as float64, complex numbers as complex128."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if is_float(array.dtype) else array


# Rounding -------------------------------------------------------------------------------------------------------------


def rounding(
    results: Callable[[Sequence[Any]], Any], exact: Any, inputs: Sequence[Any], dtypes: Sequence[np.dtype[Any]]
) -> Any:
    """A bound of rounding for results of any algorithm that is not worse than a plain one. results: the reference.

    The sum of three errors, each for a plain algorithm's: 8 times the error that the reference makes in the inputs' own
    precision; 4 times the change of its results if each input is rounded once more, for algorithms that scale their
    inputs first; and some roundings of the result, or of the sum of magnitudes, which the reference of the inputs'
    magnitudes stands for, that grow with the root of the number of inputs per output, for sums in any order.
    0 for whole numbers. One array per output.
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
    """The distance of each element, in float64; 0 if one of them is not finite."""
    kind = np.complex128 if "c" in (result.dtype.kind, exact.dtype.kind) else np.float64
    with np.errstate(all="ignore"):
        return _finite(np.abs(result.astype(kind) - exact))


def _usual(errors: Any, size: Any, least: float) -> Any:
    """Errors as they are usual along the last axis, absolute or relative to `size`, whichever are less; but for each
    element at least its own.

    The largest of a thousand is left out: it may be a step of the reference, such as a rounding to whole numbers, that
    falls to the other side. The smallest results of a thousand, which may be differences, have absolute errors.
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
    """The value at a place along the last axis, if it were in order."""
    return np.partition(values, place, axis=-1)[..., place : place + 1]


def _perturbed(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, wide, with each float moved up or down by about _NUDGE of itself."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        return [wide(x) * (1 + _NUDGE * rng.uniform(-1.5, 1.5, x.shape)) if _has_nan(x) else wide(x) for x in inputs]


def _terms(results: Callable[[Sequence[Any]], Any], exact: Any, inputs: Sequence[Any]) -> list[float]:
    """How many elements of an input an element of each output depends on: those that are NaN if one in the middle of
    the input is, times the inputs per output. Of whole numbers, all inputs per output."""
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
    """The reference's results for inputs that it may not take, such as 16-bit numbers or NaN; `exact` then."""
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
    """A bound of `share` of the largest number along the last axis. One array per output."""
    bounds = []
    for one in several(exact):
        size = _finite(np.abs(np.asarray(one, np.float64)))
        largest = size.max(axis=-1, keepdims=True) if size.ndim and size.shape[-1] else size
        bounds.append(share * largest)
    return tuple(bounds) if isinstance(exact, tuple) else bounds[0]


# Signatures -----------------------------------------------------------------------------------------------------------


def expect_dtype(what: str, name: str, dtype: str | None, *, output: bool) -> np.dtype[Any]:
    """The dtype `dtype` of array `name`, an output or an input. Refused if a kernel's signature does not have it."""
    if dtype is None:
        declared = f'outputs={{"{name}": "float32[n]"}}' if output else f'inputs={{"{name}": "float32[n]"}}'
        raise Refused(
            f"family {what}: the dtype of {name} is not declared, and no kernel's signature shows it (no pointer that "
            f"it is passed to, or that has its name, is to a type that is known): declare {declared}"
        )
    return memory.as_dtype(dtype)
