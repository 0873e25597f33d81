"""Row softmax: y[r, c] = exp(x[r, c] - max_r) / sum_c exp(x[r, c] - max_r), float32.

`softmax(x)` picks the best rung; `FAMILY` is the ladder. Rows that hold NaN or +inf, and rows of -inf alone, come out
as NaN throughout, as the definition has it in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import front, softmax_blas
from cudakit.families.axes import same_places
from cudakit.families.variant import MAX_GRID_X, Config, Family, Variant, alignment, ceil_div
from cudakit.memory import array as memory
from cudakit.memory import layout


@dataclass(frozen=True)
class RowProblem:
    """rows x cols; strides in elements; alignment in bytes (at most 16) of both arrays' first element, and how many
    floats past y's place between two 16-byte boundaries x starts; sms: multiprocessors of the device; blas: whether a
    BLAS library can be called on it."""

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
        """Whether each row of both arrays is one run of floats that starts at the same distance from a 16-byte
        boundary in both."""
        together = self.rows == 1 or (self.x_strides[0] - self.y_strides[0]) % 4 == 0
        return self.x_strides[1] == self.y_strides[1] == 1 and together and self.apart == 0


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
        shifted = "true" if self.shifted else "false"
        return f"registers<{self.block}, {self.lanes}, {self.held}, {self.parked}, {self.vec}, {shifted}>"

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
        found = _register_tile(ceil_div(problem.cols + 3, 4), 4, True)
        if found is not None:
            return found
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


VARIANTS: tuple[Variant[RowProblem], ...] = (
    Variant(
        1,
        "thread_per_row",
        "one thread a row, three passes",
        "softmax/01_thread_per_row.cu",
        _thread_a_row("thread_per_row"),
    ),
    Variant(
        2,
        "thread_per_row_online",
        "maximum and sum in one pass: two reads, not three",
        "softmax/02_thread_per_row_online.cu",
        _thread_a_row("thread_per_row_online"),
    ),
    Variant(
        3,
        "serial_block",
        "one block of one thread a row",
        "softmax/03_serial_block.cu",
        _block_a_row("serial_block", 1),
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
    ),
    Variant(
        11,
        "split_row",
        "the blocks of a cluster share a long row",
        "softmax/11_split_row.cu",
        _split_row,
        _fits_cluster,
        since="sm_90",
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
    ),
    Variant(
        15,
        "blas_on_device",
        "the same calls, their results left on the device",
        softmax_blas.SOURCE,
        lambda problem: (),
        softmax_blas.supports,
        run=softmax_blas.on_device,
    ),
)


def _as_rows(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) not in (1, 2):
        raise ValueError(f"softmax takes 1-D (one row) or 2-D arrays, got shape {tuple(shape)}; reshape it first")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def _row_strides(array: Any) -> tuple[int, int]:
    strides = array.strides_elements
    return (0, strides[0]) if len(strides) == 1 else (strides[0], strides[1])


def problem(inputs: Sequence[Any], output: Any) -> RowProblem:
    """The problem of a (rows, cols) or (cols,) input and its output; ValueError says what it refuses."""
    (x,) = inputs
    if x.dtype != np.float32 or output.dtype != np.float32:
        raise ValueError(f"softmax takes float32 in and out, got {x.dtype} in and {output.dtype} out")
    if tuple(x.shape) != tuple(output.shape):
        raise ValueError(f"softmax writes an output of the input's shape {tuple(x.shape)}, got {tuple(output.shape)}")
    rows, cols = _as_rows(x.shape)
    x_strides, y_strides = _row_strides(x), _row_strides(output)
    if rows > MAX_GRID_X:
        raise ValueError(f"softmax takes at most {MAX_GRID_X} rows, got {rows}")
    if layout.overlaps_itself(output.shape, output.strides, output.itemsize):
        raise ValueError(
            f"softmax output of {rows}x{cols} with strides {y_strides} (elements) may name one place twice, and blocks "
            "would race for it: give an output whose elements are apart"
        )
    if memory.touch(x, output) and not same_places(x, output):
        raise ValueError(
            "softmax input and output overlap or lie interleaved without being the same array: give the same array "
            "with the same strides to work in place, or a separate output"
        )
    apart = (x.pointer - output.pointer) // 4 % 4
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    library = output.context.kind == "sim" or softmax_blas.installed()
    return RowProblem(rows, cols, x_strides, y_strides, alignment(x), alignment(output), apart, sms, library)


def _arguments(problem: RowProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (inputs[0], output, *problem.x_strides, *problem.y_strides, problem.rows, problem.cols)


def _make_inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return (rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False) * 3,)


def reference(inputs: Sequence[np.ndarray]) -> Any:
    """Softmax along the last axis in float64."""
    return baseline([np.asarray(inputs[0], dtype=np.float64)])


def baseline(inputs: Sequence[np.ndarray]) -> Any:
    """Softmax along the last axis as numpy has it, in the input's own precision."""
    return _softmax(np.asarray(inputs[0]), lambda e: e.sum(axis=-1, keepdims=True))


def plain(inputs: Sequence[np.ndarray]) -> Any:
    """The textbook loop in the input's own precision, its sum taken from left to right: tolerances derive from its
    error. (numpy's own sum adds in pairs and is far closer than one thread that adds 8,192 numbers in turn.)"""
    return _softmax(np.asarray(inputs[0]), lambda e: np.add.accumulate(e, axis=-1)[..., -1:])


def _softmax(x: np.ndarray, sum_of: Callable[[Any], Any]) -> Any:
    if not x.size:
        return x.copy()
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        # fmax passes over NaN as the kernels do; the NaN comes back in through the sum.
        exponentials = np.exp(x - np.fmax.reduce(x, axis=-1, keepdims=True))
        return exponentials / sum_of(exponentials)


def choose(problem: RowProblem, arch: str) -> str:
    """The rung that "auto" means: the fastest on an H200 among those that support the problem."""
    few = problem.rows < problem.sms
    order = ("registers", "split_row", "on_chip") if problem.vectors else ("span", "registers")
    supported = (name for name in order if FAMILY.variant(name).refusal(problem, arch) is None)
    return next(supported, "two_launches" if few else "warp_shuffle")


FAMILY: Family[RowProblem] = Family(
    name="softmax",
    variants=VARIANTS,
    make_inputs=_make_inputs,
    output_like=lambda inputs: (tuple(inputs[0].shape), np.dtype(np.float32)),
    reference=reference,
    plain=plain,
    baseline=baseline,
    problem=problem,
    arguments=_arguments,
    traffic=lambda problem: 8 * problem.rows * problem.cols,
    flops=lambda problem: 0,
    choose=choose,
    empty=lambda problem: problem.rows == 0 or problem.cols == 0,
    shapes={
        "gpu": ((8192, 8192),),
        "sim": ((32, 512), (16, 1001)),
        "sim sweep": ((64, 64), (32, 127), (32, 256), (16, 1000), (8, 2048), (4, 4099)),
        "sweep": (
            (512, 512),
            (1024, 1024),
            (2048, 2048),
            (8192, 8192),
            (4096, 12672),
            (4096, 16384),
            (4096, 32768),
            (32768, 1000),
            (65536, 256),
            (131072, 127),
            (1024, 131072),
            (16, 1048576),
        ),
    },
)


def softmax(x: Any, out: Any = None, variant: str = "auto", stream: Any = None) -> Any:
    """Softmax along the last axis of a 1-D or 2-D float32 array: cudakit's, torch's or CuPy's, and so is the result.

    x: (rows, cols) or (cols,), any strides. out: where to write, any strides that do not overlap themselves, or x
    itself; a new array unless given. variant: a rung by name, or "auto". stream: the device's default stream, or
    torch's or CuPy's current one, unless given. Returns without waiting. Raises ValueError for arrays it does not take,
    UnsupportedVariant for a rung that does not take them.
    """
    return front.apply(FAMILY, (x,), out, variant, stream)
