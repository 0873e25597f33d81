"""16-bit products by Hopper's own instructions: every tile, persistent blocks with several tiles, the same bits on
every run, and what the compiler says of the kernels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wgmma_products import (
    FAMILY,
    KINDS,
    LONGEST,
    NARROW,
    SMALLEST,
    WAYS,
    Integers,
    case_of,
    columns,
    every_kind,
    expect,
    extents,
    lines_of,
    loaded,
    most_kinds,
    named,
    own,
    pitched,
    problem_of,
    quick,
    rows,
    tailed,
)

import cudakit
from cudakit.compile import cache
from cudakit.families.gemm_half import DTYPES, problem
from cudakit.families.gemm_hopper import (
    CLUSTERS,
    SPLIT_TABLE,
    TILE_TABLE,
    split_k,
    tiles,
)
from cudakit.families.gemm_hopper_layout import Layout as OperandLayout
from cudakit.families.gemm_hopper_layout import layout_of
from cudakit.families.gemm_hopper_tiles import Split, Tile
from cudakit.family import Launch, apply, several
from cudakit.memory import array as memory
from cudakit.sim.instructions.warpgroup_products import multiply
from cudakit.testing import Case, Layout, contiguous

pytestmark = pytest.mark.usefixtures("needs_hopper")


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
    "pieces",
    quick([*((c, 1) for c in CLUSTERS), *((1, s) for s in (2, 3, 14, 40))], (4, 1), (1, 3)),
    ids="{0[0]}x{0[1]}".format,
)
def test_every_split(device: cudakit.Device, split: Split, pieces: tuple[int, int]) -> None:
    """A step of k per piece, then one more for some of the pieces; several partial tiles."""
    tile = replace(split, cluster=pieces[0], splits=pieces[1])
    for steps in {tile.pieces, tile.pieces + tile.pieces // 2 + 1}:
        expect(device, own(tile), case_of(split.bm + 24, split.bn + 9, 64 * steps - 3, dtype="float32"))


@pytest.mark.parametrize("splits", quick([2, 5, 17, 40], 5, 17))
@pytest.mark.parametrize(("sms", "most"), [(1, 1), (3, 2), (6, 4), (12, 8), (24, 16)])
def test_parts_are_added_by_as_many_warps_as_fill_the_device(
    device: cudakit.Device, splits: int, sms: int, most: int
) -> None:
    """A warp adds several parts, one, or none; with one warp per sum, the last block has fewer sums than the others."""
    variant = own(replace(SMALLEST, splits=splits), sms=sms)
    m, n, k = SMALLEST.bm - 5, 3 * SMALLEST.bn - 3, 64 * splits + 9
    expect(device, variant, case_of(m, n, k, dtype="float32"))
    _, join = variant.launches(problem_of(device, m, n, k))
    assert join.args[-1] == min(most, 1 << (splits - 1).bit_length())


@pytest.mark.parametrize("split", quick(SPLIT_TABLE, *(each for each in SPLIT_TABLE if each.stages > 8)), ids=named)
@pytest.mark.parametrize("pieces", quick([(1, 1), (2, 1), (1, 2)], (1, 2)), ids="{0[0]}x{0[1]}".format)
def test_more_steps_than_the_ring_has_stages(device: cudakit.Device, split: Split, pieces: tuple[int, int]) -> None:
    tile = replace(split, cluster=pieces[0], splits=pieces[1])
    k = 64 * (2 * split.stages + 1) * tile.pieces - 5
    expect(device, own(tile), case_of(split.bm + 8, split.bn - 7, k, dtype="float32"))


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
        (*TILE_TABLE, *tails, *SPLIT_TABLE, *(replace(each, splits=3) for each in SPLIT_TABLE)),
        ("bfloat16", "float32"),
        (False, True),
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
    wide tiles in turns and an epilogue that reads three arrays do not fit in 240 registers. Then up to 64 of them are
    spilled, once per tile."""
    full = isinstance(tile, Tile) and tile.turns and tile.bn >= 160 and form is FUSED
    for launch in launches_of(sim, tile, result, by_columns, **form):
        compiled = cache.compiled(FAMILY.request(sim, tiles, launch))
        warnings = [line for line in compiled.log.splitlines() if "warning" in line.lower()]
        assert not re.search(r"C75\d\d|serialized|ignored", compiled.log), warnings
        used = compiled.resources[compiled.lowered[launch.entry]]
        assert used.spill_stores <= (64 * 4 if full else 0), launch.entry


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
