"""Tiles of 16-bit products on Hopper (sm_90a): the launches of kernels/gemm_half/12_tiles.cu and 13_split_k.cu, and the
terms of their modelled times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cudakit.families.gemm_hopper_layout import (
    DEPTH,
    ITEM,
    Layout,
    any_operand_maps,
    filled,
    operand_maps,
    output_map,
)
from cudakit.families.gemm_problem import (
    NO_EPILOGUE,
    GemmProblem,
    arguments,
    epilogue_arguments,
    epilogue_constants,
    output_arguments,
)
from cudakit.family import CPP, SCRATCH, Launch, TensorMapSlot, ceil_div, cpp_bool
from cudakit.memory import array as memory

TILES, SPLIT_K = "gemm_half/12_tiles.cu", "gemm_half/13_split_k.cu"
GROUP = 128  # threads of a warpgroup
_WARP = 32  # threads
_BUFFER = 8192  # bytes per buffer of a store
BARRIERS = 16  # bytes per stage
_AHEAD, _GATHERED_STAGES = 3, 3  # at most: tiles in raw memory, and stages of the ring, if an operand is gathered
_TAILS = 32  # the columns of tail tiles are a multiple: each one is another kernel to compile
_LOAD = 75  # outputs whose products for a k take as long as loading a line of both operands
_MOST = 2**31 - 1  # tiles or blocks
# The part of the multiprocessors that clusters of a size can use, because a cluster's are neighbours. An H200 runs 30
# clusters of 4 blocks, or 15 of 8, at the same time.
CLUSTER_SHARE = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91}
_SHARED_PER_SM = 233472
_USUAL_STAGES = 8  # of a ring; with more, a step waits less for memory
_JOIN_WARPS = 16  # of a block that adds parts


@dataclass(frozen=True)
class Tile:
    """A tile of bm x bn outputs of 12_tiles.cu. groups: consumer warpgroups, which compute tiles in turns or share one.
    shares: blocks of a cluster that load B for each other. buffers, batch: of the store. band: rows of clusters' tiles
    that concurrent blocks cover. tail, tall: columns of the tiles after the last whole column of tiles (0: all are
    whole), and their rows, in bm."""

    bm: int
    bn: int
    groups: int
    turns: bool
    stages: int
    shares: int
    buffers: int
    batch: int
    band: int
    tail: int = 0
    tall: int = 1

    def with_tail(self, p: GemmProblem, layout: Layout) -> Self:
        """Return this tile with tail tiles for the columns of a problem that remain after whole ones, if there are any
        of both."""
        tail = ceil_div(p.n % self.bn, _TAILS) * _TAILS
        if self.bn > p.n or not 0 < tail < self.bn:
            return self
        if self.bm == 128 and 2 * tail <= self.bn:
            tall = replace(self, tail=tail, tall=2)
            if tall.shared(layout) <= p.shared:
                return tall
        return replace(self, tail=tail)

    def stored_by_lanes(self, p: GemmProblem, layout: Layout) -> Self:
        """Return this tile with two buffers per consumer, as lanes store short rows slowly, and as many stages of the
        ring as then fit."""
        if self.buffers > 1:
            return self
        tile = replace(self, buffers=2)
        while tile.shared(layout) > p.shared and tile.stages > 1:
            tile = replace(tile, stages=tile.stages - 1)
        return tile

    def _stage(self, layout: Layout) -> int:
        """Bytes of a stage of the ring."""
        whole = layout.a.bytes(self.bm) + layout.b.bytes(self.bn)
        return max(whole, layout.a.bytes(self.tall * self.bm) + layout.b.bytes(self.tail)) if self.tail else whole

    def shared(self, layout: Layout) -> int:
        """Bytes of shared memory."""
        return self.stages * (self._stage(layout) + BARRIERS) + self.groups * self.buffers * _BUFFER

    def rows(self, p: GemmProblem, tall: int = 1) -> int:
        """Tiles of all batches, of tall * bm rows, per column of tiles: whole clusters of them."""
        return self.shares * ceil_div(p.m, tall * self.shares * self.bm) * p.batch

    def count(self, p: GemmProblem) -> int:
        """Tiles of all batches, whole ones and tail tiles."""
        if not self.tail:
            return self.rows(p) * ceil_div(p.n, self.bn)
        return self.rows(p) * (p.n // self.bn) + self.rows(p, self.tall)

    def rounds(self, p: GemmProblem) -> float:
        """Tiles of the block with most of them, in whole tiles."""
        blocks = self.blocks(p)
        if not self.tail:
            return ceil_div(self.count(p), blocks)
        whole, last = divmod(self.rows(p) * (p.n // self.bn), blocks)
        rows = self.tall * self.bm
        # A step takes as long as its products or its loads.
        part = max(rows * self.tail, _LOAD * (rows + self.tail / self.shares)) / (self.bm * self.bn)
        return max(whole + (last > 0), whole + part * ceil_div(self.rows(p, self.tall), blocks - last))

    def blocks(self, p: GemmProblem) -> int:
        """Blocks that are resident at the same time, at most one per tile."""
        return min(self.count(p), p.sms // self.shares * self.shares)

    def fits(self, p: GemmProblem, layout: Layout) -> bool:
        """Whether its kernel supports a problem."""
        if self.shared(layout) > p.shared or self.count(p) > _MOST - 2 * p.sms or layout.gathers:
            return False
        if not layout.b.along_k and self.bn % 64:
            return False  # rows of the last panel would belong to two tiles
        if not layout.by_columns and self.bn % 16:
            return False  # the store's chunks have 16 columns or more
        if layout.by_columns and not layout.tensor:
            return False  # lanes store rows
        return p.sms >= self.shares

    @property
    def constant(self) -> str:
        """Its template argument, the Shape of persistent_tile.cuh."""
        shape = f"{self.bm}, {self.bn}, {self.tail}, {self.tall}, {self.groups}, {cpp_bool(self.turns)}"
        return f"Shape<{shape}, {self.stages}, {self.shares}, {self.buffers}, {self.batch}, {self.band}>"

    def maps(self, p: GemmProblem, layout: Layout) -> list[TensorMapSlot | None]:
        """Return the tensor maps of A, of B for whole tiles, and of B for tail tiles, None if there are none."""
        of_tail = operand_maps(p, layout, self.bm, self.tail, self.shares)[1] if self.tail else None
        return [*operand_maps(p, layout, self.bm, self.bn, self.shares), of_tail]

    def launch(self, p: GemmProblem, layout: Layout) -> Launch:
        """Return the launch for a problem that it fits."""
        maps = self.maps(p, layout)
        maps.append(output_map(p, layout, self.bn) if layout.tensor else None)
        flags = (layout.a.along_k, layout.b.along_k, layout.tensor, layout.by_columns)
        bias, *epilogue = epilogue_constants(p)
        constants = (CPP[p.dtype], CPP[p.result], bias, self.constant, *map(cpp_bool, flags), *epilogue)
        return Launch(
            self.blocks(p),
            (self.groups + 1) * GROUP,
            (*filled(maps), *arguments(p), *epilogue_arguments(p)),
            self.shared(layout),
            f"tiles<{', '.join(constants)}>",
            cluster=self.shares if self.shares > 1 else None,
            programmatic=True,
            source=TILES,
        )

    @property
    def kind(self) -> str:
        """The kind of tile in the model of times."""
        return "turns" if self.turns else "shared"

    def terms(self, p: GemmProblem, layout: Layout) -> tuple[float, ...]:
        """Return the terms of the modelled time, which COEFFICIENTS multiply; see there."""
        rounds = self.rounds(p)
        steps = rounds * ceil_div(p.k, DEPTH)
        area = self.bm * self.bn / 16384
        busy = p.m * p.n * p.batch / (rounds * p.sms * self.bm * self.bn)
        operands, output = _moved(p)
        lines = _lines(layout, self.bm, self.bn, self.shares)
        partial, lanes = (0 if stored else output for stored in (layout.whole, layout.tensor))
        fixed = (1, operands, output, partial, lanes, steps, steps * area)
        return (*fixed, steps * area * busy, steps * area * (self.shares > 1), *(steps * each for each in lines))


@dataclass(frozen=True)
class Split:
    """A tile of 64 * groups x bn outputs of 13_split_k.cu, whose k is shared by the blocks of a cluster, or by `splits`
    blocks that write parts. A ring of `stages`, or fewer if an operand is gathered or a block has few steps."""

    groups: int
    bn: int
    stages: int
    cluster: int
    splits: int = 1

    @property
    def bm(self) -> int:
        return 64 * self.groups

    @property
    def pieces(self) -> int:
        """The pieces of a tile's k."""
        return self.cluster * self.splits

    def shared(self, p: GemmProblem, layout: Layout) -> int:
        """Bytes of shared memory: the ring and raw memory, or the sums, which overwrite them unless they are parts."""
        stages = self.ring(p, layout)
        ahead = min(_AHEAD, stages) if layout.gathers and stages > 1 else 0  # one step is loaded directly
        ring = stages * (layout.a.bytes(self.bm) + layout.b.bytes(self.bn))
        raw = ahead * (layout.a.raw(self.bm) + layout.b.raw(self.bn))
        if self.splits > 1:
            sums = 0
        elif layout.by_columns:
            sums = 4 * self.bn * (self.bm + 4)
        elif self.cluster > 1:
            sums = 4 * self.bm * (self.bn + 8)
        else:
            sums = self.groups * (2 if self.bn > 64 else 1) * _BUFFER
        return max(ring + raw, sums) + stages * BARRIERS + ahead * BARRIERS // 2

    def steps(self, p: GemmProblem) -> int:
        """The steps of 64 k of a block, or of the one with most of them."""
        return ceil_div(ceil_div(p.k, DEPTH), self.pieces)

    def ring(self, p: GemmProblem, layout: Layout) -> int:
        """The stages of its ring: no more than are filled, in few sizes, as each one is another kernel."""
        most = min(self.stages, _GATHERED_STAGES) if layout.gathers else self.stages
        return next((stages for stages in (1, 2, 4) if self.steps(p) <= stages < most), most)

    def count(self, p: GemmProblem) -> int:
        """Tiles of all batches."""
        return ceil_div(p.m, self.bm) * ceil_div(p.n, self.bn) * p.batch

    def parts(self, p: GemmProblem) -> int:
        """Bytes of the parts of all tiles in scratch memory."""
        return 4 * self.splits * self.count(p) * self.bm * self.bn if self.splits > 1 else 0

    def fits(self, p: GemmProblem, layout: Layout) -> bool:
        """Whether its kernel supports a problem: k is shared in one way, and every piece of it has a step."""
        if min(self.cluster, self.splits) > 1 or self.count(p) * self.pieces > _MOST:
            return False
        return self.shared(p, layout) <= p.shared and self.pieces <= ceil_div(p.k, DEPTH)

    def launch(self, p: GemmProblem, layout: Layout, used: int = 0) -> tuple[Launch, ...]:
        """Return the launches for a problem that it fits. used: bytes of scratch memory that packed operands use."""
        ring = self.ring(p, layout)
        shape = f"Shape<{self.groups}, {self.bn}, {ring}, {self.cluster}>"
        if ring > 1:
            maps = any_operand_maps(p, layout, self.bm, self.bn)
        else:  # gathered operands are loaded without maps
            maps = [*operand_maps(p, layout, self.bm, self.bn), None, None]
        split = self.splits > 1
        bias, *epilogue = epilogue_constants(p)
        types = (CPP[p.result], bias, shape)
        # parts are stored as registers have them, without an epilogue
        by_columns = layout.by_columns and not split
        finish = NO_EPILOGUE if split else epilogue
        flags = (layout.a.along_k, layout.b.along_k, layout.a.tensor, layout.b.tensor, by_columns, split)
        begin = ceil_div(used, 16) * 16
        parts = SCRATCH.at(begin, "float32") if split else None
        tail = (*epilogue_arguments(p), parts, self.splits)
        main = Launch(
            self.count(p) * self.pieces,
            (self.groups + 1) * GROUP,
            (*filled(maps), *arguments(p), *tail),
            self.shared(p, layout),
            f"split_k<{', '.join((CPP[p.dtype], *types, *map(cpp_bool, flags), *finish))}>",
            scratch=begin + self.parts(p) if split else 0,
            cluster=self.cluster if self.cluster > 1 else None,
            programmatic=True,
            source=SPLIT_K,
        )
        if not split:
            return (main,)
        joined = (*output_arguments(p), p.m, p.n, p.batch, p.alpha, p.beta)
        warps = self.count(p) * self.bm * self.bn // (4 * _WARP)  # that store four sums per lane
        # As many share the parts of a sum as one block per multiprocessor has, but fewer than twice the parts.
        most = min(2 * self.splits - 1, _JOIN_WARPS * p.sms // warps)
        adders = max(count for count in (1, 2, 4, 8, _JOIN_WARPS) if count <= max(1, most))
        join = Launch(
            ceil_div(warps * adders, _JOIN_WARPS),
            _JOIN_WARPS * _WARP,
            (*joined, *tail, adders),
            entry=f"split_k_join<{', '.join((*types, *epilogue))}>",
            programmatic=True,
            source=SPLIT_K,
        )
        return main, join

    kind = "split"

    def terms(self, p: GemmProblem, layout: Layout) -> tuple[float, ...]:
        """Return the terms of the modelled time, which COEFFICIENTS multiply; see there."""
        blocks = self.count(p) * self.pieces
        threads = (self.groups + 1) * GROUP
        registers = 64 if self.bn <= 64 else 112  # about as many per thread, also of gathered operands
        resident = max(1, min(_SHARED_PER_SM // (self.shared(p, layout) + 1024), 65536 // (threads * registers)))
        slots = int(p.sms * CLUSTER_SHARE[self.cluster]) // self.cluster * self.cluster * resident
        rounds = ceil_div(blocks, max(1, slots))
        each = ceil_div(blocks, p.sms)  # blocks of a multiprocessor
        steps = self.steps(p)
        area = self.bm * self.bn / 16384
        work = each * steps
        busy = blocks / (each * p.sms)
        lines = _lines(layout, self.bm, self.bn)
        operands, output = _moved(p)
        together = operands if resident > 1 and blocks > p.sms else 0
        clusters = self.cluster > 1
        deep = max(1, self.ring(p, layout) / _USUAL_STAGES)
        copied = rounds if layout.gathers and steps > 1 else 0
        parts = self.parts(p) * 1e-6  # MB
        fixed = (1, clusters, clusters * (rounds - 1), self.splits > 1, parts, rounds * area * self.cluster)
        of_steps = (rounds * steps / deep, copied, each * area, work * area * busy, *(work * each for each in lines))
        return (*fixed, *of_steps, operands, together, output)


def _moved(p: GemmProblem) -> tuple[float, float]:
    """Return the MB of A and B, and those of the output."""
    output = memory.as_dtype(p.result).itemsize * p.m * p.n
    return ITEM * (p.m * p.k + p.k * p.n) * p.batch * 1e-6, output * p.batch * 1e-6


def _lines(layout: Layout, of_a: int, of_b: int, shares: int = 1) -> tuple[float, float, float]:
    """Return the lines that a block loads per step, in hundreds: those of operands with 128-byte aligned rows, of other
    tensor copies, and gathered ones. shares: blocks of a cluster that load B for each other."""
    found = [0.0, 0.0, 0.0]
    for side, lines, blocks in ((layout.a, of_a, 1), (layout.b, of_b, shares)):
        found[2 if not side.tensor else 0 if side.whole else 1] += side.bytes(lines) / (DEPTH * ITEM * 100 * blocks)
    return found[0], found[1], found[2]
