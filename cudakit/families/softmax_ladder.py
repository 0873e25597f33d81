"""The ladder of the family softmax: how each rung is launched, and the tiles of those that hold a row on chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudakit.families import softmax_blas
from cudakit.families.softmax_host import rounding_in_order
from cudakit.families.softmax_problem import RowProblem
from cudakit.families.variant import MAX_GRID_X, Config, Variant, ceil_div, cpp_bool

# Dynamic shared memory a block of any supported chip from sm_80 on may opt in to (sm_86 and sm_89 have the least).
PARKED_LIMIT = 96 * 1024
# A warp of 10_span.cu holds a row in registers: 32 floats a lane.
SPAN_COLS = 1024
# Pieces of 16 bytes that a thread of 11_split_row.cu holds in registers, and in shared memory at most (54 x 256 x 16
# bytes of the 227 KiB that a block of sm_90 may have).
CLUSTER_HELD, CLUSTER_PARKED = 8, 54
# The same for the 1,024 threads of 13_on_chip.cu, which has fewer registers to spare.
ON_CHIP_HELD, ON_CHIP_PARKED = 6, 14


def _block_a_row(entry: str, block: int, shared_per_thread: int = 0) -> Any:
    def configure(problem: RowProblem) -> Config:
        return Config(entry, problem.rows, block, block * shared_per_thread)

    return configure


def _thread_a_row(entry: str) -> Any:
    def configure(problem: RowProblem) -> Config:
        return Config(entry, ceil_div(problem.rows, 256), 256)

    return configure


def _wide_block(entry: str, shared_per_thread: int) -> Any:
    def configure(problem: RowProblem) -> Config:
        block = 1024 if problem.cols > 14080 else 512
        return Config(entry, problem.rows, block, block * shared_per_thread)

    return configure


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
    """The tile for a problem, or None where a row does not fit a block's registers and shared memory.

    Measured on an H200: two pieces a thread while a row fits a warp or a small block, four to 2,048 pieces, eight
    beyond. More threads of fewer pieces lose to the reductions, fewer threads of more to registers.
    """
    # a row that a warp holds is as well read float by float; a shifted row takes three floats more
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


def _registers(problem: RowProblem) -> Config:
    tile = register_tile(problem)
    if tile is None:  # supports() said so before
        raise ValueError(f"{problem} has no register tile")
    return Config(tile.entry, ceil_div(problem.rows, tile.block // tile.lanes), tile.block, tile.shared)


def _fits_registers(problem: RowProblem) -> bool | str:
    if register_tile(problem) is None:
        return f"a row of {problem.cols} floats does not fit a block's registers and {PARKED_LIMIT} shared bytes"
    return True


def _span(problem: RowProblem) -> Config:
    items = ceil_div(problem.cols, 32)
    block = 256 if items <= 4 else 128
    rows = block // 32 * (2 if items <= 4 else 1)
    return Config(f"span<{block}, {rows}, {items}>", ceil_div(problem.rows, rows), block, rows * problem.cols * 4)


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
    """The tile for a row, or None where 16 blocks do not hold it.

    Measured on an H200, 1024x131072: the more blocks a multiprocessor has, the better reads of one row overlap writes
    of another, so blocks are small and a thread has no more than 16 float4 where the cluster can grow instead (0.87 of
    a copy; 0.83 with two blocks of 1,024 threads a row).
    """
    block, pieces = 256, ceil_div(problem.cols, 4)
    for cluster, most in ((2, 16), (4, 16), (8, 16), (16, CLUSTER_HELD + CLUSTER_PARKED)):
        each = ceil_div(pieces, cluster * block)
        if each <= most:
            held = min(each, CLUSTER_HELD)
            return ClusterTile(block, cluster, held, each - held)
    return None


def _split_row(problem: RowProblem) -> Config:
    tile = cluster_tile(problem)
    if tile is None:  # supports() said so before
        raise ValueError(f"{problem} has no cluster tile")
    return Config(tile.entry, problem.rows * tile.cluster, tile.block, tile.shared, tile.cluster)


def _fits_cluster(problem: RowProblem) -> bool | str:
    if problem.rows * problem.cols == 0:
        return True
    if not problem.vectors:
        return "it takes rows of neighbouring floats on 16-byte boundaries, a multiple of 4 in length"
    if problem.rows * 16 > MAX_GRID_X:
        return f"{problem.rows} rows of several blocks each are more than a grid has"
    if cluster_tile(problem) is None:
        return f"a row of {problem.cols} floats does not fit the registers and shared memory of 16 blocks"
    return True


def _on_chip_warps(problem: RowProblem) -> int:
    """Warps of a block for each row."""
    return 32 >> max(problem.rows - 1, 0).bit_length()


def _on_chip_blocks(problem: RowProblem) -> int:
    return max(1, min(problem.sms, ceil_div(problem.cols, 4 * 32 * _on_chip_warps(problem))))


def _on_chip(problem: RowProblem) -> Config:
    warps, blocks = _on_chip_warps(problem), _on_chip_blocks(problem)
    each = max(1, ceil_div(ceil_div(problem.cols // 4, blocks), 32 * warps))  # pieces a thread
    held = min(each, ON_CHIP_HELD)
    parked = min(each - held, ON_CHIP_PARKED)
    entry = f"on_chip<{warps}, {held}, {parked}>"
    return Config(entry, blocks, 1024, 1024 * parked * 16, arguments=_scale_arguments, cooperative=True)


def _few_rows(problem: RowProblem) -> bool | str:
    if problem.rows * problem.cols == 0:
        return True
    if not problem.vectors:
        return "it takes rows of neighbouring floats on 16-byte boundaries, a multiple of 4 in length"
    return problem.rows <= 32 or f"a block has warps for 32 rows, the problem has {problem.rows}"


def chunks(problem: RowProblem) -> int:
    """Blocks a row in 12_two_launches.cu: enough to fill the chip twice, of no fewer than 4,096 floats each."""
    wanted = ceil_div(4 * problem.sms, max(problem.rows, 1))
    most = max(1, problem.cols // 4096)
    return min(1 << (min(wanted, most).bit_length() - 1), 1024)


def _two_launches(problem: RowProblem) -> tuple[Config, ...]:
    count = chunks(problem)
    grid = problem.rows * count
    return (
        Config(f"chunk_sums<{count}>", grid, 512, arguments=_sums_arguments),
        Config(f"chunk_scale<{count}>", grid, 512, arguments=_scale_arguments),
    )


def _fits_grid(problem: RowProblem) -> bool | str:
    if problem.rows * chunks(problem) > MAX_GRID_X:
        return f"{problem.rows} rows of several blocks each are more than a grid has"
    return True


def _sums_arguments(problem: RowProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], scratch, *problem.x_strides, problem.rows, problem.cols)


def _scale_arguments(problem: RowProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], output, scratch, *problem.x_strides, *problem.y_strides, problem.rows, problem.cols)


def _is_span(problem: RowProblem) -> bool | str:
    if problem.cols > SPAN_COLS:
        return f"a row of {problem.cols} floats is over the {SPAN_COLS} that a warp holds"
    dense = (problem.cols, 1)
    rows_dense = problem.x_strides == problem.y_strides == dense or (
        problem.rows == 1 and problem.x_strides[1] == problem.y_strides[1] == 1
    )
    if not rows_dense or problem.x_alignment != 16 or problem.y_alignment != 16:
        return "it takes contiguous arrays that start on 16 bytes"
    return True


LADDER: tuple[Variant[RowProblem], ...] = (
    Variant(
        1,
        "thread_per_row",
        "one thread a row, three passes",
        "softmax/01_thread_per_row.cu",
        _thread_a_row("thread_per_row"),
        rounding=rounding_in_order,
    ),
    Variant(
        2,
        "thread_per_row_online",
        "maximum and sum in one pass: two reads, not three",
        "softmax/02_thread_per_row_online.cu",
        _thread_a_row("thread_per_row_online"),
        rounding=rounding_in_order,
    ),
    Variant(
        3,
        "serial_block",
        "one block of one thread a row",
        "softmax/03_serial_block.cu",
        _block_a_row("serial_block", 1),
        rounding=rounding_in_order,
    ),
    Variant(
        4,
        "block_serial_reduce",
        "256 threads a row, thread 0 combines",
        "softmax/04_block_serial_reduce.cu",
        _block_a_row("block_serial_reduce<256>", 256),
    ),
    Variant(
        5,
        "tree_reduce",
        "a tree in shared memory combines",
        "softmax/05_tree_reduce.cu",
        _block_a_row("tree_reduce", 256, 4),
    ),
    Variant(
        6,
        "online_fused",
        "online update in each thread, one tree of pairs",
        "softmax/06_online_fused.cu",
        _block_a_row("online_fused", 256, 8),
    ),
    Variant(
        7,
        "vec4",
        "16-byte loads and stores, any alignment",
        "softmax/07_vec4.cu",
        _wide_block("vec4", 4),
    ),
    Variant(
        8,
        "warp_shuffle",
        "reductions by warp shuffles",
        "softmax/08_warp_shuffle.cu",
        _wide_block("warp_shuffle", 0),
    ),
    Variant(
        9,
        "registers",
        "each element read once, kept in registers and shared memory",
        "softmax/09_registers.cu",
        _registers,
        _fits_registers,
        since="sm_80",
    ),
    Variant(
        10,
        "span",
        "unaligned short rows moved as one aligned span",
        "softmax/10_span.cu",
        _span,
        _is_span,
        problems="span",
    ),
    Variant(
        11,
        "split_row",
        "the blocks of a cluster share a long row",
        "softmax/11_split_row.cu",
        _split_row,
        _fits_cluster,
        since="sm_90",
        problems="vectors",
    ),
    Variant(
        12,
        "two_launches",
        "many blocks share a row of any length, read twice",
        "softmax/12_two_launches.cu",
        _two_launches,
        _fits_grid,
        scratch=lambda problem: problem.rows * chunks(problem) * 8,
    ),
    Variant(
        13,
        "on_chip",
        "the whole chip holds the rows and meets once",
        "softmax/13_on_chip.cu",
        _on_chip,
        _few_rows,
        since="sm_90",
        scratch=lambda problem: problem.rows * _on_chip_blocks(problem) * _on_chip_warps(problem) * 8,
        problems="few rows",
    ),
    Variant(
        14,
        "blas_read_back",
        "a BLAS library's amax and asum, every maximum read back to the host",
        softmax_blas.SOURCE,
        lambda problem: (),
        softmax_blas.supports,
        run=softmax_blas.read_back,
        waits=True,
        problems="forwards",
    ),
    Variant(
        15,
        "blas_on_device",
        "the same calls, their results left on the device",
        softmax_blas.SOURCE,
        lambda problem: (),
        softmax_blas.supports,
        run=softmax_blas.on_device,
        problems="forwards",
    ),
)
