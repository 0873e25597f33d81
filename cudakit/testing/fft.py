"""Problems of the families fft, rfft and irfft."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudakit.families.fft_plan import PRIMES, largest_prime
from cudakit.families.fft_problem import half_shape
from cudakit.testing.case import Case, Layout, contiguous, known, layouts

# Lengths of one pass and of several, of each parity, with radices that do not divide the number of threads.
_LIKELY = (1, 2, 3, 4, 5, 8, 11, 13, 16, 22, 26, 27, 32, 49, 60, 64, 100, 125, 128, 169, 243, 256, 500, 512, 720, 1000,
           1024, 1536, 2048, 3125, 4096, 8192, 16384)  # fmt: skip
_PRIMES = (17, 19, 37, 51, 97, 127)


@dataclass(frozen=True)
class Numbers:
    """A filler: normal numbers (real or complex by the array's dtype), regular or random.

    Args:
        seed: The seed of the numbers.
        scale: Their standard deviation.
        regular: "" for random numbers; "ones"; "spike", one number per row that is not 0; "wave", numbers of alternate
            signs.
        pairs: Whether the last axis has the parts of complex numbers.
        complex: Whether the numbers are complex.
    """

    seed: int
    scale: float
    regular: str = ""
    pairs: bool = False
    complex: bool = False

    def __call__(self, shape: tuple[int, ...]) -> Any:
        rng = np.random.default_rng(self.seed)
        values = rng.standard_normal(shape)
        if self.complex:
            values = values + 1j * rng.standard_normal(shape)
        if self.regular and values.size:
            along = np.arange(shape[-2] if self.pairs else shape[-1])
            row = {"ones": along >= 0, "spike": along == along.size // 2, "wave": 1.0 - 2.0 * (along % 2)}[self.regular]
            values = np.broadcast_to(row[:, None] if self.pairs else row, shape).astype(values.dtype)
        return values * self.scale


def _length(draw: st.DrawFn, most: int, kind: str) -> int:
    """Draw a length up to `most`. kind "powers": of two; "products": of two factors; others: without large prime
    factors."""
    if kind == "products":
        low = draw(
            st.sampled_from([n for n in (2, 3, 4, 5, 8, 10, 13, 16, 32, 36, 64, 100, 128) if n * n <= max(most, 4)])
        )
        return low * _length(draw, max(most // low, 1), "powers" if most < 8 else "composite")
    if kind == "powers":
        power: int = draw(st.sampled_from([1 << bits for bits in (*range(3, 14), 1, 2) if 1 << bits <= max(most, 4)]))
        return power
    if not kind and draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from([n for n in _PRIMES if n <= most] or [1]))
    if draw(st.booleans()):
        return draw(st.sampled_from([n for n in _LIKELY if n <= most] or [1]))
    n = draw(st.integers(1, max(most, 1)))
    while kind and largest_prime(n) > PRIMES[-1]:
        n //= largest_prime(n)
    return n


def _shape(draw: st.DrawFn, elements: int, kind: str) -> tuple[tuple[int, ...], Any]:
    """Draw the extents of the real side, and axes."""
    which = draw(st.sampled_from(("rows", "rows", "rows", "columns", "columns", "two", "three")))
    if kind == "planes":
        n, second = (_length(draw, 64, kind) for _ in range(2))
        return (draw(st.integers(1, 5)), n, second)[draw(st.integers(0, 1)) :], 2
    n = _length(draw, elements if which != "three" else 64, kind)
    left = max(elements // n, 1)
    batch = draw(st.integers(0 if left > 1 else 1, min(left, 40)))
    if which == "rows" or kind == "powers":
        return draw(
            st.sampled_from((((batch, n), 1), ((n,), 1), ((2, max(batch // 2, 1), n), (-1,)), ((n, batch), (0,))))
        )
    if which == "columns":
        outer = draw(st.integers(1, min(3, left)))
        return (outer, n, max(batch // outer, 1)), (1,)
    second = _length(draw, max(min(left, 300), 1), kind or "composite")
    if which == "two":
        left = max(left // second, 1)
        shape = draw(st.sampled_from(((n, second), (second, n), (min(left, 3), n, second))))
        return shape, draw(st.sampled_from((2, (-1, -2))))
    return (n, min(second, 12) if not kind else 6, 4), 3


def _place(draw: st.DrawFn, shape: tuple[int, ...], dtype: str, output: bool, pairs: bool) -> Layout:
    """Draw a layout: contiguous, with a gap between rows, or any whose axes merge; pairs of float16 at even
    distances."""
    if not pairs:
        if len(shape) > 2 or draw(st.booleans()):
            return contiguous(shape, draw(st.sampled_from((0, 0, 1, 3))), dtype)
        return draw(layouts(shape, output=output, dtype=dtype))
    if len(shape) > 2 or draw(st.booleans()):
        return contiguous((*shape, 2), draw(st.sampled_from((0, 0, 2))), dtype)
    place = draw(layouts(shape, output=output))
    return Layout((*shape, 2), (*(2 * stride for stride in place.strides), 1), 2 * place.lead, dtype)


def _cases(draw: st.DrawFn, elements: int, kind: str, form: str) -> Case:
    known(kind, "composite", "powers", "products", "planes")
    shape, axes = _shape(draw, elements, kind)
    options: dict[str, Any] = {"axes": axes, "norm": draw(st.sampled_from(("backward", "ortho", "forward", None)))}
    half = kind != "powers" and draw(st.integers(0, 3)) == 0
    numbers = range(len(shape) - axes, len(shape)) if isinstance(axes, int) else [a % len(shape) for a in axes]
    complex_side = shape if form == "fft" else half_shape(shape, numbers[-1])
    source, target = (shape if form == "rfft" else complex_side), (shape if form == "irfft" else complex_side)
    in_place = form == "fft" and draw(st.integers(0, 3)) == 0

    def place(extents: tuple[int, ...], is_complex: bool, output: bool) -> Layout:
        dtype = "float16" if half else "complex64" if is_complex else "float32"
        return _place(draw, extents, dtype, output, half and is_complex)

    x = place(source, form != "rfft", in_place)
    output = None if in_place else place(target, form != "irfft", True)
    if form == "fft":
        options["inverse"] = draw(st.booleans())
    if form == "irfft":
        options["n"] = shape[numbers[-1]]
    size = math.prod(shape[axis] for axis in numbers)
    scale = draw(st.sampled_from((1.0, 1.0, 4.0) if half else (1.0, 1.0, 1e-3, 1e30, 1e-40)))
    if half and size * scale > 4096:
        scale = 4096 / size  # below the largest float16
    fill = Numbers(
        draw(st.integers(0, 2**32 - 1)),
        scale,
        draw(st.sampled_from(("", "", "", "ones", "spike", "wave"))),
        half and form != "rfft",
        not half and form != "rfft",
    )
    return Case((x,), fill, output, options)


@st.composite
def fft_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw complex problems: lengths of all kinds, one to three axes, rows and columns, strides, in place or not.

    kind "composite": lengths without prime factors above 13; "powers": one axis, a power of two, complex64.
    """
    return _cases(draw, elements, kind, "fft")


@st.composite
def rfft_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of rfft, like those of fft."""
    return _cases(draw, elements, kind, "rfft")


@st.composite
def irfft_cases(draw: st.DrawFn, elements: int = 20_000, kind: str = "") -> Case:
    """Draw problems of irfft, like those of fft."""
    return _cases(draw, elements, kind, "irfft")
