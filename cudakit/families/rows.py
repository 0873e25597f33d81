"""How rows are dealt to lanes: the launch of kernels built on common/row_pieces.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudakit.family import ceil_div

BLOCK = 256
# By the floats of a vector: the most vectors a lane has in flight, and the most lanes that share a row. Measured on an
# H200: more wide vectors a lane cost registers and gain nothing, fewer single floats leave the memory waiting.
MOST_DEEP = {1: 8, 4: 2}
MOST_LANES = {1: 32, 4: 16}
# A row that is off the 16-byte boundaries has a scalar head and tail; below this many floats they are most of it.
SHORTEST_RAGGED = 64


@dataclass(frozen=True)
class Deal:
    """VEC, LANES and DEEP, the template constants, and how many pieces a row has."""

    vec: int
    lanes: int
    deep: int
    pieces: int

    @property
    def constants(self) -> str:
        """The template arguments of an entry."""
        return f"{self.vec}, {self.lanes}, {self.deep}"

    def grid(self, rows: int) -> int:
        """Blocks of BLOCK threads for `rows` rows."""
        return ceil_div(rows * self.pieces, BLOCK // self.lanes)


def deal(cols: int, phases: Sequence[int], outer: Sequence[Sequence[int]]) -> Deal:
    """How rows of `cols` floats are dealt.

    phases: floats from the last 16-byte boundary to the first element of each array that is walked along the rows (the
    output too). outer: each one's strides over the other axes. Vectors are for rows that all lie alike against the
    boundaries: then one head fits all arrays.
    """
    whole = cols % 4 == 0 and not any(phases) and not any(stride % 4 for strides in outer for stride in strides)
    alike = len(set(phases)) == 1 and all(len({s % 4 for s in steps}) == 1 for steps in zip(*outer, strict=True))
    vec = 4 if whole or (alike and cols >= SHORTEST_RAGGED) else 1
    vectors = ceil_div(cols, vec)
    lanes = min(MOST_LANES[vec], 1 << (vectors - 1).bit_length()) if vectors else 1
    deep = next((n for n in (1, 2, 4, 8) if n * lanes >= vectors and n <= MOST_DEEP[vec]), MOST_DEEP[vec])
    return Deal(vec, lanes, deep, max(1, ceil_div(vectors, lanes * deep)))
