"""Every planted bug is reported with its class and its line; every correct twin runs in silence and is right."""

from __future__ import annotations

from collections import Counter

import pytest
from planted import CASES, Case, seen_by_sim
from planted.catalogue import FOLDER

ALL = [pytest.param(case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize("case", ALL)
def test_wrong_is_reported_with_its_class_and_its_line(case: Case) -> None:
    seen = seen_by_sim(case, wrong=True)
    assert seen.kind == case.kind, seen.text or "no report"
    at = {line for file, line in seen.lines if file == str(case.file)}
    assert at & case.marked("BUG"), f"marked are {sorted(case.marked('BUG'))}:\n{seen.text}"
    other = case.marked("OTHER")
    if other:
        assert other & {line for file, line in seen.others if file == str(case.file)}, seen.text


@pytest.mark.parametrize("case", ALL)
def test_right_is_right_and_runs_in_silence(case: Case) -> None:
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
