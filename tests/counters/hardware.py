"""Runs the problems on a GPU under Nsight Compute and reads its counts of each launch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cudakit import nvtx, profiling
from cudakit.device import Device

from .launches import Counted
from .measures import METRICS
from .problems import Problem, runs


def launch(device: Device, problems: Sequence[Problem]) -> dict[tuple[str, str], str]:
    """Launch every variant once, in NVTX ranges by which `count` recognises it. Returns the digests of the variants'
    sources, by problem and variant."""
    sources = {}
    for problem in problems:
        with nvtx.range(problem.name):
            for run in runs(device, problem):
                run.launch()
                sources[problem.name, run.variant] = run.source
        device.synchronize()
    return sources


def profile(families: Sequence[str], device: str, report: Path) -> None:
    """Run `launch` in a new process under ncu. Raises ProfilerError if ncu is missing or fails."""
    command = [sys.executable, "-m", "tests.counters", "--launch", "--device", device]
    if families:
        command += ["--families", ",".join(families)]
    profiling.run_ncu(command, report, metrics=METRICS)


def count(report: Path, sources: dict[tuple[str, str], str]) -> Iterator[Counted]:
    """Yield ncu's counts of each launch in a report, kernels of libraries included."""
    problems = {problem for problem, _ in sources}
    for found in profiling.read_report(report):
        problem = next((name for name in found.ranges if name in problems), "")
        rungs = (name.partition(".")[2] for name in found.ranges)
        variant = next((name for name in rungs if (problem, name) in sources), None)
        if variant is None:
            continue
        counts = {name: float(found.metrics[name]) for name in METRICS if name in found.metrics}
        yield Counted(problem, variant, found.kernel, found.grid, found.block, sources[problem, variant], 1, counts)
