"""The distribution of rows over lanes, for kernels built on common/row_pieces.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudakit.family import ceil_div

BLOCK = 256
# The most vectors that a lane loads at once, and the most lanes that share a row, by floats per vector. On an H200,
# more float4 per lane cost registers without a speed-up; fewer single floats per lane leave memory bandwidth unused.
MOST_DEEP = {1: 8, 4: 2}
MOST_LANES = {1: 32, 4: 16}
# A row that does not start on a 16-byte boundary has a scalar head and tail. They are most of a row that is shorter
# than this number of floats.
SHORTEST_RAGGED = 64


@dataclass(frozen=True)
class Deal:
    """The template constants VEC, LANES and DEEP, and the pieces per row."""

    vec: int
    lanes: int
    deep: int
    pieces: int

    @property
    def constants(self) -> str:
        """The template arguments of a kernel's entry."""
        return f"{self.vec}, {self.lanes}, {self.deep}"

    def grid(self, rows: int) -> int:
        """Return the blocks of BLOCK threads for `rows` rows."""
        return ceil_div(rows * self.pieces, BLOCK // self.lanes)


def deal(cols: int, phases: Sequence[int], outer: Sequence[Sequence[int]]) -> Deal:
    """Return the distribution of rows of `cols` floats over lanes.

    phases: floats between the last 16-byte boundary and the first element, for each array that is walked along the rows
    (including the output). outer: the strides of each array over the other axes. Vectors are used if all rows have the
    same offset from a 16-byte boundary, so that one scalar head fits all arrays.
    """
    whole = cols % 4 == 0 and not any(phases) and not any(stride % 4 for strides in outer for stride in strides)
    alike = len(set(phases)) == 1 and all(len({s % 4 for s in steps}) == 1 for steps in zip(*outer, strict=True))
    vec = 4 if whole or (alike and cols >= SHORTEST_RAGGED) else 1
    vectors = ceil_div(cols, vec)
    lanes = min(MOST_LANES[vec], 1 << (vectors - 1).bit_length()) if vectors else 1
    deep = next((n for n in (1, 2, 4, 8) if n * lanes >= vectors and n <= MOST_DEEP[vec]), MOST_DEEP[vec])
    return Deal(vec, lanes, deep, max(1, ceil_div(vectors, lanes * deep)))
