"""One array to another, element by element: scale, threshold, cast and fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.compare import in_range
from cudakit.families import axes, checks, front
from cudakit.families.scalars import Scalar
from cudakit.families.variant import CPP, Config, Family, Variant, alignment, ceil_div
from cudakit.families.vector_add import GRID_STRIDE_BLOCKS
from cudakit.memory import array as memory
from cudakit.rounding import SMALLEST, U

# Measured on an H200: maps that narrow their elements are best in small blocks, fills a quarter slower in them.
BLOCK = 128
FILL_BLOCK = 256
FLOATS = tuple(CPP)
_CPP = {**CPP, "int32": "int"}
_UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_ANY = "any strides: every element finds its own place"
_WIDE = "16 bytes a lane"


@dataclass(frozen=True)
class MapProblem:
    """The walk over input and output (of fill: the output alone), their dtypes, the map's parameter (of fill: the
    value's bits), and whether all is contiguous and starts on 16 bytes."""

    what: str
    walk: axes.Walk
    x: str
    y: str
    parameter: float
    vectors: bool

    def __str__(self) -> str:
        shape = "x".join(map(str, self.walk.extents))
        return f"{self.what} of {shape} {self.x} to {self.y}, strides {' to '.join(map(str, self.walk.strides))}"


def _vectors(problem: MapProblem) -> bool | str:
    return problem.vectors or "16-byte access needs contiguous arrays that start on a 16-byte boundary"


def _blocks(n: int, per_thread: int) -> int:
    return ceil_div(ceil_div(n, per_thread), BLOCK)


def _strided(functor: Callable[[str, str], str]) -> Callable[[MapProblem], Config]:
    def configure(problem: MapProblem) -> Config:
        x, y = _CPP[problem.x], _CPP[problem.y]
        entry = f"map_strided<{x}, {y}, {functor(x, y)}, {problem.walk.number}>"
        return Config(entry, min(_blocks(problem.walk.size, 1), 2 * GRID_STRIDE_BLOCKS), BLOCK)

    return configure


def _flat(functor: Callable[[str, str], str]) -> Callable[[MapProblem], Config]:
    def configure(problem: MapProblem) -> Config:
        x, y = _CPP[problem.x], _CPP[problem.y]
        per = 16 // max(memory.as_dtype(name).itemsize for name in (problem.x, problem.y))
        entry = f"map_vectors<{x}, {y}, {functor(x, y)}, {per}>"
        return Config(entry, _blocks(problem.walk.size, per), BLOCK, arguments=_flat_arguments)

    return configure


def _strided_arguments(problem: MapProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    x, y = problem.walk.strides
    return (inputs[0], output, *x, *y, *problem.walk.extents, problem.parameter)


def _flat_arguments(problem: MapProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], output, problem.walk.size, problem.parameter)


def _ladder(functor: Callable[[str, str], str]) -> tuple[Variant[MapProblem], ...]:
    return (
        Variant(1, "strided", _ANY, "unary/01_strided.cu", _strided(functor)),
        Variant(
            2,
            "vectors",
            _WIDE,
            "unary/02_vectors.cu",
            _flat(functor),
            _vectors,
            problems="aligned",
        ),
    )


def _problem(what: str, x: Any, y: Any, parameter: float) -> MapProblem:
    checks.expect_shape_of(what, x, y)
    checks.expect_output(what, y, (("the input", x),))
    walk = axes.walk(what, x.shape, (x.strides_elements, y.strides_elements))
    vectors = walk.flat and alignment(x) == alignment(y) == 16
    return MapProblem(what, walk, x.dtype.name, y.dtype.name, parameter, vectors)


def _single(number: float) -> float:
    """`number` as a float32 has it."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _same_dtype(what: str, x: Any, y: Any) -> None:
    if x.dtype.name not in FLOATS or y.dtype != x.dtype:
        raise ValueError(f"{what} takes {', '.join(FLOATS)}, the same in and out; got {x.dtype} in and {y.dtype} out")


def _normal(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, **_: Any) -> tuple[np.ndarray, ...]:
    if dtype.kind == "i":
        return (rng.integers(-(2**31), 2**31, shape, np.int32).astype(dtype),)
    return (rng.standard_normal(shape, dtype=np.float32).astype(dtype),)


def _like(inputs: Sequence[Any], **_: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(inputs[0].shape), inputs[0].dtype


def _family(name: str, variants: tuple[Variant[MapProblem], ...], baseline: Callable[..., Any], **given: Any) -> Any:
    """A family of this module, with the fields that all have in common: results are rounded once."""
    common: dict[str, Any] = {
        "name": name,
        "variants": variants,
        "make_inputs": _normal,
        "output_like": _like,
        "rounding": lambda inputs, exact, **options: 0.0,
        "baseline": baseline,
        "arguments": _strided_arguments,
        "traffic": lambda problem: problem.walk.size * sum(memory.as_dtype(d).itemsize for d in (problem.x, problem.y)),
        "flops": lambda problem: 0,
        "choose": lambda problem, arch: "vectors" if problem.vectors else "strided",
        "empty": lambda problem: problem.walk.size == 0,
        "shapes": {
            "gpu": ((1 << 26,),),
            "sim": ((30_011,), (40, 250)),
            "sim sweep": ((1023,), (1 << 12,), (1 << 14,)),
            "sweep": ((1 << 20,), (10_000_000,), (1 << 26,), (1 << 28,)),
        },
        "dtypes": FLOATS,
    }
    return Family(**(common | given))


# scale ----------------------------------------------------------------------------------------------------------------

FACTOR = 0.7


def _scale_baseline(inputs: Sequence[np.ndarray], factor: float = FACTOR) -> Any:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return (np.asarray(inputs[0], np.float32) * np.float32(_single(factor))).astype(inputs[0].dtype)


def _scale_reference(inputs: Sequence[np.ndarray], factor: float = FACTOR) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.asarray(inputs[0], np.float64) * _single(factor)
    return in_range(exact, inputs[0].dtype)


def _scale_rounding(inputs: Sequence[np.ndarray], exact: Any, factor: float = FACTOR) -> Any:
    """The rounding of the float32 product, which is rounded once more to 16 bits."""
    return 0.0 if inputs[0].dtype == np.float32 else U * np.abs(exact) + SMALLEST / 2


def _scale_problem(inputs: Sequence[Any], output: Any, factor: float = FACTOR) -> MapProblem:
    _same_dtype("scale", inputs[0], output)
    return _problem("scale", inputs[0], output, _single(factor))


SCALE: Family[MapProblem] = _family(
    "scale",
    _ladder(lambda x, y: f"Scale<{x}>"),
    _scale_baseline,
    reference=_scale_reference,
    rounding=_scale_rounding,
    problem=_scale_problem,
    scalars={"factor": Scalar("parameter", _single)},
)


def scale(x: Any, factor: float, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """factor * x for float32, float16 or bfloat16; the product is float32's, rounded once to x's dtype.

    x: any strides whose axes merge into four; cudakit's, torch's or CuPy's, and so is the result. factor: taken as a
    float32. out: where to write, which may be x; a new array unless given. variant: a rung by name, or "auto". stream:
    the device's default stream, or torch's or CuPy's current one, unless given. Returns without waiting. Raises
    ValueError for arrays it does not take, UnsupportedVariant for a rung that does not take them.
    """
    return front.apply(SCALE, (x,), out, variant, stream, {"factor": factor})


# threshold ------------------------------------------------------------------------------------------------------------

LIMIT = 0.3


def _threshold_baseline(inputs: Sequence[np.ndarray], limit: float = LIMIT) -> Any:
    (x,) = inputs
    with np.errstate(over="ignore"):
        return np.where(np.asarray(x, np.float32) < np.float32(_single(limit)), np.zeros((), x.dtype), x)


def _threshold_reference(inputs: Sequence[np.ndarray], limit: float = LIMIT) -> Any:
    return np.asarray(_threshold_baseline(inputs, limit), np.float64)


def _threshold_problem(inputs: Sequence[Any], output: Any, limit: float = LIMIT) -> MapProblem:
    _same_dtype("threshold", inputs[0], output)
    return _problem("threshold", inputs[0], output, _single(limit))


THRESHOLD: Family[MapProblem] = _family(
    "threshold",
    _ladder(lambda x, y: f"Threshold<{x}>"),
    _threshold_baseline,
    reference=_threshold_reference,
    problem=_threshold_problem,
    scalars={"limit": Scalar("parameter", _single)},
)


def threshold(x: Any, limit: float, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """x, with 0 where x < limit, for float32, float16 or bfloat16. A value equal to the limit stays, and so does NaN.

    limit: compared as a float32. The rest is as for `scale`.
    """
    return front.apply(THRESHOLD, (x,), out, variant, stream, {"limit": limit})


# cast -----------------------------------------------------------------------------------------------------------------

CASTS = tuple(_CPP)


def _cast_baseline(inputs: Sequence[np.ndarray], to: str = "float16") -> Any:
    (x,) = inputs
    if to != "int32" or x.dtype == np.int32:
        with np.errstate(over="ignore", invalid="ignore"):
            if x.dtype == np.int32 and to == "bfloat16":  # ml_dtypes goes through float32, and rounds twice
                return _odd_float32(x).astype(memory.as_dtype(to))
            return x.astype(memory.as_dtype(to))
    with np.errstate(invalid="ignore"):
        whole = np.nan_to_num(np.rint(np.asarray(x, np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def _odd_float32(x: np.ndarray) -> Any:
    """int32 as float32 rounded to odd: towards zero, the last bit set where anything was lost."""
    exact = np.asarray(x, np.float64)
    near = exact.astype(np.float32)
    truncated = np.where(np.abs(near.astype(np.float64)) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    bits = truncated.astype(np.float32).view(np.int32)
    return (bits | (truncated.astype(np.float64) != exact)).view(np.float32)


def _cast_reference(inputs: Sequence[np.ndarray], to: str = "float16") -> Any:
    if to == "int32":
        return _cast_baseline(inputs, to)
    return in_range(np.asarray(inputs[0], np.float64), memory.as_dtype(to))


def _cast_problem(inputs: Sequence[Any], output: Any, to: str = "float16") -> MapProblem:
    for name in (inputs[0].dtype.name, to):
        if name not in CASTS:
            raise ValueError(f"cast goes between {', '.join(CASTS)}, not from {inputs[0].dtype} to {to}")
    if output.dtype.name != to:
        raise ValueError(f"cast to {to} takes an output of that dtype, got {output.dtype}")
    return _problem("cast", inputs[0], output, 0.0)


CAST: Family[MapProblem] = _family(
    "cast",
    _ladder(lambda x, y: f"Cast<{x}, {y}>"),
    _cast_baseline,
    reference=_cast_reference,
    problem=_cast_problem,
    output_like=lambda inputs, to="float16": (tuple(inputs[0].shape), memory.as_dtype(to)),
    dtypes=CASTS,
    modes={"": {}} | {f"to {name}": {"to": name} for name in ("bfloat16", "int32", "float32")},
)


def cast(x: Any, to: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """x as another dtype: float32, float16, bfloat16 or int32, rounded to nearest even.

    Into float16 and bfloat16 values past the largest become infinite; into int32 they become its ends, and NaN becomes
    0. int32 is rounded once, whatever its size. The rest is as for `scale`; out may be x only where the dtype stays.
    """
    return front.apply(CAST, (x,), out, variant, stream, {"to": memory.as_dtype(to).name})


# fill -----------------------------------------------------------------------------------------------------------------


def _element(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """`value` as one element of `dtype`. ValueError where it has no such value."""
    given = np.asarray(value)
    if given.shape:
        raise ValueError(f"fill takes one value, not an array of shape {given.shape}: copy_from() takes arrays")
    with np.errstate(over="ignore", invalid="ignore"):
        element = given.astype(dtype)
    if dtype.kind in "iu" and element != given:
        raise ValueError(f"{value!r} is no {dtype}: round it first")
    return element


def _fill_problem(inputs: Sequence[Any], output: Any, value: Any = 1.0) -> MapProblem:
    """The input is what tells the shape and dtype of a new output; it is not read."""
    dtype = output.dtype
    if dtype.itemsize not in _UNSIGNED:
        raise ValueError(f"fill takes elements of 1, 2, 4 or 8 bytes, and {dtype} has {dtype.itemsize}")
    bits = int(_element(value, dtype).reshape(1).view(f"u{dtype.itemsize}")[0])
    checks.expect_output("fill", output, ())
    walk = axes.walk("fill", output.shape, (output.strides_elements,))
    vectors = walk.flat and alignment(output) == 16
    return MapProblem("fill", walk, dtype.name, dtype.name, bits, vectors)


def _fill_strided(problem: MapProblem) -> Config:
    entry = f"fill_strided<{_UNSIGNED[memory.as_dtype(problem.y).itemsize]}, {problem.walk.number}>"
    return Config(entry, min(_blocks(problem.walk.size, 1), 2 * GRID_STRIDE_BLOCKS), BLOCK)


def _fill_flat(problem: MapProblem) -> Config:
    size = memory.as_dtype(problem.y).itemsize
    entry = f"fill_vectors<{_UNSIGNED[size]}>"
    blocks = ceil_div(ceil_div(problem.walk.size, 16 // size), FILL_BLOCK)
    return Config(entry, blocks, FILL_BLOCK, arguments=_fill_flat_arguments)


def _fill_flat_arguments(problem: MapProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (_bits(output), problem.walk.size, problem.parameter)


def _fill_arguments(problem: MapProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (_bits(output), *problem.walk.strides[0], *problem.walk.extents, problem.parameter)


def _bits(array: Any) -> Any:
    return array.view(f"u{array.itemsize}")


def _filled(inputs: Sequence[np.ndarray], value: Any = 1.0) -> Any:
    return np.full(inputs[0].shape, _element(value, inputs[0].dtype))


FILL: Family[MapProblem] = _family(
    "fill",
    (
        Variant(1, "strided", _ANY, "unary/03_fill_strided.cu", _fill_strided),
        Variant(2, "vectors", _WIDE, "unary/04_fill_vectors.cu", _fill_flat, _vectors, problems="aligned"),
    ),
    _filled,
    reference=lambda inputs, value=1.0: np.asarray(_filled(inputs, value), np.float64),
    problem=_fill_problem,
    arguments=_fill_arguments,
    traffic=lambda problem: problem.walk.size * memory.as_dtype(problem.y).itemsize,
    dtypes=(*CASTS, "uint8"),
)


def fill(x: Any, value: Any, variant: str = "auto", stream: Any = None) -> Any:
    """Writes `value`, rounded to x's dtype, to every element of x, and returns x.

    x: elements of 1, 2, 4 or 8 bytes, any strides whose axes merge into four; cudakit's, torch's or CuPy's. The rest is
    as for `scale`. ValueError for a value that an integer dtype has not.
    """
    return front.apply(FILL, (x,), x, variant, stream, {"value": value})
