"""Problems of the element-wise families."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, Layout, Values, contiguous, extents, float32_values, layouts


@st.composite
def vector_add_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the vector-add family: flat and volumes, contiguous, any alignment, in place and not."""
    if draw(st.booleans()):
        shape: tuple[int, ...] = (draw(extents(elements)),)
    else:
        shape = tuple(draw(extents(most)) for most in (20, 30, elements // 600))
    flat = [contiguous(shape, draw(st.integers(0, 4))) for _ in range(3)]
    return Case((flat[0], flat[1]), draw(float32_values()), flat[2])


@st.composite
def matrix_add_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the matrix-add family: one matrix and batches, any strides, in place over either input and not."""
    cols = draw(extents(min(elements, 600)))
    rows = draw(extents(max(1, min(elements // max(cols, 1), 600))))
    shape: tuple[int, ...] = (rows, cols)
    if draw(st.booleans()):
        shape = (draw(extents(max(1, min(elements // max(rows * cols, 1), 300)))), rows, cols)
    return _binary(draw, shape, shape, shape)


@st.composite
def add_broadcast_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of the add-broadcast family: volumes with long and short rows, any strides, in place and not."""
    nz = draw(extents(min(elements, 2100)))
    ny = draw(extents(max(1, min(elements // max(nz, 1), 40))))
    nx = draw(extents(max(1, min(elements // max(nz * ny, 1), 40))))
    in_place = draw(st.integers(0, 4)) == 0
    volume = draw(layouts((nx, ny, nz), output=in_place))
    # A volume walked along z that is off its boundaries: what the vectors must find out for themselves.
    if draw(st.booleans()):
        volume = contiguous((nx, ny, nz), draw(st.integers(0, 4)))
    output = None if in_place else draw(st.one_of(st.just(volume), layouts((nx, ny, nz), output=True)))
    if output is volume and 0 in volume.strides:
        output = contiguous(volume.shape)
    plane, line = draw(layouts((nx, ny))), draw(layouts((nx,)))
    return Case((volume, plane, line), draw(float32_values()), output)


@st.composite
def broadcast_add_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of broadcasting: rank 0 to 4, axes repeated by extent 1, by rank and by a stride of 0."""
    kind = draw(st.sampled_from(("row or column", "row or column", "transposed", "any", "any")))
    if kind == "row or column":
        return _row_or_column(draw, elements)
    if kind == "transposed":
        return _transposed(draw, elements)
    shape: list[int] = []
    for most in draw(st.lists(st.sampled_from((5, 40, 40, 2100)), max_size=4)):
        shape.append(draw(extents(max(1, min(most, elements // max(int(np.prod(shape)), 1))))))
    draw(st.randoms(use_true_random=False)).shuffle(shape)
    sides = [tuple(shape), tuple(1 if draw(st.integers(0, 2)) == 0 else extent for extent in shape)]
    sides[1] = sides[1][draw(st.integers(0, len(shape))) :]
    if draw(st.booleans()):
        sides.reverse()
    # With both sides repeated somewhere, the result is larger than either.
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    if shape and len(sides[0]) == len(sides[1]) and draw(st.integers(0, 3)) == 0:
        sides[0] = (*sides[0][:axis], 1, *sides[0][axis + 1 :])
    return _binary(draw, sides[0], sides[1], np.broadcast_shapes(*sides))


def _row_or_column(draw: st.DrawFn, elements: int) -> Case:
    """The usual case: a row or a column added to a matrix without gaps, on 16-byte boundaries or not."""
    cols = draw(extents(min(elements, 1100))) or 5
    shape = (draw(extents(max(1, min(elements // cols, 300)))) or 6, cols)
    matrix = contiguous(shape, draw(st.sampled_from((0, 0, 1))))
    other = contiguous(draw(st.sampled_from((shape[1:], (1, cols), (shape[0], 1)))), draw(st.integers(0, 4)))
    if draw(st.booleans()):
        output = None if other.shape != shape and draw(st.booleans()) else contiguous(shape)
        return Case((matrix, other), draw(float32_values()), output)
    return Case((other, matrix), draw(float32_values()), contiguous(shape, matrix.lead))


def _transposed(draw: st.DrawFn, elements: int) -> Case:
    """A matrix, or a batch of them, with one operand or both transposed."""
    cols = draw(extents(min(elements, 200))) or 5
    rows = draw(extents(max(1, min(elements // cols, 100)))) or 6
    shape: tuple[int, ...] = (rows, cols) if draw(st.booleans()) else (draw(st.integers(1, 3)), rows, cols)
    turned = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    flipped = contiguous(tuple(shape[axis] for axis in turned)).strides
    other = Layout(shape, tuple(flipped[axis] for axis in turned), draw(st.integers(0, 4)))
    first = (
        other if draw(st.integers(0, 2)) == 0 else draw(st.sampled_from((contiguous(shape), contiguous(shape[-1:]))))
    )
    inputs = (first, other) if draw(st.booleans()) else (other, first)
    return Case(inputs, draw(float32_values()), contiguous(shape, draw(st.integers(0, 1))))


def _binary(
    draw: st.DrawFn, a: tuple[int, ...], b: tuple[int, ...], result: tuple[int, ...]
) -> Case:  # fmt: skip
    """A case of two inputs: any layouts; or all alike, where the fast paths are; or in place over an input."""
    over = draw(st.sampled_from((None, None, 0, 1)))
    if over is not None and (a, b)[over] != result:
        over = None
    if a == b == result and draw(st.booleans()):
        alike = draw(st.one_of(st.just(contiguous(result)), layouts(result, output=True)))
        leads = [draw(st.sampled_from((alike.lead, alike.lead, alike.lead, 1, 4))) for _ in range(3)]
        places = [Layout(result, alike.strides, lead) for lead in leads]
        return Case(
            (places[0], places[1]), draw(float32_values()), None if over is not None else places[2], over=over or 0
        )
    first, second = draw(layouts(a, output=over == 0)), draw(layouts(b, output=over == 1))
    if draw(st.booleans()):
        first, second = (_either_order(draw, shape) for shape in (a, b))
    output = None if over is not None else draw(st.one_of(st.just(contiguous(result)), layouts(result, output=True)))
    return Case((first, second), draw(float32_values()), output, over=over or 0)


def _either_order(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """C order, or the reverse of it: transposed."""
    if draw(st.integers(0, 2)):
        return contiguous(shape, draw(st.integers(0, 4)))
    return Layout(shape, contiguous(shape[::-1]).strides[::-1], draw(st.integers(0, 4)))


# Maps of one array ----------------------------------------------------------------------------------------------------

FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Whole:
    """A filler for int32: numbers of every size from a seed, exact in float64, the ends of the range among them."""

    seed: int

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 31, shape)
        if values.size:
            values.flat[0], values.flat[-1] = -(2**31), 2**31 - 1
        return values


@dataclass(frozen=True)
class Halves:
    """A filler of ties: multiples of a half, of every float32 exponent around the whole numbers."""

    seed: int

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        values = (rng.integers(-5000, 5000, shape) / 2).astype(np.float32)
        scaled: np.ndarray = np.ldexp(values, rng.integers(-3, 24, shape))
        return scaled


def _shape(draw: st.DrawFn, elements: int) -> tuple[int, ...]:
    cols = draw(extents(min(elements, 5000)))
    if draw(st.booleans()):
        return (cols,)
    rows = draw(extents(max(1, min(elements // max(cols, 1), 100))))
    return draw(st.sampled_from(((rows, cols), (cols, rows), (1, rows, 1, cols))))


def _pair(draw: st.DrawFn, elements: int, x: str, y: str) -> tuple[Layout, Layout | None]:
    """Input and output (None: in place): contiguous half of the time, else any layouts."""
    shape = _shape(draw, elements)
    in_place = x == y and draw(st.integers(0, 3)) == 0
    if draw(st.booleans()):
        lead = draw(st.sampled_from((0, 0, 1, 8)))
        return contiguous(shape, lead, x), None if in_place else contiguous(shape, draw(st.sampled_from((0, 0, 3))), y)
    source = draw(layouts(shape, output=in_place, dtype=x))
    return source, None if in_place else draw(layouts(shape, output=True, dtype=y))


@st.composite
def scale_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of scale: all dtypes, any strides, in place and not."""
    dtype = draw(st.sampled_from(FLOATS))
    source, output = _pair(draw, elements, dtype, dtype)
    options = {"factor": draw(st.sampled_from((0.7, -2.0, 0.0, 1.0, 1e30, 1e-30, float("nan"), float("inf"))))}
    return Case((source,), draw(float32_values()), output, options)


@st.composite
def threshold_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of threshold: limits that values are equal to, too."""
    dtype = draw(st.sampled_from(FLOATS))
    source, output = _pair(draw, elements, dtype, dtype)
    options = {"limit": draw(st.sampled_from((0.3, 0.0, -1.0, 2.5, float("-inf"), float("inf"), float("nan"))))}
    return Case((source,), draw(st.one_of(float32_values(), st.builds(Halves, st.integers(0, 99)))), output, options)


@st.composite
def cast_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of cast: every pair of dtypes, ties and values past the range of the one cast to."""
    x, y = draw(st.sampled_from((*FLOATS, "int32"))), draw(st.sampled_from((*FLOATS, "int32")))
    source, output = _pair(draw, elements, x, y)
    ties = st.builds(Halves, st.integers(0, 99))
    fill = draw(st.builds(Whole, st.integers(0, 99)) if x == "int32" else st.one_of(float32_values(), ties))
    return Case((source,), fill, output, {"to": y})


@st.composite
def fill_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Problems of fill: elements of 1 to 8 bytes, any strides."""
    dtype = draw(st.sampled_from(("float32", "float16", "bfloat16", "int32", "uint8", "float64")))
    shape = _shape(draw, elements)
    output = draw(st.one_of(layouts(shape, output=True, dtype=dtype), st.just(contiguous(shape, 0, dtype))))
    return Case(
        (contiguous(shape, 0, dtype),), Values(0, 1.0), output, {"value": draw(st.sampled_from((0, 1, 7, 100)))}
    )
