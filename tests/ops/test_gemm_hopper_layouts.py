"""16-bit products by Hopper's own instructions: all layouts of the operands and of the output, and batches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wgmma_products import (
    FAMILY,
    KINDS,
    NARROW,
    SMALLEST,
    WAYS,
    Integers,
    case_of,
    columns,
    expect,
    first_of_each,
    loaded,
    most_kinds,
    named,
    own,
    pitched,
    quick,
    rows,
    spread,
)

import cudakit
from cudakit import ops
from cudakit.families.gemm_hopper import (
    SPLIT_TABLE,
    TILE_TABLE,
    packed_tiles,
    split_k,
)
from cudakit.families.gemm_hopper_tiles import Split, Tile
from cudakit.testing import Case, Layout, Unsupported, contiguous, run_case

pytestmark = pytest.mark.usefixtures("needs_hopper")


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
