"""Row softmax and log-softmax of scale * x + mask, in float32, float16 and bfloat16; arithmetic is float32.

A mask broadcasts to x. False in a bool mask hides an element; a float32 mask is added to x, and -inf in it hides an
element. The result for a hidden element is 0 (-inf with log) regardless of x, also in rows that are completely hidden:
a mask never causes NaN. A visible NaN or +inf, or a row of only -inf, makes the whole row NaN, as in the family
softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families.softmax_host import make_inputs, reference, rounding
from cudakit.families.softmax_problem import expect_rows, piece, row_and_column
from cudakit.family import CPP, IN, OUT, Family, Launch, Scalar, ceil_div, cpp_bool, variant

_MASKS = {"": 0, "bool": 1, "float32": 2}
# The most elements that a thread of 02_registers.cu holds as floats, and the most threads per block.
HELD_FLOATS, MOST_THREADS = 32, 1024


@dataclass(frozen=True)
class ModesProblem:
    """Extents; (row, column) strides of x, mask and y, in elements; vector: the elements per 16-byte piece if the
    arrays consist of such pieces, else 1; the names of the dtypes, with mask "" for none."""

    rows: int
    cols: int
    strides: tuple[int, int, int, int, int, int]
    vector: int
    dtype: str
    mask: str
    log: bool
    scale: float

    def __str__(self) -> str:
        mask = f", {self.mask} mask" if self.mask else ""
        return f"{'log-' if self.log else ''}softmax of {self.rows}x{self.cols} {self.dtype}{mask}, scale {self.scale}"

    @property
    def template(self) -> str:
        """The first template arguments of every kernel."""
        element = {"": CPP[self.dtype], "bool": "bool", "float32": "float"}[self.mask]
        return f"{CPP[self.dtype]}, {element}, {_MASKS[self.mask]}, {cpp_bool(self.log)}"


def problem(
    inputs: Sequence[Any], output: Any, log: bool = False, scale: float = 1.0, masked: bool = False
) -> ModesProblem:
    """Return the problem of x, an optional mask, and the output. Raise ValueError for unsupported arrays."""
    x, mask = inputs[0], inputs[1] if len(inputs) > 1 else None
    if x.dtype.name not in CPP or output.dtype != x.dtype:
        raise ValueError(
            f"softmax takes bfloat16, float16 or float32 in and out, got {x.dtype} in and {output.dtype} out: convert "
            "one of them first"
        )
    rows, cols = expect_rows(x, output, mask)
    factor = read_scale(scale)
    x_strides, y_strides = row_and_column(x.strides_elements), row_and_column(output.strides_elements)
    m_strides = (0, 0) if mask is None else _mask_strides(mask, tuple(x.shape))
    strides = (*x_strides, *m_strides, *y_strides)
    vector = _vector(rows, cols, x, mask, m_strides, output)
    return ModesProblem(
        rows, cols, strides, vector, x.dtype.name, "" if mask is None else mask.dtype.name, bool(log), factor
    )


def read_scale(scale: float) -> float:
    """Return `scale` rounded to float32. Raise ValueError if it is not finite."""
    with np.errstate(over="ignore"):
        factor = float(np.float32(scale))
    if not math.isfinite(factor):
        raise ValueError(f"softmax takes a scale that is finite in float32, got {scale}")
    return factor


def _mask_strides(mask: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the (row, column) strides of `mask` broadcast to `shape`, in elements."""
    if mask.dtype.name not in ("bool", "float32"):
        raise ValueError(f"softmax takes a mask of bool or float32, got {mask.dtype}: convert it first")
    extents = tuple(mask.shape)
    fits = len(extents) <= len(shape) and all(m in (1, n) for m, n in zip(extents[::-1], shape[::-1], strict=False))
    if not fits:
        raise ValueError(f"softmax takes a mask that broadcasts to x of {shape}, got {extents}: reshape it first")
    steps = [0 if m == 1 else step for m, step in zip(extents, mask.strides_elements, strict=True)]
    return row_and_column(steps)


def _vector(rows: int, cols: int, x: Any, mask: Any, mask_strides: tuple[int, int], output: Any) -> int:
    """Return the elements per piece: 16 bytes of x if all three arrays consist of such pieces, else 1."""
    count = piece(rows, cols, (x, output))
    if mask is not None and count > 1:
        row, col = mask_strides
        wide = min(16, count * mask.itemsize)
        if col != 1 or mask.pointer % wide or (rows > 1 and row * mask.itemsize % wide):
            return 1
    return count


@dataclass(frozen=True)
class ModesTile:
    """The last template constants of 02_registers.cu."""

    block: int
    lanes: int
    held: int
    vec: int


def register_tile(problem: ModesProblem) -> ModesTile | None:
    """Return the tile for a problem, or None if a row does not fit in a block's registers."""
    vec = problem.vector
    pieces = max(ceil_div(problem.cols, vec), 1)
    if vec == 8 and not problem.mask:
        return _tile_as_they_came(pieces)
    for lanes in (4, 8, 16, 32):
        if pieces <= 2 * lanes:
            return ModesTile(128, lanes, ceil_div(pieces, lanes), vec)
    for held in (1, 2, 4, 8, 16, 32):
        most = 512 if held * vec < HELD_FLOATS else MOST_THREADS
        if held * vec >= min(8, HELD_FLOATS) and held * vec <= HELD_FLOATS and pieces <= held * most:
            block = ceil_div(ceil_div(pieces, held), 64) * 64
            return ModesTile(block, block, held, vec)
    return None


def _tile_as_they_came(pieces: int) -> ModesTile | None:
    """Return the tile for a row of 16-bit elements that stay packed, four registers per piece.

    Four pieces per thread are the fastest on an H200 (8192x8192: 0.90 of copy bandwidth; 0.83 with two, 0.65 with one).
    Eight are used if that saves a barrier.
    """
    for lanes, held in ((4, 4), (8, 4), (16, 4), (32, 4), (32, 8)):
        if pieces <= lanes * held:
            return ModesTile(128, lanes, held, 8)
    for held in (4, 8):
        if pieces <= held * MOST_THREADS:
            block = ceil_div(ceil_div(pieces, held), 64) * 64
            return ModesTile(block, block, held, 8)
    return None


@variant("softmax_modes/01_two_reads.cu", since="sm_80")
def two_reads(problem: ModesProblem) -> Launch:
    """one block per row, online maximum and sum, then a second read"""
    pieces = ceil_div(problem.cols, problem.vector)
    block = min(MOST_THREADS, max(64, ceil_div(ceil_div(pieces, 2), 32) * 32))
    return Launch(problem.rows, block, entry=f"two_reads<{problem.template}, {problem.vector}>")


@variant("softmax_modes/02_registers.cu", since="sm_80")
def registers(problem: ModesProblem) -> Launch | str:
    """each element read once, 16 bytes at a time, and kept in registers"""
    tile = register_tile(problem)
    if tile is None:
        return f"a row of {problem.cols} elements does not fit in a block's registers"
    entry = f"registers<{problem.template}, {tile.block}, {tile.lanes}, {tile.held}, {tile.vec}>"
    return Launch(ceil_div(problem.rows, tile.block // tile.lanes), tile.block, entry=entry)


def _arguments(problem: ModesProblem) -> tuple[Any, ...]:
    mask = IN[1] if problem.mask else IN[0]  # a placeholder if there is no mask: the kernel does not read it
    return (IN[0], mask, OUT, *problem.strides, problem.rows, problem.cols, problem.scale)


def choose(problem: ModesProblem, arch: str) -> str:
    """Return the variant for "auto": registers if a row fits in them."""
    return "registers" if register_tile(problem) is not None else "two_reads"


FAMILY: Family[ModesProblem] = Family(
    name="softmax_modes",
    reference=reference,
    variants=(two_reads, registers),
    inputs=make_inputs,
    outputs=lambda x, mask=None, **options: (tuple(x.shape), x.dtype),
    problem=problem,
    arguments=_arguments,
    rounding=rounding,
    choose=choose,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((32, 512), (16, 1001)),
        "sim sweep": ((64, 64), (32, 127), (16, 1000), (8, 2048)),
        "sweep": ((1024, 1024), (8192, 8192), (4096, 16384), (4096, 32768), (32768, 1000), (65536, 256)),
    },
    dtypes=("float16", "bfloat16", "float32"),
    modes={"": {}, "log": {"log": True}, "masked": {"scale": 0.125, "masked": True}},
    scalars={"scale": Scalar("scale", read_scale)},
    problems="cudakit.testing.softmax_modes:softmax_modes_cases",
)
