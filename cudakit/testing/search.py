"""The search for the smallest problem on which a variant fails. Devices lost by faults are replaced."""

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

#: The most elements of a problem by kind of device. The simulated device is slow at serial kernels with many elements.
ELEMENTS = {"gpu": 20_000, "sim": 4_000}


class Wrong(Exception):
    """A variant failed on a problem or had a wrong result; the message has the variant, the problem and the reason.

    error: the error that was raised. verdict: the comparison of a wrong result. unstable: the variant also passed the
    same problem.
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
    """The time limit has expired. Not an Exception, which hypothesis would treat as a failing problem."""


class Workbench:
    """A device for many problems: a simulated device that a fault has lost is replaced by a new one with the same
    checks.

    owned: whether `close` also closes `device`; it always closes replacements.
    """

    def __init__(self, device: Device, *, owned: bool = True) -> None:
        self._device, self._owned = device, owned
        self._lost: Wrong | None = None

    def usable(self) -> Device:
        """Return the device, or a new one if it was lost. A lost GPU cannot be replaced."""
        device = self._device
        if device.context.lost is None or device.kind == "gpu":
            return device
        self.close()
        self._device, self._owned = device.reopened(), True
        return self._device

    def attempt(self, family: Ladder[Any], variant: Variant[Any] | None, case: Case) -> bool:
        """Run `variant` (None: the one that "auto" picks) on the problem and return whether it supports it. Raise Wrong
        if the result is wrong or the run failed."""
        if self._lost is not None:  # a lost GPU cannot run anything more
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
        """Whether a fault has lost the GPU, which ends all attempts."""
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
    """The time limit of a search. seconds: None for no limit."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._end = float("inf") if self.seconds is None else time.monotonic() + self.seconds

    def expect_time(self) -> None:
        """Raise TimeIsUp if it is too late to start another problem."""
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
    """Run `variant` (None: the one that "auto" picks) on the problems of `seed` until `examples` different ones ran.

    Ends earlier if the strategy has no more problems, or after 3 * `examples` problems if most of them are unsupported.
    coverage: counts the problems that ran and those that are unsupported. limit: no problem starts after it; the search
    for the smallest failing problem may take the same time again. Raises Wrong for the smallest failing problem,
    TimeIsUp if none failed in time.
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
    """Return the error of the smallest failing problem that shrinking `failing` finds in time."""
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
    why = f"{smallest.why}\none problem failed and then passed, so the result is not deterministic (a race?)"
    return Wrong(family, variant, smallest.case, why, unstable=True)


def explained(bench: Workbench, family: Ladder[Any], wrong: Wrong) -> tuple[str, list[Report]]:
    """Return the message of a failure, with the source line of a wrong result if the device can find it, and the
    reports."""
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
    """Check a variant on drawn problems until `examples` different ones ran.

    The problems are the same each time if hypothesis' profile is derandomized. After a fault a simulated `device` is
    unusable.

    Args:
        device: The device.
        family: The family.
        variant: The variant; None for the one that "auto" picks.
        problems: The strategy, such as `cases_of(family, variant)`.
        examples: Different problems to run, at least LEAST; by default the examples of hypothesis' profile.

    Returns:
        The counts of the problems.

    Raises:
        AssertionError: If the variant fails on a problem, which is shrunk to the smallest one; or if fewer than half of
            the problems or fewer than LEAST different ones ran.
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
    if short is not None:  # not an assert, which `python -O` drops
        raise AssertionError(f"{family.name}/{variant.name if variant else 'auto'}: {short}")
    return coverage


def random_seed() -> int:
    """Return a random seed."""
    return random.SystemRandom().randrange(2**32)
