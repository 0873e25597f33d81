"""The findings of `cudakit check`, and the files written from them: JSON, SARIF, JUnit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cudakit import reports
from cudakit.reports import Report
from cudakit.show import junit, outputs, sarif


@dataclass
class Outcome:
    """All findings of a check, with the keys of its JSON. The entries of architectures, fuzzed and runs have "ok",
    "step" (a description) and "seconds".

    target: the command's argument. file: the target's first `.cu` file. nothing_checked: why nothing was checked, or
    None. launches: the number of launches per kernel of the files, in fuzzing and runs; empty if the command runs
    nothing. kernels_checked: the number of kernels that were launched; None if the command runs nothing. reports: all
    findings, each once.
    """

    target: str
    file: str
    checks: list[str]
    nothing_checked: str | None = None
    launches: list[dict[str, Any]] = field(default_factory=list)
    kernels_checked: int | None = None
    architectures: list[dict[str, Any]] = field(default_factory=list)
    fuzzed: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    annotated: str | None = None
    reports: list[Report] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.nothing_checked is None and not self.failed

    @property
    def failed(self) -> bool:
        return not all(entry["ok"] for entry in self.steps)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The entries of all steps, in order."""
        return [*self.architectures, *self.fuzzed, *self.runs]

    def add(self, found: Iterable[Report]) -> None:
        """Add reports. A report without a place gets the target's file as its place."""
        self.reports += [report.at(self.file) for report in found]

    def write(self, *, json: str | None, sarif_file: str | None, junit_file: str | None) -> None:
        """Write the requested files. json: "-" is stdout."""
        if json is not None:
            outputs.write_json({"ok": self.ok, **asdict(self)}, json)
        if sarif_file is not None:
            scripts = [run["script"] for run in self.runs if run["script"]]
            root = sarif.source_root(Path.cwd())
            named = self.file if self.target.endswith(".cu") else self.target
            category = "/".join(["cudakit", *(sarif.uri(name, root)[0] for name in (named, *scripts)), ""])
            outputs.write_file(sarif_file, sarif.text(self.reports, root, category, self.nothing_checked))
        if junit_file is not None:
            outputs.write_file(junit_file, junit.text(Path(self.target).name, list(self._cases())))

    def _cases(self) -> Iterable[junit.Case]:
        for entry in self.steps:
            found = [one for one in self.reports if one.step == entry["step"] and one.severity == reports.ERROR]
            texts = dict.fromkeys(one.full_text for one in found)
            yield junit.Case(
                entry["step"],
                entry["seconds"],
                failure=None if entry["ok"] else "\n\n".join(texts) or "failed",
                kind=found[0].kind if found else "failed",
                message=found[0].headline if found else "failed",
            )
        for entry in self.launches:
            skipped = None if entry["launches"] else "never launched"
            yield junit.Case(f"kernel {entry['kernel']}", 0.0, skipped=skipped)
        if self.nothing_checked is not None:
            yield junit.Case(
                "something was checked", 0.0, error=self.nothing_checked, kind="nothing checked",
                message=self.nothing_checked,
            )  # fmt: skip
