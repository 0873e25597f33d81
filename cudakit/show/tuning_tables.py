"""Tables of `cudakit tune`: the best configurations per shape, and those that are unsupported, wrong or failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.shapes import shape_text
from cudakit.show import terminal
from cudakit.show.digits import NOTHING, number
from cudakit.tuning.trial import BUGS

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS, MOST_REASONS, MOST_LINES = 10, 6, 10

COUNTS = (
    "COUNTS, NOT TIMES: the simulated device has no clock. Configurations are ranked by the issue slots of their "
    "busiest unit (see docs/tuning.md); the ranking on a GPU may differ."
)


def show(report: Mapping[str, Any], out: Console) -> None:
    """Print a report of `cudakit.tuning.run.TuneReport.as_dict` on `out`."""
    if any(one["unit"] == "slots" for one in report["tunings"]):
        terminal.show_text(out, COUNTS, "bold")
    for one in report["tunings"]:
        _show_one(one, report["device"], out)


def _show_one(one: Mapping[str, Any], device: Mapping[str, str], out: Console) -> None:
    title, columns, notes = parts(one, device)
    if columns:
        styles = ["bold", *[None] * (len(columns[0].cells) - 1)]
        terminal.show_table(out, title, columns, styles=styles)
    else:
        terminal.show_text(out, title)
    for line in notes:
        terminal.show_text(out, line)


def parts(one: Mapping[str, Any], device: Mapping[str, str]) -> tuple[str, list[terminal.Column], list[str]]:
    """The title, the columns and the notes of one search's table; no columns if nothing was measured."""
    measured = [trial for trial in one["trials"] if trial["verdict"] == "measured"]
    shown = sorted(measured, key=lambda trial: float(trial["cost"]))[:MOST_ROWS]
    usual = one["usual"]
    if usual is not None and usual["cost"] is not None and not any(_same(trial, usual) for trial in shown):
        shown.append(usual)
    title = (
        f"{_place(one)} on {device['name']}: {one['tried']} of {one['space']} configurations tried in "
        f"{one['seconds']:.1f} s{' (all that are supported)' if one['tried_all'] else ''}"
        f"{'' if shown else '; none could be measured'}"
    )
    notes = [*_endings(one), *_refusals(one["refused"]), _conclusion(one)]
    return title, _columns(shown, one) if shown else [], notes


def _columns(shown: Sequence[Mapping[str, Any]], one: Mapping[str, Any]) -> list[terminal.Column]:
    usual = one["usual"]
    base = usual["cost"] if usual is not None else None

    def beside(trial: Mapping[str, Any]) -> str:
        return NOTHING if base is None else f"{number(base / trial['cost'])} x"

    def cells(name: str) -> list[str]:
        return [number(trial.get(name)) for trial in shown]

    columns = [
        terminal.Column("variant", [trial["variant"] for trial in shown], words=True),
        terminal.Column("configuration", [_configuration(trial, usual) for trial in shown], words=True),
        terminal.Column(one["unit"], cells("cost")),
        terminal.Column("x default", [beside(trial) for trial in shown]),
        terminal.Column("registers", cells("registers"), leave=2),
        terminal.Column("shared, bytes", cells("shared"), leave=3),
        terminal.Column(
            "occupancy",
            [f"{100 * trial['occupancy']:.0f} %" if "occupancy" in trial else NOTHING for trial in shown],
            leave=1,
        ),
    ]
    if one["unit"] == "slots":
        columns.insert(4, terminal.Column("busiest", [str(trial.get("busiest", NOTHING)) for trial in shown], leave=4))
        for name, heading in (("bank_conflicts", "bank conflicts"), ("divergent_branches", "divergent branches")):
            counts = [number(trial.get("counters", {}).get(name)) for trial in shown]
            columns.insert(5, terminal.Column(heading, counts, leave=5))
    return columns


def _configuration(trial: Mapping[str, Any], usual: Mapping[str, Any] | None) -> str:
    text = configuration_text(trial["configuration"]) or "as declared"
    return f"{text} (default)" if usual is not None and _same(trial, usual) else text


def configuration_text(configuration: Mapping[str, Any]) -> str:
    """ "tile=32 rows=8"."""
    return " ".join(f"{name}={value}" for name, value in configuration.items())


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["variant"] == other["variant"] and one["configuration"] == other["configuration"])


def _place(one: Mapping[str, Any]) -> str:
    return " ".join(part for part in (one["family"], shape_text(one["shape"]), one["dtype"], one["mode"]) if part)


def _endings(one: Mapping[str, Any]) -> list[str]:
    """Configurations that could not be measured, by reason; bugs first, with the report of the first configuration."""
    lines = []
    for verdict in ("wrong", "failed", "not compiled", "unfit"):
        by_reason: dict[str, list[Mapping[str, Any]]] = {}
        for trial in one["trials"]:
            if trial["verdict"] == verdict:
                by_reason.setdefault(_reason(trial), []).append(trial)
        for why, ended in list(by_reason.items())[:MOST_REASONS]:
            name = f"{ended[0]['variant']} {configuration_text(ended[0]['configuration'])}".strip()
            others = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
            bug = verdict in ("wrong", "failed")
            lines.append(f"{verdict.upper() if bug else verdict}: {name}{others}: {why.splitlines()[0]}")
            if bug:
                lines += [f"  {line}" for line in str(ended[0]["why"] or "").splitlines()[1:MOST_LINES]]
        if len(by_reason) > MOST_REASONS:
            lines.append(f"{verdict}: {len(by_reason) - MOST_REASONS} more reasons are in --json")
    return lines


def _reason(trial: Mapping[str, Any]) -> str:
    """The first line of a reason, with the source line of a bug or the first error of a compiler."""
    first, *others = str(trial["why"] or "").splitlines() or [""]
    errors = [line.partition("error:")[2].strip() for line in others if "error:" in line]
    if errors:
        return f"{first}: {errors[0]}"
    places = [line for line in others if re.fullmatch(r"  at .+:\d+", line)]
    return "\n".join([first, *places[:1]]) if trial["verdict"] in BUGS else first


def _refusals(refused: Mapping[str, int]) -> list[str]:
    lines = [f"unsupported: {count}: {why}" for why, count in list(refused.items())[:MOST_REASONS]]
    if len(refused) > MOST_REASONS:
        lines.append(f"unsupported: {len(refused) - MOST_REASONS} more reasons are in --json")
    return lines


#: Why the default choice has no cost, by its verdict.
_NO_CHOICE = {"wrong": "is wrong", "failed": "fails", "not compiled": "does not compile"}


def _conclusion(one: Mapping[str, Any]) -> str:
    if one["lost"]:
        kept = "" if one["kept"] is None else f". The best so far was saved to {one['kept']}"
        return f"{one['lost']}{kept}"
    if one["best"] is None:
        return "nothing was saved"
    usual, ratio, kept = one["usual"], one["ratio"], one["kept"]
    unit = "time" if one["unit"] == "ms" else "slots"
    if usual is not None and usual["verdict"] in _NO_CHOICE:
        text = f"auto's default, {usual['variant']}, {_NO_CHOICE[usual['verdict']]}"
    elif usual is None or ratio is None:
        text = "auto's default could not be measured"
    elif _same(one["best"], usual):
        text = f"auto's default, {usual['variant']}, is the best one"
    elif ratio <= 1.0:
        text = f"auto's default, {usual['variant']}, stays: the best found takes {number(1 / ratio)} of its {unit}"
    else:
        text = f"the best one takes {number(1 / ratio)} of the {unit} of auto's default, {usual['variant']}"
    return f"{text}; {'nothing was saved' if kept is None else f'saved for auto in {kept}'}"
