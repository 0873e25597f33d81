"""Problems, matrices and variants of a single tile for the tests of 16-bit products by Hopper's own instructions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import cudakit
from cudakit.families import gemm_half
from cudakit.families.gemm_half import problem
from cudakit.families.gemm_hopper import (
    SPLIT_TABLE,
    TILE_TABLE,
)
from cudakit.families.gemm_hopper_layout import Layout as OperandLayout
from cudakit.families.gemm_hopper_layout import Side, layout_of
from cudakit.families.gemm_hopper_tiles import TILES, Split, Tile
from cudakit.families.gemm_problem import GemmProblem
from cudakit.family import Launch, Variant
from cudakit.testing import Case, Layout, Unsupported, contiguous, run_case

FAMILY = gemm_half.FAMILY
SMALLEST = min(SPLIT_TABLE, key=lambda split: (split.bm * split.bn, split.stages))
NARROW = min(TILE_TABLE, key=lambda tile: (tile.shares, tile.bm * tile.bn))
LONGEST = max(tile.stages for tile in (*TILE_TABLE, *SPLIT_TABLE)) * 64  # the k of the longest ring


def named(tile: Tile | Split) -> str:
    if isinstance(tile, Split):
        return f"{tile.bm}x{tile.bn} stages {tile.stages} in {tile.cluster}x{tile.splits}"
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
WAYS = [replace(SMALLEST, cluster=cluster, splits=splits) for cluster, splits in ((1, 1), (2, 1), (1, 3))]


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


extents = st.one_of(st.integers(1, 600), st.integers(1, 20_000))


def problem_of(device: cudakit.Device, m: int, n: int, k: int, **options: Any) -> GemmProblem:
    a, b = device.empty((m, k), np.float16), device.empty((k, n), np.float16)
    return problem((a, b), device.empty((m, n), np.float16), **options)
