"""`cudakit fuzz`: a family's variants on problems that hypothesis draws, held against the float64 reference."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cudakit import reports
from cudakit.commands import cli, wrong_results
from cudakit.compile import headers
from cudakit.errors import ContextLost, CudakitError, Refused
from cudakit.reports import Report
from cudakit.show import terminal

if TYPE_CHECKING:
    from cudakit.compare import Comparison
    from cudakit.device import Device
    from cudakit.family import Ladder, Variant
    from cudakit.testing import Coverage


# The largest problem unless told otherwise: the simulated device pays for each element of a serial rung.
ELEMENTS = {"gpu": 20_000, "sim": 4_000}


@dataclass
class FuzzOutcome:
    """What a run of fuzzing found. `ran` and `refused` count the problems of all variants; `different`: by variant, the
    different problems that ran and were not empty; `short`: by variant, a sentence if it ran on too few. `cut_after`:
    the seconds after which no more problems were tried, None if all that were asked for were. `replay`: the command
    that draws the same problems again. `reports`: what was wrong, as data."""

    family: str
    variants: list[str]
    device: str
    seed: int
    problems: int = 0
    ran: int = 0
    refused: int = 0
    different: dict[str, int] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)
    failure: str | None = None
    cut_after: float | None = None
    replay: str = ""
    reports: list[Report] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.failure is None and self.ran > 0 and not self.short

    def text(self) -> str:
        """One line, and the smallest failing problem where there is one."""
        what = f"{self.family}/{self.variants[0]}" if len(self.variants) == 1 else self.family
        line = (
            f"{what} on {self.device}: {self.problems} problems, {self.ran} runs, {self.refused} refused with a reason,"
            f" seed {self.seed}: "
        )
        if self.cut_after is not None:
            line += f"ended after {self.cut_after:g} seconds, "
        if self.failure is not None:
            return f"{line}FAILED\n{self.failure}\nreplay: {self.replay}"
        if not self.ran:
            return line + "NOTHING RAN, every problem was refused"
        if self.short:
            return "\n".join([f"{line}TOO FEW PROBLEMS RAN", *(f"{name}: {why}" for name, why in self.short.items())])
        return line + f"all right, on {min(self.different.values())} different problems or more per variant"


class _Wrong(Exception):
    """A variant failed on a problem, or was wrong on it; the text says which, how and on what. error: what it raised.
    verdict: what was wrong."""

    def __init__(
        self,
        variant: Variant[Any],
        case: Any,
        why: str,
        *,
        error: CudakitError | None = None,
        verdict: Comparison | None = None,
    ) -> None:
        super().__init__(f"{variant.name} on {case}:\n{why}")
        self.variant, self.case, self.error, self.verdict = variant, case, error, verdict


class _TimeIsUp(BaseException):
    """No more problems are to be tried. Not an Exception: hypothesis would take it for a failing problem."""


class _Bench:
    """One device for many problems: a simulated one that a fault has lost is replaced by a fresh one."""

    def __init__(self, spec: str, checks: Collection[str] | None) -> None:
        self.options = {} if checks is None else {"checks": frozenset(checks)}
        self.device: Device = cli.open_device(spec, **self.options)
        self.lost: _Wrong | None = None

    def attempt(self, family: Ladder[Any], variant: Variant[Any], case: Any) -> bool:
        """Whether `variant` took the problem. Raises _Wrong where it was wrong or failed."""
        from cudakit import testing

        if self.lost is not None:  # a GPU's context does not come back: what is tried now says nothing new
            raise self.lost
        try:
            verdict = testing.run_case(self.device, family, variant, case)
        except CudakitError as error:
            wrong = _Wrong(variant, case, str(error), error=error)
            if isinstance(error, ContextLost):
                self._replace(wrong)
            raise wrong from error
        if isinstance(verdict, testing.Unsupported):
            return False
        if not verdict.ok:
            raise _Wrong(variant, case, verdict.why, verdict=verdict)
        return True

    def explained(self, family: Ladder[Any], wrong: _Wrong) -> tuple[str, list[Report]]:
        """The text of a failure, with the line of a wrong result, and the reports."""
        if wrong.verdict is None:
            found = reports.of_error(wrong.error) if wrong.error is not None else []
            return str(wrong), [replace(one, problem=repr(wrong.case)) for one in found]
        one = wrong_results.report(self.device, family, wrong.variant, wrong.case, wrong.verdict)
        return f"{wrong.variant.name} on {wrong.case}:\n{one.full_text}", [replace(one, problem=repr(wrong.case))]

    def _replace(self, wrong: _Wrong) -> None:
        if self.device.kind == "gpu":
            self.lost = wrong
            return
        from cudakit.device import Device

        arch = self.device.arch
        self.device.close()
        self.device = Device(f"sim:{arch}", fresh=True, **self.options)


class _Search:
    """Tries the variants on one problem after another. outcome: what it adds to. seconds: begin no problem after that
    long; once a problem has failed, as long again for making it small."""

    def __init__(
        self,
        bench: _Bench,
        family: Ladder[Any],
        outcome: FuzzOutcome,
        seconds: float | None,
    ) -> None:
        self._bench, self._family, self._outcome = bench, family, outcome
        self._seconds = seconds
        self._end = self._later()
        self._failing: _Wrong | None = None

    def _later(self) -> float:
        return float("inf") if self._seconds is None else time.monotonic() + self._seconds

    def attempt(self, variant: Variant[Any], coverage: Coverage, case: Any) -> None:
        """Runs `variant` on one problem. Raises _Wrong if it is wrong, _TimeIsUp if it is too late."""
        if time.monotonic() > self._end:
            raise _TimeIsUp
        outcome, drawn = self._outcome, self._failing is None  # making a failing problem smaller draws no new ones
        outcome.problems += drawn
        try:
            took = self._bench.attempt(self._family, variant, case)
        except _Wrong as wrong:
            if self._failing is None:
                self._end = self._later()
            self._failing = wrong
            raise
        if drawn:
            coverage.count(case, not took)
        outcome.ran += took and drawn
        outcome.refused += not took and drawn

    def end(self, variant: Variant[Any], coverage: Coverage) -> None:
        """Notes on how many problems `variant` ran: it must be half of those drawn, and LEAST if so many were drawn."""
        from cudakit.testing import LEAST

        self._outcome.different[variant.name] = len(coverage.different)
        # hypothesis draws about half of its problems twice
        short = coverage.shortfall(min(LEAST, coverage.drawn // 4))
        if short is not None or (not coverage.different and coverage.drawn):
            self._outcome.short[variant.name] = why = short or "nothing ran"
            self._report(variant, [reports.Report("too few problems", why, full_text=why)])

    def _report(self, variant: Variant[Any], found: Sequence[Report]) -> None:
        """Add reports about a variant to the outcome. One without a place is about its source file."""
        about: dict[str, Any] = {"family": self._family.name, "variant": variant.name, "replay": self._outcome.replay}
        source = str(headers.kernel_root() / variant.source)
        self._outcome.reports += [replace(one, **about).at(source) for one in found]

    def _fail(self, wrong: _Wrong) -> None:
        self._outcome.failure, found = self._bench.explained(self._family, wrong)
        self._report(wrong.variant, found)

    @property
    def over(self) -> bool:
        """Whether no other variant is to be tried."""
        return self._outcome.failure is not None or self._outcome.cut_after is not None

    def finish(self, variant: Variant[Any], attempts: Callable[[], None]) -> None:
        """Make all `attempts` of a variant, and note in the outcome how they ended."""
        from hypothesis.errors import Flaky

        outcome = self._outcome
        try:
            attempts()
        except _Wrong as wrong:
            self._fail(wrong)
        except _TimeIsUp:
            if self._failing is None:
                outcome.cut_after = self._seconds
            else:
                self._fail(self._failing)  # the smallest so far
        except Flaky as error:
            outcome.failure = f"one problem failed and then passed, so the result depends on chance (a race?): {error}"
            self._report(variant, [reports.Report("unstable result", outcome.failure, full_text=outcome.failure)])


def run(
    spec: str,
    family: Ladder[Any],
    names: Sequence[str],
    examples: int,
    seed: int | None = None,
    elements: int | None = None,
    checks: Collection[str] | None = None,
    seconds: float | None = None,
) -> FuzzOutcome:
    """Runs each of the variants `names` (all if empty) on `examples` problems of at most `elements` elements, of the
    kind that it supports.

    checks: those of a simulated device, all unless given. seconds: begin no new problem after that; a failing problem
    may take as long again to be made small. Raises Refused where it cannot be done.
    """
    try:
        import hypothesis
    except ImportError as error:
        raise Refused("fuzzing needs hypothesis: pip install 'cudakit[test]'") from error
    from cudakit import testing

    bench = _Bench(spec, checks)
    elements = elements or ELEMENTS[bench.device.kind]
    try:
        variants = [family[name] for name in names] if names else list(family.variants)
        cases = [testing.cases_of(family, variant, elements) for variant in variants]
    except ValueError as error:
        raise Refused(str(error)) from error
    number = random.SystemRandom().randrange(2**32) if seed is None else seed
    outcome = FuzzOutcome(family.name, [variant.name for variant in variants], bench.device.name, number)
    outcome.replay = f"cudakit fuzz {family.name} --device {spec} --examples {examples} --seed {number}"
    outcome.replay += f" --elements {elements}" + (f" --variants {','.join(names)}" if names else "")
    search = _Search(bench, family, outcome, seconds)

    def drawn(problems: Any, variant: Variant[Any], coverage: Coverage) -> Callable[[], None]:
        @hypothesis.seed(number)
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            derandomize=False,
            deadline=None,
            # not its explain phase, which runs a failing problem hundreds of times for comments that are not shown here
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            verbosity=hypothesis.Verbosity.quiet,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(problems)
        def attempts(case: Any) -> None:
            search.attempt(variant, coverage, case)

        found: Callable[[], None] = attempts
        return found

    try:
        for variant, problems in zip(variants, cases, strict=True):
            coverage = testing.Coverage()
            search.finish(variant, drawn(problems, variant, coverage))
            search.end(variant, coverage)
            if search.over:
                break
    finally:
        bench.device.close()
    return outcome


def fuzz(arguments: argparse.Namespace) -> int:
    """The command."""
    outcome = run(
        arguments.device,
        cli.family(arguments.family),
        arguments.variants or (),
        arguments.examples,
        arguments.seed,
        arguments.elements,
    )
    terminal.say(outcome.text())
    if outcome.failure is None and not outcome.ran:
        return cli.nothing_checked(f"{', '.join(outcome.variants)} refused every problem")
    return cli.EXIT_OK if outcome.ok else cli.EXIT_FALSE
