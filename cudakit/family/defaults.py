"""What a family's declaration leaves open: the inputs that are drawn, the outputs' shapes, the bound of rounding, and
the dtypes of arrays by the kernel's signature."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.compare import steps_of
from cudakit.errors import Refused
from cudakit.family.declaration import several
from cudakit.family.problem import ArraySpec, dims_of
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text

# Shapes of a bench by the number of axes, if a family declares none: for a GPU, and for the simulated device.
SHAPES: dict[int, dict[str, tuple[Shape, ...]]] = {
    1: {"gpu": ((1 << 24,), (10_000_019,)), "sim": ((4096,), (1003,))},
    2: {"gpu": ((4096, 4096), (1023, 4097)), "sim": ((64, 64), (33, 65))},
    3: {"gpu": ((256, 256, 256), (255, 129, 257)), "sim": ((16, 16, 16), (9, 17, 33))},
}
# Roundings that a correct result may have more than the plain algorithm: a few for each element, and the random walk of
# a sum over all inputs that an output may depend on.
_FEW, _WALK = 16, 4


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it a reference may meet empty arrays, infinities and NaN, which numpy warns of: problems have them."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def parameters(reference: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of a reference's arrays, and the defaults of its options: keyword-only parameters.

    Raises TypeError for parameters that are neither.
    """
    arrays: list[str] = []
    options: dict[str, Any] = {}
    for parameter in inspect.signature(reference).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            options[parameter.name] = parameter.default
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            arrays.append(parameter.name)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            raise TypeError(
                "a reference takes arrays, and options as keyword-only parameters with defaults; "
                f"{parameter} is neither"
            )
    return tuple(arrays), options


def shapes_by_device(declared: Any, axes: int) -> dict[str, tuple[Shape, ...]]:
    """Shapes by kind of device ("gpu", "sim", "sweep", "sim sweep"). declared: such a mapping, shapes for all, or None:
    usual shapes of `axes` axes. An int is a shape of one axis."""
    if declared is None:
        if axes not in SHAPES:
            raise ValueError(f"a problem of {axes} axes has no usual shapes: declare shapes=")
        declared = SHAPES[axes]
    if not isinstance(declared, Mapping):
        declared = {"gpu": declared}
    found = {
        kind: tuple(shape if isinstance(shape, tuple) else (int(shape),) for shape in shapes)
        for kind, shapes in declared.items()
    }
    every = found.get("gpu") or found.get("sim")
    if not every:
        raise ValueError('shapes needs at least one shape for "gpu" or "sim"')
    found.setdefault("gpu", every)
    found.setdefault("sim", every)
    return found | {"sweep": found.get("sweep", found["gpu"]), "sim sweep": found.get("sim sweep", found["sim"])}


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
    dtype = np.asarray(array).dtype
    if dtype.kind == "c":
        return array.astype(np.complex128)
    return array if dtype.kind in "iubVSU" and dtype.name != "bfloat16" else array.astype(np.float64)


# Rounding -------------------------------------------------------------------------------------------------------------


def rounding(
    reference: Callable[..., Any], exact: Any, inputs: Sequence[Any], dtypes: Sequence[np.dtype[Any]], **options: Any
) -> Any:
    """A bound of rounding for results of any algorithm that is not worse than a plain one.

    8 times the error that the reference makes in the inputs' own precision, the largest along the last axis; plus some
    roundings of the result and of the sum of magnitudes, which the reference of the inputs' magnitudes stands for, that
    grow with the root of the number of inputs per output. 0 for whole numbers. One array per output.
    """
    exacts, few = several(exact), []
    with quiet():
        plains = several(reference(*inputs, **options))
        scales = several(reference(*(wide(_magnitude(x)) for x in inputs), **options))
    elements = sum(int(np.size(x)) for x in inputs)
    for number, (one, dtype) in enumerate(zip(exacts, dtypes, strict=True)):
        steps = steps_of(dtype)
        if not steps.sums:
            few.append(np.zeros(()))
            continue
        with np.errstate(all="ignore"):
            own = _finite(np.abs(np.asarray(plains[number]).astype(np.result_type(one, np.float64)) - one))
            size = np.maximum(_finite(np.abs(one)), _finite(np.abs(np.asarray(scales[number]))))
        worst = own.max(axis=-1, keepdims=True) if own.ndim and own.shape[-1] else own
        terms = max(1.0, elements / max(np.size(one), 1))
        few.append(8 * worst + steps.sums / 2 * (_FEW + _WALK * math.sqrt(terms)) * size + 2 * steps.least)
    return tuple(few) if isinstance(exact, tuple) else few[0]


def _magnitude(array: Any) -> Any:
    return np.abs(array) if np.asarray(array).dtype.kind in "fc" or array.dtype.name == "bfloat16" else array


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


def expect_dtype(what: str, name: str, dtype: str | None) -> np.dtype[Any]:
    """The dtype `dtype` of array `name`. Refused if a kernel's signature does not have it."""
    if dtype is None:
        raise Refused(
            f"{what}: the dtype of {name} is not declared, and the kernel's signature does not show it (its mangled "
            f'name has no types, or no parameter of that name): declare inputs={{"{name}": "float32[n]"}}, or outputs='
        )
    return memory.as_dtype(dtype)
