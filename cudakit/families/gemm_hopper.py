"""Products of 16-bit operands by Hopper's own instructions (sm_90a): the launches of kernels/gemm_half/12_tiles.cu and
13_split_k.cu, and the model of their times.

Either side of a product may be the one whose 64 rows a wgmma multiplies: a problem or its transpose (`turned`) is
launched, whichever is faster.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cudakit.families import gemm_packed
from cudakit.families.gemm_problem import GemmProblem, Operand, arguments, epilogue_arguments, epilogue_constants
from cudakit.family import CPP, SCRATCH, Launch, TensorMapSlot, ceil_div, cpp_bool, variant
from cudakit.memory import array as memory

TILES, SPLIT_K = "gemm_half/12_tiles.cu", "gemm_half/13_split_k.cu"
_ITEM = 2  # bytes per element of A and B
_DEPTH = 64  # k per stage of the ring
_GROUP = 128  # threads of a warpgroup
_BUFFER = 8192  # bytes per buffer of a store
_BARRIERS = 16  # bytes per stage
_MOST = 2**31 - 1


# Layout of the operands -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """How the kernels read A, or B transposed: whether it is contiguous along k, and whether tensor copies load it
    (otherwise a warpgroup gathers it)."""

    along_k: bool
    tensor: bool

    def bytes(self, lines: int) -> int:
        """Bytes of a tile of `lines` lines in shared memory."""
        return (lines if self.along_k else ceil_div(lines, 64) * 64) * _DEPTH * _ITEM


def _side(of: Operand, lines: int, depth: int, batches: int) -> Side | None:
    """Return how the kernels read an operand, whose rows are its lines; None if neither axis is contiguous."""
    if of.col == 1 or depth == 1:
        along_k, step, extent, rows = True, of.row, depth, lines
    elif of.row == 1 or lines == 1:
        along_k, step, extent, rows = False, of.col, lines, depth
    else:
        return None
    width = 16 // _ITEM
    whole = of.alignment == 16 and (rows == 1 or (step % width == 0 and step >= extent))
    whole = whole and (batches == 1 or not of.batch or (of.batch % width == 0 and of.batch > 0))
    return Side(along_k, whole and (of.col if along_k else of.row) == 1)


@dataclass(frozen=True)
class Layout:
    """The layout of a problem's arrays. by_columns: the output is contiguous along its columns. tensor: whether tensor
    copies store it."""

    a: Side
    b: Side
    by_columns: bool
    tensor: bool

    @property
    def gathers(self) -> bool:
        """Whether a warpgroup gathers an operand."""
        return not (self.a.tensor and self.b.tensor)


@functools.lru_cache(maxsize=256)
def layout_of(p: GemmProblem) -> Layout | str:
    """Return the layout of a problem, or the reason why it is unsupported."""
    a, b = _side(p.a, p.m, p.k, p.batch), _side(p.b.turned, p.n, p.k, p.batch)
    for name, side in (("A", a), ("B", b)):
        if side is None:
            return f"neither axis of {name} is contiguous"
    if not p.k:
        return "k is 0"
    if max(p.m, p.n, p.k) > _MOST:
        return f"extents up to {_MOST} supported"
    by_columns = p.d.row == 1 and p.d.col != 1
    item = memory.as_dtype(p.result).itemsize
    along, step, extent = (p.d.row, p.d.col, p.m) if by_columns else (p.d.col, p.d.row, p.n)
    tensor = p.d.pieces(along, step, extent, p.batch, item) and step >= extent and (p.batch == 1 or p.d.batch > 0)
    assert a is not None
    assert b is not None
    return Layout(a, b, by_columns, tensor)


def _vector(p: GemmProblem, layout: Layout, width: int) -> int:
    """Return 1 if the output's contiguous axis consists of aligned vectors of `width` elements, else 0."""
    d = p.d
    along, step, extent = (d.row, d.col, p.m) if layout.by_columns else (d.col, d.row, p.n)
    item = memory.as_dtype(p.result).itemsize
    aligned = d.alignment == 16 or d.alignment >= width * item
    strides = (step, extent, d.batch if p.batch > 1 else 0)
    return int(along == 1 and aligned and not any(stride % width for stride in strides))


def _map(of: Operand, side: Side, lines: int, depth: int, batches: int, box: int) -> TensorMapSlot | None:
    """Return the tensor map of an operand whose rows are its lines, for tiles of `box` lines."""
    if not side.tensor:
        return None
    step, (rows, cols) = (of.row, (lines, depth)) if side.along_k else (of.col, (depth, lines))
    return TensorMapSlot(
        of.slot,
        box=(1, box if side.along_k else _DEPTH, _DEPTH),
        dims=(batches if of.batch else 1, rows, cols),
        strides=(of.batch * _ITEM, step * _ITEM, _ITEM),
        swizzle="128B",
        l2_promotion="256B",
    )


def _maps(p: GemmProblem, layout: Layout, bm: int, bn: int) -> list[TensorMapSlot | None]:
    """Return the tensor maps of A and B, None for an operand that is gathered."""
    return [
        _map(p.a, layout.a, p.m, p.k, p.batch, bm),
        _map(p.b.turned, layout.b, p.n, p.k, p.batch, bn),
    ]


def _filled(maps: list[TensorMapSlot | None], p: GemmProblem) -> list[TensorMapSlot]:
    """Return the maps; one that the kernel does not read replaces a missing one."""
    unread = TensorMapSlot(p.a.slot, box=8, dims=1, strides=_ITEM)
    return [unread if each is None else each for each in maps]


# Tiles ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A tile of bm x bn outputs of 12_tiles.cu. groups: consumer warpgroups, which compute tiles in turns or share one.
    buffers, batch: of the store. band: rows of tiles that concurrent blocks cover. The other fields are of the model
    of times, in us (see `us`)."""

    bm: int
    bn: int
    groups: int
    turns: bool
    stages: int
    buffers: int
    batch: int
    band: int
    step_us: float = 0.0
    store_us: float = 0.0

    def shared(self, layout: Layout) -> int:
        """Bytes of shared memory."""
        ring = self.stages * (layout.a.bytes(self.bm) + layout.b.bytes(self.bn))
        return ring + self.groups * self.buffers * _BUFFER + self.stages * _BARRIERS

    def count(self, p: GemmProblem) -> int:
        """Tiles of all batches."""
        return ceil_div(p.m, self.bm) * ceil_div(p.n, self.bn) * p.batch

    def fits(self, p: GemmProblem, layout: Layout) -> bool:
        """Whether its kernel supports a problem."""
        return self.shared(layout) <= p.shared and self.count(p) <= _MOST

    def launch(self, p: GemmProblem, layout: Layout) -> Launch:
        """Return the launch for a problem that it fits."""
        shape = f"Shape<{self.bm}, {self.bn}, {self.groups}, {cpp_bool(self.turns)}, {self.stages}, {self.buffers}, "
        shape += f"{self.batch}, {self.band}>"
        item = memory.as_dtype(p.result).itemsize
        maps = _maps(p, layout, self.bm, self.bn)
        maps.append(self._output(p, layout, item) if layout.tensor else None)
        flags = (layout.a.along_k, layout.b.along_k, *(each is not None for each in maps), layout.by_columns)
        bias, *epilogue = epilogue_constants(p).split(", ")
        constants = (CPP[p.dtype], CPP[p.result], bias, shape, *map(cpp_bool, flags), *epilogue)
        return Launch(
            min(self.count(p), p.sms),
            (self.groups + 1) * _GROUP,
            (*_filled(maps, p), *arguments(p), *epilogue_arguments(p), _vector(p, layout, 8 // item)),
            self.shared(layout),
            f"tiles<{', '.join(constants)}>",
            source=TILES,
        )

    def _output(self, p: GemmProblem, layout: Layout, item: int) -> TensorMapSlot:
        """Return the tensor map of the output; its boxes are those of Store in warpgroup_tile.cuh."""
        cols = next(width for width in ((64, 32, 16) if item == 2 else (32, 16)) if self.bn % width == 0)
        d = p.d
        step, rows, along = (d.col, p.n, p.m) if layout.by_columns else (d.row, p.m, p.n)
        box = (1, cols, 128 // item) if layout.by_columns else (1, 64, cols)
        strides = (d.batch * item, step * item, item)
        return TensorMapSlot(p.d.slot, box, (p.batch, rows, along), strides, swizzle=f"{box[-1] * item}B")

    def us(self, p: GemmProblem, layout: Layout) -> float:
        """Return the modelled time: the rounds of the busiest multiprocessor."""
        rounds = ceil_div(self.count(p), p.sms)
        steps = ceil_div(p.k, _DEPTH)
        return START_US + rounds * (steps * self.step_us + self.store_us)


@dataclass(frozen=True)
class Split:
    """A tile of 64 * groups x bn outputs of 13_split_k.cu, whose k the blocks of a cluster share, and a ring of
    `stages`. The other fields are of the model of times."""

    groups: int
    bn: int
    stages: int
    cluster: int
    splits: int = 1
    step_us: float = 0.0

    @property
    def bm(self) -> int:
        return 64 * self.groups

    @property
    def pieces(self) -> int:
        """The pieces of a tile's k."""
        return self.cluster * self.splits

    def shared(self, layout: Layout) -> int:
        """Bytes of shared memory: the ring, or the sums after it was used."""
        ring = self.stages * (layout.a.bytes(self.bm) + layout.b.bytes(self.bn))
        sums = 4 * (self.bn * (self.bm + 4) if layout.by_columns else self.bm * (self.bn + 8))
        return max(ring, sums) + self.stages * _BARRIERS

    def count(self, p: GemmProblem) -> int:
        """Tiles of all batches."""
        return ceil_div(p.m, self.bm) * ceil_div(p.n, self.bn) * p.batch

    def fits(self, p: GemmProblem, layout: Layout) -> bool:
        """Whether its kernel supports a problem: every piece of k has a step."""
        blocks = self.count(p) * self.pieces
        return self.shared(layout) <= p.shared and blocks <= _MOST and self.pieces <= ceil_div(p.k, _DEPTH)

    def launch(self, p: GemmProblem, layout: Layout, first_scratch: int = 0) -> tuple[Launch, ...]:
        """Return the launches for a problem that it fits. first_scratch: the bytes of scratch memory in use."""
        shape = f"Shape<{self.groups}, {self.bn}, {self.stages}, {self.cluster}>"
        maps = _maps(p, layout, self.bm, self.bn)
        bias, *epilogue = epilogue_constants(p).split(", ")
        types = (CPP[p.dtype], CPP[p.result], bias, shape)
        split = self.splits > 1
        flags = (layout.a.along_k, layout.b.along_k, *(each is not None for each in maps), layout.by_columns, split)
        begin = ceil_div(first_scratch, 16) * 16
        parts = SCRATCH.at(begin, "float32") if split else None
        args = arguments(p)
        tail = (*epilogue_arguments(p), _vector(p, layout, 4), parts, self.splits)
        main = Launch(
            self.count(p) * self.pieces,
            (self.groups + 1) * _GROUP,
            (*_filled(maps, p), *args, *tail),
            self.shared(layout),
            f"split_k<{', '.join((*types, *map(cpp_bool, flags), *epilogue))}>",
            scratch=begin + 4 * self.splits * self.count(p) * self.bm * self.bn if split else 0,
            cluster=self.cluster if self.cluster > 1 else None,
            source=SPLIT_K,
        )
        if not split:
            return (main,)
        # c, d and their strides, m, n, batches, alpha, beta
        operands, strides_of_a_and_b, m, k = 4, 6, 16, 18
        joined = (*args[2:operands], *args[operands + strides_of_a_and_b : k], *args[k + 1 :])
        assert args[m : k + 1] == (p.m, p.n, p.k)
        fours = self.count(p) * self.bm * self.bn // 4
        join = Launch(
            min(ceil_div(fours, 128), 16 * p.sms),
            128,
            (*joined, *tail),
            entry=f"split_k_join<{', '.join((*types[1:], cpp_bool(layout.by_columns), *epilogue))}>",
            source=SPLIT_K,
        )
        return main, join

    def us(self, p: GemmProblem, layout: Layout) -> float:
        """Return the modelled time: the rounds of the busiest multiprocessor."""
        rounds = ceil_div(self.count(p) * self.pieces, p.sms)
        steps = ceil_div(ceil_div(p.k, _DEPTH), self.pieces)
        join = JOIN_US if self.splits > 1 else 0.0
        return START_US + rounds * (steps * self.step_us + FINISH_US) + (CLUSTER_US if self.cluster > 1 else 0.0) + join


START_US, FINISH_US, CLUSTER_US, JOIN_US = 2.5, 0.8, 0.8, 2.5
TILE_TABLE = (
    Tile(128, 192, 2, True, 4, 3, 3, 12, 0.500, 0.1),
    Tile(128, 256, 2, False, 4, 2, 1, 16, 0.680, 0.8),
    Tile(128, 128, 2, True, 5, 2, 2, 16, 0.370, 0.1),
)
SPLIT_TABLE = tuple(
    Split(groups, bn, stages, 1, 1, step_us)
    for groups, bn, stages, step_us in (
        (2, 128, 5, 0.37), (2, 64, 8, 0.25), (2, 32, 8, 0.22), (2, 16, 8, 0.2), (1, 128, 8, 0.25), (1, 64, 8, 0.2),
        (1, 32, 8, 0.16), (1, 16, 8, 0.15),
    )
)  # fmt: skip
_PIECES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8), (8, 16))  # blocks per cluster, clusters


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


def _sides(p: GemmProblem) -> Iterator[tuple[bool, GemmProblem, Layout]]:
    """Yield False and the problem, and True and its transpose, with their layouts, as far as the kernels support
    them."""
    for turned, side in ((False, p), (True, p.turned)):
        layout = layout_of(side)
        if isinstance(layout, Layout):
            yield turned, side, layout


@functools.lru_cache(maxsize=256)
def best_tile(p: GemmProblem) -> Choice | str:
    """Return the fastest tile of 12_tiles.cu, or the reason why there is none."""
    choices = [
        Choice(turned, tile, tile.us(side, layout))
        for turned, side, layout in _sides(p)
        for tile in TILE_TABLE
        if tile.fits(side, layout)
    ]
    return min(choices, key=lambda choice: choice.us) if choices else _reason(p)


@functools.lru_cache(maxsize=256)
def best_split(p: GemmProblem) -> Choice | str:
    """Return the fastest tile of 13_split_k.cu, or the reason why there is none."""
    choices = []
    for turned, side, layout in _sides(p):
        for plain in SPLIT_TABLE:
            for cluster, splits in _PIECES:
                tile = replace(plain, cluster=cluster, splits=splits)
                if tile.fits(side, layout):
                    choices.append(Choice(turned, tile, tile.us(side, layout)))
    return min(choices, key=lambda choice: choice.us) if choices else _reason(p)


def _reason(p: GemmProblem) -> str:
    layout = layout_of(p)
    return layout if isinstance(layout, str) else "the tiles do not fit in the device's shared memory"


# Variants -------------------------------------------------------------------------------------------------------------


@variant(TILES, since="sm_90a", problems="neighbours")
def tiles(problem: GemmProblem) -> Launch | str:
    """wgmma: tiles in turns, a ring of tensor copies, stores behind products"""
    choice = best_tile(problem)
    return choice if isinstance(choice, str) else choice.launch(problem)


@variant(SPLIT_K, since="sm_90a", problems="neighbours")
def split_k(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """wgmma: the blocks of a cluster share a tile's k"""
    choice = best_split(problem)
    return choice if isinstance(choice, str) else choice.launch(problem)


@variant(TILES, name="packed_tiles", since="sm_90a")
def packed_tiles(problem: GemmProblem) -> tuple[Launch, ...] | str:
    """operands that tensor copies cannot read are copied to aligned scratch memory"""
    packing = gemm_packed.packing_of(problem, along_k=True, keep=True)
    applied = packing.applied(problem)
    choice = best_tile(applied)
    if isinstance(choice, str):
        return choice
    launch = choice.launch(applied)
    return (*gemm_packed.pack_launches(packing, problem), replace(launch, scratch=_ITEM * packing.end))


VARIANTS = (tiles, split_k, packed_tiles)


def choose(problem: GemmProblem) -> str:
    """Return the fastest variant by the model of times, or "" if there is none."""
    times: dict[str, float] = {}
    for name, choice in (("tiles", best_tile(problem)), ("split_k", best_split(problem))):
        if isinstance(choice, Choice):
            times[name] = choice.us
    packing = gemm_packed.packing_of(problem, along_k=True, keep=True)
    if packing.packed:
        choice = best_tile(packing.applied(problem))
        if isinstance(choice, Choice):
            times["packed_tiles"] = choice.us + PACK_US + 2 * _ITEM * packing.end / PACK_BYTES_PER_US
    return min(times, key=lambda name: times[name]) if times else ""


PACK_US, PACK_BYTES_PER_US = 2.5, 2.5e6
