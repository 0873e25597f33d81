"""Grouped products, as in mixture-of-experts layers: groups of rows, each multiplied by its own matrix, in one launch.
float16 or bfloat16 operands on tensor cores, fp32 sums, rounded once to the operands' dtype or not at all (float32
out).

The sizes of the groups are in device memory and are never read by the host. Two forms:

- contiguous: A is (rows, k), B is (groups, k, n); group g is rows offsets[g] to offsets[g + 1] - 1 of A and of the
  output (rows, n);
- masked: A is (groups, most, k), the output (groups, most, n); group g is its first rows[g] rows.

`gemm_grouped(a, b, offsets=...)` picks the fastest variant; `FAMILY` is the ladder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.families import gemm_epilogue, gemm_half, gemm_hopper_layout, gemm_packed
from cudakit.families.gemm_half import DTYPES, result_dtype
from cudakit.families.gemm_hopper import TILE_TABLE, us
from cudakit.families.gemm_hopper_layout import Layout
from cudakit.families.gemm_hopper_tiles import GROUP, Tile
from cudakit.families.gemm_problem import (
    ACTIVATIONS,
    GemmProblem,
    Operand,
    bias_constant,
    expect_activation,
    operand_of,
)
from cudakit.family import (
    CPP,
    IN,
    OUT,
    Family,
    Launch,
    Scalar,
    alignment,
    apply,
    ceil_div,
    checks,
    cpp_bool,
    variant,
)
from cudakit.memory import array as memory

GROUPED = "gemm_grouped/02_tiles.cu"
MOST_GROUPS = 1024
_ITEM = 2  # bytes per element of A and B
_LISTS = 8  # bytes of shared memory per group, and for one group more (Groups in groups.cuh)
_MOST = 2**31 - 1
_WHAT = "a grouped product"


@dataclass(frozen=True)
class GroupedProblem:
    """`product`: a batch of products, one per group; its m is the number of all rows of A, or in the masked form of a
    group's rows. In the contiguous form all batches share A and the output. masked: see above. step: elements between
    two offsets or numbers of rows. alpha: the factor on the products."""

    product: GemmProblem
    masked: bool
    step: int
    alpha: float

    def __str__(self) -> str:
        p = self.product
        rows = f"up to {p.m} rows each" if self.masked else f"{p.m} rows in all"
        bias, activation = ("bias" if p.bias else ""), p.activation
        epilogue = f", with {', '.join(filter(None, (bias, activation)))}" if bias or activation else ""
        return f"{p.dtype} product of {p.batch} groups, {rows}, n {p.n}, k {p.k}{epilogue}"

    @property
    def groups(self) -> int:
        return self.product.batch

    def most_down(self, bm: int) -> int:
        """Return the most tiles of bm rows per column of tiles that groups of any sizes have."""
        m = self.product.m
        return self.groups * ceil_div(m, bm) if self.masked else ceil_div(m, bm) + min(self.groups, m)


# Layout of the operands -----------------------------------------------------------------------------------------------


def _packed(product: GemmProblem) -> tuple[GemmProblem, gemm_packed.Packing]:
    """Return the product of operands that consist of 16-byte pieces, and the copies to scratch memory that it needs."""
    packing = gemm_packed.packing_of(product, along_k=True, keep=True)
    return packing.applied(product), packing


def layout_of(product: GemmProblem) -> Layout | str:
    """Return the layout of the arrays for tensor copies, or the reason why it is unsupported. In the contiguous form
    the output is one matrix. It is stored along its rows, by lanes if these are not contiguous."""
    layout = gemm_hopper_layout.layout_of(product)
    if isinstance(layout, str):
        return layout
    if layout.gathers or not layout.a.along_k:
        return "tensor copies need 16-byte aligned rows of A and B"
    of_output = gemm_hopper_layout.layout_of(product if product.d.batch else replace(product, batch=1))
    assert isinstance(of_output, Layout)
    tensor = of_output.tensor and not of_output.by_columns
    return replace(layout, by_columns=False, tensor=tensor, whole=tensor and of_output.whole)


def _sizes(problem: GroupedProblem) -> tuple[Any, ...]:
    """Return the arguments of the groups' sizes."""
    return IN[2], problem.step, problem.groups, problem.masked


def _output(product: GemmProblem) -> tuple[Any, ...]:
    return OUT, product.d.row, product.d.col, product.d.batch, product.m, product.n, product.k


def _bias(product: GemmProblem) -> tuple[Any, ...]:
    """Return the arguments of the bias. An array that is not read replaces a missing one."""
    bias = product.bias
    return (bias.slot, bias.col, bias.batch) if bias else (OUT, 0, 0)


def _types(product: GemmProblem) -> tuple[str, str, str]:
    """Return the template arguments for the types of the operands, the output and the bias."""
    return CPP[product.dtype], CPP[product.result], CPP[product.bias_dtype or product.result]


def _epilogue(product: GemmProblem) -> tuple[str, str]:
    return ACTIVATIONS[product.activation], bias_constant(product)


def _with_packing(launch: Launch, product: GemmProblem, packing: gemm_packed.Packing) -> tuple[Launch, ...]:
    """Return the launch of the product after that of the copies it needs."""
    return (*gemm_packed.pack_launches(packing, product), replace(launch, scratch=_ITEM * packing.end))


# Launches -------------------------------------------------------------------------------------------------------------


@variant("gemm_grouped/01_mma.cu", since="sm_80")
def grouped_mma(problem: GroupedProblem) -> tuple[Launch, ...] | str:
    """mma.sync on 128x128 tiles of all groups; unaligned operands copied to aligned scratch memory"""
    tile = gemm_half.ONE_STAGE
    p, packing = _packed(problem.product)
    tiles = problem.most_down(tile.bm) * ceil_div(p.n, tile.bn)
    if tiles > _MOST or p.k > _MOST:
        return f"at most {_MOST} tiles of {tile.bm}x{tile.bn}, and k up to that number, supported"
    of_b = p.b.turned
    copied = any(each.index == 1 for each in packing.packed)
    along_k = of_b.col == 1 if copied else of_b.pieces(of_b.col, of_b.row, p.k, p.batch, _ITEM)
    shape = map(str, (tile.bm, tile.bn, tile.wm, tile.wn))
    d, item = p.d, memory.as_dtype(p.result).itemsize
    wide = p.n % 8 == 0 and d.pieces(d.col, d.row, p.n, p.batch, item)
    of_a = (p.a.slot, p.a.row, p.a.batch)
    args = (*of_a, p.b.slot, p.b.row, p.b.col, p.b.batch, *_sizes(problem), *_output(p), problem.alpha, *_bias(p))
    launch = Launch(
        min(tiles, p.sms),
        tile.threads,
        (*args, int(wide)),
        2 * tile.shared + _LISTS * (problem.groups + 1),
        f"grouped_mma<{', '.join((*_types(p), *shape, cpp_bool(along_k), *_epilogue(p)))}>",
    )
    return _with_packing(launch, problem.product, packing)


class GroupedTile(Tile):
    """A tile of 02_tiles.cu. Tail tiles are not computed last, but after the whole ones of their group; a tall one
    takes as long as a whole one."""

    def rounds(self, p: GemmProblem) -> float:
        return ceil_div(self.count(p), self.blocks(p))

    def most(self, problem: GroupedProblem) -> int:
        """Return the most tiles that groups of any sizes have."""
        n, down = problem.product.n, problem.most_down(self.bm)
        if not self.tail:
            return down * ceil_div(n, self.bn)
        return down * (n // self.bn) + problem.most_down(self.tall * self.bm)


# Two warpgroups compute a tile's columns in sixteens. Blocks of a cluster would have rows of different groups.
TILES = tuple(GroupedTile(**vars(tile)) for tile in TILE_TABLE if tile.shares == 1 and tile.bn % 16 == 0)
_MOST_WITH_BIAS = 192  # columns of tiles in turns with a bias: more need too many registers
_SIZES = 8  # sizes of a group, for the mean time


def _tiles_of(p: GemmProblem, layout: Layout) -> Iterator[GroupedTile]:
    """Yield the tiles for a product per group, whole ones and with tail tiles."""
    for tile in TILES:
        if tile.turns and tile.bn > _MOST_WITH_BIAS and p.bias:
            continue
        tailed = tile.with_tail(p, layout)
        for each in (tile, tailed) if tailed.tail else (tile,):
            if each.fits(p, layout) and each.shared(layout) + _LISTS * (p.batch + 1) <= p.shared:
                yield each


@functools.lru_cache(maxsize=256)
def best_tile(p: GemmProblem, masked: bool, layout: Layout) -> GroupedTile | None:
    """Return the fastest tile by the model of times of one product, or None if none fits in shared memory. The sizes of
    the groups are unknown: the mean time for several sizes counts, from nearly 0 to twice the mean size. In the masked
    form groups may have up to p.m rows."""
    most = p.m if masked else 2 * p.m // p.batch
    rows = (max(1, most * (2 * i + 1) // (2 * _SIZES)) for i in range(_SIZES))
    sizes = [replace(p, m=m, n=max(1, p.n)) for m in rows]
    tiles = _tiles_of(sizes[0], layout)
    return min(tiles, key=lambda tile: sum(us(tile, each, layout) for each in sizes), default=None)


def tile_launch(problem: GroupedProblem, p: GemmProblem, layout: Layout, tile: GroupedTile) -> Launch | str:
    """Return the launch of a tile for a problem, or the reason why it is unsupported. p: its product, with operands
    that tensor copies can read."""
    tiles, most = tile.most(problem), _MOST - 2 * p.sms  # a warpgroup's next tile is an int
    if tiles > most:
        return f"at most {most} tiles of {tile.bm}x{tile.bn} supported, these groups may have {tiles}"
    of_output = p if p.d.batch else replace(p, batch=1)
    maps = tile.maps(p, layout)
    maps.append(gemm_hopper_layout.output_map(of_output, layout, tile.bn) if layout.tensor else None)
    each = (int(operand.batch != 0) for operand in (p.a, p.b, p.d))
    flags = map(cpp_bool, (layout.b.along_k, layout.tensor))
    return Launch(
        min(tiles, p.sms),
        (tile.groups + 1) * GROUP,
        (*gemm_hopper_layout.filled(maps), *_sizes(problem), *each, *_output(p), problem.alpha, *_bias(p)),
        tile.shared(layout) + _LISTS * (problem.groups + 1),
        f"grouped<{', '.join((*_types(p), tile.constant, *flags, *_epilogue(p)))}>",
        programmatic=True,
        source=GROUPED,
    )


@variant(GROUPED, since="sm_90a")
def grouped(problem: GroupedProblem) -> tuple[Launch, ...] | str:
    """wgmma: tiles of all groups in turns, stores during products; operands as for grouped_mma"""
    p, packing = problem.product, gemm_packed.Packing(problem.product.a, problem.product.b, (), 0)
    layout = layout_of(p)
    if isinstance(layout, str) and p.k:
        p, packing = _packed(p)
        layout = layout_of(p)
    if isinstance(layout, str):
        return layout
    tile = best_tile(p, problem.masked, layout)
    if tile is None:
        return f"no tile and the lists of {problem.groups} groups fit in {p.shared} bytes of shared memory"
    launch = tile_launch(problem, p, layout, tile)
    return launch if isinstance(launch, str) else _with_packing(launch, problem.product, packing)


# The problem ----------------------------------------------------------------------------------------------------------


def problem(
    inputs: Sequence[Any],
    output: Any,
    alpha: float = 1.0,
    activation: str = "",
    dtype: Any = None,
    masked: bool = False,
) -> GroupedProblem:
    """Return the problem of A, B, the offsets or the numbers of rows, and an optional bias. Raise ValueError for
    unsupported arrays."""
    a, b, sizes, *rest = inputs
    kind = a.dtype
    if kind.name not in DTYPES or b.dtype != kind:
        raise ValueError(f"{_WHAT} takes a and b of one dtype, {' or '.join(DTYPES)}; got a {kind} and b {b.dtype}")
    gemm_half.expect_output_dtype(_WHAT, kind, output, dtype)
    shape = output_shape(a.shape, b.shape)
    if tuple(output.shape) != shape:
        raise ValueError(f"a {tuple(a.shape)} times b {tuple(b.shape)} has shape {shape}, out has {output.shape}")
    groups, k, n = b.shape
    is_masked = len(a.shape) == 3
    name, count = ("rows", groups) if is_masked else ("offsets", groups + 1)
    if sizes.dtype != np.int32 or tuple(sizes.shape) != (count,):
        raise ValueError(
            f"{_WHAT} of {groups} groups takes {name} of int32 and shape ({count},), got {sizes.dtype} "
            f"{tuple(sizes.shape)}: convert them first"
        )
    if not 1 <= groups <= MOST_GROUPS:
        raise ValueError(f"{_WHAT} takes 1 to {MOST_GROUPS} groups, got {groups}: split them into several calls")
    if max(*a.shape, *b.shape) > _MOST:
        raise ValueError(f"{_WHAT} takes extents up to {_MOST}, got a {tuple(a.shape)} and b {tuple(b.shape)}")
    if k > 1 and a.size and a.strides_elements[-1] != 1:
        raise ValueError(
            f"{_WHAT} takes an a whose last axis is contiguous, got a stride of {a.strides_elements[-1]} elements "
            "there: copy it first"
        )
    expect_activation(activation)
    bias = rest[0] if rest else None
    if bias is not None and (bias.dtype not in (kind, np.float32) or tuple(bias.shape) != (groups, n)):
        raise ValueError(
            f"{_WHAT} of {kind} takes a bias of {kind} or float32 and shape ({groups}, {n}), a number per group and "
            f"column; got {bias.dtype} {tuple(bias.shape)}"
        )
    also = (("bias", bias),) if bias is not None else ()
    checks.expect_output(_WHAT, output, separate=(("a", a), ("b", b), (name, sizes), *also))
    context = output.context
    m = a.shape[-2]
    of_a, of_b, of_d = operand_of(a, IN[0]), operand_of(b, IN[1]), operand_of(output, OUT)
    product = GemmProblem(
        m, n, k, groups, replace(of_a, col=1), of_b, of_d, of_d, 1.0, 0.0, kind.name, output.dtype.name,
        sms=int(context.attribute("MULTIPROCESSOR_COUNT")),
        shared=int(context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")),
        bias=None if bias is None else _bias_operand(bias),
        bias_dtype="" if bias is None else bias.dtype.name,
        activation=activation,
    )  # fmt: skip
    return GroupedProblem(product, is_masked, int(sizes.strides_elements[0]), float(alpha))


def output_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the output's shape. Raise ValueError if the operands' shapes do not match."""
    if len(a) not in (2, 3) or len(b) != 3 or a[-1] != b[1] or (len(a) == 3 and a[0] != b[0]):
        raise ValueError(
            f"{_WHAT} takes a (rows, k) or (groups, most rows, k) and b (groups, k, n), got a {tuple(a)} and b "
            f"{tuple(b)}"
        )
    return (*a[:-1], b[2])


def _bias_operand(bias: Any) -> Operand:
    batch, col = bias.strides_elements
    return Operand(0, col, batch, alignment(bias), IN[3])


# On the host ----------------------------------------------------------------------------------------------------------


def make_inputs(
    shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator, masked: bool = False, **options: Any
) -> tuple[np.ndarray, ...]:
    """Return normal numbers for A and B of a shape (groups, rows in all, n, k), and the offsets of groups whose sizes
    are drawn: each row is in a random group, and popular groups have several times as many rows as others. masked:
    groups of equal sizes, in the masked form. Raise ValueError for other shapes."""
    if len(shape) != 4 or not shape[0]:
        raise ValueError("the shape of a grouped product is GROUPSxROWSxNxK, with at least one group")
    groups, rows, n, k = shape
    of_a = (groups, rows // groups, k) if masked else (rows, k)
    a, b = (rng.standard_normal(each, dtype=np.float32).astype(dtype, copy=False) for each in (of_a, (groups, k, n)))
    if masked:
        return a, b, np.full(groups, rows // groups, np.int32)
    sizes = rng.multinomial(rows, rng.dirichlet(np.full(groups, 4.0)))
    return a, b, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def pieces(a: Any, sizes: Any) -> Iterator[tuple[int, Any]]:
    """Yield each group and the index of its rows, as the kernels read the sizes: out of bounds or decreasing ones are
    the nearest that are not."""
    if a.ndim == 3:
        yield from ((group, (group, slice(0, int(size)))) for group, size in enumerate(np.clip(sizes, 0, a.shape[1])))
        return
    offsets = np.maximum.accumulate(np.clip(sizes, 0, len(a)))
    yield from ((group, slice(int(offsets[group]), int(offsets[group + 1]))) for group in range(len(offsets) - 1))


def reference(
    a: Any,
    b: Any,
    sizes: Any,
    bias: Any = None,
    *,
    alpha: float = 1.0,
    activation: str = "",
    dtype: Any = None,
    masked: bool = False,
) -> Any:
    """Return activation(alpha * A @ B + bias) per group. The other rows are NaN: they keep the value that the output
    had, which is NaN in tests and benches."""
    out = np.full(output_shape(a.shape, b.shape), np.nan, np.result_type(a, b))
    for group, place in pieces(a, sizes):
        product = a.dtype.type(alpha) * np.matmul(a[place], b[group])
        out[place] = gemm_epilogue.applied(product, None if bias is None else bias[group], activation=activation)
    return out


def rounding(
    exact: Any,
    a: Any,
    b: Any,
    sizes: Any,
    bias: Any = None,
    *,
    alpha: float = 1.0,
    activation: str = "",
    dtype: Any = None,
    masked: bool = False,
) -> Any:
    """Return the rounding error of sums on tensor cores and of their epilogues, per element."""
    error = np.zeros(exact.shape)
    for group, place in pieces(a, sizes):
        added, name = ((), "") if bias is None else ((bias[group],), "bias")
        error[place] = gemm_half.rounding(
            exact[place], a[place], b[group], *added, alpha=alpha, added=name, activation=activation, dtype=dtype
        )
    return error


def baseline(a: Any, b: Any, sizes: Any, bias: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Return numpy's products in float32; numpy has no fast product of 16-bit numbers."""
    of_a, of_b, of_bias = (x if x is None else x.astype(np.float32) for x in (a, b, bias))
    return reference(of_a, of_b, sizes, of_bias, **options).astype(result_dtype(a, dtype))


# The family -----------------------------------------------------------------------------------------------------------


def choose(problem: GroupedProblem, arch: str) -> str:
    """Return the variant for "auto"."""
    fits = arch == "sm_90a" and problem.product.k and not isinstance(grouped.answer(problem), str)
    return "grouped" if fits else "grouped_mma"


def _traffic(problem: GroupedProblem) -> int:
    """Return the bytes of all rows: their number per group is only known on the device."""
    p = problem.product
    rows = p.m * (p.batch if problem.masked else 1)
    item = memory.as_dtype(p.result).itemsize
    return _ITEM * (rows * p.k + p.batch * p.k * p.n) + item * rows * p.n


def _flops(problem: GroupedProblem) -> int:
    """Return the operations if every row is in a group."""
    p = problem.product
    return 2 * p.m * (p.batch if problem.masked else 1) * p.n * p.k


def call(inputs: Sequence[Any], out: Any, variant: str, stream: Any, **options: Any) -> Callable[[], Any]:
    """Return a user's call of `gemm_grouped`."""
    a, b, sizes, *bias = inputs
    form = {"rows" if len(a.shape) == 3 else "offsets": sizes, "bias": bias[0] if bias else None}
    given = {name: value for name, value in options.items() if name != "masked"}
    return lambda: gemm_grouped(a, b, out, variant=variant, stream=stream, **form, **given)


FAMILY: Family[GroupedProblem] = Family(
    name="gemm_grouped",
    reference=reference,
    variants=(grouped_mma, grouped),
    inputs=make_inputs,
    outputs=lambda a, b, sizes, *bias, dtype=None, **options: (output_shape(a.shape, b.shape), result_dtype(a, dtype)),
    problem=problem,
    rounding=rounding,
    baseline=baseline,
    traffic=_traffic,
    flops=_flops,
    choose=choose,
    shapes={
        "gpu": ((8, 16384, 4096, 4096), (64, 16384, 2048, 7168), (256, 4096, 2048, 7168)),
        "gpu once": ((8, 16384, 4096, 4096),),
        "sim": ((3, 150, 72, 64), (5, 40, 40, 33)),
        "sim sweep": ((3, 150, 72, 64), (4, 300, 200, 80)),
        "sweep": (
            (8, 8192, 14336, 4096), (8, 8192, 4096, 14336), (8, 512, 14336, 4096), (64, 65536, 2048, 7168),
            (64, 65536, 7168, 2048), (128, 8192, 1536, 4096), (256, 32768, 4096, 7168), (8, 16384, 4095, 4097),
        ),
    },
    dtypes=("bfloat16", "float16"),
    modes={"": {}, "masked": {"masked": True}},
    scalars={"alpha": Scalar("alpha", float)},
    problems="cudakit.testing.gemm_grouped:gemm_grouped_cases",
)  # fmt: skip
FAMILY.call = call


def gemm_grouped(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    offsets: Any = None,
    rows: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    activation: str | None = None,
    dtype: Any = None,
    variant: str = "auto",
    stream: Any = None,
) -> Any:
    """Return activation(alpha * a_g @ b[g] + bias[g]) for each group g of rows of `a`, for arrays of cudakit, torch or
    CuPy: a grouped GEMM, as in mixture-of-experts layers.

    Does not wait for the device, and does not read the groups' sizes on the host. Operands are float16 or bfloat16;
    sums are fp32, rounded once to the output's dtype. Pass exactly one of `offsets` and `rows`.

    Rows of the output that are in no group keep their values; in a new output they are undefined. No size reads or
    writes outside of the arrays: an offset or a number of rows below 0 or above the number of rows counts as this
    bound, and an offset below an earlier one as the largest earlier one.

    Rows of `a` in no group may be read, but do not influence a result. The simulated device reports such a read if the
    rows were never written: fill them first.

    Args:
        a: Shape (rows, k) with `offsets`, or (groups, most rows, k) with `rows`. The last axis is contiguous.
        b: Shape (groups, k, n), any strides; at most 1024 groups.
        out: The output, of shape (rows, n) or (groups, most rows, n), separate from the inputs. By default a new array.
        offsets: Shape (groups + 1,), int32, on the device. Group g is rows offsets[g] to offsets[g + 1] - 1 of `a` and
            `out`. Groups may be empty and need no alignment.
        rows: Shape (groups,), int32, on the device. Group g is the first rows[g] rows of a[g] and out[g].
        alpha: The factor on the products.
        bias: Shape (groups, n), added to each row of a group. Its dtype is the operands' or float32.
        activation: None, "relu", "gelu", "gelu_tanh" or "silu", as for `gemm`.
        dtype: The dtype of a new output: the operands' (default), or "float32".
        variant: The name of a variant, or "auto". On sm_90a, "grouped" is the fastest; "grouped_mma" runs on sm_80 and
            later. Operands that are not 16-byte aligned are first copied to aligned scratch memory.
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported, or not exactly one of `offsets` and `rows` is passed.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    if (offsets is None) == (rows is None):
        raise ValueError(
            f"{_WHAT} takes offsets, for a of shape (rows, k), or rows, for a of shape (groups, most rows, k); "
            f"got {'neither' if rows is None else 'both'}"
        )
    name, axes = ("offsets", 2) if rows is None else ("rows", 3)
    if len(a.shape) != axes:
        raise ValueError(f"{_WHAT} with {name} takes an a with {axes} axes, got shape {tuple(a.shape)}")
    sizes = offsets if rows is None else rows
    inputs = (a, b, sizes) if bias is None else (a, b, sizes, bias)
    return apply(FAMILY, inputs, out, variant, stream, {"alpha": alpha, "activation": activation or "", "dtype": dtype})
