"""3x3 Gaussian blur of float32 images: (1 2 1; 2 4 2; 1 2 1) / 16, a whole batch in one launch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import IN, MAX_GRID_X, OUT, Family, Launch, alignment, apply, ceil_div, checks, variant
from cudakit.rounding import SMALLEST, U

# Names of the borders, in the order of kernels/blur/border.cuh, and numpy.pad's names for them.
BORDERS = {"zero": "constant", "clamp": "edge", "reflect": "reflect"}
STRIP_COLS = 128

_TWICE = "the output of blur may store two elements at one address: pass an output whose elements do not overlap"
_SHARED = "blur cannot work in place, as pixels are read after their neighbours are written: pass a separate output"


@dataclass(frozen=True)
class BlurProblem:
    """Images of rows x cols; strides (image, row, column), in elements; `vectors`, whether rows can be read as float4;
    the index of the border mode; the device's number of multiprocessors."""

    images: int
    rows: int
    cols: int
    x_strides: tuple[int, int, int]
    y_strides: tuple[int, int, int]
    vectors: bool
    border: int
    sms: int

    def __str__(self) -> str:
        return f"blur of {self.images}x{self.rows}x{self.cols}, strides {self.x_strides} to {self.y_strides}"


def _tiles(problem: BlurProblem) -> int:
    return problem.images * ceil_div(problem.rows, 16) * ceil_div(problem.cols, 32)


def _strips(problem: BlurProblem, rows: int) -> int:
    return problem.images * ceil_div(problem.rows, rows) * ceil_div(problem.cols, STRIP_COLS)


def strip_rows(problem: BlurProblem) -> int:
    """Return the rows that a warp walks down: 32 if that makes at least 16 warps per multiprocessor (H200: 0.865 of
    copy bandwidth, against 0.844 with 64 rows), fewer for small images."""
    return next((rows for rows in (32, 16) if _strips(problem, rows) >= 16 * problem.sms), 4)


@variant("blur/01_naive.cu")
def naive(problem: BlurProblem) -> Launch:
    """one pixel per thread, nine loads"""
    pixels = problem.images * problem.rows * problem.cols
    return Launch(min(ceil_div(pixels, 256), 2**20), 256, entry=f"naive<{problem.border}>")


@variant("blur/02_tiled.cu")
def tiled(problem: BlurProblem) -> Launch | str:
    """tile and halo in shared memory"""
    tiles = _tiles(problem)
    if tiles > MAX_GRID_X:
        return f"at most {MAX_GRID_X} tiles supported, got {tiles}"
    return Launch(tiles, (32, 16), entry=f"tiled<{problem.border}>")


@variant("blur/03_walking.cu", problems="vectors")
def walking(problem: BlurProblem) -> Launch | str:
    """each warp walks down the rows, sums of three rows in registers"""
    if not problem.vectors:
        return "float4 access needs contiguous columns, a multiple of 4 of them, and rows on 16-byte boundaries"
    rows = strip_rows(problem)
    blocks = ceil_div(_strips(problem, rows), 4)
    if blocks > MAX_GRID_X:
        return f"at most {MAX_GRID_X} blocks supported, got {blocks}"
    return Launch(blocks, 128, entry=f"walking<{problem.border}, {rows}>")


def _strides(array: Any) -> tuple[int, int, int]:
    strides = array.strides_elements
    return (strides[0], strides[1], strides[2]) if len(strides) == 3 else (0, strides[0], strides[1])


def problem(inputs: Sequence[Any], output: Any, border: str = "zero") -> BlurProblem:
    """Return the problem of (rows, cols) or (images, rows, cols) and an output. Raise ValueError for unsupported
    arrays."""
    (x,) = inputs
    if border not in BORDERS:
        raise ValueError(f"border must be one of {', '.join(map(repr, BORDERS))}, got {border!r}")
    checks.expect_float32_in_and_out("blur", x, output)
    if len(x.shape) not in (2, 3):
        raise ValueError(f"blur takes (rows, cols) or (images, rows, cols), got shape {tuple(x.shape)}")
    checks.expect_shape_of("blur", x, output)
    checks.expect_output("blur", output, separate=(("images", x),), twice=_TWICE, shared=_SHARED)
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    images, rows, cols = (1, *x.shape) if len(x.shape) == 2 else tuple(x.shape)
    x_strides, y_strides = _strides(x), _strides(output)
    whole = all(strides[2] == 1 and strides[0] % 4 == strides[1] % 4 == 0 for strides in (x_strides, y_strides))
    vectors = whole and cols % 4 == 0 and alignment(x) == alignment(output) == 16
    return BlurProblem(images, rows, cols, x_strides, y_strides, vectors, list(BORDERS).index(border), sms)


def _blur(x: Any, *, border: str = "zero") -> Any:
    """Return the blur in x's precision, first along rows and then along columns."""
    if not x.size:
        return x.copy()
    axes = [(0, 0)] * (x.ndim - 2) + [(1, 1), (1, 1)]
    padded = x
    for axis in (x.ndim - 2, x.ndim - 1):  # numpy cannot mirror an axis of one element
        width = [pair if index == axis else (0, 0) for index, pair in enumerate(axes)]
        mode: Any = "edge" if border == "reflect" and x.shape[axis] == 1 else BORDERS[border]
        padded = np.pad(padded, width, mode=mode)
    quarter, half = x.dtype.type(0.25), x.dtype.type(0.5)  # weights with a sum of 1 cannot overflow
    across = quarter * padded[..., :-2] + half * padded[..., 1:-1] + quarter * padded[..., 2:]
    return quarter * across[..., :-2, :] + half * across[..., 1:-1, :] + quarter * across[..., 2:, :]


def rounding(exact: Any, x: Any, border: str = "zero") -> Any:
    """Return the rounding error of two sums along rows and two along columns. The weights are powers of two, so
    products are exact or denormal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return 4 * U * _blur(np.abs(x, dtype=np.float64), border=border) + 4 * SMALLEST


FAMILY: Family[BlurProblem] = Family(
    name="blur",
    reference=_blur,
    variants=(naive, tiled, walking),
    inputs={"x": "float32"},
    outputs={"out": "float32"},
    problem=problem,
    arguments=lambda p: (IN[0], OUT, p.images, p.rows, p.cols, *p.x_strides, *p.y_strides),
    rounding=rounding,
    shapes={
        "gpu": ((256, 1024, 1024), (4095, 4097)),
        "sim": ((2, 33, 64), (17, 35)),
        "sim sweep": ((1, 16, 16), (1, 64, 128), (5, 31, 37)),
        "sweep": ((1, 1024, 1024), (16, 1024, 1024), (256, 1024, 1024), (16, 4096, 4096)),
    },
    modes={"": {}, **{border: {"border": border} for border in ("clamp", "reflect")}},
    problems="cudakit.testing.blur:blur_cases",
)
FAMILY.call = lambda inputs, out, variant, stream, **options: functools.partial(
    blur, inputs[0], out, variant=variant, stream=stream, **options
)


def blur(images: Any, out: Any = None, *, border: str = "zero", variant: str = "auto", stream: Any = None) -> Any:
    """Return the 3x3 Gaussian blur of float32 images, for arrays of cudakit, torch or CuPy.

    Does not wait for the device.

    Args:
        images: Shape (rows, cols) or (images, rows, cols), any strides.
        out: The output, of the same shape, separate from the input. By default a new array.
        border: The values outside an image: "zero"; "clamp", the nearest element; "reflect", the image mirrored at its
            outermost elements without repeating them (numpy.pad's "reflect"), except along an axis of one element,
            which is repeated.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the input's library.

    Raises:
        ValueError: If the arrays or the border are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(FAMILY, (images,), out, variant, stream, {"border": border})
