"""A volume, a plane and a line in one sum: out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x], float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import axes, checks, front, rows
from cudakit.families.variant import MAX_GRID_YZ, Config, Family, Variant, ceil_div
from cudakit.rounding import U

Steps = tuple[int, int, int]


@dataclass(frozen=True)
class VolumeProblem:
    """nx x ny x nz; strides in elements; floats from the last 16-byte boundary to volume's and out's first element."""

    shape: Steps
    volume: Steps
    plane: tuple[int, int]
    line: int
    out: Steps
    phases: tuple[int, int]

    @property
    def n(self) -> int:
        nx, ny, nz = self.shape
        return nx * ny * nz

    @property
    def deal(self) -> rows.Deal:
        return rows.deal(self.shape[2], self.phases, (self.volume[:2], self.out[:2]))

    def __str__(self) -> str:
        return f"sum of volume, plane and line of {'x'.join(map(str, self.shape))}"


def _grid(extents: Sequence[int], block: Steps) -> Steps:
    x, y, z = (ceil_div(n, b) for n, b in zip(extents, block, strict=True))
    return x, min(y, MAX_GRID_YZ), min(z, MAX_GRID_YZ)


def _slow_axis(problem: VolumeProblem) -> Config:
    block = 4, 4, 4
    return Config("slow_axis", _grid(problem.shape, block), block)


def _coalesced(problem: VolumeProblem) -> Config:
    block = 32, 4, 2
    return Config("coalesced", _grid(problem.shape[::-1], block), block)


def _rows(problem: VolumeProblem) -> Config:
    deal = problem.deal
    entry = f"add_rows<{deal.constants}>"
    return Config(entry, deal.grid(problem.shape[0] * problem.shape[1]), rows.BLOCK, arguments=_row_arguments)


def _dense(problem: VolumeProblem) -> Config:
    entry = f"add_dense<{axes.number(problem.n)}>"
    return Config(entry, ceil_div(ceil_div(problem.n, 4), rows.BLOCK), rows.BLOCK, arguments=_dense_arguments)


def _is_dense(problem: VolumeProblem) -> bool | str:
    _, ny, nz = problem.shape
    fits = problem.volume == problem.out == (ny * nz, nz, 1) and not any(problem.phases)
    return fits or "it takes volumes without gaps, in and out, that start on a 16-byte boundary"


def _along_z(problem: VolumeProblem) -> bool | str:
    together = problem.volume[2] == problem.out[2] == 1 or problem.shape[2] == 1
    return together or "it takes volumes whose last axis is contiguous, in and out"


def _arguments(problem: VolumeProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *problem.volume, *problem.plane, problem.line, *problem.out, *problem.shape)


def _row_arguments(problem: VolumeProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    strides = *problem.volume[:2], *problem.plane, problem.line, *problem.out[:2]
    return (*inputs, output, *strides, *problem.shape, problem.deal.pieces)


def _dense_arguments(problem: VolumeProblem, inputs: Sequence[Any], output: Any, scratch: Any) -> tuple[Any, ...]:
    return (*inputs, output, *problem.plane, problem.line, problem.n, *problem.shape[1:])


VARIANTS: tuple[Variant[VolumeProblem], ...] = (
    Variant(
        1,
        "slow_axis",
        "blocks of 4x4x4, threadIdx.x along the slowest axis",
        "add_broadcast/01_slow_axis.cu",
        _slow_axis,
    ),
    Variant(
        2,
        "coalesced",
        "threadIdx.x along the fastest axis",
        "add_broadcast/02_coalesced.cu",
        _coalesced,
    ),
    Variant(
        3,
        "rows",
        "the two scalars once a row, 16 bytes a lane",
        "add_broadcast/03_rows.cu",
        _rows,
        _along_z,
        problems="rows",
    ),
    Variant(
        4,
        "dense",
        "short rows as one run of memory",
        "add_broadcast/04_dense.cu",
        _dense,
        _is_dense,
        problems="aligned",
    ),
)


def problem(inputs: Sequence[Any], output: Any) -> VolumeProblem:
    """The problem of volume + plane + line = output; ValueError says what it refuses."""
    volume, plane, line = inputs
    if volume.ndim != 3:
        raise ValueError(f"add_broadcast takes a volume (X, Y, Z) first, got shape {tuple(volume.shape)}")
    shape: Steps = tuple(volume.shape)
    wanted = (("volume", volume, shape), ("plane", plane, shape[:2]), ("line", line, shape[:1]), ("out", output, shape))
    checks.expect_float32("add_broadcast", [(name, array) for name, array, _ in wanted])
    for name, array, extents in wanted:
        if tuple(array.shape) != extents:
            raise ValueError(
                f"add_broadcast of a volume {shape} takes a {name} of shape {extents}, got {tuple(array.shape)}"
            )
    checks.expect_output("add_broadcast", output, [(name, array) for name, array, _ in wanted[:3]])
    return VolumeProblem(
        shape,
        volume.strides_elements,
        plane.strides_elements,
        line.strides_elements[0],
        output.strides_elements,
        (axes.phase(volume), axes.phase(output)),
    )


def _make_inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    if len(shape) != 3:
        raise ValueError("write a volume, XxYxZ")
    return tuple(rng.standard_normal(shape[:rank], dtype=np.float32) for rank in (3, 2, 1))


def _sum(inputs: Sequence[np.ndarray], dtype: Any) -> Any:
    """The sum from left to right in `dtype`."""
    volume, plane, line = (np.asarray(array, dtype) for array in inputs)
    with np.errstate(over="ignore", invalid="ignore"):
        total = volume + plane[:, :, None]
        total += line[:, None, None]
    return total


def reference(inputs: Sequence[np.ndarray]) -> Any:
    """The sum in float64; infinite where float32 sums taken from left to right are past their range on the way."""
    exact, single = _sum(inputs, np.float64), _sum(inputs, np.float32)
    return np.where(np.isfinite(single), exact, single)


def rounding(inputs: Sequence[np.ndarray], exact: Any) -> Any:
    """The rounding of the first sum; every rung adds in the order in which the sum is written."""
    volume, plane = inputs[:2]
    with np.errstate(invalid="ignore"):
        return U * np.abs(volume.astype(np.float64) + plane[..., None])


def baseline(inputs: Sequence[np.ndarray]) -> Any:
    """The sum in float32, from left to right."""
    return _sum(inputs, np.float32)


def choose(problem: VolumeProblem, arch: str) -> str:
    """The rung that "auto" means: the fastest on an H200 among those that support the problem."""
    if problem.shape[2] < rows.SHORTEST_RAGGED and _is_dense(problem) is True:
        return "dense"
    return "rows" if _along_z(problem) is True else "coalesced"


FAMILY: Family[VolumeProblem] = Family(
    name="add_broadcast",
    variants=VARIANTS,
    make_inputs=_make_inputs,
    output_like=lambda inputs: (tuple(inputs[0].shape), np.dtype(np.float32)),
    reference=reference,
    rounding=rounding,
    baseline=baseline,
    problem=problem,
    arguments=_arguments,
    traffic=lambda problem: 4 * (2 * problem.n + problem.shape[0] * (problem.shape[1] + 1)),
    flops=lambda problem: 2 * problem.n,
    choose=choose,
    empty=lambda problem: problem.n == 0,
    shapes={
        "gpu": ((512, 512, 512),),
        "sim": ((16, 20, 64), (6, 7, 101)),
        "sim sweep": ((8, 8, 8), (16, 16, 16), (16, 16, 64), (8, 8, 257)),
        "sweep": ((64, 64, 64), (256, 256, 256), (512, 512, 512), (512, 512, 511), (4096, 4096, 8), (64, 64, 65536)),
    },
)


def add_broadcast(
    volume: Any, plane: Any, line: Any, out: Any = None, variant: str = "auto", stream: Any = None
) -> Any:
    """volume[x, y, z] + plane[x, y] + line[x], float32: cudakit's, torch's or CuPy's arrays, and so is the result.

    volume: (X, Y, Z), plane: (X, Y), line: (X,), any strides. (numpy's rules would align plane and line with the last
    axes; here they belong to the first ones.) out: where to write, which may be volume; a new array unless given.
    variant: a rung by name, or "auto". stream: the device's default stream, or torch's or CuPy's current one, unless
    given. Returns without waiting. Raises ValueError for arrays it does not take, UnsupportedVariant for a rung that
    does not take them.
    """
    return front.apply(FAMILY, (volume, plane, line), out, variant, stream)
