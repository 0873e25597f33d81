"""Compares the counters of both devices: differences, explained differences, and a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .explained import EXPLANATIONS, Explanation
from .launches import Counted, gathered
from .measures import CONFLICTS, MEASURES, NEAR, Measure


@dataclass(frozen=True)
class Cell:
    """One figure of one kernel on both devices."""

    measure: Measure
    sim: float | None
    gpu: float | None
    explanation: Explanation | None = None

    @property
    def near(self) -> bool:
        return self.measure.apart(self.sim, self.gpu) <= NEAR


@dataclass(frozen=True)
class Row:
    """A kernel of a variant on one problem."""

    sim: Counted
    gpu: Counted
    cells: tuple[Cell, ...]

    @property
    def open(self) -> list[Cell]:
        """The figures that differ without an explanation."""
        return [cell for cell in self.cells if not cell.near and cell.explanation is None]


@dataclass
class Comparison:
    """rows: kernels that both devices counted. missing: kernels that only the simulated device ran. changed: variants
    whose sources differ from those that were measured."""

    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def unexplained(self) -> list[str]:
        """One line per figure that differs without an explanation."""
        return [
            f"{row.sim.problem}, {row.sim.variant}, {row.sim.kernel}: {cell.measure.name} {text(cell.sim)} simulated, "
            f"{text(cell.gpu)} on the GPU"
            for row in self.rows
            for cell in row.open
        ]

    @property
    def idle(self) -> list[Explanation]:
        """Explanations whose difference does not occur, or no longer occurs."""
        used = {id(cell.explanation) for row in self.rows for cell in row.cells}
        return [explanation for explanation in EXPLANATIONS if id(explanation) not in used]


def compare(simulated: Iterable[Counted], hardware: Iterable[Counted]) -> Comparison:
    """Return both devices' rows, paired by problem, variant, kernel, grid and block."""
    found, theirs = Comparison(), gathered(hardware)
    for key, sim in gathered(simulated).items():
        gpu = theirs.get(key)
        if gpu is None:
            found.missing.append(f"{sim.problem}, {sim.variant}: {sim.kernel} of grid {sim.grid}, block {sim.block}")
            continue
        if gpu.source != sim.source and (rung := f"{sim.family}.{sim.variant}") not in found.changed:
            found.changed.append(rung)
        found.rows.append(Row(sim, gpu, tuple(_cell(measure, sim, gpu) for measure in MEASURES)))
    return found


def _cell(measure: Measure, sim: Counted, gpu: Counted) -> Cell:
    ours, theirs = measure.sim(sim.counts), measure.gpu(gpu.counts)
    cell = Cell(measure, ours, theirs)
    if cell.near:
        return cell
    reasons = (explanation for explanation in EXPLANATIONS if explanation.speaks_for(measure.name, sim, gpu))
    return Cell(measure, ours, theirs, next(reasons, None))


def text(value: float | None) -> str:
    """Return a count as an integer, a fraction or ratio with three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def markdown(record: dict[str, Any], found: Comparison) -> str:
    """Return the table of a comparison with the GPU's `record`, with numbered reasons below it."""
    reasons: list[str] = []
    titles = [measure.name for measure in MEASURES]
    lines = [
        f"| problem | variant | kernel | {' | '.join(titles)} | conflicts by the hardware counter |",
        f"|---|---|---|{'---|' * (len(titles) + 1)}",
    ]
    last = ""
    for row in found.rows:
        cells = [_shown(cell, reasons) for cell in row.cells]
        problem, last = ("" if row.sim.problem == last else row.sim.problem), row.sim.problem
        raw = sum(row.gpu.counts.get(name, 0) for name in CONFLICTS)
        lines.append(f"| {problem} | {row.sim.variant} | {row.sim.kernel} | {' | '.join(cells)} | {text(raw)} |")
    lines += ["", *(f"[{number}] {reason}" for number, reason in enumerate(reasons, 1))]
    title = f"# Counters: the simulated device and Nsight Compute ({record['device']['name']})"
    return "\n".join([title, "", *_summary(found), "", *lines, "", _machine(record)])


def _shown(cell: Cell, reasons: list[str]) -> str:
    """Return one figure if both are equal, else both, the simulated one first, with the number of the reason."""
    if cell.sim == cell.gpu:
        return text(cell.sim)
    mark = ""
    if cell.explanation is not None:
        if cell.explanation.reason not in reasons:
            reasons.append(cell.explanation.reason)
        mark = f" [{reasons.index(cell.explanation.reason) + 1}]"
    elif not cell.near:
        mark = " **unexplained**"
    ours, theirs = text(cell.sim), text(cell.gpu)
    return (ours if ours == theirs else f"{ours} / {theirs}") + mark


def _summary(found: Comparison) -> list[str]:
    cells = [cell for row in found.rows for cell in row.cells]
    near = sum(cell.near for cell in cells)
    explained = sum(cell.explanation is not None for cell in cells)
    return [
        f"{len(found.rows)} kernels of {len({(row.sim.family, row.sim.variant) for row in found.rows})} variants, "
        f"{len(cells)} figures: {near} within {NEAR:.0%}, {sum(cell.sim == cell.gpu for cell in cells)} of them "
        f"equal; {explained} differ with an explanation, {len(cells) - near - explained} without.",
        "",
        "If a cell has two figures, the first is the simulated device's, the second the GPU's.",
    ]


def _machine(record: dict[str, Any]) -> str:
    device = record["device"]
    parts: Sequence[str] = [device["name"], f"driver {device['driver']}", f"nvrtc {device['nvrtc']}"]
    return f"{', '.join(parts)}, ncu {record['ncu']}, {record['date']}"
