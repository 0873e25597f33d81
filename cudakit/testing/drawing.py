"""The draw: which problems a seed stands for. `cudakit fuzz`, `check_variant` and `kernel_test` try the same ones.

Problem number N of a strategy and a seed is always the same, however many are tried.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import strategies as st

from cudakit.family import several
from cudakit.testing.case import Case

# Different problems of the first chunk; each of the next ones has twice as many as the one before it, up to the last.
_FIRST, _LARGEST = 32, 512
# Hypothesis draws many problems twice: so many are drawn for each different one that is wanted.
_DRAWS = 10


class _Enough(BaseException):
    """Enough problems were drawn. Not an Exception: hypothesis would take it for a failing problem."""


@dataclass(frozen=True)
class Drawn:
    """A problem, and where it comes from: draw number `draw` of chunk number `chunk`."""

    case: Case
    chunk: int
    draw: int


def places(case: Case) -> str:
    """The layouts and options of a problem, by which two problems differ."""
    return repr((case.inputs, case.output, case.over, dict(case.options)))


def is_empty(case: Case) -> bool:
    """Whether a problem has no element of output: nothing is launched for it."""
    return all(0 in place.shape for place in several(case.output or case.inputs[case.over]))


def problems(strategy: st.SearchStrategy[Case], seed: int) -> Iterator[Drawn]:
    """The problems of a seed that are not empty, until a whole chunk of them has no layouts or options that are new."""
    seen: set[str] = set()
    for number in range(1 << 16):
        known = len(seen)
        for drawn in _chunk(strategy, seed, number):
            seen.add(places(drawn.case))
            yield drawn
        if len(seen) == known:
            return


@functools.lru_cache(maxsize=256)
def _chunk(strategy: st.SearchStrategy[Case], seed: int, number: int) -> tuple[Drawn, ...]:
    """Problems of different layouts or options. Kept, since variants share strategies, and drawing takes longer than
    running most kernels."""
    size = _size(number)
    found: dict[str, Drawn] = {}
    draws = 0

    def keep(case: Case) -> None:
        nonlocal draws
        if len(found) >= size:
            raise _Enough
        if not is_empty(case):
            found.setdefault(places(case), Drawn(case, number, draws))
        draws += 1

    with contextlib.suppress(_Enough):
        _draw(strategy, seed, number, keep)
    return _new_shapes_first(tuple(found.values()))


def _new_shapes_first(drawn: tuple[Drawn, ...]) -> tuple[Drawn, ...]:
    """Hypothesis draws many problems that differ from the one before in an offset or an option alone: a short search
    should not spend its examples on one shape."""
    seen: set[Any] = set()
    first: list[Drawn] = []
    others: list[Drawn] = []
    for one in drawn:
        shapes = tuple(place.shape for place in one.case.inputs)
        (others if shapes in seen else first).append(one)
        seen.add(shapes)
    return (*first, *others)


def shrink(strategy: st.SearchStrategy[Case], seed: int, failing: Drawn, attempt: Callable[[Case], None]) -> None:
    """Draws up to `failing` again, which `attempt` raises for, and then what hypothesis makes of it: smaller problems.

    Raises the error of the smallest that fails; hypothesis' Flaky if it does not fail each time.
    """
    draws = 0

    def again(case: Case) -> None:
        nonlocal draws
        if draws >= failing.draw and not is_empty(case):
            attempt(case)
        draws += 1

    _draw(strategy, seed, failing.chunk, again)


def _size(number: int) -> int:
    """How many problems a chunk has."""
    return min(_FIRST << number, _LARGEST)


def _draw(strategy: st.SearchStrategy[Case], seed: int, number: int, use: Callable[[Case], None]) -> None:
    """Calls `use` with what hypothesis draws for a chunk; after an error, with smaller problems."""

    @hypothesis.seed((seed << 16) + number)
    @hypothesis.settings(
        max_examples=_DRAWS * _size(number),
        database=None,
        derandomize=False,
        deadline=None,
        # not its explain phase, which runs a failing problem hundreds of times for comments that are not shown here
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        verbosity=hypothesis.Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def each(case: Case) -> None:
        use(case)

    each()
