"""Every planted Hopper bug is reported with its class and its line; every correct twin is correct and has no report."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted.catalogue import Case, seen_by_sim
from planted.hopper import CASES, CHECKS, Changed
from planted.hopper.catalogue import FOLDER
from planted.hopper.kinds import KINDS

# The twin of a changed kernel is the kernel itself: one test per kernel and shape.
TWINS = {(case.file.name, case.shape): name for name, case in CASES.items() if isinstance(case, Changed)}


def quick(number: int, name: str) -> Any:
    return pytest.param(CASES[name], id=name, marks=[pytest.mark.long] if number % 3 else [])


@pytest.mark.parametrize("case", [quick(*pair) for pair in enumerate(CASES)])
def test_wrong_is_reported_and_right_is_silent(case: Case) -> None:
    """Both halves are in one test because they share a compile."""
    seen = seen_by_sim(case, wrong=True, checks=CHECKS)
    assert seen.kind == case.kind, seen.text or "no report"
    at = {line for file, line in seen.lines if file == str(case.file)}
    assert at & case.marked("BUG"), f"marked are {sorted(case.marked('BUG'))}:\n{seen.text}"
    if other := case.marked("OTHER"):
        assert other & {line for file, line in seen.others if file == str(case.file)}, seen.text

    if case.name in TWINS.values() or not isinstance(case, Changed):
        seen = seen_by_sim(case, wrong=False, checks=CHECKS)
        assert seen.kind == "", seen.text


def test_there_are_enough_of_each_class() -> None:
    count = Counter(case.kind for case in CASES.values())
    assert len(CASES) >= 60
    assert set(count) == set(KINDS.values())
    assert all(number > 1 for number in count.values()), count
    assert 3 * sum(isinstance(case, Changed) for case in CASES.values()) >= len(CASES)


def test_every_case_marks_its_lines() -> None:
    assert all(case.marked("BUG") for case in CASES.values())
    assert {path.name for path in FOLDER.glob("*.cu")} <= {case.file.name for case in CASES.values()}
