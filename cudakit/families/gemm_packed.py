"""Operands of matrix products that are turned and aligned once in memory, for both families; and the rung of the fp32
products that multiplies them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cudakit.families import gemm_tiles
from cudakit.families.gemm_problem import GemmProblem, Operand, arguments
from cudakit.families.gemm_tiles import LARGE
from cudakit.families.variant import CPP, MAX_GRID_YZ, Config, ceil_div, cpp_bool
from cudakit.memory import array as memory

SOURCE = "gemm/12_packed.cu"
_TILE = 32  # of its kernel


@dataclass(frozen=True)
class Packed:
    """One packed operand: its strides where it came from (of a line, of k, of a batch), its lines and batches, where it
    begins in the scratch memory (in elements) and the elements from k to k + 1 there. A line is a row of A or a column
    of B."""

    index: int
    of: Operand
    lines: int
    batches: int
    start: int
    pitch: int


@dataclass(frozen=True)
class Packing:
    """The operands as the product reads them, the packed ones among them, and the first element of the scratch memory
    after those.

    It has no alpha or beta: it is kept for problems that compare equal, and 0.0 equals -0.0."""

    a: Operand
    b: Operand
    packed: tuple[Packed, ...]
    end: int

    def applied(self, problem: GemmProblem) -> GemmProblem:
        """The problem with these operands."""
        return replace(problem, a=self.a, b=self.b)


@functools.lru_cache(maxsize=64)  # scratch, launches and the arguments of each ask for it
def packing_of(problem: GemmProblem, along_k: bool = False) -> Packing:
    """Packs each operand that does not lie in whole 16-byte pieces line by line, or (`along_k`) along k either."""
    p, end, packed = problem, 0, []
    itemsize = memory.as_dtype(p.dtype).itemsize
    width = 16 // itemsize
    lies = []
    for index, (of, lines) in enumerate(((p.a, p.m), (p.b.turned, p.n))):
        fits = of.pieces(of.row, of.col, lines, p.batch, itemsize)
        if fits or (along_k and of.pieces(of.col, of.row, p.k, p.batch, itemsize)):
            lies.append(of)
            continue
        pitch = ceil_div(lines, width) * width
        batches = p.batch if of.batch else 1
        packed.append(Packed(index, of, lines, batches, end, pitch))
        lies.append(Operand(1, pitch, pitch * p.k if of.batch else 0, 16))
        end += pitch * p.k * batches
    return Packing(lies[0], lies[1].turned, tuple(packed), end)


def pack_configs(packing: Packing, p: GemmProblem) -> list[Config]:
    """One launch for each operand that is packed."""
    configs = []
    for each in packing.packed if p.k else ():
        entry = f"pack<{CPP[p.dtype]}, {cpp_bool(each.of.col == 1)}>"
        tiles = ceil_div(each.pitch, _TILE) * ceil_div(p.k, _TILE)
        grid = (min(tiles, 2**20), 1, min(each.batches, MAX_GRID_YZ))
        configs.append(Config(entry, grid, (_TILE, 8), source=SOURCE, arguments=_pack_arguments(each)))
    return configs


def _pack_arguments(each: Packed) -> Callable[..., tuple[Any, ...]]:
    def made(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        to = scratch.view(memory.as_dtype(problem.dtype))[each.start :]
        of = each.of
        sizes = (of.row, of.col, of.batch, each.lines, problem.k, each.pitch, each.batches)
        return (inputs[each.index], to, *sizes)

    return made


def packed_inputs(packing: Packing, inputs: Sequence[Any], elements: Any) -> list[Any]:
    """`inputs` with packed operands in the place of those that were; `elements`: the scratch memory."""
    result = list(inputs)
    for each in packing.packed:
        result[each.index] = elements[each.start :]
    return result


# The rung of the fp32 products ----------------------------------------------------------------------------------------


def fits(problem: GemmProblem) -> bool | str:
    """Whether the rung takes a problem, or why not."""
    return problem.batch == 1 or f"it packs one product, not {problem.batch}"


def _blocks(problem: GemmProblem) -> int:
    return gemm_tiles.stream_blocks(LARGE, problem)


def scratch(problem: GemmProblem) -> int:
    """Bytes of the packed operands and of stream-K's parts."""
    return 4 * (packing_of(problem).end + _blocks(problem) * 2 * LARGE.bm * LARGE.bn)


def configure(problem: GemmProblem) -> tuple[Config, ...]:
    """One launch for each operand that is packed, and stream-K's two."""
    packing = packing_of(problem)
    # where a packed line ends inside a piece, zeros are behind it: all copies are of whole pieces
    lies = gemm_tiles.OperandLayout(False, False, 4, 4, gemm_tiles.store_width(problem))
    main, join = gemm_tiles.stream_configs(LARGE, packing.applied(problem), lies)
    source = "gemm/11_stream_k.cu"
    return (
        *pack_configs(packing, problem),
        replace(main, source=source, arguments=_main_arguments),
        replace(join, source=source, arguments=_join_arguments),
    )


def _main_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    packing, floats = packing_of(problem), scratch.view(memory.as_dtype(problem.dtype))
    inputs = packed_inputs(packing, inputs, floats)
    return (*arguments(packing.applied(problem), inputs, output, scratch), floats[packing.end :])


def _join_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return gemm_tiles.join_arguments(_main_arguments(problem, inputs, output, scratch), _blocks(problem))
