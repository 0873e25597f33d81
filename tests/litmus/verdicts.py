"""The simulated device's reports on litmus tests, and whether the PTX memory model agrees.

A test runs on the simulated device once per order of its threads, each thread until it waits. That is a few schedules
of many: a race that needs another one is not reached. A schedule reaches a race if the model has an execution with a
data race and the schedule's outcome.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import cudakit

from .kernels import Layout, entry, module
from .model import judge
from .program import Variant
from .runner import Way, launch

RACES = ("global memory race", "shared memory race")
AGREES, FALSE, MISSED, NOT_REACHED = "agrees", "false report", "missed", "not reached"
_PLAIN = Way(False, 1, 0)


@dataclass
class Seen:
    """The reports of one test: "" for a schedule without one. outcomes: those of schedules without a report."""

    reports: list[str] = field(default_factory=list)
    outcomes: set[tuple[int, ...]] = field(default_factory=set)
    text: str = ""

    @property
    def race(self) -> bool:
        return any(kind in RACES for kind in self.reports)


def seen_by_sim(variants: Sequence[Variant]) -> Iterator[tuple[Variant, Seen]]:
    """Run tests on the simulated device and yield its reports. A test ends at its first race."""
    device = cudakit.Device("sim", fresh=True)
    try:
        for variant in variants:
            layout, seen = Layout(variant), Seen()
            for order in _orders(len(variant.places)):
                loaded = device.load(module([entry("test", layout, order, harness=False)]), name="litmus.ptx")
                try:
                    seen.outcomes |= launch(device, loaded["test"], layout, _PLAIN, 0).keys()
                    loaded.close()
                    seen.reports.append("")
                except cudakit.DeviceFault as fault:
                    seen.reports.append(fault.report.kind)
                    seen.text = str(fault)
                    device.close()
                    device = cudakit.Device("sim", fresh=True)
                    if seen.race:
                        break
            yield variant, seen
    finally:
        device.close()


def _orders(count: int) -> list[tuple[int, ...]]:
    """The orders in which to run the threads: all of up to three, the rotations of four, forwards and backwards."""
    if count <= 3:
        return list(itertools.permutations(range(count)))
    turns = [tuple((start + k) % count for k in range(count)) for start in range(count)]
    return [*turns, *(turn[::-1] for turn in turns)]


def verdict(variant: Variant, seen: Seen) -> str:
    """Return whether the model agrees with the reports: AGREES, FALSE, MISSED or NOT_REACHED."""
    model = judge(variant)
    if seen.race == model.race:
        return AGREES
    if seen.race:
        return FALSE
    return MISSED if seen.outcomes & model.racy else NOT_REACHED
