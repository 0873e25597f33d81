"""The problems of a seed. `cudakit fuzz`, `check_variant` and `kernel_test` try the same ones.

Problem number N of a strategy and a seed is always the same, regardless of the number of problems tried.
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

# Different problems in the first chunk, and in the largest. Each chunk has twice as many as the previous one, up to the
# largest.
_FIRST, _LARGEST = 32, 512
# Draws per different problem, because hypothesis draws many problems twice.
_DRAWS = 10


class _Enough(BaseException):
    """Ends a draw after enough problems. Not an Exception, which hypothesis would treat as a failing problem."""


@dataclass(frozen=True)
class Drawn:
    """A problem and its origin: draw number `draw` of chunk number `chunk`."""

    case: Case
    chunk: int
    draw: int


def places(case: Case) -> str:
    """Return the layouts and options of a problem as a key: problems with different keys are different."""
    return repr((case.inputs, case.output, case.over, dict(case.options)))


def is_empty(case: Case) -> bool:
    """Return whether a problem's output is empty; such a problem launches no kernel."""
    return all(0 in place.shape for place in several(case.output or case.inputs[case.over]))


def problems(strategy: st.SearchStrategy[Case], seed: int) -> Iterator[Drawn]:
    """Yield the problems of a seed that are not empty. Ends after a chunk without new layouts or options."""
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
    """Return the problems of a chunk, with different layouts or options. Cached, because variants share strategies, and
    drawing takes longer than running most kernels."""
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
    """Sort problems with new shapes first. Hypothesis draws many problems that differ from the previous one only in an
    offset or an option; a short search should not spend its examples on one shape."""
    seen: set[Any] = set()
    first: list[Drawn] = []
    others: list[Drawn] = []
    for one in drawn:
        shapes = tuple(place.shape for place in one.case.inputs)
        (others if shapes in seen else first).append(one)
        seen.add(shapes)
    return (*first, *others)


def shrink(strategy: st.SearchStrategy[Case], seed: int, failing: Drawn, attempt: Callable[[Case], None]) -> None:
    """Repeat the draws up to `failing`, for which `attempt` raises, and let hypothesis shrink it to smaller problems.

    Raises the error of the smallest failing problem; hypothesis' Flaky if the problem does not fail each time.
    """
    draws = 0

    def again(case: Case) -> None:
        nonlocal draws
        if draws >= failing.draw and not is_empty(case):
            attempt(case)
        draws += 1

    _draw(strategy, seed, failing.chunk, again)


def _size(number: int) -> int:
    """Return the number of problems in a chunk."""
    return min(_FIRST << number, _LARGEST)


def _draw(strategy: st.SearchStrategy[Case], seed: int, number: int, use: Callable[[Case], None]) -> None:
    """Call `use` with the problems that hypothesis draws for a chunk; after an error, with smaller problems."""

    @hypothesis.seed((seed << 16) + number)
    @hypothesis.settings(
        max_examples=_DRAWS * _size(number),
        database=None,
        derandomize=False,
        deadline=None,
        # without the explain phase, which runs a failing problem hundreds of times for comments that are not shown
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
