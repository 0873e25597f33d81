"""Every planted bug is reported with its class and its line; every correct twin is correct and has no report."""

from __future__ import annotations

from collections import Counter

import pytest
from planted import CASES, Case, seen_by_sim
from planted.catalogue import FOLDER


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=name, marks=[pytest.mark.long] if k % 4 else []) for k, (name, c) in enumerate(CASES.items())],
)
def test_wrong_is_reported_and_right_is_silent(case: Case) -> None:
    """Both halves are in one test because they share a compile."""
    # most endless loops end at a low limit, for speed; one ends at the default
    short = case.kind == "endless loop" and case.name != "loop_without_step"
    seen = seen_by_sim(case, wrong=True, step_limit=10_000 if short else None)
    assert seen.kind == case.kind, seen.text or "no report"
    at = {line for file, line in seen.lines if file == str(case.file)}
    assert at & case.marked("BUG"), f"marked are {sorted(case.marked('BUG'))}:\n{seen.text}"
    if other := case.marked("OTHER"):
        assert other & {line for file, line in seen.others if file == str(case.file)}, seen.text

    seen = seen_by_sim(case, wrong=False)
    assert seen.kind == "", seen.text


def test_there_are_enough_of_each_class() -> None:
    count = Counter(case.kind for case in CASES.values())
    assert sum(count.values()) >= 50
    once = {"assertion", "stack overflow", "freed while in use", "source changed in flight", "race on pinned memory",
            "destination changed in flight", "used before its allocation"}  # fmt: skip
    assert all(number > 1 for kind, number in count.items() if kind not in once), count


def test_every_case_marks_its_lines() -> None:
    assert all(case.marked("BUG") for case in CASES.values())
    named = {case.file.name for case in CASES.values()}
    assert {path.name for path in FOLDER.glob("*.cu")} <= named
