"""16-bit products by Hopper's own instructions: every tile, all layouts of the operands and of the output, epilogues,
persistent blocks with several tiles, and the choice among the tiles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cudakit
from cudakit import ops
from cudakit.compile import cache
from cudakit.families import gemm_grouped, gemm_half
from cudakit.families.gemm_half import DTYPES, problem
from cudakit.families.gemm_half_gemv import gemv, gemv_cluster
from cudakit.families.gemm_hopper import (
    CLUSTERS,
    SPLIT_TABLE,
    TILE_TABLE,
    VARIANTS,
    best_split,
    best_tile,
    packed_tiles,
    split_k,
    splits_of,
    tiles,
)
from cudakit.families.gemm_hopper_tiles import TILES, Side, Split, Tile, layout_of
from cudakit.families.gemm_hopper_tiles import Layout as OperandLayout
from cudakit.families.gemm_problem import ACTIVATIONS, GemmProblem
from cudakit.family import Launch, Variant, apply, several
from cudakit.memory import array as memory
from cudakit.sim.instructions.warpgroup_products import multiply
from cudakit.testing import Case, Layout, Unsupported, Values, cases_of, check_variant, contiguous, run_case

FAMILY = gemm_half.FAMILY
SMALLEST = min(SPLIT_TABLE, key=lambda split: (split.bm * split.bn, split.stages))
NARROW = min(TILE_TABLE, key=lambda tile: (tile.shares, tile.bm * tile.bn))
LONGEST = max(tile.stages for tile in (*TILE_TABLE, *SPLIT_TABLE)) * 64  # the k of the longest ring


def named(tile: Tile | Split) -> str:
    if isinstance(tile, Split):
        return f"{tile.bm}x{tile.bn} in {tile.cluster}x{tile.splits}"
    tail = f" tail {tile.tall * tile.bm}x{tile.tail}" if tile.tail else ""
    return f"{tile.bm}x{tile.bn}{' turns' if tile.turns else ''} shares {tile.shares} stages {tile.stages}{tail}"


def first_of_each(tiles: Any, key: Any) -> list[Any]:
    """The first of the tiles with each key."""
    return list({key(tile): tile for tile in reversed(tiles)}.values())[::-1]


SHARED = 232_448  # bytes of shared memory per block that sm_90 allows


def tailed(tile: Tile) -> list[Tile]:
    """The tile with tail tiles, tall and not, that fit in shared memory: narrow ones, the widest, and two whose last
    chunk of a store, of up to 64 columns, is partial."""
    along_k = Side(along_k=True, tensor=True, whole=True)
    layout = OperandLayout(along_k, along_k, by_columns=False, tensor=True, whole=True)
    widths = sorted({32, 64, 96, (tile.bn - 1) // 32 * 32})
    found = [replace(tile, tail=tail, tall=tall) for tail in widths for tall in (1, 2) if tall * tail <= tile.bn]
    return [each for each in found if each.tail < tile.bn and each.shared(layout) <= SHARED]


# A tile with and one without turns, with and without clusters that share B; one that splits k in each way.
KINDS = first_of_each(TILE_TABLE, lambda tile: (tile.turns, tile.shares, tile.bm))
WAYS = [replace(SMALLEST, cluster=cluster, splits=splits) for cluster, splits in ((1, 1), (2, 1), (2, 3))]


def quick(values: Any, *those: Any) -> list[Any]:
    """Parameters of a test, of which only `those` are for its short runs."""
    assert all(value in values for value in those)
    return [value if value in those else pytest.param(value, marks=pytest.mark.long) for value in values]


every_kind = pytest.mark.parametrize("tile", [*KINDS, *WAYS], ids=named)
most_kinds = pytest.mark.parametrize("tile", quick([*KINDS, *WAYS], KINDS[0], WAYS[2]), ids=named)


@dataclass(frozen=True)
class Integers:
    """A filler: small whole numbers, whose products and sums of products are exact in float32."""

    seed: int = 1
    most: int = 2

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(-self.most, self.most + 1, shape).astype(np.float32)


def own(tile: Tile | Split, *, sms: int = 3, turned: bool = False, exact: bool = True) -> Variant[GemmProblem]:
    """A variant that always uses this tile, with as many blocks as for a device of `sms` multiprocessors. turned: for
    the transposed problem; also if the tile supports only that one. exact: its results are the exact ones, rounded to
    the output's dtype."""

    def launch(p: GemmProblem) -> Launch | tuple[Launch, ...] | str:
        for each in (p.turned, p) if turned else (p, p.turned):
            side = replace(each, sms=sms)
            layout = layout_of(side)
            if isinstance(layout, str):
                return layout
            if tile.fits(side, layout):
                return tile.launch(side, layout)
        return f"{named(tile)} does not fit"

    return Variant("own", launch, TILES, since="sm_90a", rounding=0.0 if exact else None)


@pytest.fixture(autouse=True)
def needs_hopper(request: pytest.FixtureRequest) -> None:
    """Skip a test on a device of another architecture."""
    if "device" in request.fixturenames:
        reason = tiles.arch_refusal(request.getfixturevalue("device").arch)
        if reason:
            pytest.skip(reason)


def expect(device: cudakit.Device, variant: Variant[Any], case: Case) -> None:
    """The variant supports the problem, and its result is correct; nothing outside the output is written, and on the
    simulated device nothing outside the operands is read."""
    verdict = run_case(device, replace(FAMILY, variants=(variant,)), variant, case)
    assert not isinstance(verdict, Unsupported), verdict
    assert verdict.ok, verdict.why


def rows(m: int, n: int, gap: int = 0, lead: int = 0, dtype: str = "bfloat16") -> Layout:
    """A matrix with contiguous rows."""
    return Layout((m, n), (n + gap, 1), lead, dtype)


def columns(m: int, n: int, gap: int = 0, lead: int = 0, dtype: str = "bfloat16") -> Layout:
    """A matrix with contiguous columns."""
    return Layout((m, n), (1, m + gap), lead, dtype)


def spread(m: int, n: int, gap: int = 0, lead: int = 0, dtype: str = "bfloat16") -> Layout:
    """A matrix whose elements are not neighbours in any direction."""
    return Layout((m, n), (2 * n + 3 + gap, 2), lead, dtype)


def pitched(matrix: Any, m: int, n: int, aligned: bool, dtype: str = "bfloat16") -> Layout:
    """A matrix whose lines begin at multiples of 16 bytes, or at odd multiples of 2 bytes."""
    extent = m if matrix is columns else n
    return matrix(m, n, -extent % 8 + (0 if aligned else 5), 0 if aligned else 3, dtype)


def loaded(matrix: Any, m: int, n: int, aligned: bool) -> Layout:
    """A matrix that tensor copies load, or one that is gathered if the length of its rows is not a multiple of 8."""
    return pitched(matrix, m, n, True) if aligned else matrix(m, n)


def case_of(m: int, n: int, k: int, kind: str = "bfloat16", *more: Layout, **options: Any) -> Case:
    """A product of operands that tensor copies can read; the output is contiguous."""
    layouts = (pitched(rows, m, k, True, kind), pitched(columns, k, n, True, kind), *more)
    return Case(layouts, Integers(), contiguous((m, n), 0, options.get("dtype", kind)), options)


def lines_of(tile: Tile) -> Any:
    """Rows, or columns if the tile supports only outputs with contiguous columns."""
    return rows if tile.bn % 16 == 0 else columns


# Every tile -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILE_TABLE, ids=named)
@pytest.mark.parametrize("result", quick(["bfloat16", "float32"], "bfloat16"))
def test_every_tile(device: cudakit.Device, tile: Tile, result: str) -> None:
    """Several tiles in both directions, more than there are blocks, the last of them partial."""
    m, n = tile.shares * tile.bm + 40, 2 * tile.bn + 24
    case = case_of(m, n, 200, dtype=result)
    expect(device, own(tile), replace(case, output=lines_of(tile)(m, n, dtype=result)))


def test_widths_in_eights_need_contiguous_columns(shared_sim: cudakit.Device) -> None:
    p = problem_of(shared_sim, 1024, 1024, 64)
    for side in (p, replace(p, d=p.d.turned)):
        layout = layout_of(side)
        assert isinstance(layout, OperandLayout)
        fitting = {tile.bn for tile in TILE_TABLE if tile.fits(side, replace(layout, b=layout.a))}
        assert fitting >= {128, 144, 208, 256}
        assert (not fitting.isdisjoint({168, 184, 200})) == layout.by_columns


# Tail tiles -----------------------------------------------------------------------------------------------------------


def tail_forms() -> Iterator[Any]:
    """Tiles with tail tiles, the contiguous axis of the output, its dtype and whether tensor copies store it."""
    forms = itertools.cycle(itertools.product([rows, columns], ["bfloat16", "float32"], [True, False]))
    all_tiles = [each for tile in TILE_TABLE for each in tailed(tile)]
    short = {
        "128x128 turns shares 1 stages 5 tail 256x64": (rows, "bfloat16", True),
        "128x168 turns shares 1 stages 5 tail 128x160": (columns, "bfloat16", True),
        "128x160 turns shares 2 stages 5 tail 256x64": (rows, "float32", False),
        "128x256 shares 1 stages 4 tail 256x96": (rows, "float32", True),
        "128x64 shares 2 stages 8 tail 128x32": (rows, "bfloat16", False),
    }
    assert short.keys() <= set(map(named, all_tiles))
    for tile in all_tiles:
        matrix, result, aligned = short.get(named(tile)) or next(forms)
        if tile.bn % 16:
            matrix, aligned = columns, True
        elif not aligned:
            matrix = rows  # lanes store rows
        name = f"{named(tile)}-{matrix.__name__}-{result}-{'copies' if aligned else 'lanes'}"
        marks = [] if named(tile) in short else [pytest.mark.long]
        yield pytest.param(tile, matrix, result, aligned, id=name, marks=marks)


@pytest.mark.parametrize(("tile", "matrix", "result", "aligned"), list(tail_forms()))
@pytest.mark.parametrize(
    ("clusters", "batch", "down", "across"),
    [
        (3, 1, 5, 1),
        (132, 2, 1, 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((3, 2, 2, 2), (2, 2, 3, 2))),
    ],
)
def test_tail_tiles(
    device: cudakit.Device,
    tile: Tile,
    matrix: Any,
    result: str,
    aligned: bool,
    clusters: int,
    batch: int,
    down: int,
    across: int,
) -> None:
    """Blocks of several whole tiles, of whole and of tail tiles, and of tail tiles alone; the last round of whole tiles
    is partial or full."""
    m, n, k = down * tile.shares * tile.bm - 56, across * tile.bn + tile.tail - 8, 136
    inputs = contiguous((batch, m, k), 0, "bfloat16"), Layout((batch, k, n), (n * k, 1, k), 0, "bfloat16")
    one = pitched(matrix, m, n, aligned, result)
    step = max(one.strides) * (n if matrix is columns else m)
    out = Layout((batch, m, n), (step, *one.strides), one.lead, result)
    expect(device, own(tile, sms=clusters * tile.shares), Case(inputs, Integers(most=1), out, {"dtype": result}))


extents = st.one_of(st.integers(1, 600), st.integers(1, 20_000))


@settings(max_examples=500)
@given(st.sampled_from(TILE_TABLE), extents, extents, st.integers(1, 40), st.integers(2, 160), st.booleans())
def test_every_block_has_a_tile(
    shared_sim: cudakit.Device, tile: Tile, m: int, n: int, batch: int, sms: int, by_columns: bool
) -> None:
    """A block without a tile would wait forever. Tiles are counted as by Tiles in 12_tiles.cu: whole ones in rounds,
    then tail tiles for the clusters without a whole tile in the last round."""
    p = problem_of(shared_sim, 8, 8, 64)
    p = replace(p, m=m, n=n, batch=batch, sms=sms, b=replace(p.b, row=n))
    layout = layout_of(p)
    assert isinstance(layout, OperandLayout)
    tile = tile.with_tail(p, replace(layout, by_columns=by_columns))
    clusters, left = divmod(tile.blocks(p), tile.shares)
    assert left == 0
    assert 1 <= clusters <= sms // tile.shares
    across = n // tile.bn if tile.tail else -(-n // tile.bn)
    whole = tile.rows(p) // tile.shares * across
    tails = tile.rows(p, tile.tall) // tile.shares if tile.tail else 0
    assert (whole + tails) * tile.shares == tile.count(p)
    assert across * tile.bn + tile.tail >= n
    full = whole % clusters
    for first in range(clusters):
        of_tails = range(first - full, tails, clusters - full) if first >= full else ()
        assert len(range(first, whole, clusters)) + len(of_tails) >= 1


@pytest.mark.parametrize("split", SPLIT_TABLE, ids=named)
@pytest.mark.parametrize(
    "pieces", quick([(c, s) for c in CLUSTERS for s in (1, 3, 14)], (4, 3)), ids="{0[0]}x{0[1]}".format
)
def test_every_split(device: cudakit.Device, split: Split, pieces: tuple[int, int]) -> None:
    """A step of k per piece, then one more for some of the pieces; several partial tiles."""
    tile = replace(split, cluster=pieces[0], splits=pieces[1])
    for steps in {tile.pieces, tile.pieces + tile.pieces // 2 + 1}:
        expect(device, own(tile), case_of(split.bm + 24, split.bn + 9, 64 * steps - 3, dtype="float32"))


@every_kind
@pytest.mark.parametrize("k", quick([1, 63, 64, 65, 130, LONGEST + 70], 65, LONGEST + 70))
@pytest.mark.parametrize("dtype", quick(DTYPES, "float16"))
def test_every_depth(device: cudakit.Device, tile: Any, k: int, dtype: str) -> None:
    """k of less than a step, of a step, of fewer steps than the ring has stages, and of more."""
    if k <= 64 * getattr(tile, "pieces", 1) - 64:
        pytest.skip("fewer steps of k than pieces")
    expect(device, own(tile), case_of(tile.bm + 16, 8, k, dtype, dtype="float32"))


CHAIN = 4096  # the k of a sum of split_k unless its output is bfloat16; such sums are added up


@pytest.mark.parametrize("tile", quick(WAYS, WAYS[0]), ids=named)
@pytest.mark.parametrize(
    "k", quick([CHAIN, CHAIN + 1, 2 * CHAIN, 2 * CHAIN + 70, 3 * CHAIN], CHAIN + 1, 2 * CHAIN + 70)
)
@pytest.mark.parametrize("result", quick(["bfloat16", "float16", "float32"], "float32"))
def test_sums_of_several_chains(device: cudakit.Device, tile: Split, k: int, result: str) -> None:
    """k of one chain per piece of k, of a step more, and of several chains."""
    inputs = case_of(70, 20, tile.pieces * k, "float16" if result == "float16" else "bfloat16").inputs
    case = Case(inputs, Integers(most=1), contiguous((70, 20), 0, result), {"dtype": result})
    expect(device, own(tile), case)


@pytest.mark.parametrize("result", ["float16", "float32"])
def test_chains_reduce_the_error_of_long_sums(device: cudakit.Device, result: str) -> None:
    """Tensor cores truncate each sum, so the error of a sum of positive products is proportional to the square of
    its length."""
    m, n, k = 16, 8, 3 * CHAIN
    kind, dtype = ("f16", "float16") if result == "float16" else ("bf16", "bfloat16")
    a, b = (abs(normal(*shape, seed=seed, dtype=dtype)) for seed, shape in enumerate(((m, k), (k, n))))
    family = replace(FAMILY, variants=(own(SMALLEST),))
    found = apply(family, (device.array(a), device.array(b)), None, "own", None, {"dtype": result}).numpy()
    one_chain: Any = None
    for first in range(0, k, 16):
        of_a, of_b = a[None, :, first : first + 16], b[first : first + 16].T[None]
        patterns = (np.ascontiguousarray(x).view(np.uint16) for x in (of_a, of_b))
        one_chain = multiply((kind, kind, "f32"), *patterns, one_chain)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rounded = one_chain[0].view(np.float32).astype(result)
    # the mean, because rounding to float16 is larger than the truncation of a single sum
    error, of_one_chain = (abs((x.astype(np.float64) / exact - 1).mean()) for x in (found, rounded))
    assert 0 < error < of_one_chain / 2


@pytest.mark.parametrize("tile", KINDS, ids=named)
@pytest.mark.parametrize("sms", quick([2, 3, 5, 132], 3))
@pytest.mark.parametrize("k", [40, 304])
def test_blocks_have_none_one_or_several_tiles(device: cudakit.Device, tile: Tile, sms: int, k: int) -> None:
    """Seven rows of tiles of two batches: the last turn of a block has one tile or two."""
    layouts = (contiguous((2, 6 * tile.bm + 8, k), 0, "bfloat16"), contiguous((2, k, 16), 0, "bfloat16"))
    out = contiguous((2, 6 * tile.bm + 8, 16), 0, "bfloat16")
    expect(device, own(tile, sms=sms), Case(layouts, Integers(most=1), out))


@pytest.mark.parametrize("down", quick([1, 2, 3], 3))
def test_tiles_in_bands_cover_the_output_once(device: cudakit.Device, down: int) -> None:
    """More rows of tiles than a band has; bands go to the right and to the left in turn."""
    tile = replace(NARROW, band=2)
    expect(device, own(tile), case_of((2 * down - 1) * tile.bm, 3 * tile.bn, 16))


@most_kinds
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 200), (200, 1), (7, 9), (8, 8)])
@pytest.mark.parametrize("turned", quick([False, True], True))
def test_few_rows_or_columns(device: cudakit.Device, tile: Any, m: int, n: int, turned: bool) -> None:
    expect(device, own(tile, turned=turned), case_of(m, n, 400, "float16"))


# Layouts --------------------------------------------------------------------------------------------------------------


def layouts_of_operands() -> Iterator[Any]:
    """Tiles with the layouts of A and of B and whether they are aligned; those that a tile supports."""
    tail = replace(KINDS[0], tail=32, tall=2)
    short = (tail, WAYS[0])
    every_way = itertools.product([rows, columns], [rows, columns], itertools.product([True, False], repeat=2))
    for left, right, aligned in every_way:
        for tile in dict.fromkeys(
            [*short, NARROW, *KINDS, *first_of_each(TILE_TABLE, lambda tile: tile.bn), *SPLIT_TABLE]
        ):
            if isinstance(tile, Tile) and not (all(aligned) and (right is columns or tile.bn % 64 == 0)):
                continue
            name = f"{named(tile)}-{left.__name__}-{right.__name__}-{aligned}"
            marks = [] if tile in short else [pytest.mark.long]
            yield pytest.param(tile, left, right, aligned, id=name, marks=marks)


@pytest.mark.parametrize(("tile", "left", "right", "aligned"), list(layouts_of_operands()))
def test_operands_of_any_layout(
    device: cudakit.Device, tile: Any, left: Any, right: Any, aligned: tuple[bool, bool]
) -> None:
    """Tensor copies, gathers, and one of each."""
    # lanes store rows, so a tile that only stores columns needs some that tensor copies store
    only_columns = isinstance(tile, Tile) and tile.bn % 16
    m, n, k = tile.bm + (40 if only_columns else 37), tile.bn + 21, 64 * getattr(tile, "pieces", 1) + 139
    operands = (loaded(left, m, k, aligned[0]), loaded(right, k, n, aligned[1]))
    out = columns(m, n) if only_columns else contiguous((m, n), 0, "bfloat16")
    expect(device, own(tile), Case(operands, Integers(), out))


@most_kinds
@pytest.mark.parametrize("matrix", [rows, columns, spread])
@pytest.mark.parametrize("dtype", quick(["bfloat16", "float32"], "bfloat16"))
@pytest.mark.parametrize("aligned", [True, False])
def test_outputs_of_any_layout(device: cudakit.Device, tile: Any, matrix: Any, dtype: str, aligned: bool) -> None:
    """With extents that are multiples of 16 bytes, of 8 bytes, and odd."""
    for more in (8, 4, 1):
        m, n = tile.bm + more, tile.bn + more
        inputs = case_of(m, n, 64 * getattr(tile, "pieces", 1) - 24).inputs
        expect(device, own(tile), Case(inputs, Integers(), pitched(matrix, m, n, aligned, dtype), {"dtype": dtype}))


@pytest.mark.parametrize("matrix", [rows, columns])
@pytest.mark.parametrize("dtype", quick(["bfloat16", "float32"], "bfloat16"))
@pytest.mark.parametrize("lead", quick(range(8), 3))
@pytest.mark.parametrize("tile", quick([NARROW, *KINDS], NARROW), ids=named)
def test_outputs_of_any_alignment(device: cudakit.Device, tile: Tile, matrix: Any, dtype: str, lead: int) -> None:
    """Rows whose places relative to 16-byte boundaries differ, or are the same; partial tiles of one column, of less
    than 16 bytes, and of more than a chunk of the store has."""
    for more in (1, 5, 43):
        m, n = (tile.bm + more, 40) if matrix is columns else (40, tile.bn + more)
        extent = m if matrix is columns else n
        for gap in (extent % 2, extent % 2 + 1, -extent % 8):
            out = matrix(m, n, gap, lead, dtype)
            expect(device, own(tile), replace(case_of(m, n, 24, dtype=dtype), output=out))


@pytest.mark.parametrize("lead", [0, 8])
@pytest.mark.parametrize("matrix", [rows, columns])
def test_gathers_of_few_rows_or_short_ones(device: cudakit.Device, matrix: Any, lead: int) -> None:
    """Rows of any length and number. NaN is before and after them, and is out of bounds."""
    for k in (1, 2, 7, 8, 9, 15, 16, 17, 24, 71):
        for m in (1, 2, 8, 9, 17):
            operands = (matrix(m, k, 0, lead), matrix(k, m, 0, lead))
            expect(device, own(SMALLEST), Case(operands, Integers(), spread(m, m)))


@pytest.mark.parametrize(("left", "right"), list(itertools.product([rows, columns], repeat=2)))
@pytest.mark.parametrize("tile", quick(SPLIT_TABLE, SMALLEST), ids=named)
def test_gathers_of_every_remainder(device: cudakit.Device, tile: Split, left: Any, right: Any) -> None:
    """Super rows of all numbers of rows, with all remainders of a row's length, so at all distances from a 16-byte
    boundary."""
    for more in range(8):
        m, n, k = tile.bm - more, tile.bn + 9 - more, 64 * more + 57 + more
        operands = (left(m, k), right(k, n))
        expect(device, own(tile), Case(operands, Integers(), contiguous((m, n), 0, "bfloat16")))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tile=st.sampled_from(WAYS),
    left=st.sampled_from([rows, columns]),
    right=st.sampled_from([rows, columns]),
    extents=st.tuples(st.integers(1, 150), st.integers(1, 80), st.integers(1, 700)),
    lead=st.sampled_from([0, 8]),
)
def test_products_of_drawn_dense_operands(
    device: cudakit.Device, tile: Split, left: Any, right: Any, extents: tuple[int, int, int], lead: int
) -> None:
    m, n, k = extents
    k += 64 * (tile.pieces - 1)
    case = Case((left(m, k, 0, lead), right(k, n, 0, lead)), Integers(), contiguous((m, n), 0, "bfloat16"))
    expect(device, own(tile), case)


def test_views_of_an_array(device: cudakit.Device) -> None:
    """The operands of one kind of call begin at different distances from a 16-byte boundary."""
    hosts = [Integers(seed)((40, 300)).astype(np.float16) for seed in (1, 2)]
    arrays, out = [device.array(host) for host in hosts], device.empty((30, 30), np.float16)
    for first, variant in itertools.product((1, 4, 2, 7, 3, 1, 8, 5), ("auto", "packed_tiles")):
        (a, b), (x, y) = ([each[first:][:30, first : first + 200] for each in both] for both in (hosts, arrays))
        ops.gemm(x, y.T, out, variant=variant)
        np.testing.assert_array_equal(out.numpy(), (a.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16))


def packed_operands() -> Iterator[Any]:
    """Operands that the kernels cannot load."""
    for strides in ((-203, 1), (1, -170), (0, 1), (1, 0), (-208, 1), (8, 1)):
        for m, k, lead in ((130, 203, 2), (136, 208, 0)):
            yield pytest.param(Layout((m, k), strides, lead, "bfloat16"), id=f"{m}x{k} {strides[0]},{strides[1]}")
    for (matrix, (m, k)), (gap, lead) in itertools.product(
        itertools.product([rows, columns], [(131, 203), (9, 73), (2, 9), (136, 208)]),
        [(0, 1), (0, 4), (1, 0), (1, 7), (4, 0), (8, 3)],
    ):
        short = pytest.mark.long if (m, k, gap) not in ((9, 73, 1), (136, 208, 4), (131, 203, 0)) else ()
        operand = matrix(m, k, gap, lead)
        name = f"{matrix.__name__} {m}x{k} gap {gap} lead {lead}"
        yield pytest.param(operand, id=name, marks=short)
    yield pytest.param(Layout((3, 40, 203), (8121, 203, 1), 0, "bfloat16"), id="odd batches")
    yield pytest.param(Layout((3, 40, 208), (-8320, 208, 1), 0, "bfloat16"), id="batches in reverse order")


@pytest.mark.parametrize("of_a", list(packed_operands()))
def test_operands_that_are_packed_first(device: cudakit.Device, of_a: Layout) -> None:
    """Rows that are reversed, the same, or overlap, have padding of odd length, or begin at an odd place; batches at
    odd places or in reverse order."""
    *batch, m, k = of_a.shape
    n = 24
    turned = Layout((*batch, k, m), (*of_a.strides[:-2], *of_a.strides[-2:][::-1]), of_a.lead, of_a.dtype)
    cases = (
        Case((of_a, contiguous((k, n), 0, "bfloat16")), Integers(), contiguous((*batch, m, n), 0, "bfloat16")),
        Case((contiguous((n, k), 0, "bfloat16"), turned), Integers(), contiguous((*batch, n, m), 0, "bfloat16")),
    )
    for case in cases:
        refused = run_case(device, FAMILY, split_k, case)
        assert isinstance(refused, Unsupported)
        of_rows = (
            r"[AB] begins at a multiple of \d+ bytes and has rows .* apart: needs a multiple of 16 bytes, and rows "
        )
        assert re.match(rf"{of_rows}|the batches of [AB] are .* apart: needs 0 or a positive", refused.reason)
        assert refused.reason.endswith('pass variant="auto", which packs such operands')
        expect(device, replace(packed_tiles, rounding=0.0), case)
        verdict = run_case(device, FAMILY, None, case)
        assert not isinstance(verdict, Unsupported)
        assert verdict.ok, verdict.why


@pytest.mark.parametrize("reverse", quick([(-1, 1), (1, -1), (-1, -1)], (-1, -1)), ids=str)
@pytest.mark.parametrize("tile", [NARROW, *WAYS], ids=named)
def test_a_reversed_output(device: cudakit.Device, tile: Any, reverse: tuple[int, int]) -> None:
    m, n, k = 72, 40, 400
    out = Layout((m, n), (48 * reverse[0], reverse[1]), 0, "float16")
    expect(device, own(tile), replace(case_of(m, n, k, "float16"), output=out))


# Batches --------------------------------------------------------------------------------------------------------------


@most_kinds
@pytest.mark.parametrize("shared", ["a", "b", "neither"])
@pytest.mark.parametrize(("more", "odd"), [(0, 0), (8, 0), (8, 3)], ids=["dense", "apart", "odd rows"])
def test_batches(device: cudakit.Device, tile: Any, shared: str, more: int, odd: int) -> None:
    """A matrix for all batches, as a 2-D array or by a stride of 0; with and without elements between batches."""
    batch, m, n, k = 3, 72, 64 + odd, 400 + odd

    def stacked(rows: int, cols: int, mine: bool) -> tuple[Layout, ...]:
        if mine:
            return contiguous((rows, cols), 0, "float16"), Layout((batch, rows, cols), (0, cols, 1), 0, "float16")
        step = -(-rows * cols // 8) * 8 + more
        return (Layout((batch, rows, cols), (step, cols, 1), 0, "float16"),)

    if isinstance(tile, Tile) and odd:
        pytest.skip("such operands are gathered")
    out = contiguous((batch, m, n), 0, "float16")
    for a, b in itertools.product(stacked(m, k, shared == "a"), stacked(k, n, shared == "b")):
        if len(a.shape) + len(b.shape) > 4:
            expect(device, own(tile), Case((a, b), Integers(), out))


@pytest.mark.parametrize("strides", [(-9000, 80, 1), (80, 240, 1), (1, 240, 3)], ids=str)
@pytest.mark.parametrize("tile", [NARROW, SMALLEST], ids=named)
def test_batches_in_other_orders(device: cudakit.Device, tile: Any, strides: tuple[int, ...]) -> None:
    """From the last one to the first; row by row of all batches; neighbouring elements are of different batches."""
    operands = (contiguous((3, 70, 40), 0, "float16"), contiguous((40, 80), 0, "float16"))
    expect(device, own(tile), Case(operands, Integers(), Layout((3, 70, 80), strides, 0, "float16")))
    if strides[-1] == 1 and strides[0] > 0:
        of_a = (Layout((3, 70, 80), strides, 0, "float16"), contiguous((80, 16), 0, "float16"))
        expect(device, own(tile), Case(of_a, Integers(), contiguous((3, 70, 16), 0, "float16")))


def test_one_batch_at_any_stride(device: cudakit.Device) -> None:
    """Strides along axes of one element are not those of a tensor map."""
    for tile in (NARROW, SMALLEST):
        a, b = Layout((1, 1, 40), (7, 3, 1), 0, "float16"), Layout((1, 40, 8), (5, 8, 1), 0, "float16")
        expect(device, own(tile), Case((a, b), Integers(), Layout((1, 1, 8), (3, 9, 1), 0, "float16")))


# Epilogues ------------------------------------------------------------------------------------------------------------

some_forms = pytest.mark.parametrize("tile", quick([KINDS[0], KINDS[-1], *WAYS[1:]], KINDS[0], WAYS[2]), ids=named)


@some_forms
@pytest.mark.parametrize("turned", quick([False, True], False))
@pytest.mark.parametrize("out", [rows, columns, spread])
@pytest.mark.parametrize("in_place", [False, True])
def test_alpha_and_beta(device: cudakit.Device, tile: Any, turned: bool, out: Any, in_place: bool) -> None:
    """C is separate, or the output."""
    m, n, k = 200, 72, 328
    operands = (contiguous((m, k), 0, "bfloat16"), contiguous((k, n), 0, "bfloat16"))
    place = out(m, n, dtype="float32")
    options = {"alpha": -0.5, "beta": 2.0, "dtype": "float32"}
    case = Case((*operands, place if in_place else spread(m, n, dtype="float32")), Integers(), place, options)
    if in_place:
        case = replace(case, output=None, over=2)
    expect(device, own(tile, turned=turned), case)


@some_forms
@pytest.mark.parametrize("turned", quick([False, True], True))
@pytest.mark.parametrize("bias", [(1, 72), (200, 1), (200, 72), (72,)], ids=str)
def test_a_bias_per_row_column_or_element(
    device: cudakit.Device, tile: Any, turned: bool, bias: tuple[int, ...]
) -> None:
    options = {"added": "bias", "scale": -2.0, "activation": "relu", "dtype": "float32"}
    for kind in ("bfloat16", "float32"):
        case = case_of(200, 72, 328, "bfloat16", contiguous(bias, 1, kind), **options)
        expect(device, own(tile, turned=turned), case)


@some_forms
@pytest.mark.parametrize("activation", quick(ACTIVATIONS, "gelu"))
@pytest.mark.parametrize("result", quick(["float16", "float32"], "float16"))
def test_everything_in_an_epilogue(device: cudakit.Device, tile: Any, activation: str, result: str) -> None:
    """Several tiles, all partial, of two batches; neither C nor the residual has the output's layout."""
    m, n, k = tile.bm + 40, 64, 328
    layouts = (
        contiguous((2, m, k), 0, "float16"),
        contiguous((k, n), 0, "float16"),
        Layout((2, m, n), (n * m + 3, 1, m), 1, result),
        contiguous((n,), 0, "float32"),
        Layout((2, m, n), (2 * n, 4 * n + 1, 2), 0, result),
    )
    options = {"alpha": 0.125, "beta": -1.0, "scale": 0.5, "added": "c bias residual", "activation": activation}
    case = Case(layouts, Values(3, 1.0), contiguous((2, m, n), 0, result), {**options, "dtype": result})
    expect(device, own(tile, exact=False), case)


@some_forms
def test_the_residual_may_be_the_output(device: cudakit.Device, tile: Any) -> None:
    layouts = (contiguous((200, 328), 0, "float16"), contiguous((328, 72), 0, "float16"))
    residual = contiguous((200, 72), 0, "float16")
    options = {"added": "residual", "activation": "relu"}
    expect(device, own(tile), Case((*layouts, residual), Integers(), None, options, over=2))


@some_forms
def test_nothing_is_read_that_has_no_part_in_the_result(device: cudakit.Device, tile: Any) -> None:
    """C with beta of 0 is the output, which holds NaN; infinities are only in their own row and column."""
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((200, 328), (328, 72)))
    a[130, 7], b[11, 70] = np.inf, np.nan
    of_a, of_b = (device.array(x.astype(memory.as_dtype("bfloat16"))) for x in (a, b))
    out = device.full((200, 72), np.nan, dtype=np.float32)
    apply(replace(FAMILY, variants=(own(tile),)), (of_a, of_b), out, "own", None, {"beta": 0.0})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out.numpy(), a @ b)


# Reproducible results -------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 1, dtype: str = "bfloat16") -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values.astype(memory.as_dtype(dtype))


@most_kinds
def test_results_are_the_same_bits_on_every_run(device: cudakit.Device, tile: Any) -> None:
    family = replace(FAMILY, variants=(own(tile),))
    a, b = device.array(normal(200, 1096)), device.array(normal(1096, 80, seed=2))
    first, *others = (apply(family, (a, b), None, "own", None, {"dtype": "float32"}).numpy() for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("tile", quick([*KINDS, *WAYS], KINDS[0], WAYS[0], WAYS[2]), ids=named)
@pytest.mark.parametrize("seed", quick(range(40), 0))
def test_the_moments_at_which_copies_complete_do_not_matter(tile: Any, seed: int) -> None:
    """Tensor copies, gathers and one of each, in an order of warps and of completed copies that the seed draws; blocks
    of one step of k or many, and of several tiles, the last of which is stored through the ring."""
    m, n = 2 * tile.bm + 8, 24
    if isinstance(tile, Tile):
        tile, n = replace(tile, tail=32), tile.bn + 24
    with cudakit.Device("sim", fresh=True, order="random", seed=seed) as device:
        for k, aligned in itertools.product((26, LONGEST + 70), ((True, True), (True, False), (False, False))):
            few = isinstance(tile, Split) and k <= 64 * (tile.pieces - 1)
            if not few and (isinstance(tile, Split) or all(aligned)):
                operands = (loaded(rows, m, k, aligned[0]), loaded(columns, k, n, aligned[1]))
                expect(device, own(tile, sms=2), Case(operands, Integers(seed), contiguous((m, n), 0, "bfloat16")))


# The family's own problems and calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.long
def test_any_problem_is_right(device: cudakit.Device, variant: Variant[Any]) -> None:
    """All layouts, epilogues and dtypes that the family draws; test_kernels.py draws fewer."""
    check_variant(device, FAMILY, variant, cases_of(FAMILY, variant, 4_000), examples=150)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("k", "lead", "gap"),
    [(1096, 0, 8), (1091, 0, 0), (1096, 1, 7), pytest.param(1096, 0, 3, marks=pytest.mark.long)],
)
def test_later_calls_use_their_own_arrays_and_numbers(
    device: cudakit.Device, variant: Variant[Any], k: int, lead: int, gap: int
) -> None:
    """The second and later calls of a kind reuse the launches of the first: the maps have new addresses, and alpha,
    beta and scale new values."""
    if (variant is tiles and k % 8) or (variant is not packed_tiles and (lead or gap % 8)):
        pytest.skip("the kernel cannot load the operand")
    m, n = 72, 40
    wide = [device.array(Integers(seed)((m + 1, k + lead + gap)).astype(np.float16)) for seed in range(3)]
    columns_of = [device.array(Integers(seed)((k, n)).astype(np.float16)) for seed in (4, 5, 6)]
    first = Integers(7)((m, n))
    for call, (alpha, beta, scale) in enumerate(
        [(1.0, 2.0, 2.0), (0.5, 2.0, 2.0), (0.5, -1.0, 4.0), (-0.0, 1.0, 2.0), (2.0, 0.0, 1.0), (-1.0, 0.0, 1.0)]
    ):
        a, b = wide[call % 3][:m, lead : lead + k], columns_of[call % 3]
        c = device.array(first)
        ops.gemm(a, b, c, alpha=alpha, beta=beta, scale=scale, variant=variant.name)
        exact = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
        np.testing.assert_array_equal(c.numpy(), scale * (alpha * exact + (beta * first if beta else 0)))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_later_call_with_an_unaligned_operand(device: cudakit.Device, variant: Variant[Any]) -> None:
    """The launch of an aligned operand is not reused for one at an odd place."""
    a, b = Integers()((72, 144)).astype(np.float16), Integers(2)((144, 24)).astype(np.float16)
    of_a, of_b = device.array(a), device.array(b)
    for first in (0, 8, 1, 0, 3):
        if variant is not packed_tiles and first % 8:
            with pytest.raises(cudakit.UnsupportedVariant, match=r"A begins at a multiple of 2 bytes .* pass variant"):
                ops.gemm(of_a[:, first : first + 128], of_b[first : first + 128], variant=variant.name)
            continue
        made = ops.gemm(of_a[:, first : first + 128], of_b[first : first + 128], variant=variant.name)
        exact = a[:, first : first + 128].astype(np.float32) @ b[first : first + 128].astype(np.float32)
        np.testing.assert_array_equal(made.numpy(), exact.astype(np.float16))


@pytest.mark.parametrize(
    "variant",
    [own(NARROW), own(WAYS[0]), own(WAYS[2]), gemv_cluster],
    ids=["tiles", "one launch", "partial sums", "gemv_cluster"],
)
def test_a_product_of_the_result_of_the_kernel_before(device: cudakit.Device, variant: Variant[Any]) -> None:
    """All are launched before that kernel ends, and must wait for it."""
    family = replace(FAMILY, variants=(variant,))
    a, b = Integers(1, 1)((8, 384)).astype(np.float16), Integers(2, 1)((384, 384)).astype(np.float16)
    stream = device.stream()
    left, right = device.array(a, stream=stream), device.array(b, stream=stream)
    once, twice = (device.zeros((8, 384), np.float16, stream=stream) for _ in range(2))
    for x, y in ((left, once), (once, twice)):
        apply(family, (x, right), y, variant.name, stream, {})
    exact = (a.astype(np.float32) @ b.astype(np.float32)) @ b.astype(np.float32)
    np.testing.assert_array_equal(twice.numpy(stream=stream), exact.astype(np.float16))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("k", quick([128, 1088, 1091], 1088, 1091))
def test_a_captured_product_is_replayed_with_new_data(device: cudakit.Device, variant: Variant[Any], k: int) -> None:
    """1088, 1091: partial sums, or packed operands, are in scratch memory."""
    m, n = 24, 40
    if variant is tiles and k % 8:
        pytest.skip("tensor copies cannot read the operands")
    stream = device.stream()
    a, b, out = (device.array(np.ones(shape, np.float16), stream=stream) for shape in ((m, k), (k, n), (m, n)))
    ops.gemm(a, b, out, variant=variant.name, stream=stream)
    with stream.capture() as captured:
        ops.gemm(a, b, out, alpha=2.0, variant=variant.name, stream=stream)
    graph = captured.instantiate()
    for seed in (1, 2):
        hosts = [Integers(seed, 1)(shape).astype(np.float16) for shape in ((m, k), (k, n))]
        a.copy_from(hosts[0], stream=stream)
        b.copy_from(hosts[1], stream=stream)
        graph.launch(stream)
        exact = 2 * (hosts[0].astype(np.float32) @ hosts[1].astype(np.float32))
        np.testing.assert_array_equal(out.numpy(stream=stream), exact.astype(np.float16))


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("batched", ["both", "a", "neither"])
def test_packed_operands(device: cudakit.Device, gap: int, batched: str) -> None:
    """Neither operand, or both of them, can be read by tensor copies; each of several matrices is packed."""
    m, n, k = 130, 70, 131
    a, b = (3, m, k) if batched != "neither" else (m, k), (3, k, n) if batched == "both" else (k, n)
    layouts = []
    for shape in (a, b):
        pitch = shape[-1] + gap
        strides = (shape[-2] * pitch, pitch, 1)[-len(shape) :]
        layouts.append(Layout(shape, strides, gap, "bfloat16"))
    out = contiguous((*a[:-2], m, n), 0, "bfloat16")
    expect(device, replace(packed_tiles, rounding=0.0), Case(tuple(layouts), Integers(most=1), out))


# Compiled kernels -----------------------------------------------------------------------------------------------------


PLAIN: dict[str, Any] = {}
FUSED = {"activation": "gelu", "added": "c bias residual", "beta": 1.0}


def launches_of(
    device: cudakit.Device, tile: Any, result: str, by_columns: bool, added: str = "", **options: Any
) -> tuple[Launch, ...]:
    """The launches for operands that are contiguous along k, and an output stored by tensor copies."""
    a, b, out, c = (
        device.empty((1024, 1024), memory.as_dtype(kind)) for kind in ("bfloat16", "bfloat16", result, result)
    )
    arrays = {"c": c, "bias": c[0], "residual": c}
    p = problem((a, b.T, *map(arrays.get, added.split())), out.T if by_columns else out, added=added, **options)
    layout = layout_of(p)
    assert isinstance(layout, OperandLayout)
    return several(tile.launch(p, layout))


def compiled_tiles() -> Iterator[Any]:
    """Tiles, the output's dtype and whether its columns are contiguous. test_every_tile runs the kernels of the short
    ones."""
    tails = [each for tile in TILE_TABLE for each in tailed(tile) if each.tail not in (32, 96)]
    for tile, result, by_columns in itertools.product(
        (*TILE_TABLE, *tails, *SPLIT_TABLE), ("bfloat16", "float32"), (False, True)
    ):
        if by_columns or isinstance(tile, Split) or tile.bn % 16 == 0:
            short = tile in TILE_TABLE and result == "bfloat16" and by_columns == bool(tile.bn % 16)
            name = f"{named(tile)}-{result}-{'columns' if by_columns else 'rows'}"
            yield pytest.param(tile, result, by_columns, id=name, marks=[] if short else [pytest.mark.long])


@pytest.mark.parametrize(("tile", "result", "by_columns"), list(compiled_tiles()))
@pytest.mark.parametrize("form", [PLAIN, pytest.param(FUSED, marks=pytest.mark.long)], ids=["plain", "fused"])
def test_products_are_not_serialised(
    sim: cudakit.Device, tile: Any, result: str, by_columns: bool, form: dict[str, Any]
) -> None:
    """ptxas puts waits between products (C7510, C7514, C7515) if a kernel uses their registers too early, and ignores
    setmaxnreg (C7511) if registers are limited otherwise. No kernel spills registers, with one exception: the sums of
    wide tiles in turns and an epilogue that reads three arrays do not fit in 240 registers."""
    full = isinstance(tile, Tile) and tile.turns and tile.bn >= 160 and form is FUSED
    for launch in launches_of(sim, tile, result, by_columns, **form):
        compiled = cache.compiled(FAMILY.request(sim, tiles, launch))
        warnings = [line for line in compiled.log.splitlines() if "warning" in line.lower()]
        assert not re.search(r"C75\d\d|serialized|ignored", compiled.log), warnings
        used = compiled.resources[compiled.lowered[launch.entry]]
        assert used.spill_stores <= (64 if full else 0), launch.entry


@pytest.mark.parametrize("tile", quick(SPLIT_TABLE, SPLIT_TABLE[0]), ids=named)
@pytest.mark.parametrize(("left", "right"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("aligned", quick([(False, False), (True, False), (False, True)], (False, False)))
def test_products_of_gathered_operands_are_not_serialised(
    shared_sim: cudakit.Device, tile: Split, left: bool, right: bool, aligned: tuple[bool, bool]
) -> None:
    """Nor spill registers. left, right: whether A and B are contiguous along k."""
    p = problem_of(shared_sim, 1027, 1027, 1027)
    strides = [(1032 if each else 1027, 1) for each in aligned]
    a, b = strides[0] if left else strides[0][::-1], strides[1][::-1] if right else strides[1]
    p = replace(p, a=replace(p.a, row=a[0], col=a[1]), b=replace(p.b, row=b[0], col=b[1]))
    layout = layout_of(p)
    assert isinstance(layout, OperandLayout)
    assert (layout.a.tensor, layout.b.tensor) == aligned
    (launch,) = several(tile.launch(p, layout))
    compiled = cache.compiled(FAMILY.request(shared_sim, split_k, launch))
    assert not re.search(r"C75\d\d|serialized|ignored", compiled.log)
    assert compiled.resources[compiled.lowered[launch.entry]].spill_stores == 0


# Choice ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(case=cases_of(FAMILY, tiles, 200_000))
def test_the_chosen_variant_supports_the_problem(shared_sim: cudakit.Device, case: Case) -> None:
    """Also on other architectures, on which it is never one of Hopper's own."""
    out = case.inputs[case.over] if case.output is None else case.output
    assert isinstance(out, Layout)
    buffers = [shared_sim.empty((place.extent,), memory.as_dtype(place.dtype)) for place in (*case.inputs, out)]
    stream = shared_sim.default_stream
    arrays = [place.on(buffer, stream) for place, buffer in zip((*case.inputs, out), buffers, strict=True)]
    to = arrays[case.over] if case.output is None else arrays[-1]
    p = FAMILY.problem_of(arrays[:-1], to, **case.options)
    for arch in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_120a"):
        picked = FAMILY.pick("auto", p, arch)
        assert picked.refusal(p, arch) is None
        assert arch == "sm_90a" or picked not in VARIANTS


@pytest.fixture(scope="module")
def shared_sim() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as opened:
        yield opened


def problem_of(device: cudakit.Device, m: int, n: int, k: int, **options: Any) -> GemmProblem:
    a, b = device.empty((m, k), np.float16), device.empty((k, n), np.float16)
    return problem((a, b), device.empty((m, n), np.float16), **options)


def test_large_products_have_large_tiles_and_small_ones_fill_the_device(shared_sim: cudakit.Device) -> None:
    large, small = problem_of(shared_sim, 4096, 4096, 4096), problem_of(shared_sim, 256, 256, 8192)
    assert gemm_half.choose(large, "sm_90a") == "tiles"
    (launch,) = tiles.launches(large)
    assert launch.grid >= 0.9 * large.sms
    assert gemm_half.choose(small, "sm_90a") == "split_k"
    first, *_ = split_k.launches(small)
    assert first.grid >= 0.5 * small.sms


@settings(max_examples=100)
@given(extents, extents, st.integers(1, 40))
def test_splits_are_of_one_way_and_fill_the_device(shared_sim: cudakit.Device, m: int, n: int, batch: int) -> None:
    """k is shared by the blocks of a cluster, or by blocks that write parts, all of which run at the same time. For
    each tile, one number of parts leaves too few multiprocessors for another part."""
    p = replace(problem_of(shared_sim, 8, 8, 64), m=m, n=n, batch=batch)
    for plain in SPLIT_TABLE:
        found = [each for each in splits_of(p) if replace(each, cluster=1, splits=1) == plain]
        assert len(found) == len(set(found))
        assert [each.cluster for each in found if each.splits == 1] == list(CLUSTERS)
        parts = [each for each in found if each.splits > 1]
        assert all(each.cluster == 1 and each.splits * each.count(p) <= p.sms for each in parts)
        if 2 * plain.count(p) <= p.sms:
            assert max(each.splits for each in parts) * plain.count(p) > p.sms - plain.count(p)


def programmatic(variant: Variant[Any], p: Any) -> list[bool]:
    return [launch.programmatic for launch in several(variant.launches(p))]


def test_kernels_for_hopper_start_before_their_predecessor_ends(shared_sim: cudakit.Device) -> None:
    """The other kernels do not wait for their predecessor, or have variants for devices on which they cannot."""
    p = problem_of(shared_sim, 256, 256, 8192)
    assert programmatic(tiles, p) == programmatic(own(WAYS[0]), p) == [True]
    assert programmatic(own(WAYS[2]), p) == [True, True]
    odd = replace(p, a=replace(p.a, row=8193))
    assert {True} == set(programmatic(packed_tiles, odd))
    assert len(programmatic(packed_tiles, odd)) >= 2
    a, b, out = (shared_sim.empty(shape, np.float16) for shape in ((256, 64), (2, 64, 256), (256, 256)))
    offsets = shared_sim.empty((3,), np.int32)
    assert programmatic(gemm_grouped.FAMILY["grouped"], gemm_grouped.problem((a, b, offsets), out)) == [True]
    few = problem_of(shared_sim, 2, 256, 8192)
    assert programmatic(gemv_cluster, few) == [True]
    assert not any(programmatic(gemv, few))
    for name in ("wmma", "ldmatrix", "pipelined", "packed", "wgmma", "stored"):
        assert not any(programmatic(FAMILY[name], p))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_unsupported_problems_are_refused_with_the_reason(shared_sim: cudakit.Device, variant: Variant[Any]) -> None:
    p = problem_of(shared_sim, 64, 64, 64)
    with pytest.raises(cudakit.UnsupportedVariant, match="k is 0"):
        variant.launches(problem_of(shared_sim, 64, 64, 0))
    with pytest.raises(cudakit.UnsupportedVariant, match="do not fit in the device's shared memory"):
        variant.launches(replace(p, shared=8_192))
    with pytest.raises(cudakit.UnsupportedVariant, match="extents up to"):
        variant.launches(replace(p, n=2**31 - 8))
    if variant is not packed_tiles:
        with pytest.raises(cudakit.UnsupportedVariant, match="neither axis of B is contiguous"):
            variant.launches(replace(p, b=replace(p.b, col=2)))
        with pytest.raises(cudakit.UnsupportedVariant, match=r"A begins at a multiple of 2 bytes .* needs a multiple"):
            variant.launches(replace(p, a=replace(p.a, alignment=2)))
        long = replace(p, k=2**28 + 1, a=replace(p.a, row=2**28 + 1))
        with pytest.raises(cudakit.UnsupportedVariant, match=r"adjoin \(of at most 268435424 elements\) or"):
            variant.launches(long)
    assert "needs sm_90a itself" in (variant.refusal(p, "sm_100a") or "")


def test_the_number_of_tiles_is_limited(shared_sim: cudakit.Device) -> None:
    """A block's next tile must have a number of 31 bits."""
    p = replace(problem_of(shared_sim, 1, 1, 64), batch=2**31 - 5)
    assert isinstance(best_tile(p), str)
    assert not isinstance(best_tile(replace(p, batch=2**30)), str)
    assert not isinstance(best_split(replace(p, batch=2**30)), str)
