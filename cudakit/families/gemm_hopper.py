"""Products of 16-bit operands by Hopper's own instructions (sm_90a): the choice of a tile by a model of times, and the
variants.

Either side of a product may be the one whose 64 rows a wgmma multiplies: a problem or its transpose (`turned`) is
launched, whichever is faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cudakit.families import gemm_packed
from cudakit.families.gemm_hopper_layout import ITEM, Layout, Side, layout_of, side_of
from cudakit.families.gemm_hopper_tiles import SPLIT_K, TILES, Split, Tile
from cudakit.families.gemm_problem import GemmProblem
from cudakit.family import Launch, ceil_div, several, variant

# Tiles of 12_tiles.cu: in turns, without and with clusters, then shared by two warpgroups. A ring of 4 stages has room
# for tall tail tiles.
TILE_TABLE = (
    *(Tile(128, bn, 2, True, 5, 1, 1, 1, 12) for bn in (128, 144, 160, 168, 176, 184, 192, 200, 208)),
    *(Tile(128, bn, 2, True, 4, 1, 1, 1, 12) for bn in (200, 208)),
    *(Tile(128, bn, 2, True, 5, 2, 1, 1, 6) for bn in (128, 160, 192)),
    Tile(128, 256, 2, False, 4, 1, 2, 1, 16),
    Tile(128, 256, 2, False, 4, 2, 2, 1, 10),
    *(Tile(128, 128, 2, False, 6, shares, 2, 2, 16 // shares) for shares in (1, 2)),
    *(Tile(128, 64, 2, False, 8, shares, 1, 1, 16 // shares) for shares in (1, 2)),
)
SPLIT_TABLE = tuple(
    Split(groups, bn, stages, 1)
    for groups, bn, stages in ((2, 128, 5), (2, 96, 7), (2, 64, 8), (2, 32, 8), (1, 128, 8), (1, 96, 8), (1, 64, 8),
        (1, 64, 12), (1, 32, 8), (1, 32, 12), (1, 16, 8), (1, 16, 14))
)  # fmt: skip
CLUSTERS = 1, 2, 4, 8  # blocks that share a tile's k through distributed shared memory
SPLITS = 2, 3, 4, 6, 8, 12, 16, 24, 32, 48  # blocks that write parts of a tile; also as many as fill the device


# The model of times ---------------------------------------------------------------------------------------------------

# us per term, fitted by examples/half_products/fit_times.py on an H200. The terms of "turns" and "shared": 1; MB of A
# and B; MB of output, again if its rows are not whole sectors, and again if lanes store it; steps of 64 k of all rounds
# of tiles; their area, in 128 x 128; the same times the share of busy multiprocessors (more of them have a lower
# clock); the same in clusters; hundreds of lines per step, by how they are loaded.
# Those of "split": 1; whether there are clusters; the rounds of clusters after the first one; whether there are several
# parts per tile; the MB of their sums; the area of all rounds of blocks times the blocks of a cluster; steps of all
# rounds, fewer for deep rings; the rounds, if super rows are copied; the area of all blocks of a multiprocessor; then,
# for these, the area of steps times the share of busy multiprocessors, and lines as above; MB of A and B; the same if
# several blocks run on a multiprocessor at the same time; MB of output.
COEFFICIENTS: dict[str, tuple[float, ...]] = {
    "turns": (4.187, 0.1245, 0.2034, 0.1763, 0.04458, 0, 0.1934, 0.06398, 0.01083, 0.01654, 0.04912, 0),
    "shared": (3.896, 0.1621, 0.2029, 0.1316, 0.08448, 0.03605, 0.07668, 0.09818, 0.03566, 0.05306, 0.06841, 0),
    "split": (2.455, 0.9851, 2.36, 2.093, 0.3335, 0.2767, 0.06449, 0.8479, 0.8258, 0.2084, 0.03354, 0.07134, 0.3723,
        0.1425, 0.01906, 0.4611),
}  # fmt: skip
PACK_US, PACK_BYTES_PER_US = 2.94, 3.01e6
# us per element of C or of the residual, if its neighbour in the row is not next to it in memory, and if no other group
# multiplies meanwhile. Not fitted: with a residual 4096 cubed takes 9 us more in turns by tiles of whole rows, 44 to 67
# us more by tiles of the transpose, and about 33 us more by tiles that two groups share.
ADDED_US = 2e-6


def us(tile: Tile | Split, p: GemmProblem, layout: Layout) -> float:
    """Return the modelled time of a tile's launches."""
    terms = sum(a * b for a, b in zip(COEFFICIENTS[tile.kind], tile.terms(p, layout), strict=True))
    return terms + ADDED_US * p.m * p.n * p.batch * _added(tile, p)


def _added(tile: Tile | Split, p: GemmProblem) -> float:
    """Return how often ADDED_US applies to an element of the output."""
    arrays = [array for array in (p.c if p.beta != 0 else None, p.residual) if array]
    rounds = max(1, ceil_div(tile.count(p), p.sms))
    exposed = 1 - 1 / rounds if tile.kind == "shared" else 0  # the last round is exposed in turns, too
    return sum((array.col != 1) + exposed for array in arrays)


# The choice of a tile -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A tile for a problem, or for its transpose (`turned`), and the modelled time in us. It has no problem, because
    results are cached for problems that compare equal, and 0.0 equals -0.0."""

    turned: bool
    tile: Any
    us: float

    def launch(self, p: GemmProblem, *more: int) -> Any:
        """Return the launches for the problem."""
        side = p.turned if self.turned else p
        layout = layout_of(side)
        assert isinstance(layout, Layout)
        return self.tile.launch(side, layout, *more)


def sides(p: GemmProblem) -> Iterator[tuple[bool, GemmProblem, Layout]]:
    """Yield False and the problem, and True and its transpose, with their layouts, as far as the kernels support
    them. The first one has a B that is contiguous along k, if there is one: it is faster by 1 % or less."""
    for turned, side in sorted(((False, p), (True, p.turned)), key=lambda each: each[1].b.row != 1):
        layout = layout_of(side)
        if isinstance(layout, Layout):
            yield turned, side, layout


def tiles_of(p: GemmProblem, layout: Layout) -> Iterator[Tile]:
    """Yield the tiles of 12_tiles.cu for a problem: those of the table, also with tail tiles. If all rows are whole
    lines of L2, sharing them in clusters costs more than it saves."""
    alone = layout.a.whole and layout.b.whole
    tiles = (tile for tile in TILE_TABLE if tile.shares == 1 or not alone)
    for tile in tiles if layout.tensor else dict.fromkeys(each.stored_by_lanes(p, layout) for each in tiles):
        yield tile
        tailed = tile.with_tail(p, layout)
        if tailed.tail:
            yield tailed


def splits_of(p: GemmProblem) -> Iterator[Split]:
    """Yield the tiles of 13_split_k.cu for a problem, with the ways to share their k: the blocks of a cluster, or
    blocks that write parts, at most as many as run at the same time. Both together are slower than parts alone."""
    for plain in SPLIT_TABLE:
        for cluster in CLUSTERS:
            yield replace(plain, cluster=cluster)
        most = p.sms // plain.count(p)
        for splits in (*(splits for splits in SPLITS if splits < most), *([most] if most > 1 else ())):
            yield replace(plain, splits=splits)


@functools.lru_cache(maxsize=256)
def best_tile(p: GemmProblem) -> Choice | str:
    """Return the fastest tile of 12_tiles.cu, or the reason why there is none."""
    return _fastest(p, tiles_of)


@functools.lru_cache(maxsize=256)
def best_split(p: GemmProblem) -> Choice | str:
    """Return the fastest tile of 13_split_k.cu, or the reason why there is none."""
    return _fastest(p, lambda side, _: splits_of(side))


def _fastest(p: GemmProblem, candidates: Callable[[GemmProblem, Layout], Iterable[Tile | Split]]) -> Choice | str:
    choices = [
        Choice(turned, tile, us(tile, side, layout))
        for turned, side, layout in sides(p)
        for tile in candidates(side, layout)
        if tile.fits(side, layout)
    ]
    return min(choices, key=lambda choice: choice.us) if choices else _reason(p)


def _reason(p: GemmProblem) -> str:
    """Return why no tile of a kernel supports a problem."""
    layout = layout_of(p)
    if isinstance(layout, str):
        return layout
    for name, side in (("A", layout.a), ("B", layout.b)):
        if not side.tensor:
            return (
                f"tensor copies cannot read {name}: its first element and its rows must be on 16-byte boundaries; pass "
                'variant="packed_tiles" or "auto"'
            )
    return "the tiles do not fit in the device's shared memory"


# Variants -------------------------------------------------------------------------------------------------------------


@variant(TILES, since="sm_90a", problems="pieces")
def tiles(problem: GemmProblem) -> Launch | str:
    """wgmma: tiles in turns, a ring of tensor copies, stores during products"""
    choice = best_tile(problem)
    return choice if isinstance(choice, str) else choice.launch(problem)


@variant(SPLIT_K, since="sm_90a", problems="pieces")
def split_k(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """wgmma: the blocks of a cluster share a tile's k"""
    choice = best_split(problem)
    return choice if isinstance(choice, str) else choice.launch(problem)


@variant(TILES, since="sm_90a")
def packed_tiles(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """operands that tensor copies cannot read are copied to aligned scratch memory once"""
    packing = packing_for(problem)
    applied = packing.applied(problem)
    choice = _best_packed(applied)
    if isinstance(choice, str):
        return choice
    used = ITEM * packing.end
    product = several(choice.launch(applied, used) if isinstance(choice.tile, Split) else choice.launch(applied))
    first, *rest = (replace(each, scratch=max(each.scratch, used)) for each in product)
    return (*packs(packing, problem), first, *rest)


def packs(packing: gemm_packed.Packing, p: GemmProblem) -> tuple[Launch, ...]:
    """Return the launch that packs the operands, if there is one."""
    return tuple(replace(each, programmatic=True) for each in gemm_packed.pack_launches(packing, p))


def packing_us(packing: gemm_packed.Packing) -> float:
    """Return the modelled time of the launch that packs operands, which reads and writes them."""
    return PACK_US + 2 * ITEM * packing.end / PACK_BYTES_PER_US


def packing_for(p: GemmProblem) -> gemm_packed.Packing:
    """Return how the operands are packed: those that do not consist of aligned 16-byte pieces, and those whose pieces
    the kernels cannot load, such as rows in reverse order."""
    of_a, of_b = (
        of if isinstance(side_of(of, lines, p.k, p.batch), Side) else replace(of, alignment=ITEM)
        for of, lines in ((p.a, p.m), (p.b.turned, p.n))
    )
    return gemm_packed.packing_of(replace(p, a=of_a, b=of_b.turned), along_k=True, keep=True)


def _best_packed(applied: GemmProblem) -> Choice | str:
    """Return the fastest tile of either kernel for packed operands."""
    choices = [choice for choice in (best_tile(applied), best_split(applied)) if isinstance(choice, Choice)]
    return min(choices, key=lambda choice: choice.us) if choices else _reason(applied)


VARIANTS = (tiles, split_k, packed_tiles)


def choose(problem: GemmProblem) -> str:
    """Return the fastest variant by the model of times, or "" if there is none."""
    times: dict[str, float] = {}
    for name, choice in (("tiles", best_tile(problem)), ("split_k", best_split(problem))):
        if isinstance(choice, Choice):
            times[name] = choice.us
    packing = packing_for(problem)
    if packing.packed:
        packed = _best_packed(packing.applied(problem))
        if isinstance(packed, Choice):
            times["packed_tiles"] = packed.us + packing_us(packing)
    return min(times, key=lambda name: times[name]) if times else ""
