"""The problem of a Fourier transform: one pass over the array per transformed axis, and the checks of the arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import IN, OUT, SCRATCH, Slot, ceil_div, checks

# Real to complex is "rfft", complex to real "irfft".
Axes = int | Sequence[int]
Strides = tuple[int, int, int]
# Complex values in a whole number of sectors, in both precisions.
_ALIGNED = 8
NORMS = ("backward", "ortho", "forward", None)
_SHARED = "the output of {what} overlaps {name}, whose elements have another size: pass a separate output, or none"


@dataclass(frozen=True)
class Place:
    """An array of one problem: its Slot, extents and strides, in elements. pairs: whether it is real, and its first
    element is on the boundary of a pair."""

    slot: Slot
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pairs: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Pass:
    """Transforms of n elements along one axis: `outer` times `inner` of them.

    Strides are in elements, of (outer, inner, step). columns: the inner rows are nearer to each other than the elements
    of a row. form: "fft", "rfft" or "irfft"; n is the length of the real side. pairs: whether each row of the real side
    starts on the boundary of a pair.
    """

    form: str
    n: int
    outer: int
    inner: int
    source: Slot
    target: Slot
    x: Strides
    y: Strides
    columns: bool
    inverse: bool
    scale: float
    pairs: bool = False

    @property
    def rows(self) -> int:
        """The number of transforms."""
        return self.outer * self.inner

    @property
    def access(self) -> str:
        """The Access of kernels/fft/storage.cuh: whether the elements of each row are adjacent, in both arrays, and
        pairs of real ones are aligned."""
        if self.n > 1 and (self.x[2] != 1 or self.y[2] != 1):
            return "STRIDED"
        return "ALIGNED_PAIRS" if self.pairs else "CONTIGUOUS"


@dataclass(frozen=True)
class Planes:
    """`count` planes of rows times cols elements; x and y: the distances of planes and of rows, in elements."""

    count: int
    rows: int
    cols: int
    x: tuple[int, int]
    y: tuple[int, int]


@dataclass(frozen=True)
class FftProblem:
    """A transform of the axes `axes` of x to y, the last first. shared: bytes of shared memory that a block may have;
    sms: multiprocessors of the device; l2: bytes of its L2; in_place: whether y is x."""

    form: str
    x: Place
    y: Place
    axes: tuple[int, ...]
    half: bool
    inverse: bool
    scale: float
    in_place: bool
    shared: int
    sms: int
    l2: int

    def __str__(self) -> str:
        dtype = "float16" if self.half else "float32"
        real = self.y if self.form == "irfft" else self.x
        extents = "x".join(map(str, real.shape))
        return f"{self.form} of {extents} {dtype} along axes {self.axes}, strides {self.x.strides} to {self.y.strides}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the transforms, in the order of `axes`; those of the real side."""
        real = self.y if self.form == "irfft" else self.x
        return tuple(real.shape[axis] for axis in self.axes)

    @property
    def rows(self) -> int:
        """The number of transforms of the last axis."""
        return self.x.size // max(self.x.shape[self.axes[-1]], 1)

    @functools.cached_property
    def _between(self) -> tuple[tuple[int, ...], Sequence[int]]:
        """Shape and strides, in elements, of intermediate results: those of the complex side.

        Up to three axes, rows start on the boundary of a sector, so that no sector is written by two blocks of columns.
        Short rows stay contiguous, because padding would multiply the memory; more axes too, because all but the
        transformed one must merge into two.
        """
        shape = self.x.shape if self.form == "irfft" else self.y.shape
        padded = len(shape) <= 3 and shape[-1] > _ALIGNED
        extents = [*shape[:-1], ceil_div(shape[-1], _ALIGNED) * _ALIGNED if padded else shape[-1]]
        return shape, [math.prod(extents[axis + 1 :]) for axis in range(len(shape))]

    @property
    def temporary_bytes(self) -> int:
        """The bytes of one array of intermediate results."""
        shape, strides = self._between
        return shape[0] * strides[0] * (4 if self.half else 8)

    def temporary(self, number: int = 0) -> Place:
        """Return the place of intermediate results in scratch memory."""
        shape, strides = self._between
        return Place(SCRATCH.at(number * self.temporary_bytes), shape, tuple(strides))

    @functools.cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The passes in order, each in place if it can be: the first reads x, the last writes y."""
        between = self.temporary() if self.form == "irfft" else self.y
        return self.along([self.x, *[between] * (len(self.axes) - 1), self.y])

    @property
    def planes(self) -> Planes | None:
        """The planes of a complex transform of two axes; None if their rows are not contiguous, or if the other axes do
        not merge into one."""
        if self.form != "fft" or len(self.axes) != 2:
            return None
        row, col = self.axes
        others = _merged(self.x, self.y, self.axes) or [(1, 0, 0)]
        if len(others) > 1 or any(one.strides[col] != 1 and one.shape[col] > 1 for one in (self.x, self.y)):
            return None
        count, *distances = others[0]
        places = ((distances[i], one.strides[row]) for i, one in enumerate((self.x, self.y)))
        return Planes(count, self.x.shape[row], self.x.shape[col], *places)

    def along(self, places: Sequence[Place]) -> tuple[Pass, ...]:
        """Return the passes in order; pass i reads places[i] and writes places[i + 1]."""
        return tuple(self.alone(number, *places[number : number + 2]) for number in range(len(self.axes)))

    def alone(self, number: int, x: Place, y: Place, *, scaled: bool = True) -> Pass:
        """Return pass `number` from x to y. scaled: whether the last pass has the factor of the result."""
        last = len(self.axes) - 1
        index = number if self.form == "irfft" else last - number
        form = self.form if index == last else "fft"
        scale = self.scale if number == last and scaled else 1.0
        return _pass(form, self.axes[index], self.lengths[index], x, y, self.inverse, scale)


def _merged(x: Place, y: Place, apart: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return extent and strides of the axes other than `apart`, in the order of y's memory; neighbours through which
    both arrays can step as one are merged."""
    if 0 in x.shape:
        return [(0, 0, 0)]
    axes = [
        (extent, own, out)
        for number, (extent, own, out) in enumerate(zip(x.shape, x.strides, y.strides, strict=True))
        if number not in apart and extent != 1
    ]
    axes.sort(key=lambda each: abs(each[2]), reverse=True)
    merged: list[tuple[int, int, int]] = []
    for extent, own, out in axes:
        if merged and merged[-1][1:] == (extent * own, extent * out):
            merged[-1] = (merged[-1][0] * extent, own, out)
        else:
            merged.append((extent, own, out))
    return merged


def _pass(form: str, axis: int, n: int, x: Place, y: Place, inverse: bool, scale: float) -> Pass:
    """Return the transforms along one axis. Raise ValueError if the other axes do not merge into two."""
    merged = _merged(x, y, (axis,))
    if len(merged) > 2 and 0 not in x.shape:
        raise ValueError(
            f"{form} takes arrays whose axes other than the transformed one merge into at most two, but axis {axis} of "
            f"shape {x.shape}, strides {x.strides} to {y.strides} (elements), leaves {len(merged)}: copy() the arrays, "
            "or transform slices of them"
        )
    outer, inner = ([(1, 0, 0)] * 2 + merged)[-2:]
    steps = x.strides[axis], y.strides[axis]
    columns = n > 1 and inner[0] > 1 and any(abs(inner[1 + i]) < abs(steps[i]) for i in (0, 1))
    if not columns and inner[0] < outer[0]:
        outer, inner = inner, outer
    xs, ys = ((outer[i], inner[i], steps[i - 1]) for i in (1, 2))
    real, reals = (y, ys) if form == "irfft" else (x, xs)
    pairs = real.pairs and (outer[0] == 1 or reals[0] % 2 == 0) and (inner[0] == 1 or reals[1] % 2 == 0)
    return Pass(form, n, outer[0], inner[0], x.slot, y.slot, xs, ys, columns, inverse, scale, pairs)


# Checks ---------------------------------------------------------------------------------------------------------------


def axes_of(what: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    """Return the numbers of the transformed axes, at least one, from a count of last axes or from their numbers."""
    if isinstance(axes, (tuple, list)):
        numbers = tuple(axis + ndim if axis < 0 else axis for axis in axes)
        if not numbers or len({*numbers}) != len(numbers) or not all(0 <= axis < ndim for axis in numbers):
            raise ValueError(f"{what} of {ndim} axes takes different axes from {-ndim} to {ndim - 1}, got {axes}")
        return numbers
    if isinstance(axes, bool) or not isinstance(axes, int) or not 1 <= axes <= ndim:
        raise ValueError(f"{what} of {ndim} axes takes a count of last axes from 1 to {ndim}, or axes, got {axes!r}")
    return tuple(range(ndim - axes, ndim))


def real_length(x: Any, axes: Axes, n: int | None, out: Any = None) -> int:
    """Return the length of the last transformed axis of irfft's result: n; without it, that of `out`; without both,
    the even one of the two that fit x."""
    shape = complex_shape("irfft", x)
    axis = axes_of("irfft", axes, len(shape))[-1]
    terms = int(shape[axis])
    if n is None:
        n = 2 * (terms - 1) if out is None or axis >= len(out.shape) else int(out.shape[axis])
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 or n // 2 + 1 != terms:
        raise ValueError(f"irfft of {terms} terms takes n={2 * terms - 2} or n={2 * terms - 1}, got n={n}")
    return int(n)


def complex_shape(what: str, array: Any) -> tuple[int, ...]:
    """Return the extents of a complex array; float16 has pairs along the last axis, which are not counted."""
    shape = tuple(int(extent) for extent in array.shape)
    if array.dtype == np.complex64:
        return shape
    if array.dtype != np.float16:
        raise ValueError(f"{what} takes complex64, or float16 with pairs along the last axis, got {array.dtype}")
    if not shape or shape[-1] != 2:
        raise ValueError(f"{what} of float16 takes pairs (real, imaginary) along the last axis, got shape {shape}")
    return shape[:-1]


def half_shape(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return the shape of the complex side of a real array: n // 2 + 1 terms along `axis`."""
    return (*shape[:axis], shape[axis] // 2 + 1, *shape[axis + 1 :])


def _place(what: str, name: str, array: Any, slot: Slot, is_complex: bool) -> Place:
    """Return the place of an array. Raise ValueError for an unsupported dtype or address."""
    strides = tuple(array.strides_elements)
    if not is_complex:
        if array.dtype not in (np.float32, np.float16):
            raise ValueError(f"{what} takes real numbers in float32 or float16, {name} is {array.dtype}")
        return Place(slot, tuple(array.shape), strides, array.pointer % (2 * array.itemsize) == 0)
    shape = complex_shape(what, array)
    nbytes = 8
    if array.dtype == np.float16:
        nbytes = 4
        steps = [stride for extent, stride in zip(shape, strides[:-1], strict=True) if extent > 1]
        if array.size and (strides[-1] != 1 or any(step % 2 for step in steps)):
            raise ValueError(
                f"{what} of float16 takes adjacent pairs at even distances, {name} has strides {strides} (elements): "
                "copy() it"
            )
        strides = tuple(stride // 2 for stride in strides[:-1])
    if array.size and array.pointer % nbytes:
        raise ValueError(f"{what} takes complex numbers aligned to {nbytes} bytes, {name} is at {array.pointer:#x}")
    return Place(slot, shape, strides)


def factor(norm: str | None, inverse: bool, size: int) -> float:
    """Return the factor of the result for one of NORMS. Raise ValueError for others."""
    if norm not in NORMS:
        raise ValueError(f'norm must be "backward", "ortho", "forward" or None, got {norm!r}')
    if norm == "ortho":
        return 1 / math.sqrt(size)
    return 1 / size if norm == ("backward" if inverse else "forward") else 1.0


def problem(
    form: str,
    inputs: Sequence[Any],
    output: Any,
    axes: Axes = 1,
    norm: str | None = "backward",
    inverse: bool = False,
    n: int | None = None,
) -> FftProblem:
    """Return the problem of one of the forms "fft", "rfft" and "irfft". Raise ValueError for unsupported arguments."""
    (x,) = inputs
    source = _place(form, "x", x, IN[0], form != "rfft")
    target = _place(form, "the output", output, OUT, form != "irfft")
    numbers = axes_of(form, axes, len(source.shape))
    if (x.dtype == np.float16) != (output.dtype == np.float16):
        raise ValueError(f"{form} takes one precision in and out, got {x.dtype} in and {output.dtype} out")
    expected = source.shape
    if form == "rfft":
        expected = half_shape(expected, numbers[-1])
    if form == "irfft":
        length = real_length(x, axes, n, output)
        expected = (*expected[: numbers[-1]], length, *expected[numbers[-1] + 1 :])
    if target.shape != expected:
        raise ValueError(f"{form} of shape {tuple(x.shape)} has a result of {expected}, got {target.shape}")
    real = target if form == "irfft" else source
    lengths = [real.shape[axis] for axis in numbers]
    if 0 in lengths:
        raise ValueError(f"{form} of no elements is undefined: shape {tuple(x.shape)} is empty along axes {numbers}")
    same = (("x", x),)
    if form == "fft":
        checks.expect_output(form, output, same)
    else:
        checks.expect_output(form, output, separate=same, shared=_SHARED)
    backwards = inverse or form == "irfft"
    scale = factor(norm, backwards, math.prod(lengths))
    attribute = output.context.attribute
    made = FftProblem(
        form,
        source,
        target,
        numbers,
        x.dtype == np.float16,
        backwards,
        scale,
        form == "fft" and bool(x.size) and x.pointer == output.pointer,
        int(attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")),
        int(attribute("MULTIPROCESSOR_COUNT")),
        int(attribute("L2_CACHE_SIZE")),
    )
    _ = made.passes  # raises the error for axes that do not merge
    return made
