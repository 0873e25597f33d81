"""The outcomes of the tests that docs/systems.md names: in a run of all tests, each must pass in at least one case.

`tests/conftest.py` registers `Outcomes` if CUDAKIT_NEED_SYSTEMS is set, as .ci/run does: without a whole installation
(node, torch) some tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest


class Outcomes:
    """A pytest plugin that adds a failed test for each of `tests` that was skipped or did not run."""

    def __init__(self, tests: Iterable[str]) -> None:
        self.found: dict[str, set[str]] = {test: set() for test in tests}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = report.outcome
        if report.when == "call" or outcome != "passed":
            for test in {report.nodeid, report.nodeid.partition("[")[0]} & self.found.keys():
                self.found[test].add(outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for test, outcomes in self.found.items():
            if "passed" in outcomes or "failed" in outcomes:
                continue
            what = "was skipped" if outcomes else "did not run"
            report = pytest.TestReport(
                f"docs/systems.md::{test}",
                ("docs/systems.md", None, test),
                {},
                "failed",
                f"{test} {what}, but docs/systems.md names it",
                "call",
            )
            session.config.hook.pytest_runtest_logreport(report=report)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
