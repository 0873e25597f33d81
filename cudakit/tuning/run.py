"""Tuning of a family on several shapes, dtypes and modes: search, save the best configurations, and report them."""

from __future__ import annotations

import datetime
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit import tuned
from cudakit.errors import Refused, UnsupportedVariant
from cudakit.family.choice import fingerprint_of, situation_of
from cudakit.measure.bench import Selection
from cudakit.measure.command import command_line
from cudakit.shapes import Shape, shape_text
from cudakit.tuned import Choice
from cudakit.tuning.bench import FamilyBench, Timer
from cudakit.tuning.search import SEARCHES
from cudakit.tuning.trial import Trial
from cudakit.tuning.tuner import Outcome, Tuner

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.family import Ladder


# Family, shape, dtype and mode of one search.
Key = tuple[str, Shape, str, str]
# The fewest remaining seconds of a budget for which another process is started.
WORTH_S = 3.0


def _silent(text: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True)
class Settings:
    """Settings of a search.

    Args:
        budget_s: Seconds per shape, dtype and mode, for everything.
        search: "auto", "exhaustive" or "random".
        seed: The seed of inputs and of random searches.
        cold: Start without the default configurations; they are only compared with the best at the end.
        keep: Save the best configuration for "auto".
        threads: Concurrent compiles; None for one per CPU, less one.
    """

    budget_s: float = 60.0
    search: str = "auto"
    seed: int = 0
    cold: bool = False
    keep: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < math.inf:
            raise ValueError(f"the budget must be a finite number of seconds above 0, got {self.budget_s}")
        if self.search not in SEARCHES:
            raise ValueError(f"unknown search {self.search!r}; known are {', '.join(SEARCHES)}")

    def as_dict(self) -> dict[str, Any]:
        return {"budget_s": self.budget_s, "search": self.search, "seed": self.seed, "cold": self.cold}


@dataclass
class Tuning:
    """The outcome for one shape. unit: the unit of costs, "ms" or "slots". space: the number of configurations,
    including unsupported ones. kept: the file in which the best configuration is saved, or None."""

    family: str
    shape: Shape
    dtype: str
    mode: str
    unit: str
    space: int
    refused: Mapping[str, int]
    outcome: Outcome
    kept: Path | None = None

    @property
    def key(self) -> Key:
        return self.family, self.shape, self.dtype, self.mode

    @property
    def ratio(self) -> float | None:
        """The speed-up: the cost of "auto" without tuning, divided by the cost of the best configuration; None if they
        were not compared."""
        return None if self.outcome.final is None else self.outcome.final[1] / self.outcome.final[0]

    def as_dict(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "family": self.family,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mode": self.mode,
            "unit": self.unit,
            "space": self.space,
            "tried": len(outcome.trials),
            "tried_all": outcome.tried_all,
            "seconds": outcome.seconds,
            "best": None if outcome.best is None else outcome.best.as_dict(),
            "usual": None if outcome.usual is None else outcome.usual.as_dict(),
            "ratio": self.ratio,
            "kept": None if self.kept is None else str(self.kept),
            "lost": outcome.lost,
            "refused": dict(self.refused),
            "trials": [trial.as_dict() for trial in outcome.trials],
        }


@dataclass(repr=False)
class TuneReport:
    """The outcomes of a run. device: the result of `Device.info`. command: the command that made it, as `command_line`
    returns it."""

    device: Mapping[str, str]
    settings: Settings
    tunings: list[Tuning] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    command: str = field(default_factory=command_line)

    def __repr__(self) -> str:
        found = sum(one.outcome.best is not None for one in self.tunings)
        failed = f", {len(self.bugs)} failed" if self.bugs else ""
        searches = f"{len(self.tunings)} search{'es' * (len(self.tunings) != 1)}"
        return f"{type(self).__name__}({self.device.get('name')}: {searches}, {found} with a best{failed})"

    @property
    def bugs(self) -> list[Trial]:
        """The trials that failed because of a bug in a kernel."""
        return [trial for one in self.tunings for trial in one.outcome.bugs]

    @property
    def ok(self) -> bool:
        """True if no trial failed and no search ended early because the device was lost."""
        return not self.bugs and not any(one.outcome.lost for one in self.tunings)

    @property
    def measured(self) -> bool:
        """Whether a configuration was measured for every shape."""
        return all(one.outcome.best is not None for one in self.tunings) and bool(self.tunings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": dict(self.device),
            "date": self.date,
            "command": self.command,
            "settings": self.settings.as_dict(),
            "tunings": [one.as_dict() for one in self.tunings],
        }


@dataclass
class Earlier:
    """Results of another process before a fault lost its GPU. finished: completed searches. failed: trials of the other
    searches that are not repeated. left_s: the remaining budgets of those searches."""

    finished: dict[Key, Tuning] = field(default_factory=dict)
    failed: dict[Key, list[Trial]] = field(default_factory=dict)
    left_s: dict[Key, float] = field(default_factory=dict)

    def after(self, report: TuneReport) -> Earlier | None:
        """Return these results extended by another process's report; None if that process lost no GPU."""
        last = report.tunings[-1] if report.tunings else None
        if last is None or last.outcome.lost is None or last.key in self.finished:
            return None
        failed = [trial for trial in last.outcome.trials if trial.verdict == "failed"]
        left_s = self.left_s.get(last.key, report.settings.budget_s) - last.outcome.seconds
        more = failed and left_s > WORTH_S
        done = report.tunings[:-1] if more else report.tunings
        finished = {one.key: one for one in done}
        return Earlier(finished, {last.key: failed}, {last.key: left_s}) if more else Earlier(finished)


def tune(
    device: Device,
    family: Ladder[Any],
    shapes: Sequence[Shape],
    selection: Selection | None = None,
    settings: Settings | None = None,
    *,
    step: Callable[[str], None] = _silent,
    timer: Timer | None = None,
    earlier: Earlier | None = None,
) -> TuneReport:
    """Tune a family on each shape, and save the best configurations for `variant="auto"`.

    If a GPU is lost, the run ends after that shape; another process can continue with `Earlier.after`.

    Args:
        device: The device.
        family: The family.
        shapes: The shapes to tune for.
        selection: The variants, dtypes and modes.
        settings: The settings of the search.
        step: Called with a text before each step, for progress.
        timer: As for FamilyBench.
        earlier: Results of an earlier process that lost its GPU.

    Returns:
        The report with one outcome per shape, dtype and mode.

    Raises:
        Refused: If a shape or name is wrong.
    """
    selection, settings = selection or Selection(), settings or Settings()
    earlier = earlier or Earlier()
    chosen, dtypes, modes = selection.of(family)
    report = TuneReport(device.info(), settings)
    names = [one.name for one in chosen] if selection.variants else None
    first = device
    for mode, dtype, shape in itertools.product(modes, dtypes, shapes):
        key = (family.name, family.read_shape(shape), dtype, mode)
        if key in earlier.finished:
            report.tunings.append(earlier.finished[key])
            continue
        begin = time.monotonic()
        failed = earlier.failed.get(key, [])
        bench = _bench(device, family, shape, dtype, mode, names, settings, timer, failed)
        said = bench.case.said
        left_s = earlier.left_s.get(key, settings.budget_s)
        left_s -= time.monotonic() - begin  # the budget includes making the arrays and the reference
        found = _one(bench, settings, left_s, lambda text, said=said: step(f"{said}: {text}"))  # type: ignore[misc]
        found.outcome.trials[:0] = failed
        report.tunings.append(found)
        device = bench.device
        if found.outcome.lost is not None:
            break
        bench.close()
    if device is not first:  # a simulated device was lost and replaced
        device.close()
    return report


def _bench(
    device: Device,
    family: Ladder[Any],
    shape: Shape,
    dtype: str,
    mode: str,
    names: list[str] | None,
    settings: Settings,
    timer: Timer | None,
    failed: Sequence[Trial],
) -> FamilyBench:
    try:
        return FamilyBench(
            device,
            family,
            shape,
            dtype,
            mode,
            variants=names,
            cold=settings.cold,
            seed=settings.seed,
            timer=timer,
            failed=failed,
        )
    except UnsupportedVariant as error:
        raise Refused(f"{family.name} {shape_text(shape)}: {error}") from error


def _one(bench: FamilyBench, settings: Settings, budget_s: float, step: Callable[[str], None]) -> Tuning:
    case = bench.case
    situation = situation_of(bench.family, bench.device, case.inputs, case.output, case.options)
    tuner = Tuner(
        bench.space,
        bench,
        bench.usual,
        auto=bench.auto,
        search=settings.search,
        seed=settings.seed,
        budget_s=budget_s,
        threads=settings.threads,
        cold=settings.cold,
        step=step,
    )
    outcome = tuner.run()
    found = Tuning(
        bench.family.name, case.shape, case.dtype, case.mode, bench.unit, bench.space.size, bench.space.refused, outcome
    )
    best = outcome.kept
    compared = outcome.final is not None or not settings.cold
    if settings.keep and compared and best is not None and best.cost is not None:
        one = bench.variant(best.point)
        choice = Choice(
            best.variant,
            best.configuration,
            fingerprint_of(one, bench.case.problem, bench.device.arch),
            float(best.cost),
            bench.unit,
            outcome.usual.cost if outcome.usual is not None else None,
        )
        found.kept = tuned.keep(situation, choice, home=os.path.dirname(bench.family.variants[0].source))
        bench.family.forget_calls()
    return found
