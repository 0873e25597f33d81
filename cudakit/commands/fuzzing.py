"""`cudakit fuzz`: run a family's variants on problems drawn by hypothesis, and compare with the float64 reference."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cudakit.commands import cli
from cudakit.compile import headers
from cudakit.errors import Refused
from cudakit.reports import Report
from cudakit.show import terminal

if TYPE_CHECKING:
    from cudakit.family import Ladder, Variant
    from cudakit.testing import Coverage


@dataclass
class FuzzOutcome:
    """The outcome of fuzzing. `ran` and `refused` count the supported and unsupported problems of all variants.
    `different`: the number of distinct problems that ran, by variant. `short`: an explanation for each variant that ran
    on too few problems. `cut_after`: the seconds after which the run was stopped early; None if it completed. `failed`:
    the variants with a wrong result. `failure`: the description of these failures. `replay`: the command that draws the
    problems of the failed variants again, or all problems if no variant failed. `reports`: the findings as data."""

    family: str
    variants: list[str]
    device: str
    seed: int
    problems: int = 0
    ran: int = 0
    refused: int = 0
    different: dict[str, int] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    failure: str | None = None
    cut_after: float | None = None
    replay: str = ""
    reports: list[Report] = field(default_factory=list)

    def add(self, variant: Variant[Any], coverage: Coverage, least: int) -> None:
        """Count one variant's problems; it must have run on at least `least` different problems."""
        self.problems += coverage.drawn
        self.refused += coverage.refused
        self.ran += coverage.drawn - coverage.refused
        self.different[variant.name] = len(coverage.different)
        short = coverage.shortfall(least)
        if short is not None and coverage.drawn:
            self.short[variant.name] = short
            self._report(variant, [Report("too few problems", short, full_text=short)], self.replay)

    def fail(self, variant: Variant[Any], text: str, found: Sequence[Report], replay: str) -> None:
        """Record the problem on which a variant's result was wrong. replay: the command that draws the variant's
        problems again."""
        self.problems += 1
        self.failed.append(variant.name)
        self.failure = text if self.failure is None else f"{self.failure}\n{text}"
        self._report(variant, found, replay)

    def _report(self, variant: Variant[Any], found: Sequence[Report], replay: str) -> None:
        """Add reports about a variant. A report without a place gets the variant's source file as its place."""
        about: dict[str, Any] = {"family": self.family, "variant": variant.name, "replay": replay}
        source = str(headers.find_source(variant.source))
        self.reports += [replace(one, **about).at(source) for one in found]

    @property
    def ok(self) -> bool:
        return self.failure is None and self.ran > 0 and not self.short

    def text(self) -> str:
        """One line, and the smallest failing problem of each variant that has one."""
        what = f"{self.family}/{self.variants[0]}" if len(self.variants) == 1 else self.family
        line = (
            f"{what} on {self.device}: {self.problems} problems, {self.ran} runs, {self.refused} unsupported,"
            f" seed {self.seed}: "
        )
        if self.cut_after is not None:
            line += f"stopped after {self.cut_after:g} seconds, "
        if self.failure is not None:
            which = f": {', '.join(self.failed)}" if len(self.variants) > 1 else ""
            return f"{line}FAILED{which}\n{self.failure}\nreplay: {self.replay}"
        if not self.ran:
            return line + "NOTHING RAN, every problem is unsupported"
        if self.short:
            return "\n".join([f"{line}TOO FEW PROBLEMS RAN", *(f"{name}: {why}" for name, why in self.short.items())])
        return line + f"passed, on at least {min(self.different.values())} different problems per variant"


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
    """Run each of the variants `names` (all if empty) on `examples` different problems that it supports, of at most
    `elements` elements each. After a wrong variant the others still run, unless a fault has lost the GPU.

    checks: the simulated device's checks to run; all if None. seconds: start no new problem after this time; making a
    failing problem smaller may take as long again. Raises Refused if the request is wrong or hypothesis is missing.
    """
    try:
        from cudakit.testing import replay, search
    except ImportError as error:
        raise Refused("fuzzing needs hypothesis: pip install 'cudakit[test]'") from error
    from cudakit import testing

    options = {} if checks is None else {"checks": frozenset(checks)}
    device = cli.open_device(spec, **options)
    elements = elements or search.ELEMENTS[device.kind]
    with search.Workbench(device) as bench:
        try:
            variants = [family[name] for name in names] if names else list(family.variants)
            cases = [testing.cases_of(family, variant, elements) for variant in variants]
        except ValueError as error:
            raise Refused(str(error)) from error
        seed = search.random_seed() if seed is None else seed
        outcome = FuzzOutcome(family.name, [variant.name for variant in variants], device.name, seed)

        def again(names: Sequence[str]) -> str:
            return replay.command(
                family, spec, examples=examples, seed=outcome.seed, elements=elements, variants=names, checks=checks
            )

        outcome.replay = again(names)
        limit = search.Limit(seconds)
        for number, (variant, problems) in enumerate(zip(variants, cases, strict=True)):
            coverage, least = testing.Coverage(), min(testing.LEAST, examples)
            try:
                search.search(bench, family, variant, problems, coverage, examples=examples, seed=seed, limit=limit)
            except search.Wrong as wrong:
                outcome.fail(variant, *search.explained(bench, family, wrong), again([variant.name]))
                least = 0
            except search.TimeIsUp:
                outcome.cut_after = seconds
                least = 0
            outcome.add(variant, coverage, least)
            if outcome.cut_after is not None:
                break
            if bench.lost and variants[number + 1 :]:
                untried = ", ".join(one.name for one in variants[number + 1 :])
                outcome.failure = f"{outcome.failure}\nthis process has lost the GPU; not run: {untried}"
                break
        if outcome.failed:
            outcome.replay = again(outcome.failed)
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
        arguments.checks,
    )
    terminal.say(outcome.text())
    if outcome.failure is None and not outcome.ran:
        return cli.nothing_checked(f"{', '.join(outcome.variants)} supports none of the problems")
    return cli.EXIT_OK if outcome.ok else cli.EXIT_FALSE
