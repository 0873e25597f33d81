"""The search for the best configuration: compile ahead, check, race against the best so far, decide among the best.

A candidate that is far from the best after a short measurement is dropped. Others are measured in turns with the best
one, so that a change of the GPU's clock touches both. At the end the best ones meet: each round measures them in turns,
drops the worse half, and takes twice as long as the round before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cudakit.errors import CompileError, ContextLost, CudakitError, OutOfMemory
from cudakit.tuning.ahead import Ahead
from cudakit.tuning.search import STARTS, Search
from cudakit.tuning.space import Point, Space
from cudakit.tuning.trial import BUGS, Trial, Unfit, Wrong

# A candidate this much slower than the best, by the launch of its check and by a short measurement, is dropped.
FAR, FARTHER = 1.15, 3.0
# The candidates that meet at the end, and the rounds that the last two are measured again in.
FINALISTS = 12
# The share of the budget that is kept for the end, and the most seconds.
RESERVE, MOST_RESERVE_S = 0.1, 12.0


class Workbench(Protocol):
    """What a search measures on. Costs are positive; less is better. exact: costs are the same each time, so the check
    of a point returns its cost, and nothing is measured twice."""

    exact: bool

    def compile(self, point: Point) -> object:
        """Compiles a point's kernels; called in several threads. Raises CompileError."""

    def check(self, trial: Trial) -> float:
        """Launches a point once and judges its result; returns a cost that it has at least. Raises Unfit, Wrong, and
        CudakitError if it cannot be launched or faults; the trial's `why` is then the whole reason, if it is set."""

    def cost(self, point: Point) -> float:
        """A short measurement of a point that was checked."""

    def race(self, points: Sequence[Point], effort: int) -> list[float]:
        """The costs of points that were checked, measured in turns; `effort` times as long as the shortest race."""

    def recover(self) -> str | None:
        """After a fault: makes the device usable again. Returns why it cannot, or None."""


@dataclass
class Outcome:
    """What a search found. best: None if nothing was measured. usual: the trial of the configuration that "auto" means
    without tuning. trials: all of them. final: the costs of the best and the usual one, measured in turns. tried_all:
    whether the space was exhausted. lost: why the search ended before its time, if it did."""

    best: Trial | None = None
    usual: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    final: tuple[float, float] | None = None
    tried_all: bool = False
    seconds: float = 0.0
    lost: str | None = None

    @property
    def bugs(self) -> list[Trial]:
        """The trials that a bug of the kernel ended, and the usual configuration if it does not compile."""
        return [
            trial for trial in self.trials if trial.verdict in BUGS or (trial.usual and trial.verdict == "not compiled")
        ]

    @property
    def kept(self) -> Trial | None:
        """The trial that "auto" should mean: the best, unless the usual one is as good in the last comparison."""
        if self.final is not None and self.usual is not None and self.final[1] <= self.final[0]:
            return self.usual
        return self.best


class Tuner:
    """One search of one space on one workbench.

    usual: the points of the variants' usual configurations, the one of "auto" first, None if there is none. cold: the
    search must not see them; the one of "auto" is measured at the end. step(text): told what runs next.
    """

    def __init__(
        self,
        space: Space,
        bench: Workbench,
        usual: Sequence[Point] = (),
        *,
        auto: Point | None = None,
        search: str = "auto",
        seed: int = 0,
        budget_s: float = 60.0,
        threads: int | None = None,
        cold: bool = False,
        step: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.space, self.bench, self.auto = space, bench, auto
        self._usual = set(usual) | ({auto} if auto is not None else set())
        first = () if cold else tuple(dict.fromkeys((*((auto,) if auto is not None else ()), *usual)))
        self.search = Search(space, search, seed, first)
        self._threads, self._step, self._clock = threads, step, clock
        self._begin = clock()
        self._end = self._begin + budget_s
        self._lately = 0.0  # the best one's cost when it was last measured
        self.outcome = Outcome()

    def _trial(self, point: Point) -> Trial:
        return Trial(point, self.space.configuration(point), point in self._usual)

    def run(self) -> Outcome:
        """Searches until the budget is used up or the space is exhausted."""
        outcome = self.outcome
        ahead: Ahead[Trial] = Ahead(lambda trial: self.bench.compile(trial.point), self._threads)
        try:
            self._search(ahead)
            ahead.drop()
            if outcome.lost is None:
                self._finish()
        finally:
            ahead.close()
        outcome.seconds = self._clock() - self._begin
        return outcome

    def _search(self, ahead: Ahead[Trial]) -> None:
        last = self._end - min(MOST_RESERVE_S, RESERVE * (self._end - self._begin))
        outcome, left = self.outcome, True
        while self.outcome.lost is None:
            while left and ahead.room and self._clock() < last:
                point = self.search.ask()
                if point is None:
                    left = False
                else:
                    ahead.add(self._trial(point))
            if ahead.empty:
                outcome.tried_all = not left
                return
            # the first one is waited for beyond the budget: without it there is no result at all
            patience = last - self._clock() if outcome.best is not None else 3600.0
            done = ahead.next(patience)
            if done is None or (outcome.best is not None and self._clock() > last):
                return
            trial, error = done
            outcome.trials.append(trial)
            self._try(trial, error)
            self.search.tell(trial.point, trial.cost)
            if len(outcome.trials) >= STARTS:
                now = self._clock()
                self.search.pace((now - self._begin) / len(outcome.trials), last - now)

    def _try(self, trial: Trial, error: BaseException | None) -> None:
        """Check and measure one configuration."""
        outcome = self.outcome
        self._step(f"{len(outcome.trials)} {trial.variant} {_text(trial.configuration)}")
        if isinstance(error, CudakitError):
            trial.end("not compiled" if isinstance(error, CompileError) else "failed", str(error))
            return
        if error is not None:
            raise error
        try:
            rough = self.bench.check(trial)
            if self.bench.exact:
                trial.cost = rough
                trial.end("measured")
                if outcome.best is None or rough < (outcome.best.cost or 0.0):
                    outcome.best = trial
            elif outcome.best is None:
                trial.cost = self._lately = self.bench.cost(trial.point)
                trial.end("measured")
                outcome.best = trial
            else:
                self._race(trial, rough, outcome.best)
        except Unfit as why:
            trial.end("unfit", str(why))
        except Wrong as why:
            trial.end("wrong", str(why))
        except OutOfMemory as why:
            trial.end("unfit", str(why))
        except CudakitError as why:
            trial.end("failed", trial.why or str(why))
            if isinstance(why, ContextLost):
                outcome.lost = self.bench.recover()

    def _race(self, trial: Trial, rough: float, best: Trial) -> None:
        """Measure a candidate against the best one, longer the closer it is."""
        trial.cost = rough
        if rough > FARTHER * self._lately:
            trial.end("slower")
            return
        trial.cost = self.bench.cost(trial.point)
        if trial.cost > FAR * self._lately:
            trial.end("slower")
            return
        mine, theirs = self.bench.race((trial.point, best.point), 1)
        trial.cost = (best.cost or theirs) * mine / theirs  # on one scale, whatever the clock does
        trial.end("measured")
        self._lately = min(mine, theirs)
        if mine < theirs:
            self.outcome.best = trial

    def _finish(self) -> None:
        """Let the best ones meet, and then the best and the one that "auto" means."""
        outcome = self.outcome
        field_ = sorted((t for t in outcome.trials if t.verdict == "measured"), key=lambda t: t.cost or 0.0)[:FINALISTS]
        effort = 1
        try:
            while len(field_) > 1 and not self.bench.exact:
                self._step(f"the best {len(field_)}")
                for trial, cost in zip(field_, self.bench.race([t.point for t in field_], effort), strict=True):
                    trial.cost = cost
                field_ = sorted(field_, key=lambda t: t.cost or 0.0)[: (len(field_) + 1) // 2]
                effort *= 2
            outcome.best = field_[0] if field_ else None
            self._compare_with_auto(effort)
        except ContextLost as error:
            outcome.lost = str(error)

    def _compare_with_auto(self, effort: int) -> None:
        outcome, auto = self.outcome, self.auto
        if auto is None:
            return
        usual = next((trial for trial in outcome.trials if trial.point == auto), None)
        if usual is None:  # a cold start
            usual = self._trial(auto)
            outcome.trials.append(usual)
            try:
                self.bench.compile(auto)
                usual.cost = self.bench.check(usual)
                usual.end("measured")
            except (Unfit, Wrong, CudakitError) as why:
                usual.end("wrong" if isinstance(why, Wrong) else "failed", usual.why or str(why))
                if isinstance(why, ContextLost):
                    raise
        outcome.usual = usual
        if outcome.best is None or usual.verdict not in ("measured", "slower"):
            return
        if outcome.best.point == auto:
            if outcome.best.cost is not None:
                outcome.final = outcome.best.cost, outcome.best.cost
            return
        if not self.bench.exact:
            self._step("the best and the usual one")
            outcome.best.cost, usual.cost = self.bench.race((outcome.best.point, auto), max(4, effort))
            usual.end("measured")
        if outcome.best.cost is not None and usual.cost is not None:
            outcome.final = outcome.best.cost, usual.cost


def _text(configuration: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
