"""What a family's declaration leaves open: the inputs that are drawn, the outputs' shapes, and the
dtypes of arrays by the kernel's signature."""

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

# Shapes of a bench by the number of axes, if a family declares none: for a GPU, and for the simulated device.
SHAPES: dict[int, dict[str, tuple[Shape, ...]]] = {
    1: {"gpu": ((1 << 24,), (10_000_019,)), "sim": ((4096,), (1003,))},
    2: {"gpu": ((4096, 4096), (1023, 4097)), "sim": ((64, 64), (33, 65))},
    3: {"gpu": ((256, 256, 256), (255, 129, 257)), "sim": ((16, 16, 16), (9, 17, 33))},
}
#: The kinds of shapes that a family declares.
KINDS = ("gpu", "sim", "sweep", "sim sweep", "gpu once", "sim once")


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
    """The bounds that values of an array are drawn between, `high` excluded; None for floats without bounds.

    spec: its `high` is a number (see `ArraySpec.within`).
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
    """Random values of a declared array: standard normal numbers, or evenly spread ones within its bounds."""
    low, high = value_range(spec, dtype)
    if math.prod(shape) and low is not None and high is not None and high <= low:
        raise ValueError(f"no value is from {low} up to, not including, {high}")
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
