"""The search for the best configuration: compile ahead, check, race against the best so far, compare the finalists.

A candidate that is much slower than the best in a short measurement is dropped. Others are measured in turns with the
best one, so that a change of the GPU's clock affects both. At the end the finalists are compared in rounds: each round
measures them in turns, drops the slower half, and takes twice as long as the previous one.
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

# A candidate is dropped if it is slower than the best by FAR in a short measurement, or by FARTHER in the launch of its
# check.
FAR, FARTHER = 1.15, 3.0
# The most candidates that are compared at the end.
FINALISTS = 12
# The fraction of the budget that is reserved for the final comparison, and the most seconds.
RESERVE, MOST_RESERVE_S = 0.1, 12.0


class Workbench(Protocol):
    """Compiles, checks and measures points for a search. Costs are positive; lower is better. exact: whether costs are
    deterministic; then the check of a point returns its cost, and nothing is measured twice."""

    exact: bool

    def compile(self, point: Point) -> object:
        """Compile a point's kernels; called in several threads. Raises CompileError."""

    def check(self, trial: Trial) -> float:
        """Launch a point once, check its result, and return a lower bound of its cost.

        Raises Unfit, Wrong, and CudakitError if the launch fails or faults; the trial's `why`, if set, is then the full
        reason.
        """

    def cost(self, point: Point) -> float:
        """Return the cost of a checked point from a short measurement."""

    def race(self, points: Sequence[Point], effort: int) -> list[float]:
        """Return the costs of checked points, measured in turns for `effort` times the duration of the shortest
        race."""

    def recover(self) -> str | None:
        """Make the device usable again after a fault. Return the reason if that is impossible, else None."""


@dataclass
class Outcome:
    """The result of a search. best: None if nothing was measured. usual: the trial of the configuration of "auto"
    without tuning. trials: all trials. final: the costs of `best` and `usual`, measured in turns. tried_all: whether
    the space was exhausted. lost: the reason why the search ended early, if it did."""

    best: Trial | None = None
    usual: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    final: tuple[float, float] | None = None
    tried_all: bool = False
    seconds: float = 0.0
    lost: str | None = None

    @property
    def bugs(self) -> list[Trial]:
        """The trials that failed because of a bug in the kernel, and the default configuration if it does not
        compile."""
        return [
            trial for trial in self.trials if trial.verdict in BUGS or (trial.usual and trial.verdict == "not compiled")
        ]

    @property
    def kept(self) -> Trial | None:
        """The trial that "auto" will use: the default one if it was as fast in the final comparison, otherwise the
        best."""
        if self.final is not None and self.usual is not None and self.final[1] <= self.final[0]:
            return self.usual
        return self.best


class Tuner:
    """One search of one space on one workbench.

    usual: the points of the variants' default configurations. auto: the point of "auto", or None. cold: search without
    them; the point of "auto" is measured at the end. step(text): called before each step.
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
        self._lately = 0.0  # the best candidate's cost when it was last measured
        self.outcome = Outcome()

    def _trial(self, point: Point) -> Trial:
        return Trial(point, self.space.configuration(point), point in self._usual)

    def run(self) -> Outcome:
        """Search until the budget is used up or the space is exhausted."""
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
            # wait for the first one even beyond the budget, because a search needs one result
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
        """Compare a candidate with the best one; closer candidates are measured for longer."""
        trial.cost = rough
        if rough > FARTHER * self._lately:
            trial.end("slower")
            return
        trial.cost = self.bench.cost(trial.point)
        if trial.cost > FAR * self._lately:
            trial.end("slower")
            return
        mine, theirs = self.bench.race((trial.point, best.point), 1)
        trial.cost = (best.cost or theirs) * mine / theirs  # relative to the best, so that clock changes cancel
        trial.end("measured")
        self._lately = min(mine, theirs)
        if mine < theirs:
            self.outcome.best = trial

    def _finish(self) -> None:
        """Compare the finalists, then the best of them with the configuration of "auto"."""
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
            self._step("the best and the default configuration")
            outcome.best.cost, usual.cost = self.bench.race((outcome.best.point, auto), max(4, effort))
            usual.end("measured")
        if outcome.best.cost is not None and usual.cost is not None:
            outcome.final = outcome.best.cost, usual.cost


def _text(configuration: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
