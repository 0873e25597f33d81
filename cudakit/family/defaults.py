"""Defaults of a family's declaration: random inputs, the outputs' shapes, and the dtypes of arrays by the kernel's
signature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.errors import Refused
from cudakit.family.problem import ArraySpec, dims_of
from cudakit.family.references import is_float
from cudakit.memory import array as memory
from cudakit.shapes import Shape, shape_text

# Default shapes of a bench by the number of axes, for a GPU and for the simulated device.
SHAPES: dict[int, dict[str, tuple[Shape, ...]]] = {
    1: {"gpu": ((1 << 24,), (10_000_019,)), "sim": ((4096,), (1003,))},
    2: {"gpu": ((4096, 4096), (1023, 4097)), "sim": ((64, 64), (33, 65))},
    3: {"gpu": ((256, 256, 256), (255, 129, 257)), "sim": ((16, 16, 16), (9, 17, 33))},
}
#: The kinds of shapes that a family can declare.
KINDS = ("gpu", "sim", "sweep", "sim sweep", "gpu once", "sim once")


def shapes_by_device(declared: Any, axes: int) -> dict[str, tuple[Shape, ...]]:
    """Return shapes by kind ("gpu", "sim", "sweep", "sim sweep"). declared: such a mapping, shapes for all kinds, or
    None for default shapes of `axes` axes. An int is a shape of one axis."""
    if declared is None:
        if axes not in SHAPES:
            raise ValueError(f"there are no default shapes for problems of {axes} axes: declare shapes=")
        declared = SHAPES[axes]
    if not isinstance(declared, Mapping):
        declared = {"gpu": declared}
    unknown = [kind for kind in declared if kind not in KINDS]
    if unknown:
        raise ValueError(f"shapes= has the unknown kind {unknown[0]!r}; kinds are {', '.join(KINDS)}")
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
    """Return the extents by name for a problem of shape `shape`. Raise ValueError if `shape` has another number of
    extents."""
    dims = dims_of(list(specs.values()))
    whole = any(spec.dims is None for spec in specs.values())
    if whole and not dims:
        return {}
    if len(dims) != len(shape):
        raise ValueError(f"{what} has a shape of {len(dims)} extents ({', '.join(dims)}), got {shape_text(shape)}")
    return dict(zip(dims, shape, strict=True))


def value_range(spec: ArraySpec, dtype: np.dtype[Any]) -> tuple[float | None, float | None]:
    """Return the range that values of an array are drawn from, excluding `high`; None for floats without bounds.

    spec: its `high` must be a number (see `ArraySpec.within`).
    """
    top: Any = spec.high
    if dtype.kind not in "iub":
        return spec.low, top
    if dtype.kind == "b":
        return 0, 2
    info = np.iinfo(dtype)
    low, high = max(int(info.min), -1000), min(int(info.max) + 1, 1000)
    return (low if spec.low is None else spec.low), (high if top is None else top)


def values(spec: ArraySpec, shape: Shape, dtype: np.dtype[Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return random values of a declared array: standard normal numbers, or uniform ones if it has bounds."""
    low, high = value_range(spec, dtype)
    if math.prod(shape) and low is not None and high is not None and high <= low:
        raise ValueError(f"no values between low={low} (included) and high={high} (excluded)")
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
    """Return the minimum bytes read from an array: elements that a stride of 0 repeats count once."""
    steps = zip(array.shape, array.strides, strict=True)
    return int(array.itemsize) * math.prod(int(n) for n, step in steps if step or n < 2)


def wide(array: Any) -> Any:
    """Return an input converted for the reference: floats to float64, complex numbers to complex128."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if is_float(array.dtype) else array


# Signatures -----------------------------------------------------------------------------------------------------------


def expect_dtype(what: str, name: str, dtype: str | None, *, output: bool) -> np.dtype[Any]:
    """Return `dtype`, the dtype of array `name`, as a numpy dtype. Raise Refused if it is None, because no kernel's
    signature shows it."""
    if dtype is None:
        declared = f'outputs={{"{name}": "float32[n]"}}' if output else f'inputs={{"{name}": "float32[n]"}}'
        raise Refused(
            f"family {what}: the dtype of {name} is not declared, and no kernel's signature shows it (no pointer "
            f"parameter of its name or position has a known element type): declare {declared}"
        )
    return memory.as_dtype(dtype)
