"""Ceilings of a roofline: the bandwidth of a copy, and the rate of multiply-adds on operands in registers.

A ceiling has a name, a value and a kind: "gbps" (a slanted line) or "tflops" (a horizontal one). Ceilings are measured
on the GPU (`measure`), taken from a report's JSON (`from_report`), or computed from a profile (`from_launch`): the data
sheet's peaks at the clock of the launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.measure.ceilings import large_copy_ceiling
from cudakit.measure.timing import GpuTimer
from cudakit.profiling import metrics
from cudakit.profiling.reading import ProfiledLaunch

if TYPE_CHECKING:
    from cudakit.device import Device

# kernels/peaks/fma.cu and mma.cu
CHAINS, BLOCK = 16, 256
MMA_TILES, MMA_FLOPS = 16, 2 * 16 * 8 * 16
_NOISE = 0x9E3779B1  # an odd number whose set bits are spread out

# steps of a peak's kernel: enough that its start and end take a negligible part of its time
_FMA_STEPS, _MMA_STEPS = 40_000, 20_000


@dataclass(frozen=True)
class Ceiling:
    """One line of a roofline. kind: "gbps" or "tflops". pipe: the limited unit, "fma", "tensor" or "dram". measured:
    False for a data sheet's figure. source: how or where it was measured."""

    name: str
    kind: str
    pipe: str
    value: float
    measured: bool
    source: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(device: Device) -> list[Ceiling]:
    """Time a copy, FFMA chains and, from sm_80 on, mma.sync chains on `device`, a GPU. Takes less than a second."""
    with device.stream() as stream:
        timer = GpuTimer(device, stream)
        copy = large_copy_ceiling(device, timer)
        size = copy["bytes"]
        lines = [
            Ceiling("copy", "gbps", "dram", copy["gbps"], True, f"a copy of {size / 2**30:.1f} GiB, read and written")
        ]
        fma = _rate(device, timer, "fma")
        lines.append(Ceiling("FFMA", "tflops", "fma", fma, True, "kernels/peaks/fma.cu"))
        if int(device.arch.removeprefix("sm_").rstrip("af")) >= 80:
            mma = _rate(device, timer, "mma")
            lines.append(Ceiling("mma.sync bfloat16", "tflops", "tensor", mma, True, "kernels/peaks/mma.cu"))
    return lines


def run_peak(device: Device, which: str, blocks: int, steps: int, *, stream: Any, noise: int = _NOISE) -> Any:
    """Prepare the kernel `which` ("fma" or "mma"). Returns (launch, output array, FLOPs per launch)."""
    kernel = device.compile(f"peaks/{which}.cu")[f"{which}_chains"]
    out = device.zeros((blocks * BLOCK,), np.float32, stream=stream)
    values: tuple[Any, ...] = (out, 0.5, 1.0, steps) if which == "fma" else (out, noise, steps)
    prepared = kernel.prepare(grid=blocks, block=BLOCK, args=values)
    threads = blocks * BLOCK
    flops = threads * steps * (2 * CHAINS if which == "fma" else MMA_TILES * MMA_FLOPS // 32)
    return (lambda: prepared.launch(stream)), out, flops


def _rate(device: Device, timer: GpuTimer, which: str) -> float:
    """Return TFLOP/s of the kernel `which`, run with the maximum number of resident blocks per multiprocessor."""
    kernel = device.compile(f"peaks/{which}.cu")[f"{which}_chains"]
    blocks = device.multiprocessors * kernel.occupancy(BLOCK, 0)
    steps = _FMA_STEPS if which == "fma" else _MMA_STEPS
    launch, _, flops = run_peak(device, which, blocks, steps, stream=timer.stream)
    return float(flops / timer.time([launch]).median / 1e9)


def from_report(report: Mapping[str, Any], source: str) -> list[Ceiling]:
    """Return a report's measured ceilings. For a bench: the large copy and, per dtype, the fastest matrix product of a
    library or peer. For a profile: the ceilings of its roofline."""
    if "ncu" in report:
        return [Ceiling(**one) for one in report["ceilings"].values() if one["measured"]]
    lines = []
    copy = report.get("ceilings", {}).get("copy_large")
    if copy:
        lines.append(Ceiling("copy", "gbps", "dram", float(copy["gbps"]), True, source))
    best: dict[str, tuple[float, str]] = {}
    for row in report["rows"]:
        theirs = row.get("rung") == 0 or str(row["variant"]).startswith("peer:")
        if theirs and row.get("ok") and row.get("tflops") and row.get("ceiling", "copy") != "copy":
            name = str(row["variant"]).removeprefix("peer:")
            best[row["dtype"]] = max(best.get(row["dtype"], (0.0, "")), (float(row["tflops"]), name))
    for dtype, (value, name) in best.items():
        pipe = "fma" if dtype == "float32" else "tensor"
        lines.append(Ceiling(f"{name} {dtype}", "tflops", pipe, value, True, source))
    return lines


def from_launch(launch: ProfiledLaunch) -> list[Ceiling]:
    """The data sheet's peaks at the clock of the launch, computed from its metrics."""
    peaks = {pipe: math.prod(launch.metrics.get(name, 0.0) for name in pair) for pipe, pair in metrics.PEAKS.items()}
    return [
        Ceiling(f"{what}, data sheet", kind, pipe, peaks[pipe] / scale, False, "ncu's peak at the clock of the launch")
        for what, kind, pipe, scale in (("DRAM", "gbps", "dram", 1e9), ("FP32", "tflops", "fma", 0.5e12))
        if peaks[pipe]
    ]


def best(lines: Iterable[Ceiling]) -> list[Ceiling]:
    """The highest ceiling of each name."""
    kept: dict[str, Ceiling] = {}
    for ceiling in lines:
        if ceiling.name not in kept or ceiling.value > kept[ceiling.name].value:
            kept[ceiling.name] = ceiling
    return list(kept.values())
