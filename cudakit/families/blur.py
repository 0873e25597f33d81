"""3x3 Gaussian blur of float32 images: (1 2 1; 2 4 2; 1 2 1) / 16, a whole batch in one launch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.family import IN, MAX_GRID_X, OUT, Family, Launch, alignment, apply, ceil_div, checks, variant
from cudakit.rounding import SMALLEST, U

# Names of the borders, in the order of kernels/blur/border.cuh, and what numpy.pad calls them.
BORDERS = {"zero": "constant", "clamp": "edge", "reflect": "reflect"}
STRIP_COLS = 128

_TWICE = "the output of blur may name one place twice: give an output whose elements are apart"
_SHARED = "blur cannot work in place: a pixel is read after its neighbours are written. Give a separate output"


@dataclass(frozen=True)
class BlurProblem:
    """Images of rows x cols; strides in elements (image, row, column); whether rows are whole float4; the border;
    multiprocessors."""

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
    """Rows a warp walks down: 32 if that leaves 16 warps for each multiprocessor (H200: 0.865 of a copy, against 0.844
    with 64), fewer for small images."""
    return next((rows for rows in (32, 16) if _strips(problem, rows) >= 16 * problem.sms), 4)


@variant("blur/01_naive.cu")
def naive(problem: BlurProblem) -> Launch:
    """one pixel a thread, nine loads"""
    pixels = problem.images * problem.rows * problem.cols
    return Launch(min(ceil_div(pixels, 256), 2**20), 256, entry=f"naive<{problem.border}>")


@variant("blur/02_tiled.cu")
def tiled(problem: BlurProblem) -> Launch | str:
    """a tile with its whole halo in shared memory"""
    tiles = _tiles(problem)
    if tiles > MAX_GRID_X:
        return f"{tiles} tiles are more than a grid has blocks"
    return Launch(tiles, (32, 16), entry=f"tiled<{problem.border}>")


@variant("blur/03_walking.cu", problems="vectors")
def walking(problem: BlurProblem) -> Launch | str:
    """a warp walks down with three rows' sums in registers"""
    if not problem.vectors:
        return "float4 access needs neighbouring columns, a multiple of 4 of them, and rows on 16-byte boundaries"
    rows = strip_rows(problem)
    blocks = ceil_div(_strips(problem, rows), 4)
    if blocks > MAX_GRID_X:
        return "its strips are more than a grid has blocks for"
    return Launch(blocks, 128, entry=f"walking<{problem.border}, {rows}>")


def _strides(array: Any) -> tuple[int, int, int]:
    strides = array.strides_elements
    return (strides[0], strides[1], strides[2]) if len(strides) == 3 else (0, strides[0], strides[1])


def problem(inputs: Sequence[Any], output: Any, border: str = "zero") -> BlurProblem:
    """The problem of (rows, cols) or (images, rows, cols) and an output; ValueError says what it refuses."""
    (x,) = inputs
    if border not in BORDERS:
        raise ValueError(f"border is {border!r}: it must be one of {', '.join(map(repr, BORDERS))}")
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
    """The blur in x's precision, across and then down."""
    if not x.size:
        return x.copy()
    axes = [(0, 0)] * (x.ndim - 2) + [(1, 1), (1, 1)]
    padded = x
    for axis in (x.ndim - 2, x.ndim - 1):  # numpy cannot mirror an axis of one element
        width = [pair if index == axis else (0, 0) for index, pair in enumerate(axes)]
        mode: Any = "edge" if border == "reflect" and x.shape[axis] == 1 else BORDERS[border]
        padded = np.pad(padded, width, mode=mode)
    quarter, half = x.dtype.type(0.25), x.dtype.type(0.5)  # weights that add up to 1 cannot overflow on the way
    across = quarter * padded[..., :-2] + half * padded[..., 1:-1] + quarter * padded[..., 2:]
    return quarter * across[..., :-2, :] + half * across[..., 1:-1, :] + quarter * across[..., 2:, :]


def rounding(exact: Any, x: Any, border: str = "zero") -> Any:
    """The rounding of two sums across and two down. The weights are powers of two, so that products are exact or
    denormal."""
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
    """The 3x3 Gaussian blur of float32 images: cudakit's, torch's or CuPy's, and so is the result.

    images: (rows, cols) or (images, rows, cols), any strides, any number of images. out: where to write, of the same
    shape and not over the input; a new array unless given. border: what stands outside an image: "zero"; "clamp", the
    nearest element; "reflect", the image mirrored at its outermost elements, which are not repeated (numpy.pad's
    "reflect"; an axis of one element repeats it). variant: a rung by name, or "auto". stream: as for every op. Returns
    without waiting. Raises ValueError for what it does not take, UnsupportedVariant for a rung that does not take it.
    """
    return apply(FAMILY, (images,), out, variant, stream, {"border": border})
