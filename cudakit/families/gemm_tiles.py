"""The tiles of the fast fp32 products (kernels/gemm/fma_tile.cuh), and the choice of a tile for a problem."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cudakit.families.gemm_problem import GemmProblem, arguments, output_arguments
from cudakit.family import SCRATCH, Launch, Slot, ceil_div, cpp_bool

DEPTH = 16  # k per tile in shared memory


@dataclass(frozen=True)
class FmaTile:
    """A tile of bm x bn outputs per block and tm x tn per thread, with warps_m x warps_n warps for each of `slices`
    slices of k, a ring of `stages` tiles in shared memory, and `resident` blocks per multiprocessor.

    The other fields are fitted to 40 shapes on an H200. Times in us: `alone_us` per step if the block is alone on its
    multiprocessor, `each_us` per step and block if there are several blocks, `start_us` for the start and end of a
    tile. `unaligned` is the factor by which a step takes longer if an operand is not aligned. These fields are 0 for a
    tile that is not in a table.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    warps_m: int
    warps_n: int
    stages: int
    slices: int
    resident: int
    alone_us: float = 0.0
    each_us: float = 0.0
    start_us: float = 0.0
    unaligned: float = 0.0

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.slices

    def shared(self, along_k: tuple[bool, bool]) -> int:
        """Return the bytes of the ring. An operand that is contiguous along k is padded by four floats per k."""
        lines = self.bm + self.bn + 4 * sum(along_k)
        return self.slices * self.stages * lines * DEPTH * 4

    def count(self, problem: GemmProblem) -> int:
        """Return the tiles per batch."""
        return ceil_div(problem.m, self.bm) * ceil_div(problem.n, self.bn)

    def constants(self, sliced: bool) -> str:
        """Return the template arguments that precede the layouts."""
        shape = (self.bm, self.bn, self.tm, self.tn, self.warps_m, self.warps_n, self.stages)
        return ", ".join(map(str, (*shape, *((self.slices,) if sliced else ()), self.resident)))


LARGE = FmaTile(128, 128, 16, 8, 2, 2, 3, 1, 2, 2.137, 1.305, 5.9, 1.18)
PLAIN_TILES = (
    LARGE,
    FmaTile(256, 128, 16, 8, 4, 2, 3, 1, 1, 2.649, 2.649, 5.462, 1.11),
    FmaTile(128, 128, 8, 8, 4, 2, 3, 1, 2, 1.4, 1.307, 5.514, 1.32),
    FmaTile(64, 128, 8, 8, 2, 2, 3, 1, 4, 1.022, 0.678, 5.146, 1.24),
    FmaTile(128, 64, 8, 8, 4, 1, 3, 1, 4, 1.225, 0.809, 4.518, 1.24),
    FmaTile(64, 64, 8, 4, 2, 2, 4, 1, 4, 0.725, 0.409, 2.506, 0.95),
    FmaTile(128, 32, 8, 4, 4, 1, 4, 1, 4, 0.782, 0.454, 2.447, 1.03),
    FmaTile(32, 64, 4, 4, 2, 2, 4, 1, 4, 0.497, 0.224, 1.385, 1.06),
)
SLICED_TILES = (
    FmaTile(64, 128, 8, 8, 2, 2, 3, 2, 1, 1.6, 1.6, 2.455, 1.05),
    FmaTile(64, 64, 8, 8, 2, 1, 3, 2, 2, 1.145, 0.792, 2.7, 1.09),
    FmaTile(64, 64, 8, 4, 2, 2, 3, 2, 2, 0.845, 0.845, 2.13, 1.07),
    FmaTile(32, 64, 4, 4, 2, 2, 3, 2, 2, 0.573, 0.457, 1.604, 1.11),
    FmaTile(32, 64, 4, 4, 2, 2, 3, 4, 1, 0.969, 0.969, 2.077, 1.23),
    FmaTile(64, 32, 8, 4, 2, 1, 3, 4, 1, 1.033, 1.033, 2.15, 1.16),
    FmaTile(32, 32, 8, 4, 1, 1, 3, 8, 1, 1.042, 1.042, 3.389, 1.29),
)
STREAM_TILES = (
    FmaTile(128, 128, 8, 8, 4, 2, 3, 2, 1, 2.918, 2.918, 4.074, 1.32),
    FmaTile(64, 64, 8, 4, 2, 2, 3, 1, 4, 0.748, 0.436, 1.572, 1.12),
    FmaTile(64, 64, 8, 8, 2, 1, 3, 4, 1, 1.711, 1.711, 4.085, 1.21),
)
LAUNCH_US = 2.0
JOIN_US = 4.5
# Rate at which stream-K writes and reads its partial tiles: pairs of (largest ratio of tiles to blocks, bytes per us).
# Measured on an H200: with few tiles, many blocks add up partial tiles at the same time.
PARTS_BYTES_PER_US = ((0.5, 8e6), (1.125, 1.9e6), (math.inf, 0.6e6))


@dataclass(frozen=True)
class OperandLayout:
    """The layout of the operands: whether each is contiguous along k, and the floats per access."""

    a_along_k: bool
    b_along_k: bool
    vec_a: int
    vec_b: int
    vec_d: int

    @property
    def constants(self) -> str:
        return f"{cpp_bool(self.a_along_k)}, {cpp_bool(self.b_along_k)}, {self.vec_a}, {self.vec_b}, {self.vec_d}"


def operand_layout(problem: GemmProblem) -> OperandLayout | str:
    """Return the layout of a problem's operands, or the reason why it is unsupported."""
    p, f = problem, 4
    along = []
    for name, line, along_k, lines in (("A", p.a.row, p.a.col, p.m), ("B", p.b.col, p.b.row, p.n)):
        if along_k == 1 or p.k == 1:
            along.append(True)
        elif line == 1 or lines == 1:
            along.append(False)
        else:
            return f"neither axis of {name} is contiguous (strides {line} and {along_k})"
    a_k, b_k = along
    whole_a = p.a.pieces(p.a.col, p.a.row, p.k, p.batch, f) if a_k else p.a.pieces(p.a.row, p.a.col, p.m, p.batch, f)
    whole_b = p.b.pieces(p.b.row, p.b.col, p.k, p.batch, f) if b_k else p.b.pieces(p.b.col, p.b.row, p.n, p.batch, f)
    return OperandLayout(a_k, b_k, 4 if whole_a else 1, 4 if whole_b else 1, store_width(p))


def store_width(problem: GemmProblem) -> int:
    """Return the floats per store to the output."""
    d = problem.d
    return 4 if d.pieces(d.col, d.row, problem.n, problem.batch, 4) else 1


def steps(problem: GemmProblem) -> int:
    """Return the steps along k (tiles in shared memory), at least one."""
    return max(1, ceil_div(problem.k, DEPTH))


def stream_blocks(tile: FmaTile, problem: GemmProblem) -> int:
    """Return the blocks of a stream-K launch: as many as are resident on the device, at most one per step."""
    return min(problem.sms * tile.resident, tile.count(problem) * problem.batch * steps(problem))


def join_share(tile: FmaTile, problem: GemmProblem) -> int:
    """Return the number of warps that add up the partial sums of one tile in stream-K's second launch."""
    return 8 if stream_blocks(tile, problem) >= 16 * tile.count(problem) * problem.batch else 1


def stream_launches(
    tile: FmaTile, problem: GemmProblem, lies: OperandLayout, parts: Slot = SCRATCH, source: str = ""
) -> tuple[Launch, Launch]:
    """Return the two launches of stream-K on `tile`. parts: the scratch memory of its partial tiles. source: the file
    of the kernels."""
    blocks, share = stream_blocks(tile, problem), join_share(tile, problem)
    tiles = tile.count(problem) * problem.batch
    count = len(problem.others)
    shape = (tile.bm, tile.bn, tile.tm, tile.tn, tile.warps_m, tile.warps_n, share, lies.vec_d, count)
    main = f"stream_k<{tile.constants(True)}, {lies.constants}, {count}>"
    join = f"stream_k_join<{', '.join(map(str, shape))}>"
    shared = tile.shared((lies.a_along_k, lies.b_along_k))
    others = struct.pack(f"={max(1, count)}Q", *(problem.others or (0,)))  # OtherOutputs
    p, sums = problem, parts.at(0, "float32")
    args = (*arguments(p), sums)
    scratch = parts.offset + blocks * 2 * tile.bm * tile.bn * 4
    joined = (*output_arguments(p), p.m, p.n, p.k, p.batch, p.alpha, p.beta, sums, blocks, others)
    return (
        Launch(blocks, tile.threads, (*args, others), shared, main, scratch, source=source),
        Launch((min(blocks, tiles), tile.bm * tile.bn * share // 1024), 256, joined, entry=join, source=source),
    )


# The constants that tuning varies in the three kernels. rows: rows of threads in a warp. tm=None selects the table's
# tile, which depends on the problem; the other constants and slices then have the values of USUAL.
TUNE = {
    "tm": (None, 4, 8, 16),
    "tn": (4, 8, 16),
    "warps_m": (1, 2, 4),
    "warps_n": (1, 2, 4),
    "rows": (4, 8),
    "stages": (2, 3, 4),
    "resident": (1, 2, 3, 4),
}
SLICED_TUNE = {**TUNE, "slices": (1, 2, 4, 8)}
USUAL = (8, 2, 2, 4, 3, 2, 1)
# The least registers that a thread needs besides its sums and two sets of operands.
OTHER_REGISTERS = 16


def tuned_tile(problem: GemmProblem, constants: Sequence[int]) -> FmaTile | str:
    """Return the tile of tm, tn, warps_m, warps_n, rows, stages, resident and slices, or the reason why the kernels do
    not support it for a problem."""
    tm, tn, warps_m, warps_n, rows, stages, resident, slices = constants
    tile = FmaTile(warps_m * tm * rows, warps_n * tn * (32 // rows), tm, tn, warps_m, warps_n, stages, slices, resident)
    lies = operand_layout(problem)
    if isinstance(lies, str):
        return lies
    if tile.threads > 1024:
        return "at most 1024 threads per block supported"
    registers = min(255, 65536 // (tile.threads * resident))
    if tm * tn + 2 * (tm + tn) + OTHER_REGISTERS > registers:
        return "the sums do not fit in a thread's registers with `resident` blocks per multiprocessor"
    shared = tile.shared((lies.a_along_k, lies.b_along_k))
    if resident * (shared + 1024) > problem.shared + 1024:
        return "`resident` blocks do not fit in shared memory"
    if slices > 1 and shared < tile.bm * tile.bn * 4:
        return "the sums of a slice do not fit in the memory of its tiles"
    for lines, along_k, vec in ((tile.bm, lies.a_along_k, lies.vec_a), (tile.bn, lies.b_along_k, lies.vec_b)):
        across = DEPTH // 4 if along_k else lines // 4 if vec == 4 else 32
        step = tile.threads // slices // across
        if not step or tile.threads // slices % across or (lines if along_k else DEPTH) % step or lines % 32:
            return "a tile cannot be split equally among the threads of a slice that copy it"
    return tile


def _step_us(tile: FmaTile, resident: int, aligned: bool) -> float:
    longer = 1.0 if aligned else tile.unaligned
    return longer * max(tile.alone_us, tile.each_us * resident)


def is_aligned(problem: GemmProblem) -> bool:
    """Return whether both operands can be copied 16 bytes at a time."""
    lies = operand_layout(problem)
    return isinstance(lies, str) or lies.vec_a == lies.vec_b == 4


def wave_us(tile: FmaTile, problem: GemmProblem) -> float:
    """Return the modelled time of a launch with one block per tile: the full waves of blocks on the busiest
    multiprocessor plus its partial last wave."""
    aligned, depth = is_aligned(problem), ceil_div(steps(problem), tile.slices)
    rounds, left = divmod(ceil_div(tile.count(problem) * problem.batch, problem.sms), tile.resident)
    full = tile.start_us + depth * _step_us(tile, tile.resident, aligned)
    last = tile.start_us + depth * _step_us(tile, left, aligned) if left else 0.0
    return LAUNCH_US + rounds * full + last


def stream_us(tile: FmaTile, problem: GemmProblem) -> float:
    """Return the modelled time of stream-K's two launches."""
    blocks, tiles = stream_blocks(tile, problem), tile.count(problem) * problem.batch
    share = tiles * steps(problem) / blocks
    resident = min(tile.resident, ceil_div(blocks, problem.sms))
    rate = next(rate for most, rate in PARTS_BYTES_PER_US if tiles <= most * blocks)
    parts = blocks * 2 * tile.bm * tile.bn * 4 / rate
    starts = tile.start_us * max(1.0, tiles / blocks)
    return LAUNCH_US + JOIN_US + starts + share / tile.slices * _step_us(tile, resident, is_aligned(problem)) + parts


@functools.lru_cache(maxsize=64)
def best_plain(problem: GemmProblem) -> FmaTile:
    """Return the fastest tile of `pipelined` for a problem."""
    return min(PLAIN_TILES, key=lambda tile: wave_us(tile, problem))


@functools.lru_cache(maxsize=64)
def best_sliced(problem: GemmProblem) -> FmaTile:
    """Return the fastest tile of `sliced` for a problem."""
    return min(SLICED_TILES, key=lambda tile: wave_us(tile, problem))


@functools.lru_cache(maxsize=64)
def best_stream(problem: GemmProblem) -> FmaTile:
    """Return the fastest tile of `stream_k` for a problem."""
    return min(STREAM_TILES, key=lambda tile: stream_us(tile, problem))


def fastest(problem: GemmProblem) -> str:
    """Return the variant with the shortest modelled time: `pipelined`, `sliced` or `stream_k`."""
    times = {
        "pipelined": wave_us(best_plain(problem), problem),
        "sliced": wave_us(best_sliced(problem), problem),
        "stream_k": stream_us(best_stream(problem), problem),
    }
    return min(times, key=lambda name: times[name])
