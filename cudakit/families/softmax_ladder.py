"""The ladder of the family softmax: the launch of each variant, and the tiles of variants that hold a row on chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudakit.families.softmax_blas import blas_on_device, blas_read_back
from cudakit.families.softmax_host import rounding_in_order
from cudakit.families.softmax_problem import RowProblem
from cudakit.family import IN, MAX_GRID_X, OUT, SCRATCH, Launch, ceil_div, cpp_bool, variant

# Bytes of dynamic shared memory per block that every chip from sm_80 on allows with opt-in (sm_86 and sm_89 have the
# least).
PARKED_LIMIT = 96 * 1024
# A warp of 10_span.cu holds a row in registers: 32 floats per lane.
SPAN_COLS = 1024
# The most 16-byte pieces that a thread of 11_split_row.cu holds in registers, and in shared memory (54 x 256 x 16 bytes
# of the 227 KiB per block on sm_90).
CLUSTER_HELD, CLUSTER_PARKED = 8, 54
# The same for the 1,024 threads of 13_on_chip.cu, which has fewer free registers.
ON_CHIP_HELD, ON_CHIP_PARKED = 6, 14


_VECTORS = "needs contiguous rows that start on a 16-byte boundary and have a multiple of 4 floats"
_GRID = f"at most {MAX_GRID_X} blocks supported, got {{rows}} rows of several blocks each"


@variant("softmax/01_thread_per_row.cu", rounding=rounding_in_order)
def thread_per_row(problem: RowProblem) -> Launch:
    """one thread per row, three passes"""
    return Launch(ceil_div(problem.rows, 256), 256)


@variant("softmax/02_thread_per_row_online.cu", rounding=rounding_in_order)
def thread_per_row_online(problem: RowProblem) -> Launch:
    """online maximum and sum: two passes"""
    return Launch(ceil_div(problem.rows, 256), 256)


@variant("softmax/03_serial_block.cu", rounding=rounding_in_order)
def serial_block(problem: RowProblem) -> Launch:
    """one block of one thread per row"""
    return Launch(problem.rows, 1)


@variant("softmax/04_block_serial_reduce.cu", entry="block_serial_reduce<256>")
def block_serial_reduce(problem: RowProblem) -> Launch:
    """256 threads per row, thread 0 combines"""
    return Launch(problem.rows, 256)


@variant("softmax/05_tree_reduce.cu")
def tree_reduce(problem: RowProblem) -> Launch:
    """tree reduction in shared memory"""
    return Launch(problem.rows, 256, shared=256 * 4)


@variant("softmax/06_online_fused.cu")
def online_fused(problem: RowProblem) -> Launch:
    """online update per thread, one tree reduction of (maximum, sum) pairs"""
    return Launch(problem.rows, 256, shared=256 * 8)


def _wide_block(problem: RowProblem) -> int:
    return 1024 if problem.cols > 14080 else 512


@variant("softmax/07_vec4.cu")
def vec4(problem: RowProblem) -> Launch:
    """16-byte loads and stores, any alignment"""
    block = _wide_block(problem)
    return Launch(problem.rows, block, shared=block * 4)


@variant("softmax/08_warp_shuffle.cu")
def warp_shuffle(problem: RowProblem) -> Launch:
    """reductions by warp shuffles"""
    return Launch(problem.rows, _wide_block(problem))


@dataclass(frozen=True)
class RegisterTile:
    """The template constants of 09_registers.cu."""

    block: int
    lanes: int
    held: int
    parked: int
    vec: int
    shifted: bool = False

    @property
    def entry(self) -> str:
        return (
            f"registers<{self.block}, {self.lanes}, {self.held}, {self.parked}, {self.vec}, {cpp_bool(self.shifted)}>"
        )

    @property
    def shared(self) -> int:
        return self.block * self.parked * self.vec * 4


def register_tile(problem: RowProblem) -> RegisterTile | None:
    """Return the tile for a problem, or None if a row does not fit in a block's registers and shared memory.

    Fastest on an H200: two pieces per thread if a row fits in a warp or a small block, four up to 2,048 pieces, eight
    for longer rows. With fewer pieces per thread, reductions take longer; with more, registers limit occupancy.
    """
    # Reading float by float is as fast for rows that fit in a warp. A shifted row needs three more floats.
    if not problem.vectors and problem.shifted and problem.cols > SPAN_COLS:
        tile = _register_tile(ceil_div(problem.cols + 3, 4), 4, True)
        if tile is not None:
            return tile
    vec = 4 if problem.vectors else 1
    return _register_tile(ceil_div(problem.cols, vec), vec, False)


def _register_tile(pieces: int, vec: int, shifted: bool) -> RegisterTile | None:
    for lanes in (4, 8, 16, 32):
        if pieces <= 2 * lanes:
            return RegisterTile(128, lanes, ceil_div(pieces, lanes), 0, vec, shifted)
    for held, longest in ((2, 256), (4, 2048), (8, 8192), (16, 16384), (32, 32768)):
        if pieces <= longest and held * vec <= 32:
            return RegisterTile(block := ceil_div(ceil_div(pieces, held), 64) * 64, block, held, 0, vec, shifted)
    held = 32 // vec
    tile = RegisterTile(1024, 1024, held, ceil_div(pieces, 1024) - held, vec, shifted)
    return tile if tile.shared <= PARKED_LIMIT else None


@variant("softmax/09_registers.cu", since="sm_80")
def registers(problem: RowProblem) -> Launch | str:
    """each element read once, kept in registers and shared memory"""
    tile = register_tile(problem)
    if tile is None:
        return f"a row of {problem.cols} floats does not fit in a block's registers and {PARKED_LIMIT} shared bytes"
    return Launch(ceil_div(problem.rows, tile.block // tile.lanes), tile.block, shared=tile.shared, entry=tile.entry)


@variant("softmax/10_span.cu", problems="span")
def span(problem: RowProblem) -> Launch | str:
    """short unaligned rows copied as one aligned span"""
    if problem.cols > SPAN_COLS:
        return f"at most {SPAN_COLS} columns supported, got {problem.cols}"
    dense = (problem.cols, 1)
    rows_dense = problem.x_strides == problem.y_strides == dense or (
        problem.rows == 1 and problem.x_strides[1] == problem.y_strides[1] == 1
    )
    if not rows_dense or problem.x_alignment != 16 or problem.y_alignment != 16:
        return "needs contiguous arrays that start on a 16-byte boundary"
    items = ceil_div(problem.cols, 32)
    block = 256 if items <= 4 else 128
    rows = block // 32 * (2 if items <= 4 else 1)
    entry = f"span<{block}, {rows}, {items}>"
    return Launch(ceil_div(problem.rows, rows), block, shared=rows * problem.cols * 4, entry=entry)


@dataclass(frozen=True)
class ClusterTile:
    """The template constants of 11_split_row.cu."""

    block: int
    cluster: int
    held: int
    parked: int

    @property
    def entry(self) -> str:
        return f"split_row<{self.block}, {self.cluster}, {self.held}, {self.parked}>"

    @property
    def shared(self) -> int:
        return self.block * self.parked * 16


def cluster_tile(problem: RowProblem) -> ClusterTile | None:
    """Return the tile for a row, or None if it does not fit in 16 blocks.

    Measured on an H200, 1024x131072: with more blocks per multiprocessor, reads of one row overlap writes of another
    better. So blocks are small, and a thread has at most 16 float4 while the cluster can grow (0.87 of copy bandwidth;
    0.83 with two blocks of 1,024 threads per row).
    """
    block, pieces = 256, ceil_div(problem.cols, 4)
    for cluster, most in ((2, 16), (4, 16), (8, 16), (16, CLUSTER_HELD + CLUSTER_PARKED)):
        each = ceil_div(pieces, cluster * block)
        if each <= most:
            held = min(each, CLUSTER_HELD)
            return ClusterTile(block, cluster, held, each - held)
    return None


@variant("softmax/11_split_row.cu", since="sm_90", problems="vectors")
def split_row(problem: RowProblem) -> Launch | tuple[Launch, ...] | str:
    """the blocks of a cluster share a long row"""
    if problem.rows * problem.cols == 0:
        return ()
    if not problem.vectors:
        return _VECTORS
    if problem.rows * 16 > MAX_GRID_X:
        return _GRID.format(rows=problem.rows)
    tile = cluster_tile(problem)
    if tile is None:
        return f"a row of {problem.cols} floats does not fit in the registers and shared memory of 16 blocks"
    grid = problem.rows * tile.cluster
    return Launch(grid, tile.block, shared=tile.shared, entry=tile.entry, cluster=tile.cluster)


def chunks(problem: RowProblem) -> int:
    """Return the blocks per row in 12_two_launches.cu: enough to fill the device twice, with at least 4,096 floats
    each."""
    wanted = ceil_div(4 * problem.sms, max(problem.rows, 1))
    most = max(1, problem.cols // 4096)
    return min(1 << (min(wanted, most).bit_length() - 1), 1024)


@variant("softmax/12_two_launches.cu")
def two_launches(problem: RowProblem) -> tuple[Launch, ...] | str:
    """many blocks share a row of any length, read twice"""
    p, count = problem, chunks(problem)
    grid = p.rows * count
    if grid > MAX_GRID_X:
        return _GRID.format(rows=p.rows)
    sums = (IN[0], SCRATCH, *p.x_strides, p.rows, p.cols)
    return (
        Launch(grid, 512, sums, entry=f"chunk_sums<{count}>", scratch=8 * grid),
        Launch(grid, 512, _scale_arguments(p), entry=f"chunk_scale<{count}>"),
    )


def _scale_arguments(problem: RowProblem) -> tuple[Any, ...]:
    return (IN[0], OUT, SCRATCH, *problem.x_strides, *problem.y_strides, problem.rows, problem.cols)


def _on_chip_warps(problem: RowProblem) -> int:
    """Return the warps of a block per row."""
    return 32 >> max(problem.rows - 1, 0).bit_length()


def _on_chip_blocks(problem: RowProblem) -> int:
    return max(1, min(problem.sms, ceil_div(problem.cols, 4 * 32 * _on_chip_warps(problem))))


@variant("softmax/13_on_chip.cu", since="sm_90", problems="few rows")
def on_chip(problem: RowProblem) -> Launch | tuple[Launch, ...] | str:
    """rows held on chip by all blocks, one grid-wide barrier"""
    if problem.rows * problem.cols == 0:
        return ()
    if not problem.vectors:
        return _VECTORS
    if problem.rows > 32:
        return f"at most 32 rows supported, got {problem.rows}"
    warps, blocks = _on_chip_warps(problem), _on_chip_blocks(problem)
    each = max(1, ceil_div(ceil_div(problem.cols // 4, blocks), 32 * warps))  # pieces per thread
    held = min(each, ON_CHIP_HELD)
    parked = min(each - held, ON_CHIP_PARKED)
    entry = f"on_chip<{warps}, {held}, {parked}>"
    sums = problem.rows * blocks * warps * 8
    return Launch(blocks, 1024, _scale_arguments(problem), 1024 * parked * 16, entry, sums, cooperative=True)


LADDER = (
    thread_per_row, thread_per_row_online, serial_block, block_serial_reduce, tree_reduce, online_fused, vec4,
    warp_shuffle, registers, span, split_row, two_launches, on_chip, blas_read_back, blas_on_device,
)  # fmt: skip
