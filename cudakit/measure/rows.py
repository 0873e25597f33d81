"""The rows of a bench (subject, verdict of the check, times, rates, counters) and the report that contains them.

Only `Row.as_dict` and `BenchReport.as_dict` convert them to the JSON that scripts rely on.
"""

from __future__ import annotations

import copy
import datetime
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict

from cudakit.measure.command import command_line
from cudakit.measure.timing import Spread
from cudakit.shapes import Shape, shape_text

if TYPE_CHECKING:
    from cudakit.compare import Comparison
    from cudakit.pipeline import PipelineReport


def on_host(variant: str) -> bool:
    """Whether a row's variant is `cpu`, numpy on the host, or another library there, such as `cpu:torch`."""
    return variant.partition(":")[0] == "cpu"


@dataclass(slots=True)
class Subject:
    """The subject of a row: one variant of a family on one shape. rung: the variant's position in the ladder; None if
    it is not in the ladder."""

    family: str
    variant: str
    rung: int | None
    shape: Shape
    dtype: str
    mode: str = ""
    idea: str = ""


@dataclass(slots=True)
class Verdict:
    """The outcome of a row's check. ok: None before the check, and if it was skipped. skipped: the reason why it was
    not run. worst_at: the index of the largest error. why: the reason why ok is false."""

    ok: bool | None = None
    skipped: str | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    worst_at: tuple[int, ...] | None = None
    why: str | None = None


@dataclass(slots=True)
class Times:
    """The times of a row. device: milliseconds of the work alone. end_to_end: milliseconds including the transfers from
    and to the host. back_to_back: milliseconds per launch of `GpuTimer.back_to_back`. call: microseconds of the host
    per user's call. call_arrays: the library of that call's arrays."""

    device: Spread | None = None
    end_to_end: float | None = None
    back_to_back: float | None = None
    call: Spread | None = None
    call_arrays: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "time_ms": None if self.device is None else self.device.as_dict(),
            "end_to_end_ms": self.end_to_end,
            "back_to_back_ms": self.back_to_back,
            "call_us": None if self.call is None else {**self.call.as_dict(), "arrays": self.call_arrays},
        }


@dataclass(slots=True)
class Rates:
    """Rates computed from the time: GB/s of the minimum memory traffic, TFLOP/s, and the fraction of the ceiling.
    ceiling: "copy", "bound" (of a pipeline), or the name of a library or peer."""

    gbps: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None
    ceiling: str = "copy"


class LaunchShape(TypedDict, total=False):
    """The launch of a variant's largest kernel. shared: bytes per block, including static ones. registers: per thread.
    occupancy: the fraction of a multiprocessor's threads that can be resident."""

    grid: Any
    block: Any
    shared: int
    registers: int
    occupancy: float


@dataclass(slots=True)
class Row:
    """One variant on one shape. A script that reports more figures derives a class; the fields it adds come last in the
    JSON. counters: the simulated device's counters. pipeline: the report of the pipeline, if the work used one."""

    subject: Subject
    rates: Rates = field(default_factory=Rates)
    verdict: Verdict = field(default_factory=Verdict)
    times: Times = field(default_factory=Times)
    counters: dict[str, float] | None = None
    launch: LaunchShape | None = None
    pipeline: PipelineReport | None = None

    def __repr__(self) -> str:
        subject = self.subject
        parts = (f"{subject.family}/{subject.variant}", shape_text(subject.shape), subject.dtype, subject.mode)
        return f"Row({' '.join(part for part in parts if part)}: {self._outcome()})"

    def _outcome(self) -> str:
        if self.verdict.skipped is not None:
            return f"skipped: {self.verdict.skipped}"
        said = ["not checked" if self.ok is None else "correct" if self.ok else f"wrong: {self.verdict.why}"]
        if self.times.device is not None:
            said.append(f"{self.times.device.median:.4g} ms")
        if self.rates.of_ceiling is not None:
            said.append(f"{self.rates.of_ceiling:.0%} of {self.rates.ceiling}")
        return ", ".join(said)

    @property
    def ok(self) -> bool | None:
        """Whether the check passed; None if there was none."""
        return self.verdict.ok

    def judge(self, comparison: Comparison) -> None:
        """Set the verdict from a comparison with the reference."""
        self.verdict = Verdict(
            comparison.ok, self.verdict.skipped, comparison.max_abs_error, comparison.max_rel_error,
            comparison.worst_at, comparison.why or None,
        )  # fmt: skip

    def fail(self, why: str) -> None:
        self.verdict.ok, self.verdict.why = False, why

    def skip(self, why: str | None) -> None:
        """Set the reason why the row was not run; None if it was."""
        self.verdict.skipped = why

    def not_run(self, why: str) -> None:
        """Set the reason why the row was not run, or not finished, and drop its results."""
        self.verdict = Verdict(skipped=f"not run: {why}")

    def timed(self, spread: Spread, *, traffic: float | None = None, flops: float | None = None) -> None:
        """Set the time of the work, in milliseconds, and the rates computed from it. traffic: minimum bytes of memory
        traffic. flops: floating-point operations. If one is None, its rate is not set."""
        self.times.device = spread
        seconds = spread.median / 1000
        self.rates.gbps = None if traffic is None else traffic / seconds / 1e9
        self.rates.tflops = None if flops is None else flops / seconds / 1e12

    def called(self, spread: Spread, arrays: str) -> None:
        """Set the host's microseconds per call on arrays of the library `arrays`."""
        self.times.call, self.times.call_arrays = spread, arrays

    def hold_against(self, ceiling_ms: float) -> None:
        """Set the fraction of a ceiling that takes `ceiling_ms`, if the row was timed."""
        if self.times.device is not None:
            self.rates.of_ceiling = ceiling_ms / self.times.device.median

    def streamed(self, done: PipelineReport) -> None:
        """Set the figures of a pipeline: bytes in both directions, and on a GPU its time and the fraction of its
        bound."""
        self.pipeline = done
        self.rates.ceiling = "bound"
        if all(spec.startswith("gpu") for spec in done.devices):
            self.timed(Spread.of([done.seconds * 1e3]), traffic=done.bytes_in + done.bytes_out)
            self.rates.of_ceiling = done.share

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON data, in the order of the committed reports."""
        own = [entry.name for entry in fields(self) if entry not in fields(Row)]
        return {
            **asdict(self.subject),
            **asdict(self.verdict),
            **self.times.as_dict(),
            **asdict(self.rates),
            "counters": copy.copy(self.counters),
            "launch": copy.copy(self.launch),
            "pipeline": None if self.pipeline is None else self.pipeline.as_dict(),
            **{name: copy.copy(getattr(self, name)) for name in own},
        }


@dataclass(repr=False)
class BenchReport:
    """The ceilings and rows of one run. command: the command that made it, as `command_line` returns it."""

    device: dict[str, Any]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    ceilings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    command: str = field(default_factory=command_line)

    def __repr__(self) -> str:
        families = ", ".join(dict.fromkeys(row.subject.family for row in self.rows))
        verdicts = {"correct": True, "wrong": False, "without a verdict": None}
        counts = {word: sum(row.ok is ok for row in self.rows) for word, ok in verdicts.items()}
        rows = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no rows"
        return f"{type(self).__name__}({families or 'no family'} on {self.device.get('name')}: {rows})"

    @property
    def ok(self) -> bool:
        """True if no row failed; skipped rows do not count as failures."""
        return not any(row.ok is False for row in self.rows)

    @property
    def checked(self) -> bool:
        """True if any row except the CPU's and the peers' was checked."""
        variants = ((row.ok, row.subject.variant) for row in self.rows)
        return any(ok is not None and not on_host(name) and not name.startswith("peer:") for ok, name in variants)

    def merge(self, other: BenchReport) -> None:
        """Add the rows and ceilings of another run on the same device."""
        self.rows += other.rows
        copies = [*self.ceilings.get("copy", []), *other.ceilings.get("copy", [])]
        self.ceilings |= other.ceilings | ({"copy": copies} if copies else {})

    def as_dict(self) -> dict[str, Any]:
        return {
            "device": copy.deepcopy(self.device),
            "date": self.date,
            "command": self.command,
            "ceilings": copy.deepcopy(self.ceilings),
            "rows": [row.as_dict() for row in self.rows],
        }
