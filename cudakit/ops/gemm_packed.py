"""The packed rung of the fp32 products: operands are turned and aligned once in memory, for the inner loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.ops import gemm_tiles
from cudakit.ops.gemm_problem import GemmProblem, Operand, arguments
from cudakit.ops.gemm_tiles import LARGE
from cudakit.ops.variant import Config, ceil_div

_TILE = 32  # of 12_packed.cu


@dataclass(frozen=True)
class Packing:
    """What a problem becomes: `problem` with the packed operands' strides, and where in the scratch memory (in floats)
    each packed operand begins, None for one that is used where it is; `end` is the first float behind them."""

    problem: GemmProblem
    a: int | None
    b: int | None
    end: int


def _pitch(lines: int) -> int:
    return ceil_div(lines, 4) * 4


def packing(problem: GemmProblem) -> Packing:
    """Packs each operand that does not lie line by line in whole 16-byte pieces."""
    p, end = problem, 0
    a = b = None
    if not p.a.pieces(p.a.row, p.a.col, p.m, 1, 4):
        a, pitch = end, _pitch(p.m)
        end += pitch * p.k
        p = replace(p, a=Operand(1, pitch, 0, 16))
    if not p.b.pieces(p.b.col, p.b.row, p.n, 1, 4):
        b, pitch = end, _pitch(p.n)
        end += pitch * p.k
        p = replace(p, b=Operand(pitch, 1, 0, 16))
    return Packing(p, a, b, end)


def fits(problem: GemmProblem) -> bool | str:
    """Whether the rung takes a problem, or why not."""
    return problem.batch == 1 or f"it packs one product, not {problem.batch}"


def _blocks(problem: GemmProblem) -> int:
    return gemm_tiles.stream_blocks(LARGE, problem)


def scratch(problem: GemmProblem) -> int:
    """Bytes of the packed operands and of stream-K's parts."""
    return 4 * (packing(problem).end + _blocks(problem) * 2 * LARGE.bm * LARGE.bn)


def configure(problem: GemmProblem) -> tuple[Config, ...]:
    """One launch for each operand that is packed, and stream-K's two."""
    found = packing(problem)
    configs = []
    for index, (start, operand, lines) in enumerate(
        ((found.a, problem.a, problem.m), (found.b, _turned(problem.b), problem.n))
    ):
        if start is not None and problem.k:
            along_k = "true" if operand.col == 1 else "false"
            grid = min(ceil_div(_pitch(lines), _TILE) * ceil_div(problem.k, _TILE), 2**20)
            configs.append(Config(f"pack<{along_k}>", grid, (_TILE, 8), arguments=_pack_arguments(index)))
    # where a packed line ends inside a piece, zeros are behind it: all copies are of whole pieces
    lies = gemm_tiles.Layout(False, False, 4, 4, gemm_tiles.store_width(problem))
    main, join = gemm_tiles.stream_configs(LARGE, found.problem, lies)
    source = "gemm/11_stream_k.cu"
    configs.append(replace(main, source=source, arguments=_main_arguments))
    configs.append(replace(join, source=source, arguments=_join_arguments))
    return tuple(configs)


def _turned(operand: Operand) -> Operand:
    return replace(operand, row=operand.col, col=operand.row)


def _pack_arguments(index: int) -> Callable[..., tuple[Any, ...]]:
    def made(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
        found = packing(problem)
        start, operand, lines = ((found.a, problem.a, problem.m), (found.b, _turned(problem.b), problem.n))[index]
        to = scratch.view(np.float32)[start:]
        return (inputs[index], to, operand.row, operand.col, lines, problem.k, _pitch(lines))

    return made


def _main_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    found, floats = packing(problem), scratch.view(np.float32)
    a = inputs[0] if found.a is None else floats[found.a :]
    b = inputs[1] if found.b is None else floats[found.b :]
    return (*arguments(found.problem, (a, b, *inputs[2:]), output, scratch), floats[found.end :])


def _join_arguments(problem: GemmProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return gemm_tiles.join_arguments(_main_arguments(problem, inputs, output, scratch))
