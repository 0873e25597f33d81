"""Element-wise maps of one array: scale, threshold, cast and fill."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import axes
from cudakit.families.vector_add import GRID_STRIDE_BLOCKS
from cudakit.family import CPP, IN, OUT, Family, Launch, Scalar, Slot, alignment, apply, ceil_div, checks, variant
from cudakit.memory import array as memory
from cudakit.rounding import SMALLEST, U

# Measured on an H200: small blocks are the fastest for maps to a smaller dtype, but fills are a quarter slower in them.
BLOCK = 128
FILL_BLOCK = 256
FLOATS = tuple(CPP)
_CPP = {**CPP, "int32": "int"}
_UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_UNALIGNED = "16-byte access needs contiguous arrays that start on a 16-byte boundary"


@dataclass(frozen=True)
class MapProblem:
    """The walk over input and output (for fill: over the output only), their dtypes, the map's parameter (for fill: the
    value's bits), and `vectors`, whether all arrays are contiguous and start on a 16-byte boundary."""

    what: str
    walk: axes.Walk
    x: str
    y: str
    parameter: float
    vectors: bool

    def __str__(self) -> str:
        shape = "x".join(map(str, self.walk.extents))
        return f"{self.what} of {shape} {self.x} to {self.y}, strides {' to '.join(map(str, self.walk.strides))}"


# The C++ functors of scale, threshold and cast, by the input's type x and the output's type y.
_FUNCTORS = {"scale": "Scale<{x}>", "threshold": "Threshold<{x}>", "cast": "Cast<{x}, {y}>"}


def _of_types(problem: MapProblem) -> str:
    """Return the first template arguments of both map kernels."""
    x, y = _CPP[problem.x], _CPP[problem.y]
    return f"{x}, {y}, {_FUNCTORS[problem.what].format(x=x, y=y)}"


@variant("unary/01_strided.cu")
def strided(problem: MapProblem) -> Launch:
    """any strides: addresses computed per element"""
    walk = problem.walk
    blocks = min(ceil_div(walk.size, BLOCK), 2 * GRID_STRIDE_BLOCKS)
    args = (IN[0], OUT, *walk.strides[0], *walk.strides[1], *walk.extents, problem.parameter)
    return Launch(blocks, BLOCK, args, entry=f"map_strided<{_of_types(problem)}, {walk.number}>")


@variant("unary/02_vectors.cu", problems="aligned")
def vectors(problem: MapProblem) -> Launch | str:
    """16 bytes per lane"""
    if not problem.vectors:
        return _UNALIGNED
    per = 16 // max(memory.as_dtype(name).itemsize for name in (problem.x, problem.y))
    blocks = ceil_div(ceil_div(problem.walk.size, per), BLOCK)
    args = (IN[0], OUT, problem.walk.size, problem.parameter)
    return Launch(blocks, BLOCK, args, entry=f"map_vectors<{_of_types(problem)}, {per}>")


def _problem(what: str, x: Any, y: Any, parameter: float) -> MapProblem:
    checks.expect_shape_of(what, x, y)
    checks.expect_output(what, y, (("the input", x),))
    walk = axes.walk(what, x.shape, (x.strides_elements, y.strides_elements))
    vectors = walk.flat and alignment(x) == alignment(y) == 16
    return MapProblem(what, walk, x.dtype.name, y.dtype.name, parameter, vectors)


def _single(number: float) -> float:
    """Return `number` rounded to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _same_dtype(what: str, x: Any, y: Any) -> None:
    if x.dtype.name not in FLOATS or y.dtype != x.dtype:
        raise ValueError(f"{what} takes {', '.join(FLOATS)}, one dtype in and out; got {x.dtype} in and {y.dtype} out")


def _wide(x: Any) -> Any:
    """Return x in float32, or unchanged if its dtype is more precise."""
    return x.astype(np.result_type(x.dtype, np.float32))


def _inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, **_: Any) -> tuple[np.ndarray, ...]:
    if dtype.kind == "i":
        return (rng.integers(-(2**31), 2**31, shape, np.int32).astype(dtype),)
    return (rng.standard_normal(shape, dtype=np.float32).astype(dtype),)


def _family(name: str, **given: Any) -> Family[MapProblem]:
    """Return a family of this module with the fields that all of them share; results are rounded once."""
    common: dict[str, Any] = {
        "variants": (strided, vectors),
        "inputs": _inputs,
        "outputs": lambda x, **_: (tuple(x.shape), x.dtype),
        "rounding": 0.0,
        "shapes": {
            "gpu": ((1 << 26,),),
            "sim": ((30_011,), (40, 250)),
            "sim sweep": ((1023,), (1 << 12,), (1 << 14,)),
            "sweep": ((1 << 20,), (10_000_000,), (1 << 26,), (1 << 28,)),
        },
        "dtypes": FLOATS,
        "problems": f"cudakit.testing.unary:{name}_cases",
    }
    return Family(name=name, **(common | given))


# scale ----------------------------------------------------------------------------------------------------------------

FACTOR = 0.7


def _scaled(x: Any, *, factor: float = FACTOR) -> Any:
    """Return the product with the factor rounded to float32."""
    return (_wide(x) * np.float32(factor)).astype(x.dtype)


def _scale_rounding(exact: Any, x: Any, factor: float = FACTOR) -> Any:
    """Return the rounding error of the float32 product, which 16-bit results round a second time."""
    return 0.0 if x.dtype == np.float32 else U * np.abs(exact) + SMALLEST / 2


def _scale_problem(inputs: Sequence[Any], output: Any, factor: float = FACTOR) -> MapProblem:
    _same_dtype("scale", inputs[0], output)
    return _problem("scale", inputs[0], output, _single(factor))


SCALE = _family(
    "scale",
    reference=_scaled,
    rounding=_scale_rounding,
    problem=_scale_problem,
    scalars={"factor": Scalar("parameter", _single)},
)
SCALE.call = lambda inputs, out, variant, stream, factor=FACTOR: functools.partial(
    scale, inputs[0], factor, out, variant, stream
)


def scale(x: Any, factor: float, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return factor * x for float32, float16 or bfloat16; the product is float32, rounded once to x's dtype.

    Does not wait for the device.

    Args:
        x: An array of cudakit, torch or CuPy, with any strides whose axes can be merged into four.
        factor: Rounded to float32.
        out: The output, which may be `x`. By default a new array.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(SCALE, (x,), out, variant, stream, {"factor": factor})


# threshold ------------------------------------------------------------------------------------------------------------

LIMIT = 0.3


def _kept(x: Any, *, limit: float = LIMIT) -> Any:
    """Return x with 0 for the elements below the limit, rounded to float32."""
    return np.where(_wide(x) < np.float32(limit), np.zeros((), x.dtype), x)


def _threshold_problem(inputs: Sequence[Any], output: Any, limit: float = LIMIT) -> MapProblem:
    _same_dtype("threshold", inputs[0], output)
    return _problem("threshold", inputs[0], output, _single(limit))


THRESHOLD = _family(
    "threshold",
    reference=_kept,
    problem=_threshold_problem,
    scalars={"limit": Scalar("parameter", _single)},
)
THRESHOLD.call = lambda inputs, out, variant, stream, limit=LIMIT: functools.partial(
    threshold, inputs[0], limit, out, variant, stream
)


def threshold(x: Any, limit: float, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return x with 0 for elements below `limit`, for float32, float16 or bfloat16.

    Elements equal to the limit and NaN stay. The limit is rounded to float32. The other arguments are those of `scale`.
    """
    return apply(THRESHOLD, (x,), out, variant, stream, {"limit": limit})


# cast -----------------------------------------------------------------------------------------------------------------

CASTS = tuple(_CPP)


def _whole(x: Any) -> Any:
    """Return x rounded to the nearest int32 (ties to even), saturated to the range of int32; NaN becomes 0."""
    if x.dtype == np.int32:
        return x
    whole = np.nan_to_num(np.rint(x.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def _odd_float32(x: np.ndarray) -> Any:
    """Return int32 as float32 rounded to odd: towards zero, with the last bit set if the result is inexact."""
    exact = np.asarray(x, np.float64)
    near = exact.astype(np.float32)
    truncated = np.where(np.abs(near.astype(np.float64)) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    bits = truncated.astype(np.float32).view(np.int32)
    return (bits | (truncated.astype(np.float64) != exact)).view(np.float32)


def _cast_reference(x: Any, *, to: str = "float16") -> Any:
    return _whole(x) if to == "int32" else x.astype(np.float64)


def _cast_baseline(x: Any, to: str = "float16") -> Any:
    if to == "int32":
        return _whole(x)
    if x.dtype == np.int32 and to == "bfloat16":  # ml_dtypes converts by way of float32 and rounds twice
        return _odd_float32(x).astype(memory.as_dtype(to))
    return x.astype(memory.as_dtype(to))


def _cast_problem(inputs: Sequence[Any], output: Any, to: str = "float16") -> MapProblem:
    for name in (inputs[0].dtype.name, to):
        if name not in CASTS:
            raise ValueError(f"cast supports {', '.join(CASTS)}, got {inputs[0].dtype} to {to}")
    if output.dtype.name != to:
        raise ValueError(f"cast to {to} takes an output of that dtype, got {output.dtype}")
    return _problem("cast", inputs[0], output, 0.0)


CAST = _family(
    "cast",
    reference=_cast_reference,
    baseline=_cast_baseline,
    outputs=lambda x, to="float16": (tuple(x.shape), memory.as_dtype(to)),
    problem=_cast_problem,
    dtypes=CASTS,
    modes={"": {}} | {f"to {name}": {"to": name} for name in ("bfloat16", "int32", "float32")},
)
CAST.call = lambda inputs, out, variant, stream, to="float16": functools.partial(
    cast, inputs[0], to, out, variant, stream
)


def cast(x: Any, to: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Return x converted to float32, float16, bfloat16 or int32, rounded to nearest (ties to even).

    Overflow becomes infinity in float16 and bfloat16; in int32 it saturates, and NaN becomes 0. int32 inputs are
    rounded once. The other arguments are those of `scale`, except that `out` may be `x` only if the dtypes are equal.
    """
    return apply(CAST, (x,), out, variant, stream, {"to": memory.as_dtype(to).name})


# fill -----------------------------------------------------------------------------------------------------------------


def _element(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Return `value` as one element of `dtype`. Raise ValueError if an integer dtype cannot hold it exactly."""
    given = np.asarray(value)
    if given.shape:
        raise ValueError(f"fill takes one value, got an array of shape {given.shape}: use copy_from() for arrays")
    with np.errstate(over="ignore", invalid="ignore"):
        element = given.astype(dtype)
    if dtype.kind in "iu" and element != given:
        raise ValueError(f"{dtype} cannot hold {value!r} exactly: round it first")
    return element


def _fill_problem(inputs: Sequence[Any], output: Any, value: Any = 1.0) -> MapProblem:
    """Return the problem of filling `output`. Only the input's shape and dtype are used, for a new output."""
    dtype = output.dtype
    if dtype.itemsize not in _UNSIGNED:
        raise ValueError(f"fill takes elements of 1, 2, 4 or 8 bytes, but {dtype} has {dtype.itemsize}")
    bits = int(_element(value, dtype).reshape(1).view(f"u{dtype.itemsize}")[0])
    checks.expect_output("fill", output, ())
    walk = axes.walk("fill", output.shape, (output.strides_elements,))
    vectors = walk.flat and alignment(output) == 16
    return MapProblem("fill", walk, dtype.name, dtype.name, bits, vectors)


def _bits(problem: MapProblem) -> tuple[Slot, str]:
    """Return the output as unsigned integers, and their C++ type."""
    size = memory.as_dtype(problem.y).itemsize
    return OUT.at(dtype=f"u{size}"), _UNSIGNED[size]


@variant("unary/03_fill_strided.cu", name="strided")
def _fill_strided(problem: MapProblem) -> Launch:
    """any strides: addresses computed per element"""
    walk, (out, unsigned) = problem.walk, _bits(problem)
    blocks = min(ceil_div(walk.size, BLOCK), 2 * GRID_STRIDE_BLOCKS)
    args = (out, *walk.strides[0], *walk.extents, problem.parameter)
    return Launch(blocks, BLOCK, args, entry=f"fill_strided<{unsigned}, {walk.number}>")


@variant("unary/04_fill_vectors.cu", name="vectors", problems="aligned")
def _fill_vectors(problem: MapProblem) -> Launch | str:
    """16 bytes per lane"""
    if not problem.vectors:
        return _UNALIGNED
    size, (out, unsigned) = problem.walk.size, _bits(problem)
    blocks = ceil_div(ceil_div(size, 16 // memory.as_dtype(problem.y).itemsize), FILL_BLOCK)
    return Launch(blocks, FILL_BLOCK, (out, size, problem.parameter), entry=f"fill_vectors<{unsigned}>")


FILL = _family(
    "fill",
    reference=lambda x, *, value=1.0: np.full(x.shape, _element(value, x.dtype)),
    variants=(_fill_strided, _fill_vectors),
    problem=_fill_problem,
    traffic=lambda problem: problem.walk.size * memory.as_dtype(problem.y).itemsize,
    dtypes=(*CASTS, "uint8"),
)
FILL.call = lambda inputs, out, variant, stream, value=1.0: functools.partial(fill, out, value, variant, stream)


def fill(x: Any, value: Any, variant: str = "auto", stream: Any = None) -> Any:
    """Write `value`, rounded to x's dtype, to every element of `x`, and return `x`.

    Does not wait for the device.

    Args:
        x: An array of cudakit, torch or CuPy, with elements of 1, 2, 4 or 8 bytes and any strides whose axes can be
            merged into four.
        value: The value of every element.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        `x`.

    Raises:
        ValueError: If the array is not supported, or if an integer dtype cannot hold the value exactly.
        UnsupportedVariant: If the variant does not support the array.
    """
    return apply(FILL, (x,), x, variant, stream, {"value": value})
