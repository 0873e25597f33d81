"""Runs the problems on the simulated device and reads its counts of each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cudakit.device import Device
from cudakit.launch.mangling import demangle

from .launches import Counted
from .problems import Problem, Run, runs


def count(device: Device, problems: Sequence[Problem]) -> Iterator[Counted]:
    """Yield the simulated device's counts of each problem and variant."""
    for problem in problems:
        for run in runs(device, problem):
            for record in _watched(device, run):
                yield _counted(problem, run, record)


def _counted(problem: Problem, run: Run, record: Any) -> Counted:
    signature = demangle(record.name)
    name = record.name if signature is None else signature.name.partition("<")[0]
    counters = record.counters
    shape = tuple(record.grid), tuple(record.block)
    return Counted(problem.name, run.variant, name, *shape, run.source, counters.launches, dict(counters.as_dict()))


def _watched(device: Device, run: Run) -> list[Any]:
    """Return the records of a variant's launches: kernels by grid and block, with their counters."""
    driver = device.context.driver
    device.synchronize()
    begun = driver.simCount(device.context.handle)
    try:
        run.launch()
        device.synchronize()
    finally:
        records: list[Any] = driver.simEndCount(begun)
    return records
