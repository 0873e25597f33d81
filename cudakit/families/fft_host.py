"""The Fourier transforms on the host: random inputs, the reference in float64, its rounding bound."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cudakit.families.fft_problem import Axes, axes_of, factor, half_shape, real_length
from cudakit.rounding import SMALLEST, U, of_chain

# Half a step of float16 at 1.
_HALF = 2.0**-11
# The most elements that one thread converts to float64 at once.
_PIECE = 1 << 22


def pairs(array: Any) -> Any:
    """Return a float16 or float64 array of pairs as complex numbers; other arrays unchanged."""
    if array.dtype.kind == "c":
        return array
    return np.ascontiguousarray(array, np.float64).view(np.complex128)[..., 0]


def as_pairs(array: Any) -> Any:
    """Return complex numbers as float64 pairs along a new last axis."""
    return np.ascontiguousarray(array, np.complex128)[..., None].view(np.float64)


def _complex_values(shape: Sequence[int], dtype: Any, rng: np.random.Generator) -> Any:
    parts = rng.standard_normal((*shape, 2), dtype=np.float32)
    return parts.astype(dtype) if dtype == np.float16 else parts.view(np.complex64)[..., 0]


def inputs(shape: Sequence[int], dtype: Any, rng: np.random.Generator, **options: Any) -> tuple[Any, ...]:
    """Return normal complex numbers; pairs for float16."""
    return (_complex_values(shape, dtype, rng),)


def real_inputs(shape: Sequence[int], dtype: Any, rng: np.random.Generator, **options: Any) -> tuple[Any, ...]:
    """Return normal numbers."""
    return (rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False),)


def half_inputs(
    shape: Sequence[int], dtype: Any, rng: np.random.Generator, axes: Axes = 1, **options: Any
) -> tuple[Any, ...]:
    """Return the terms of normal numbers of `shape`, with the norm "ortho". Random terms would not be those of a real
    array, for which cuFFT has another result."""
    numbers = axes_of("irfft", axes, len(shape))
    terms = np.fft.rfftn(rng.standard_normal(shape, dtype=np.float32), axes=numbers, norm="ortho").astype(np.complex64)
    return (terms[..., None].view(np.float32).astype(dtype) if dtype == np.float16 else terms,)


def like(x: Any, **options: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of fft's result."""
    return tuple(x.shape), x.dtype


def like_rfft(x: Any, axes: Axes = 1, **options: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of rfft's result."""
    shape = half_shape(tuple(x.shape), axes_of("rfft", axes, len(x.shape))[-1])
    return ((*shape, 2), x.dtype) if x.dtype == np.float16 else (shape, np.dtype(np.complex64))


def like_irfft(x: Any, axes: Axes = 1, n: int | None = None, **options: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of irfft's result."""
    is_half = x.dtype == np.float16
    shape = tuple(x.shape[:-1] if is_half else x.shape)
    axis = axes_of("irfft", axes, len(shape))[-1]
    length = real_length(x, axes, n)
    return (*shape[:axis], length, *shape[axis + 1 :]), np.dtype(np.float16 if is_half else np.float32)


def _by_pieces(transform: Callable[[Any], Any], x: Any, axes: tuple[int, ...], like: tuple[int, ...], kind: Any) -> Any:
    """Return transform(x) for complex or real x, computed in float64 in pieces along the first axis, in several
    threads."""
    if 0 in axes or x.size <= _PIECE or 0 in x.shape:
        return transform(x)
    result = np.empty(like, kind)
    step = max(1, _PIECE * x.shape[0] // x.size)

    def piece(first: int) -> None:
        result[first : first + step] = transform(x[first : first + step])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy releases the interpreter lock
        list(pool.map(piece, range(0, x.shape[0], step)))
    return result


def reference(x: Any, *, axes: Axes = 1, norm: str | None = "backward", inverse: bool = False) -> Any:
    """Return numpy's fftn or ifftn in complex128; pairs for pairs."""
    z = pairs(x)
    numbers = axes_of("fft", axes, z.ndim)
    scale = factor(norm, inverse, math.prod(z.shape[axis] for axis in numbers))
    function = np.fft.ifftn if inverse else np.fft.fftn

    def transform(part: Any) -> Any:
        made = function(part.astype(np.complex128), axes=numbers, norm="forward" if inverse else "backward")
        return made * scale if scale != 1 else made

    made = _by_pieces(transform, z, numbers, z.shape, np.complex128)
    return made if x.dtype.kind == "c" else as_pairs(made)


def reference_rfft(x: Any, *, axes: Axes = 1, norm: str | None = "backward") -> Any:
    """Return numpy's rfftn in complex128; pairs for float16."""
    numbers = axes_of("rfft", axes, x.ndim)
    scale = factor(norm, False, math.prod(x.shape[axis] for axis in numbers))
    made = _by_pieces(
        lambda part: np.fft.rfftn(part.astype(np.float64), axes=numbers) * scale,
        x,
        numbers,
        half_shape(x.shape, numbers[-1]),
        np.complex128,
    )
    return as_pairs(made) if x.dtype == np.float16 else made


def reference_irfft(x: Any, *, axes: Axes = 1, norm: str | None = "backward", n: int | None = None) -> Any:
    """Return numpy's irfftn in float64."""
    shape, _ = like_irfft(x, axes, n)
    z = pairs(x)
    numbers = axes_of("irfft", axes, z.ndim)
    lengths = [shape[axis] for axis in numbers]
    scale = factor(norm, True, math.prod(lengths))

    def transform(part: Any) -> Any:
        return np.fft.irfftn(part.astype(np.complex128), s=lengths, axes=numbers, norm="forward") * scale

    return _by_pieces(transform, z, numbers, shape, np.float64)


def baseline(form: str) -> Callable[..., Any]:
    """Return numpy's transform in single precision, as a function(x, **options); float16 is rounded at the end."""

    def transform(
        x: Any, axes: Axes = 1, norm: str | None = "backward", inverse: bool = False, n: int | None = None
    ) -> Any:
        z = x.astype(np.float32) if x.dtype == np.float16 else x
        z = z if form == "rfft" or z.dtype.kind == "c" else z.view(np.complex64)[..., 0]
        numbers = axes_of(form, axes, z.ndim)
        backwards = inverse or form == "irfft"
        name: Any = norm or ("forward" if backwards else "backward")
        if form == "irfft":
            shape, dtype = like_irfft(x, axes, n)
            made = np.fft.irfftn(z, s=[shape[axis] for axis in numbers], axes=numbers, norm=name)
            return made.astype(dtype)
        function = np.fft.rfftn if form == "rfft" else np.fft.ifftn if inverse else np.fft.fftn
        made = function(z, axes=numbers, norm=name).astype(np.complex64)
        return made[..., None].view(np.float32).astype(np.float16) if x.dtype == np.float16 else made

    return transform


def _size(values: Any, axes: tuple[int, ...]) -> Any:
    """Return the root of the sum of squares along axes, which stay with extent 1."""
    squares = np.square(values.real, dtype=np.float64).sum(axis=axes, keepdims=True)
    if values.dtype.kind == "c":
        squares += np.square(values.imag, dtype=np.float64).sum(axis=axes, keepdims=True)
    return np.sqrt(squares)


def _form(exact: Any, x: Any) -> str:
    """Return the form of the transform of x with this result."""
    if x.dtype == np.float16:
        return {-1: "irfft", 0: "fft", 1: "rfft"}[exact.ndim - x.ndim]
    return "rfft" if x.dtype.kind != "c" else "fft" if exact.dtype.kind == "c" else "irfft"


def rounding(
    exact: Any,
    x: Any,
    axes: Axes = 1,
    norm: str | None = "backward",
    inverse: bool = False,
    n: int | None = None,
) -> Any:
    """Return the rounding bound of fast transforms.

    A radix-2 step rounds each value about three times, so that the error of an element grows with log2(n) times the
    root of the sum of squares of its row (Higham, Accuracy and Stability of Numerical Algorithms, chapter 24). The
    roundings of regular inputs are alike and add up in few elements: there the largest element counts. float16 storage
    rounds results between passes.
    """
    return _bound(lambda length: 3 * U * (math.log2(length) + 1), exact, x, axes, norm, inverse)


def rounding_direct(
    exact: Any,
    x: Any,
    axes: Axes = 1,
    norm: str | None = "backward",
    inverse: bool = False,
    n: int | None = None,
) -> Any:
    """Return the rounding bound of sums of n products in order, with sines and cosines of rounded angles. Sums of equal
    terms are rounded in one direction for long stretches."""
    return _bound(lambda length: of_chain(2 * length) + (8 + length / 2) * U, exact, x, axes, norm, inverse)


def _bound(of_pass: Callable[[int], float], exact: Any, x: Any, axes: Axes, norm: str | None, inverse: bool) -> Any:
    """Return the rounding bound of each element. of_pass(n): the bound of one pass, relative to the size of a row."""
    form = _form(exact, x)
    z = x if form == "rfft" else pairs(x)
    result = exact if form == "irfft" else pairs(exact)
    numbers = axes_of(form, axes, z.ndim)
    real = result if form == "irfft" else z
    lengths = [real.shape[axis] for axis in numbers]
    scale = factor(norm, inverse or form == "irfft", math.prod(lengths))
    with np.errstate(all="ignore"):
        # half of the terms of a real result are not stored
        size = _size(z, numbers) * (math.sqrt(2) if form == "irfft" else 1.0)
        peak = np.abs(np.where(np.isfinite(result), result, 0)).max(axis=numbers, keepdims=True, initial=0)
        size = np.maximum(size * scale, peak)
    relative = sum(map(of_pass, lengths))
    if x.dtype == np.float16:
        relative += 3 * _HALF * (len(lengths) - 1)
    allowed = size * relative + SMALLEST * (2 + math.prod(lengths) * scale * (2 + math.log2(max(lengths))))
    if x.dtype == np.float16 and len(lengths) > 1:
        allowed = allowed + 2.0**-24 * math.prod(lengths) * scale
    allowed = np.broadcast_to(allowed, result.shape)
    return allowed if exact.shape == result.shape else allowed[..., None]
