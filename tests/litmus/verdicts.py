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
            orders = list(itertools.permutations(range(len(variant.places))))
            text = module([entry(f"test{k}", layout, order) for k, order in enumerate(orders)])
            loaded = device.load(text, name="litmus.ptx")
            for k in range(len(orders)):
                try:
                    seen.outcomes |= launch(device, loaded[f"test{k}"], layout, _PLAIN, 0).keys()
                    seen.reports.append("")
                except cudakit.DeviceFault as fault:
                    seen.reports.append(fault.report.kind)
                    seen.text = str(fault)
                    device.close()
                    device = cudakit.Device("sim", fresh=True)
                    if seen.race:
                        break
                    loaded = device.load(text, name="litmus.ptx")
            yield variant, seen
    finally:
        device.close()


def verdict(variant: Variant, seen: Seen) -> str:
    """Return whether the model agrees with the reports: AGREES, FALSE, MISSED or NOT_REACHED."""
    model = judge(variant)
    if seen.race == model.race:
        return AGREES
    if seen.race:
        return FALSE
    return MISSED if seen.outcomes & model.racy else NOT_REACHED
