"""Problems of a family without its own strategy: drawn from its declared arrays, extents and options."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from cudakit.errors import Refused
from cudakit.family import ArraySpec, Ladder, one_or_all
from cudakit.family.defaults import bound, value_range
from cudakit.memory import array as memory
from cudakit.shapes import Shape
from cudakit.testing.case import Case, Filler, Layout, Values, contiguous, known, layouts, likely_extents


@dataclass(frozen=True)
class Between:
    """A filler: uniform numbers from `low` (included) to `high` (excluded). same: one number is repeated in all
    elements, so that threads contend for one address. A float repeated in all elements has few bits, because otherwise
    each addition to a sum would be rounded in the same direction, which rounding bounds do not allow for. specials:
    other values at drawn places (fractions of the array)."""

    seed: int
    low: float
    high: float
    whole: bool = True
    same: bool = False
    specials: tuple[tuple[float, int], ...] = ()

    def __call__(self, shape: Shape) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        if self.whole:
            drawn: Any = rng.integers(int(self.low), int(self.high), shape)
        else:
            drawn = rng.uniform(self.low, self.high, shape)
        values = np.asarray(drawn)
        if self.same and values.size:
            one = values.flat[0]
            if not self.whole:
                fraction, exponent = np.frexp(one)
                near = (np.ldexp(whole(8 * fraction) / 8, exponent) for whole in (np.round, np.floor, np.ceil))
                one = next((short for short in near if self.low <= short < self.high), one)
            values = np.full(shape, one)
        for place, special in self.specials if values.size else ():
            values.flat[int(place * (values.size - 1))] = special
        return values


@dataclass(frozen=True)
class Wide:
    """A filler: normal numbers of one scale in full float64 precision, or complex numbers."""

    seed: int
    scale: float
    complex: bool = False

    def __call__(self, shape: Shape) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        made = rng.standard_normal(shape) * self.scale
        return np.asarray(made + 1j * rng.standard_normal(shape) * self.scale if self.complex else made)


@dataclass(frozen=True)
class MadeInput:
    """A filler: one of the inputs made by the family's own function."""

    family: str
    seed: int
    index: int
    made: Any

    def __call__(self, shape: Shape) -> np.ndarray[Any, Any]:
        return np.asarray(self.made[self.index])

    def __repr__(self) -> str:
        return f"input {self.index} of {self.family}, seed {self.seed}"

    def __hash__(self) -> int:
        return hash((self.family, self.seed, self.index))


def declared_cases(family: Ladder[Any], elements: int = 20_000, kind: str = "") -> st.SearchStrategy[Case]:
    """Return a strategy for problems of a family, drawn from its declaration.

    Extents are odd and even, arrays start at any element (with any strides, if the family supports them), and every
    dtype, mode and option is drawn.

    Args:
        family: The family.
        elements: The most elements per array, approximately.
        kind: "aligned" for variants that load vectors: contiguous arrays that start on a 16-byte boundary, half of them
            with extents that are multiples of 16. "" for any.

    Returns:
        The strategy.

    Raises:
        ValueError: If the kind is unknown.
    """
    known(kind, "aligned")
    return _cases(family, elements, kind == "aligned")


@st.composite
def _cases(draw: st.DrawFn, family: Ladder[Any], elements: int, aligned: bool) -> Case:
    options = {**draw(st.sampled_from(list(family.modes.values())))}
    for name, choices in family.option_values().items():
        options.setdefault(name, draw(st.sampled_from(_variations(choices))))
    dtype = draw(st.sampled_from(family.usual_dtypes))
    shape = _shape(draw, len(family.shapes["sim"][0]), elements)
    if aligned and draw(st.booleans()):
        shape = tuple(-(-extent // 16) * 16 for extent in shape)
    if callable(family.inputs):
        return _made(draw, family, shape, dtype, draw(st.integers(0, 2**32 - 1)), options, aligned)
    dims = bound(family.name, family.specs, shape)
    for spec in family.specs.values():
        if isinstance(spec.high, str) and spec.high in dims:
            dims[spec.high] = max(dims[spec.high], 1 + int(spec.low or 0))
    if dims:
        shape = tuple(dims.values())
    numbers = {**options, **dims}
    places, fill = [], []
    for name, spec in family.specs.items():
        own = family.input_dtype(name, dtype)
        writes = name == family.in_place
        places.append(_placed(draw, family, spec.shape(shape, dims), own, writes, aligned))
        fill.append(draw(_fillers(spec.within(numbers), own.name)))
    return _case(draw, family, tuple(places), tuple(fill), options, aligned)


def _case(
    draw: st.DrawFn,
    family: Ladder[Any],
    places: tuple[Layout, ...],
    fill: Any,
    options: dict[str, Any],
    aligned: bool,
) -> Case:
    if family.in_place:
        return Case(places, fill, None, options, family.over)
    try:
        likes = family.outputs_like([_stand(place) for place in places], **options)
    except Refused:
        if all(0 not in place.shape for place in places):
            raise
        reject()  # a reference may fail on empty arrays, such as that of a maximum
    written = tuple(_placed(draw, family, shape, dtype, True, aligned) for shape, dtype in likes)
    return Case(places, fill, one_or_all(written), options)


def _made(
    draw: st.DrawFn,
    family: Ladder[Any],
    shape: Shape,
    dtype: str,
    seed: int,
    options: dict[str, Any],
    aligned: bool,
) -> Case:
    """Draw a case of inputs made by the family's own function; an unsupported shape is drawn again."""
    try:
        made = family.inputs_for(shape, dtype, np.random.default_rng(seed), **options)
    except ValueError:
        reject()
    places = tuple(_placed(draw, family, one.shape, one.dtype, False, aligned) for one in made)
    fill = tuple(MadeInput(family.name, seed, index, made) for index in range(len(made)))
    return _case(draw, family, places, fill, options, aligned)


def _stand(place: Layout) -> np.ndarray[Any, Any]:
    """Return an array with a layout's shape and dtype that needs almost no memory."""
    return np.broadcast_to(np.zeros((), memory.as_dtype(place.dtype)), place.shape)


def _shape(draw: st.DrawFn, axes: int, elements: int) -> Shape:
    """Draw extents whose product is at most `elements`: any extents; nearly equal ones, which need several tiles along
    each axis; or one axis that is longer than a block. All kinds draw in the same way, so that hypothesis can shrink a
    failing case of any kind."""
    kind = draw(st.sampled_from(("any", "equal", "long")))
    side = max(1, int(elements ** (1 / axes)))
    shape = [1] * axes
    for number, axis in enumerate(draw(st.permutations(range(axes)))):
        left = max(1, elements // max(math.prod(shape), 1))
        longest = min(left, 5000 if axes == 1 else 2100)
        most = left if axes == 1 else min(left, draw(st.sampled_from((2100, 300, 40))))
        if kind == "equal" and axes > 1:
            shape[axis] = draw(_extents(min((side + 1) // 2, left), min(side, left)))
        elif kind == "long" and number == 0:
            shape[axis] = draw(_extents(min(longest, longest // 2 if axes == 1 else 1025), longest))
        else:
            shape[axis] = draw(_extents(0, most))
    return tuple(shape)


@functools.cache
def _extents(least: int, most: int) -> st.SearchStrategy[int]:
    """Return a strategy for extents from `least` to `most`; half of them are extents at which kernels are likely to
    fail."""
    likely = [extent for extent in likely_extents(most) if extent >= least]
    return st.one_of(st.integers(least, most), st.sampled_from(likely) if likely else st.integers(least, most))


def _placed(
    draw: st.DrawFn, family: Ladder[Any], shape: Shape, dtype: np.dtype[Any], output: bool, aligned: bool
) -> Layout:
    name = dtype.name if dtype.names is None else dtype  # a struct's name does not contain its fields
    if aligned:
        return contiguous(shape, draw(st.sampled_from((0, 0, 0, 16, 32))), name)
    if family.strided:
        return draw(layouts(shape, output=output, dtype=name))
    return contiguous(shape, draw(st.sampled_from((0, 0, 0, 1, 4))), name)


def _variations(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an option to draw: the declared ones; other values too if there is a single declared number
    or struct of floats."""
    if len(choices) > 1:
        return choices
    (value,) = choices
    if isinstance(value, bool):
        return (value, not value)
    if isinstance(value, float):
        return (value, 0.0, -value, 1.5 * value, 0.001)
    if isinstance(value, np.void) and value.dtype.names:
        return (value, *(_scaled(value, factor) for factor in (-1.0, 0.5)))
    return choices


def _scaled(value: np.void, factor: float) -> np.void:
    """Return a struct with its floats multiplied by `factor`."""
    made: Any = value.copy()
    for name in value.dtype.names or ():
        if np.issubdtype(value.dtype[name], np.floating):
            made[name] = value[name] * factor
    return made  # type: ignore[no-any-return]


@functools.cache
def _fillers(spec: ArraySpec, dtype: str) -> st.SearchStrategy[Filler]:
    """Return a strategy for fillers of an array: numbers within its bounds; floats without bounds at several scales,
    with zeros of both signs, or small integral floats with many ties; integers without bounds, a few of them large."""
    own = memory.as_dtype(dtype)
    low, high = value_range(spec, own)
    seeds, fraction = st.integers(0, 2**32 - 1), st.floats(0, 1)
    if own.kind in "iub" or low is not None or high is not None:
        bottom = -1.0 if low is None else low
        top = bottom + 1 if high is None else high
        same = st.sampled_from((False, False, False, True))
        large = _past_other_types(own) if spec.low is None and spec.high is None else ()
        numbers = st.sampled_from(large) if large else st.nothing()
        specials = st.lists(st.tuples(fraction, numbers), max_size=2 if large else 0).map(tuple)
        return st.builds(Between, seeds, st.just(bottom), st.just(top), st.just(own.kind in "iub"), same, specials)
    if own.kind == "c" or own == np.float64:
        return st.builds(Wide, seeds, st.sampled_from((1.0, 1.0, 10.0, 1e-3, 1e4)), st.just(own.kind == "c"))
    scales = (1.0, 1.0, 0.01, 100.0) if own.itemsize == 2 else (1.0, 1.0, 10.0, 1e-3, 1e4)
    places = st.lists(st.tuples(fraction, st.sampled_from((0.0, -0.0, 1.0))), max_size=2).map(tuple)
    scaled = st.builds(Values, seeds, st.sampled_from(scales), places)
    return st.one_of(scaled, scaled, scaled, st.builds(Between, seeds, st.just(-3.0), st.just(4.0)))


def _past_other_types(dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return integers of a dtype that a kernel corrupts by converting them to float or int; () if there are none."""
    if dtype.kind not in "iu" or dtype.itemsize < 4:
        return ()
    found = (2**24 + 1,) if dtype.itemsize == 4 else (2**24 + 1, 2**31 + 1, 2**40 + 1)
    return found if dtype.kind == "u" else (*found, *(-number for number in found))
