"""The tiles of the fast fp32 products (kernels/gemm/fma_tile.cuh), and which one a problem is given."""

from __future__ import annotations

from dataclasses import dataclass

from cudakit.ops.gemm_problem import GemmProblem
from cudakit.ops.variant import ceil_div

DEPTH = 16  # k of a shared tile


@dataclass(frozen=True)
class Tile:
    """bm x bn outputs a block, tm x tn a thread, warps_m x warps_n warps for each of `slices` shares of k, a ring of
    `stages` tiles; `resident` blocks a multiprocessor. `rate`: the share of the FFMA peak that a full chip reaches in
    the long run, measured on an H200."""

    bm: int
    bn: int
    tm: int
    tn: int
    warps_m: int
    warps_n: int
    stages: int
    slices: int
    resident: int
    rate: float

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.slices

    def shared(self, along_k: tuple[bool, bool]) -> int:
        """Bytes of the ring: an operand that lies along k is padded by four floats a k."""
        lines = self.bm + self.bn + 4 * sum(along_k)
        return self.slices * self.stages * lines * DEPTH * 4

    def count(self, problem: GemmProblem) -> int:
        """Tiles of one batch."""
        return ceil_div(problem.m, self.bm) * ceil_div(problem.n, self.bn)

    def constants(self, sliced: bool) -> str:
        """The template arguments up to the layouts."""
        shape = (self.bm, self.bn, self.tm, self.tn, self.warps_m, self.warps_n, self.stages)
        return ", ".join(map(str, (*shape, *((self.slices,) if sliced else ()), self.resident)))


LARGE = Tile(128, 128, 16, 8, 2, 2, 3, 1, 2, 0.76)
MIDDLE = Tile(64, 128, 8, 8, 2, 2, 3, 1, 4, 0.68)
SMALL = Tile(64, 64, 8, 4, 2, 2, 4, 1, 4, 0.55)
PLAIN_TILES = (LARGE, MIDDLE, SMALL)
STREAM_TILES = (LARGE,)
SLICED_TILES = (
    Tile(64, 128, 8, 8, 2, 2, 3, 2, 1, 0.68),
    Tile(64, 64, 8, 8, 2, 1, 3, 4, 1, 0.6),
    Tile(64, 64, 8, 4, 2, 2, 3, 2, 2, 0.55),
    Tile(32, 64, 4, 4, 2, 2, 3, 2, 2, 0.4),
)


@dataclass(frozen=True)
class Layout:
    """How the operands lie: along k or not, and the floats an access may take."""

    a_along_k: bool
    b_along_k: bool
    vec_a: int
    vec_b: int
    vec_d: int

    @property
    def constants(self) -> str:
        along = ", ".join("true" if flag else "false" for flag in (self.a_along_k, self.b_along_k))
        return f"{along}, {self.vec_a}, {self.vec_b}, {self.vec_d}"


def layout(problem: GemmProblem) -> Layout | str:
    """The layout of a problem's operands, or why these kernels do not take it."""
    p, f = problem, 4
    along = []
    for name, line, along_k, lines in (("A", p.a.row, p.a.col, p.m), ("B", p.b.col, p.b.row, p.n)):
        if along_k == 1 or p.k == 1:
            along.append(True)
        elif line == 1 or lines == 1:
            along.append(False)
        else:
            return f"neither axis of {name} has neighbouring elements (strides {line} and {along_k})"
    a_k, b_k = along
    whole_a = p.a.pieces(p.a.col, p.a.row, p.k, p.batch, f) if a_k else p.a.pieces(p.a.row, p.a.col, p.m, p.batch, f)
    whole_b = p.b.pieces(p.b.row, p.b.col, p.k, p.batch, f) if b_k else p.b.pieces(p.b.col, p.b.row, p.n, p.batch, f)
    whole_d = p.d.pieces(p.d.col, p.d.row, p.n, p.batch, f)
    return Layout(a_k, b_k, *(4 if whole else 1 for whole in (whole_a, whole_b, whole_d)))


def expected_layout(problem: GemmProblem) -> Layout:
    """`layout` of a problem that has one."""
    found = layout(problem)
    if isinstance(found, str):  # supports() said so before
        raise ValueError(found)
    return found


def has_layout(problem: GemmProblem) -> bool | str:
    """Whether a problem's operands have a layout, or why not."""
    found = layout(problem)
    return found if isinstance(found, str) else True


def waves(tile: Tile, problem: GemmProblem) -> float:
    """How many rounds of the whole chip the tiles take: the part of a round that is not full counts as a whole one."""
    return ceil_div(tile.count(problem) * problem.batch, problem.sms * tile.resident)


def steps(problem: GemmProblem) -> int:
    """Shared tiles along k, at least one."""
    return max(1, ceil_div(problem.k, DEPTH))


def stream_blocks(tile: Tile, problem: GemmProblem) -> int:
    """The blocks of a stream-K launch: what the chip holds, at most one a step."""
    return min(problem.sms * tile.resident, tile.count(problem) * problem.batch * steps(problem))


def join_share(tile: Tile, problem: GemmProblem) -> int:
    """How many warps share the parts of a tile where stream-K joins them."""
    return 8 if stream_blocks(tile, problem) >= 16 * tile.count(problem) * problem.batch else 1


def best(tiles: tuple[Tile, ...], problem: GemmProblem) -> Tile:
    """The tile whose time the model puts lowest."""
    return min(tiles, key=lambda tile: waves(tile, problem) * tile.resident * tile.bm * tile.bn / tile.rate)
