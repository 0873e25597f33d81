"""Counts the problems that a fuzzed variant ran on: a refused problem is not a passed one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st

from cudakit.compare import Comparison
from cudakit.family import several
from cudakit.testing.case import Case, Unsupported, run_case

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.family import Ladder, Variant

# Different problems that a variant must have run on.
LEAST = 20


class _Enough(BaseException):
    """Enough problems ran. Not an Exception: hypothesis would take it for a failing problem."""


@dataclass
class Coverage:
    """The problems of one variant: how many were drawn and refused, and which different ones ran.

    Problems of the same layouts and options are one problem, whatever their values. One without an element of output is
    not counted: nothing is launched for it.
    """

    drawn: int = 0
    refused: int = 0
    different: set[str] = field(default_factory=set)

    def run(
        self, device: Device, family: Ladder[Any], variant: Variant[Any] | None, case: Case
    ) -> Comparison | Unsupported:
        """`run_case`, counted."""
        verdict = run_case(device, family, variant, case)
        self.count(case, isinstance(verdict, Unsupported))
        return verdict

    def count(self, case: Case, refused: bool) -> None:
        """Counts a problem that ran, or that the variant refused."""
        if _is_empty(case):
            return
        self.drawn += 1
        self.refused += refused
        if not refused:
            self.different.add(_places(case))

    def shortfall(self, least: int = LEAST) -> str | None:
        """A sentence if fewer than half of the problems ran, or fewer than `least` different ones; else None."""
        if 2 * self.refused <= self.drawn and len(self.different) >= least:
            return None
        return (
            f"{self.refused} of {self.drawn} problems were refused and {len(self.different)} different ones ran; at "
            f"least half must run, and {least} different ones: name the kind of problems that it supports in "
            "`problems` of its Variant, or draw more"
        )


def _is_empty(case: Case) -> bool:
    return all(0 in place.shape for place in several(case.output or case.inputs[case.over]))


def _places(case: Case) -> str:
    """The layouts and options of a problem, by which two problems differ."""
    return repr((case.inputs, case.output, case.over, dict(case.options)))


def check_variant(
    device: Device,
    family: Ladder[Any],
    variant: Variant[Any] | None,
    problems: st.SearchStrategy[Case],
    examples: int | None = None,
) -> Coverage:
    """Runs `variant` (None: the one "auto" picks) on drawn problems until `examples` different ones ran, LEAST or more.

    Raises AssertionError if it is wrong on one, which is made as small as can be, or if fewer than half of the problems
    or fewer than LEAST different ones ran. examples: that of hypothesis' profile unless given; the profile's other
    settings hold.
    """
    profile: Any = hypothesis.settings.default
    wanted = max(LEAST, examples or profile.max_examples)
    coverage = Coverage()
    for most in (wanted, 3 * wanted):
        for case in sample(problems, most)[coverage.drawn :]:
            if len(coverage.different) >= wanted:
                break
            wrong = _why_wrong(coverage, device, family, variant, case)
            if wrong:
                _shrink(problems, most, lambda one: _why_wrong(Coverage(), device, family, variant, one))
                raise AssertionError(f"{wrong}, of {case}")
    short = coverage.shortfall()
    if short is not None:  # no assert: `python -O` leaves those out
        raise AssertionError(f"{family.name}/{variant.name if variant else 'auto'}: {short}")
    return coverage


def _why_wrong(
    coverage: Coverage, device: Device, family: Ladder[Any], variant: Variant[Any] | None, case: Case
) -> str:
    verdict = coverage.run(device, family, variant, case)
    return "" if isinstance(verdict, Unsupported) or verdict.ok else verdict.why


@functools.lru_cache(maxsize=256)
def sample(problems: st.SearchStrategy[Case], count: int) -> tuple[Case, ...]:
    """`count` different problems that are not empty, or fewer if there are not so many. All variants that are given one
    strategy share them: drawing takes longer than running most kernels."""
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        if len(found) >= count:
            raise _Enough
        if not _is_empty(case):
            found.setdefault(_places(case), case)

    _draw(problems, count, keep)
    return tuple(found.values())


def _shrink(problems: st.SearchStrategy[Case], count: int, why_wrong: Callable[[Case], str]) -> None:
    """Raises AssertionError for the smallest problem, among as many as `sample` draws, that is wrong."""

    def attempt(case: Case) -> None:
        wrong = why_wrong(case)
        if wrong:
            raise AssertionError(wrong)

    _draw(problems, count, attempt)


def _draw(problems: st.SearchStrategy[Case], count: int, use: Callable[[Case], None]) -> None:
    """Calls `use` with problems until it has _Enough. Hypothesis draws many twice: more are drawn than are wanted."""

    @hypothesis.settings(
        max_examples=10 * count,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(problems)
    def each(case: Case) -> None:
        use(case)

    with contextlib.suppress(_Enough):
        each()
