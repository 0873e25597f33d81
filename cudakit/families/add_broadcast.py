"""Sum of a volume, a plane and a line: out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x], float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.families import axes, rows
from cudakit.family import IN, MAX_GRID_YZ, OUT, Family, Launch, apply, ceil_div, checks, variant
from cudakit.rounding import U

Steps = tuple[int, int, int]


@dataclass(frozen=True)
class VolumeProblem:
    """Extents (nx, ny, nz) and strides, in elements. `phases`: floats between the last 16-byte boundary and the first
    element of volume and of out."""

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


def _is_dense(problem: VolumeProblem) -> bool:
    _, ny, nz = problem.shape
    return problem.volume == problem.out == (ny * nz, nz, 1) and not any(problem.phases)


def _is_along_z(problem: VolumeProblem) -> bool:
    return problem.volume[2] == problem.out[2] == 1 or problem.shape[2] == 1


@variant("add_broadcast/01_slow_axis.cu")
def slow_axis(problem: VolumeProblem) -> Launch:
    """blocks of 4x4x4, threadIdx.x along the slowest axis"""
    block = 4, 4, 4
    return Launch(_grid(problem.shape, block), block)


@variant("add_broadcast/02_coalesced.cu")
def coalesced(problem: VolumeProblem) -> Launch:
    """threadIdx.x along the fastest axis"""
    block = 32, 4, 2
    return Launch(_grid(problem.shape[::-1], block), block)


@variant("add_broadcast/03_rows.cu", problems="rows")
def _rows(problem: VolumeProblem) -> Launch | str:
    """plane and line read once per row, 16 bytes per lane"""
    if not _is_along_z(problem):
        return "needs an input and an output volume whose last axis is contiguous"
    p, deal = problem, problem.deal
    strides = *p.volume[:2], *p.plane, p.line, *p.out[:2]
    args = (*IN[:3], OUT, *strides, *p.shape, deal.pieces)
    return Launch(deal.grid(p.shape[0] * p.shape[1]), rows.BLOCK, args, entry=f"add_rows<{deal.constants}>")


@variant("add_broadcast/04_dense.cu", problems="aligned")
def dense(problem: VolumeProblem) -> Launch | str:
    """short rows as one contiguous array"""
    if not _is_dense(problem):
        return "needs contiguous input and output volumes that start on a 16-byte boundary"
    p = problem
    args = (*IN[:3], OUT, *p.plane, p.line, p.n, *p.shape[1:])
    return Launch(ceil_div(ceil_div(p.n, 4), rows.BLOCK), rows.BLOCK, args, entry=f"add_dense<{axes.number(p.n)}>")


def problem(inputs: Sequence[Any], output: Any) -> VolumeProblem:
    """Return the problem of output = volume + plane + line. Raise ValueError for unsupported arrays."""
    volume, plane, line = inputs
    if volume.ndim != 3:
        raise ValueError(f"add_broadcast takes a volume (X, Y, Z), got shape {tuple(volume.shape)}")
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


def _inputs(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    if len(shape) != 3:
        raise ValueError("the shape of a volume is XxYxZ")
    return tuple(rng.standard_normal(shape[:rank], dtype=np.float32) for rank in (3, 2, 1))


def _sum(volume: Any, plane: Any, line: Any) -> Any:
    """Return the sum, added from left to right in the inputs' precision."""
    total = volume + plane[:, :, None]
    total += line[:, None, None]
    return total


def reference(volume: Any, plane: Any, line: Any) -> Any:
    """Return the sum; infinite if a float32 sum from left to right overflows in an intermediate result."""
    single = _sum(*(array.astype(np.float32) for array in (volume, plane, line)))
    return np.where(np.isfinite(single), _sum(volume, plane, line), single)


def rounding(exact: Any, volume: Any, plane: Any, line: Any) -> Any:
    """Return the rounding error of the first sum; every variant adds from left to right."""
    with np.errstate(invalid="ignore"):
        return U * np.abs(volume.astype(np.float64) + plane[..., None])


def choose(problem: VolumeProblem, arch: str) -> str:
    """Return the variant for "auto": the fastest on an H200 among those that support the problem."""
    if problem.shape[2] < rows.SHORTEST_RAGGED and _is_dense(problem):
        return "dense"
    return "rows" if _is_along_z(problem) else "coalesced"


FAMILY: Family[VolumeProblem] = Family(
    name="add_broadcast",
    reference=reference,
    variants=(slow_axis, coalesced, _rows, dense),
    inputs=_inputs,
    outputs=lambda volume, plane, line: (tuple(volume.shape), np.dtype(np.float32)),
    problem=problem,
    arguments=lambda p: (*IN[:3], OUT, *p.volume, *p.plane, p.line, *p.out, *p.shape),
    rounding=rounding,
    baseline=_sum,
    flops=lambda problem: 2 * problem.n,
    choose=choose,
    shapes={
        "gpu": ((512, 512, 512),),
        "sim": ((16, 20, 64), (6, 7, 101)),
        "sim sweep": ((8, 8, 8), (16, 16, 16), (16, 16, 64), (8, 8, 257)),
        "sweep": ((64, 64, 64), (256, 256, 256), (512, 512, 512), (512, 512, 511), (4096, 4096, 8), (64, 64, 65536)),
    },
    problems="cudakit.testing.add_broadcast:add_broadcast_cases",
)
FAMILY.call = lambda inputs, out, variant, stream: functools.partial(
    add_broadcast, inputs[0], inputs[1], inputs[2], out, variant, stream
)


def add_broadcast(
    volume: Any, plane: Any, line: Any, out: Any = None, variant: str = "auto", stream: Any = None
) -> Any:
    """Return volume[x, y, z] + plane[x, y] + line[x], for float32 arrays of cudakit, torch or CuPy.

    Does not wait for the device. Unlike numpy's rules, plane and line are aligned with the first axes.

    Args:
        volume: Shape (X, Y, Z), any strides.
        plane: Shape (X, Y), any strides.
        line: Shape (X,), any stride.
        out: The output, which may be `volume`. By default a new array.
        variant: The name of a variant, or "auto".
        stream: By default the device's default stream, or the current stream of torch or CuPy.

    Returns:
        The result, an array of the inputs' library.

    Raises:
        ValueError: If the arrays are not supported.
        UnsupportedVariant: If the variant does not support the arrays.
    """
    return apply(FAMILY, (volume, plane, line), out, variant, stream)
