"""The problem of row softmax, and the argument checks that both softmax families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudakit.family import MAX_GRID_X, alignment, checks
from cudakit.libs import calls

_TWICE = (
    "softmax output of {extents} with strides {output.strides_elements} (elements) may store two elements at "
    "one address, a data race: pass an output whose elements do not overlap"
)
_PARTLY = (
    "softmax input and output overlap or are interleaved without being the same array: pass the same array with the "
    "same strides to work in place, or a separate output"
)
_SHARED = "the output of softmax overlaps {name}, which other threads still read: pass a separate output"


def expect_rows(x: Any, output: Any, mask: Any = None) -> tuple[int, int]:
    """Return the rows and columns of an input (rows, cols) or (cols,) and its output. Raise ValueError for other
    shapes, and for an output that overlaps itself, part of x, or the mask."""
    if len(x.shape) not in (1, 2):
        raise ValueError(f"softmax takes 1-D (one row) or 2-D arrays, got shape {tuple(x.shape)}; reshape it first")
    checks.expect_shape_of("softmax", x, output)
    rows, cols = (1, *x.shape) if len(x.shape) == 1 else x.shape
    if rows > MAX_GRID_X:
        raise ValueError(f"softmax takes at most {MAX_GRID_X} rows, got {rows}")
    masks = () if mask is None else (("the mask", mask),)
    checks.expect_output("softmax", output, (("x", x),), masks, twice=_TWICE, partly=_PARTLY, shared=_SHARED)
    return rows, cols


def row_and_column(strides: Sequence[int]) -> tuple[int, int]:
    """Return the last two of an array's strides; 0 for missing ones."""
    row, col = (0, 0, *strides)[-2:]
    return row, col


def piece(rows: int, cols: int, arrays: Sequence[Any]) -> int:
    """Return the elements per 16-byte piece if every row of all arrays (of one dtype) consists of such pieces, else
    1."""
    count = 16 // int(arrays[0].itemsize)
    if cols % count:
        return 1
    for array in arrays:
        row, col = row_and_column(array.strides_elements)
        if col != 1 or array.pointer % 16 or (rows > 1 and row % count):
            return 1
    return count


@dataclass(frozen=True)
class RowProblem:
    """Extents; strides, in elements; the alignment of both arrays' first element, in bytes (at most 16); apart: the
    difference of x's and y's offsets from a 16-byte boundary, in floats; sms: the device's multiprocessors; blas:
    whether a BLAS library can be called on it."""

    rows: int
    cols: int
    x_strides: tuple[int, int]
    y_strides: tuple[int, int]
    x_alignment: int
    y_alignment: int
    apart: int = 0
    sms: int = 1
    blas: bool = True

    def __str__(self) -> str:
        return f"softmax of {self.rows}x{self.cols}, strides {self.x_strides} to {self.y_strides}"

    @property
    def vectors(self) -> bool:
        """Whether every row of both arrays can be read and written in whole float4."""
        return (
            self.x_strides[1] == self.y_strides[1] == 1
            and self.cols % 4 == 0
            and (self.rows == 1 or (self.x_strides[0] % 4 == 0 and self.y_strides[0] % 4 == 0))
            and self.x_alignment == self.y_alignment == 16
        )

    @property
    def shifted(self) -> bool:
        """Whether the rows of both arrays are contiguous, and each row has the same offset from a 16-byte boundary in
        both."""
        together = self.rows == 1 or (self.x_strides[0] - self.y_strides[0]) % 4 == 0
        return self.x_strides[1] == self.y_strides[1] == 1 and together and self.apart == 0


def problem(inputs: Sequence[Any], output: Any) -> RowProblem:
    """Return the problem of a float32 input and its output. Raise ValueError for unsupported arrays."""
    (x,) = inputs
    checks.expect_float32_in_and_out("softmax", x, output)
    rows, cols = expect_rows(x, output)
    x_strides, y_strides = row_and_column(x.strides_elements), row_and_column(output.strides_elements)
    apart = (x.pointer - output.pointer) // 4 % 4
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    library = output.context.kind == "sim" or calls.installed()
    return RowProblem(rows, cols, x_strides, y_strides, alignment(x), alignment(output), apart, sms, library)
