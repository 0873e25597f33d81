"""The search for a problem that a variant is wrong on: on one device after another, and down to the smallest."""

from __future__ import annotations

import functools
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from cudakit import reports
from cudakit.errors import ContextLost, CudakitError
from cudakit.family import wrong_results
from cudakit.reports import Report
from cudakit.testing import drawing
from cudakit.testing.case import Case, Unsupported, run_case
from cudakit.testing.coverage import LEAST, Coverage

if TYPE_CHECKING:
    from types import TracebackType

    from cudakit.compare import Comparison
    from cudakit.device import Device
    from cudakit.family import Ladder, Variant

#: The most elements of a problem by the kind of the device: the simulated one pays for each element of a serial kernel.
ELEMENTS = {"gpu": 20_000, "sim": 4_000}


class Wrong(Exception):
    """A variant failed on a problem, or was wrong on it; the text says which, how and on what.

    error: what it raised. verdict: what was wrong. unstable: it has passed the same problem, too.
    """

    def __init__(
        self,
        family: Ladder[Any],
        variant: Variant[Any] | None,
        case: Case,
        why: str,
        *,
        error: CudakitError | None = None,
        verdict: Comparison | None = None,
        unstable: bool = False,
    ) -> None:
        super().__init__(f"{'auto' if variant is None else variant.name} on {case.said(family)}:\n{why}")
        self.variant, self.case, self.why = variant, case, why
        self.error, self.verdict, self.unstable = error, verdict, unstable


class TimeIsUp(BaseException):
    """No more problems are to be tried. Not an Exception: hypothesis would take it for a failing problem."""


class Workbench:
    """A device for many problems: a simulated one that a fault has lost is replaced by a fresh one with its checks.

    owned: whether `close` closes `device` too, as it does all that replaced it.
    """

    def __init__(self, device: Device, *, owned: bool = True) -> None:
        self._device, self._owned = device, owned
        self._lost: Wrong | None = None

    def usable(self) -> Device:
        """The device, or a fresh one if it was lost. A lost GPU stays lost."""
        device = self._device
        if device.context.lost is None or device.kind == "gpu":
            return device
        self.close()
        self._device, self._owned = device.reopened(), True
        return self._device

    def attempt(self, family: Ladder[Any], variant: Variant[Any] | None, case: Case) -> bool:
        """Whether `variant` (None: the one "auto" picks) took the problem. Raises Wrong if it was wrong or failed."""
        if self._lost is not None:  # a GPU's context does not come back: what is tried now says nothing new
            raise self._lost
        device = self.usable()
        try:
            verdict = run_case(device, family, variant, case)
        except CudakitError as error:
            error.report = wrong_results.without_harness(error.report)
            wrong = Wrong(family, variant, case, str(error) if error.report is None else str(error.report), error=error)
            if isinstance(error, ContextLost) and device.kind == "gpu":
                self._lost = wrong
            raise wrong from error
        if isinstance(verdict, Unsupported):
            return False
        if not verdict.ok:
            raise Wrong(family, variant, case, verdict.why, verdict=verdict)
        return True

    @property
    def lost(self) -> bool:
        """Whether nothing can be tried any more: a fault has lost the GPU."""
        return self._lost is not None

    def close(self) -> None:
        if self._owned:
            self._device.close()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, found: TracebackType | None
    ) -> None:
        self.close()


class Limit:
    """The time that a search may take. seconds: None if it may take any."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._end = float("inf") if self.seconds is None else time.monotonic() + self.seconds

    def expect_time(self) -> None:
        """Raises TimeIsUp if it is too late to begin another problem."""
        if self.seconds is not None and time.monotonic() > self._end:
            raise TimeIsUp


def search(
    bench: Workbench,
    family: Ladder[Any],
    variant: Variant[Any] | None,
    problems: st.SearchStrategy[Case],
    coverage: Coverage,
    *,
    examples: int,
    seed: int,
    limit: Limit | None = None,
) -> None:
    """Runs `variant` (None: the one "auto" picks) on the problems of `seed` until `examples` different ones ran.

    It ends earlier if the strategy has no more, or if it has tried three times as many: so many are refused. coverage:
    counts those that ran, and those that were refused. limit: begin no problem after it; the smallest failing one may
    be looked for as long again.
    Raises Wrong for the smallest problem that fails, TimeIsUp if none has failed in time.
    """
    limit = limit or Limit()
    for drawn in drawing.problems(problems, seed):
        if len(coverage.different) >= examples or coverage.drawn >= 3 * examples:
            return
        limit.expect_time()
        try:
            took = bench.attempt(family, variant, drawn.case)
        except Wrong as wrong:
            limit.restart()
            raise _smallest(bench, family, variant, problems, seed, drawn, wrong, limit) from None
        coverage.count(drawn.case, not took)


def _smallest(
    bench: Workbench,
    family: Ladder[Any],
    variant: Variant[Any] | None,
    problems: st.SearchStrategy[Case],
    seed: int,
    failing: drawing.Drawn,
    wrong: Wrong,
    limit: Limit,
) -> Wrong:
    """The error of the smallest problem that fails as `failing` does, or of the smallest found in time."""
    smallest = wrong

    def attempt(case: Case) -> None:
        nonlocal smallest
        limit.expect_time()
        try:
            bench.attempt(family, variant, case)
        except Wrong as found:
            smallest = found
            raise

    try:
        drawing.shrink(problems, seed, failing, attempt)
    except Wrong as found:
        return found
    except TimeIsUp:
        return smallest
    except Flaky:
        pass
    why = f"{smallest.why}\none problem failed and then passed, so the result depends on chance (a race?)"
    return Wrong(family, variant, smallest.case, why, unstable=True)


def explained(bench: Workbench, family: Ladder[Any], wrong: Wrong) -> tuple[str, list[Report]]:
    """The text of a failure, with the line of a wrong result if the device knows it, and the reports."""
    if wrong.unstable:
        site = None if wrong.variant is None else reports.defined(wrong.variant.launch)
        found = [Report("unstable result", wrong.why, full_text=wrong.why, launched=site)]
    elif wrong.error is not None:
        found = wrong_results.of_error(wrong.error, wrong.variant)
    elif wrong.verdict is not None and wrong.variant is not None:
        again = functools.partial(run_case, bench.usable(), family, wrong.variant, wrong.case)
        found = [wrong_results.report(bench.usable(), wrong.verdict, again, wrong.variant)]
    else:
        return str(wrong), []
    name = "auto" if wrong.variant is None else wrong.variant.name
    problem = wrong.case.said(family)
    said = f"{name} on {problem}:\n{wrong_results.text(found)}"
    return said, [replace(one, problem=problem) for one in found]


def check_variant(
    device: Device,
    family: Ladder[Any],
    variant: Variant[Any] | None,
    problems: st.SearchStrategy[Case],
    examples: int | None = None,
) -> Coverage:
    """Runs `variant` (None: the one "auto" picks) on drawn problems until `examples` different ones ran, LEAST or more.

    Raises AssertionError if it is wrong on one, which is made as small as can be, or if fewer than half of the problems
    or fewer than LEAST different ones ran. A fault loses a simulated `device`. examples: those of hypothesis' profile
    unless given. The problems are the same each time if the profile is derandomized.
    """
    profile: Any = hypothesis.settings.default
    wanted = max(LEAST, examples or profile.max_examples)
    seed = 0 if profile.derandomize else random_seed()
    coverage = Coverage()
    with Workbench(device, owned=False) as bench:
        try:
            search(bench, family, variant, problems, coverage, examples=wanted, seed=seed)
        except Wrong as wrong:
            text, _ = explained(bench, family, wrong)
            raise AssertionError(f"{family.name}, seed {seed}: {text}") from None
    short = coverage.shortfall()
    if short is not None:  # no assert: `python -O` leaves those out
        raise AssertionError(f"{family.name}/{variant.name if variant else 'auto'}: {short}")
    return coverage


def random_seed() -> int:
    """A seed that no one knows beforehand."""
    return random.SystemRandom().randrange(2**32)
